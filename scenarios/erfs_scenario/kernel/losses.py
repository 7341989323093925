"""What the journal says of measured flows: from the gaps that each saw to shares of service with a cause.

Rule 1: a gap is a fact of the prober; its cause is a question to the physical truth alone: was there a way that policy permits?
Rule 2: pure: arrays and instants in, journal lines out.
"""

import bisect
import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from erfs.fabric import Fabric
from erfs.faults import Fault, FaultKind
from erfs.ids import LinkId
from erfs.units import MS, PPM
from erfs_scenario.dataplane import DataPlane
from erfs_scenario.kernel.outages import FlowRecord, Numbers
from erfs_scenario.kernel.tracing import Flow
from erfs_scenario.permitted import Permission
from erfs_scenario.timeline import SERVED

FIRST_LOSS_NS: Final = 100 * MS
"""A silent fault is there once the call returned; its first victim comes by within an interval, on a busy machine too."""
_HARMLESS: Final = frozenset({FaultKind.PACKET_LOSS, FaultKind.RATE_LIMIT, FaultKind.DRAIN})
"""What they hit still carries something, or could."""
Line = tuple[int, str, dict[str, object]]
"""(at_ns, event, fields), as `Record` takes them."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A fault that began or ended, at an instant of the probes' clock."""

    at_ns: int
    fault: Fault
    is_begin: bool
    links: tuple[LinkId, ...]
    """The links it hits."""


def flow_id(flow: Flow) -> tuple[str, str]:
    """Return the names of a flow's ends in the journal."""
    return str(flow.source), f"{flow.target} udp {flow.source_port}"


def flow_lines(
    fabric: Fabric,
    flows: Sequence[Flow],
    sets: Sequence[str],
    records: Sequence[FlowRecord],
    occurrences: Iterable[Occurrence],
    interval_ns: int,
) -> list[Line]:
    """
    Return the ``flow_changed`` lines of a run.

    Args:
        fabric: As built.
        flows, sets, records: Each flow, its demand set, and what became of it.
        occurrences: What broke and was mended, in order of time.
        interval_ns: Of the probes. The datagrams of a tick leave one after the other and take their time: what was sent in the tick
            before an occurrence and lost was lost by it.

    Returns:
        In order of time. A gap begins when its first lost datagram was sent and ends when the first one after it was; if what is
        possible changes meanwhile there is a line for that, too.

    Cost: O(gaps + occurrences * open gaps).
    """
    truth = _Truth(fabric)
    pending = sorted(occurrences, key=lambda one: one.at_ns)
    instants = [one.at_ns for one in pending]

    def begun(from_ns: int) -> int:
        after = bisect.bisect_left(instants, from_ns)
        return instants[after] if after < len(instants) and instants[after] - from_ns <= interval_ns else from_ns

    starts = sorted(
        (begun(gap.from_ns), index, gap.to_ns, gap.is_open)
        for index, record in enumerate(records)
        for gap in record.gaps
    )
    lines: list[Line] = []
    open_flows: dict[int, str] = {}
    ends: list[tuple[int, int]] = []

    def say(at_ns: int, index: int, cause: str) -> None:
        source, target = flow_id(flows[index])
        fields: dict[str, object] = {
            "source": source,
            "destination": target,
            "served_ppm": PPM if cause == SERVED else 0,
            "cause": cause,
            "weights": {sets[index]: 1},
        }
        lines.append((at_ns, "flow_changed", fields))

    def until(at_ns: int) -> None:
        while ends and ends[0][0] <= at_ns:
            ended_ns, index = heapq.heappop(ends)
            del open_flows[index]
            say(ended_ns, index, SERVED)

    def take(occurrence: Occurrence) -> None:
        until(occurrence.at_ns)
        truth.take(occurrence)
        for index, before in open_flows.items():
            cause = truth.cause(flows[index])
            if cause != before:
                open_flows[index] = cause
                say(occurrence.at_ns, index, cause)

    for from_ns, index, to_ns, is_open in starts:
        while pending and pending[0].at_ns <= from_ns:
            take(pending.pop(0))
        until(from_ns)
        open_flows[index] = truth.cause(flows[index])
        say(from_ns, index, open_flows[index])
        if not is_open:
            heapq.heappush(ends, (to_ns, index))
    for occurrence in pending:
        take(occurrence)
    while ends:
        until(ends[0][0])
    return lines


def effective_at(
    fault_begun_ns: int,
    fault_done_ns: int,
    affected: Sequence[FlowRecord],
    sent_at_ns: Numbers,
    within_ns: int = FIRST_LOSS_NS,
) -> int | None:
    """
    Return when a silent fault took effect: the last tick whose datagrams all got through, of those flows that it harms.

    Args:
        fault_begun_ns, fault_done_ns: Around the calls that made it.
        affected: What became of the flows that it harms.
        sent_at_ns: When each tick's datagrams were sent.
        within_ns: How long after *fault_done_ns* the first loss counts.

    Returns:
        Not before *fault_begun_ns*; None if nothing was lost.
    """
    first = min(
        (
            gap.first_lost
            for record in affected
            for gap in record.gaps
            if fault_begun_ns <= gap.from_ns <= fault_done_ns + within_ns
        ),
        default=None,
    )
    if first is None:
        return None
    return max(fault_begun_ns, int(sent_at_ns[max(0, first - 1)]))


class _Truth:
    """What works, whatever the tables say."""

    def __init__(self, fabric: Fabric) -> None:
        self._plane = DataPlane(fabric)
        self._permission = Permission(self._plane)
        self._cuts: Counter[LinkId] = Counter()

    def take(self, occurrence: Occurrence) -> None:
        if occurrence.fault.kind in _HARMLESS:
            return
        for link in occurrence.links:
            self._cuts[link] += 1 if occurrence.is_begin else -1
            self._plane.set_link(link, self._cuts[link] <= 0)

    def cause(self, flow: Flow) -> str:
        return self._permission.cause(flow.source, flow.target)
