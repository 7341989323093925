"""Routes are the shortest permitted paths, all of them: against networkx on every small graph and on random fabrics with failures."""

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.fabric import Fabric, goes_up
from erfs.generators import generate
from erfs.ids import DestinationId, LinkId, NodeId, class_of
from erfs.paths import Topology, compute
from tests.paths.fabrics import (
    Draft,
    fates,
    graph_with_hosts,
    next_hops_at,
    permitted_links,
    plain_fabrics,
    tables_of,
    tiered_fabrics,
)

SMALL_GRAPHS = [graph for graph in nx.graph_atlas_g() if 2 <= len(graph) <= 6 and nx.is_connected(graph)]


def routes_without_protection(
    fabric: Fabric, unusable: frozenset[LinkId] = frozenset()
) -> dict[NodeId, dict[DestinationId, list[tuple[LinkId, NodeId]]]]:
    """Return, for each switch and each class or endpoint destination, the next hops it really uses."""
    programs = compute(Topology(fabric), unusable=unusable, is_protecting=False).programs
    tables = tables_of(programs)
    names = [*fabric.class_members, *fabric.destination_of.values()]
    return {
        node.id: {name: sorted(next_hops_at(fabric, tables, node.id, name)) for name in names}
        for node in fabric.switches
    }


def usable_attachments(fabric: Fabric, endpoint: NodeId, unusable: frozenset[LinkId]) -> list[NodeId]:
    links = fabric.access_links[endpoint]
    return sorted({link.far_end(endpoint).node for link in links if link.id not in unusable})


def shortest_towards(fabric: Fabric, attachments: list[NodeId], unusable: frozenset[LinkId]) -> dict[NodeId, int]:
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(switch.id for switch in fabric.switches)
    graph.add_edges_from(
        (link.a.node, link.b.node) for link in permitted_links(fabric, unusable) if fabric.is_trunk(link)
    )
    return dict(nx.multi_source_dijkstra_path_length(graph, set(attachments), weight=None)) if attachments else {}


def expected_plain(
    fabric: Fabric, node: NodeId, distance: dict[NodeId, int], unusable: frozenset[LinkId]
) -> list[tuple[LinkId, NodeId]]:
    return sorted(
        (link.id, link.far_end(node).node)
        for link in fabric.links_of[node]
        if fabric.is_trunk(link) and link.id not in unusable and node in distance
        if distance.get(link.far_end(node).node) == distance[node] - 1
    )


@pytest.mark.parametrize("number", range(len(SMALL_GRAPHS)))
def test_next_hops_are_all_shortest_paths_on_every_small_graph(number: int) -> None:
    fabric = graph_with_hosts(SMALL_GRAPHS[number])
    routes = routes_without_protection(fabric)
    for host, destination in fabric.destination_of.items():
        home = fabric.attachments[host]
        distance = shortest_towards(fabric, list(home), frozenset())
        for switch in fabric.switches:
            if switch.id not in home:
                expected = expected_plain(fabric, switch.id, distance, frozenset())
                assert routes[switch.id][destination] == expected
                assert expected


@st.composite
def failures(draw: st.DrawFn, fabric: Fabric, *, most: int = 4) -> frozenset[LinkId]:
    return frozenset(draw(st.lists(st.sampled_from(sorted(fabric.links)), max_size=most)))


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_next_hops_are_all_shortest_paths_to_what_is_left_of_an_endpoints_attachments(data: st.DataObject) -> None:
    """Also after failures, and also for an endpoint that lost some of its attachments."""
    fabric = data.draw(plain_fabrics())
    unusable = data.draw(failures(fabric))
    routes = routes_without_protection(fabric, unusable)
    for host, destination in fabric.destination_of.items():
        left = usable_attachments(fabric, host, unusable)
        distance = shortest_towards(fabric, left, unusable)
        for switch in fabric.switches:
            found = routes[switch.id][destination]
            if switch.id in left:
                ports = [link.id for link in fabric.access_links[host] if link.far_end(host).node == switch.id]
                assert found == sorted((link, host) for link in ports if link not in unusable)
            elif left:
                assert found == expected_plain(fabric, switch.id, distance, unusable)
            elif switch.id in fabric.attachments[host]:
                assert found == []


def valley_free_reach(fabric: Fabric, node: NodeId, attachments: list[NodeId], unusable: frozenset[LinkId]) -> bool:
    """Search up*down* paths in a graph of two layers: still going up, or already down."""
    layers: nx.DiGraph[tuple[str, str]] = nx.DiGraph()
    layers.add_node((node, "up"))
    for link in permitted_links(fabric, unusable):
        if not fabric.is_trunk(link):
            continue
        for end in link.ends:
            far = link.far_end(end.node).node
            if goes_up(fabric, link, end.node):
                layers.add_edge((end.node, "up"), (far, "up"))
            else:
                layers.add_edge((end.node, "up"), (far, "down"))
                layers.add_edge((end.node, "down"), (far, "down"))
    reached = nx.descendants(layers, (node, "up")) | {(node, "up")}
    return any((home, layer) in reached for home in attachments for layer in ("up", "down"))


def expected_valley_free(
    fabric: Fabric, node: NodeId, attachments: list[NodeId], unusable: frozenset[LinkId]
) -> list[tuple[LinkId, NodeId]]:
    """Work out the two phases with networkx: shortest all-down next hops, else towards the nearest permitted node above."""
    down: nx.DiGraph[str] = nx.DiGraph()
    down.add_nodes_from(switch.id for switch in fabric.switches)
    trunks = [link for link in permitted_links(fabric, unusable) if fabric.is_trunk(link)]
    for link in trunks:
        upper = link.b.node if goes_up(fabric, link, link.a.node) else link.a.node
        down.add_edge(upper, link.far_end(upper).node)
    below = dict(nx.multi_source_dijkstra_path_length(down.reverse(), set(attachments), weight=None))
    length: dict[NodeId, int] = {}
    for switch in nx.topological_sort(down):  # from the top: everything above is known
        if switch in below:
            length[switch] = below[switch]
        else:
            above = [length[upper] for upper in down.predecessors(switch) if upper in length]
            if above:
                length[switch] = 1 + min(above)
    if node not in length:
        return []
    goes_down = node in below
    steps = below if goes_down else length
    return sorted(
        (link.id, link.far_end(node).node)
        for link in trunks
        if node in (link.a.node, link.b.node)
        if goes_up(fabric, link, node) is not goes_down
        if steps.get(link.far_end(node).node) == length[node] - 1
    )


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_valley_free_next_hops_are_shortest_down_else_up_to_the_nearest(data: st.DataObject) -> None:
    fabric = data.draw(tiered_fabrics())
    unusable = data.draw(failures(fabric))
    routes = routes_without_protection(fabric, unusable)
    for host, destination in fabric.destination_of.items():
        left = usable_attachments(fabric, host, unusable)
        for switch in fabric.switches:
            if left and switch.id not in left:
                found = routes[switch.id][destination]
                assert found == expected_valley_free(fabric, switch.id, left, unusable)
                assert bool(found) == valley_free_reach(fabric, switch.id, left, unusable)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_every_packet_arrives_exactly_where_policy_permits_a_path(data: st.DataObject) -> None:
    """From every endpoint to every other, by the endpoint's own program: delivered whole, or no permitted path at all."""
    fabric = data.draw(st.one_of(plain_fabrics(), tiered_fabrics()))
    unusable = data.draw(failures(fabric))
    topology = Topology(fabric)
    tables = tables_of(compute(topology, unusable=unusable, is_protecting=False).programs)
    for target in fabric.destination_of:
        left = usable_attachments(fabric, target, unusable)
        for source in fabric.destination_of:
            if source == target:
                continue
            homes = usable_attachments(fabric, source, unusable)
            if topology.is_valley_free:
                is_served = any(valley_free_reach(fabric, home, left, unusable) for home in homes)
            else:
                distance = shortest_towards(fabric, left, unusable)
                is_served = any(home in distance for home in homes)
            found = fates(fabric, tables, source, target, lambda link: link not in unusable)
            assert found == ({"delivered"} if is_served else {"lost"}), (source, target)


def test_a_fat_tree_gives_every_edge_switch_all_its_uplinks() -> None:
    fabric = generate("fat-tree", {"k": 4})
    routes = routes_without_protection(fabric)
    far = DestinationId("@pod1-edge0")
    assert [node for _, node in routes[NodeId("pod0-edge0")][far]] == ["pod0-agg0", "pod0-agg1"]
    assert [node for _, node in routes[NodeId("pod0-agg0")][far]] == ["core0-0", "core0-1"]
    assert [node for _, node in routes[NodeId("core0-0")][far]] == ["pod1-agg0"]


def test_a_switch_that_could_only_go_down_and_up_again_has_no_route() -> None:
    """Two spines that share a leaf but no core: from one to a host on the other there is only a valley."""
    draft = Draft()
    leaf0, leaf1 = draft.switch("leaf0", 1), draft.switch("leaf1", 1)
    spine0, spine1 = draft.switch("spine0", 2), draft.switch("spine1", 2)
    for leaf, spine in ((leaf0, spine0), (leaf0, spine1), (leaf1, spine1)):
        draft.cable(leaf, spine)
    draft.host("h0", leaf0)
    draft.host("h1", leaf1)
    routes = routes_without_protection(draft.fabric())
    to_leaf1 = DestinationId("@leaf1")
    assert [node for _, node in routes[leaf0][to_leaf1]] == ["spine1"]
    assert routes[spine0][to_leaf1] == []
    assert class_of(to_leaf1) == to_leaf1
