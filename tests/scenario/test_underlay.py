"""Where the bus in band is, and which ways lead to it, as text."""

import re
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address

import networkx
import pytest

from erfs.addressing import Addressing, plan_addresses
from erfs.errors import FabricError
from erfs.fabric import Fabric, Link, LinkEnd, Node, NodeKind
from erfs.generators import generate
from erfs.ids import NodeId
from erfs_scenario.kernel.underlay import PROTOCOL, bootstrap_routes, bus_host_of

HOST, LEAF, SPINE = NodeId("leaf0-host0"), NodeId("leaf0"), NodeId("spine0")


def management_of(fabric: Fabric) -> dict[NodeId, IPv4Address]:
    return {node: IPv4Address("198.18.1.0") + place for place, node in enumerate(fabric.nodes)}


def routes_of(fabric: Fabric) -> dict[NodeId, tuple[str, ...]]:
    return bootstrap_routes(fabric, plan_addresses(fabric), management_of(fabric))


def next_nodes(fabric: Fabric, plan: Addressing, node: NodeId, line: str) -> Iterator[NodeId]:
    """Return whom a route's members lead to, by interface; each member's address must be that of the other end."""
    ports = {port.device: (name, port) for name, port in plan.nodes[node].ports.items()}
    for address, device in re.findall(r"via inet6 (\S+) dev (\S+)", line):
        name, port = ports[device]
        assert port.next_hops == (IPv6Address(address),)
        end = LinkEnd(node, name)
        yield fabric.link_at[end].other_end(end).node


def test_the_bus_is_at_the_first_attached_host() -> None:
    assert bus_host_of(generate("fat-tree", {"k": 4})) == "pod0-edge0-host0"
    unattached = Node(NodeId("a"), NodeKind.HOST)
    attached = Node(NodeId("b"), NodeKind.HOST)
    switch = Node(NodeId("s"), NodeKind.SWITCH)
    cable = Link.between(LinkEnd(attached.id, "1"), LinkEnd(switch.id, "1"), capacity_bps=1)
    assert bus_host_of(Fabric([unattached, attached, switch], [cable])) == "b"


def test_without_a_host_there_is_no_bus_in_band() -> None:
    switch = Node(NodeId("s"), NodeKind.SWITCH)
    with pytest.raises(FabricError, match='fabric "bare" has no attached host'):
        bus_host_of(Fabric([switch], [], name="bare"))


def test_a_leaf_has_one_way_to_its_host_and_all_equal_ones_to_another_leaf() -> None:
    fabric = generate("leaf-spine", {"leaves": 2, "spines": 2, "hosts_per_leaf": 1})
    plan, management = plan_addresses(fabric), management_of(fabric)
    found = {line.split()[2]: line for line in routes_of(fabric)[LEAF]}
    assert len(found) == len(fabric.nodes) - 1
    near = plan.nodes[LEAF].ports["3"]
    assert found[f"{management[HOST]}/32"] == (
        f"route add {management[HOST]}/32 proto {PROTOCOL} src {management[LEAF]}"
        f" via inet6 {near.next_hops[0]} dev {near.device}"
    )
    up = [plan.nodes[LEAF].ports[port] for port in ("1", "2")]
    assert found[f"{management[NodeId('leaf1')]}/32"] == (
        f"route add {management[NodeId('leaf1')]}/32 proto {PROTOCOL} src {management[LEAF]} "
        + " ".join(f"nexthop via inet6 {port.next_hops[0]} dev {port.device}" for port in up)
    )


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("fat-tree", {"k": 4}),
        ("leaf-spine", {"leaves": 4, "spines": 2, "hosts_per_leaf": 2, "attachments": 2, "cables": 2}),
        ("torus", {"dims": "3x3"}),
    ],
)
def test_every_member_of_every_route_is_one_hop_nearer_and_no_host_is_passed_through(
    kind: str, params: dict[str, object]
) -> None:
    fabric = generate(kind, params)
    plan = plan_addresses(fabric)
    node_of = {f"{address}/32": node for node, address in management_of(fabric).items()}
    ways: dict[tuple[NodeId, NodeId], list[NodeId]] = {}
    for node, lines in routes_of(fabric).items():
        for line in lines:
            target = node_of[line.split()[2]]
            ways[node, target] = list(next_nodes(fabric, plan, node, line))
    assert set(ways) == {(one, other) for one in fabric.nodes for other in fabric.nodes if one != other}
    graph = fabric.to_networkx()
    for (node, target), firsts in ways.items():
        switches = {found.id for found in fabric.switches}
        shortest = networkx.shortest_path_length(graph.subgraph(switches | {node, target}), node, target)
        for first in firsts:
            path = [node, first]
            while path[-1] != target:
                path.append(ways[path[-1], target][0])
            assert all(fabric.nodes[passed].is_switch for passed in path[1:-1])
            assert len(path) - 1 == shortest


def test_a_node_without_a_way_to_the_bus_is_named() -> None:
    nodes = [Node(NodeId("h"), NodeKind.HOST), Node(NodeId("s"), NodeKind.SWITCH), Node(NodeId("t"), NodeKind.SWITCH)]
    cable = Link.between(LinkEnd(NodeId("h"), "1"), LinkEnd(NodeId("s"), "1"), capacity_bps=1)
    with pytest.raises(FabricError, match='node "t" has no way over the fabric to "h", where the bus in band is'):
        routes_of(Fabric(nodes, [cable]))
