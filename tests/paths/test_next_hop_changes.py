"""What a change of links does to the next hops: the same as a computation from nothing, bit for bit, and what networkx finds."""

from collections.abc import Iterator, Mapping
from random import Random

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.fabric import Fabric
from erfs.ids import LinkId
from erfs.paths import Topology
from erfs.paths.bits import full, packed, unpacked
from erfs.paths.mesh import Mesh
from erfs.paths.next_hops import UNREACHABLE, NextHops, Touched
from erfs.paths.situation import Situation
from tests.paths.fabrics import FAMILIES, fabrics, family, family_name, graph_with_hosts

CONNECTED_GRAPHS = [graph for graph in nx.graph_atlas_g() if len(graph) >= 2 and nx.is_connected(graph)]


def trunks_of(situation: Situation) -> list[LinkId]:
    return [trunk.id for trunk in situation.topology.trunks]


def usable_graph(situation: Situation) -> "nx.DiGraph[int]":
    """Return the usable link-ends that lead to a switch, parallel ones as one, each at its least cost; attribute ``up``."""
    hops, mesh = situation.hops, situation.mesh
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(mesh.node_count))
    for end in np.flatnonzero(hops.usable).tolist():
        one, other, cost = int(mesh.source[end]), int(mesh.target[end]), int(hops.cost[end])
        known = graph.get_edge_data(one, other, {"cost": cost})["cost"]
        graph.add_edge(one, other, cost=min(cost, known), up=bool(mesh.is_up[end]))
    return graph


def only(graph: "nx.DiGraph[int]", *, up: bool) -> "nx.DiGraph[int]":
    found: nx.DiGraph[int] = nx.DiGraph()
    found.add_nodes_from(graph)
    found.add_edges_from((*edge, data) for *edge, data in graph.edges(data=True) if data["up"] is up)
    return found


def expected_distances(
    situation: Situation, graph: "nx.DiGraph[int]", homes: list[int]
) -> tuple[dict[int, int], set[int]]:
    """Return who is how far away, and who goes down (everybody, where valleys are allowed)."""
    if not situation.topology.is_valley_free:
        found = dict(nx.multi_source_dijkstra_path_length(graph.reverse(), set(homes), weight="cost"))
        return found, set(found)
    below = dict(nx.multi_source_dijkstra_path_length(only(graph, up=False).reverse(), set(homes), weight="cost"))
    length = dict(below)
    above = only(graph, up=True)
    for node in reversed(list(nx.topological_sort(above))):  # from the top: everything above is known
        ways = [length[upper] + above[node][upper]["cost"] for upper in above.successors(node) if upper in length]
        if node not in below and ways:
            length[node] = min(ways)
    return length, set(below)


def expected_members(situation: Situation, column: int) -> tuple[list[int], dict[int, int]]:
    """Return the members towards one target, and all distances to it, worked out by networkx."""
    hops, mesh = situation.hops, situation.mesh
    length, below = expected_distances(situation, usable_graph(situation), list(situation.targets[column].attachments))
    members = []
    for end in np.flatnonzero(hops.usable).tolist():
        one, other = int(mesh.source[end]), int(mesh.target[end])
        if one not in length or other not in length or length[one] != length[other] + hops.cost[end]:
            continue
        if situation.topology.is_valley_free and (
            (one in below) == bool(mesh.is_up[end]) or (one in below) > (other in below)
        ):
            continue
        members.append(end)
    return members, length


def assert_right(situation: Situation) -> None:
    hops = situation.hops
    distance = hops.distance
    marks = unpacked(hops.members, hops.column_count)
    for column in range(hops.column_count):
        members, length = expected_members(situation, column)
        assert np.flatnonzero(marks[:, column]).tolist() == members
        assert {node: int(far) for node, far in enumerate(distance[:, column]) if far != UNREACHABLE} == length


def assert_same(one: NextHops, other: NextHops) -> None:
    assert (one.members == other.members).all()
    assert (one.descends == other.descends).all()
    assert (one.distance == other.distance).all()
    assert (one.reached == other.reached).all()


def assert_touched(touched: Touched, before: NextHops, after: NextHops) -> None:
    """Nothing has changed but what is said to be touched, and that is destinations there are."""
    assert not (touched.columns & ~full(after.column_count)).any()
    changed = before.members ^ after.members
    assert set(np.flatnonzero(changed.any(axis=1)).tolist()) <= set(touched.ends.tolist())
    said = np.zeros(after.distance.shape, dtype=np.bool_)
    said[touched.nodes] = unpacked(touched.columns, after.column_count)
    really = before.distance != after.distance
    np.logical_or.at(really, after.mesh.source, unpacked(changed, after.column_count))
    assert not (really & ~said).any()


def replica(hops: NextHops) -> NextHops:
    """Return the same state, computed from nothing."""
    return NextHops(
        hops.mesh, hops.attached, hops.column_count, hops.usable, hops.cost, is_valley_free=hops.is_valley_free
    )


def walk(
    topology: Topology, rng: Random, steps: int, *, costs: list[int], share: float
) -> Iterator[tuple[NextHops, Situation]]:
    """Yield, step by step, what the next hops were and the situation now; links fail, return and change their cost at random."""
    links = [*(trunk.id for trunk in topology.trunks), *topology.endpoint_of_access]
    unusable: frozenset[LinkId] = frozenset(link for link in links if rng.random() < share)
    cost: Mapping[LinkId, int] = {trunk.id: rng.choice(costs) for trunk in topology.trunks}
    situation = Situation(topology, unusable, cost)
    for _ in range(steps):
        before = replica(situation.hops)
        unusable ^= frozenset(rng.sample(links, min(len(links), rng.choice([1, 1, 1, 2, 4]))))
        cost = {**cost, rng.choice(topology.trunks).id: rng.choice(costs)}
        situation = Situation(topology, unusable, cost, previous=situation)
        yield before, situation


@pytest.mark.parametrize("node_count", range(2, 8))
def test_every_single_link_of_every_small_graph_can_fail_and_return(node_count: int) -> None:
    for graph in CONNECTED_GRAPHS:
        if len(graph) != node_count:
            continue
        topology = Topology(graph_with_hosts(graph))
        situation = Situation(topology, frozenset())
        assert_right(situation)
        whole = replica(situation.hops)
        for link in trunks_of(situation):
            situation = Situation(topology, frozenset([link]), previous=situation)
            assert_same(situation.hops, replica(situation.hops))
            situation = Situation(topology, frozenset(), previous=situation)
            assert_same(situation.hops, whole)


@pytest.mark.parametrize("node_count", range(2, 7))
def test_next_hops_of_every_small_graph_are_right_after_each_single_failure(node_count: int) -> None:
    for graph in CONNECTED_GRAPHS:
        if len(graph) == node_count:
            topology = Topology(graph_with_hosts(graph))
            for trunk in topology.trunks:
                assert_right(Situation(topology, frozenset([trunk.id]), previous=Situation(topology, frozenset())))


@pytest.mark.parametrize("costs", [[1], [1, 1, 2, 7]], ids=["equal-costs", "unequal-costs"])
@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=family_name)
def test_changes_leave_what_a_computation_from_nothing_gives(number: int, costs: list[int]) -> None:
    topology = Topology(family(number))
    rng = Random(number)
    for before, situation in walk(topology, rng, 25, costs=costs, share=0.1):
        assert_same(situation.hops, replica(situation.hops))
        if situation.touched is not None:
            assert_touched(situation.touched, before, situation.hops)
    assert_right(situation)


@given(fabrics(), st.integers(0, 2**32 - 1))
@settings(max_examples=120, deadline=None)
def test_changes_of_tangled_fabrics_leave_the_shortest_permitted_paths(fabric: Fabric, seed: int) -> None:
    for before, situation in (
        walk(Topology(fabric), Random(seed), 6, costs=[1, 1, 3], share=0.2) if fabric.trunks else ()
    ):
        assert_same(situation.hops, replica(situation.hops))
        assert_right(situation)
        if situation.touched is not None:
            assert_touched(situation.touched, before, situation.hops)


def random_mesh(rng: Random) -> Mesh:
    """Return a mesh whose nodes stand at random heights, so that ways down may be longer than ways up, or cost more."""
    count = rng.randint(2, 9)
    cables = list(nx.gnm_random_graph(count, rng.randint(count - 1, 2 * count), seed=rng.randrange(2**32)).edges)
    cables += rng.sample(cables, min(len(cables), rng.randint(0, 1)))
    height = [(rng.randint(0, 2), node) for node in range(count)]
    ends = sorted((one, other, index) for index, cable in enumerate(cables) for one, other in (cable, cable[::-1]))
    source, target, trunk = (np.array([end[part] for end in ends], dtype=np.int64) for part in range(3))
    is_up = np.array([height[other] > height[one] for one, other, _ in ends], dtype=np.bool_)
    return Mesh(count, count, source, target, is_up, np.ones(len(ends), dtype=np.int64), trunk)


@pytest.mark.parametrize("seed", range(400))
def test_a_way_down_that_comes_or_goes_may_bring_others_nearer_or_farther(seed: int) -> None:
    """A way down counts before any way up, even a shorter one: so a failure can shorten a way, and a return can lengthen it."""
    rng = Random(seed)
    mesh = random_mesh(rng)
    column_count = rng.choice([mesh.node_count, 70])
    marks = np.zeros((mesh.node_count, column_count), dtype=np.bool_)
    for column in range(column_count):
        marks[rng.sample(range(mesh.node_count), rng.randint(1, 2)), column] = True
    trunk_count = int(mesh.trunk.max(initial=-1)) + 1
    usable = np.array([rng.random() < 0.8 for _ in range(trunk_count)], dtype=np.bool_)
    cost = np.array([rng.choice([1, 1, 1, 3, 5]) for _ in range(trunk_count)], dtype=np.int64)
    hops = NextHops(
        mesh, packed(marks), column_count, usable[mesh.trunk], cost[mesh.trunk], is_valley_free=rng.random() < 0.7
    )
    for _ in range(8 if trunk_count else 0):
        before = replica(hops)
        changed = rng.sample(range(trunk_count), min(trunk_count, rng.randint(1, 3)))
        for trunk in changed:
            if rng.random() < 0.7:
                usable[trunk] ^= True
            else:
                cost[trunk] = rng.choice([1, 2, 3, 5])
        ends = np.flatnonzero(np.isin(mesh.trunk, changed))
        touched = hops.update(ends, usable[mesh.trunk[ends]], cost[mesh.trunk[ends]])
        assert_same(hops, replica(hops))
        assert_touched(touched, before, hops)


def test_a_costly_trunk_is_avoided_and_used_again_when_nothing_else_is_left() -> None:
    """A soft drain: the path over the drained trunk is there for whoever has no other."""
    fabric = family(0)
    topology = Topology(fabric)
    drained = next(trunk.id for trunk in fabric.trunks if trunk.a.node == "pod0-agg0" and "edge0" in trunk.b.node)
    situation = Situation(topology, frozenset(), {drained: 100})
    marks = unpacked(situation.hops.members, situation.hops.column_count)
    edge, upper = (
        topology.switch_index[fabric.links[drained].b.node],
        topology.switch_index[fabric.links[drained].a.node],
    )
    own = list(topology.class_attachments.values()).index((edge,))
    mesh = situation.mesh
    is_drained = (mesh.source == edge) & (mesh.target == upper)
    assert not marks[is_drained].any()
    # The aggregation switch itself has no other way down, and must not go up again.
    assert marks[(mesh.source == upper) & (mesh.target == edge), own].all()
    others = frozenset(
        trunk.id for trunk in fabric.trunks if topology.switches[edge] in (trunk.a.node, trunk.b.node)
    ) - {drained}
    last = Situation(topology, others, {drained: 100}, previous=situation)
    marks = unpacked(last.hops.members, last.hops.column_count)
    assert marks[is_drained].any(axis=0).sum() == len(topology.class_attachments) - 1
