"""Numbered datagrams tell how long each flow was without service."""

import numpy as np

from erfs_scenario.kernel.outages import FlowRecord, Gap, flow_records, outage_in

MS = 1_000_000
DELAY = MS // 10


def records(arrivals: list[list[int]], sent: int, *, sent_at: list[int] | None = None) -> list[FlowRecord]:
    """Return the records of flows of which the listed numbers arrived, in this order, 0.1 ms after they were sent, 1 ms apart."""
    sent_at_ns = np.array([MS * at for at in (sent_at or range(sent))], dtype=np.int64)
    flow = np.array([index for index, numbers in enumerate(arrivals) for _ in numbers], dtype=np.int64)
    number = np.array([number for numbers in arrivals for number in numbers], dtype=np.int64)
    return flow_records(len(arrivals), sent_at_ns, flow, number, sent_at_ns[number] + DELAY)


def test_a_flow_that_lost_nothing_has_no_gap() -> None:
    [record] = records([[0, 1, 2, 3]], 4)
    assert record == FlowRecord(4, (), 0, 0, DELAY, DELAY, DELAY)
    assert outage_in(record, 0, 4 * MS, MS) is None


def test_a_gap_is_measured_by_what_was_lost_and_by_the_time_between_arrivals() -> None:
    [record] = records([[0, 1, 5, 6]], 7)
    assert record.gaps == (Gap(2, 3, 2 * MS, 5 * MS, 4 * MS, is_open=False),)
    assert record.lost == 3
    assert record.gaps[0].by_loss_ns == 3 * MS
    assert outage_in(record, 0, 7 * MS, MS) == (record.gaps[0], False)


def test_a_flow_that_never_recovers_has_an_open_gap() -> None:
    [early, silent] = records([[0], []], 3)
    assert early.gaps == (Gap(1, 2, MS, 2 * MS, -1, is_open=True),)
    assert silent.gaps == (Gap(0, 3, 0, 2 * MS, -1, is_open=True),)
    assert (silent.delay_min_ns, silent.delay_median_ns, silent.delay_max_ns) == (-1, -1, -1)


def test_a_flow_with_two_gaps_is_flagged_and_the_longer_one_counts() -> None:
    [record] = records([[0, 2, 6, 7]], 8)
    assert outage_in(record, 0, 8 * MS, MS) == (Gap(3, 3, 3 * MS, 6 * MS, 4 * MS, is_open=False), True)
    assert outage_in(record, 0, 2 * MS, MS) == (Gap(1, 1, MS, 2 * MS, 2 * MS, is_open=False), False)


def test_a_gap_whose_two_measures_differ_by_more_than_two_intervals_is_flagged() -> None:
    """The sender was held up for 4 ms before the first datagram that was lost."""
    [record] = records([[0, 2]], 3, sent_at=[0, 5, 6])
    assert outage_in(record, 0, 9 * MS, MS) == (Gap(1, 1, 5 * MS, 6 * MS, 6 * MS, is_open=False), True)


def test_what_comes_twice_or_late_is_counted_and_is_no_loss() -> None:
    [twice, swapped] = records([[0, 1, 1, 2], [0, 2, 1]], 3)
    assert (twice.duplicates, twice.reordered, twice.lost) == (1, 0, 0)
    assert (swapped.duplicates, swapped.reordered, swapped.lost) == (0, 1, 0)


def test_flows_are_told_apart() -> None:
    found = records([[0, 1, 2], [1], []], 3)
    assert [record.lost for record in found] == [0, 2, 3]
