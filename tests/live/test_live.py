"""Real time, real MQTT, real processes: what must hold whoever fails."""

import pytest

from erfs.fabric import Fabric
from erfs.faults import FaultKind
from erfs.ids import LinkId, NodeId
from erfs.units import MS
from tests.bus.conftest import Broker
from tests.live.runs import Ran, fault, plan_on, run

pytestmark = pytest.mark.live

CORE_LINK = LinkId("core0-0:1|pod0-agg0:1")
OTHER_LINK = LinkId("core1-0:2|pod1-agg1:1")
SWITCH = NodeId("pod2-agg0")

FAULTS = (
    fault("cut", FaultKind.LINK_DOWN, 300, 500, link=CORE_LINK),
    fault("crash", FaultKind.AGENT_KILL, 2000, 1000, node=SWITCH),
    fault("headless", FaultKind.CONTROLLER_KILL, 3500, 2000),
    fault("cut without a controller", FaultKind.LINK_DOWN, 4000, 500, link=OTHER_LINK),
)


@pytest.fixture(scope="module")
def ran(broker: Broker, fat_tree: Fabric, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run with everything in it, so that processes start once."""
    plan = plan_on(fat_tree, *FAULTS, lasts_ns=10_500 * MS)
    return run(plan, tmp_path_factory.mktemp("live"), f"127.0.0.1:{broker.port}")


def test_faults_take_effect_and_end_as_asked(ran: Ran) -> None:
    names = [name.id for name in FAULTS]
    assert [fields["fault"] for fields in ran.of("fault_effective")] == names
    assert sorted(fields["fault"] for fields in ran.of("fault_ended")) == sorted(names)
    assert not ran.of("fault_not_effective", "fault_not_ended", "cleanup_failed")


def test_records_come_in_the_order_of_time(ran: Ran) -> None:
    instants = [at_ns for at_ns, _, _ in ran.records]
    assert instants == sorted(instants)


def test_a_link_failure_recovers(ran: Ran) -> None:
    assert ran.hurt("cut")
    assert ran.recovery_ns("cut").keys() == ran.hurt("cut")
    assert max(ran.recovery_ns("cut").values()) < 450 * MS
    assert [fields["link"] for fields in ran.of("link_down_adjudicated")][:1] == [CORE_LINK]


def test_no_loop_and_nothing_unserved_in_the_end(ran: Ran) -> None:
    assert not ran.of("loops_changed")
    assert [fields["flows_below_full"] for fields in ran.of("measurement_finished")] == [0]


def test_an_agent_cut_off_without_a_goodbye_takes_no_link_down(ran: Ran) -> None:
    start_ns, end_ns = ran.at("fault_effective", "crash"), ran.at("fault_effective", "headless")
    assert not ran.of("link_down_adjudicated", "flow_changed", "change_requested", after_ns=start_ns, before_ns=end_ns)


def test_protection_works_without_a_controller(ran: Ran) -> None:
    cut = "cut without a controller"
    assert ran.hurt(cut)
    assert ran.recovery_ns(cut).keys() == ran.hurt(cut)
    assert max(ran.recovery_ns(cut).values()) < 450 * MS
    start_ns, end_ns = ran.at("fault_effective", "headless"), ran.at("fault_ended", "headless")
    assert not ran.of("routes_computed", "generation_pushed", after_ns=start_ns, before_ns=end_ns)


def test_a_successor_reigns_in_a_higher_epoch_and_changes_no_route_that_is_right(ran: Ran) -> None:
    assert [fields["epoch"] for fields in ran.of("became_leader")] == [1, 2]
    back_ns = ran.at("fault_ended", "headless")
    assert ran.of("restoration_finished", after_ns=back_ns)
    assert not ran.of("change_requested", "flow_changed", after_ns=back_ns)
    assert [at_ns for at_ns in ran.rewritten_at_ns if at_ns >= back_ns] == []
    assert ran.rewritten_at_ns, "the counter counts nothing"


def test_without_protection_a_failure_waits_for_the_controller(
    broker: Broker, fat_tree: Fabric, tmp_path_factory: pytest.TempPathFactory
) -> None:
    faults = (
        fault("headless", FaultKind.CONTROLLER_KILL, 100, 1000),
        fault("cut", FaultKind.LINK_DOWN, 400, 8000, link=CORE_LINK),
    )
    plan = plan_on(fat_tree, *faults, lasts_ns=7500 * MS, is_protecting=False)

    ran = run(plan, tmp_path_factory.mktemp("unprotected"), f"127.0.0.1:{broker.port}")

    back_ns = ran.at("fault_ended", "headless") - ran.at("fault_effective", "cut")
    assert ran.recovery_ns("cut").keys() == ran.hurt("cut")
    assert min(ran.recovery_ns("cut").values()) > back_ns
