"""What breaks, in which order, and what did it do to the flows? One trial at a time, the same for every system.

Rule 1: which link breaks in trial i of a fault follows from the seed alone; no system gets an easier one.
Rule 2: which flows a fault affects is asked of the kernels before it; what became of them is the prober's word.
Rule 3: a fault that did not happen as asked is an error, never a fast recovery.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.recovery_systems import System
from erfs.fabric import Fabric, Link, LinkEnd, goes_up
from erfs.ids import LinkId, NodeId
from erfs.units import MS, SECOND
from erfs_scenario.demands import DemandSet
from erfs_scenario.kernel.breakages import Breakage, PortsDown
from erfs_scenario.kernel.flows import choose_flows
from erfs_scenario.kernel.losses import effective_at
from erfs_scenario.kernel.outages import FlowRecord, outage_in
from erfs_scenario.kernel.probing import Notes, Probing
from erfs_scenario.kernel.spaces import LabError, Spaces
from erfs_scenario.kernel.tracing import Flow, Trace, trace

LINK_DOWN: Final = "link down"
SILENT: Final = "silent drop"
ONE_WAY: Final = "one-way drop"
ISOLATED: Final = "switch isolated"
SECOND_FAILURE: Final = "second failure"
FIRST_OF_TWO: Final = "first of two"
"""What a trial of a second failure measures on its way."""
FAULTS: Final = (LINK_DOWN, SILENT, ONE_WAY, ISOLATED, SECOND_FAILURE)
MANY: Final = frozenset({LINK_DOWN, SILENT})
"""Faults that are tried often enough for a 95th percentile."""
LIVENESS_FAULTS: Final = frozenset({SILENT, ONE_WAY, ISOLATED})
"""Those in which no carrier is lost."""

_LEAD_NS: Final = 300 * MS
_SECOND_AFTER_NS: Final = 1 * SECOND
# Flows that have not recovered by then are censored. FRR has needed 3.6 s for a switch and 5 s for a second failure.
_WINDOW_NS: Final = {
    LINK_DOWN: SECOND,
    SILENT: SECOND,
    ONE_WAY: SECOND,
    ISOLATED: 4 * SECOND,
    SECOND_FAILURE: 6 * SECOND,
}
_WINDOW_DEAF_NS: Final = 500 * MS
_EFFECT_S: Final = 1.0


class DisturbedError(LabError):
    """Something happened before the fault, or instead of it: the trial says nothing and is to be made again."""


# --- what breaks -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Break:
    """
    One thing that breaks.

    Args:
        down: Ports set admin down; their far ends lose the carrier.
        deaf, mute: Ports of one node that drop what arrives, and what is sent.
        links: What is broken, for people.
    """

    down: tuple[LinkEnd, ...] = ()
    deaf: tuple[LinkEnd, ...] = ()
    mute: tuple[LinkEnd, ...] = ()
    links: tuple[LinkId, ...] = ()


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial: *first*, and after a second *then*, if there is one."""

    fault: str
    index: int
    first: Break
    then: Break | None = None


def trials_of(fabric: Fabric, watched: Sequence[Link], fault: str, count: int, seed: int) -> tuple[Trial, ...]:
    """
    Return the trials of a fault, in turns over the *watched* links and the switches that have only such.

    Of a cable one end is set down, drawn. A one-way drop takes the way down, where only nodes further up the path can repair it.
    A second failure hits another uplink of the pod in which the first one took one of an edge switch's two, so that what fled
    from the first meets the second.
    """
    rng = Random(f"{seed}/{fault}")
    found = []
    for index, (link_id, node) in enumerate(_in_turns(_places(fabric, watched, fault), rng, count)):
        then = None
        if fault == ISOLATED:
            ends = tuple(link.end_at(node) for link in fabric.links_of[node])
            first = Break(deaf=ends, mute=ends, links=tuple(link.id for link in fabric.links_of[node]))
        else:
            link = fabric.links[link_id]
            end = rng.choice(link.ends)
            if fault == SILENT:
                first = Break(deaf=(end,), mute=(end,), links=(link_id,))
            elif fault == ONE_WAY:
                first = Break(deaf=(_lower(fabric, link_id),), links=(link_id,))
            else:
                first = Break(down=(end,), links=(link_id,))
            if fault == SECOND_FAILURE:
                edge, aggregation = _lower(fabric, link_id).node, _upper(fabric, link_id).node
                others = [
                    up
                    for beside in fabric.links_of[edge]
                    if fabric.is_trunk(beside) and beside.far_end(edge).node != aggregation
                    for up in fabric.links_of[beside.far_end(edge).node]
                    if goes_up(fabric, up, beside.far_end(edge).node)
                ]
                other = rng.choice(others)
                then = Break(down=(rng.choice(other.ends),), links=(other.id,))
        found.append(Trial(fault, index, first, then))
    return tuple(found)


def _places(fabric: Fabric, watched: Sequence[Link], fault: str) -> list[tuple[LinkId, NodeId]]:
    """Return where a fault can be: (link, "") or ("", switch)."""
    edges = {switch for switches in fabric.attachments.values() for switch in switches}
    if fault == ISOLATED:
        nodes = sorted({end.node for link in watched for end in link.ends})
        whole = [node for node in nodes if all(link in watched for link in fabric.links_of[node])]
        return [(LinkId(""), node) for node in whole]
    links = [link for link in watched if fault != SECOND_FAILURE or edges & {end.node for end in link.ends}]
    return [(link.id, NodeId("")) for link in links]


def _lower(fabric: Fabric, link_id: LinkId) -> LinkEnd:
    link = fabric.links[link_id]
    return link.a if goes_up(fabric, link, link.a.node) else link.b


def _upper(fabric: Fabric, link_id: LinkId) -> LinkEnd:
    link = fabric.links[link_id]
    return link.b if goes_up(fabric, link, link.a.node) else link.a


def _in_turns(places: Sequence[tuple[LinkId, NodeId]], rng: Random, count: int) -> Iterator[tuple[LinkId, NodeId]]:
    left: list[tuple[LinkId, NodeId]] = []
    for _ in range(count):
        if not left:
            left = list(places)
            rng.shuffle(left)
        yield left.pop()


def sending_ends(fabric: Fabric, what: Break) -> frozenset[LinkEnd]:
    """Return the ports whose packets are lost."""

    def far(end: LinkEnd) -> LinkEnd:
        return fabric.link_at[end].other_end(end)

    return frozenset([*what.down, *(far(end) for end in what.down), *what.mute, *(far(end) for end in what.deaf)])


class Dropping:
    """
    Ports of one node that drop what arrives or is sent: one transaction of one namespace, so that all begins at one instant.

    Args:
        spaces: Where.
        what: Which ports.
    """

    def __init__(self, spaces: Spaces, what: Break) -> None:
        (self._node,) = {end.node for end in (*what.deaf, *what.mute)}
        self._spaces = spaces
        self._chains = [("ingress", spaces.device(end)) for end in what.deaf]
        self._chains += [("egress", spaces.device(end)) for end in what.mute]

    async def begin(self) -> None:
        """Drop."""
        chains = "".join(
            f' chain c{place} {{ type filter hook {hook} device "{device}" priority 0; policy accept; counter drop; }}\n'
            for place, (hook, device) in enumerate(self._chains)
        )
        self._spaces.run(self._node, ("nft", "-f", "-"), f"table netdev dropping {{\n{chains}}}\n")

    async def end(self) -> None:
        """Let everything through."""
        self._spaces.run(self._node, ("nft", "delete", "table", "netdev", "dropping"))

    def is_in_effect(self) -> bool:
        """Return whether all is there, and something has been dropped wherever something can have arrived."""
        text = self._spaces.run(self._node, ("nft", "-j", "list", "table", "netdev", "dropping"))
        # A node that hears nothing has nothing to send but its own; so only what arrives is asked for.
        deaf = {f"c{place}" for place, (hook, _) in enumerate(self._chains) if hook == "ingress"}
        dropped = {
            rule["chain"]: part["counter"]["packets"]
            for item in json.loads(text)["nftables"]
            if (rule := item.get("rule"))
            for part in rule["expr"]
            if "counter" in part
        }
        return len(dropped) == len(self._chains) and all(dropped[chain] for chain in deaf)

    def is_over(self) -> bool:
        """Return whether no table is left."""
        return not self._spaces.run(self._node, ("nft", "list", "tables"))


def breakage_of(spaces: Spaces, what: Break) -> Breakage:
    """Return how to do it."""
    return PortsDown(spaces, what.down) if what.down else Dropping(spaces, what)


# --- what it did -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Side:
    """
    What became of the affected flows of one side, in one trial.

    Args:
        flows: How many there are.
        last_ms: From the fault's effect until the last of them got through for good; None: one did not within the window.
        largest_ms, median_ms: Of the outages of the single flows, each the longest run of lost datagrams; one that lost nothing
            counts as 0, one that did not recover with what was seen of its outage.
        censored: How many did not recover within the window.
        several: How many saw several gaps, or a gap by loss and one by time that differ by more than two intervals.
    """

    flows: int
    last_ms: float | None
    largest_ms: float
    median_ms: float
    censored: int
    several: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What one fault of a trial did.

    Args:
        system, fault, index: Of which trial.
        links: What broke.
        far, near: Flows that the node in front of the fault cannot send another way, and flows that it can.
        flows: Flows sent, affected or not.
        beside_lost: Datagrams that flows lost which the fault does not affect.
        call_ms: How long the call took that broke it.
        late_p99_ms, late_max_ms, prober_percent: The prober's own lateness and share of a core.
        window_ms: How long was looked.
    """

    system: str
    fault: str
    index: int
    links: tuple[str, ...]
    far: Side | None
    near: Side | None
    flows: int
    beside_lost: int
    call_ms: float
    late_p99_ms: float
    late_max_ms: float
    prober_percent: float
    window_ms: float

    def line(self) -> dict[str, Any]:
        """Return it as it is written down."""
        return asdict(self)


@dataclass(slots=True)
class _Shot:
    """One fault as it happened."""

    fault: str
    what: Break
    traces: Sequence[Trace]
    begun_ns: int = 0
    done_ns: int = 0
    until_ns: int = 0


async def run_trial(system: System, trial: Trial, folder: Path, seed: int, not_before_s: float) -> list[Outcome]:
    """
    Run one trial on a system at rest; everything is mended when this returns, but the system need not be at rest.

    The fault comes at *not_before_s* (time.monotonic()) at the earliest.

    Raises:
        DisturbedError: flows lost something before the fault, or it hit nothing.
        LabError: the prober failed.
    """
    spaces = system.spaces
    harmed = [sending_ends(spaces.fabric, what) for what in (trial.first, trial.then) if what is not None]
    hosts = tuple(host.id for host in spaces.fabric.endpoints)
    ways: dict[Flow, Trace] = {}

    def traced(flows: Sequence[Flow]) -> list[Trace]:
        found = trace(spaces, flows, 4)
        ways.update(zip(flows, found, strict=True))
        return found

    chosen = choose_flows(
        [DemandSet("all", endpoints=hosts)],
        {str(place): ends for place, ends in enumerate(harmed)},
        traced,
        Random(f"{seed}/{trial.fault}/{trial.index}/flows"),
    )
    probing = Probing(spaces, chosen.flows, folder)
    broken: list[Breakage] = []
    shots = []
    try:
        await probing.start()
        await asyncio.sleep(max(_LEAD_NS / SECOND, not_before_s - time.monotonic()))
        first = _Shot(FIRST_OF_TWO if trial.then else trial.fault, trial.first, [ways[flow] for flow in chosen.flows])
        shots.append(first)
        await _break(spaces, first, broken)
        if trial.then is not None:
            # Most of the second goes by before the ways are asked: what is armed for the first has long been carried out.
            await _until(first.begun_ns + _SECOND_AFTER_NS // 2)
            then = _Shot(trial.fault, trial.then, trace(spaces, chosen.flows, 4))
            await _until(first.begun_ns + _SECOND_AFTER_NS)
            # What is under way when the second one comes is lost to that.
            first.until_ns = time.monotonic_ns() - 2 * MS
            shots.append(then)
            await _break(spaces, then, broken)
        window_ns = window_of(system, trial.fault)
        await _until(shots[-1].done_ns + window_ns)
        shots[-1].until_ns = time.monotonic_ns()
        await _in_effect(broken)
        notes = await probing.stop()
    finally:
        await probing.abandon()
        for breakage in reversed(broken):
            await breakage.end()
    lost = sum(gap.lost for record in notes.flows for gap in record.gaps if gap.from_ns < first.begun_ns - 2 * MS)
    if lost:
        raise DisturbedError(f"{lost} datagrams were lost before the fault")
    return [_outcome(system, trial, shot, chosen.flows, notes) for shot in shots]


def window_of(system: System, fault: str) -> int:
    """Return how long flows are given to recover: a system that cannot notice is not waited for."""
    return _WINDOW_NS[fault] if has_chance(system, fault) else _WINDOW_DEAF_NS


def has_chance(system: System, fault: str) -> bool:
    """Return whether a system can notice a fault, and do something about it."""
    return system.repairs and (system.hears_silence or fault not in LIVENESS_FAULTS)


async def _break(spaces: Spaces, shot: _Shot, broken: list[Breakage]) -> None:
    breakage = breakage_of(spaces, shot.what)
    broken.append(breakage)
    shot.begun_ns = time.monotonic_ns()
    await breakage.begin()
    shot.done_ns = time.monotonic_ns()


async def _in_effect(broken: Sequence[Breakage]) -> None:
    deadline_s = time.monotonic() + _EFFECT_S
    while not all(breakage.is_in_effect() for breakage in broken):
        if time.monotonic() > deadline_s:
            raise DisturbedError("the fault hit nothing: flows had gone elsewhere by themselves")
        await asyncio.sleep(0.05)


async def _until(at_ns: int) -> None:
    left_ns = at_ns - time.monotonic_ns()
    if left_ns > 0:
        await asyncio.sleep(left_ns / SECOND)


def _outcome(system: System, trial: Trial, shot: _Shot, flows: Sequence[Flow], notes: Notes) -> Outcome:
    fabric = system.spaces.fabric
    ends = sending_ends(fabric, shot.what)
    sides = [way.side(ends) for way in shot.traces]
    far, near = ([index for index, found in enumerate(sides) if found == name] for name in ("far", "near"))
    affected = {*far, *near}
    records = notes.flows
    effective_ns = effective_at(
        shot.begun_ns, shot.done_ns, [records[index] for index in sorted(affected)], notes.sent_at_ns
    )
    if effective_ns is None:
        effective_ns = shot.done_ns

    def side(indices: Sequence[int]) -> Side | None:
        return _side([_fate(records[index], effective_ns, shot.until_ns, notes.interval_ns) for index in indices])

    return Outcome(
        system=system.name,
        fault=shot.fault,
        index=trial.index,
        links=tuple(map(str, shot.what.links)),
        far=side(far),
        near=side(near),
        flows=len(flows),
        beside_lost=sum(
            gap.lost
            for index, record in enumerate(records)
            if index not in affected
            for gap in record.gaps
            if effective_ns <= gap.from_ns < shot.until_ns
        ),
        call_ms=(shot.done_ns - shot.begun_ns) / MS,
        late_p99_ms=notes.late_p99_ns / MS,
        late_max_ms=notes.late_max_ns / MS,
        prober_percent=notes.cpu_ppm / 1e4,
        window_ms=(shot.until_ns - shot.done_ns) / MS,
    )


@dataclass(frozen=True, slots=True)
class _Fate:
    """What became of one flow: its outage, when it got through for good after the effect, whether it did, whether it is flagged."""

    outage_ns: int
    last_ns: int
    is_censored: bool
    is_flagged: bool


def _fate(record: FlowRecord, effective_ns: int, until_ns: int, interval_ns: int) -> _Fate:
    # What was under way when the fault took effect was sent up to an interval before.
    from_ns = effective_ns - interval_ns
    found = outage_in(record, from_ns, until_ns, interval_ns)
    if found is None:
        return _Fate(0, 0, False, False)
    gaps = [gap for gap in record.gaps if from_ns <= gap.from_ns < until_ns]
    is_censored = any(gap.is_open or gap.to_ns > until_ns for gap in gaps)
    return _Fate(
        outage_ns=min(found[0].to_ns, until_ns) - found[0].from_ns,
        last_ns=min(max(gap.to_ns for gap in gaps), until_ns) - effective_ns,
        is_censored=is_censored,
        is_flagged=found[1],
    )


def _side(fates: Sequence[_Fate]) -> Side | None:
    if not fates:
        return None
    censored = sum(fate.is_censored for fate in fates)
    outages = [fate.outage_ns for fate in fates]
    return Side(
        flows=len(fates),
        last_ms=None if censored else max(fate.last_ns for fate in fates) / MS,
        largest_ms=max(outages) / MS,
        median_ms=statistics.median(outages) / MS,
        censored=censored,
        several=sum(fate.is_flagged for fate in fates),
    )
