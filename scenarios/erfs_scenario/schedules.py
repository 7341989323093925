"""When does each fault of a scenario happen, and to what? Repetition, one after another, bursts, and chance at stated rates.

Rule 1: all chance is drawn here, before the run, from a stream for each fault and each rate: they don't disturb each other.
Rule 2: faults at stated times come first; what is drawn by a schedule or by chance passes over things that another fault holds
already, first come first served, and it is told which.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from erfs.fabric import Fabric
from erfs.faults import LINK_KINDS, NAMELESS_TARGETS, ONE_ENDED, Fault
from erfs.ids import LinkId, NodeId
from erfs.units import PPM
from erfs_scenario.fault_model import MONTH_NS, FaultRate
from erfs_scenario.schema import FaultPart, RandomFaults
from erfs_scenario.selectors import link_groups, node_groups

EVERYBODY: Final = "everybody's bus"

Group = tuple[tuple[LinkId, ...], tuple[NodeId, ...]]
"""Links and nodes that fail together; one of both is empty."""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A fault, or a part of it, that does not happen as another holds its target."""

    fault: str
    at_ns: int
    things: tuple[str, ...]
    by: str
    """The fault that holds the first of *things*."""

    def to_json(self) -> dict[str, Any]:
        """Return this as plain JSON values."""
        return {"fault": self.fault, "at_ns": self.at_ns, "things": list(self.things), "by": self.by}


@dataclass(frozen=True, slots=True)
class RateUse:
    """What a rate of the fault model came to in one plan: all that a projection to natural rates rests on."""

    name: str
    kind: str
    per_month_ppm: int
    """The natural rate of each thing, in millionths of an event a month of 730 h."""
    things: int
    acceleration: int
    from_ns: int
    until_ns: int
    """The span in which it happened, on the scenario's clock."""
    events: int
    """Drawn, those passed over included; a train of flaps is one."""
    faults: int
    stretched: int
    """Faults whose accelerated repair was too short and lasts the shortest allowed: their downtime is overstated."""
    cut: int
    """Faults that would have outlasted the span and end with it: their downtime is understated."""
    basis: str
    source: str

    @property
    def expected_events(self) -> float:
        """The mean of the Poisson number of events."""
        return self.per_month_ppm / PPM * self.things * self.acceleration * (self.until_ns - self.from_ns) / MONTH_NS

    def to_json(self) -> dict[str, Any]:
        """Return this as plain JSON values."""
        return {
            "name": self.name,
            "kind": self.kind,
            "per_month_ppm": self.per_month_ppm,
            "things": self.things,
            "acceleration": self.acceleration,
            "from_ns": self.from_ns,
            "until_ns": self.until_ns,
            "events": self.events,
            "expected_events": round(self.expected_events, 3),
            "faults": self.faults,
            "stretched": self.stretched,
            "cut": self.cut,
            "basis": self.basis,
            "source": self.source,
        }


def instants(part: FaultPart, duration_ns: int | None) -> tuple[int, ...]:
    """
    Return when *part* begins, once or again and again; only those that end within *duration_ns* where it says no times.

    Raises:
        AssertionError: neither times nor *duration_ns* bound what has every; the schema refuses that.
    """
    if part.every is None:
        return (part.at,)
    if part.times is not None:
        return tuple(part.at + index * part.every for index in range(part.times))
    assert duration_ns is not None
    length_ns = part.end_ns - part.at
    return tuple(range(part.at, duration_ns - length_ns + 1, part.every))


def one_by_one(fault: Fault, pause_ns: int) -> Iterator[Fault]:
    """Yield *fault* for each of its targets, in their order, each as long as *fault*, *pause_ns* after the one before it."""
    step_ns = fault.end_at_ns - fault.at_ns + pause_ns
    for index, single in enumerate(_singles(fault)):
        yield replace(single, at_ns=fault.at_ns + index * step_ns, end_at_ns=fault.end_at_ns + index * step_ns)


def spread_out(fault: Fault, spread_ns: int, rng: random.Random) -> Iterator[Fault]:
    """Yield *fault* for each of its targets, beginning within *spread_ns* of it and ending with it."""
    for single in _singles(fault):
        yield replace(single, at_ns=fault.at_ns + rng.randrange(spread_ns + 1))


def _singles(fault: Fault) -> Iterator[Fault]:
    ends = fault.ends or (None,) * len(fault.links)
    for index, (link, end) in enumerate(zip(fault.links, ends, strict=True), start=1):
        yield replace(fault, id=f"{fault.id}#{index}", links=(link,), ends=() if end is None else (end,))
    for index, node in enumerate(fault.nodes, start=1):
        yield replace(fault, id=f"{fault.id}#{index}", nodes=(node,))


def draw_faults(
    name: str,
    rate: FaultRate,
    part: RandomFaults,
    fabric: Fabric,
    zero_ns: int,
    until_ns: int,
    rng: random.Random,
    *,
    count_max: int,
) -> tuple[list[Fault], RateUse]:
    """
    Draw the faults of one rate: a Poisson process over its things, each drawn evenly.

    Args:
        name: Of the rate; the faults are called NAME#n.
        rate: How often, how long.
        part: The acceleration, which scales both alike, and the shortest repair.
        fabric: What it happens to.
        zero_ns, until_ns: From the start of the run: where the scenario's clock begins, and by when every fault is over.
        rng: Draws everything.
        count_max: Give up beyond this; the caller refuses more faults than that.

    Returns:
        The faults in order of their events, and what the rate came to.

    Raises:
        Misfit: the fabric has no such things.

    Cost: O(things + faults).
    """
    groups = groups_of(rate, fabric)
    per_month = part.per_month.get(name, rate.per_month_ppm)
    begin_ns = zero_ns + part.from_
    per_ns = per_month / PPM * part.acceleration * len(groups) / MONTH_NS
    found: list[Fault] = []
    events = stretched = cut = 0
    at_ns = begin_ns
    while per_ns and len(found) <= count_max:
        at_ns += 1 + int(rng.expovariate(per_ns))
        if at_ns >= until_ns:
            break
        events += 1
        links, nodes = rng.choice(groups)
        ends = tuple(rng.choice(fabric.links[link].ends) for link in links) if rate.kind in ONE_ENDED else ()
        loss_ppm = rate.draw_loss_ppm(rng)
        train = rate.train
        start_ns = at_ns
        for _ in range(1 if train is None else rng.randint(train.low, train.high)):
            natural_ns = rate.draw_duration(rng)
            scaled_ns = natural_ns // part.acceleration
            lasting_ns = max(scaled_ns, part.shortest)
            if start_ns >= until_ns:
                break
            end_ns = min(start_ns + lasting_ns, until_ns)
            stretched += scaled_ns < part.shortest
            cut += start_ns + lasting_ns > until_ns
            fault_id = f"{name}#{len(found) + 1}"
            found.append(
                Fault(fault_id, rate.kind, start_ns, end_ns, links, nodes, ends, loss_ppm, natural_ns=natural_ns)
            )
            gap_ns = 0 if train is None else int(rng.expovariate(part.acceleration / train.gap))
            # As long up as the shortest repair at least: a gap of nothing would be no flap.
            start_ns = end_ns + max(gap_ns, part.shortest)
    use = RateUse(
        name,
        rate.kind.value,
        per_month,
        len(groups),
        part.acceleration,
        part.from_,
        until_ns - zero_ns,
        events,
        len(found),
        stretched,
        cut,
        rate.basis,
        rate.source,
    )
    return found, use


def groups_of(rate: FaultRate, fabric: Fabric) -> Sequence[Group]:
    """Return the things that fail at *rate*, each with what fails along with it."""
    if rate.target is None:
        return [((), ())]
    if rate.kind in LINK_KINDS:
        return [(links, ()) for links in link_groups(fabric, rate.target)]
    return [((), nodes) for nodes in node_groups(fabric, rate.target)]


def held_by(fault: Fault) -> tuple[str, ...]:
    """Return what *fault* breaks and mends: its links, its nodes, or the one thing there is of its kind."""
    if fault.kind in NAMELESS_TARGETS:
        return (NAMELESS_TARGETS[fault.kind],)
    return (*fault.links, *fault.nodes) or (EVERYBODY,)


def pass_over(stated: Iterable[Fault], drawn: Iterable[Fault]) -> tuple[list[Fault], list[PassedOver]]:
    """
    Take from the faults *drawn* what another fault holds at the same time.

    All *stated* ones happen, even those that overlap each other: a simulated thing comes back when the last one lets go. Of the
    drawn ones, the earlier goes first, ties by identity. A fault on several things happens to those that are free.

    Returns:
        What happens, stated and drawn, by instant and identity; and what does not.

    Cost: O(faults * faults on one thing).
    """
    intervals: dict[str, list[tuple[int, int, str]]] = {}

    def hold(fault: Fault, things: Iterable[str]) -> None:
        for thing in things:
            intervals.setdefault(thing, []).append((fault.at_ns, fault.end_at_ns, fault.id))

    happening = list(stated)
    for fault in happening:
        hold(fault, held_by(fault))
    passed = []
    for fault in sorted(drawn, key=by_instant):
        holders: dict[str, str] = {}
        for thing in held_by(fault):
            for at_ns, end_ns, holder in reversed(intervals.get(thing, ())):
                if at_ns < fault.end_at_ns and fault.at_ns < end_ns:
                    holders[thing] = holder
                    break
        if holders:
            passed.append(PassedOver(fault.id, fault.at_ns, tuple(holders), next(iter(holders.values()))))
            free = _without(fault, holders.__contains__)
            if free is None:
                continue
            fault = free
        hold(fault, held_by(fault))
        happening.append(fault)
    return sorted(happening, key=by_instant), passed


def by_instant(fault: Fault) -> tuple[int, str, int]:
    """Return what faults are sorted by: when, the name, and among several of one name the number."""
    name, _, number = fault.id.partition("#")
    return fault.at_ns, name, int(number or 0)


def _without(fault: Fault, is_held: Callable[[str], bool]) -> Fault | None:
    kept = [index for index, link in enumerate(fault.links) if not is_held(link)]
    nodes = tuple(node for node in fault.nodes if not is_held(node))
    if not kept and not nodes:
        return None
    return replace(
        fault,
        links=tuple(fault.links[index] for index in kept),
        ends=tuple(fault.ends[index] for index in kept) if fault.ends else (),
        nodes=nodes,
    )
