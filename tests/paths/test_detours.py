"""Who could be done without, by definition: somebody upstream has another neighbour to send to."""

from random import Random

import networkx as nx
import numpy as np
import pytest

from erfs.fabric import Fabric
from erfs.paths.bits import unpacked
from erfs.paths.detours import Detours
from erfs.paths.situation import Situation
from tests.paths.deaths import degraded, restless
from tests.paths.fabrics import FAMILIES, family, family_name, tangle


def expected(situation: Situation) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    mesh, count = situation.mesh, len(situation.targets)
    members = unpacked(situation.hops.members, count)
    found = np.zeros((mesh.node_count, count), dtype=np.bool_)
    for column, target in enumerate(situation.targets):
        ends = np.flatnonzero(members[:, column])
        graph = nx.DiGraph(zip(mesh.source[ends].tolist(), mesh.target[ends].tolist(), strict=True))
        for node in graph:
            senders = [one for one in nx.ancestors(graph, node) if graph.out_degree(one) > 1]
            found[node, column] = bool(senders) and target.attachments != (node,)
    return found


def assert_right(situation: Situation, detours: Detours) -> None:
    assert np.array_equal(unpacked(detours.words, len(situation.targets)), expected(situation))


@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=family_name)
def test_who_could_be_done_without(number: int) -> None:
    situation = degraded(family(number), Random(number))
    assert_right(situation, Detours(situation.hops))


@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=family_name)
def test_after_changes_the_answer_is_that_of_a_computation_from_nothing(number: int) -> None:
    assert_keeps_up(family(number), Random(number))


@pytest.mark.parametrize("seed", range(20))
def test_after_changes_in_a_tangle_the_answer_is_that_of_a_computation_from_nothing(seed: int) -> None:
    random = Random(seed)
    assert_keeps_up(tangle(random), random)


def assert_keeps_up(fabric: Fabric, random: Random) -> None:
    detours = None
    for situation, anew in restless(fabric, random, 8):
        if detours is None:
            detours = Detours(situation.hops)
            continue
        hops, touched = situation.hops, situation.touched
        assert touched is not None
        assert hops is not anew.hops
        before = detours.words.copy()
        changed = detours.update(touched)
        after = Detours(anew.hops).words
        assert np.array_equal(detours.words, after)
        assert set(np.flatnonzero((before != after).any(axis=1)).tolist()) <= set(changed.tolist())
        assert_right(anew, detours)
