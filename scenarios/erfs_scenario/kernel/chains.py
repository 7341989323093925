"""How did each flow come back? From the fault taking effect to the first datagram through, link by link of one chain.

    effective -> detected -> fact received at the node that repairs it -> its kernel acknowledged -> first datagram through

Rule 1: a flow is repaired by a node of its old way that had another choice, with the last change it made for this failure before the
flow got through: several links that fail together take several changes, and until the last one datagrams still go where they are lost.
Rule 2: pure; what agents say is held against what the prober saw, and the difference is told, not smoothed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from erfs.fabric import LinkEnd
from erfs.ids import NodeId
from erfs_scenario.kernel.outages import FlowRecord, outage_in
from erfs_scenario.kernel.tracing import Trace


@dataclass(frozen=True, slots=True)
class Said:
    """What an agent noted: *at_ns* on the probes' clock, *of* the links and nodes it speaks of."""

    at_ns: int
    event: str
    node: NodeId
    of: frozenset[str]


@dataclass(frozen=True, slots=True)
class Chain:
    """
    The instants of one flow's repair, on the probes' clock.

    Args:
        flow: Its index.
        node: Who repaired it.
        effective_ns, detected_ns: Of the fault.
        fact_ns: When the node read of it; None if it saw it itself.
        acknowledged_ns: When its kernel had taken the change.
        through_ns: When the first datagram that got through was sent.
    """

    flow: int
    node: NodeId
    effective_ns: int
    detected_ns: int
    fact_ns: int | None
    acknowledged_ns: int
    through_ns: int

    @property
    def rest_ns(self) -> int:
        """What the chain leaves unexplained: from the acknowledgement to the first datagram through."""
        return self.through_ns - self.acknowledged_ns


def said(marks: Iterable[tuple[int, str, Mapping[str, object]]]) -> list[Said]:
    """Return those of the agents' *marks* (at_ns, event, fields) that chains are made of, in order of time."""
    found = []
    for at_ns, event, fields in marks:
        if event in ("port_down_detected", "fact_received") and fields.get("down", True):
            of = frozenset({str(fields.get("link"))})
        elif event == "change_acknowledged":
            failures = fields.get("failures") or ()
            assert isinstance(failures, Sequence)
            of = frozenset(map(str, failures))
        else:
            continue
        found.append(Said(at_ns, event, NodeId(str(fields["node"])), of))
    return sorted(found, key=lambda one: one.at_ns)


def chains(
    affected: Mapping[int, Trace],
    harmed: frozenset[LinkEnd],
    records: Sequence[FlowRecord],
    said: Sequence[Said],
    *,
    failed: frozenset[str],
    effective_ns: int,
    until_ns: int,
    interval_ns: int,
) -> list[Chain]:
    """
    Return the chain of each affected flow that lost something and came back by an agent's change.

    Args:
        affected: The way of each affected flow before the fault, by its index.
        harmed: The ports whose packets the fault harms.
        records: What became of all flows.
        said: `said` of the agents' marks.
        failed: The links and nodes that the fault takes away.
        effective_ns, until_ns: When the fault took effect and ended, on the probes' clock.
        interval_ns: Of the probes.

    Returns:
        In order of flows. A flow that came back before anybody on its way acknowledged a change has no chain: the kernel alone,
        or what it had been armed with, repaired it.

    Cost: O(flows * marks of this fault).
    """
    during = [one for one in said if effective_ns <= one.at_ns < until_ns and one.of & failed]
    detected_ns = min((one.at_ns for one in during if one.event == "port_down_detected"), default=None)
    if detected_ns is None:
        return []
    found = []
    for index, way in sorted(affected.items()):
        outage = outage_in(records[index], effective_ns - 2 * interval_ns, until_ns, interval_ns)
        if outage is None or outage[0].is_open:
            continue
        able = set()
        for hop in way.hops:
            if hop.others - harmed:
                able.add(hop.end.node)
            if hop.end in harmed:
                break
        before = [one for one in during if one.at_ns <= outage[0].to_ns + interval_ns and one.node in able]
        changed = next((one for one in reversed(before) if one.event == "change_acknowledged"), None)
        if changed is None:
            continue
        told = next(
            (
                one
                for one in reversed(before)
                if one.at_ns <= changed.at_ns
                and one.node == changed.node
                and one.event in ("fact_received", "port_down_detected")
            ),
            None,
        )
        found.append(
            Chain(
                index,
                changed.node,
                effective_ns,
                detected_ns,
                told.at_ns if told is not None and told.event == "fact_received" else None,
                changed.at_ns,
                outage[0].to_ns,
            )
        )
    return found
