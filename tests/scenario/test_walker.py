"""The referee's walker against two other ways of asking the same: following every path, and networkx."""

from collections.abc import Mapping
from fractions import Fraction

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.fabric import Fabric, Link, LinkEnd, Node, NodeKind
from erfs.ids import DestinationId, LinkId, NodeId, class_id, endpoint_destination
from erfs.messages import Member
from erfs_scenario.dataplane import DataPlane, Share
from erfs_scenario.walker import Walk, ppm

HOST = NodeId("h")
HERE = NodeId("s0")  # the switch the host is attached to
CLASS = class_id([HERE])
OWN = endpoint_destination(CLASS, HOST)
LOSSES: list[Share] = [0, Fraction(1, 10), Fraction(1, 3), 1]


def fabric_of(count: int, pairs: list[tuple[int, int]]) -> Fabric:
    """Return *count* switches joined by *pairs* of indices (repeats are parallel cables), and one host on the first switch."""
    nodes = [Node(NodeId(f"s{index}"), NodeKind.SWITCH) for index in range(count)] + [Node(HOST, NodeKind.HOST)]
    links = [
        Link.between(LinkEnd(NodeId(f"s{a}"), f"p{number}"), LinkEnd(NodeId(f"s{b}"), f"p{number}"), capacity_bps=1)
        for number, (a, b) in enumerate(pairs)
    ]
    links.append(Link.between(LinkEnd(HERE, "host"), LinkEnd(HOST, "0"), capacity_bps=1))
    return Fabric(nodes, links)


def walk_over(plane: DataPlane) -> Walk:
    """Return the walk towards the one host from every switch."""
    index = plane.node_index
    switches = [index[node.id] for node in plane.fabric.switches]
    return Walk(plane, CLASS, [(index[HOST], OWN)], [index[HERE]], switches)


def shares(walk: Walk) -> dict[str, Fraction]:
    """Return the served share of each switch, by name."""
    return {walk.plane.nodes[node]: Fraction(share) for node, share in walk.value.items()}


def by_following_every_path(plane: DataPlane) -> dict[str, Fraction]:
    """
    Return the served share of each switch by recursion over single members, no memory kept.

    What is sent along a cycle is lost: a member whose far node can come back to the sender serves nothing.
    """
    graph = nx.DiGraph()
    graph.add_nodes_from(plane.fabric.nodes)
    sends: dict[NodeId, list[tuple[NodeId, int, Share]]] = {}
    for node in plane.fabric.switches:
        table = plane.routes_of(node.id)
        members = table.get(OWN, table.get(CLASS, ()))
        sends[node.id] = []
        for member in members:
            link = plane.fabric.link_at[LinkEnd(node.id, member.port)]
            passed = plane.share_from(LinkEnd(node.id, member.port))
            far = link.far_end(node.id).node
            sends[node.id].append((far, member.weight, passed))
            if passed:
                graph.add_edge(node.id, far)

    def follow(node: NodeId) -> Fraction:
        if node == HOST:
            return Fraction(1)
        total = sum(weight for _, weight, _ in sends[node])
        served = Fraction(0)
        for far, weight, passed in sends[node]:
            if passed and not nx.has_path(graph, far, node):
                served += Fraction(weight, total) * passed * follow(far)
        return served

    return {node.id: follow(node.id) for node in plane.fabric.switches}


@st.composite
def planes(draw: st.DrawFn) -> DataPlane:
    """A small fabric with random tables: dead, one-way and lossy links, empty groups, missing routes, cycles and all."""
    count = draw(st.integers(2, 6))
    numbers = st.integers(0, count - 1)
    pairs = draw(st.lists(st.tuples(numbers, numbers).filter(lambda pair: pair[0] != pair[1]), min_size=1, max_size=9))
    fabric = fabric_of(count, pairs)
    plane = DataPlane(fabric)
    for node in fabric.switches:
        write_random(draw, plane, node.id)
    for link in fabric.links:
        if draw(st.integers(0, 3)) == 0:
            spoil(draw, plane, link)
    return plane


def spoil(draw: st.DrawFn, plane: DataPlane, link: LinkId) -> None:
    """Do something to *link*, or undo it."""
    match draw(st.sampled_from(["cut", "deaf", "lossy"])):
        case "cut":
            plane.set_link(link, draw(st.booleans()))
        case "deaf":
            plane.set_deaf(draw(st.sampled_from(plane.fabric.links[link].ends)), draw(st.booleans()))
        case _:
            plane.set_loss(link, draw(st.sampled_from(LOSSES)))


def write_random(draw: st.DrawFn, plane: DataPlane, node: NodeId) -> None:
    """Give *node* a random group, or no route at all."""
    ports = [link.end_at(node).port for link in plane.fabric.links_of[node]]
    chosen = draw(st.lists(st.sampled_from(ports), unique=True)) if ports else []
    destination = OWN if node == HERE or draw(st.booleans()) else CLASS
    members = tuple(Member(port=port, weight=draw(st.integers(1, 3))) for port in chosen)
    if draw(st.integers(0, 9)):
        plane.write_routes(node, {destination: members}, [CLASS if destination == OWN else OWN])
    else:
        plane.write_routes(node, {}, [CLASS, OWN])


@settings(max_examples=150, deadline=None)
@given(planes())
def test_a_walk_agrees_with_following_every_path(plane: DataPlane) -> None:
    walk = walk_over(plane)
    walk.walk()
    assert shares(walk) == by_following_every_path(plane)


@settings(max_examples=150, deadline=None)
@given(planes())
def test_loops_are_the_cycles_networkx_finds(plane: DataPlane) -> None:
    walk = walk_over(plane)
    walk.walk()
    graph = nx.DiGraph()
    for node in range(len(plane.nodes)):
        if plane.is_switch[node]:
            graph.add_edges_from((plane.nodes[node], plane.nodes[far]) for far in walk.next_switches(node))
    knots = sorted(tuple(sorted(knot)) for knot in nx.strongly_connected_components(graph) if len(knot) > 1)
    assert list(walk.loops) == knots


@settings(max_examples=150, deadline=None)
@given(planes(), st.data())
def test_an_update_ends_where_a_walk_from_scratch_does(plane: DataPlane, data: st.DataObject) -> None:
    """Whatever changes, in whatever batches: removals, additions, cycles that appear and vanish, links that fail and return."""
    kept = walk_over(plane)
    kept.walk()
    plane.take_dirty()
    for _ in range(data.draw(st.integers(1, 5))):
        for _ in range(data.draw(st.integers(1, 3))):
            if data.draw(st.booleans()):
                link = data.draw(st.sampled_from(sorted(plane.fabric.links)))
                spoil(data.draw, plane, link)
            else:
                node = data.draw(st.sampled_from([node.id for node in plane.fabric.switches]))
                write_random(data.draw, plane, node)
        before = shares(kept)
        nodes = {node for found in plane.take_dirty().routes.values() for node in found if plane.is_switch[node]}
        changed = {plane.nodes[node] for node in kept.update(nodes)}
        fresh = walk_over(plane)
        fresh.walk()
        assert shares(kept) == shares(fresh)
        assert kept.loops == fresh.loops
        assert changed == {node for node, share in shares(kept).items() if before.get(node) != share}


def test_an_update_that_has_to_start_over_still_names_what_it_had_changed_before() -> None:
    """s1 loses its route and, in the same batch, s2 begins to send to s3, which sends to s2: a cycle, so everything is walked anew."""
    plane = DataPlane(fabric_of(4, [(0, 1), (1, 2), (2, 3)]))
    write(plane, {"s0": {OWN: "host"}, "s1": {CLASS: "p0"}, "s2": {CLASS: "p1"}, "s3": {CLASS: "p2"}})
    walk = walk_over(plane)
    walk.walk()
    write(plane, {"s1": {CLASS: ""}, "s2": {CLASS: "p2"}})
    changed = walk.update([plane.node_index[NodeId(name)] for name in ("s1", "s2")])
    assert [plane.nodes[node] for node in changed] == ["s1", "s2", "s3"]
    assert walk.loops == (("s2", "s3"),)


def test_a_share_below_one_never_rounds_up_to_one() -> None:
    assert ppm(Fraction(9_999_999, 10_000_000)) == 999_999
    assert ppm(1) == 1_000_000


def write(plane: DataPlane, tables: Mapping[str, Mapping[DestinationId, str]]) -> None:
    """Write tables given as ports separated by blanks."""
    for node, routes in tables.items():
        plane.write_routes(
            NodeId(node),
            {destination: tuple(Member(port=port) for port in ports.split()) for destination, ports in routes.items()},
        )


def test_the_most_specific_route_wins_and_an_empty_one_drops_everything() -> None:
    plane = DataPlane(fabric_of(2, [(0, 1)]))
    write(plane, {"s0": {OWN: "host"}, "s1": {CLASS: "p0"}})
    walk = walk_over(plane)
    walk.walk()
    assert shares(walk) == {"s0": 1, "s1": 1}
    write(plane, {"s1": {OWN: ""}})
    walk.update([plane.node_index[NodeId("s1")]])
    assert shares(walk) == {"s0": 1, "s1": 0}


def test_what_is_handed_to_the_wrong_endpoint_is_lost() -> None:
    fabric = fabric_of(2, [(0, 1)])
    other = NodeId("other")
    cable = Link.between(LinkEnd(NodeId("s1"), "other"), LinkEnd(other, "0"), capacity_bps=1)
    plane = DataPlane(Fabric([*fabric.nodes.values(), Node(other, NodeKind.HOST)], [*fabric.links.values(), cable]))
    write(plane, {"s0": {OWN: "host"}, "s1": {CLASS: "p0 other"}})
    walk = walk_over(plane)
    walk.walk()
    assert shares(walk) == {"s0": 1, "s1": Fraction(1, 2)}


@pytest.mark.parametrize("is_up", [True, False])
def test_a_node_without_power_forgets_its_table_and_darkens_its_neighbours_ports(is_up: bool) -> None:
    plane = DataPlane(fabric_of(2, [(0, 1)]))
    write(plane, {"s0": {OWN: "host"}, "s1": {CLASS: "p0"}})
    plane.set_node(HERE, False)
    assert plane.routes_of(HERE) == {}
    write(plane, {"s0": {OWN: "host"}})
    assert plane.routes_of(HERE) == {}, "a write to a dead node is lost"
    if is_up:
        plane.set_node(HERE, True)
    assert plane.is_port_up(NodeId("s1"), "p0") is is_up
    assert plane.is_port_up(HOST, "0") is is_up


def test_a_cut_cable_stays_cut_when_its_node_gets_its_power_back() -> None:
    fabric = fabric_of(2, [(0, 1)])
    plane = DataPlane(fabric)
    (cable,) = (link.id for link in fabric.trunks)
    plane.set_link(cable, False)
    plane.set_node(HERE, False)
    plane.set_node(HERE, True)
    assert not plane.is_link_working(cable)
    plane.set_link(cable, True)
    assert plane.is_link_working(cable)


def test_a_link_that_is_deaf_at_one_end_carries_the_other_way_and_its_carriers_stay() -> None:
    fabric = fabric_of(2, [(0, 1)])
    plane = DataPlane(fabric)
    (cable,) = fabric.trunks
    here, there = cable.ends
    plane.set_deaf(here, True)
    assert (plane.share_from(here), plane.share_from(there)) == (1, 0)
    assert not plane.is_link_working(cable.id)
    assert plane.is_port_up(*here)
    assert plane.is_port_up(*there)
    plane.set_deaf(here, False)
    assert (plane.share_from(there), plane.is_link_working(cable.id)) == (1, True)


def test_a_lossy_link_works_and_carries_what_is_not_lost() -> None:
    fabric = fabric_of(2, [(0, 1)])
    plane = DataPlane(fabric)
    write(plane, {"s0": {OWN: "host"}, "s1": {CLASS: "p0"}})
    (cable,) = fabric.trunks
    (access,) = fabric.access_links[HOST]
    plane.set_loss(cable.id, Fraction(1, 10))
    plane.set_loss(access.id, Fraction(1, 3))
    walk = walk_over(plane)
    walk.walk()
    assert shares(walk) == {"s0": Fraction(2, 3), "s1": Fraction(9, 10) * Fraction(2, 3)}
    assert plane.is_link_working(cable.id)
    plane.set_link(cable.id, False)
    assert [plane.share_from(end) for end in cable.ends] == [0, 0]
    plane.set_link(cable.id, True)
    assert [plane.share_from(end) for end in cable.ends] == [Fraction(9, 10)] * 2
