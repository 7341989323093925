"""The rows that nodes are armed with, against their definition: each failure tried out, one destination at a time."""

from random import Random

import networkx as nx
import numpy as np
import pytest

from erfs.paths.bits import Indices, Words, columns_of, empty, packed
from erfs.paths.protection import Armory, arm
from erfs.paths.pruning import ArmedRows
from erfs.paths.situation import Situation
from erfs.paths.topology import Topology
from tests.paths.deaths import Change, Oracle, degraded
from tests.paths.fabrics import FAMILIES, family, family_name, graph_with_hosts, tangle

SMALL_GRAPHS = [graph for graph in nx.graph_atlas_g() if 2 <= len(graph) <= 6 and nx.is_connected(graph)]


def changes_in(armory: Armory, rows: ArmedRows) -> tuple[set[Change], set[Change]]:
    """Return the rows taken apart: drops and additions."""
    found: tuple[set[Change], set[Change]] = set(), set()
    for row in range(len(rows)):
        failure = armory.failures[rows.failure[row]]
        for column in rows.columns[rows.starts[row] : rows.starts[row + 1]].tolist():
            found[int(rows.is_add[row])].add((failure, int(rows.end[row]), column))
    return found


def all_nodes(situation: Situation) -> Indices:
    return np.arange(situation.mesh.node_count)


def assert_as_defined(situation: Situation) -> None:
    armory = arm(situation)
    drops, adds = changes_in(armory, armory.rows(all_nodes(situation)))
    expected_drops, expected_adds = Oracle(situation).changes()
    assert drops == expected_drops
    assert adds == expected_adds


def test_rows_are_as_defined_on_every_small_graph() -> None:
    for graph in SMALL_GRAPHS:
        assert_as_defined(Situation(Topology(graph_with_hosts(graph)), frozenset()))


@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=family_name)
def test_rows_are_as_defined_on_a_degraded_fabric(number: int) -> None:
    fabric = family(number)
    assert_as_defined(degraded(fabric, Random(number)))


@pytest.mark.parametrize("seed", range(40))
def test_rows_are_as_defined_on_a_tangle(seed: int) -> None:
    """Endpoints with several attachments, strays, laterals, unequal costs."""
    random = Random(seed)
    assert_as_defined(degraded(tangle(random), random))


@pytest.mark.parametrize("number", [0, 3, 6])
def test_rows_are_in_order_and_those_of_one_node_are_a_part_of_those_of_all(number: int) -> None:
    situation = degraded(family(number), Random(5))
    armory = arm(situation)
    rows = armory.rows(all_nodes(situation))
    keys = list(zip(rows.node.tolist(), rows.failure.tolist(), rows.is_add.tolist(), rows.end.tolist(), strict=True))
    assert keys == sorted(set(keys))
    assert rows.node.tolist() == situation.mesh.source[rows.end].tolist()
    for node in range(situation.mesh.node_count):
        own = armory.rows_of(node)
        inside = np.flatnonzero(rows.node == node)
        assert own.failure.tolist() == rows.failure[inside].tolist()
        assert own.end.tolist() == rows.end[inside].tolist()
        parts = [rows.columns[rows.starts[row] : rows.starts[row + 1]].tolist() for row in inside]
        assert own.columns.tolist() == [column for part in parts for column in part]
        assert [columns_of(words).tolist() for words in own.sets(len(situation.targets))] == parts


@pytest.mark.parametrize("seed", range(8))
def test_rows_for_some_destinations_are_a_part_of_those_for_all(seed: int) -> None:
    random = Random(seed)
    situation = degraded(tangle(random), random)
    armory, count = arm(situation), len(situation.targets)
    of_class = {random.randrange(count) for _ in range(2)}
    classes = {situation.targets[column].class_column for column in of_class}
    chosen = [column for column, target in enumerate(situation.targets) if target.class_column in classes]
    words: Words = empty(situation.mesh.node_count, count)
    words |= packed(np.isin(np.arange(count), chosen)[None, :])
    some = changes_in(armory, armory.rows(all_nodes(situation), words))
    for found, everything in zip(some, changes_in(armory, armory.rows(all_nodes(situation))), strict=True):
        assert found == {change for change in everything if change[2] in chosen}
