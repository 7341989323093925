"""Which topics match which filters; the index agrees with the rule, and the rule with another implementation's."""

from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from erfs.aio.filters import FilterIndex, matches

NAMES = st.sampled_from(["a", "b", "ab", ""])
TOPICS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
FILTERS = st.tuples(
    st.lists(st.one_of(NAMES, st.just("+")), min_size=1, max_size=4).map("/".join), st.sampled_from(["", "/#"])
).map("".join)


@given(FILTERS, TOPICS)
def test_matching_agrees_with_another_implementation(pattern: str, topic: str) -> None:
    assert matches(pattern, topic) == topic_matches_sub(pattern, topic)


@given(st.lists(st.tuples(FILTERS, st.integers(0, 3)), max_size=8), st.data(), TOPICS)
def test_the_index_names_exactly_the_holders_of_matching_filters(held: list, data: st.DataObject, topic: str) -> None:
    index: FilterIndex[int] = FilterIndex()
    for pattern, holder in held:
        index.add(pattern, holder)
    removed = data.draw(st.lists(st.sampled_from(held), max_size=3)) if held else []
    for pattern, holder in removed:
        index.remove(pattern, holder)
    left = [pair for pair in held if pair not in removed]

    assert set(index.holders(topic)) == {holder for pattern, holder in left if matches(pattern, topic)}


def test_wildcards_do_not_reach_the_brokers_own_topics() -> None:
    assert not matches("#", "$SYS/uptime")
    assert not matches("+/uptime", "$SYS/uptime")
    assert matches("$SYS/#", "$SYS/uptime")
    index: FilterIndex[str] = FilterIndex()
    for pattern in ("#", "+/uptime", "$SYS/#"):
        index.add(pattern, pattern)
    assert list(index.holders("$SYS/uptime")) == ["$SYS/#"]


def test_holders_come_in_the_order_in_which_they_subscribed() -> None:
    index: FilterIndex[str] = FilterIndex()
    for holder in ("c", "a", "b"):
        index.add("x/y", holder)
    assert list(index.holders("x/y")) == ["c", "a", "b"]
