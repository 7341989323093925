"""Whom everybody depends on, against networkx: take an element out of the graph of choices and see who still arrives."""

from random import Random

import networkx as nx
import numpy as np
import pytest

from erfs.fabric import Fabric
from erfs.paths.bits import Indices
from erfs.paths.choices import Choices
from erfs.paths.dominators import NOTHING, Dominators
from erfs.paths.protection import Failure, Kind
from erfs.paths.situation import Situation
from erfs.paths.topology import Topology
from tests.paths.deaths import Oracle, degraded, restless
from tests.paths.fabrics import FAMILIES, Draft, family, family_name, graph_with_hosts, tangle

SMALL_GRAPHS = [graph for graph in nx.graph_atlas_g() if 2 <= len(graph) <= 7 and nx.is_connected(graph)]
NO_DELIVERY: tuple[Indices, Indices, Indices] = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))


def choices_of(situation: Situation) -> Choices:
    return Choices(situation.hops, np.zeros(situation.attached.shape[1], dtype=np.uint64))


def tree_of(situation: Situation, choices: Choices | None = None) -> Dominators:
    """Return the trees, the failures of link-ends numbered as trunks, and then as link-ends of endpoints."""
    mesh = situation.mesh
    trunks = len(situation.topology.trunks)
    failure = np.where(mesh.trunk >= 0, mesh.trunk, trunks + np.arange(len(mesh)))
    return Dominators(choices or choices_of(situation), failure, NO_DELIVERY)


def dead_by_tree(situation: Situation, tree: Dominators) -> dict[tuple[Kind, int, int], set[int]]:
    """Return, for each trunk or switch and each destination, who depends on it."""
    found: dict[tuple[Kind, int, int], set[int]] = {}
    for node in range(situation.mesh.node_count):
        for column, target in enumerate(situation.targets):
            at = node
            while at != tree.root:
                sole = int(tree.sole[at, column])
                if sole != NOTHING:
                    found.setdefault((Kind.TRUNK, sole, column), set()).add(node)
                if at != node and (at,) != target.attachments:
                    found.setdefault((Kind.NODE, at, column), set()).add(node)
                at = int(tree.parent[at, column])
    return found


def assert_right(situation: Situation) -> None:
    found = dead_by_tree(situation, tree_of(situation))
    oracle = Oracle(situation)
    for kind, count in ((Kind.TRUNK, len(situation.topology.trunks)), (Kind.NODE, situation.mesh.transit_count)):
        for subject in range(count):
            for column in range(oracle.count):
                expected = oracle.verdict(Failure(kind, subject), column).dead
                assert found.get((kind, subject, column), set()) == expected, (kind, subject, column)


@pytest.mark.parametrize("size", range(2, 7))
def test_who_depends_on_what_on_every_small_graph(size: int) -> None:
    for graph in SMALL_GRAPHS:
        if len(graph) == size:
            assert_right(Situation(Topology(graph_with_hosts(graph)), frozenset()))


def test_who_depends_on_what_on_graphs_of_seven() -> None:
    """Every tenth of them; all of them were looked at once."""
    for graph in [graph for graph in SMALL_GRAPHS if len(graph) == 7][::10]:
        assert_right(Situation(Topology(graph_with_hosts(graph)), frozenset()))


@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=family_name)
def test_who_depends_on_what_on_a_degraded_fabric(number: int) -> None:
    fabric = family(number)
    situation = degraded(fabric, Random(number))
    if not any(target.strays for target in situation.targets):
        assert_right(situation)


def assert_same(one: Dominators, other: Dominators) -> None:
    for name in ("parent", "sole", "depth", "length"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=family_name)
def test_after_changes_the_trees_are_those_of_a_computation_from_nothing(number: int) -> None:
    assert_keeps_up(family(number), Random(number))


@pytest.mark.parametrize("seed", range(20))
def test_after_changes_in_a_tangle_the_trees_are_those_of_a_computation_from_nothing(seed: int) -> None:
    random = Random(seed)
    assert_keeps_up(tangle(random), random)


def assert_keeps_up(fabric: Fabric, random: Random) -> None:
    choices, tree = None, None
    for situation, anew in restless(fabric, random, 8):
        if choices is None or tree is None:
            choices = choices_of(situation)
            tree = tree_of(situation, choices)
            continue
        hops, touched = situation.hops, situation.touched
        assert touched is not None
        assert hops is choices.hops
        before = tree.parent.copy(), tree.sole.copy()
        node, column = tree.update(choices.update(touched))
        assert_same(tree, tree_of(anew))
        looked_at = np.zeros(tree.parent.shape, dtype=np.bool_)
        looked_at[node, column] = True
        assert not ((before[0] != tree.parent) & ~looked_at).any()
        assert not ((before[1] != tree.sole) & ~looked_at).any()


def test_a_second_parallel_cable_is_nothing_to_depend_on() -> None:
    """A line of three, its second link doubled: the middle is needed, and of the links just the first."""
    draft = Draft()
    switches = [draft.switch(f"s{index}") for index in range(3)]
    for one, other in ((0, 1), (1, 2), (1, 2)):
        draft.cable(switches[one], switches[other])
    for switch in switches:
        draft.host(f"h-{switch}", switch)
    situation = Situation(Topology(draft.fabric()), frozenset())
    tree = tree_of(situation)
    column = next(at for at, target in enumerate(situation.targets) if target.attachments == (0,))
    assert tree.parent[2, column] == 1
    assert tree.sole[2, column] == NOTHING
    assert tree.sole[1, column] != NOTHING
    assert tree.depth[:, column].tolist() == [0, 1, 2, 0]
