"""What is left of a topology when some links are unusable: the destinations to route to, and the next hops.

Rule 1: a destination class never changes with state; an endpoint that lost some attachments gets a *stray* destination of its own.
Rule 2: endpoints are never transit: they appear as *sources*, one for each set of attachments, with link-ends towards them only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Final

import numpy as np

from erfs.ids import DestinationId, LinkId, NodeId
from erfs.paths.bits import Bits, Indices, Words, packed, unpacked
from erfs.paths.detours import Detours
from erfs.paths.mesh import Mesh
from erfs.paths.next_hops import NextHops, Touched
from erfs.paths.topology import Access, Topology
from erfs.paths.weights import EQUAL, Ground, Weighing, Weights

NO_COSTS: Final[Mapping[LinkId, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Target:
    """
    One column of the engine's matrices: what a route may lead to.

    A class has no *strays*; a stray target is the part of class *class_column* whose usable attachments are just *attachments*:
    one of *destinations* for each of *strays*.
    """

    destinations: tuple[DestinationId, ...]
    attachments: tuple[int, ...]
    class_column: int
    strays: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """Endpoints attached to several switches as built, which can now use just *attachments*."""

    attachments: tuple[int, ...]
    endpoints: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Sharing:
    """
    The weights of a situation, with what their numbers stand for: what a later situation starts from, as a value.

    The only trace that one situation leaves in another: a group keeps its weights while they are good enough. Whoever has none to start from, as
    a controller that has just been started, starts from equal ones; so its weights may differ from its predecessor's, within the tolerance.
    """

    weights: Weights
    targets: tuple[Target, ...]
    sources: tuple[Source, ...]

    def differing(self, other: "Sharing") -> Indices:
        """Return the mesh nodes that share otherwise than in *other*, of the same targets and sources. Cost: O(nodes that share unequally)."""
        nodes = np.union1d(self.weights.node, other.weights.node).tolist()
        return np.array([node for node in nodes if not self._is_alike(other, node)], dtype=np.int64)

    def _is_alike(self, other: "Sharing", node: int) -> bool:
        columns, weights = self.weights.of_node(node)
        other_columns, other_weights = other.weights.of_node(node)
        return np.array_equal(columns, other_columns) and np.array_equal(weights, other_weights)


class Situation:
    """
    A topology, what of it is out of use, and the next hops in what is left.

    Nodes of the mesh are the switches, then the sources. Link-ends are those of all trunks, then those of the sources.

    Args:
        topology: As built.
        unusable: Links to do without; trunks and access links.
        costs: Of trunks that are not to cost 1, at least 1: a trunk that is to be avoided costs more.
        previous: A situation of this topology that nobody asks for next hops any more: they are brought up to date, not computed again.
        shared: How traffic was shared before; None: equally. What *previous* says is not taken by itself: it spares work and changes no result.

    Cost: O(endpoints whose links are unusable), and of the first look at `hops` that of `NextHops`, or of its `update`.
    """

    def __init__(
        self,
        topology: Topology,
        unusable: frozenset[LinkId],
        costs: Mapping[LinkId, int] = NO_COSTS,
        previous: "Situation | None" = None,
        shared: Sharing | None = None,
    ) -> None:
        self.topology = topology
        self.unusable = unusable
        self.costs = dict(costs)
        lame = {topology.endpoint_of_access[link] for link in unusable if link in topology.endpoint_of_access}
        self.access: dict[NodeId, tuple[Access, ...]] = topology.access
        if lame:
            self.access = topology.access | {
                endpoint: tuple(access for access in topology.access[endpoint] if access.link not in unusable)
                for endpoint in lame
            }
        self._lame_homes = {
            endpoint: self.access[endpoint] for endpoint in lame if len(topology.fabric.attachments[endpoint]) > 1
        }
        self.targets: tuple[Target, ...]
        self.sources: tuple[Source, ...]
        self.source_of: dict[NodeId, int]
        if previous is not None and previous._lame_homes == self._lame_homes:  # noqa: SLF001  # of the same class
            self.targets, self.sources, self.source_of = previous.targets, previous.sources, previous.source_of
        else:
            attachments = {endpoint: _switches(self.access[endpoint]) for endpoint in topology.multi_homed}
            self.targets = _targets(topology, attachments)
            self.sources = _sources(attachments)
            self.source_of = {
                endpoint: index for index, source in enumerate(self.sources) for endpoint in source.endpoints
            }
        self._previous = previous
        self._shared = shared
        self._weighing: Weighing | None = None

    @cached_property
    def _column_of_stray(self) -> dict[NodeId, int]:
        return {endpoint: column for column, target in enumerate(self.targets) for endpoint in target.strays}

    @cached_property
    def _column_of_class(self) -> dict[DestinationId, int]:
        return {name: column for column, name in enumerate(self.topology.class_attachments)}

    def column_of(self, endpoint: NodeId) -> int:
        """Return the target that leads to *endpoint*: a stray target if it has lost attachments, else its class."""
        stray = self._column_of_stray.get(endpoint)
        return self._column_of_class[self.topology.class_of(endpoint)] if stray is None else stray

    def endpoints_of(self, column: int) -> tuple[NodeId, ...]:
        """Return the endpoints that target *column* leads to: the strays, or the class without its strays and those cut off."""
        target = self.targets[column]
        if target.strays:
            return target.strays
        members = self.topology.fabric.class_members[target.destinations[0]]
        return tuple(member for member in members if _switches(self.access[member]) == target.attachments)

    @cached_property
    def lame_switches(self) -> dict[int, tuple[LinkId, ...]]:
        """The switches with unusable links, and these links."""
        index, links = self.topology.switch_index, self.topology.fabric.links
        found: dict[int, tuple[LinkId, ...]] = {}
        for link in sorted(self.unusable & links.keys()):
            for end in links[link].ends:
                if end.node in index:
                    found[index[end.node]] = (*found.get(index[end.node], ()), link)
        return found

    @cached_property
    def peculiarities(self) -> tuple[object, ...]:
        """What, besides trunks, makes this situation another than the fabric as built: strays, and endpoints' own lost links."""
        return self.targets[len(self.topology.class_attachments) :], self.sources, self._lame_homes

    @cached_property
    def mesh(self) -> Mesh:
        """The graph to route on, as built."""
        topology = self.topology
        switch_count = len(topology.switches)
        ends = [
            (switch_count + index, switch) for index, source in enumerate(self.sources) for switch in source.attachments
        ]
        added = np.array(ends, dtype=np.int64).reshape(-1, 2)
        # Nobody shares what an endpoint's own link carries, so its capacity makes no difference to anybody's weights.
        capacity_bps = np.ones(len(ends), dtype=np.int64)
        return Mesh(
            node_count=switch_count + len(self.sources),
            transit_count=switch_count,
            source=np.concatenate([topology.end_source, added[:, 0]]),
            target=np.concatenate([topology.end_target, added[:, 1]]),
            is_up=np.concatenate([topology.end_is_up, np.ones(len(ends), dtype=np.bool_)]),
            capacity_bps=np.concatenate([topology.end_capacity_bps, capacity_bps]),
            trunk=np.concatenate([topology.end_trunk, np.full(len(ends), -1)]),
        )

    @cached_property
    def attached(self) -> Words:
        """Mesh nodes x targets: whether the node delivers."""
        return packed(self.is_attached)

    @cached_property
    def is_attached(self) -> Bits:
        """Mesh nodes x targets: whether the node delivers."""
        attached = np.zeros((self.mesh.node_count, len(self.targets)), dtype=np.bool_)
        for column, target in enumerate(self.targets):
            attached[list(target.attachments), column] = True
        return attached

    @cached_property
    def hops(self) -> NextHops:
        """Where each mesh node sends what goes to each target. Belongs to this situation until it is another one's *previous*."""
        return self._hops_and_touched[0]

    @property
    def touched(self) -> Touched | None:
        """What differs from the next hops of the previous situation; None: anything may."""
        return self._hops_and_touched[1]

    @cached_property
    def _hops_and_touched(self) -> tuple[NextHops, Touched | None]:
        topology, previous = self.topology, self._previous
        self._previous = None
        if previous is not None and (previous.targets, previous.sources) == (self.targets, self.sources):
            self.mesh, self.attached, self.is_attached = previous.mesh, previous.attached, previous.is_attached
            hops = previous.hops
            recosted = {link for link, _ in self.costs.items() ^ previous.costs.items()}
            trunks = sorted(
                topology.trunk_index[link]
                for link in (self.unusable ^ previous.unusable) | recosted
                if link in topology.trunk_index
            )
            is_usable = np.array([topology.trunks[trunk].id not in self.unusable for trunk in trunks], dtype=np.bool_)
            cost = np.array([self.costs.get(topology.trunks[trunk].id, 1) for trunk in trunks], dtype=np.int64)
            ends = topology.ends_of_trunk[trunks].ravel()
            touched = hops.update(ends, np.repeat(is_usable, 2), np.repeat(cost, 2))
            if "_detours_and_touched" in previous.__dict__:
                detours = previous._detours_and_touched[0]  # noqa: SLF001  # as below
                self._detours_and_touched = detours, detours.update(touched)
            self._weighing = previous._weighing  # noqa: SLF001  # both belong to whoever has the next hops
            if self._weighing is not None:
                self._weighing.update(touched, self._weights_before())
            return hops, touched
        usable = np.ones(len(self.mesh), dtype=np.bool_)
        cost = np.ones(len(self.mesh), dtype=np.int64)
        for link in self.unusable & topology.trunk_index.keys():
            usable[topology.ends_of_trunk[topology.trunk_index[link]]] = False
        for link in self.costs.keys() & topology.trunk_index.keys():
            cost[topology.ends_of_trunk[topology.trunk_index[link]]] = self.costs[link]
        hops = NextHops(
            self.mesh, self.attached, len(self.targets), usable, cost, is_valley_free=topology.is_valley_free
        )
        return hops, None

    @cached_property
    def _detours_and_touched(self) -> tuple[Detours, Indices]:
        self.hops  # noqa: B018  # brings the detours of the previous situation along
        if "_detours_and_touched" in self.__dict__:
            return self._detours_and_touched
        return Detours(self.hops), np.arange(self.mesh.node_count)

    @cached_property
    def sharing(self) -> Sharing:
        """How each mesh node shares what goes to a target among its next hops."""
        hops = self.hops
        if self._weighing is None:
            self._weighing = Weighing(hops, self._ground(), self._weights_before())
        return Sharing(self._weighing.weights, self.targets, self.sources)

    def _weights_before(self) -> Weights:
        shared = self._shared
        if shared is None:
            return EQUAL
        if (shared.targets, shared.sources) == (self.targets, self.sources):
            return shared.weights
        transit_count = self.mesh.transit_count
        number_of = {source.attachments: transit_count + number for number, source in enumerate(self.sources)}
        node_of = [*range(transit_count), *(number_of.get(source.attachments, -1) for source in shared.sources)]
        column_of = {target: column for column, target in enumerate(self.targets)}
        return shared.weights.moved(
            np.array(node_of, dtype=np.int64),
            np.array([column_of.get(target, -1) for target in shared.targets], dtype=np.int64),
        )

    def _ground(self) -> Ground:
        """Return what the weights are measured against, which changes with the sources only."""
        topology, hops = self.topology, self.hops
        known = topology.ground
        usual = None
        if isinstance(known, Ground):
            if known.is_of(hops.mesh):
                return known
            usual = known.usual[: 2 * hops.mesh.transit_count]
        elif not hops.usable.all() or (hops.cost != 1).any():
            every = np.ones(len(hops.mesh), dtype=np.bool_)
            hops = NextHops(
                hops.mesh,
                hops.attached,
                hops.column_count,
                every,
                every.astype(np.int64),
                is_valley_free=hops.is_valley_free,
            )
        topology.ground = found = Ground(hops, topology.arrivals_bps, usual)
        return found

    def has_detour(self, node: int) -> Bits:
        """
        Return towards which targets somebody upstream could avoid a mesh node.

        True if a node that sends by it has another next hop, or is itself avoidable; never for a target's only attachment.
        """
        marks: Bits = unpacked(self._detour_words[node : node + 1], len(self.targets))[0]
        return marks

    @property
    def has_choice(self) -> Words:
        """Mesh nodes x targets: who sends to several neighbours."""
        return self._detours_and_touched[0].has_choice

    @property
    def detours_touched(self) -> Indices:
        """The mesh nodes for which `has_detour` may differ from the previous situation; of no use where `touched` is None."""
        return self._detours_and_touched[1]

    @cached_property
    def _detour_words(self) -> Words:
        return self._detours_and_touched[0].words

    def mesh_nodes(self, node: NodeId) -> tuple[int, ...]:
        """Return the number of a switch, or of the source that an endpoint with several attachments belongs to; none for others."""
        number = self.topology.switch_index.get(node)
        if number is not None:
            return (number,)
        source = self.source_of.get(node)
        return () if source is None else (len(self.topology.switches) + source,)

    def nodes_at(self, number: int) -> tuple[NodeId, ...]:
        """Return the switch, or the endpoints, that a node of the mesh stands for."""
        switches = self.topology.switches
        return switches[number : number + 1] or self.sources[number - len(switches)].endpoints


def _switches(links: Iterable[Access]) -> tuple[int, ...]:
    return tuple(sorted({access.switch for access in links}))


def _targets(topology: Topology, attachments: dict[NodeId, tuple[int, ...]]) -> tuple[Target, ...]:
    columns = {name: column for column, name in enumerate(topology.class_attachments)}
    targets = [Target((name,), switches, columns[name]) for name, switches in topology.class_attachments.items()]
    strays: dict[tuple[int, tuple[int, ...]], list[NodeId]] = {}
    for endpoint, left in attachments.items():
        name = topology.class_of(endpoint)
        if left and left != topology.class_attachments[name]:
            strays.setdefault((columns[name], left), []).append(endpoint)
    destination_of = topology.fabric.destination_of
    targets += [
        Target(tuple(destination_of[endpoint] for endpoint in endpoints), left, column, tuple(endpoints))
        for (column, left), endpoints in sorted(strays.items())
    ]
    return tuple(targets)


def _sources(attachments: dict[NodeId, tuple[int, ...]]) -> tuple[Source, ...]:
    found: dict[tuple[int, ...], list[NodeId]] = {}
    for endpoint, left in attachments.items():
        if left:
            found.setdefault(left, []).append(endpoint)
    return tuple(Source(left, tuple(found[left])) for left in sorted(found))
