"""What numbered datagrams tell: the gaps each flow saw, by loss and by time, what came twice or out of order.

Rule 1: arrays in, values out; nothing here knows how the datagrams were sent, or why some are missing.
Rule 2: two ways to measure a gap, lost packets and time between arrivals, and where they disagree the flow is flagged, not averaged.
Source: RFC 6412 and RFC 6413 (packet-loss and timestamp-based convergence time), RFC 5236 for reordering.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Gap:
    """
    A run of lost datagrams of one flow.

    Args:
        first_lost, lost: Number of the first lost datagram, and how many were lost in a row.
        from_ns, to_ns: When the first lost one was sent, and the first one after the gap that arrived; sender's clock.
        between_arrivals_ns: From the last arrival before to the first after; -1 if there was none on one side.
        is_open: Nothing arrived after it: the flow had not recovered when the probing ended.
    """

    first_lost: int
    lost: int
    from_ns: int
    to_ns: int
    between_arrivals_ns: int
    is_open: bool

    @property
    def by_loss_ns(self) -> int:
        """How long the flow was without service, as the sender counts it."""
        return self.to_ns - self.from_ns


@dataclass(frozen=True, slots=True)
class FlowRecord:
    """
    What became of one flow's datagrams.

    Args:
        sent: How many were sent.
        gaps: Runs of lost ones, in order.
        duplicates: Arrivals of a number that had arrived before.
        reordered: Arrivals after a higher number.
        delay_min_ns, delay_median_ns, delay_max_ns: From sending to arrival; -1 if nothing arrived.
    """

    sent: int
    gaps: tuple[Gap, ...]
    duplicates: int
    reordered: int
    delay_min_ns: int
    delay_median_ns: int
    delay_max_ns: int

    @property
    def lost(self) -> int:
        """How many never arrived."""
        return sum(gap.lost for gap in self.gaps)


def outage_in(record: FlowRecord, from_ns: int, to_ns: int, interval_ns: int) -> tuple[Gap, bool] | None:
    """
    Return the longest gap that began in an interval of time, and whether the flow is to be flagged.

    Args:
        record: One flow.
        from_ns, to_ns: Sender's clock; a gap counts if its first lost datagram was sent in it.
        interval_ns: Between two datagrams.

    Returns:
        None if nothing was lost: the outage was under one interval. Flagged: the flow saw several gaps, or loss and time
        between arrivals differ by more than two intervals.
    """
    gaps = [gap for gap in record.gaps if from_ns <= gap.from_ns < to_ns]
    if not gaps:
        return None
    longest = max(gaps, key=lambda gap: (gap.lost, -gap.first_lost))
    differs = (
        longest.between_arrivals_ns >= 0 and abs(longest.between_arrivals_ns - longest.by_loss_ns) > 2 * interval_ns
    )
    return longest, len(gaps) > 1 or differs


def flow_records(
    flow_count: int, sent_at_ns: Numbers, flow: Numbers, number: Numbers, arrived_at_ns: Numbers
) -> list[FlowRecord]:
    """
    Return what became of each flow.

    Args:
        flow_count: Flows are 0 .. flow_count - 1; each sent one datagram at each of *sent_at_ns*.
        sent_at_ns: When datagram 0, 1, … was sent.
        flow, number, arrived_at_ns: One entry an arrival, in the order in which they were taken in.

    Cost: O(arrivals log arrivals).
    """
    # Arrivals of one flow come by one socket, so a stable sort keeps the order in which they came.
    order = np.argsort(flow, kind="stable")
    bounds = np.searchsorted(flow[order], np.arange(flow_count + 1))
    return [
        _record(sent_at_ns, number[part].astype(np.int64), arrived_at_ns[part])
        for part in (order[bounds[index] : bounds[index + 1]] for index in range(flow_count))
    ]


def _record(sent_at_ns: Numbers, number: Numbers, arrived_at_ns: Numbers) -> FlowRecord:
    sent = len(sent_at_ns)
    highest = np.maximum.accumulate(number) if len(number) else number
    reordered = int((number[1:] < highest[:-1]).sum())
    known, first = np.unique(number, return_index=True)
    duplicates = len(number) - len(known)
    arrived = np.zeros(sent, dtype=np.bool_)
    arrived[known] = True
    at_ns = np.full(sent, -1, dtype=np.int64)
    at_ns[known] = arrived_at_ns[first]
    edges = np.flatnonzero(np.diff(np.concatenate([[True], arrived, [True]]).astype(np.int8)))
    gaps = tuple(
        _gap(sent_at_ns, at_ns, int(start), int(stop)) for start, stop in zip(edges[::2], edges[1::2], strict=True)
    )
    delays = at_ns[known] - sent_at_ns[known]
    if not len(delays):
        return FlowRecord(sent, gaps, duplicates, reordered, -1, -1, -1)
    return FlowRecord(sent, gaps, duplicates, reordered, int(delays.min()), int(np.median(delays)), int(delays.max()))


def _gap(sent_at_ns: Numbers, at_ns: Numbers, start: int, stop: int) -> Gap:
    is_open = stop == len(sent_at_ns)
    to_ns = int(sent_at_ns[-1] if is_open else sent_at_ns[stop])
    between = -1 if is_open or start == 0 else int(at_ns[stop] - at_ns[start - 1])
    return Gap(start, stop - start, int(sent_at_ns[start]), to_ns, between, is_open)
