"""What no carrier tells of: who notices it, when, what it costs until then, and that its end costs nothing."""

from collections import Counter
from fractions import Fraction

import pytest

from erfs.fabric import Fabric
from erfs.faults import Fault, FaultKind
from erfs.generators import generate
from erfs.ids import LinkId, NodeId
from erfs.units import MS, PPM, SECOND
from erfs_scenario.liveness import TRIP_NS
from erfs_scenario.plan import Timers, Timing
from erfs_scenario.walker import ppm
from tests.sim.runs import Ran, plan_on, run

LINK = LinkId("core0-0:1|pod0-agg0:1")
CORE, AGGREGATION, EDGE = NodeId("core0-0"), NodeId("pod0-agg0"), NodeId("pod0-edge0")
BEGIN_NS, END_NS = 2 * SECOND, 4 * SECOND
DETECTION_NS = Timers().session_interval_ns * Timers().session_multiplier + TRIP_NS
QUANTUM_NS = MS
"""A judgement may fall between two wakings of the session's process."""
REACTION_NS = 5 * MS
"""Write, two hops of the bus, write."""
UP_AGAIN_NS = 210 * MS + 3 * TRIP_NS


@pytest.fixture(scope="module")
def fat_tree() -> Fabric:
    return generate("fat-tree", {"k": 4})


def silent(kind: FaultKind = FaultKind.SILENT_DROP, **how: object) -> Fault:
    return Fault("silent", kind, BEGIN_NS, END_NS, **({"links": (LINK,)} | how))  # type: ignore[arg-type]


def deaf(fabric: Fabric, node: NodeId) -> Fault:
    return silent(FaultKind.ONE_WAY_DROP, ends=(fabric.links[LINK].end_at(node),))


def downs(ran: Ran) -> list[tuple[int, str, str]]:
    return [(at_ns, fields["node"], fields["reason"]) for at_ns, fields in ran.of("session_down")]


def assert_clean(ran: Ran) -> None:
    """No loop ever, nothing lost by the fault's end, and all served when the run ends."""
    assert not ran.of("loops_changed", "fault_not_effective", "fault_not_ended", "steady_state_missed")
    assert not [at_ns for at_ns, _ in ran.of("flow_changed") if at_ns >= END_NS]
    assert ran.of("measurement_finished")[0][1] == {"flows_below_full": 0}


def test_both_ends_leave_a_silent_link_within_the_detection_time_and_everybody_soon_after(fat_tree: Fabric) -> None:
    ran = run(plan_on(fat_tree, silent()))

    assert {(node, why) for _, node, why in downs(ran)} == {(CORE, "silent"), (AGGREGATION, "silent")}
    earliest_ns, latest_ns = DETECTION_NS - 10 * MS - TRIP_NS, DETECTION_NS + QUANTUM_NS
    assert all(earliest_ns <= at_ns - BEGIN_NS <= latest_ns for at_ns, _, _ in downs(ran))
    lost_ns = ran.unserved_ns()
    near_ns = [lost for (source, _), lost in lost_ns.items() if source.startswith("@pod0")]
    far_ns = [lost for (source, _), lost in lost_ns.items() if not source.startswith("@pod0")]
    assert earliest_ns < min(near_ns) <= max(near_ns) <= latest_ns + 2 * Timing().write_ns
    assert earliest_ns < min(far_ns) <= max(far_ns) <= latest_ns + REACTION_NS
    assert {fields["cause"] for _, fields in ran.of("port_down_detected")} == {"session"}
    assert_clean(ran)


def test_a_silent_link_comes_back_after_its_session_and_the_wait(fat_tree: Fabric) -> None:
    plan = plan_on(fat_tree, silent())
    ran = run(plan)

    ups = [at_ns for at_ns, _ in ran.of("session_up")]
    assert len(ups) == 2
    assert all(END_NS < at_ns <= END_NS + UP_AGAIN_NS for at_ns in ups)
    restored = [at_ns for at_ns, _ in ran.of("port_restored")]
    assert sorted(restored) == [at_ns + plan.timers.wait_to_restore_ns for at_ns in sorted(ups)]
    assert ran.tables == run(plan_on(fat_tree, lasts_ns=2 * SECOND)).tables


@pytest.mark.parametrize(("listener", "other"), [(CORE, AGGREGATION), (AGGREGATION, CORE)])
def test_of_a_link_that_works_one_way_the_deaf_end_notices_and_the_other_is_told(
    fat_tree: Fabric, listener: NodeId, other: NodeId
) -> None:
    ran = run(plan_on(fat_tree, deaf(fat_tree, listener)))

    (first_ns, first, why), (second_ns, second, because) = downs(ran)
    assert ((first, why), (second, because)) == ((listener, "silent"), (other, "neighbour"))
    assert second_ns - first_ns == TRIP_NS
    assert first_ns - BEGIN_NS <= DETECTION_NS + QUANTUM_NS
    assert_clean(ran)


def test_only_one_direction_of_a_link_loses_anything_before_it_is_noticed(fat_tree: Fabric) -> None:
    """The core hears nothing from pod 0, which goes on hearing the core until that has noticed."""
    ran = run(plan_on(fat_tree, deaf(fat_tree, CORE)))

    noticed_ns = downs(ran)[0][0]
    early = {
        (fields["source"], fields["destination"]) for at_ns, fields in ran.of("flow_changed") if at_ns < noticed_ns
    }
    assert early
    assert all(source.startswith("@pod0") and not target.startswith("@pod0") for source, target in early)
    late_ns = [lost for flow, lost in ran.unserved_ns().items() if flow not in early]
    assert late_ns
    assert max(late_ns) <= REACTION_NS, "the core knows no other way to pod 0, the others do"


def test_all_neighbours_leave_an_isolated_node_and_it_leaves_them(fat_tree: Fabric) -> None:
    ran = run(plan_on(fat_tree, silent(FaultKind.NODE_ISOLATED, links=(), nodes=(AGGREGATION,))))

    ends = Counter(node for _, node, why in downs(ran) if why == "silent")
    far_ends = {link.far_end(AGGREGATION).node for link in fat_tree.links_of[AGGREGATION]}
    assert ends == {AGGREGATION: 4} | dict.fromkeys(far_ends, 1)
    assert all(at_ns - BEGIN_NS <= DETECTION_NS + QUANTUM_NS for at_ns, _, _ in downs(ran))
    assert max(ran.unserved_ns().values()) <= DETECTION_NS + QUANTUM_NS + REACTION_NS
    assert_clean(ran)


def test_who_is_attached_to_an_isolated_leaf_has_no_path(fat_tree: Fabric) -> None:
    ran = run(plan_on(fat_tree, silent(FaultKind.NODE_ISOLATED, links=(), nodes=(EDGE,))))

    at_once = [fields for at_ns, fields in ran.of("flow_changed") if at_ns == BEGIN_NS]
    assert {fields["cause"] for fields in at_once} == {"cut"}
    assert f"@{EDGE}" in {fields["source"] for fields in at_once}
    assert (f"@{EDGE}", f"@{EDGE}") in {(fields["source"], fields["destination"]) for fields in at_once}
    assert ran.of("measurement_finished")[0][1] == {"flows_below_full": 0}
    assert not ran.of("loops_changed", "fault_not_ended")


@pytest.mark.parametrize("loss_ppm", [10_000, 300_000])
def test_a_lossy_link_serves_what_gets_through(fat_tree: Fabric, loss_ppm: int) -> None:
    ran = run(plan_on(fat_tree, silent(FaultKind.PACKET_LOSS, loss_ppm=loss_ppm)))

    crossing = {
        (source, target): share_ppm for source, target, _, share_ppm, _ in ran.of("flows_affected")[0][1]["flows"]
    }
    served = {
        (fields["source"], fields["destination"]): (fields["served_ppm"], fields["cause"])
        for at_ns, fields in ran.of("flow_changed")
        if at_ns == BEGIN_NS
    }
    assert served == {
        flow: (ppm(1 - Fraction(share_ppm, PPM) * Fraction(loss_ppm, PPM)), "not_recovered")
        for flow, share_ppm in crossing.items()
    }


def test_a_little_loss_is_never_noticed(fat_tree: Fabric) -> None:
    ran = run(plan_on(fat_tree, silent(FaultKind.PACKET_LOSS, loss_ppm=10_000)))

    assert not ran.of("session_down", "port_down_detected")
    assert set(ran.unserved_ns().values()) == {END_NS - BEGIN_NS}
    assert ran.of("measurement_finished")[0][1] == {"flows_below_full": 0}


def test_much_loss_makes_the_session_flap_and_the_port_wait_longer_each_time(fat_tree: Fabric) -> None:
    ran = run(plan_on(fat_tree, silent(FaultKind.PACKET_LOSS, loss_ppm=300_000)))

    assert min(Counter(node for _, node, _ in downs(ran)).values()) >= 3
    assert len(ran.of("session_up")) >= 6
    assert max(ran.unserved_ns().values()) < SECOND, "it is out of use most of the time"
    assert_clean(ran)


def test_a_flapping_link_loses_its_carrier_in_each_period_and_traffic_only_at_first(fat_tree: Fabric) -> None:
    """Half of the period of 300 ms is too short for a wait of 200 ms."""
    flapping = silent(FaultKind.LINK_FLAP, ends=(fat_tree.links[LINK].a,), period_ns=300 * MS)
    ran = run(plan_on(fat_tree, flapping))

    # 2 s hold 7 periods of which the last is cut short, down as it is.
    assert Counter(fields["node"] for _, fields in ran.of("port_down_detected")) == {CORE: 7, AGGREGATION: 7}
    carriers = [at_ns for at_ns, fields in ran.of("port_up_detected") if fields["node"] == CORE]
    assert [(at_ns - BEGIN_NS) // (150 * MS) for at_ns in carriers] == [1, 3, 5, 7, 9, 11, 13]
    assert max(ran.unserved_ns().values()) < REACTION_NS
    assert not ran.of("session_down"), "a carrier speaks for itself"
    assert_clean(ran)


def test_an_agent_killed_while_its_link_is_silent_waits_for_the_session_when_it_is_back(fat_tree: Fabric) -> None:
    crash = Fault("crash", FaultKind.AGENT_KILL, BEGIN_NS + SECOND, END_NS + SECOND, nodes=(AGGREGATION,))
    ran = run(plan_on(fat_tree, silent(), crash))

    (up_ns,) = [at_ns for at_ns, fields in ran.of("session_up") if fields["node"] == AGGREGATION]
    assert up_ns > END_NS + SECOND + Timing().start_ns
    restored = [at_ns for at_ns, fields in ran.of("port_restored") if fields["node"] == AGGREGATION]
    assert restored[0] > up_ns
    assert_clean(ran)


def test_an_agent_that_is_back_while_its_link_is_still_silent_does_not_believe_the_carrier(fat_tree: Fabric) -> None:
    crash = Fault("crash", FaultKind.AGENT_KILL, BEGIN_NS + 200 * MS, BEGIN_NS + 600 * MS, nodes=(AGGREGATION,))
    ran = run(plan_on(fat_tree, silent(), crash))

    assert [at_ns for at_ns, _ in ran.of("port_restored") if at_ns < END_NS] == []
    assert max(ran.unserved_ns().values()) <= DETECTION_NS + QUANTUM_NS + REACTION_NS
    assert_clean(ran)


def test_the_session_process_of_a_killed_agent_says_goodbye(fat_tree: Fabric) -> None:
    """A little loss, so that the session is followed, but not lost by it."""
    crash = Fault("crash", FaultKind.AGENT_KILL, BEGIN_NS + 200 * MS, BEGIN_NS + 600 * MS, nodes=(AGGREGATION,))
    ran = run(plan_on(fat_tree, silent(FaultKind.PACKET_LOSS, loss_ppm=10_000), crash))

    ((paused_ns, fields),) = ran.of("session_paused")
    assert (paused_ns, fields["node"]) == (BEGIN_NS + 200 * MS + TRIP_NS, CORE)
    assert not ran.of("session_down", "port_down_detected")
    assert {fields["node"] for _, fields in ran.of("session_up")} == {CORE, AGGREGATION}


def test_a_link_that_falls_silent_while_an_agent_is_dead_is_noticed_by_nobody(fat_tree: Fabric) -> None:
    """The agent's session process said goodbye: the neighbour goes on by the carrier."""
    crash = Fault("crash", FaultKind.AGENT_KILL, BEGIN_NS - 500 * MS, END_NS + SECOND, nodes=(AGGREGATION,))
    ran = run(plan_on(fat_tree, silent(), crash))

    assert not ran.of("session_down", "port_down_detected")
    assert set(ran.unserved_ns().values()) == {END_NS - BEGIN_NS}


def test_faster_sessions_see_it_sooner(fat_tree: Fabric) -> None:
    timers = Timers(wait_to_restore_ns=200 * MS, session_interval_ns=3 * MS)
    ran = run(plan_on(fat_tree, silent(), timers=timers))

    assert all(at_ns - BEGIN_NS <= 9 * MS + TRIP_NS + QUANTUM_NS for at_ns, _, _ in downs(ran))


def test_a_silent_fault_draws_nothing_that_others_draw(fat_tree: Fabric) -> None:
    """Two links fall silent: what happens to the first one's session is the same without the second."""
    other = LinkId("core1-1:2|pod1-agg1:2")
    assert other in fat_tree.links
    both = run(plan_on(fat_tree, silent(), Fault("other", FaultKind.SILENT_DROP, BEGIN_NS, END_NS, links=(other,))))
    alone = run(plan_on(fat_tree, silent()))

    def of_link(ran: Ran) -> list[tuple[int, str]]:
        told = ran.of("session_down", "session_up")
        return [(at_ns, fields["node"]) for at_ns, fields in told if fields["link"] == LINK]

    assert of_link(both) == of_link(alone)
