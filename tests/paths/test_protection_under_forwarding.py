"""
Armed programs under the agents' real forwarding function: no loop for any facts known anywhere, and everything that pruning can
serve is served once the facts have spread.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

import networkx as nx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from erfs.fabric import Fabric
from erfs.generators import generate
from erfs.ids import DestinationId, LinkId, NodeId
from erfs.messages import Member, Program
from erfs.paths import ProgramSet, Topology, compute, plan_rounds
from erfs_agent.forwarding import CompiledProgram, FactSet, Forwarding, forwarding
from tests.paths.fabrics import Draft, fabrics, fates, loops_in, next_hops_at, plain_fabrics, tables_of, tangle

NO_FAILURE: frozenset[LinkId] = frozenset()


@dataclass
class World:
    """Agents with programs, what each of them knows, and what has really failed."""

    fabric: Fabric
    programs: Mapping[NodeId, Program]
    failed: set[LinkId] = field(default_factory=set)
    dead: set[NodeId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.compiled = {node: CompiledProgram(program) for node, program in self.programs.items()}
        self.facts = {node: FactSet() for node in self.programs}
        self.unreachable: dict[NodeId, dict[NodeId, frozenset[DestinationId]]] = {node: {} for node in self.programs}

    def fail(self, links: Iterable[LinkId] = (), nodes: Iterable[NodeId] = ()) -> None:
        self.failed |= set(links)
        for node in nodes:
            self.dead.add(node)
            self.failed |= {link.id for link in self.fabric.links_of[node]}

    def works(self, link: LinkId) -> bool:
        return link not in self.failed

    def all_facts(self) -> list[tuple[LinkId, NodeId]]:
        """The down facts that the living ends publish."""
        return [
            (link, end.node)
            for link in sorted(self.failed)
            for end in self.fabric.links[link].ends
            if end.node in self.programs and end.node not in self.dead
        ]

    def seemingly_dead(self) -> set[NodeId]:
        """The switches of which two different neighbours report two different links."""
        found = set()
        for switch in self.fabric.switches:
            facts = [
                (link, node)
                for link, node in self.all_facts()
                if self.fabric.links[link].far_end(node).node == switch.id
            ]
            if len({link for link, _ in facts}) > 1 and len({node for _, node in facts}) > 1:
                found.add(switch.id)
        return found

    def hear(self, node: NodeId, link: LinkId, reporter: NodeId, counter: int = 1) -> None:
        far_end = self.fabric.links[link].far_end(reporter).node
        self.facts[node] = self.facts[node].with_fact(link, reporter, counter, down=True, far_end=far_end)

    def forwarding(self, node: NodeId) -> Forwarding:
        ports_down = frozenset(
            end.port for link in self.failed for end in self.fabric.links[link].ends if end.node == node
        )
        return forwarding(self.compiled[node], self.facts[node], ports_down, self.unreachable[node])

    def tables(self) -> dict[NodeId, dict[DestinationId, tuple[Member, ...]]]:
        return {node: self.forwarding(node).routes for node in self.programs if node not in self.dead}

    def spread_facts(self) -> None:
        for node in self.programs:
            for link, reporter in self.all_facts():
                self.hear(node, link, reporter)

    def spread_cannot_reach(self) -> None:
        """Exchange `cannot_reach` with the neighbours over working links until nothing changes."""
        for _ in range(2 * len(self.programs) + 2):
            said = {node: self.forwarding(node).cannot_reach for node in self.programs if node not in self.dead}
            before = {node: dict(heard) for node, heard in self.unreachable.items()}
            for node in self.programs:
                for port in self.programs[node].ports:
                    if port.far_end in said:
                        self.unreachable[node][port.far_end] = said[port.far_end]
            if before == self.unreachable:
                return
        raise AssertionError("too many rounds of cannot_reach")


def pairs_of(fabric: Fabric) -> list[tuple[NodeId, NodeId]]:
    return [(one, other) for one in fabric.destination_of for other in fabric.destination_of if one != other]


def single_failures(fabric: Fabric) -> list[tuple[tuple[LinkId, ...], tuple[NodeId, ...]]]:
    links = [link for link in fabric.links.values() if not link.is_self_loop]
    return [*(((link.id,), ()) for link in links), *(((), (switch.id,)) for switch in fabric.switches)]


def served_within(fabric: Fabric, programs: Mapping[NodeId, Program], world: World) -> set[tuple[NodeId, NodeId]]:
    """Return the pairs that some path of the undisturbed next hops still joins: what pruning can serve."""
    tables = tables_of(programs)
    found = set()
    for target in fabric.destination_of:
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(fabric.nodes)
        for node in tables:
            if node in world.dead or node == target:
                continue
            if fabric.nodes[node].is_switch or True:
                for link, far in next_hops_at(fabric, tables, node, fabric.destination_of[target]):
                    if world.works(link) and (far == target or fabric.nodes[far].is_switch) and far not in world.dead:
                        graph.add_edge(node, far)
        found |= {(source, target) for source in nx.ancestors(graph, target) if source in fabric.destination_of}
    return found


SHAPES = {
    "fat tree": generate("fat-tree", {"k": 4}),
    "leaf-spine, hosts on two leaves": generate(
        "leaf-spine", {"leaves": 4, "spines": 2, "hosts_per_leaf": 1, "attachments": 2}
    ),
    "leaf-spine, two cables": generate("leaf-spine", {"leaves": 3, "spines": 2, "hosts_per_leaf": 1, "cables": 2}),
    "torus": generate("torus", {"dims": "3x3", "hosts_per_switch": 1}),
    "dragonfly": generate("dragonfly", {"switches_per_group": 2, "hosts_per_switch": 1, "global_links_per_switch": 1}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_after_any_single_failure_all_that_pruning_can_serve_is_served_whole(shape: str) -> None:
    """By facts alone, without a word of `cannot_reach` and without the controller."""
    assert_single_failures_are_survived(SHAPES[shape])


@pytest.mark.parametrize("seed", range(25))
def test_after_any_single_failure_a_tangle_serves_all_that_pruning_can(seed: int) -> None:
    assert_single_failures_are_survived(tangle(Random(seed)))


def assert_single_failures_are_survived(fabric: Fabric) -> None:
    programs = compute(Topology(fabric), unusable=NO_FAILURE).programs
    for links, nodes in single_failures(fabric):
        world = World(fabric, programs)
        world.fail(links, nodes)
        world.spread_facts()
        tables = world.tables()
        assert loops_in(fabric, tables) == []
        for source, target in served_within(fabric, programs, world):
            assert fates(fabric, tables, source, target, world.works) == {"delivered"}, (links, nodes, source, target)


def is_listed(found: ProgramSet, fabric: Fabric, failure: str, source: NodeId, target: NodeId) -> bool:
    """Return whether the pair is among what the failure leaves unprotected."""
    homes = set(fabric.attachments[source]) if len(fabric.attachments[source]) == 1 else {source}
    names = {fabric.destination_of[target], fabric.destination_of[target].partition("/")[0]}
    return any(
        names & set(item.destinations) and (not item.nodes or homes & set(item.nodes))
        for item in found.unprotected
        if item.failure == failure
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_trunk_or_a_switch_cuts_off_is_listed_as_unprotected(shape: str) -> None:
    assert_cut_off_is_listed(SHAPES[shape])


@pytest.mark.parametrize("seed", range(25))
def test_what_is_cut_off_in_a_tangle_is_listed_as_unprotected(seed: int) -> None:
    """And what is not listed is served whole, additions included."""
    assert_cut_off_is_listed(tangle(Random(seed)))


def assert_cut_off_is_listed(fabric: Fabric) -> None:
    found = compute(Topology(fabric), unusable=NO_FAILURE)
    for links, nodes in single_failures(fabric):
        if links and not fabric.is_trunk(fabric.links[links[0]]):
            continue
        world = World(fabric, found.programs)
        world.fail(links, nodes)
        world.spread_facts()
        tables = world.tables()
        for source, target in pairs_of(fabric):
            is_served = fates(fabric, tables, source, target, world.works) == {"delivered"}
            if set(nodes) & set(fabric.attachments[source]) and len(fabric.attachments[source]) == 1:
                continue  # it hangs on the dead switch itself
            assert is_served is not is_listed(found, fabric, [*links, *nodes][0], source, target), (
                links,
                nodes,
                source,
                target,
            )


def test_additions_serve_what_pruning_cannot() -> None:
    """A ring of five: the neighbours of a cut have no second shortest path, but an equally distant neighbour."""
    draft = Draft()
    switches = [draft.switch(f"s{index}") for index in range(5)]
    cut = draft.cable(switches[0], switches[1])
    for index in range(1, 5):
        draft.cable(switches[index], switches[(index + 1) % 5])
    for index, switch in enumerate(switches):
        draft.host(f"h{index}", switch)
    fabric = draft.fabric()
    programs = compute(Topology(fabric), unusable=NO_FAILURE).programs
    world = World(fabric, programs)
    world.fail([cut])
    # s3 reaches s1 by s2; s4 reaches s1 by s0 only, is as far away as s3, and may turn to it.
    world.spread_facts()
    assert (NodeId("h4"), NodeId("h1")) not in served_within(fabric, programs, world)
    assert fates(fabric, world.tables(), NodeId("h4"), NodeId("h1"), world.works) == {"delivered"}


def test_a_neighbour_that_died_with_the_node_is_no_way_out() -> None:
    """n could turn to its equal m when x dies, but m hangs on x as well: so whoever sends by n has to leave it."""
    draft = Draft()
    m, n, target, upper, w, x, y = (draft.switch(name) for name in ("m", "n", "target", "upper", "w", "x", "y"))
    for one, other in ((target, x), (target, x), (target, y), (x, m), (x, n), (m, n), (y, w), (n, upper), (w, upper)):
        draft.cable(one, other)
    source, goal = draft.host("source", upper), draft.host("goal", target)
    fabric = draft.fabric()
    world = World(fabric, compute(Topology(fabric), unusable=NO_FAILURE).programs)
    world.fail(nodes=[x])
    world.spread_facts()
    assert fates(fabric, world.tables(), source, goal, world.works) == {"delivered"}


def test_an_endpoint_turns_to_its_other_attachment() -> None:
    """A host on two leaves reaches a host of the first leaf over the second when it loses its link to the first."""
    draft = Draft()
    leaf0, leaf1, spine = draft.switch("leaf0", 1), draft.switch("leaf1", 1), draft.switch("spine", 2)
    for leaf in (leaf0, leaf1):
        draft.cable(leaf, spine)
    both = draft.host("both", leaf0, leaf1)
    single = draft.host("single", leaf0)
    fabric = draft.fabric()
    world = World(fabric, compute(Topology(fabric), unusable=NO_FAILURE).programs)
    world.fail([next(link.id for link in fabric.links_of[both] if link.far_end(both).node == leaf0)])
    for link, reporter in world.all_facts():
        if reporter == both:
            world.hear(both, link, reporter)
    assert fates(fabric, world.tables(), both, single, world.works) == {"delivered"}


@st.composite
def disasters(draw: st.DrawFn, fabric: Fabric) -> tuple[list[LinkId], list[NodeId]]:
    links = draw(st.lists(st.sampled_from(sorted(fabric.links)), max_size=3))
    nodes = draw(st.lists(st.sampled_from([switch.id for switch in fabric.switches]), max_size=1))
    return links, nodes


def hear_at_random(world: World, random: Random) -> None:
    """Let every agent hear some of the facts, in any order, some twice, some never."""
    facts = world.all_facts()
    for node in world.programs:
        for link, reporter in random.choices(facts, k=random.randint(0, 2 * len(facts))) if facts else ():
            world.hear(node, link, reporter, counter=random.randint(1, 3))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_set_of_facts_known_to_any_agents_makes_a_loop(data: st.DataObject) -> None:
    """On any fabric, already degraded, under up to three cut links and a dead switch."""
    fabric = data.draw(fabrics())
    unusable = frozenset(data.draw(st.lists(st.sampled_from(sorted(fabric.links)), max_size=2)))
    world = World(fabric, compute(Topology(fabric), unusable=unusable).programs)
    links, nodes = data.draw(disasters(fabric))
    world.fail([*links, *unusable], nodes)
    random = Random(data.draw(st.integers(0, 2**32)))
    for _ in range(4):
        hear_at_random(world, random)
        assert loops_in(fabric, world.tables()) == []
    world.spread_facts()
    assert loops_in(fabric, world.tables()) == []
    world.spread_cannot_reach()
    assert loops_in(fabric, world.tables()) == []


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_facts_and_cannot_reach_serve_all_that_is_left_of_the_next_hops(data: st.DataObject) -> None:
    """
    Several failures at once: once facts and `cannot_reach` have spread, every pair that the old next hops still join is served whole.

    Except where two neighbours of a living switch report two of its links, which rule 4 takes for the switch's death.
    """
    fabric = data.draw(fabrics())
    unusable = frozenset(data.draw(st.lists(st.sampled_from([link.id for link in fabric.trunks]), max_size=2)))
    programs = compute(Topology(fabric), unusable=unusable).programs
    world = World(fabric, programs)
    links, nodes = data.draw(disasters(fabric))
    world.fail([*links, *unusable], nodes)
    assume(not (world.seemingly_dead() - world.dead))
    world.spread_facts()
    world.spread_cannot_reach()
    tables = world.tables()
    for source, target in served_within(fabric, programs, world):
        assert fates(fabric, tables, source, target, world.works) == {"delivered"}, (source, target)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_order_and_repetition_of_facts_make_no_difference(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    programs = compute(Topology(fabric), unusable=NO_FAILURE).programs
    one, other = World(fabric, programs), World(fabric, programs)
    links, nodes = data.draw(disasters(fabric))
    for world in (one, other):
        world.fail(links, nodes)
    facts = one.all_facts()
    heard = data.draw(st.lists(st.sampled_from(facts), max_size=8)) if facts else []
    again = data.draw(st.permutations([*heard, *heard[:3]]))
    for world, order in ((one, heard), (other, again)):
        for node in world.programs:
            for link, reporter in order:
                world.hear(node, link, reporter)
    assert one.tables() == other.tables()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_mixture_of_two_generations_under_any_facts_loops(data: st.DataObject) -> None:
    """Some agents still run generation G, some already G+1 or a round before it, and each has heard other facts."""
    fabric = data.draw(fabrics())
    topology = Topology(fabric)
    links = st.lists(st.sampled_from(sorted(fabric.links)), max_size=2)
    before, after = frozenset(data.draw(links)), frozenset(data.draw(links))
    old = compute(topology, unusable=before).programs
    state = dict(old)
    new = compute(topology, unusable=after).programs
    random = Random(data.draw(st.integers(0, 2**32)))
    cut, dead = data.draw(disasters(fabric))
    for programs in plan_rounds(old, new, fabric):
        for _ in range(3):
            some = {node: program for node, program in programs.items() if random.random() < 0.5}
            world = World(fabric, {**state, **some})
            world.fail([*cut, *(before & after)], dead)
            hear_at_random(world, random)
            assert loops_in(fabric, world.tables()) == []
        state.update(programs)


@pytest.mark.parametrize("seed", range(120))
def test_no_mixture_of_two_generations_of_a_tangle_loops(seed: int) -> None:
    """
    Endpoints that lost some or all of their attachments in one generation and have them back in the other.

    Found here: what a class is armed to add looped an endpoint that goes another way than its class; and a
    switch that forgets a cut-off endpoint last looped those who had just turned to it.
    """
    random = Random(seed)
    fabric = tangle(random)
    topology = Topology(fabric)
    links = sorted(fabric.links)
    access = [link for link in links if fabric.is_access(fabric.links[link])]
    before, after = (
        frozenset([*random.sample(links, random.randint(0, 2)), *random.sample(access, random.randint(0, 2))])
        for _ in range(2)
    )
    state = dict(compute(topology, unusable=before).programs)
    new = compute(topology, unusable=after).programs
    for programs in plan_rounds(state, new, fabric):
        for _ in range(3):
            some = {node: program for node, program in programs.items() if random.random() < 0.5}
            world = World(fabric, {**state, **some})
            dead = [random.choice(fabric.switches).id] if random.random() < 0.3 else []
            world.fail([*random.sample(links, random.randint(0, 3)), *(before & after)], dead)
            hear_at_random(world, random)
            assert loops_in(fabric, world.tables()) == []
        state.update(programs)


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_a_nodes_entry_covers_its_links_entries(data: st.DataObject) -> None:
    fabric = data.draw(fabrics())
    unusable = frozenset(data.draw(st.lists(st.sampled_from(sorted(fabric.links)), max_size=2)))
    for node, program in compute(Topology(fabric), unusable=unusable).programs.items():
        drops = {
            entry.failure: {
                (destination, port)
                for change in entry.changes
                for destination in change.destinations
                for port in change.drop
            }
            for entry in program.armed.entries()
        }
        covered: dict[NodeId, set[tuple[DestinationId, str]]] = {}
        for entry in program.armed.entries():
            if entry.failure_kind == "link":
                for end in fabric.links[LinkId(entry.failure)].ends:
                    if fabric.nodes[end.node].is_switch and end.node != node:
                        covered.setdefault(end.node, set()).update(drops[entry.failure])
        for failed, wanted in covered.items():
            if not wanted:
                continue  # an addition at the link's own end
            if failed in drops:
                missing = {(DestinationId(name.partition("/")[0]), port) for name, port in wanted - drops[failed]}
                assert missing <= drops[failed]
            else:
                reporters = {
                    link.far_end(failed).node
                    for link in fabric.links_of[failed]
                    if link.id not in unusable and not link.is_self_loop
                }
                assert len(reporters) < 2, (node, failed)


def test_a_cut_tray_is_left_by_facts_alone() -> None:
    """The cables of a pod to one plane lie in one tray: whoever sends by them leaves that aggregation switch, and nothing has to be asked."""
    fabric = generate("fat-tree", {"k": 4})
    world = World(fabric, compute(Topology(fabric), unusable=NO_FAILURE).programs)
    world.fail(link.id for link in fabric.trunks if "tray:pod0-plane0" in link.srlgs)
    world.spread_facts()
    assert loops_in(fabric, world.tables()) == []
    for source, target in pairs_of(fabric):
        assert fates(fabric, world.tables(), source, target, world.works) == {"delivered"}


def test_both_core_uplinks_of_one_aggregation_switch() -> None:
    """No single failure's entry repairs it: the edge switches of the pod hear `cannot_reach` and leave that aggregation switch."""
    tray = generate("fat-tree", {"k": 4})
    fabric = Fabric(tray.nodes.values(), [replace(link, srlgs=()) for link in tray.links.values()])
    world = World(fabric, compute(Topology(fabric), unusable=NO_FAILURE).programs)
    aggregation = NodeId("pod0-agg0")
    world.fail(link.id for link in fabric.links_of[aggregation] if link.far_end(aggregation).node.startswith("core"))
    world.spread_facts()
    source, target = NodeId("pod0-edge0-host0"), NodeId("pod3-edge1-host1")
    assert fates(fabric, world.tables(), source, target, world.works) == {"delivered", "lost"}
    assert DestinationId("@pod3-edge1") in world.forwarding(aggregation).cannot_reach
    world.spread_cannot_reach()
    for source, target in pairs_of(fabric):
        assert fates(fabric, world.tables(), source, target, world.works) == {"delivered"}


def test_a_dying_switch_seen_as_many_link_facts_ends_as_one_node_failure() -> None:
    """The first fact drops what hangs on that link; the second, by another reporter, everything that hangs on the switch."""
    fabric = generate("fat-tree", {"k": 4})
    world = World(fabric, compute(Topology(fabric), unusable=NO_FAILURE).programs)
    dying, far = NodeId("pod0-agg0"), NodeId("pod1-edge0")
    world.fail(nodes=[dying])
    seen: list[tuple[str, ...]] = []
    for link, reporter in world.all_facts():
        world.hear(far, link, reporter)
        seen.append(world.forwarding(far).active)
    assert dying not in seen[0]
    assert all(dying in active for active in seen[1:])
    world.spread_facts()
    for source, target in pairs_of(fabric):
        assert fates(fabric, world.tables(), source, target, world.works) == {"delivered"}
    for node in world.programs:
        if node != dying and fabric.nodes[node].is_switch and world.forwarding(node).active:
            assert [name for name in world.forwarding(node).active if name in fabric.nodes] == [dying]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_additions_of_all_failures_together_are_acyclic(data: st.DataObject) -> None:
    """Next hops and all additions of all entries at once: the strongest thing that can happen to a fabric without tiers."""
    fabric = data.draw(plain_fabrics())
    programs = compute(Topology(fabric), unusable=NO_FAILURE).programs
    tables = {node: dict(table) for node, table in tables_of(programs).items()}
    for node, program in programs.items():
        for entry in program.armed.entries():
            for change in entry.changes:
                for destination in change.destinations:
                    if change.add:
                        tables[node][destination] = (*tables[node].get(destination, ()), *change.add)
    assert loops_in(fabric, tables) == []
