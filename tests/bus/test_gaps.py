"""Holes in senders' numbers: what counts, what fills, who begins anew."""

from erfs.aio.gaps import WINDOW, GapCounter
from erfs.ids import NodeId
from erfs.messages import Health, Presence

ONE, OTHER = NodeId("leaf1"), NodeId("leaf2")


def counted(*seqs: int) -> tuple[int, int]:
    gaps = GapCounter()
    for seq in seqs:
        gaps.observe(Health(sender=ONE, seq=seq, ports=()))
    return gaps.missing_count, gaps.duplicate_count


def test_an_unbroken_count_has_no_holes() -> None:
    assert counted(1, 2, 3) == (0, 0)


def test_a_receiver_that_comes_late_has_missed_nothing_it_was_owed() -> None:
    assert counted(70, 71) == (0, 0)


def test_each_number_left_out_is_one_hole() -> None:
    assert counted(1, 2, 5, 7) == (3, 0)


def test_a_late_message_fills_its_hole() -> None:
    assert counted(1, 3, 2) == (0, 0)


def test_a_repeated_message_is_a_duplicate_and_fills_nothing() -> None:
    assert counted(1, 2, 4, 2, 4) == (1, 2)


def test_a_last_will_has_no_number() -> None:
    assert counted(1, 0, 2) == (0, 0)


def test_senders_are_counted_apart() -> None:
    gaps = GapCounter()
    for sender, seq in ((ONE, 1), (OTHER, 5), (ONE, 2), (OTHER, 7)):
        gaps.observe(Health(sender=sender, seq=seq, ports=()))
    assert gaps.missing_count == 1


def test_a_new_incarnation_begins_to_count_anew_and_leaves_its_holes_counted() -> None:
    gaps = GapCounter()
    gaps.observe(Presence(sender=ONE, seq=1, state="online", incarnation=1))
    gaps.observe(Health(sender=ONE, seq=4, ports=()))
    gaps.observe(Presence(sender=ONE, seq=1, state="online", incarnation=2))
    gaps.observe(Health(sender=ONE, seq=2, ports=()))
    assert (gaps.missing_count, gaps.duplicate_count) == (2, 0)


def test_a_number_far_below_means_a_sender_that_began_anew() -> None:
    assert counted(WINDOW + 10, 1, 2) == (0, 0)


def test_holes_too_old_to_fill_stay_counted_and_cost_no_memory() -> None:
    gaps = GapCounter()
    for seq in (1, 3, 10 * WINDOW, 20 * WINDOW):
        gaps.observe(Health(sender=ONE, seq=seq, ports=()))
    assert gaps.missing_count == 20 * WINDOW - 4
    assert len(gaps._senders[ONE].missing) <= WINDOW
