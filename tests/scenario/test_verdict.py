"""The rules of the verdict, each with a case on both sides of the line."""

import pytest

from erfs.units import MS
from erfs_scenario.report import FaultReport, Return, Spread, Stages, Tally
from erfs_scenario.verdict import format_share, p95_check, recovery_check, share_check


def fault(last_ns: int | None, *, not_recovered: int = 0, lasts_ns: int = 1000) -> FaultReport:
    """Return a fault whose slowest flow took *last_ns*."""
    nothing, nobody = Spread(flows=0), Tally()
    return FaultReport(
        id="f",
        kind="link_down",
        target="x - y",
        links=("x|y",),
        nodes=(),
        is_physical=True,
        planned_at_ns=0,
        planned_end_at_ns=lasts_ns,
        due_at_ns=0,
        due_end_at_ns=lasts_ns,
        effective_at_ns=0,
        ended_at_ns=lasts_ns,
        magnitudes=(),
        affected=Tally(flows=1, demands=1),
        lost_something=nobody,
        near=nothing,
        far=nothing,
        all=Spread(flows=1, first_ns=last_ns, median_ns=last_ns, last_ns=last_ns) if last_ns is not None else nothing,
        stages=Stages(),
        not_recovered=Tally(flows=not_recovered, demands=not_recovered),
        cut=nobody,
        cut_by_policy=nobody,
        capacity_retained_min_ppm=None,
        bystanders=nobody,
        lost_demand_ns=0,
        return_=Return(flows_lost=0, demands_lost=0, restored=nothing, not_restored=nobody),
        curve=(),
    )


@pytest.mark.parametrize(
    ("faults", "outcome"),
    [
        ([fault(50)], "passed"),
        ([fault(51)], "missed"),
        ([fault(10), fault(51)], "missed"),
        ([fault(0)], "passed"),
        ([fault(10, not_recovered=1, lasts_ns=51)], "missed"),
        ([fault(10, not_recovered=1, lasts_ns=50)], "undecidable"),
        ([fault(None)], "undecidable"),
        ([fault(None).model_copy(update={"is_physical": False})], "passed"),
    ],
)
def test_recovery_is_judged_by_its_slowest_flow(faults: list[FaultReport], outcome: str) -> None:
    assert recovery_check("recovery max", 50, faults, finished_ns=10_000).outcome == outcome


def apart(faults: list[FaultReport]) -> list[FaultReport]:
    """Return *faults* planned for instants of their own: as many events."""
    return [one.model_copy(update={"planned_at_ns": at_ns}) for at_ns, one in enumerate(faults)]


def test_a_percentile_needs_59_events_and_says_so_when_there_are_fewer() -> None:
    few = apart([fault(10)] * 57 + [fault(100)])
    check = p95_check(50, few, finished_ns=10_000)
    assert check.outcome == "missed", "the maximum is judged"
    assert "58 events, fewer than 59: the maximum is judged" in check.measured
    assert p95_check(50, apart([fault(10)] * 59), finished_ns=10_000).outcome == "passed"


def test_what_was_planned_for_one_instant_is_one_event() -> None:
    """Sixty links of one line card are no sample of sixty."""
    assert "1 event, fewer than 59" in p95_check(50, [fault(10)] * 60, finished_ns=10_000).measured


@pytest.mark.parametrize(
    ("slow", "outcome"), [(0, "passed"), (4, "passed"), (5, "undecidable"), (17, "undecidable"), (18, "missed")]
)
def test_a_percentile_is_met_or_missed_by_its_whole_interval(slow: int, outcome: str) -> None:
    """Of 200 events, 10 slow ones are what p95 allows: 5 to 17 are too close to that to tell."""
    assert p95_check(50, apart([fault(10)] * (200 - slow) + [fault(100)] * slow), finished_ns=10_000).outcome == outcome


def test_too_few_events_to_tell_are_undecidable_and_how_many_could_is_said() -> None:
    check = p95_check(50 * MS, apart([fault(10 * MS)] * 59 + [fault(100 * MS)]), finished_ns=10_000 * MS)
    assert check.outcome == "undecidable"
    assert check.reason == (
        "10.00 ms over 60 events, 95 % interval 10.00 ms to 100.00 ms: too few to tell it from the bound, about 165 could"
    )


def test_an_event_that_never_recovered_counts_as_slower_than_all_in_a_percentile() -> None:
    assert (
        p95_check(50, apart([fault(10)] * 190 + [fault(10, not_recovered=1)] * 10), finished_ns=10_000).outcome
        == "undecidable"
    )
    assert (
        p95_check(50, apart([fault(10)] * 199 + [fault(10, not_recovered=1)]), finished_ns=10_000).outcome == "passed"
    )
    assert p95_check(50, apart([fault(10, not_recovered=1)] * 60), finished_ns=10_000).outcome == "missed"


def test_faults_too_short_to_tell_whether_the_percentile_is_met_leave_it_undecidable() -> None:
    short = apart([fault(10, not_recovered=1, lasts_ns=40)] * 60)
    assert p95_check(50, short, finished_ns=10_000).outcome == "undecidable"


@pytest.mark.parametrize(
    ("shares", "outcome"),
    [
        ([("a", 999_950)], "passed"),
        ([("a", 999_949)], "missed"),
        ([("a", 1_000_000), ("b", 0)], "missed"),
        ([("a", None), ("b", 1_000_000)], "passed"),
        ([("a", None)], "undecidable"),
        ([], "undecidable"),
    ],
)
def test_the_least_share_is_judged_and_none_at_all_is_undecidable(
    shares: list[tuple[str, int | None]], outcome: str
) -> None:
    assert share_check("availability", 999_950, shares).outcome == outcome


def test_a_share_is_shown_without_rounding() -> None:
    assert [format_share(share) for share in (1_000_000, 999_999, 5, 0)] == [
        "100.0000 %",
        "99.9999 %",
        "0.0005 %",
        "0.0000 %",
    ]
