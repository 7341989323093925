"""The bus over the fabric's own links: where is the broker, and which way does each node have to the others' management addresses?

Rule 1: an operator's underlay, there before ERFS: static routes over all equal shortest ways. Nobody repairs them but the kernel,
which passes over members without carrier.
Rule 2: they bear a protocol number of their own, so that an agent takes them for what they are: somebody else's.
Rule 3: pure: a fabric in, `ip` lines out.
"""

from collections import deque
from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Final

from erfs.addressing import Addressing
from erfs.errors import FabricError
from erfs.fabric import Fabric, LinkEnd
from erfs.ids import NodeId
from erfs_scenario.nodes import agent_nodes

PROTOCOL: Final = 198
"""Of the underlay's routes; agents have 229, and no routing daemon we know of has this one."""


def bus_host_of(fabric: Fabric) -> NodeId:
    """
    Return the host at which broker and controller are when the bus is in band: the first attached endpoint in canonical order.

    Raises:
        FabricError: there is none.
    """
    for node in fabric.endpoints:
        if fabric.attachments[node.id]:
            return node.id
    raise FabricError(f'fabric "{fabric.name}" has no attached host at which the bus in band could be')


def bootstrap_routes(
    fabric: Fabric, addressing: Addressing, management: Mapping[NodeId, IPv4Address]
) -> dict[NodeId, tuple[str, ...]]:
    """
    Return the routes of each node to the management addresses of all others.

    Args:
        fabric: What carries the bus.
        addressing: Its plan.
        management: The address of each node.

    Returns:
        `ip -batch` lines by node, a route for each other node that it can reach; hosts forward for nobody.

    Raises:
        FabricError: a node with an agent has no way to the bus.

    Cost: O(nodes * links).
    """
    host = bus_host_of(fabric)
    lines: dict[NodeId, list[str]] = {node: [] for node in fabric.nodes}
    for target in fabric.nodes:
        ways = _shortest_ways(fabric, addressing, target)
        if target == host:
            lost = [node for node in agent_nodes(fabric) if node != host and node not in ways]
            if lost:
                raise FabricError(f'node "{lost[0]}" has no way over the fabric to "{host}", where the bus in band is')
        for node, ends in ways.items():
            hops = [
                f"via inet6 {port.next_hops[0]} dev {port.device}"
                for port in (addressing.nodes[node].ports[end.port] for end in ends)
            ]
            members = hops[0] if len(hops) == 1 else " ".join(f"nexthop {hop}" for hop in hops)
            lines[node].append(f"route add {management[target]}/32 proto {PROTOCOL} src {management[node]} {members}")
    return {node: tuple(found) for node, found in lines.items()}


def _shortest_ways(fabric: Fabric, addressing: Addressing, target: NodeId) -> dict[NodeId, list[LinkEnd]]:
    """Return the ports of each node that lead to *target* in as few hops as can be."""
    distance = {target: 0}
    ways: dict[NodeId, list[LinkEnd]] = {}
    waiting = deque([target])
    while waiting:
        node = waiting.popleft()
        if node != target and not addressing.nodes[node].is_forwarding:
            continue
        for link in fabric.links_of[node]:
            if link.is_self_loop:
                continue
            far = link.far_end(node)
            if far.node not in distance:
                distance[far.node] = distance[node] + 1
                waiting.append(far.node)
            if distance[far.node] == distance[node] + 1:
                ways.setdefault(far.node, []).append(far)
    return ways
