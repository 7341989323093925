"""Laterals by their definition, and the one order that keeps all choices acyclic."""

from random import Random

import networkx as nx
import numpy as np
import pytest

from erfs.paths.bits import packed, unpacked
from erfs.paths.choices import Choices, merged_pairs
from erfs.paths.situation import Situation
from tests.paths.deaths import Oracle, degraded, restless
from tests.paths.fabrics import FAMILIES, family, family_name, tangle


def choices_of(situation: Situation) -> Choices:
    marks = np.zeros((1, len(situation.targets)), dtype=np.bool_)
    marks[0, [target.class_column for target in situation.targets if target.strays]] = True
    return Choices(situation.hops, packed(marks)[0])


def assert_right(situation: Situation, choices: Choices) -> None:
    oracle = Oracle(situation)
    marks = unpacked(choices.words, oracle.count)
    assert np.array_equal(marks, oracle.choices)
    if choices.laterals is None:
        assert not oracle.laterals.any()
    else:
        assert np.array_equal(unpacked(choices.laterals, oracle.count), oracle.laterals)
    for column in range(oracle.count):
        ends = np.flatnonzero(marks[:, column])
        graph = nx.DiGraph(zip(situation.mesh.source[ends].tolist(), situation.mesh.target[ends].tolist(), strict=True))
        assert nx.is_directed_acyclic_graph(graph)


@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=family_name)
def test_choices_are_as_defined(number: int) -> None:
    situation = degraded(family(number), Random(number))
    assert_right(situation, choices_of(situation))


@pytest.mark.parametrize("seed", range(30))
def test_choices_in_a_tangle_stay_as_defined(seed: int) -> None:
    random = Random(seed)
    choices = None
    for situation, anew in restless(tangle(random), random, 6):
        if choices is None:
            choices = choices_of(situation)
            continue
        hops, touched = situation.hops, situation.touched
        assert touched is not None
        before, lengths = choices.words.copy(), anew.hops.distance
        pairs = choices.update(touched)
        assert hops is choices.hops
        assert_right(anew, choices)
        said = np.zeros(lengths.shape, dtype=np.bool_)
        said[pairs.nodes] = unpacked(pairs.columns, lengths.shape[1])
        changed = unpacked(before ^ choices.words, lengths.shape[1])
        ends, columns = np.nonzero(changed)
        assert said[situation.mesh.source[ends], columns].all()


def test_pairs_of_one_node_are_joined() -> None:
    words = np.array([[1], [2], [4]], dtype=np.uint64)
    found = merged_pairs(np.array([7, 3, 7]), words)
    assert found.nodes.tolist() == [3, 7]
    assert found.columns.tolist() == [[2], [5]]
