"""Figures that say something beyond the run, on journals short enough to add up by hand and on many events."""

import io

import pytest
from rich.console import Console

from erfs_scenario.figures import _down_of_each, difference_figures, events_of
from erfs_scenario.report import Baseline, Figure, IntervalReport, RefusalReport, Report
from erfs_scenario.tables import tables_of
from tests.scenario.test_judging import A, B, Record, affected, begins, ends, fault, flow, run

C = "@c"


def figure(report: Report, name: str, of: str = "events") -> Figure:
    return next(one for one in report.figures if (one.name, one.of) == (name, of))


def many(
    losses: list[int],
    *,
    planned_apart_ns: int = 40,
    cause: str = "not_recovered",
    who: str = A,
    is_on_return: bool = False,
    before: tuple[Record, ...] = (),
) -> Report:
    """Judge a run of one fault each *planned_apart_ns*, after which 10 of 100 demands get nothing for so many ns of *losses*."""
    records: list[Record] = [*before]
    faults = []
    for index, lost_ns in enumerate(losses):
        name, at_ns = f"f{index:03}", 1100 + index * planned_apart_ns
        faults.append(fault(name, at_ns, at_ns + 30))
        records += [affected((A, B, "near"), name=name, at_ns=at_ns), begins(name, at_ns)]
        lost = []
        if lost_ns:
            begun_ns = at_ns + 30 * is_on_return
            lost = [flow(begun_ns, who, B, 0, cause), flow(begun_ns + lost_ns, who, B, 1_000_000, "served")]
        end = ends(name, at_ns + 30)
        records += [end, *lost] if is_on_return else [*lost, end]
    return run(*records, faults=tuple(faults))


def test_every_figure_has_a_definition_and_an_interval_or_the_reason_why_not() -> None:
    for report in (many([5]), many([1, 2] * 120)):
        for one in report.figures:
            assert (one.interval is None) != (one.refusal is None), one.name
            assert one.definition, one.name


def test_few_events_give_shares_with_their_exact_interval_and_no_percentile() -> None:
    report = many([5, 5, 5])

    assert [(one.name, one.value, one.events, one.count) for one in report.figures if one.of == "events"] == [
        ("recovery p50", None, 3, None),
        ("recovery p95", None, 3, None),
        ("recovery p99", None, 3, None),
        ("events recovered", 1_000_000, 3, 3),
        ("lossless returns", 1_000_000, 3, 3),
    ]
    assert figure(report, "recovery p99").refusal == RefusalReport(
        reason="3 events, fewer than the 299 that p99 takes", events_needed=299
    )
    assert figure(report, "events recovered").interval == IntervalReport(
        low=292_401,
        high=1_000_000,
        level_ppm=950_000,
        method="Clopper-Pearson; rule of three: one-sided, at least 0.001423",
    )


def test_percentiles_are_over_events_with_an_interval_between_two_of_them() -> None:
    found = figure(many([*range(1, 21)] * 3), "recovery p95")

    assert (found.value, found.events) == (19, 60)
    assert found.interval == IntervalReport(
        low=18, high=20, level_ppm=950_000, method="order statistics, ranks 52 and 60 of 60"
    )


def test_an_event_that_never_recovered_leaves_a_percentile_open_above() -> None:
    found = figure(many([5] * 59 + [31]), "recovery p95")

    assert found.value == 5
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == (5, None)


def test_a_bound_that_was_asked_for_gives_the_share_of_events_within() -> None:
    report = run(
        affected((A, B, "near")),
        begins(),
        flow(2000, A, B, 0, "not_recovered"),
        flow(2300, A, B, 1_000_000, "served"),
        ends(),
        expect={"recovery_max_ns": 200},
    )

    found = figure(report, "events recovered within 0.0002 ms")
    assert (found.value, found.count, found.events) == (0, 0, 1)


def test_availability_has_no_interval_before_there_are_events_to_resample() -> None:
    found = figure(many([5, 5, 5]), "availability", "all")

    # Three times 10 of 100 demands for 5 of 10,000 ns.
    assert (found.value, found.events, found.interval) == (999_850, 3, None)
    assert found.refusal == RefusalReport(
        reason="3 events, fewer than the 200 that resampling takes", events_needed=200
    )


def test_the_interval_of_availability_holds_it_and_is_the_same_on_a_rerun() -> None:
    report, again = many([1, 3, 20] * 80), many([1, 3, 20] * 80)

    # 240 events of 8 ns on average, of 10 of 100 demands, in 10,000 ns.
    found = figure(report, "availability", "all")
    assert found.value == 1_000_000 - 240 * 8 * 100_000 // 10_000
    assert found.interval is not None
    assert found.interval.method == "bootstrap over 240 events (BCa, 1000 resamples)"
    low, high = found.interval.low, found.interval.high
    assert low is not None
    assert high is not None
    # The 240 events cost 19,200 ppm, give or take 8.5 / sqrt(240) / 8 = 6.9 % of that; the interval is twice that to either side.
    assert found.value - low == pytest.approx(2 * 1_320, rel=0.15)
    assert high - found.value == pytest.approx(2 * 1_320, rel=0.15)
    assert report == again


def width(report: Report, name: str = "availability") -> int:
    interval = figure(report, name, "all").interval
    assert interval is not None
    assert interval.low is not None
    assert interval.high is not None
    return interval.high - interval.low


def test_what_an_event_cost_is_all_that_it_did() -> None:
    """Losses under the fault, after its end, and of bystanders are resampled alike."""
    losses = [1, 3, 8] * 80
    of_affected = width(many(losses))

    assert of_affected > 1_000
    assert width(many(losses), "availability of all") == of_affected, "where nothing is cut the two are one"
    assert width(many(losses, is_on_return=True)) == of_affected
    assert width(many(losses, who=C)) == of_affected


def test_what_was_cut_costs_the_availability_of_all_and_not_that_of_what_had_a_path() -> None:
    report = many([1, 3, 20] * 80, cause="cut")

    assert figure(report, "availability", "all").refusal == RefusalReport(
        reason="0 of 240 events differ from the rest, fewer than the 10 that resampling takes", events_needed=None
    )
    assert width(report, "availability of all") > 1_000


def test_what_no_event_caused_is_lost_for_certain() -> None:
    """It moves the interval and makes it no wider."""
    plain = many([1, 3, 20] * 80)
    steady = many(
        [1, 3, 20] * 80,
        before=(flow(1000, C, B, 0, "not_recovered"), flow(1050, C, B, 1_000_000, "served")),
    )

    assert width(steady) == pytest.approx(width(plain), abs=1)
    values = [figure(report, "availability", "all").value for report in (plain, steady)]
    assert values == [980_800, 980_300]


def test_a_time_in_which_two_events_kept_a_job_down_is_the_first_one_s() -> None:
    assert _down_of_each([(0, 15, 0), (10, 25, 1), (12, 20, 2), (30, 31, 3)], 3) == [15, 10, 0, 1]


def test_faults_planned_for_one_instant_are_resampled_as_one_event() -> None:
    together = many([1, 3, 20] * 80, planned_apart_ns=0)

    assert {one.events for one in together.figures} == {1}
    assert len(events_of(together.faults)) == 1


def test_a_job_s_down_time_is_shared_out_among_events_without_counting_any_twice() -> None:
    """Every second fault harms a flow that is still down from the one before: together they keep the job down for 25 of 50 ns."""
    records: list[Record] = []
    faults = []
    for index in range(200):
        name, at_ns = f"f{index:03}", 1100 + (index // 2) * 50 + index % 2 * 10
        source = (A, C)[index % 2]
        faults.append(fault(name, at_ns, at_ns + 40))
        records += [affected((source, B, "near"), name=name, at_ns=at_ns), begins(name, at_ns)]
        records += [
            flow(at_ns, source, B, 0, "not_recovered", job=1),
            flow(at_ns + 15, source, B, 1_000_000, "served", job=1),
        ]
        records.append(ends(name, at_ns + 40))
    records.sort(key=lambda record: record["at_ns"])

    report = run(*records, faults=tuple(faults), sets=(("job", True, 2),))

    found = figure(report, "job availability", "job")
    assert found.value == 1_000_000 - 100 * 25 * 100
    assert found.interval is not None
    low, high = found.interval.low, found.interval.high
    assert low is not None
    assert high is not None
    assert low < found.value < high


def test_nothing_measured_is_said_so() -> None:
    report = run(begins(), sets=(("none", False, 0),))

    assert figure(report, "availability", "none").refusal == RefusalReport(
        reason="nothing was measured", events_needed=None
    )
    assert figure(report, "availability", "none").value is None


def shown(report: Report) -> str:
    console = Console(width=160, file=io.StringIO(), color_system=None)
    for part in tables_of(report):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_terminal_says_for_what_the_events_are_too_few() -> None:
    line = "1 event: too few for recovery p50 (6), recovery p95 (59), availability (200), recovery p99 (299)"
    assert line in shown(many([5]))
    assert "over events" not in shown(many([5]))


def test_the_terminal_shows_each_figure_with_its_interval() -> None:
    text = shown(many([5] * 59 + [31]))

    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]
    assert ["recovery p95", "60", "0.00 ms", "95 %: 0.00 ms to beyond the longest"] in rows
    assert ["events recovered", "60", "98.3333 % (59 of 60)", "95 %: 91.0600 % to 99.9579 %"] in rows


def baseline(report: Report, **lost_ns: int) -> Baseline:
    """Return a system with which every fault of *report* cost what *lost_ns* says, or else 1,000 ns."""
    lost = {one.id: lost_ns.get(one.id, 1_000) for one in report.faults}
    return Baseline(
        name="ospf",
        is_validated=False,
        source="a book",
        demand_sets=(),
        figures=(),
        lost_demand_ns=lost,
        lost_demand_ns_by_kind={},
        erfs_lost_demand_ns={one.id: one.lost_demand_ns for one in report.faults},
        faults_paired=len(lost),
        erfs_lost_less=0,
        erfs_lost_more=0,
    )


def test_other_systems_are_compared_event_by_event() -> None:
    report = many([5, 6, 7, 8, 9, 10, 20])

    less, median, mean = difference_figures(baseline(report, f006=100), report.faults, 1)

    # 10 demands each, so 50 to 100 ns of demand-time; the last cost 200 ns here and 100 there.
    assert (less.name, less.count, less.events) == ("events that cost less than with ospf", 6, 7)
    assert (median.value, median.events) == (-920, 7)
    assert median.interval == IntervalReport(
        low=-950, high=100, level_ppm=950_000, method="order statistics, ranks 1 and 7 of 7"
    )
    assert mean.refusal == RefusalReport(reason="7 events, fewer than the 200 that resampling takes", events_needed=200)


def test_what_is_no_event_to_another_system_is_not_compared() -> None:
    report = many([5, 6, 7])
    other = baseline(report)
    other = other.model_copy(update={"lost_demand_ns": {"f001": 5}})

    assert {figure.events for figure in difference_figures(other, report.faults, 1)} == {1}
