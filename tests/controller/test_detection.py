"""Both ends' evidence -> link state."""

import pytest

from erfs.fabric import Fabric, Link, LinkEnd, Node, NodeKind
from erfs.ids import LinkId, NodeId
from erfs.messages import DownFact, FactRef
from erfs.ports import Mark
from erfs_controller.adjacency import Adjacency
from erfs_controller.detection import LINK_STATE, Detection

EXPECTED = {
    ("unknown", "unknown"): "usable",
    ("unknown", "up"): "usable",
    ("unknown", "down"): "down",
    ("up", "unknown"): "usable",
    ("up", "up"): "usable",
    ("up", "down"): "down",
    ("down", "unknown"): "down",
    ("down", "up"): "down",
    ("down", "down"): "down",
}


@pytest.mark.parametrize("a", Adjacency)
@pytest.mark.parametrize("b", Adjacency)
def test_every_pair_of_ends_has_one_link_state(a: Adjacency, b: Adjacency) -> None:
    assert LINK_STATE[a, b] == EXPECTED[a.value, b.value]


def down(link: LinkId) -> Mark:
    return Mark("link_down_adjudicated", {"link": link})


def up(link: LinkId) -> Mark:
    return Mark("link_up_adjudicated", {"link": link})


def test_one_end_down_takes_the_link_down_and_both_must_be_back(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    bench, detection = kit.bench(fat_tree), Detection(fat_tree)
    link = bench.link("core0-0", "pod0-agg0")

    assert detection.hear_fact(bench.fact("core0-0", link, 1)) == [down(link)]
    assert detection.hear_fact(bench.fact("pod0-agg0", link, 1)) == []
    assert detection.unusable == {link}
    assert detection.facts() == (
        FactRef(link=link, reporter=NodeId("core0-0"), counter=1),
        FactRef(link=link, reporter=NodeId("pod0-agg0"), counter=1),
    )

    assert detection.hear_fact(bench.fact("core0-0", link, 2, down=False)) == []
    assert detection.unusable == {link}
    assert detection.facts() == (FactRef(link=link, reporter=NodeId("pod0-agg0"), counter=1),)
    assert detection.hear_fact(bench.fact("pod0-agg0", link, 2, down=False)) == [up(link)]
    assert detection.unusable == frozenset()
    assert detection.facts() == ()


def test_an_agents_silence_takes_no_link_down_and_brings_none_up(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    bench, detection = kit.bench(fat_tree), Detection(fat_tree)
    link = bench.link("core0-0", "pod0-agg0")
    for node in ("core0-0", "pod0-agg0"):
        detection.hear_health(bench.health(node))

    for node in ("core0-0", "pod0-agg0"):
        assert detection.hear_presence(node, is_online=False) == []
    assert detection.unusable == frozenset()

    assert detection.hear_fact(bench.fact("core0-0", link, 1)) == [down(link)]
    assert detection.hear_presence("core0-0", is_online=False) == []
    assert detection.hear_presence("core0-0", is_online=True) == []
    assert detection.unusable == {link}, "both are silent: the last word stands"


def test_the_older_word_loses_whether_fact_or_health(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    bench, detection = kit.bench(fat_tree), Detection(fat_tree)
    link = bench.link("core0-0", "pod0-agg0")

    assert detection.hear_health(bench.health("core0-0", [link], 5)) == [down(link)]
    assert detection.hear_fact(bench.fact("core0-0", link, 4, down=False)) == []
    assert detection.hear_health(bench.health("core0-0")) == [], "a report with a lower counter was overtaken"
    assert detection.unusable == {link}
    assert detection.hear_fact(bench.fact("core0-0", link, 6, down=False)) == [up(link)]
    assert detection.hear_fact(bench.fact("core0-0", link, 5)) == []
    assert detection.unusable == frozenset()


def test_a_held_port_keeps_its_link_down(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    bench, detection = kit.bench(fat_tree), Detection(fat_tree)
    link = bench.link("core0-0", "pod0-agg0")

    assert detection.hear_health(bench.health("core0-0", [link], 1)) == [down(link)]
    assert detection.hear_health(bench.health("core0-0", [link], 1, held=True)) == []
    assert detection.unusable == {link}


def test_a_strangers_fact_is_refused_and_counted(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    bench, detection = kit.bench(fat_tree), Detection(fat_tree)
    link = bench.link("core0-0", "pod0-agg0")
    stranger = bench.fact("core0-0", link, 1).model_copy(update={"sender": NodeId("core1-1")})

    assert detection.hear_fact(stranger) == [
        Mark("fact_refused", {"link": link, "reporter": "core1-1", "reason": "not an end of this link"})
    ]
    assert detection.unusable == frozenset()
    assert detection.refused == {"not an end of this link": 1}


def test_an_end_may_not_speak_for_another_of_its_ports(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    """The port is part of the end: a fact by the right node about the right link, but by the wrong port, is a stranger's."""
    bench, detection = kit.bench(fat_tree), Detection(fat_tree)
    link = bench.link("core0-0", "pod0-agg0")
    fact = bench.fact("core0-0", link, 1).model_copy(update={"port": "4"})

    assert [mark.event for mark in detection.hear_fact(fact)] == ["fact_refused"]
    assert detection.unusable == frozenset()


def test_a_link_that_the_fabric_lacks_is_refused_once_and_kept_for_the_guard(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    detection = Detection(fat_tree)
    fact = DownFact(
        sender=NodeId("core0-0"), link=LinkId("core0-0:9|x:1"), port="9", far_end=NodeId("x"), counter=1, down=False
    )

    assert detection.hear_fact(fact) == [
        Mark(
            "fact_refused",
            {"link": fact.link, "reporter": "core0-0", "reason": "the fabric file has no such link"},
        )
    ]
    assert detection.hear_fact(fact) == [], "the same word again is not news"
    assert [(link, node, word.is_up) for link, node, word in detection.words()] == [(fact.link, "core0-0", True)]


def test_a_dead_node_is_one_whose_links_its_neighbours_call_down(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    bench, detection = kit.bench(fat_tree), Detection(fat_tree)
    for link in fat_tree.links_of["pod0-agg0"]:
        assert not detection.is_cut_off("pod0-agg0")
        detection.hear_fact(bench.fact(link.far_end("pod0-agg0").node, link.id, 1))
    assert detection.is_cut_off("pod0-agg0")
    assert not detection.is_cut_off("pod0-agg1")


def test_links_without_an_agent_at_the_far_end_and_loops_are_passed_over() -> None:
    nodes = [
        Node(NodeId("s"), NodeKind.SWITCH, tier=1),
        Node(NodeId("t"), NodeKind.SWITCH, tier=2),
        Node(NodeId("sharp"), NodeKind.AGGREGATION),
    ]
    ends = [(("s", "1"), ("t", "1")), (("s", "2"), ("sharp", "1")), (("s", "3"), ("s", "4"))]
    links = [Link.between(LinkEnd(*one), LinkEnd(*other), capacity_bps=1) for one, other in ends]  # type: ignore[arg-type]
    detection = Detection(Fabric(nodes, links))
    for link in links[1:]:
        port = link.end_at(NodeId("s"))
        fact = DownFact(
            sender=NodeId("s"), link=link.id, port=port.port, far_end=link.far_end(port.node).node, counter=1, down=True
        )
        assert detection.hear_fact(fact) == []
    assert detection.unusable == frozenset()
    assert detection.facts() == ()


def test_a_new_fabric_keeps_what_was_heard(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    """Words about links that the old file lacked count once a file has them; those about links that are gone do not."""
    bench = kit.bench(fat_tree)
    known, missing = bench.link("core0-0", "pod0-agg0"), bench.link("core0-1", "pod0-agg0")
    smaller = Fabric(fat_tree.nodes.values(), [link for link in fat_tree.links.values() if link.id != missing])
    detection = Detection(smaller)
    detection.hear_fact(bench.fact("core0-0", known, 1))
    detection.hear_fact(bench.fact("core0-1", missing, 1))
    assert detection.unusable == {known}

    assert detection.replace_fabric(fat_tree) == [down(missing)]
    assert detection.unusable == {known, missing}
    assert detection.replace_fabric(smaller) == [up(missing)]


def test_several_adjudications_come_in_the_order_of_the_links(kit, fat_tree) -> None:  # type: ignore[no-untyped-def]
    bench = kit.bench(fat_tree)
    links = [link.id for link in fat_tree.trunks][:16]
    detection = Detection(Fabric(fat_tree.nodes.values(), ()))
    for link in reversed(links):
        detection.hear_fact(bench.fact(fat_tree.links[link].a.node, link))

    assert detection.replace_fabric(fat_tree) == [down(link) for link in sorted(links)]
