"""From journal to figures, on journals short enough to add up by hand."""

from typing import Any

import pytest

from erfs.errors import ConfigError
from erfs_scenario.judging import judge_records
from erfs_scenario.report import Report

A, B = "@a", "@b"
EXPECT_NOTHING: dict[str, Any] = {
    "recovery_max_ns": None,
    "recovery_p95_ns": None,
    "availability_min_ppm": None,
    "availability_all_min_ppm": None,
    "job_availability_min_ppm": None,
    "capacity_min_ppm": None,
    "is_loop_free": True,
    "is_black_hole_free": True,
    "converges": True,
    "loses_nothing_on_return": True,
}
Record = dict[str, Any]


def at(at_ns: int, event: str, **fields: object) -> Record:
    return {"at_ns": at_ns, "event": event} | fields


def flow(at_ns: int, source: str, target: str, served_ppm: int, cause: str, **weights: int) -> Record:
    fields = {"source": source, "destination": target, "served_ppm": served_ppm, "cause": cause}
    return at(at_ns, "flow_changed", **fields, weights=weights or {"all": 10})


def fault(name: str, at_ns: int = 2000, end_at_ns: int = 6000, *, is_physical: bool = True) -> Record:
    return {
        "id": name,
        "kind": "link_down" if is_physical else "controller_kill",
        "at_ns": at_ns,
        "end_at_ns": end_at_ns,
        "links": ["x|y"] if is_physical else [],
        "nodes": [],
        "links_hit": ["x|y"] if is_physical else [],
        "target": "x - y",
    }


def run(
    *records: Record,
    faults: tuple[Record, ...] = (fault("f"),),
    expect: dict[str, Any] | None = None,
    sets: tuple[tuple[str, bool, int], ...] = (("all", False, 100),),
    is_finished: bool = True,
) -> Report:
    """Judge a run measured from 1000 to 11000 ns, with the *records* of its middle."""
    fabric = dict.fromkeys(("nodes", "switches", "endpoints", "links", "trunks", "classes"), 1)
    header = at(
        0,
        "run_started",
        name="n",
        description="",
        backend="sim",
        seed=1,
        is_protecting=True,
        fabric=fabric | {"name": "f", "digest": "d"},
        demands=[{"name": name, "is_job": is_job, "count": count} for name, is_job, count in sets],
        faults=list(faults),
        timing={},
        timers={},
        expectations=EXPECT_NOTHING | (expect or {}),
    )
    start = at(1000, "measurement_started", flows=4, weights={name: count for name, _, count in sets})
    ending = [at(11_000, "measurement_finished", flows_below_full=0)] if is_finished else []
    return judge_records([header, start, *records, *ending])


def affected(*flows: tuple[str, str, str], name: str = "f", at_ns: int = 2000) -> Record:
    rows = [[source, target, {"all": 10}, 500_000, side] for source, target, side in flows]
    return at(at_ns, "flows_affected", fault=name, flows=rows)


def begins(name: str = "f", at_ns: int = 2000) -> Record:
    return at(at_ns, "fault_effective", fault=name)


def ends(name: str = "f", at_ns: int = 6000) -> Record:
    return at(at_ns, "fault_ended", fault=name)


def test_availability_is_served_demand_time_over_all_and_over_what_had_a_path() -> None:
    """
    100 demands for 10,000 ns. 10 of them at half for 1,000 ns with a path: 5,000 demand-ns lost of 1,000,000. 20 without a path
    for 2,500 ns: 50,000 more, and so much less demand-time had a path.
    """
    report = run(
        affected((A, B, "near"), (B, A, "far")),
        begins(),
        flow(2000, A, B, 500_000, "not_recovered"),
        flow(2000, B, A, 0, "cut", all=20),
        flow(3000, A, B, 1_000_000, "served"),
        flow(4500, B, A, 1_000_000, "served", all=20),
        ends(),
    )
    (part,) = report.demand_sets
    assert part.total_demand_ns == 1_000_000
    assert part.lost_demand_ns == 55_000
    assert part.pathless_demand_ns == 50_000
    assert part.availability_of_all_ppm == 945_000
    assert part.availability_ppm == 945_000 * 1_000_000 // 950_000


def test_availability_is_rounded_down_so_that_a_loss_never_shows_as_perfection() -> None:
    report = run(
        begins(),
        flow(2000, A, B, 999_999, "not_recovered", all=1),
        flow(2001, A, B, 1_000_000, "served", all=1),
        ends(),
    )
    assert report.demand_sets[0].availability_ppm == 999_999


def test_a_job_is_down_while_any_of_its_flows_is_not_served_in_full() -> None:
    """Two flows overlap from 2500 to 3000: the job is down from 2000 to 4000, of 10,000 ns."""
    report = run(
        affected((A, B, "near"), (B, A, "near")),
        begins(),
        flow(2000, A, B, 900_000, "not_recovered", job=1),
        flow(2500, B, A, 0, "not_recovered", job=1),
        flow(3000, A, B, 1_000_000, "served", job=1),
        flow(4000, B, A, 1_000_000, "served", job=1),
        ends(),
        sets=(("job", True, 2),),
    )
    (job,) = report.demand_sets
    assert job.down_ns == 2000
    assert job.job_availability_ppm == 800_000


def test_recovery_is_the_last_return_to_full_service_and_near_and_far_stand_apart() -> None:
    report = run(
        affected((A, B, "near"), (B, A, "far"), (A, "@c", "near")),
        begins(),
        flow(2000, A, B, 0, "not_recovered"),
        flow(2100, A, B, 1_000_000, "served"),
        flow(2200, A, B, 0, "not_recovered"),
        flow(2400, A, B, 1_000_000, "served"),
        flow(2000, B, A, 0, "not_recovered"),
        flow(2900, B, A, 1_000_000, "served"),
        ends(),
    )
    (found,) = report.faults
    assert (found.near.flows, found.near.first_ns, found.near.last_ns) == (2, 0, 400), (
        "the one that lost nothing counts as 0"
    )
    assert (found.far.flows, found.far.first_ns, found.far.median_ns, found.far.last_ns) == (1, 900, 900, 900)
    assert found.lost_something.flows == 2


def test_a_flow_that_never_recovers_is_counted_and_not_averaged_away() -> None:
    report = run(
        affected((A, B, "near"), (B, A, "near")),
        begins(),
        flow(2000, A, B, 0, "not_recovered"),
        flow(2000, B, A, 0, "not_recovered"),
        flow(2100, B, A, 1_000_000, "served"),
        ends(),
        flow(6000, A, B, 1_000_000, "served"),
        expect={"recovery_max_ns": 1000},
    )
    (found,) = report.faults
    assert (found.not_recovered.flows, found.not_recovered.demands) == (1, 10)
    assert found.all.flows == 1
    (recovery, *_) = report.verdict.checks
    assert recovery.outcome == "missed", "it was without service for longer than the bound"


def test_of_two_faults_an_outage_belongs_to_the_later_one_that_crosses_the_flow() -> None:
    faults = (fault("one", 2000, 9000), fault("two", 4000, 9000))
    report = run(
        affected((A, B, "near"), name="one"),
        begins("one"),
        flow(2000, A, B, 0, "not_recovered"),
        flow(2100, A, B, 1_000_000, "served"),
        affected((A, B, "near"), name="two", at_ns=4000),
        begins("two", 4000),
        flow(4000, A, B, 0, "not_recovered"),
        flow(4700, A, B, 1_000_000, "served"),
        ends("one", 9000),
        ends("two", 9000),
        faults=faults,
    )
    assert [found.all.last_ns for found in report.faults] == [100, 700]


def test_a_slow_repair_of_the_first_fault_is_not_blamed_on_a_second_that_misses_the_flow() -> None:
    report = run(
        affected((A, B, "far"), name="one"),
        begins("one"),
        affected(name="two", at_ns=2500),
        begins("two", 2500),
        flow(2600, A, B, 0, "not_recovered"),
        flow(2700, A, B, 1_000_000, "served"),
        ends("one", 9000),
        ends("two", 9000),
        faults=(fault("one", 2000, 9000), fault("two", 2500, 9000)),
    )
    one, two = report.faults
    assert one.far.last_ns == 700
    assert two.bystanders.flows == 0


def test_a_flow_that_loses_under_a_fault_that_misses_it_is_a_bystander_and_a_black_hole() -> None:
    report = run(
        affected((A, B, "near")),
        begins(),
        flow(3000, B, A, 0, "not_recovered"),
        flow(3500, B, A, 1_000_000, "served"),
        ends(),
    )
    assert report.faults[0].bystanders.flows == 1
    assert report.verdict.outcome == "missed"
    assert 'under "f", which their paths do not cross' in report.verdict.reasons[0]


def test_a_loss_at_the_return_is_charged_to_the_return() -> None:
    report = run(
        affected((A, B, "near")),
        begins(),
        ends(),
        flow(8000, A, B, 0, "not_recovered"),
        flow(8040, A, B, 1_000_000, "served"),
    )
    (found,) = report.faults
    assert (found.return_.flows_lost, found.return_.longest_loss_ns) == (1, 40)
    assert found.all.last_ns == 0
    assert report.verdict.reasons == ('lossless return: the end of "f" cost 10 demands service',)


def test_a_cut_flow_is_not_recovered_late_but_restored_once_its_fault_has_ended() -> None:
    """A loss that the physical end turns into "has a path" is no loss of the return."""
    report = run(
        affected((A, B, "far")),
        begins(),
        flow(2000, A, B, 0, "cut"),
        ends(),
        flow(6000, A, B, 0, "not_recovered"),
        flow(8000, A, B, 1_000_000, "served"),
        expect={"recovery_max_ns": 50},
    )
    (found,) = report.faults
    assert found.cut.flows == 1
    assert (found.not_recovered.flows, found.return_.flows_lost) == (0, 0)
    assert found.return_.restored.last_ns == 2000
    assert [item.cause for item in report.unserved] == ["cut"]
    assert report.verdict.outcome == "undecidable", "no affected flow kept a path"


def test_stages_are_read_from_the_marks_of_this_fault_only() -> None:
    def mark(at_ns: int, event: str, **fields: object) -> Record:
        return at(at_ns, event, node="s", **fields)

    report = run(
        mark(1500, "port_down_detected", link="other|link", port="1"),
        affected((A, B, "near")),
        begins(),
        mark(2010, "port_down_detected", link="other|link", port="1"),
        mark(2100, "port_down_detected", link="x|y", port="1"),
        mark(2150, "change_acknowledged", change=1, failures=["x|y"]),
        mark(2200, "fact_received", link="x|y", reporter="s", counter=1, down=True),
        mark(2300, "change_acknowledged", change=2, failures=["x|y"]),
        mark(2310, "change_acknowledged", change=3, failures=["other|link"]),
        mark(2400, "link_down_adjudicated", link="x|y"),
        mark(3400, "routes_computed", generation=2, changed=1, rounds=1),
        mark(3600, "change_acknowledged", change=4, failures=["x|y"]),
        mark(3900, "restoration_finished", epoch=1, generation=2),
        ends(),
        mark(8000, "link_up_adjudicated", link="x|y"),
        mark(8700, "restoration_finished", epoch=1, generation=4),
    )
    (found,) = report.faults
    assert found.stages.model_dump(exclude_defaults=True) == {
        "detection_ns": 100,
        "fact_received_first_ns": 200,
        "protection_first_ns": 150,
        "protection_last_ns": 300,
        "adjudicated_ns": 400,
        "computation_ns": 1000,
        "programming_ns": 500,
        "restoration_finished_ns": 1900,
    }
    assert found.return_.capacity_back_ns == 2700


def test_the_steady_state_must_hold_before_anything_is_judged() -> None:
    report = run(
        flow(1000, A, B, 0, "not_recovered"),
        flow(1100, A, B, 1_000_000, "served"),
        affected((B, A, "near")),
        begins(),
        ends(),
    )
    assert not report.steady_state.held
    assert report.verdict.outcome == "undecidable"


def test_what_has_no_path_from_the_start_is_listed_and_breaks_no_steady_state() -> None:
    report = run(flow(1000, A, B, 0, "cut"), affected((B, A, "near")), begins(), ends())
    assert report.steady_state.held
    assert report.steady_state.cut.demands == 10
    assert report.verdict.outcome == "passed"


@pytest.mark.parametrize(
    ("records", "is_finished", "outcome", "code"),
    [
        ((affected((A, B, "near")), begins(), ends()), True, "passed", 0),
        ((affected(), begins(), ends()), True, "undecidable", 2),
        ((affected((A, B, "near")), ends()), True, "invalid", 4),
        ((affected((A, B, "near")), begins()), True, "invalid", 4),
        ((affected((A, B, "near")), begins(), at(6000, "fault_not_ended", fault="f")), True, "invalid", 4),
        ((affected((A, B, "near")), begins(), ends()), False, "undecidable", 2),
        ((affected((A, B, "near")), begins(), at(3000, "run_aborted", reason="interrupted")), False, "aborted", 3),
    ],
)
def test_what_went_wrong_with_the_run_itself_comes_before_any_figure(
    records: tuple[Record, ...], is_finished: bool, outcome: str, code: int
) -> None:
    verdict = run(*records, is_finished=is_finished).verdict
    assert (verdict.outcome, verdict.exit_code) == (outcome, code)


def test_not_recovered_when_the_run_ends_is_undecidable_before_it_is_missed() -> None:
    report = run(affected((A, B, "near")), begins(), ends(), flow(10_000, A, B, 0, "not_recovered"))
    assert [check.outcome for check in report.verdict.checks] == ["passed", "passed", "missed", "undecidable"]
    assert report.verdict.exit_code == 2


def test_a_journal_without_a_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="not the journal of a run: no run_started"):
        judge_records([at(0, "something")])
