"""What of a fabric the path engine needs, as arrays: compiled once, whatever fails later.

Rule 1: the order of every array is canonical (node, then neighbour, then link), so equal fabrics give equal arrays.
Rule 2: nothing here knows about distances, programs or failures.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from erfs.fabric import Fabric, Link, goes_up, is_valley_free_required
from erfs.ids import DestinationId, LinkId, NodeId, class_of
from erfs.messages import PortBinding
from erfs.paths.bits import Bits, Indices


@dataclass(frozen=True, slots=True)
class Access:
    """One access link of an endpoint. *switch* is the index of the switch it attaches to."""

    link: LinkId
    port: str
    switch: int
    switch_port: str


class Topology:
    """
    A fabric compiled for the path engine. Immutable, but for a memory that spares work and changes no result.

    Switches are numbered in canonical order; a *link-end* is one direction of a trunk, numbered by (source, target, link).

    Args:
        fabric: As built; state comes in with each computation.

    Cost: O(links log links).
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.memory: object = None
        """Whatever the last computation left for the next."""
        self.ground: object = None
        """What the weights of the last layout were measured against."""
        self.is_valley_free = is_valley_free_required(fabric)
        self.switches: tuple[NodeId, ...] = tuple(node.id for node in fabric.switches)
        self.switch_index: dict[NodeId, int] = {node: index for index, node in enumerate(self.switches)}
        self.trunks: tuple[Link, ...] = fabric.trunks
        ends = sorted(
            (self.switch_index[end.node], self.switch_index[link.far_end(end.node).node], index, end.port)
            for index, link in enumerate(self.trunks)
            for end in link.ends
        )
        self.end_source: Indices = np.array([end[0] for end in ends], dtype=np.int64)
        self.end_target: Indices = np.array([end[1] for end in ends], dtype=np.int64)
        self.end_trunk: Indices = np.array([end[2] for end in ends], dtype=np.int64)
        self.end_port: tuple[str, ...] = tuple(end[3] for end in ends)
        self.end_capacity_bps: Indices = np.array(
            [self.trunks[trunk].capacity_bps for _, _, trunk, _ in ends], dtype=np.int64
        )
        self.end_is_up: Bits = np.array(
            [goes_up(fabric, self.trunks[trunk], self.switches[source]) for source, _, trunk, _ in ends], dtype=np.bool_
        )
        self.access: dict[NodeId, tuple[Access, ...]] = {
            endpoint: tuple(
                Access(link.id, link.end_at(endpoint).port, self.switch_index[far.node], far.port)
                for link in links
                for far in [link.far_end(endpoint)]
            )
            for endpoint, links in fabric.access_links.items()
            if links
        }
        self.class_attachments: dict[DestinationId, tuple[int, ...]] = {
            name: tuple(self.switch_index[switch] for switch in fabric.attachments[members[0]])
            for name, members in fabric.class_members.items()
        }

    @cached_property
    def multi_homed(self) -> tuple[NodeId, ...]:
        """The endpoints that attach to several switches as built, canonical order."""
        return tuple(endpoint for endpoint in self.access if len(self.fabric.attachments[endpoint]) > 1)

    @cached_property
    def trunk_index(self) -> dict[LinkId, int]:
        """The number of each trunk."""
        return {trunk.id: index for index, trunk in enumerate(self.trunks)}

    @cached_property
    def endpoint_of_access(self) -> dict[LinkId, NodeId]:
        """The endpoint at each access link."""
        return {access.link: endpoint for endpoint, links in self.access.items() for access in links}

    @cached_property
    def endpoints_at(self) -> dict[int, tuple[NodeId, ...]]:
        """The endpoints that attach to each switch, canonical order."""
        found: dict[int, dict[NodeId, None]] = {}
        for endpoint, links in self.access.items():
            for access in links:
                found.setdefault(access.switch, {})[endpoint] = None
        return {switch: tuple(endpoints) for switch, endpoints in found.items()}

    @cached_property
    def ends_of_trunk(self) -> Indices:
        """Both link-ends of each trunk, lower source first."""
        return np.argsort(self.end_trunk, kind="stable").reshape(-1, 2)

    @cached_property
    def opposite(self) -> Indices:
        """For each link-end the one of the same trunk that leads the other way."""
        found: Indices = self.ends_of_trunk.sum(axis=1)[self.end_trunk] - np.arange(len(self.end_trunk))
        return found

    @cached_property
    def arrivals_bps(self) -> Indices:
        """
        Switches x 2: how much can arrive, as built, of what a switch then sends down (0) and up (1).

        What is sent up came from below: from endpoints, and by the far ends of the down link-ends. What is sent down came from above; at the top
        from below. Where valleys are allowed it may have come from anywhere.
        """
        count = len(self.switches)
        links = self.fabric.links
        access = np.zeros(count, dtype=np.int64)
        for accesses in self.access.values():
            for one in accesses:
                access[one.switch] += links[one.link].capacity_bps
        above, below = np.zeros(count, dtype=np.int64), access.copy()
        is_other = self.end_source != self.end_target
        for total, chosen in ((above, is_other & self.end_is_up), (below, is_other & ~self.end_is_up)):
            np.add.at(total, self.end_source[chosen], self.end_capacity_bps[chosen])
        if not self.is_valley_free:
            return np.stack([above + below, above + below], axis=1)
        return np.stack([np.where(above > 0, above, below - access), below], axis=1)

    def class_of(self, endpoint: NodeId) -> DestinationId:
        """Return the destination class of an attached endpoint."""
        return class_of(self.fabric.destination_of[endpoint])

    @cached_property
    def bindings(self) -> dict[NodeId, tuple[PortBinding, ...]]:
        """What is at the other end of each port of each node that runs a program; self-loops and aggregation nodes left out."""
        nodes = self.fabric.nodes
        runs = {node for node in nodes if nodes[node].is_switch or node in self.access}
        return {
            node: tuple(
                PortBinding(port=link.end_at(node).port, link=link.id, far_end=link.far_end(node).node)
                for link in self.fabric.links_of[node]
                if not link.is_self_loop and link.far_end(node).node in runs
            )
            for node in sorted(runs)
        }

    @cached_property
    def witnesses_of(self) -> dict[NodeId, tuple[tuple[LinkId, NodeId], ...]]:
        """For each switch, its links with the far end that can testify to them: whoever runs an agent."""
        return {node: tuple((port.link, port.far_end) for port in self.bindings[node]) for node in self.switches}
