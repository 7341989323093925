"""The verifier finds what is planted in tables, and nothing in sound ones; against a walker that shares no code with it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.fabric import Fabric
from erfs.generators import generate
from erfs.ids import EVERYTHING, DestinationId, LinkId, NodeId
from erfs.messages import Member
from erfs.paths import Blackhole, Loop, Topology, Unreached, compute, verify
from tests.paths.fabrics import Draft, fabrics, fates, loops_in, tables_of

Table = dict[DestinationId, tuple[Member, ...]]


def sound_tables(fabric: Fabric, unusable: frozenset[LinkId] = frozenset()) -> dict[NodeId, Table]:
    return tables_of(compute(Topology(fabric), unusable=unusable, is_protecting=False).programs)


def port_to(fabric: Fabric, node: str, far: str) -> Member:
    link = next(link for link in fabric.links_of[NodeId(node)] if link.far_end(NodeId(node)).node == far)
    return Member(port=link.end_at(NodeId(node)).port)


@pytest.mark.parametrize("kind", ["fat-tree", "leaf-spine", "rail", "torus", "dragonfly"])
def test_computed_tables_are_clean_and_reach_everything(kind: str) -> None:
    fabric = generate(kind, {"hosts": 8} if kind == "rail" else {})
    verdict = verify(fabric, sound_tables(fabric), working=lambda link: True)
    assert verdict.is_clean
    assert verdict.unreached == ()


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_computed_tables_are_clean_after_any_failures(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    unusable = frozenset(data.draw(st.lists(st.sampled_from(sorted(fabric.links)), max_size=4)))
    assert verify(fabric, sound_tables(fabric, unusable), working=lambda link: link not in unusable).is_clean


def fat_tree() -> tuple[Fabric, dict[NodeId, Table]]:
    fabric = generate("fat-tree", {"k": 4})
    return fabric, sound_tables(fabric)


FAR = DestinationId("@pod1-edge0")


def test_a_planted_loop_is_found() -> None:
    fabric, tables = fat_tree()
    tables[NodeId("core0-0")][FAR] = (port_to(fabric, "core0-0", "pod0-agg0"),)
    verdict = verify(fabric, tables, working=lambda link: True)
    assert verdict.loops == (Loop(FAR, (NodeId("core0-0"), NodeId("pod0-agg0"))),)
    assert not verdict.is_clean


def test_two_loops_towards_one_destination_are_told_apart() -> None:
    fabric, tables = fat_tree()
    for core, aggregation in (("core0-0", "pod0-agg0"), ("core1-0", "pod2-agg1")):
        tables[NodeId(core)][FAR] = (port_to(fabric, core, aggregation),)
    verdict = verify(fabric, tables, working=lambda link: True)
    assert [loop.nodes for loop in verdict.loops] == [("core0-0", "pod0-agg0"), ("core1-0", "pod2-agg1")]


def test_a_next_hop_over_a_broken_link_is_a_black_hole_where_packets_come_by() -> None:
    fabric, tables = fat_tree()
    member = port_to(fabric, "core0-0", "pod1-agg0")
    broken = next(
        port for port in fabric.links_of[NodeId("core0-0")] if port.far_end(NodeId("core0-0")).node == "pod1-agg0"
    ).id
    verdict = verify(fabric, tables, working=lambda link: link != broken)
    assert Blackhole(FAR, NodeId("core0-0"), member.port) in verdict.blackholes
    assert {hole.node for hole in verdict.blackholes} == {"core0-0", "pod1-agg0"}
    assert verdict.unreached == ()  # other branches arrive


def test_a_node_that_is_sent_packets_and_has_no_route_is_a_black_hole() -> None:
    fabric, tables = fat_tree()
    del tables[NodeId("core0-0")][FAR]
    assert verify(fabric, tables, working=lambda link: True).blackholes == (Blackhole(FAR, NodeId("core0-0")),)


def test_a_dead_node_that_is_still_sent_packets_is_a_black_hole_for_all_of_them() -> None:
    fabric, tables = fat_tree()
    del tables[NodeId("core0-0")]
    holes = verify(fabric, tables, working=lambda link: True).blackholes
    assert {hole.node for hole in holes} == {"core0-0"}
    assert len(holes) == 8


def test_a_leaf_that_does_not_deliver_is_found() -> None:
    fabric, tables = fat_tree()
    endpoint = DestinationId("@pod1-edge0/pod1-edge0-host0")
    tables[NodeId("pod1-edge0")][endpoint] = (port_to(fabric, "pod1-edge0", "pod1-edge0-host1"),)
    verdict = verify(fabric, tables, working=lambda link: True)
    assert verdict.blackholes == (Blackhole(endpoint, NodeId("pod1-edge0-host1")),)
    assert [item.destination for item in verdict.unreached] == [endpoint]


def test_an_endpoint_that_sends_nowhere_is_unreached_once() -> None:
    fabric, tables = fat_tree()
    host = NodeId("pod0-edge0-host0")
    tables[host] = {}
    assert verify(fabric, tables, working=lambda link: True).unreached == (Unreached(EVERYTHING, (host,)),)


def test_what_policy_cuts_is_unreached_and_no_black_hole() -> None:
    draft = Draft()
    leaf0, leaf1 = draft.switch("leaf0", 1), draft.switch("leaf1", 1)
    spine0, spine1 = draft.switch("spine0", 2), draft.switch("spine1", 2)
    for leaf, spine in ((leaf0, spine0), (leaf0, spine1), (leaf1, spine1)):
        draft.cable(leaf, spine)
    draft.host("h1", leaf1)
    draft.host("m", spine0)
    fabric = draft.fabric()
    verdict = verify(fabric, sound_tables(fabric), working=lambda link: True)
    assert verdict.is_clean
    assert verdict.unreached == (
        Unreached(DestinationId("@leaf1"), (NodeId("spine0"),)),
        Unreached(DestinationId("@spine0"), (NodeId("leaf1"),)),
    )


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_scrambled_tables_are_judged_as_a_walker_sees_them(data: st.DataObject) -> None:
    """Routes replaced at random, links broken at random: the same loops, and a switch is unreached iff no branch arrives."""
    fabric = data.draw(fabrics())
    tables = sound_tables(fabric)
    names = [*fabric.class_members, *fabric.destination_of.values()]
    for _ in range(data.draw(st.integers(0, 4))):
        node = data.draw(st.sampled_from([switch.id for switch in fabric.switches]))
        ports = sorted(link.end_at(node).port for link in fabric.links_of[node] if not link.is_self_loop)
        members = data.draw(st.lists(st.sampled_from(ports), max_size=2, unique=True)) if ports else []
        tables[node][data.draw(st.sampled_from(names))] = tuple(Member(port=port) for port in sorted(members))
    broken = frozenset(data.draw(st.lists(st.sampled_from(sorted(fabric.links)), max_size=2)))
    verdict = verify(fabric, tables, working=lambda link: link not in broken)
    working_tables = {
        node: {
            name: tuple(member for member in members if fabric.link_at[node, member.port].id not in broken)  # type: ignore[index]
            for name, members in table.items()
        }
        for node, table in tables.items()
    }
    looping = {name for name, _ in loops_in(fabric, working_tables)}
    found = {loop.destination for loop in verdict.loops}
    assert found <= looping
    assert {name for name in looping if name in fabric.class_members} <= found
    unreached = {(item.destination, node) for item in verdict.unreached for node in item.sources}
    for target, destination in fabric.destination_of.items():
        if any(link.id in broken for link in fabric.access_links[target]):
            continue
        judged = {destination, destination.partition("/")[0]}
        for source in fabric.destination_of:
            if source == target or len(fabric.attachments[source]) < 2:
                continue
            arrives = "delivered" in fates(fabric, tables, source, target, lambda link: link not in broken)
            if not arrives:
                assert any((name, source) in unreached for name in judged), (source, target)
