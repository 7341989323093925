"""What gives way when a queue is full, and what a newer message replaces."""

from hypothesis import given
from hypothesis import strategies as st

from erfs.aio.outbox import Item, Outbox
from erfs.ports import Priority

URGENT, ROUTINE = Priority.URGENT, Priority.ROUTINE


def item(name: str, priority: Priority = ROUTINE, *, retain: bool = False) -> Item[str]:
    topic = name.rstrip("0123456789") if retain else name
    return Item(topic, name, retain, priority)


def drain(outbox: Outbox[str]) -> list[str]:
    taken = []
    for priority in Priority:
        while (found := outbox.take(priority)) is not None:
            taken.append(found.payload)
    return taken


def filled(length_max: int, *items: Item[str]) -> Outbox[str]:
    outbox: Outbox[str] = Outbox(length_max)
    for one in items:
        outbox.put(one)
    return outbox


def test_urgent_leaves_before_routine_and_each_in_order() -> None:
    outbox = filled(9, item("a"), item("b"), item("c", URGENT), item("d", URGENT))
    assert drain(outbox) == ["c", "d", "a", "b"]


def test_a_full_queue_drops_the_oldest_routine_message_for_anything() -> None:
    outbox = filled(3, item("a"), item("b"), item("c", URGENT))
    dropped = outbox.put(item("d"))
    assert dropped is not None
    assert dropped.payload == "a"
    dropped = outbox.put(item("e", URGENT))
    assert dropped is not None
    assert dropped.payload == "b"
    assert (drain(outbox), outbox.dropped_count) == (["c", "e", "d"], 2)


def test_a_routine_message_never_displaces_an_urgent_one() -> None:
    outbox = filled(2, item("a", URGENT), item("b", URGENT))
    newcomer = item("c")
    assert outbox.put(newcomer) is newcomer
    assert (drain(outbox), outbox.dropped_count) == (["a", "b"], 1)


def test_with_nothing_but_urgent_messages_the_oldest_of_them_goes() -> None:
    outbox = filled(2, item("a", URGENT), item("b", URGENT), item("c", URGENT))
    assert (drain(outbox), outbox.dropped_count) == (["b", "c"], 1)


def test_a_newer_retained_message_replaces_the_older_one_and_is_no_loss() -> None:
    outbox = filled(2, item("a1", retain=True), item("b"), item("a2", retain=True))
    assert (drain(outbox), outbox.dropped_count, outbox.superseded_count) == (["b", "a2"], 0, 1)


def test_a_routine_update_of_an_urgent_retained_topic_stays_urgent() -> None:
    outbox = filled(9, item("x"), item("a1", URGENT, retain=True), item("a2", ROUTINE, retain=True))
    assert drain(outbox) == ["a2", "x"]


def test_an_urgent_update_of_a_routine_retained_topic_becomes_urgent() -> None:
    outbox = filled(9, item("a1", retain=True), item("x"), item("a2", URGENT, retain=True))
    assert drain(outbox) == ["a2", "x"]


def test_what_was_never_acknowledged_goes_back_to_the_front_unless_replaced() -> None:
    outbox = filled(9, item("a1", retain=True), item("b"), item("c", URGENT))
    taken = [outbox.take(URGENT), outbox.take(ROUTINE), outbox.take(ROUTINE)]
    outbox.put(item("a2", retain=True))
    outbox.put(item("d", URGENT))
    outbox.put_back([one for one in taken if one is not None])
    assert drain(outbox) == ["c", "d", "b", "a2"]


def test_putting_back_keeps_the_bound_too() -> None:
    outbox = filled(2, item("a"), item("b"))
    taken = [outbox.take(ROUTINE), outbox.take(ROUTINE)]
    outbox.put(item("c", URGENT))
    outbox.put(item("d"))
    outbox.put_back([one for one in taken if one is not None])
    assert (len(outbox), drain(outbox), outbox.dropped_count) == (2, ["c", "d"], 2)


@given(
    st.integers(1, 4),
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.sampled_from("abc"), st.booleans(), st.sampled_from(Priority)),
            st.tuples(st.just("take"), st.sampled_from(Priority)),
        ),
        max_size=40,
    ),
)
def test_whatever_happens_the_bound_holds_and_every_message_is_accounted_for(length_max: int, steps: list) -> None:
    outbox: Outbox[int] = Outbox(length_max)
    put_count = taken_count = 0
    for step in steps:
        if step[0] == "put":
            _, topic, retain, priority = step
            outbox.put(Item(topic, put_count, retain, priority))
            put_count += 1
        elif outbox.take(step[1]) is not None:
            taken_count += 1
        assert len(outbox) <= length_max
        assert put_count == len(outbox) + taken_count + outbox.dropped_count + outbox.superseded_count
