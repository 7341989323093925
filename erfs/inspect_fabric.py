"""What should an operator know about a fabric at a glance?

Rule 1: everything here follows from the fabric alone; whether its links work is not known.
Rule 2: "missing" is a comparison with the modal count, never a fact: an absent cable may be broken, isolated or never fitted.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import networkx as nx

from erfs.fabric import Fabric, Link, Node, NodeKind, is_tiered, is_valley_free_required
from erfs.ids import LinkId, NodeId
from erfs.units import format_bps

# A switch with fewer than this share of its tier's modal uplinks has another role (a management leaf), so nothing is missing there.
_SAME_ROLE_SHARE: Final = (1, 2)

NO_TIER: Final = "none"

CONVENTION: Final = (
    "missing = the modal count minus the actual one: of uplinks over the switches of a tier, and of parallel links over the "
    "switch pairs of two tiers; a switch with less than half the modal uplinks has another role and is listed apart"
)


@dataclass(frozen=True, slots=True)
class LinkGroup:
    """Links of one sort."""

    tiers: str  # such as "0-1"; aggregation nodes have NO_TIER
    joins: str  # such as "nic-switch"
    capacity_bps: int
    medium: str
    is_capacity_assumed: bool
    count: int

    @property
    def speed(self) -> str:
        """The capacity for people."""
        return format_bps(self.capacity_bps) + (" (assumed)" if self.is_capacity_assumed else "")


@dataclass(frozen=True, slots=True)
class Cut:
    """One node or link whose loss cuts endpoints off the larger part, and which; other switches too if it splits them."""

    id: str
    name: str
    endpoints_cut_off: tuple[NodeId, ...]
    switches_cut_off: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Uplinks:
    """The uplinks of the switches of one tier."""

    tier: int
    modal: int
    switches_by_count: dict[int, int]
    missing: int
    short: tuple[tuple[NodeId, str, int], ...]  # id, name, uplinks: fewer than the mode
    other_role: tuple[tuple[NodeId, str, int], ...]


@dataclass(frozen=True, slots=True)
class Bundles:
    """The parallel links between switches of two tiers."""

    tiers: str
    modal: int
    pairs_by_count: dict[int, int]
    missing: int
    short: tuple[tuple[NodeId, NodeId, int], ...]  # pairs with fewer links than the mode


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything `erfs fabric show` prints."""

    name: str
    switches: int
    endpoints: int
    aggregation_nodes: int
    links: int
    self_loops: int
    trunks: int
    hosts: int  # that endpoints name as theirs, or are themselves
    unlinked_nodes: tuple[NodeId, ...]
    repeated_names: int
    nodes_by_tier: dict[str, int]
    links_by_sort: tuple[LinkGroup, ...]
    components: tuple[int, ...]  # nodes in each, the largest first
    is_tiered: bool
    is_valley_free_required: bool
    endpoints_by_attachments: dict[int, int]
    endpoints_on_one_link: int
    bridges: tuple[Cut, ...]  # trunks; the access links of single-attached endpoints are counted above
    cutting_switches: tuple[Cut, ...]
    uplinks: tuple[Uplinks, ...]
    bundles: tuple[Bundles, ...]
    self_loop_links: tuple[LinkId, ...]
    convention: str = CONVENTION

    def as_json(self) -> dict[str, Any]:
        """Return this as JSON types, names spelled out."""
        data = asdict(self)
        data["uplinks"] = [
            group
            | {
                key: [{"id": id_, "name": name, "uplinks": count} for id_, name, count in group[key]]
                for key in ("short", "other_role")
            }
            for group in data["uplinks"]
        ]
        data["bundles"] = [
            group | {"short": [{"a": one, "b": other, "links": count} for one, other, count in group["short"]]}
            for group in data["bundles"]
        ]
        return data


def inspect(fabric: Fabric) -> Findings:
    """
    Return what there is to know about *fabric* at a glance.

    Cost: O(nodes + links) and, for each switch whose loss splits the switches, once more over the switches.
    """
    kinds = Counter(node.kind for node in fabric.nodes.values())
    endpoints = fabric.endpoints
    attached = Counter(len(switches) for switches in fabric.attachments.values())
    loops = tuple(link.id for link in fabric.links.values() if link.is_self_loop)
    names = Counter(node.name for node in fabric.nodes.values() if node.name and node.kind is not NodeKind.AGGREGATION)
    bridges, cutting = _cuts(fabric)
    return Findings(
        name=fabric.name,
        switches=len(fabric.switches),
        endpoints=len(endpoints),
        aggregation_nodes=kinds[NodeKind.AGGREGATION],
        links=len(fabric.links),
        self_loops=len(loops),
        trunks=len(fabric.trunks),
        hosts=len({node.labels.get("host") or node.id for node in endpoints}),
        unlinked_nodes=tuple(node for node, links in fabric.links_of.items() if not links),
        repeated_names=sum(count > 1 for count in names.values()),
        nodes_by_tier=dict(sorted(Counter(map(_tier, fabric.nodes.values())).items())),
        links_by_sort=_sorts(fabric),
        components=_components(fabric),
        is_tiered=is_tiered(fabric),
        is_valley_free_required=is_valley_free_required(fabric),
        endpoints_by_attachments=dict(sorted(attached.items())),
        endpoints_on_one_link=sum(len(links) == 1 for links in fabric.access_links.values()),
        bridges=bridges,
        cutting_switches=cutting,
        uplinks=_uplinks(fabric) if is_tiered(fabric) else (),
        bundles=_bundles(fabric),
        self_loop_links=loops,
    )


def _tier(node: Node) -> str:
    return NO_TIER if node.tier is None else str(node.tier)


def _ends(fabric: Fabric, link: Link) -> list[Node]:
    """Return the nodes of *link*, the lower tier first."""
    return sorted((fabric.nodes[end.node] for end in link.ends), key=lambda node: (_tier(node), node.kind, node.id))


def _sorts(fabric: Fabric) -> tuple[LinkGroup, ...]:
    found: Counter[tuple[str, str, int, str, bool]] = Counter()
    for link in fabric.links.values():
        low, high = _ends(fabric, link)
        is_assumed = link.labels.get("capacity") == "assumed"
        joins = f"{low.kind}-{high.kind}"
        found[f"{_tier(low)}-{_tier(high)}", joins, link.capacity_bps, link.medium.value, is_assumed] += 1
    return tuple(LinkGroup(*sort, count) for sort, count in sorted(found.items()))


def _components(fabric: Fabric) -> tuple[int, ...]:
    graph = nx.Graph()
    graph.add_nodes_from(fabric.nodes)
    graph.add_edges_from((link.a.node, link.b.node) for link in fabric.links.values())
    return tuple(sorted(map(len, nx.connected_components(graph)), reverse=True))


def _cuts(fabric: Fabric) -> tuple[tuple[Cut, ...], tuple[Cut, ...]]:
    """
    Return the trunks and the switches whose loss cuts endpoints off from the rest, with those endpoints.

    Endpoints carry nothing for others, so what holds the fabric together is the graph of switches alone.
    """
    count = Counter(_pair(link) for link in fabric.trunks)
    graph = nx.Graph()
    graph.add_nodes_from(node.id for node in fabric.switches)
    graph.add_edges_from(count)
    weight = Counter(switch for switches in fabric.attachments.values() for switch in switches)
    attached: dict[NodeId, list[NodeId]] = {}
    for endpoint, switches in fabric.attachments.items():
        for switch in switches:
            attached.setdefault(switch, []).append(endpoint)

    def cut_off(lost: set[NodeId]) -> tuple[NodeId, ...]:
        return tuple(
            sorted(
                {
                    endpoint
                    for switch in lost
                    for endpoint in attached.get(switch, ())
                    if set(fabric.attachments[endpoint]) <= lost
                }
            )
        )

    bridges: list[Cut] = []
    single = {_pair(link): link for link in fabric.trunks if count[_pair(link)] == 1}
    for one, other in nx.bridges(graph):
        link = single.get((one, other) if one < other else (other, one))
        if link is not None:
            rest = nx.restricted_view(graph, [], [(one, other)])
            sides = [set(nx.node_connected_component(rest, node)) for node in (link.a.node, link.b.node)]
            lost = min(sides, key=lambda side: (_weight(side, weight), len(side)))
            name = " to ".join(fabric.nodes[end.node].label for end in link.ends)
            bridges.append(Cut(link.id, name, cut_off(lost), tuple(sorted(lost))))
    splitting = set(nx.articulation_points(graph))
    cutting: list[Cut] = []
    for node in fabric.switches:
        lost = {node.id}
        if node.id in splitting:
            rest = nx.restricted_view(graph, [node.id], [])
            parts = _parts(rest, graph.neighbors(node.id))
            keep = max(parts, key=lambda part: (_weight(part, weight), len(part)))
            lost.update(*(part for part in parts if part is not keep))
        endpoints = cut_off(lost)
        if endpoints:
            cutting.append(Cut(node.id, node.label, endpoints, tuple(sorted(lost - {node.id}))))
    return _worst_first(bridges), _worst_first(cutting)


def _parts(graph: "nx.Graph[Any]", starts: Iterable[NodeId]) -> list[set[NodeId]]:
    parts: list[set[NodeId]] = []
    for start in sorted(starts):
        if not any(start in part for part in parts):
            parts.append(set(nx.node_connected_component(graph, start)))
    return parts


def _weight(nodes: Iterable[NodeId], weight: Mapping[NodeId, int]) -> int:
    return sum(weight[node] for node in nodes if node in weight)


def _worst_first(cuts: list[Cut]) -> tuple[Cut, ...]:
    return tuple(sorted(cuts, key=lambda cut: (-len(cut.endpoints_cut_off), cut.id)))


def _pair(link: Link) -> tuple[NodeId, NodeId]:
    one, other = sorted((link.a.node, link.b.node))
    return one, other


def _uplinks(fabric: Fabric) -> tuple[Uplinks, ...]:
    counts: dict[NodeId, int] = {node.id: 0 for node in fabric.switches}
    for link in fabric.trunks:
        tiers = [(fabric.nodes[end.node].tier, end.node) for end in link.ends]
        if None not in (tiers[0][0], tiers[1][0]) and tiers[0][0] != tiers[1][0]:
            counts[min(tiers, key=lambda item: item[0] or 0)[1]] += 1
    by_tier: dict[int, list[Node]] = {}
    for node in fabric.switches:
        if node.tier is not None:
            by_tier.setdefault(node.tier, []).append(node)
    found: list[Uplinks] = []
    share, whole = _SAME_ROLE_SHARE
    for tier, nodes in sorted(by_tier.items()):
        spread = Counter(counts[node.id] for node in nodes)
        modal = _mode(spread)
        if not modal:
            continue  # the top tier has no uplinks
        below = sorted(
            ((node.id, node.label, counts[node.id]) for node in nodes if counts[node.id] < modal),
            key=lambda item: (item[2], item[0]),
        )
        short = tuple(item for item in below if item[2] * whole >= modal * share)
        found.append(
            Uplinks(
                tier=tier,
                modal=modal,
                switches_by_count=dict(sorted(spread.items(), reverse=True)),
                missing=sum(modal - count for _, _, count in short),
                short=short,
                other_role=tuple(item for item in below if item[2] * whole < modal * share),
            )
        )
    return tuple(found)


def _bundles(fabric: Fabric) -> tuple[Bundles, ...]:
    count = Counter(_pair(link) for link in fabric.trunks)
    by_tiers: dict[str, dict[tuple[NodeId, NodeId], int]] = {}
    for pair, links in sorted(count.items()):
        tiers = "-".join(sorted(_tier(fabric.nodes[node]) for node in pair))
        by_tiers.setdefault(tiers, {})[pair] = links
    found: list[Bundles] = []
    for tiers, pairs in sorted(by_tiers.items()):
        spread = Counter(pairs.values())
        modal = _mode(spread)
        short = tuple((*pair, links) for pair, links in pairs.items() if links < modal)
        found.append(
            Bundles(
                tiers=tiers,
                modal=modal,
                pairs_by_count=dict(sorted(spread.items(), reverse=True)),
                missing=sum(modal - links for *_, links in short),
                short=short,
            )
        )
    return tuple(found)


def _mode(spread: Mapping[int, int]) -> int:
    """Return the most frequent count; of several, the highest, so that a tie shows what may be missing."""
    return max(spread, key=lambda count: (spread[count], count))
