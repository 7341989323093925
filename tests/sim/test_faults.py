"""What each kind of fault does in simulation, and what it must not do."""

from dataclasses import replace

import pytest

from erfs.fabric import Fabric
from erfs.faults import Fault, FaultKind
from erfs.generators import generate
from erfs.ids import LinkId, NodeId
from erfs.units import MS, SECOND
from erfs_scenario.dataplane import DataPlane
from erfs_scenario.plan import Timing
from tests.sim.runs import plan_on, run

LINK = LinkId("core0-0:1|pod0-agg0:1")
AGGREGATION = NodeId("pod0-agg0")
CUT_NS, MENDED_NS = 2 * SECOND, 4 * SECOND


@pytest.fixture(scope="module")
def fat_tree() -> Fabric:
    return generate("fat-tree", {"k": 4})


def cut(at_ns: int = CUT_NS, end_at_ns: int = MENDED_NS, name: str = "cut", link: LinkId = LINK) -> Fault:
    return Fault(name, FaultKind.LINK_DOWN, at_ns, end_at_ns, links=(link,))


def headless(at_ns: int, end_at_ns: int) -> Fault:
    return Fault("headless", FaultKind.CONTROLLER_KILL, at_ns, end_at_ns)


def test_protection_recovers_before_the_controller_has_computed_anything(fat_tree: Fabric) -> None:
    ran = run(plan_on(fat_tree, cut()))

    (computed_at_ns, _) = ran.of("routes_computed")[1]
    assert ran.unserved_ns()
    assert CUT_NS + max(ran.unserved_ns().values()) < computed_at_ns
    assert max(ran.unserved_ns().values()) < 5 * MS


def test_without_protection_recovery_waits_for_the_dead_controller(fat_tree: Fabric) -> None:
    faults = (headless(CUT_NS - 100 * MS, CUT_NS + SECOND), cut())

    protected = run(plan_on(fat_tree, *faults)).unserved_ns()
    unprotected = run(plan_on(fat_tree, *faults, is_protecting=False)).unserved_ns()

    assert max(protected.values()) < 5 * MS
    assert min(unprotected.values()) > SECOND


def test_each_end_notices_the_carrier_at_an_instant_of_its_own(fat_tree: Fabric) -> None:
    timing = Timing()
    ran = run(plan_on(fat_tree, cut()))

    noticed = [at_ns - CUT_NS for at_ns, _ in ran.of("port_down_detected")]

    assert len(set(noticed)) == 2
    assert all(timing.carrier_ns <= late <= timing.carrier_ns + timing.carrier_jitter_ns for late in noticed)


def test_a_computation_delays_what_follows_from_it_and_not_the_leaders_word(fat_tree: Fabric) -> None:
    """A computation of 5 s: a controller that fell silent for so long would be taken for dead."""
    timing = Timing(computation_ns=5 * SECOND)
    ran = run(
        plan_on(
            fat_tree, cut(10 * SECOND, 20 * SECOND), lasts_ns=40 * SECOND, timing=timing, measure_from_ns=9 * SECOND
        )
    )

    (first_ns, _), (second_ns, _) = ran.of("routes_computed")[:2]
    assert 5 * SECOND < first_ns < 6 * SECOND
    assert 15 * SECOND < second_ns < 16 * SECOND
    assert min(at_ns for at_ns, _ in ran.of("program_installed")) > first_ns
    finished = [at_ns for at_ns, _ in ran.of("restoration_finished") if at_ns > second_ns]
    assert finished[0] < second_ns + 100 * MS, "it took its own silence for a freeze"
    assert [fields["epoch"] for _, fields in ran.of("became_leader")] == [1]
    assert not ran.of("steady_state_missed")


def test_a_killed_agent_leaves_its_table_and_takes_no_link_down(fat_tree: Fabric) -> None:
    ran = run(plan_on(fat_tree, Fault("crash", FaultKind.AGENT_KILL, CUT_NS, MENDED_NS, nodes=(AGGREGATION,))))

    assert ran.of("fault_effective")
    assert not ran.of("flow_changed", "link_down_adjudicated")
    assert not [at_ns for at_ns, _ in ran.of("change_requested") if at_ns > CUT_NS]


def test_a_node_without_power_forgets_its_table_and_gets_it_back(fat_tree: Fabric) -> None:
    ran = run(plan_on(fat_tree, Fault("dark", FaultKind.NODE_DOWN, CUT_NS, MENDED_NS, nodes=(AGGREGATION,))))

    assert len(ran.of("link_down_adjudicated")) == 4
    back_ns = min(at_ns for at_ns, _ in ran.of("change_acknowledged", node=AGGREGATION) if at_ns > MENDED_NS)
    assert back_ns > MENDED_NS
    assert ran.tables == run(plan_on(fat_tree, lasts_ns=2 * SECOND)).tables


def test_a_link_that_two_faults_hold_down_returns_with_the_second(fat_tree: Fabric) -> None:
    ran = run(plan_on(fat_tree, cut(2 * SECOND, 4 * SECOND, "one"), cut(3 * SECOND, 5 * SECOND, "other")))

    assert len(ran.of("port_down_detected")) == 2
    assert all(at_ns > 5 * SECOND for at_ns, _ in ran.of("port_up_detected"))
    assert [fields["fault"] for _, fields in ran.of("fault_ended")] == ["one", "other"]


def test_an_agent_that_is_cut_off_heals_what_it_sees_itself_and_learns_the_rest_later(fat_tree: Fabric) -> None:
    split = Fault("split", FaultKind.BUS_PARTITION, CUT_NS - 100 * MS, 5 * SECOND, nodes=(AGGREGATION,))
    ran = run(plan_on(fat_tree, split, cut(end_at_ns=9 * SECOND), lasts_ns=12 * SECOND))

    assert ran.of("change_acknowledged", node=AGGREGATION)[1][0] < CUT_NS + MS
    assert ran.of("fact_published", node="core0-0")
    spoken = [at_ns for at_ns, fields in ran.of("link_down_adjudicated") if fields["link"] == LINK]
    assert spoken[0] < CUT_NS + 10 * MS, "the other end's word is enough"
    assert ran.of("measurement_finished")[0][1] == {"flows_below_full": 0}


def test_without_a_bus_only_the_near_end_recovers(fat_tree: Fabric) -> None:
    split = Fault("split", FaultKind.BUS_PARTITION, CUT_NS - 100 * MS, 3 * SECOND)
    unserved = run(plan_on(fat_tree, split, cut())).unserved_ns()

    near = [lost for (source, _), lost in unserved.items() if source.startswith("@pod0")]
    far = [lost for (source, _), lost in unserved.items() if not source.startswith("@pod0")]
    assert near
    assert far
    assert max(near) < 2 * MS
    assert min(far) > SECOND


def test_a_successor_changes_nothing_that_is_right(fat_tree: Fabric) -> None:
    ran = run(plan_on(fat_tree, headless(CUT_NS, MENDED_NS)))

    assert [fields["epoch"] for _, fields in ran.of("became_leader")] == [1, 2]
    assert not [at_ns for at_ns, _ in ran.of("change_requested", "flow_changed") if at_ns > CUT_NS]


def test_a_measurement_that_begins_before_the_system_is_at_rest_says_so(fat_tree: Fabric) -> None:
    ran = run(plan_on(fat_tree, measure_from_ns=400 * MS, lasts_ns=SECOND))

    ((at_ns, fields),) = ran.of("steady_state_missed")
    assert (at_ns, fields["missing_count"]) == (400 * MS, 36)


def test_a_fault_that_the_data_plane_does_not_confirm_is_not_in_effect(
    fat_tree: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DataPlane, "set_link", lambda *_arguments: None)

    ran = run(plan_on(fat_tree, cut()))

    assert ran.of("fault_injected")
    assert [fields for _, fields in ran.of("fault_not_effective")] == [{"fault": "cut"}]
    assert not ran.of("fault_effective")


def test_time_costs_nothing_while_nothing_happens(fat_tree: Fabric) -> None:
    """A thousand quiet seconds add the leader's refreshes and nothing else."""
    short = run(plan_on(fat_tree, lasts_ns=5 * SECOND))
    long = run(replace(plan_on(fat_tree), duration_ns=1000 * SECOND))

    assert short.records[:-1] == long.records[:-1]


def test_hosts_whose_switches_were_both_dead_are_served_again_once_these_are_back() -> None:
    """Without any way they send everything everywhere; routes to what they can reach again take nothing away."""
    fabric = generate("leaf-spine", {"leaves": 4, "spines": 2, "hosts_per_leaf": 2, "attachments": 2})
    long = Fault("long", FaultKind.NODE_DOWN, 2 * SECOND, 4 * SECOND, nodes=(NodeId("leaf2"),))
    short = Fault("short", FaultKind.NODE_DOWN, 2700 * MS, 3 * SECOND, nodes=(NodeId("leaf3"),))
    ran = run(plan_on(fabric, long, short))
    assert "push_refused" not in ran.events()
    assert ran.tables == run(plan_on(fabric)).tables
