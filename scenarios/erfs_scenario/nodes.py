"""Which nodes of a fabric run an agent, and what each agent is told of its ports.

Rule 1: every backend asks here, so an agent sees the same ports in simulation and in real time.
"""

from erfs.fabric import Fabric, NodeKind
from erfs.ids import NodeId
from erfs.messages import PortBinding


def agent_nodes(fabric: Fabric) -> tuple[NodeId, ...]:
    """Return the switches, hosts and NICs, canonical order. In-network computing inside a switch has no agent of its own."""
    return tuple(node.id for node in fabric.nodes.values() if node.kind is not NodeKind.AGGREGATION)


def port_bindings(fabric: Fabric, node: NodeId) -> tuple[PortBinding, ...]:
    """Return what is at the other end of each port of *node*, by port; of a cable looped on one node, both ports."""
    found = []
    for link in fabric.links_of[node]:
        for end, far in ((link.a, link.b), (link.b, link.a)):
            if end.node == node:
                found.append(PortBinding(port=end.port, link=link.id, far_end=far.node))
    return tuple(sorted(found, key=lambda binding: binding.port))
