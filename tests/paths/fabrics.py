"""Small fabrics for the path engine's tests, made by hand or drawn at random, and a walker that shares no code with the engine."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

import networkx as nx
from hypothesis import strategies as st

from erfs.fabric import Fabric, Link, LinkEnd, Medium, Node, NodeKind, is_valley_free_required
from erfs.generators import generate
from erfs.ids import DestinationId, LinkId, NodeId, lookup_order
from erfs.messages import Member, Program

GBPS = 1_000_000_000
Tables = Mapping[NodeId, Mapping[DestinationId, tuple[Member, ...]]]


class Draft:
    """A fabric in the making: ports are numbered as links come."""

    def __init__(self, medium: Medium = Medium.UNKNOWN) -> None:
        self.nodes: dict[NodeId, Node] = {}
        self.links: list[Link] = []
        self.medium = medium
        self._next_port: dict[NodeId, int] = {}

    def switch(self, name: str, tier: int | None = None) -> NodeId:
        self.nodes[NodeId(name)] = Node(NodeId(name), NodeKind.SWITCH, tier=tier)
        return NodeId(name)

    def host(self, name: str, *switches: NodeId) -> NodeId:
        self.nodes[NodeId(name)] = Node(NodeId(name), NodeKind.HOST, tier=0)
        for switch in switches:
            self.cable(NodeId(name), switch)
        return NodeId(name)

    def cable(self, one: NodeId, other: NodeId) -> LinkId:
        link = Link.between(
            LinkEnd(one, self._port(one)), LinkEnd(other, self._port(other)), capacity_bps=GBPS, medium=self.medium
        )
        self.links.append(link)
        return link.id

    def fabric(self) -> Fabric:
        return Fabric(self.nodes.values(), self.links)

    def _port(self, node: NodeId) -> str:
        self._next_port[node] = self._next_port.get(node, 0) + 1
        return f"p{self._next_port[node]}"


def graph_with_hosts(graph: "nx.Graph[int]") -> Fabric:
    """Return *graph* as a fabric without tiers, a host on each of its nodes."""
    draft = Draft()
    for node in graph.nodes:
        draft.host(f"h{node}", draft.switch(f"s{node}"))
    for one, other in graph.edges:
        draft.cable(NodeId(f"s{one}"), NodeId(f"s{other}"))
    return draft.fabric()


def tangle(random: Random) -> Fabric:
    """Return a fabric on which valleys are allowed, larger and more tangled than those that are drawn to be shrunk."""
    draft = Draft()
    switches = [draft.switch(f"s{index}") for index in range(random.randint(4, 8))]
    order = random.sample(switches, len(switches))
    for index in range(1, len(order)):
        draft.cable(order[index], order[random.randrange(index)])
    for _ in range(random.randint(2, len(switches))):
        draft.cable(*random.sample(switches, 2))
    for index, switch in enumerate(switches):
        if index < 2 or random.random() < 0.4:
            draft.host(f"h{index}", switch)
    for index in range(random.randint(0, 3)):
        draft.host(f"m{index}", *random.sample(switches[:4], 2))
    return draft.fabric()


# Fabrics as they are built, of each kind that the engine is for.
FAMILIES: list[tuple[str, dict[str, object]]] = [
    ("fat-tree", {"k": 4}),
    ("fat-tree", {"k": 6}),
    ("fat-tree", {"k": 4, "medium": "lossy"}),
    ("leaf-spine", {"leaves": 4, "spines": 3, "cables": 2, "attachments": 2}),
    ("rail", {"hosts": 8, "nics_per_host": 4, "hosts_per_group": 4, "spines": 3, "cables": 2}),
    ("dragonfly", {"switches_per_group": 3, "hosts_per_switch": 1, "global_links_per_switch": 1}),
    ("dragonfly", {"switches_per_group": 4, "hosts_per_switch": 1, "global_links_per_switch": 2}),
    ("torus", {"dims": (4, 4)}),
    ("torus", {"dims": (3, 3, 3)}),
]


def family(number: int) -> Fabric:
    """Return the fabric of one line of `FAMILIES`."""
    kind, params = FAMILIES[number]
    return generate(kind, params)


def family_name(number: int) -> str:
    """Return what to call it in a test's name."""
    kind, params = FAMILIES[number]
    return "-".join([kind, *(str(value) for value in params.values())])


@st.composite
def plain_fabrics(draw: st.DrawFn, *, most_switches: int = 6) -> Fabric:
    """Draw a fabric on which valleys are allowed: any graph, parallel cables, hosts with one to three attachments."""
    draft = Draft()
    count = draw(st.integers(2, most_switches))
    switches = [draft.switch(f"s{index}") for index in range(count)]
    for index in range(1, count):
        draft.cable(switches[index], switches[draw(st.integers(0, index - 1))])
    for _ in range(draw(st.integers(0, 2 * count))):
        one, other = draw(st.tuples(st.sampled_from(switches), st.sampled_from(switches)))
        draft.cable(one, other)  # a cable looped on one switch, now and then
    _draw_hosts(draw, draft, switches)
    return draft.fabric()


@st.composite
def tiered_fabrics(draw: st.DrawFn) -> Fabric:
    """Draw a fabric of two or three tiers on which valleys are forbidden; some links are missing, doubled, lateral or skip a tier."""
    draft = Draft()
    leaves = [draft.switch(f"leaf{index}", 1) for index in range(draw(st.integers(2, 4)))]
    spines = [draft.switch(f"spine{index}", 2) for index in range(draw(st.integers(1, 3)))]
    cores = [draft.switch(f"core{index}", 3) for index in range(draw(st.integers(0, 2)))]
    for lower, upper in ((leaves, spines), (spines, cores)):
        for one in lower:
            for other in upper:
                for _ in range(draw(st.sampled_from([1, 1, 1, 1, 0, 2]))):
                    draft.cable(one, other)
    switches = [*leaves, *spines, *cores]
    for _ in range(draw(st.integers(0, 2))):
        one, other = draw(st.tuples(st.sampled_from(switches), st.sampled_from(switches)))
        draft.cable(one, other)
    _draw_hosts(draw, draft, leaves if draw(st.booleans()) else switches)
    fabric = draft.fabric()
    if not is_valley_free_required(fabric):
        # Too few links were drawn between tiers: give every leaf the one it lacks.
        for leaf in leaves:
            draft.cable(leaf, spines[0])
            draft.cable(leaf, spines[-1])
        fabric = draft.fabric()
    assert is_valley_free_required(fabric)
    return fabric


def _draw_hosts(draw: st.DrawFn, draft: Draft, switches: list[NodeId]) -> None:
    for index, switch in enumerate(switches):
        if index < 2 or draw(st.booleans()):
            draft.host(f"h{index}", switch)
    for index in range(draw(st.integers(0, 2))):
        homes = draw(st.lists(st.sampled_from(switches), min_size=2, max_size=3))
        draft.host(f"m{index}", *homes)


def fabrics() -> st.SearchStrategy[Fabric]:
    """Draw any small fabric."""
    return st.one_of(plain_fabrics(), tiered_fabrics())


def shuffled(fabric: Fabric, order: list[int]) -> Fabric:
    """Return the same fabric, built in another order."""
    nodes = [node for _, node in sorted(enumerate(fabric.nodes.values()), key=lambda item: order[item[0] % len(order)])]
    links = [link for _, link in sorted(enumerate(fabric.links.values()), key=lambda item: order[item[0] % len(order)])]
    return Fabric([replace(node) for node in reversed(nodes)], [replace(link) for link in reversed(links)])


def tables_of(programs: Mapping[NodeId, Program]) -> dict[NodeId, dict[DestinationId, tuple[Member, ...]]]:
    """Return the routes of *programs* as tables."""
    return {
        node: {route.destination: program.groups[route.group].members for route in program.routes}
        for node, program in programs.items()
    }


def next_hops_at(
    fabric: Fabric, tables: Tables, node: NodeId, destination: DestinationId
) -> list[tuple[LinkId, NodeId]]:
    """Return over which links and to which nodes *node* sends what goes to *destination*."""
    table = tables.get(node, {})
    for name in lookup_order(destination):
        if name in table:
            links = [fabric.link_at[LinkEnd(node, member.port)] for member in table[name]]
            return [(link.id, link.far_end(node).node) for link in links]
    return []


def fates(
    fabric: Fabric, tables: Tables, source: NodeId, endpoint: NodeId, working: Callable[[LinkId], bool]
) -> set[str]:
    """Return what can become of a packet from *source* to *endpoint*: "delivered", "lost", "looped"."""
    destination = fabric.destination_of[endpoint]
    found: set[str] = set()
    done: set[NodeId] = set()

    def visit(node: NodeId, path: tuple[NodeId, ...]) -> None:
        if node in path:
            found.add("looped")
            return
        if node in done:
            return
        if node == endpoint:
            found.add("delivered")
        elif node != source and not fabric.nodes[node].is_switch:
            found.add("lost")
        else:
            hops = next_hops_at(fabric, tables, node, destination)
            if not hops:
                found.add("lost")
            for link, far in hops:
                if working(link):
                    visit(far, (*path, node))
                else:
                    found.add("lost")
        done.add(node)

    visit(source, ())
    return found


def loops_in(fabric: Fabric, tables: Tables) -> list[tuple[DestinationId, list[NodeId]]]:
    """Return a loop for each destination that has one, whoever sends into it and whether or not links work."""
    found = []
    names = {name for table in tables.values() for name in table} | set(fabric.destination_of.values())
    for destination in sorted(names):
        graph = nx.DiGraph()
        for switch in fabric.switches:
            for _, far in next_hops_at(fabric, tables, switch.id, destination):
                if fabric.nodes[far].is_switch:
                    graph.add_edge(switch.id, far)
        if not nx.is_directed_acyclic_graph(graph):
            found.append((destination, [one for one, _ in nx.find_cycle(graph)]))
    return found


def permitted_links(fabric: Fabric, unusable: frozenset[LinkId]) -> list[Link]:
    """Return the links a packet may use."""
    return [link for link in fabric.links.values() if link.id not in unusable and not link.is_self_loop]
