"""Was each fault there as asked: from when, how much of it, until when? Read from the data plane, never from who made it.

Rule 1: what should be follows from the plan alone: which faults are due, and what they leave of each direction of a link.
Rule 2: what is, is read from the data plane and the processes; whoever injects is not asked, and may be broken.
Rule 3: nothing is judged here: what was asked and what was seen is recorded, and `erfs_scenario.verdict` holds one against the other.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Protocol

from erfs.faults import PHYSICAL, Fault, FaultKind
from erfs.ids import LinkId, NodeId
from erfs.units import PPM
from erfs_scenario.dataplane import DataPlane, Share
from erfs_scenario.measurement import Record
from erfs_scenario.plan import Plan
from erfs_scenario.report import Magnitude

COUNTED: Final = {
    FaultKind.LINK_DOWN: "links down",
    FaultKind.SILENT_DROP: "links silent",
    FaultKind.ONE_WAY_DROP: "links deaf at one end",
    FaultKind.PACKET_LOSS: "links lossy",
    FaultKind.LINK_FLAP: "links that flap",
    FaultKind.RATE_LIMIT: "directions slowed down",
    FaultKind.NODE_DOWN: "nodes without power",
    FaultKind.NODE_ISOLATED: "nodes isolated",
    FaultKind.AGENT_KILL: "agents dead",
    FaultKind.AGENT_FREEZE: "agents frozen",
    FaultKind.CONTROLLER_KILL: "controllers dead",
    FaultKind.CONTROLLER_FREEZE: "controllers frozen",
    FaultKind.BROKER_KILL: "brokers dead",
    FaultKind.BROKER_FREEZE: "members without the bus",
    FaultKind.BUS_PARTITION: "members without the bus",
}
"""What is counted of each kind; all of what was asked must be so all the time."""
LOSS: Final = "loss"
TIMES_DOWN: Final = "times down"

_DARK: Final = frozenset({FaultKind.LINK_DOWN, FaultKind.LINK_FLAP, FaultKind.NODE_DOWN})
"""They take the carrier, too."""
_RESTARTED: Final = frozenset({FaultKind.AGENT_KILL, FaultKind.CONTROLLER_KILL})
"""Whom they hit is started again when they end, which takes its time."""


class Processes(Protocol):
    """What a backend can tell of the processes and connections that faults hit, by looking at them."""

    def hit_by(self, fault: Fault) -> tuple[NodeId, ...]:
        """Return whom a fault of what controls the fabric hits."""

    def is_stopped(self, kind: FaultKind, name: NodeId) -> bool:
        """Return whether *name* is as a fault of *kind* leaves it: dead, frozen, or without the bus."""

    def is_free(self, kind: FaultKind, name: NodeId) -> bool:
        """Return whether *name* is as it should be once a fault of *kind* is over."""


def times_down(fault: Fault) -> int:
    """Return how often a ``link_flap`` goes down: at its begin, and again with each period that begins before its end."""
    return -(-(fault.end_at_ns - fault.at_ns) // (2 * (fault.period_ns // 2)))


@dataclass(slots=True)
class _Watched:
    """A fault that is due, and what has been seen of it."""

    fault: Fault
    parts: list[tuple[LinkId, ...]]
    """Its targets, each as the links that tell of it."""
    effective_at_ns: int | None = None
    most: int = 0
    """Targets that were as asked at once, at best, before all were."""
    least: int | None = None
    """The fewest, since all were."""
    losses: list[int] = field(default_factory=list)
    """Loss in millionths, seen so far: the greatest before it took effect, the one farthest off since."""
    is_up: dict[LinkId, bool] = field(default_factory=dict)
    downs: dict[LinkId, int] = field(default_factory=dict)
    is_alone: bool = True
    """Whether no other fault ever was due on its links: else neither loss nor times down can be told apart."""


class Witness:
    """
    Looks whether the faults of a plan are there. One per run.

    The backend calls `begin` and `end` when a fault is due to begin and to end, by its own clock and whatever the injector does,
    `look` when something may have changed, and `finish` when the run is over.

    Args:
        plan: Whose faults.
        plane: The data plane that they are to break.
        processes: Tells of those that faults of what controls the fabric hit.
        record: Writes one journal line.
        restart_ns: How long a killed process takes to be there again.
    """

    def __init__(self, plan: Plan, plane: DataPlane, processes: Processes, record: Record, *, restart_ns: int) -> None:
        self._plan = plan
        self._plane = plane
        self._processes = processes
        self._record = record
        self._restart_ns = restart_ns
        self._due: dict[str, _Watched] = {}
        self._on_link: dict[LinkId, list[Fault]] = {}
        self._ending: dict[str, _Watched] = {}
        self._back_at_ns: dict[NodeId, tuple[Fault, int]] = {}
        """Who is to be back when, and after which fault."""
        self._seen_version = -1
        self._is_stirred = False

    def begin(self, fault: Fault) -> None:
        """Take notice that *fault* is due from now on."""
        self._is_stirred = True
        watched = self._due[fault.id] = _Watched(fault, self._parts(fault))
        for link in self._plan.links_hit(fault):
            there = self._on_link.setdefault(link, [])
            for other in there:
                self._due[other.id].is_alone = watched.is_alone = False
            there.append(fault)
            watched.is_up[link] = True
            watched.downs[link] = 0
        for name in () if fault.kind in PHYSICAL else self._processes.hit_by(fault):
            self._back_at_ns.pop(name, None)

    def end(self, fault: Fault, now_ns: int) -> None:
        """Record how much of *fault* there was; it is not due any more."""
        self._is_stirred = True
        watched = self._due[fault.id]
        if fault.kind not in PHYSICAL:
            self._see(watched, now_ns)
        self._tell(watched, now_ns)
        del self._due[fault.id]
        for link in self._plan.links_hit(fault):
            self._on_link[link].remove(fault)
        if fault.kind not in _RESTARTED:
            self._ending[fault.id] = watched
            return
        self._record(now_ns, "fault_ended", {"fault": fault.id})
        for name in self._processes.hit_by(fault):
            self._back_at_ns[name] = fault, now_ns + self._restart_ns

    def look(self, now_ns: int) -> None:
        """See what is. Cost: O(targets of the faults that are due), and nothing while nothing has changed."""
        version = self._plane.state_version
        awaited = self._ending or self._back_at_ns or any(one.effective_at_ns is None for one in self._due.values())
        if version == self._seen_version and not self._is_stirred and not awaited:
            return
        self._seen_version, self._is_stirred = version, False
        for watched in list(self._due.values()):
            self._see(watched, now_ns)
        for watched in list(self._ending.values()):
            if self._is_over(watched, now_ns):
                del self._ending[watched.fault.id]
                self._record(now_ns, "fault_ended", {"fault": watched.fault.id})
        for name, (fault, back_at_ns) in list(self._back_at_ns.items()):
            if now_ns >= back_at_ns:
                del self._back_at_ns[name]
                if not self._is_held(name) and not self._processes.is_free(fault.kind, name):
                    self._record(now_ns, "fault_not_ended", {"fault": fault.id})

    def finish(self, now_ns: int) -> None:
        """Record what did not come to an end."""
        self.look(now_ns)
        for watched in self._due.values():
            self._tell(watched, now_ns)
        for watched in self._ending.values():
            self._record(now_ns, "fault_not_ended", {"fault": watched.fault.id})

    # --- one fault -------------------------------------------------------------------------------------------------------
    def _parts(self, fault: Fault) -> list[tuple[LinkId, ...]]:
        if fault.kind in (FaultKind.NODE_DOWN, FaultKind.NODE_ISOLATED):
            links_of = self._plan.fabric.links_of
            return [tuple(link.id for link in links_of[node]) for node in fault.nodes]
        return [(link,) for link in fault.links]

    def _see(self, watched: _Watched, now_ns: int) -> None:
        fault = watched.fault
        if fault.kind in PHYSICAL:
            asked = len(watched.parts)
            count = sum(all(self._is_as_due(link, now_ns) for link in part) for part in watched.parts)
        else:
            names = self._processes.hit_by(fault)
            asked = len(names)
            count = sum(self._processes.is_stopped(fault.kind, name) for name in names)
        if fault.kind is FaultKind.LINK_FLAP:
            self._count_downs(watched)
        if watched.effective_at_ns is not None:
            assert watched.least is not None
            watched.least = min(watched.least, count)
        elif fault.kind is FaultKind.LINK_FLAP and _is_up_between(fault, now_ns):
            pass  # a link that is up because nothing ever happened to it is in step by chance
        elif count == asked > 0:
            watched.effective_at_ns, watched.least, watched.losses = now_ns, count, []
            self._record(now_ns, "fault_effective", {"fault": fault.id})
        else:
            watched.most = max(watched.most, count)
        if fault.kind is FaultKind.PACKET_LOSS and watched.is_alone:
            self._note_losses(watched)

    def _note_losses(self, watched: _Watched) -> None:
        asked, is_there = watched.fault.loss_ppm, watched.effective_at_ns is not None
        for link in watched.fault.links:
            for end in self._plan.fabric.links[link].ends:
                watched.losses.append(round((1 - self._plane.share_from(end)) * PPM))
        worst = max(watched.losses, key=lambda loss: abs(loss - asked) if is_there else loss)
        watched.losses = [worst]

    def _count_downs(self, watched: _Watched) -> None:
        for link, was_up in watched.is_up.items():
            is_up = self._plane.is_port_up(*self._plan.fabric.links[link].a)
            watched.is_up[link] = is_up
            watched.downs[link] += was_up and not is_up

    def _tell(self, watched: _Watched, now_ns: int) -> None:
        """Record how much there was of a fault, and that it never came about if it did not."""
        fault = watched.fault
        asked = len(watched.parts) if fault.kind in PHYSICAL else len(self._processes.hit_by(fault))
        seen = watched.most if watched.least is None else watched.least
        how = "the data plane's state" if fault.kind in PHYSICAL else "the processes' state"
        found = [Magnitude(name=COUNTED[fault.kind], unit="count", asked=asked, measured=seen, how=how)]
        if watched.losses and watched.is_alone:
            (loss,) = watched.losses
            found.append(Magnitude(name=LOSS, unit="ppm", asked=fault.loss_ppm, measured=loss, how=how))
        if fault.kind is FaultKind.LINK_FLAP and watched.is_alone:
            asked, downs = times_down(fault), watched.downs.values()
            worst = max(downs, key=lambda count: abs(count - asked))
            found.append(Magnitude(name=TIMES_DOWN, unit="count", asked=asked, measured=worst, how=how))
        for magnitude in found:
            self._record(now_ns, "fault_measured", {"fault": fault.id} | magnitude.model_dump(exclude_defaults=True))
        if watched.effective_at_ns is None:
            self._record(now_ns, "fault_not_effective", {"fault": fault.id})

    # --- what is, beside what should be ------------------------------------------------------------------------------------
    def _is_as_due(self, link_id: LinkId, now_ns: int) -> bool:
        """Return whether both directions and both carriers of a link are what the faults that are due leave of them."""
        passed: list[Share] = [1, 1]
        has_carrier = True
        link = self._plan.fabric.links[link_id]
        for fault in self._on_link.get(link_id, ()):
            if fault.kind is FaultKind.LINK_FLAP and _is_up_between(fault, now_ns):
                continue
            has_carrier = has_carrier and fault.kind not in _DARK
            for side, sender in enumerate(link.ends):
                if fault.kind is FaultKind.PACKET_LOSS:
                    passed[side] *= Fraction(PPM - fault.loss_ppm, PPM)
                elif fault.kind is not FaultKind.ONE_WAY_DROP or sender not in fault.ends:
                    passed[side] = 0
        return all(
            self._plane.share_from(end) == share and self._plane.is_port_up(*end) == has_carrier
            for end, share in zip(link.ends, passed, strict=True)
        )

    def _is_over(self, watched: _Watched, now_ns: int) -> bool:
        fault = watched.fault
        if fault.kind in PHYSICAL:
            return all(self._is_as_due(link, now_ns) for part in watched.parts for link in part)
        return all(
            self._is_held(name) or self._processes.is_free(fault.kind, name) for name in self._processes.hit_by(fault)
        )

    def _is_held(self, name: NodeId) -> bool:
        """Return whether some fault that is due holds a process, its node or its connection."""
        return any(name in self._held_by(watched.fault) for watched in self._due.values())

    def _held_by(self, fault: Fault) -> Iterable[NodeId]:
        if fault.kind is FaultKind.NODE_DOWN:
            return fault.nodes
        return () if fault.kind in PHYSICAL else self._processes.hit_by(fault)


def _is_up_between(fault: Fault, now_ns: int) -> bool:
    """Return whether the link of a ``link_flap`` is to be up at *now_ns*: in the second half of each period."""
    return bool((now_ns - fault.at_ns) // (fault.period_ns // 2) % 2)
