"""What a report shows beside its figures, on journals short enough to add up by hand."""

from itertools import pairwise
from typing import Any

from erfs.units import MS, SECOND
from erfs_scenario.exhibits import SERVICE_POINTS_MAX, WORST_MAX
from tests.scenario.test_judging import A, B, affected, at, begins, ends, fault, flow, run


def ways(*flows: list[Any], broken: list[list[str]], nodes: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the journal's line on the ways of *flows*."""
    return at(6000, "paths_taken", fault="f", flows=list(flows), broken=broken, nodes=nodes)


def test_service_is_the_share_of_all_demands_over_time_rounded_down() -> None:
    """10 of 100 demands at half from 2000, and 20 at nothing from 2500 on."""
    report = run(
        affected((A, B, "near"), (B, A, "far")),
        begins(),
        flow(2000, A, B, 500_000, "not_recovered"),
        flow(2500, B, A, 0, "not_recovered", all=20),
        flow(3000, A, B, 1_000_000, "served"),
        flow(4000, B, A, 1_000_000, "served", all=20),
        ends(),
    )
    assert report.service == ((1000, 1_000_000), (2000, 950_000), (2500, 750_000), (3000, 800_000), (4000, 1_000_000))


def test_service_is_never_shown_fuller_than_it_was() -> None:
    """One demand of 100 loses a millionth."""
    report = run(
        affected((A, B, "near")),
        begins(),
        flow(2000, A, B, 999_999, "not_recovered", all=1),
        flow(3000, A, B, 1_000_000, "served", all=1),
        ends(),
    )
    assert report.service == ((1000, 1_000_000), (2000, 999_999), (3000, 1_000_000))


def test_a_long_service_curve_keeps_every_dip() -> None:
    """2,000 dips of one nanosecond each in 10,000 ns: fewer points, and none of them at full service in between."""
    changes = []
    for index in range(2000):
        changes += [
            flow(2000 + 4 * index, A, B, 0, "not_recovered"),
            flow(2001 + 4 * index, A, B, 1_000_000, "served"),
        ]
    report = run(affected((A, B, "near")), begins(), *changes, ends(at_ns=10_500))
    assert len(report.service) <= SERVICE_POINTS_MAX
    assert report.service[0] == (1000, 1_000_000)
    assert [share for at_ns, share in report.service if 1001 <= at_ns < 9900] == [900_000]
    assert report.service[-1][1] == 1_000_000


def test_outages_are_counted_by_length_and_those_cut_apart() -> None:
    report = run(
        affected((A, B, "near"), (B, A, "far"), (A, "@c", "near")),
        begins(),
        flow(2000, A, B, 0, "not_recovered"),
        flow(2000, B, A, 0, "cut"),
        flow(2000, A, "@c", 0, "not_recovered"),
        flow(2000 + 3 * MS, A, B, 1_000_000, "served"),
        flow(2000 + 4 * SECOND, B, A, 1_000_000, "served"),
        ends(at_ns=2000 + 4 * SECOND),
        is_finished=False,
    )
    lengths = report.outage_lengths
    assert (lengths.outages, lengths.still_open, lengths.longest_ns) == (3, 1, 4 * SECOND)
    counted = {(one.from_ns, one.until_ns): (one.with_path, one.pathless) for one in lengths.buckets}
    assert {bounds: counts for bounds, counts in counted.items() if any(counts)} == {
        (2 * MS, 5 * MS): (1, 0),
        (2 * SECOND, 5 * SECOND): (1, 1),
    }
    bounds = [(one.from_ns, one.until_ns) for one in lengths.buckets]
    assert all(one[1] == other[0] for one, other in pairwise(bounds)), "no gap between the classes"


def test_the_worst_flows_are_those_that_had_a_path_and_lost_it_longest_then_those_cut() -> None:
    report = run(
        affected((A, B, "near"), (B, A, "far"), (A, "@c", "near")),
        begins(),
        flow(2000, A, B, 250_000, "not_recovered"),
        flow(2000, B, A, 0, "cut"),
        flow(2000, A, "@c", 0, "not_recovered"),
        flow(2100, A, B, 1_000_000, "served"),
        flow(2900, A, "@c", 1_000_000, "served"),
        ways(
            [A, B, ["a", "x", "b"], ["a", "y", "b"]],
            [B, A, ["b", "x", "a"], []],
            broken=[["a", "x"]],
            nodes={"a": ["A", 1], "b": ["B", 1], "x": ["X", 2], "y": ["Y", 2]},
        ),
        ends(),
        flow(8000, B, A, 1_000_000, "served"),
    )
    shown = [(one.source, one.destination, one.lasted_ns, one.pathless_ns) for one in report.worst_flows]
    assert shown == [(A, "@c", 900, 0), (A, B, 100, 0), (B, A, 6000, 6000)]
    assert (report.worst_flows[1].path_before, report.worst_flows[1].path_after) == (("A", "X", "B"), ("A", "Y", "B"))
    assert report.worst_flows[1].served_min_ppm == 250_000
    assert (report.worst_flows[2].path_before, report.worst_flows[2].path_after) == (("B", "X", "A"), ())
    assert report.worst_flows[0].path_before == (), "the journal has none"
    (drawing,) = report.drawings
    assert [(one.label, one.tier) for one in drawing.nodes] == [("X", 2), ("Y", 2), ("A", 1), ("B", 1)]
    assert (drawing.hit, drawing.broken, drawing.left_out) == (("a", "x"), (("a", "x"),), 0)
    assert drawing.before == (("a", "x"), ("b", "x"))
    assert drawing.after == (("a", "y"), ("b", "y"))


def test_no_more_than_ten_flows_are_the_worst() -> None:
    names = [f"@d{index:02}" for index in range(30)]
    rows = [(A, name, "near") for name in names]
    lost = [flow(2000, A, name, 0, "not_recovered") for name in names]
    back = [flow(2100 + index, A, name, 1_000_000, "served") for index, name in enumerate(names)]
    report = run(affected(*rows), begins(), *lost, *back, ends())
    assert [one.destination for one in report.worst_flows] == names[: -WORST_MAX - 1 : -1]


def test_what_a_drawing_has_no_room_for_is_counted_and_the_flows_ways_come_first() -> None:
    nodes: dict[str, list[Any]] = {f"s{index:02}": [f"s{index:02}", 1] for index in range(40)} | {"x": ["x", 2]}
    way = ["s39", "x", "s38"]
    report = run(
        affected((A, B, "near")),
        begins(),
        flow(2000, A, B, 0, "not_recovered"),
        flow(2100, A, B, 1_000_000, "served"),
        ways([A, B, way, way], broken=[[name, "x"] for name in nodes if name != "x"], nodes=nodes),
        ends(),
    )
    (drawing,) = report.drawings
    assert (len(drawing.nodes), drawing.left_out) == (17, 24)
    assert {"s38", "s39", "x"} <= {one.id for one in drawing.nodes}


def test_a_report_tells_what_it_cannot_tell_and_how_to_run_it_again() -> None:
    report = run(affected((A, B, "near")), begins(), ends())
    assert any("Delays are settings" in limit for limit in report.limits)
    assert report.replay == "erfs run n.yaml --seed 1"
    planned = run(at(0, "run_planned", plan={}), affected((A, B, "near")), begins(), ends())
    assert planned.replay == "erfs replay journal.jsonl", "its journal is all it takes"
    broken_off = run(affected((A, B, "near")), begins(), is_finished=False)
    assert any("breaks off" in limit for limit in broken_off.limits)


def test_a_run_that_never_measured_has_nothing_to_show() -> None:
    report = run(faults=(fault("f"),), is_finished=False)
    assert (report.service, report.worst_flows, report.drawings) == (((1000, 1_000_000),), (), ())
    assert report.outage_lengths.longest_ns is None
