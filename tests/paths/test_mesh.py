"""A mesh finds the link-ends at a node, both those that leave and those that arrive."""

import numpy as np
import pytest

from erfs.paths import Topology
from erfs.paths.mesh import run_starts, runs
from erfs.paths.situation import Situation
from tests.paths.fabrics import FAMILIES, family, family_name


@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=family_name)
def test_every_link_end_is_found_at_its_source_and_at_its_target(number: int) -> None:
    mesh = Situation(Topology(family(number)), frozenset()).mesh
    nodes = np.arange(mesh.node_count)
    for found, at in ((mesh.outgoing(nodes), mesh.source), (mesh.incoming(nodes), mesh.target)):
        ends, begins = found
        assert sorted(ends.tolist()) == list(range(len(mesh)))
        for node in nodes:
            assert (at[ends[begins[node] : begins[node + 1]]] == node).all()


def test_runs_are_one_range_after_the_other() -> None:
    places, begins = runs(np.array([5, 2, 9]), np.array([7, 2, 12]))
    assert places.tolist() == [5, 6, 9, 10, 11]
    assert begins.tolist() == [0, 2, 2, 5]


def test_a_run_begins_wherever_the_value_changes() -> None:
    assert run_starts(np.array([4, 4, 7, 7, 7, 4])).tolist() == [0, 2, 5]
    assert run_starts(np.array([], dtype=np.int64)).tolist() == []
