"""Other systems on the same faults: how long each leaves the flows of one fault unserved follows from its delays."""

from typing import Any

import pytest

from erfs.fabric import Fabric, LinkEnd
from erfs.faults import Fault, FaultKind
from erfs.generators import generate
from erfs.ids import LinkId, NodeId
from erfs.units import MS, SECOND, US
from erfs_scenario.baselines import replay, run_baselines
from erfs_scenario.behaviours import behaviours
from tests.sim.runs import Ran, plan_on

LINK = LinkId("core0-0:1|pod0-agg0:1")
CUT_NS, MENDED_NS, END_NS = 2 * SECOND, 100 * SECOND, 120 * SECOND
EVERY = ("static", "ospf", "bgp", "frr-tuned", "opensm")


@pytest.fixture(scope="module")
def fat_tree() -> Fabric:
    return generate("fat-tree", {"k": 4})


def fault(kind: FaultKind, **changes: Any) -> Fault:
    target: dict[str, Any] = changes if "nodes" in changes else {"links": (LINK,), **changes}
    return Fault("one", kind, CUT_NS, MENDED_NS, **target)


def outages(fabric: Fabric, name: str, *faults: Fault) -> set[int]:
    """Return how long flows were not served in full with the system *name*, each length once."""
    records: list[tuple[int, str, dict[str, Any]]] = []
    plan = plan_on(fabric, *faults, lasts_ns=END_NS)
    replay(plan, behaviours(20)[name], lambda at_ns, event, fields: records.append((at_ns, event, fields)))
    return set(Ran(records, {}).unserved_ns().values())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("static", {MENDED_NS - CUT_NS}),
        # The near end does without the dead port before anybody else knows.
        ("ospf", {2 * MS, 13_400 * US}),
        ("bgp", {2 * MS, 125 * MS}),
        ("frr-tuned", {2 * MS, 18_500 * US}),
        ("opensm", {5_850 * US}),
    ],
)
def test_a_cut_cable_costs_the_near_end_and_the_far_end_their_delay(
    fat_tree: Fabric, name: str, expected: set[int]
) -> None:
    assert outages(fat_tree, name, fault(FaultKind.LINK_DOWN)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("static", {MENDED_NS - CUT_NS}),
        ("ospf", {35 * SECOND}),
        ("bgp", {MENDED_NS - CUT_NS}),  # the fault is over before the hold time is
        ("frr-tuned", {42_450 * US}),
        ("opensm", {5 * SECOND + 5_850 * US}),
    ],
)
def test_what_no_carrier_tells_of_costs_everybody_the_time_of_silence(
    fat_tree: Fabric, name: str, expected: set[int]
) -> None:
    assert outages(fat_tree, name, fault(FaultKind.SILENT_DROP)) == expected


def test_one_way_silence_costs_the_flows_of_that_way_only(fat_tree: Fabric) -> None:
    deaf = fault(FaultKind.ONE_WAY_DROP, ends=(LinkEnd(NodeId("core0-0"), "1"),))
    assert outages(fat_tree, "frr-tuned", deaf) == {42_450 * US}


@pytest.mark.parametrize(("loss_ppm", "expected"), [(10_000, {MENDED_NS - CUT_NS}), (300_000, {42_450 * US})])
def test_a_little_loss_is_never_noticed(fat_tree: Fabric, loss_ppm: int, expected: set[int]) -> None:
    assert outages(fat_tree, "frr-tuned", fault(FaultKind.PACKET_LOSS, loss_ppm=loss_ppm)) == expected


def test_a_flap_shorter_than_the_wait_for_its_return_costs_no_second_repair(fat_tree: Fabric) -> None:
    flapping = fault(FaultKind.LINK_FLAP, period_ns=4 * SECOND)
    assert outages(fat_tree, "ospf", flapping) == {2 * MS, 13_400 * US}
    assert max(outages(fat_tree, "static", flapping)) == 25 * 2 * SECOND


def test_a_switch_that_returns_gets_its_table_back(fat_tree: Fabric) -> None:
    gone = fault(FaultKind.NODE_DOWN, nodes=(NodeId("pod0-agg0"),))
    assert outages(fat_tree, "ospf", gone) == {2 * MS, 13_400 * US}


def test_a_leaf_without_power_costs_its_hosts_that_time_and_no_more(fat_tree: Fabric) -> None:
    gone = fault(FaultKind.NODE_DOWN, nodes=(NodeId("pod0-edge0"),))
    assert outages(fat_tree, "ospf", gone) == {MENDED_NS - CUT_NS}


def test_what_hits_controller_or_agents_is_nothing_to_them(fat_tree: Fabric) -> None:
    headless = Fault("headless", FaultKind.CONTROLLER_KILL, CUT_NS, MENDED_NS)
    assert all(outages(fat_tree, name, headless) == set() for name in EVERY)


def test_each_is_recorded_with_the_figures_of_every_demand_set_and_the_cost_of_every_fault(fat_tree: Fabric) -> None:
    records: list[dict[str, Any]] = []
    plan = plan_on(fat_tree, fault(FaultKind.LINK_DOWN), lasts_ns=END_NS, baselines=("static", "frr-tuned"))
    run_baselines(plan, lambda at_ns, event, fields: records.append({"at_ns": at_ns, "event": event, **fields}))
    assert [(record["at_ns"], record["event"], record["name"]) for record in records] == [
        (END_NS, "baseline_measured", "static"),
        (END_NS, "baseline_measured", "frr-tuned"),
    ]
    static, tuned = records
    assert [part["name"] for part in static["demand_sets"]] == ["all"]
    assert static["demand_sets"][0]["availability_ppm"] < tuned["demand_sets"][0]["availability_ppm"] < 1_000_000
    # A quarter of what leaves or enters the pod crosses the link: 8 of its flows' hosts, 12 beyond, both ways.
    assert static["lost_demand_ns"] == {"one": 2 * 4 * 12 * (MENDED_NS - CUT_NS) // 4}
    assert tuned["lost_demand_ns"]["one"] < static["lost_demand_ns"]["one"] // 1_000
