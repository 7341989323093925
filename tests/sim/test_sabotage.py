"""A fault that did not happen as asked makes the run invalid: the injector does nothing, half of it, or everything too late."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from erfs.fabric import LinkEnd
from erfs.faults import NODE_KINDS, PHYSICAL, Fault, FaultKind
from erfs.generators import generate
from erfs.ids import LinkId, NodeId
from erfs.units import MS, SECOND
from erfs_scenario.backends import kinds_of
from erfs_scenario.judging import judge_records
from erfs_scenario.plan import Plan
from erfs_scenario.report import Report
from erfs_scenario.simulation import Simulation
from tests.sim.runs import plan_on

FABRIC = generate("fat-tree", {"k": 4})
LINKS = (LinkId("core0-0:1|pod0-agg0:1"), LinkId("core1-0:2|pod1-agg1:1"))
NODES = (NodeId("pod0-agg0"), NodeId("pod2-agg1"))
BEGIN_NS, END_NS = 2 * SECOND, 5 * SECOND
LATE_NS = 300 * MS


def fault(kind: FaultKind) -> Fault:
    """Return a fault of *kind* on two links, two nodes, or what there is only one of."""
    plain = Fault("f", kind, BEGIN_NS, END_NS)
    if kind in NODE_KINDS:
        return replace(plain, nodes=NODES)
    if kind not in PHYSICAL:
        return plain
    ends = tuple(FABRIC.links[link].a for link in LINKS)
    extra = {
        FaultKind.PACKET_LOSS: {"loss_ppm": 200_000},
        FaultKind.LINK_FLAP: {"period_ns": 1200 * MS},
    }
    return replace(plain, links=LINKS, ends=ends, **extra.get(kind, {}))


class Injector:
    """Stands between a run and what makes its faults."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._inject, self._heal = simulation.inject, simulation.heal
        simulation.inject = self.inject
        simulation.heal = self.heal

    def inject(self, fault: Fault) -> None:
        self._inject(fault)

    def heal(self, fault: Fault) -> None:
        self._heal(fault)

    def later(self, action: Callable[[], None]) -> None:
        self.simulation.queue.after(LATE_NS, action)


class Idle(Injector):
    def inject(self, fault: Fault) -> None:
        pass

    def heal(self, fault: Fault) -> None:
        pass


class Half(Injector):
    """Does half of it: half of the targets, or of the loss, or flaps at twice the pace."""

    def halved(self, fault: Fault) -> Fault:
        if fault.loss_ppm:
            return replace(fault, loss_ppm=fault.loss_ppm // 2)
        if fault.period_ns:
            return replace(fault, period_ns=fault.period_ns // 2)
        return replace(fault, links=fault.links[:1], ends=fault.ends[:1], nodes=fault.nodes[:1])

    def inject(self, fault: Fault) -> None:
        self._inject(self.halved(fault))

    def heal(self, fault: Fault) -> None:
        self._heal(self.halved(fault))


class HalfOfTheLinks(Half):
    def halved(self, fault: Fault) -> Fault:
        return replace(fault, links=fault.links[:1], ends=fault.ends[:1])


class BeginsLate(Injector):
    def inject(self, fault: Fault) -> None:
        self.later(partial(self._inject, fault))


class EndsLate(Injector):
    def heal(self, fault: Fault) -> None:
        # A killed process has so long to be there again anyway.
        self.simulation.queue.after(2 * LATE_NS, partial(self._heal, fault))


class EndsEarly(Injector):
    def inject(self, fault: Fault) -> None:
        self._inject(fault)
        self.simulation.queue.at(END_NS - 500 * MS, partial(self._heal, fault))

    def heal(self, fault: Fault) -> None:
        pass


class NeverEnds(Injector):
    def heal(self, fault: Fault) -> None:
        pass


def run_with(injector: Callable[[Simulation], Injector], plan: Plan) -> Report:
    """Run *plan* with its faults made by *injector*, and judge it."""
    records: list[dict[str, object]] = [{"at_ns": 0, "event": "run_started"} | plan.header("sim")]

    def record(at_ns: int, event: str, fields: dict[str, object]) -> None:
        records.append({"at_ns": at_ns, "event": event} | fields)

    simulation = Simulation(plan, record, lambda _now_ns: None)
    injector(simulation)
    simulation.run()
    return judge_records(records)


# A drain is asked of the controller, whose answer is its effect.
KINDS = sorted(kinds_of("sim") - {FaultKind.DRAIN})
HALVED = [kind for kind in KINDS if len(fault(kind).links) + len(fault(kind).nodes) > 1]


@pytest.mark.parametrize("kind", KINDS)
def test_as_asked_is_as_measured_and_valid(kind: FaultKind) -> None:
    report = run_with(Injector, plan_on(FABRIC, fault(kind)))

    assert report.verdict.outcome not in ("invalid", "aborted")
    (seen,) = report.faults
    assert (seen.effective_at_ns, seen.ended_at_ns) == (BEGIN_NS, END_NS)
    assert seen.magnitudes
    assert all(one.measured == one.asked > 0 for one in seen.magnitudes)


@pytest.mark.parametrize("kind", KINDS)
def test_an_injector_that_does_nothing_makes_the_run_invalid(kind: FaultKind) -> None:
    report = run_with(Idle, plan_on(FABRIC, fault(kind)))

    assert report.verdict.exit_code == 4
    assert report.verdict.reasons[0].startswith('fault "f" did not take effect: ')
    (seen,) = report.faults
    assert seen.effective_at_ns is None
    assert [one.measured for one in seen.magnitudes] == [0] * len(seen.magnitudes)


@pytest.mark.parametrize("kind", HALVED)
def test_an_injector_that_does_half_makes_the_run_invalid(kind: FaultKind) -> None:
    report = run_with(Half, plan_on(FABRIC, fault(kind)))

    assert report.verdict.exit_code == 4
    (seen,) = report.faults
    wrong = {one.name: (one.asked, one.measured) for one in seen.magnitudes if not one.is_as_asked}
    if kind is FaultKind.PACKET_LOSS:
        assert wrong == {"links lossy": (2, 0), "loss": (200_000, 100_000)}
    elif kind is FaultKind.LINK_FLAP:
        assert wrong == {"links that flap": (2, 0), "times down": (3, 5)}
    else:
        ((asked, measured),) = wrong.values()
        assert (asked, measured) == (2, 1)
    assert report.verdict.reasons[0].startswith('fault "f" ')
    assert " of 2 asked" in report.verdict.reasons[0]


@pytest.mark.parametrize("kind", [kind for kind in HALVED if fault(kind).links])
def test_half_of_the_links_is_not_as_asked(kind: FaultKind) -> None:
    report = run_with(HalfOfTheLinks, plan_on(FABRIC, fault(kind)))

    assert report.verdict.exit_code == 4
    counted = report.faults[0].magnitudes[0]
    assert (counted.asked, counted.measured) == (2, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_an_injector_that_begins_late_makes_the_run_invalid(kind: FaultKind) -> None:
    report = run_with(BeginsLate, plan_on(FABRIC, fault(kind)))

    assert report.verdict.exit_code == 4
    (seen,) = report.faults
    assert seen.effective_at_ns == BEGIN_NS + LATE_NS
    assert 'fault "f" took effect 300 ms late' in report.verdict.reasons


@pytest.mark.parametrize("kind", KINDS)
def test_an_injector_that_ends_late_makes_the_run_invalid(kind: FaultKind) -> None:
    report = run_with(EndsLate, plan_on(FABRIC, fault(kind)))

    assert report.verdict.exit_code == 4
    if kind in (FaultKind.AGENT_KILL, FaultKind.CONTROLLER_KILL):
        assert report.verdict.reasons[0] == 'fault "f" did not end as asked'
    else:
        assert report.verdict.reasons[0] == 'fault "f" ended 600 ms late'
        assert report.faults[0].ended_at_ns == END_NS + 2 * LATE_NS


@pytest.mark.parametrize("kind", KINDS)
def test_an_injector_that_never_ends_it_makes_the_run_invalid(kind: FaultKind) -> None:
    report = run_with(NeverEnds, plan_on(FABRIC, fault(kind)))

    assert report.verdict.exit_code == 4
    assert report.verdict.reasons[0] == 'fault "f" did not end as asked'


@pytest.mark.parametrize("kind", KINDS)
def test_an_injector_that_ends_it_early_makes_the_run_invalid(kind: FaultKind) -> None:
    report = run_with(EndsEarly, plan_on(FABRIC, fault(kind)))

    assert report.verdict.exit_code == 4
    assert report.verdict.reasons[0].startswith('fault "f" was not as asked: ')


def test_faults_that_overlap_are_seen_each_for_itself() -> None:
    """A cut cable that is also lossy loses everything; when it is mended it is lossy again, and that is as asked."""
    cut = Fault("cut", FaultKind.LINK_DOWN, 3 * SECOND, 4 * SECOND, links=LINKS[:1])
    lossy = replace(fault(FaultKind.PACKET_LOSS), links=LINKS[:1], ends=())
    deaf = Fault("deaf", FaultKind.ONE_WAY_DROP, 3 * SECOND, 4 * SECOND, links=LINKS[1:], ends=(end_of(LINKS[1]),))
    dark = Fault("dark", FaultKind.NODE_DOWN, 3500 * MS, 6 * SECOND, nodes=(NodeId("pod1-agg1"),))

    report = run_with(Injector, plan_on(FABRIC, cut, lossy, deaf, dark))

    assert report.verdict.outcome != "invalid", report.verdict.reasons
    assert [(one.id, one.magnitudes[0].measured) for one in report.faults] == [
        ("cut", 1),
        ("f", 1),
        ("deaf", 1),
        ("dark", 1),
    ]
    # What one of two faults on a link takes cannot be told from what the other does.
    assert [one.name for one in report.faults[1].magnitudes] == ["links lossy"]


def test_a_process_that_several_faults_hold_is_back_after_the_last() -> None:
    first = replace(fault(FaultKind.AGENT_KILL), nodes=NODES[:1])
    second = Fault("g", FaultKind.AGENT_FREEZE, 4 * SECOND, 5100 * MS, nodes=NODES[:1])

    report = run_with(Injector, plan_on(FABRIC, first, second))

    assert report.verdict.outcome != "invalid", report.verdict.reasons


def end_of(link: LinkId) -> LinkEnd:
    return FABRIC.links[link].a
