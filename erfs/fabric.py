"""What the network is made of: nodes, ports, links. Says nothing about whether they work.

Rule 1: a fabric never changes after it is built, and its order is canonical (by id), so equal inputs give equal routes.
Rule 2: parallel cables are separate links; a cable looped on one switch is a link too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import networkx as nx

from erfs.errors import FabricError
from erfs.ids import DestinationId, LinkId, NodeId, SrlgId, class_id, endpoint_destination, link_id, port_id


class NodeKind(StrEnum):
    """What a node is. Only switches forward for others."""

    SWITCH = "switch"
    HOST = "host"  # owns one or more ports; multi-homed if its ports reach several switches
    NIC = "nic"  # one adapter that attaches on its own, the InfiniBand view of a host
    AGGREGATION = "aggregation"  # in-network computing inside a switch; looks like a host and is none


class Medium(StrEnum):
    """How a link treats a packet it has no room for. Decides whether a valley risks deadlock."""

    LOSSLESS = "lossless"
    LOSSY = "lossy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Node:
    """One node. *tier* is 0 for endpoints, 1 for leaves and up; None where no tier could be inferred."""

    id: NodeId
    kind: NodeKind
    name: str = ""  # for display only: names repeat
    tier: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_switch(self) -> bool:
        """Whether the node forwards for others."""
        return self.kind is NodeKind.SWITCH

    @property
    def is_endpoint(self) -> bool:
        """Whether demands may start and end here."""
        return self.kind in (NodeKind.HOST, NodeKind.NIC)

    @property
    def label(self) -> str:
        """The name for people, the id where there is none."""
        return self.name or self.id


class LinkEnd(NamedTuple):
    """One end of a link."""

    node: NodeId
    port: str

    @property
    def id(self) -> str:
        """The port's fabric-wide name."""
        return port_id(self.node, self.port)


@dataclass(frozen=True, slots=True)
class Link:
    """One cable. *a* and *b* are its ends in canonical order."""

    id: LinkId
    a: LinkEnd
    b: LinkEnd
    capacity_bps: int
    medium: Medium = Medium.UNKNOWN
    srlgs: tuple[SrlgId, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def between(
        cls,
        one: LinkEnd,
        other: LinkEnd,
        *,
        capacity_bps: int,
        medium: Medium = Medium.UNKNOWN,
        srlgs: Iterable[SrlgId] = (),
        labels: Mapping[str, str] | None = None,
    ) -> "Link":
        """Return the link between two ends, given in any order."""
        a, b = sorted((one, other), key=lambda end: end.id)
        return cls(link_id(a, b), a, b, capacity_bps, medium, tuple(sorted(srlgs)), dict(labels or {}))

    @property
    def is_self_loop(self) -> bool:
        """Whether both ends are on one node."""
        return self.a.node == self.b.node

    @property
    def ends(self) -> tuple[LinkEnd, LinkEnd]:
        """Both ends, canonical order."""
        return self.a, self.b

    def end_at(self, node: NodeId) -> LinkEnd:
        """Return this link's end at *node*. Raises FabricError if it has none there."""
        if self.a.node == node:
            return self.a
        if self.b.node == node:
            return self.b
        raise FabricError(f'link "{self.id}" has no end at "{node}"')

    def far_end(self, node: NodeId) -> LinkEnd:
        """Return the end that is not at *node*; of a self-loop, end b."""
        return self.b if self.a.node == node else self.a

    def other_end(self, end: LinkEnd) -> LinkEnd:
        """Return the end that is not *end*; of a self-loop, too."""
        return self.b if self.a == end else self.a


class Fabric:
    """
    A multigraph of nodes and links, immutable, iterated in canonical order.

    Args:
        nodes: Any order; ids must be unique.
        links: Any order; ids must be unique, ports used once, ends known.
        name: For display.

    Raises:
        FabricError: an id or a port is used twice, or a link ends at an unknown node.
    """

    def __init__(self, nodes: Iterable[Node], links: Iterable[Link], *, name: str = "fabric") -> None:
        self.name = name
        self.nodes: dict[NodeId, Node] = {}
        for node in sorted(nodes, key=lambda node: node.id):
            if node.id in self.nodes:
                raise FabricError(f'node "{node.id}" is there twice')
            self.nodes[node.id] = node
        self.links: dict[LinkId, Link] = {}
        self.link_at: dict[LinkEnd, Link] = {}
        for link in sorted(links, key=lambda link: link.id):
            if link.id in self.links:
                raise FabricError(f'link "{link.id}" is there twice')
            self.links[link.id] = link
            for end in link.ends:
                if end.node not in self.nodes:
                    raise FabricError(f'link "{link.id}" ends at the unknown node "{end.node}"')
                if end in self.link_at:
                    raise FabricError(f'port "{end.id}" carries two links: "{self.link_at[end].id}" and "{link.id}"')
                self.link_at[end] = link

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fabric) and self.nodes == other.nodes and self.links == other.links

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def links_of(self) -> dict[NodeId, tuple[Link, ...]]:
        """The links at each node, canonical order, self-loops once."""
        found: dict[NodeId, list[Link]] = {node: [] for node in self.nodes}
        for link in self.links.values():
            found[link.a.node].append(link)
            if not link.is_self_loop:
                found[link.b.node].append(link)
        return {node: tuple(links) for node, links in found.items()}

    @cached_property
    def switches(self) -> tuple[Node, ...]:
        """All switches, canonical order."""
        return tuple(node for node in self.nodes.values() if node.is_switch)

    @cached_property
    def endpoints(self) -> tuple[Node, ...]:
        """Hosts and NICs with at least one link; aggregation nodes are not among them."""
        return tuple(node for node in self.nodes.values() if node.is_endpoint and self.links_of[node.id])

    @cached_property
    def trunks(self) -> tuple[Link, ...]:
        """Links between two different switches."""
        return tuple(link for link in self.links.values() if self.is_trunk(link))

    def is_trunk(self, link: Link) -> bool:
        """Return whether *link* joins two different switches."""
        return not link.is_self_loop and self.nodes[link.a.node].is_switch and self.nodes[link.b.node].is_switch

    def is_access(self, link: Link) -> bool:
        """Return whether *link* attaches an endpoint to a switch."""
        kinds = [self.nodes[end.node] for end in link.ends]
        return any(node.is_endpoint for node in kinds) and any(node.is_switch for node in kinds)

    @cached_property
    def access_links(self) -> dict[NodeId, tuple[Link, ...]]:
        """The links by which each endpoint attaches to switches."""
        return {
            node.id: tuple(link for link in self.links_of[node.id] if self.is_access(link)) for node in self.endpoints
        }

    @cached_property
    def attachments(self) -> dict[NodeId, tuple[NodeId, ...]]:
        """The switches each endpoint attaches to, sorted, each once. From the fabric as built, whatever its state."""
        return {
            endpoint: tuple(sorted({link.far_end(endpoint).node for link in links}))
            for endpoint, links in self.access_links.items()
        }

    @cached_property
    def class_members(self) -> dict[DestinationId, tuple[NodeId, ...]]:
        """The endpoints of each destination class, canonical order."""
        found: dict[DestinationId, list[NodeId]] = {}
        for endpoint, switches in self.attachments.items():
            if switches:
                found.setdefault(class_id(switches), []).append(endpoint)
        return {name: tuple(found[name]) for name in sorted(found)}

    @cached_property
    def destination_of(self) -> dict[NodeId, DestinationId]:
        """The endpoint destination of each attached endpoint; its class is `erfs.ids.class_of` of it."""
        return {
            endpoint: endpoint_destination(name, endpoint)
            for name, members in self.class_members.items()
            for endpoint in members
        }

    def with_nodes(self, nodes: Iterable[Node]) -> "Fabric":
        """Return this fabric with some nodes replaced (same ids)."""
        replaced = self.nodes | {node.id: node for node in nodes}
        return Fabric(replaced.values(), self.links.values(), name=self.name)

    def without_links(self, links: Iterable[LinkId]) -> "Fabric":
        """Return this fabric as if *links* had never been fitted."""
        gone = frozenset(links)
        return Fabric(
            self.nodes.values(), [link for link in self.links.values() if link.id not in gone], name=self.name
        )

    def with_inferred_tiers(self) -> "Fabric":
        """Return this fabric with the tiers of `infer_tiers`."""
        tiers = infer_tiers(self)
        return self.with_nodes(replace(node, tier=tiers[node.id]) for node in self.nodes.values())

    def to_networkx(self) -> "nx.MultiGraph[Any]":
        """Return a networkx multigraph: node attribute ``node``, edge key the link id, edge attribute ``link``."""
        graph = nx.MultiGraph()
        graph.add_nodes_from((node.id, {"node": node}) for node in self.nodes.values())
        graph.add_edges_from((link.a.node, link.b.node, link.id, {"link": link}) for link in self.links.values())
        return graph


# A switch with hosts on at least this share of its links is a leaf. A spine that carries a management host or two is none:
# on a 64-port switch 1/8 tolerates seven of them, and the leanest leaf met in a real dump has 2 hosts on 16 links.
LEAF_ENDPOINT_SHARE_MIN = (1, 8)


def infer_tiers(fabric: Fabric) -> dict[NodeId, int | None]:
    """
    Return each node's tier from the graph alone: 0 for endpoints, 1 for leaves, else the hops from the nearest leaf plus one.

    A switch that no leaf reaches has tier None; so have aggregation nodes.

    Cost: O(nodes + links).
    """
    tiers: dict[NodeId, int | None] = dict.fromkeys(fabric.nodes)
    tiers |= {node.id: 0 for node in fabric.nodes.values() if node.is_endpoint}
    share, whole = LEAF_ENDPOINT_SHARE_MIN
    hosts: dict[NodeId, int] = {}
    trunks: dict[NodeId, list[NodeId]] = {node.id: [] for node in fabric.switches}
    for link in fabric.links.values():
        if fabric.is_trunk(link):
            trunks[link.a.node].append(link.b.node)
            trunks[link.b.node].append(link.a.node)
        elif fabric.is_access(link):
            switch = link.a.node if fabric.nodes[link.a.node].is_switch else link.b.node
            hosts[switch] = hosts.get(switch, 0) + 1
    leaves = [node for node, count in hosts.items() if count * whole >= (count + len(trunks[node])) * share]
    frontier = sorted(leaves or hosts)
    tier = 1
    while frontier:
        for node in frontier:
            tiers[node] = tier
        tier += 1
        frontier = sorted({far for node in frontier for far in trunks[node] if tiers[far] is None})
    return tiers


def is_tiered(fabric: Fabric) -> bool:
    """
    Return whether up and down mean something: there are trunks, and most of them join two different known tiers.

    A torus or a dragonfly has hosts on every switch, so all its trunks are lateral: it is not tiered.
    """
    lateral = 0
    for link in fabric.trunks:
        tier_a, tier_b = fabric.nodes[link.a.node].tier, fabric.nodes[link.b.node].tier
        lateral += tier_a == tier_b or tier_a is None or tier_b is None
    return bool(fabric.trunks) and 2 * lateral < len(fabric.trunks)


def is_valley_free_required(fabric: Fabric) -> bool:
    """Return whether policy forbids valleys: a tiered fabric with a lossless or unknown medium (deadlock risk)."""
    return is_tiered(fabric) and any(link.medium is not Medium.LOSSY for link in fabric.trunks)


def goes_up(fabric: Fabric, link: Link, source: NodeId) -> bool:
    """
    Return whether *link*, taken from *source*, leads up. Ties of tier are broken by node id, so that "up" is acyclic
    (the up*/down* rule of Autonet, Schroeder et al. 1991).
    """

    def height(node: NodeId) -> tuple[int, NodeId]:
        tier = fabric.nodes[node].tier
        return (-1 if tier is None else tier), node

    return height(link.far_end(source).node) > height(source)
