"""Whether a set of forwarding tables delivers: loops, black holes and destinations out of reach, found in the tables alone.

Rule 1: any tables may be judged, half-installed and hand-made ones too; nothing is assumed of how they came about.
Rule 2: a packet is followed along every next hop; shares don't matter here.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import networkx as nx

from erfs.fabric import Fabric, LinkEnd
from erfs.ids import EVERYTHING, DestinationId, LinkId, NodeId, is_endpoint, lookup_order
from erfs.messages import Member

Tables = Mapping[NodeId, Mapping[DestinationId, tuple[Member, ...]]]


@dataclass(frozen=True, slots=True)
class Loop:
    """Nodes that send what goes to *destination* round among themselves, canonical order."""

    destination: DestinationId
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Blackhole:
    """*node* is sent what goes to *destination* and loses it: by *port*, whose link does not work, or for want of a next hop (port empty)."""

    destination: DestinationId
    node: NodeId
    port: str = ""


@dataclass(frozen=True, slots=True)
class Unreached:
    """None of what *sources* send to *destination* arrives."""

    destination: DestinationId
    sources: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with the tables; each part in canonical order."""

    loops: tuple[Loop, ...]
    blackholes: tuple[Blackhole, ...]
    unreached: tuple[Unreached, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing loops and nothing is lost on the way. What is out of reach is no fault of the tables alone."""
        return not self.loops and not self.blackholes


def verify(fabric: Fabric, tables: Tables, *, working: Callable[[LinkId], bool]) -> Verdict:
    """
    Judge *tables* for every destination class, and for every endpoint of which its class does not tell the whole story.

    Sources are the switches with endpoints, and the endpoints that have a table and several attachments. An endpoint with one attachment is
    judged once, under `EVERYTHING`: does its table lead to a switch? A class has arrived at any of its switches that has no route for it;
    from there each endpoint's own route must lead to the endpoint.

    Args:
        fabric: As built.
        tables: Members by destination for each node, looked up the most specific first; a node without a table forwards nothing.
        working: Whether a link carries packets now.

    Returns:
        Loops whether or not anybody sends into them; black holes where a source's packets come by. An endpoint without a working
        link is unreached, whoever sends to it; that is nobody's black hole.

    Cost: O(destinations x (nodes + next hops)).
    """
    judge = _Judge(fabric, tables, working)
    found = [judge.judge_single_homed(), *(judge.judge(destination) for destination in judge.destinations())]
    return Verdict(
        loops=tuple(loop for verdict in found for loop in verdict.loops),
        blackholes=tuple(hole for verdict in found for hole in verdict.blackholes),
        unreached=tuple(lost for verdict in found for lost in verdict.unreached),
    )


@dataclass(frozen=True, slots=True)
class _Sending:
    """Where a node's members lead: *far* over working links, and the ports whose link does not work."""

    far: tuple[NodeId, ...]
    broken: tuple[str, ...]


_NOTHING: Final = _Sending((), ())


class _Judge:
    def __init__(self, fabric: Fabric, tables: Tables, working: Callable[[LinkId], bool]) -> None:
        self._fabric = fabric
        self._tables = tables
        self._works = {link: working(link) for link in fabric.links}
        self._sendings: dict[tuple[NodeId, tuple[Member, ...]], _Sending] = {}
        self._endpoint_of = {destination: endpoint for endpoint, destination in fabric.destination_of.items()}
        self._transit = frozenset(node.id for node in fabric.switches)
        self._senders = [node for node in tables if node in self._transit or len(fabric.attachments.get(node, ())) > 1]
        attaching = {switch for switches in fabric.attachments.values() for switch in switches}
        homes = {node: len(fabric.attachments[node]) for node in fabric.destination_of if node in tables}
        self._single_homed = [node for node, count in homes.items() if count == 1]
        self._sources = [node for node in fabric.nodes if node in attaching or homes.get(node, 0) > 1]

    def destinations(self) -> Iterator[DestinationId]:
        """Yield each class, then those of its endpoints that some node routes apart, or that one of their switches does not serve."""
        apart: set[DestinationId] = set()
        for node, table in self._tables.items():
            for destination, members in table.items():
                if is_endpoint(destination) and not self._is_delivery(node, destination, members):
                    apart.add(destination)
        for name, endpoints in self._fabric.class_members.items():
            yield name
            for endpoint in endpoints:
                destination = self._fabric.destination_of[endpoint]
                if destination in apart or not all(
                    destination in self._tables.get(switch, {}) for switch in self._fabric.attachments[endpoint]
                ):
                    yield destination

    def judge_single_homed(self) -> Verdict:
        """Return the verdict on the way from endpoints with one attachment to their switch."""
        sendings = {node: self._sending(node, self._tables[node].get(EVERYTHING, ())) for node in self._single_homed}
        lost = tuple(
            node
            for node, sending in sendings.items()
            if not sending.far and any(self._works[link.id] for link in self._fabric.access_links[node])
        )
        return Verdict((), (), (Unreached(EVERYTHING, lost),) if lost else ())

    def judge(self, destination: DestinationId) -> Verdict:
        """Return the verdict on one destination."""
        arrived, sendings = self._forwarding(destination)
        owner = self._endpoint_of.get(destination)
        is_cut_off = owner is not None and not any(self._works[link.id] for link in self._fabric.access_links[owner])
        blackholes: list[Blackhole] = []
        if not is_cut_off:
            handed, reached = self._reached(sendings, owner)
            for node in sorted(reached | handed):
                if node in reached:
                    blackholes += [Blackhole(destination, node, port) for port in sendings.get(node, _NOTHING).broken]
                is_stuck = node not in self._transit or sendings.get(node, _NOTHING) == _NOTHING
                if node in handed and node not in arrived and is_stuck:
                    blackholes.append(Blackhole(destination, node))
        served = _upstream(sendings, arrived, self._transit)
        lost = tuple(node for node in self._sources if node not in served and node != owner)
        return Verdict(
            loops=tuple(Loop(destination, nodes) for nodes in _loops(sendings, self._transit)),
            blackholes=tuple(blackholes),
            unreached=(Unreached(destination, lost),) if lost else (),
        )

    def _forwarding(self, destination: DestinationId) -> tuple[set[NodeId], dict[NodeId, _Sending]]:
        """Return where *destination* has arrived, and where every other switch and source sends it."""
        owner = self._endpoint_of.get(destination)
        names = lookup_order(destination)
        arrived = {owner} if owner is not None else set[NodeId]()
        sendings: dict[NodeId, _Sending] = {}
        attachments = set(self._attachments(destination)) if owner is None else set()
        for node in self._senders:
            table = self._tables[node]
            members = next((table[name] for name in names if name in table), None)
            if members is None and node in attachments:
                arrived.add(node)
            elif members and node != owner:
                sendings[node] = self._sending(node, members)
        return arrived, sendings

    def _attachments(self, name: DestinationId) -> tuple[NodeId, ...]:
        return self._fabric.attachments[self._fabric.class_members[name][0]]

    def _sending(self, node: NodeId, members: tuple[Member, ...]) -> _Sending:
        found = self._sendings.get((node, members))
        if found is None:
            far: set[NodeId] = set()
            broken: list[str] = []
            for member in members:
                link = self._fabric.link_at.get(LinkEnd(node, member.port))
                if link is not None and self._works[link.id]:
                    far.add(link.far_end(node).node)
                else:
                    broken.append(member.port)
            found = self._sendings[node, members] = _Sending(tuple(sorted(far)), tuple(sorted(broken)))
        return found

    def _is_delivery(self, node: NodeId, destination: DestinationId, members: tuple[Member, ...]) -> bool:
        """Return whether a route hands everything to its endpoint over working links."""
        owner = self._endpoint_of.get(destination)
        return owner is not None and self._sending(node, members) == _Sending((owner,), ())

    def _reached(self, sendings: Mapping[NodeId, _Sending], owner: NodeId | None) -> tuple[set[NodeId], set[NodeId]]:
        """Return the nodes that somebody hands a packet to, and those with the sources."""
        handed: set[NodeId] = set()
        reached = {node for node in self._sources if node != owner}
        waiting = sorted(reached)
        while waiting:
            for far in sendings.get(waiting.pop(), _NOTHING).far:
                handed.add(far)
                # An endpoint is not transit: what is handed to the wrong one is lost there, whatever its own table says.
                if far not in reached and far in self._transit:
                    reached.add(far)
                    waiting.append(far)
        return handed, reached


def _upstream(sendings: Mapping[NodeId, _Sending], arrived: set[NodeId], transit: frozenset[NodeId]) -> set[NodeId]:
    """Return all from which some branch arrives."""
    senders: dict[NodeId, list[NodeId]] = {}
    for node, sending in sendings.items():
        for far in sending.far:
            senders.setdefault(far, []).append(node)
    served = set(arrived)
    waiting = list(arrived)
    while waiting:
        for node in senders.get(waiting.pop(), ()):
            if node not in served:
                served.add(node)
                if node in transit:
                    waiting.append(node)
    return served


def _loops(sendings: Mapping[NodeId, _Sending], transit: frozenset[NodeId]) -> list[tuple[NodeId, ...]]:
    """Return the nodes of each loop."""
    # Nearly always there is none: taking away what leads nowhere, again and again, leaves nothing.
    between = {
        node: [far for far in sending.far if far in transit and far in sendings]
        for node, sending in sendings.items()
        if node in transit
    }
    senders: dict[NodeId, list[NodeId]] = {}
    for node, neighbours in between.items():
        for far in neighbours:
            senders.setdefault(far, []).append(node)
    fan_out = {node: len(neighbours) for node, neighbours in between.items()}
    waiting = [node for node, count in fan_out.items() if not count]
    while waiting:
        node = waiting.pop()
        del fan_out[node]
        for sender in senders.get(node, ()):
            fan_out[sender] -= 1
            if not fan_out[sender]:
                waiting.append(sender)
    if not fan_out:
        return []
    # What is left loops or leads into a loop.
    graph = nx.DiGraph((node, far) for node in fan_out for far in between[node] if far in fan_out)
    rings = [ring for ring in nx.strongly_connected_components(graph) if len(ring) > 1]
    return sorted(tuple(sorted(ring)) for ring in rings)
