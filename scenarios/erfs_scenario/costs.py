"""Which fault cost what, and what would it have cost by nature? Outages in pieces, each with the fault it is owed to.

Rule 1: a piece is owed to the fault that began the outage until that ends, then to another one that holds the flow until the outage is over.
Rule 2: what lasts until the end of its fault is as long as the repair, and is taken to be so by nature; whatever is over before, or
comes after, takes as long as noticing and rerouting do, accelerated or not.
Rule 3: exact integers.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from erfs.units import PPM
from erfs_scenario.timeline import (
    CUT,
    CUT_BY_POLICY,
    Attribution,
    FaultTimes,
    FlowId,
    Outage,
    Segment,
    Timeline,
)

PATHLESS: Final = frozenset({CUT, CUT_BY_POLICY})


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of an outage."""

    start_ns: int
    end_ns: int
    fault: str | None
    """The one it is owed to; None before the first."""
    is_lasting: bool
    """Whether it would last as long as the repair."""


@dataclass(frozen=True, slots=True)
class Weight:
    """How much of a piece there would be by nature: times the first, through the second."""

    times: int = 1
    through: int = 1

    def of(self, amount: int) -> int:
        """Return so much of *amount*, rounded down."""
        return amount * self.times // self.through


class Owed:
    """
    The outages of a run in pieces.

    Args:
        timeline: The run.
        outages: Its outages, sorted to their causes.

    Cost: O(outages * faults on the way of a flow).
    """

    def __init__(self, timeline: Timeline, outages: Attribution) -> None:
        self._timeline = timeline
        self._owner: dict[int, FaultTimes] = {}
        """By the identity of an outage; of several faults the first."""
        for group in (outages.by_fault, outages.by_return, outages.bystanders):
            for fault in timeline.faults:
                for outage in group.get(fault.id, ()):
                    self._owner.setdefault(id(outage), fault)
        self._affecting: dict[FlowId, list[FaultTimes]] = {}
        for fault in sorted(timeline.faults, key=lambda one: (one.effective_at_ns or 0, one.id)):
            if fault.effective_at_ns is not None:
                for flow in fault.affected:
                    self._affecting.setdefault(flow, []).append(fault)

    def pieces_of(self, outage: Outage) -> Iterator[Piece]:
        """Yield the pieces of *outage*, in order and without gaps."""
        fault = self._owner.get(id(outage))
        at_ns = outage.start_ns
        if fault is None:
            yield Piece(at_ns, outage.end_ns, None, is_lasting=True)
            return
        while True:
            over_ns = self._end_of(fault)
            if at_ns < over_ns:
                until_ns = min(over_ns, outage.end_ns)
                yield Piece(at_ns, until_ns, fault.id, is_lasting=until_ns == over_ns)
                at_ns = until_ns
            if at_ns >= outage.end_ns:
                return
            holder = self._holder(outage, at_ns)
            if holder is None:
                yield Piece(at_ns, outage.end_ns, fault.id, is_lasting=False)
                return
            fault = holder

    def _holder(self, outage: Outage, at_ns: int) -> FaultTimes | None:
        """Return the latest fault in force at *at_ns* on the flow's way that the outage outlasts."""
        for fault in reversed(self._affecting.get(outage.flow, ())):
            begun_ns = fault.effective_at_ns
            if begun_ns is not None and begun_ns <= at_ns < self._end_of(fault) <= outage.end_ns:
                return fault
        return None

    def _end_of(self, fault: FaultTimes) -> int:
        return self._timeline.finished_ns if fault.ended_at_ns is None else fault.ended_at_ns


def weights_by_nature(timeline: Timeline) -> dict[str, tuple[Weight, Weight]] | str:
    """
    Return for each fault how much of its lasting pieces, and of the others, there would be without acceleration, or why that is unknown.

    With rates as they are in nature there is one event for as many as the acceleration. Its lasting pieces are as much longer as the
    repair, which for most is the acceleration again; the others are no longer. What the scenario states happens as stated.
    """
    accelerations = {use["name"]: int(use["acceleration"]) for use in timeline.header.get("rates", ())}
    if not accelerations:
        return "no fault was drawn at a rate"
    found: dict[str, tuple[Weight, Weight]] = {}
    for fault in timeline.faults:
        acceleration = accelerations.get(fault.id.partition("#")[0])
        if acceleration is None:
            found[fault.id] = Weight(), Weight()
            continue
        natural_ns = fault.plan.get("natural_ns")
        if natural_ns is None or fault.effective_at_ns is None or fault.ended_at_ns is None:
            return f'it is not known how long "{fault.id}" would last by nature: rates and repairs may be scaled unlike each other'
        lasted_ns = max(1, fault.ended_at_ns - fault.effective_at_ns)
        found[fault.id] = Weight(natural_ns, lasted_ns * acceleration), Weight(1, acceleration)
    return found


class Lost(NamedTuple):
    """What demands went without, in one unit of demands times time."""

    of_all: int = 0
    """The share not served."""
    with_path: int = 0
    """Of it, while there was a permitted path."""
    in_full: int = 0
    """The time with a permitted path in which not all was served, however little was missing."""


def lost_in(segments: Iterable[Segment], piece: Piece) -> Lost:
    """Return what *piece* costs each demand of its flow, in millionths times ns."""
    of_all = with_path = in_full = 0
    for segment in segments:
        shared_ns = min(segment.end_ns, piece.end_ns) - max(segment.start_ns, piece.start_ns)
        if shared_ns > 0:
            lost = (PPM - segment.served_ppm) * shared_ns
            of_all += lost
            if segment.cause not in PATHLESS:
                with_path += lost
                in_full += PPM * shared_ns
    return Lost(of_all, with_path, in_full)


def costs_by_fault(timeline: Timeline, outages: Attribution) -> dict[str, Lost]:
    """Return what each fault cost in demand-time, ns."""
    owed = Owed(timeline, outages)
    found: dict[str, Lost] = {}
    for outage in timeline.outages:
        demands = timeline.demands_of(outage.flow)
        for piece in owed.pieces_of(outage):
            if piece.fault is not None:
                more = lost_in(outage.segments, piece)
                known = found.get(piece.fault, Lost())
                found[piece.fault] = Lost(*(one + other * demands for one, other in zip(known, more, strict=True)))
    return {fault: Lost(*(one // PPM for one in lost)) for fault, lost in sorted(found.items())}


def down_by_fault(timeline: Timeline, outages: Attribution, demand_set: str) -> dict[str, int]:
    """Return how long each fault kept some demand of *demand_set* from being served in full; what several cover is the first's."""
    owed = Owed(timeline, outages)
    pieces = sorted(
        (piece.start_ns, piece.end_ns, piece.fault or "")
        for outage in timeline.outages
        if timeline.flow_weights[outage.flow].get(demand_set)
        for piece in owed.pieces_of(outage)
    )
    found: dict[str, int] = {}
    reached = 0
    for start_ns, end_ns, fault in pieces:
        if end_ns > reached:
            found[fault] = found.get(fault, 0) + end_ns - max(start_ns, reached)
            reached = end_ns
    return dict(sorted(found.items()))
