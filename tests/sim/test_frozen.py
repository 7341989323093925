"""What stands still for a while: an agent, the controller, the broker; and a broker that loses what it retained."""

import pytest

from erfs.fabric import Fabric
from erfs.faults import Fault, FaultKind
from erfs.generators import generate
from erfs.ids import LinkId, NodeId
from erfs.units import MS, SECOND
from erfs_scenario.plan import Timing
from tests.sim.runs import Ran, plan_on, run

LINK = LinkId("core0-0:1|pod0-agg0:1")
CORE, AGGREGATION = NodeId("core0-0"), NodeId("pod0-agg0")
FREEZE_NS, CUT_NS, THAW_NS = 1900 * MS, 2 * SECOND, 4 * SECOND
REACTION_NS = 5 * MS


@pytest.fixture(scope="module")
def fat_tree() -> Fabric:
    return generate("fat-tree", {"k": 4})


def frozen(kind: FaultKind, *nodes: NodeId, end_at_ns: int = THAW_NS) -> Fault:
    return Fault("still", kind, FREEZE_NS, end_at_ns, nodes=nodes)


def cut(end_at_ns: int = 9 * SECOND) -> Fault:
    return Fault("cut", FaultKind.LINK_DOWN, CUT_NS, end_at_ns, links=(LINK,))


def with_cut(fabric: Fabric, fault: Fault) -> Ran:
    ran = run(plan_on(fabric, fault, cut(), lasts_ns=12 * SECOND))
    assert not ran.of("loops_changed", "fault_not_effective", "fault_not_ended")
    assert ran.of("measurement_finished")[0][1] == {"flows_below_full": 0}
    assert ran.tables == run(plan_on(fabric, lasts_ns=2 * SECOND)).tables
    return ran


def first_ns(ran: Ran, event: str, node: str, since_ns: int = FREEZE_NS) -> int:
    return min(at_ns for at_ns, _ in ran.of(event, node=node) if at_ns >= since_ns)


ALL_FREEZES = [
    frozen(FaultKind.AGENT_FREEZE, AGGREGATION),
    frozen(FaultKind.CONTROLLER_FREEZE),
    frozen(FaultKind.BROKER_KILL),
    frozen(FaultKind.BROKER_FREEZE),
    frozen(FaultKind.AGENT_FREEZE, AGGREGATION, end_at_ns=22 * SECOND),
    frozen(FaultKind.CONTROLLER_FREEZE, end_at_ns=22 * SECOND),
    frozen(FaultKind.BROKER_FREEZE, end_at_ns=22 * SECOND),
]


@pytest.mark.parametrize("fault", ALL_FREEZES, ids=lambda fault: f"{fault.kind} {fault.end_at_ns // SECOND} s")
def test_what_stands_still_costs_no_flow_anything_and_changes_no_table(fat_tree: Fabric, fault: Fault) -> None:
    ran = run(plan_on(fat_tree, fault, lasts_ns=fault.end_at_ns + 6 * SECOND))

    assert [fields for _, fields in ran.of("fault_effective", "fault_ended")] == [{"fault": "still"}] * 2
    assert not ran.of("flow_changed", "session_down", "session_paused", "port_down_detected", "link_down_adjudicated")
    assert not [at_ns for at_ns, _ in ran.of("change_requested") if at_ns > FREEZE_NS]
    assert ran.of("became_leader")[-1][1]["epoch"] == 1


def test_a_frozen_agent_takes_in_what_happened_when_it_goes_on(fat_tree: Fabric) -> None:
    ran = with_cut(fat_tree, frozen(FaultKind.AGENT_FREEZE, AGGREGATION))

    assert first_ns(ran, "port_down_detected", CORE) < CUT_NS + MS
    assert first_ns(ran, "port_down_detected", AGGREGATION) == THAW_NS
    assert first_ns(ran, "change_acknowledged", AGGREGATION) == THAW_NS + Timing().write_ns
    # The core told everybody else, so only those lose anything for long whom the frozen one sends into the dead link.
    long = {source for (source, _), lost_ns in ran.unserved_ns().items() if lost_ns > REACTION_NS}
    assert long
    assert all(source.startswith("@pod0") for source in long)


def test_a_frozen_agent_hears_of_a_link_that_bounced_meanwhile(fat_tree: Fabric) -> None:
    ran = run(plan_on(fat_tree, frozen(FaultKind.AGENT_FREEZE, AGGREGATION), cut(end_at_ns=3 * SECOND)))

    assert first_ns(ran, "port_down_detected", AGGREGATION) == THAW_NS
    assert first_ns(ran, "port_up_detected", AGGREGATION) == THAW_NS


def test_sessions_go_on_while_their_agent_is_frozen(fat_tree: Fabric) -> None:
    """The neighbour sees nothing; and a link that falls silent is told to the agent when it goes on."""
    silent = Fault("silent", FaultKind.SILENT_DROP, CUT_NS, 3 * SECOND, links=(LINK,))
    ran = run(plan_on(fat_tree, frozen(FaultKind.AGENT_FREEZE, AGGREGATION), silent))

    assert first_ns(ran, "session_down", AGGREGATION) < CUT_NS + 35 * MS
    assert first_ns(ran, "session_up", AGGREGATION) < 3 * SECOND + 215 * MS
    assert first_ns(ran, "port_down_detected", AGGREGATION) == THAW_NS
    assert ran.of("measurement_finished")[0][1] == {"flows_below_full": 0}


def test_protection_does_not_wait_for_a_frozen_controller_and_restoration_does(fat_tree: Fabric) -> None:
    ran = with_cut(fat_tree, frozen(FaultKind.CONTROLLER_FREEZE))

    assert max(ran.unserved_ns().values()) < REACTION_NS
    assert first_ns(ran, "link_down_adjudicated", "controller") == THAW_NS
    assert len(ran.of("became_leader")) == 1


def test_a_controller_frozen_while_it_computes_says_what_it_computed_when_it_goes_on(fat_tree: Fabric) -> None:
    timing = Timing(computation_ns=SECOND)
    still = Fault("still", FaultKind.CONTROLLER_FREEZE, 10_500 * MS, 13 * SECOND)
    broken = Fault("cut", FaultKind.LINK_DOWN, 10 * SECOND, 16 * SECOND, links=(LINK,))
    ran = run(plan_on(fat_tree, broken, still, timing=timing, lasts_ns=24 * SECOND, measure_from_ns=9 * SECOND))

    assert first_ns(ran, "routes_computed", "controller", 10 * SECOND) == 13 * SECOND
    assert not [at_ns for at_ns, _ in ran.of("program_installed") if 10 * SECOND < at_ns < 13 * SECOND]
    assert ran.of("measurement_finished")[0][1] == {"flows_below_full": 0}


@pytest.mark.parametrize("kind", [FaultKind.BROKER_KILL, FaultKind.BROKER_FREEZE])
def test_without_a_broker_only_the_near_end_recovers_until_it_is_back(fat_tree: Fabric, kind: FaultKind) -> None:
    ran = with_cut(fat_tree, frozen(kind))

    near_ns = [lost for (source, _), lost in ran.unserved_ns().items() if source.startswith("@pod0")]
    far_ns = [lost for (source, _), lost in ran.unserved_ns().items() if not source.startswith("@pod0")]
    assert max(near_ns) < 2 * MS
    assert all(THAW_NS - CUT_NS < lost <= THAW_NS - CUT_NS + Timing().reconnect_ns + 10 * MS for lost in far_ns)
    assert not [at_ns for at_ns, _ in ran.of("fact_received") if CUT_NS < at_ns < THAW_NS]
    assert len(ran.of("became_leader")) == 1


def test_a_successor_of_the_controller_learns_from_what_a_broker_without_memory_was_told_again(
    fat_tree: Fabric,
) -> None:
    """The broker dies; later the controller does. The next one has only what was published since."""
    crash = Fault("crash", FaultKind.CONTROLLER_KILL, 5 * SECOND, 6 * SECOND)
    ran = run(plan_on(fat_tree, frozen(FaultKind.BROKER_KILL), crash, cut(), lasts_ns=14 * SECOND))

    assert [fields["epoch"] for _, fields in ran.of("became_leader")] == [1, 2]
    assert not [at_ns for at_ns, _ in ran.of("flow_changed") if at_ns > 5 * SECOND]
    assert ran.of("measurement_finished")[0][1] == {"flows_below_full": 0}
    assert ran.tables == run(plan_on(fat_tree, lasts_ns=2 * SECOND)).tables


def test_nobody_starts_what_is_frozen(fat_tree: Fabric) -> None:
    crash = Fault("crash", FaultKind.AGENT_KILL, CUT_NS, 3 * SECOND, nodes=(AGGREGATION,))
    ran = run(plan_on(fat_tree, frozen(FaultKind.AGENT_FREEZE, AGGREGATION), crash, cut()))

    assert first_ns(ran, "port_down_detected", AGGREGATION) == THAW_NS + Timing().start_ns
