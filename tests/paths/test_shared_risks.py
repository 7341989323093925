"""Who dies when links fail together: tried out, and for single links what the trees say."""

from random import Random

import numpy as np
import pytest

from erfs.paths.choices import Choices
from erfs.paths.protection import Failure, Kind
from erfs.paths.shared_risks import SharedRisks, differing
from erfs.paths.situation import Situation
from tests.paths.deaths import Oracle, degraded
from tests.paths.fabrics import FAMILIES, family, family_name, tangle
from tests.paths.test_dominators import choices_of, dead_by_tree, tree_of


def risks_of(situation: Situation, groups: list[list[int]], choices: Choices | None = None) -> SharedRisks:
    return SharedRisks(choices or choices_of(situation), [np.array(ends, dtype=np.int64) for ends in groups])


def dead_under(risks: SharedRisks) -> dict[tuple[int, int], set[int]]:
    """Return who is dead for each (group, destination)."""
    found: dict[tuple[int, int], set[int]] = {}
    at, group = np.divmod(risks.dead, risks.group_count)
    node, column = np.divmod(at, risks.column_count)
    for key in zip(group.tolist(), column.tolist(), node.tolist(), strict=True):
        found.setdefault(key[:2], set()).add(key[2])
    return found


@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=family_name)
def test_who_dies_with_a_group_is_who_cannot_arrive_without_it(number: int) -> None:
    situation = degraded(family(number), Random(number))
    oracle = Oracle(situation)
    found = dead_under(risks_of(situation, oracle.risk_groups))
    if any(target.strays for target in situation.targets):
        return
    for group in range(len(oracle.risk_groups)):
        for column in range(oracle.count):
            expected = oracle.verdict(Failure(Kind.SRLG, group), column).dead
            assert found.get((group, column), set()) == expected, (group, column)


@pytest.mark.parametrize("seed", range(30))
def test_a_group_of_one_link_does_what_the_trees_say(seed: int) -> None:
    """Two ways to the same answer that share nothing."""
    random = Random(seed)
    situation = degraded(tangle(random), random)
    groups = [ends.tolist() for ends in situation.topology.ends_of_trunk]
    found = dead_under(risks_of(situation, groups))
    by_tree = {
        (subject, column): nodes
        for (kind, subject, column), nodes in dead_by_tree(situation, tree_of(situation)).items()
        if kind is Kind.TRUNK and subject < len(groups)
    }
    assert found == by_tree


def test_look_ups_find_what_is_there_and_nothing_else() -> None:
    random = Random(3)
    situation = degraded(family(0), random)
    oracle = Oracle(situation)
    risks = risks_of(situation, oracle.risk_groups)
    everyone = np.arange(situation.mesh.node_count * oracle.count)
    which, group = risks.under(risks.dead, everyone)
    assert (which * risks.group_count + group).tolist() == risks.dead.tolist()
    assert risks.is_dead(which, group).all()
    assert int(np.count_nonzero(risks.is_dead(everyone, np.zeros_like(everyone)))) == int(np.count_nonzero(group == 0))
    for number, ends in enumerate(oracle.risk_groups):
        fails = risks.fails(np.arange(len(situation.mesh)), np.full(len(situation.mesh), number))
        assert np.flatnonzero(fails).tolist() == ends


def test_differing_keys_are_those_in_one_list_only() -> None:
    assert differing(np.array([1, 3, 5]), np.array([2, 3, 5, 9])).tolist() == [1, 2, 9]


def test_without_groups_nobody_is_dead() -> None:
    risks = risks_of(degraded(family(0), Random(1)), [])
    assert len(risks.dead) == len(risks.emptied) == 0
