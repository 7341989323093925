"""A verifier that looks at one destination after the other, with networkx: slow, plain, and without a line of the engine's."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

import networkx as nx

from erfs.fabric import Fabric, LinkEnd, goes_up, is_valley_free_required
from erfs.ids import EVERYTHING, DestinationId, LinkId, NodeId, class_of, is_endpoint, lookup_order
from erfs.messages import Group, Member, Program, Route, sealed
from tests.paths.fabrics import Draft, Tables

Table = dict[DestinationId, tuple[Member, ...]]


@dataclass
class Judgement:
    """What is wrong with the tables towards one destination."""

    loops: set[frozenset[NodeId]] = field(default_factory=set)
    blackholes: set[tuple[NodeId, str]] = field(default_factory=set)
    valleys: set[tuple[NodeId, str]] = field(default_factory=set)
    unreached: set[NodeId] = field(default_factory=set)
    missed: set[NodeId] = field(default_factory=set)

    @property
    def is_clean(self) -> bool:
        return not self.loops and not self.blackholes and not self.valleys


def judge(fabric: Fabric, tables: Tables, destination: DestinationId, working: Callable[[LinkId], bool]) -> Judgement:
    """Follow what goes to *destination*, a class or an endpoint."""
    found = Judgement()
    owner = next((node for node, name in fabric.destination_of.items() if name == destination), None)
    attachments = set(fabric.attachments[fabric.class_members[class_of(destination)][0]])
    switches = {node.id for node in fabric.switches}
    several = {node for node in tables if len(fabric.attachments.get(node, ())) > 1}
    sources = ({switch for homes in fabric.attachments.values() for switch in homes} | several) - {owner}
    members: dict[NodeId, tuple[Member, ...] | None] = {}
    for node in switches | several:
        table = tables.get(node, {})
        name = next((name for name in lookup_order(destination) if name in table), None)
        members[node] = table[name] if name is not None and node != owner else None
    if owner is not None:
        arrived = {owner}
    else:
        arrived = {node for node in attachments if node in tables and members[node] is None}

    graph: nx.MultiDiGraph[NodeId] = nx.MultiDiGraph()
    graph.add_nodes_from(fabric.nodes)
    broken: set[tuple[NodeId, str]] = set()
    for node, hops in members.items():
        for member in hops or ():
            link = fabric.link_at.get(LinkEnd(node, member.port))
            if link is not None and working(link.id):
                graph.add_edge(node, link.far_end(node).node, key=member.port, link=link)
            else:
                broken.add((node, member.port))
    onward = graph.subgraph(switches)
    for ring in nx.strongly_connected_components(onward):
        if len(ring) > 1 or any(onward.has_edge(node, node) for node in ring):
            found.loops.add(frozenset(ring))

    # Packets go from a source to its next hops and from switch to switch; into an endpoint they go, but never out of it.
    comes_by: set[NodeId] = {
        node for node in sources if node in switches or any(working(link.id) for link in fabric.links_of[node])
    }
    handed: set[NodeId] = set()
    waiting = sorted(comes_by)
    while waiting:
        for far in graph.successors(waiting.pop()):
            handed.add(far)
            if far in switches and far not in comes_by:
                comes_by.add(far)
                waiting.append(far)
    is_cut_off = owner is not None and not any(working(link.id) for link in fabric.access_links[owner])
    if not is_cut_off:
        found.blackholes = {(node, port) for node, port in broken if node in comes_by}
        for node in handed - arrived:
            if node not in switches or not members[node]:
                found.blackholes.add((node, ""))

    is_policy = is_valley_free_required(fabric)
    if is_policy:
        came_down = {
            far
            for node, far, link in graph.edges(data="link")
            if node in comes_by and fabric.is_trunk(link) and not goes_up(fabric, link, node)
        }
        found.valleys = {
            (node, port)
            for node, _, port, link in graph.edges(keys=True, data="link")
            if node in came_down and fabric.is_trunk(link) and goes_up(fabric, link, node)
        }

    for source in sources:
        if not arrives(graph, source, arrived, switches):
            found.unreached.add(source)
            if has_path(fabric, source, destination, working):
                found.missed.add(source)
    return found


def arrives(graph: "nx.MultiDiGraph[NodeId]", source: NodeId, arrived: set[NodeId], switches: set[NodeId]) -> bool:
    """Return whether some branch from *source* ends where it should."""
    return source in arrived or bool(arrived & reachable(graph, source, switches))


def reachable(graph: "nx.MultiDiGraph[NodeId]", source: NodeId, switches: set[NodeId]) -> set[NodeId]:
    """Return where packets of *source* get to; endpoints pass nothing on."""
    found: set[NodeId] = set()
    waiting = [source]
    while waiting:
        for far in graph.successors(waiting.pop()):
            if far not in found:
                found.add(far)
                if far in switches:
                    waiting.append(far)
    return found


def has_path(fabric: Fabric, source: NodeId, destination: DestinationId, working: Callable[[LinkId], bool]) -> bool:
    """Return whether policy permits some path over working links; states are (node, may it still go up)."""
    is_policy = is_valley_free_required(fabric)
    owner = next((node for node, name in fabric.destination_of.items() if name == destination), None)
    goals = set(fabric.attachments[fabric.class_members[class_of(destination)][0]]) if owner is None else {owner}
    seen = {(source, True)}
    waiting = [(source, True)]
    while waiting:
        node, may_go_up = waiting.pop()
        if node in goals and (node == owner or fabric.nodes[node].is_switch):
            return True
        for link in fabric.links_of[node]:
            far = link.far_end(node).node
            if not working(link.id) or not (fabric.nodes[node].is_switch or node == source):
                continue
            if fabric.is_trunk(link):
                is_up = goes_up(fabric, link, node)
                if is_policy and is_up and not may_go_up:
                    continue
                state = (far, may_go_up and is_up)
            elif fabric.is_access(link) and (node == source or far == owner):
                state = (far, True)
            else:
                continue
            if state not in seen:
                seen.add(state)
                waiting.append(state)
    return False


def scramble(fabric: Fabric, tables: Mapping[NodeId, Table], random: Random, *, count: int) -> None:
    """Replace *count* routes by rubbish: any ports, none, ports that no cable is in; routes and whole tables go missing."""
    names = [*fabric.class_members, *fabric.destination_of.values(), EVERYTHING, DestinationId("@nowhere")]
    nodes = sorted(tables)
    for _ in range(count):
        node = random.choice(nodes)
        ports = [*(link.end_at(node).port for link in fabric.links_of[node]), "no such port"]
        members = tuple(Member(port=port) for port in sorted(set(random.choices(ports, k=random.randint(0, 3)))))
        is_own = fabric.nodes[node].is_switch or len(fabric.attachments[node]) > 1
        name = random.choice(names) if is_own else EVERYTHING
        if random.random() < 0.1:
            tables[node].pop(name, None)
        elif random.random() < 0.03:
            tables[node].clear()
        else:
            tables[node][name] = members


def is_apart(fabric: Fabric, tables: Tables, destination: DestinationId, working: Callable[[LinkId], bool]) -> bool:
    """Return whether some node does other than its class asks with what goes to one endpoint."""
    if not is_endpoint(destination):
        return False
    owner = next(node for node, name in fabric.destination_of.items() if name == destination)
    for node, table in tables.items():
        if destination in table and (fabric.nodes[node].is_switch or len(fabric.attachments.get(node, ())) > 1):
            links = [fabric.link_at.get(LinkEnd(node, member.port)) for member in table[destination]]
            if not links:
                return True
            if any(link is None or not working(link.id) or link.far_end(node).node != owner for link in links):
                return True
    return any(destination not in tables.get(switch, {}) for switch in fabric.attachments[owner])


def tiers(random: Random) -> Fabric:
    """Return a fabric on which valleys are forbidden: three tiers with gaps, cables beside and across them, hosts on any switch."""
    while True:
        draft = Draft()
        levels = [
            [draft.switch(f"t{tier}-{index}", tier) for index in range(random.randint(2, 3))] for tier in (1, 2, 3)
        ]
        for lower, upper in itertools.pairwise(levels):
            for one in lower:
                for other in random.sample(upper, random.randint(1, len(upper))):
                    draft.cable(one, other)
        switches = [switch for level in levels for switch in level]
        for _ in range(random.randint(0, 2)):
            draft.cable(*random.sample(switches, 2))
        for index, switch in enumerate(switches):
            if index < 2 or random.random() < 0.4:
                draft.host(f"h{index}", switch)
        for index in range(random.randint(0, 2)):
            draft.host(f"m{index}", *random.sample(switches, random.randint(2, 3)))
        fabric = draft.fabric()
        if is_valley_free_required(fabric):
            return fabric


def always(link: LinkId) -> bool:
    """Call every link working."""
    return True


def port_to(fabric: Fabric, node: str, far: str) -> Member:
    """Return the member by which *node* sends to its neighbour *far*."""
    link = next(link for link in fabric.links_of[NodeId(node)] if link.far_end(NodeId(node)).node == far)
    return Member(port=link.end_at(NodeId(node)).port)


def with_route(fabric: Fabric, program: Program, destination: str, *far_ends: str) -> Program:
    """Return *program* with another route to *destination*."""
    table = {route.destination: program.groups[route.group].members for route in program.routes}
    members = tuple(sorted((port_to(fabric, program.node, far) for far in far_ends), key=lambda member: member.port))
    return with_table(program, table | {DestinationId(destination): members})


def with_table(program: Program, table: Table) -> Program:
    """Return *program* with just the routes of *table*, groups numbered as they are needed."""
    numbers: dict[tuple[Member, ...], int] = {}
    routes = tuple(
        Route(destination=name, group=numbers.setdefault(table[name], len(numbers))) for name in sorted(table)
    )
    groups = tuple(Group(id=number, members=members) for members, number in numbers.items())
    return sealed(program.model_copy(update={"routes": routes, "groups": groups}))
