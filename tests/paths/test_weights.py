"""Weights of next hops: against the definition in plain Python and fractions, and what they are to mean for a fabric that is hurt."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import gcd
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.fabric import Fabric, goes_up, is_valley_free_required
from erfs.generators import generate
from erfs.ids import LinkId, NodeId
from erfs.paths import Topology
from erfs.paths.bits import unpacked
from erfs.paths.situation import Sharing, Situation
from erfs.paths.weights import EQUAL, Weights
from tests.paths.fabrics import FAMILIES, GBPS, Draft, fabrics, family, family_name, tangle

Group = dict[int, int]
"""The weight of each member, by link-end."""


# --- the definition, slowly ----------------------------------------------------------------------------------------------
def arriving(fabric: Fabric, node: NodeId, *, is_sent_up: bool) -> int:
    """Return how much can arrive of what *node* sends up, or down."""
    up = down = access = 0
    for link in fabric.links_of[node]:
        if link.is_self_loop:
            continue
        if fabric.is_access(link):
            access += link.capacity_bps
        elif fabric.is_trunk(link):
            if goes_up(fabric, link, node):
                up += link.capacity_bps
            else:
                down += link.capacity_bps
    if not is_valley_free_required(fabric):
        return up + down + access
    if is_sent_up:
        return down + access
    return up or down


def ideal_share(value: Fraction, best: Fraction) -> Fraction:
    return 16 * value / best


def group_weights(values: dict[int, Fraction], previous: Group) -> Group:
    """Return the weights of a group, given what each member is worth and the weights before."""
    if previous.keys() != values.keys():
        previous = dict.fromkeys(values, 1)
    best = max(values.values())
    ideal = {end: ideal_share(value, best) for end, value in values.items()}
    top = max(previous.values())
    if all(abs(ideal[end] - Fraction(16 * previous[end], top)) <= Fraction(3, 2) for end in values):
        return previous
    rounded = {end: max(1, int(share + Fraction(1, 2))) for end, share in ideal.items()}
    divisor = gcd(*rounded.values())
    return {end: weight // divisor for end, weight in rounded.items()}


def expected_groups(situation: Situation, previous: dict[tuple[int, int], Group]) -> dict[tuple[int, int], Group]:
    """Return the weights of all groups, by (node, column)."""
    topology, mesh, hops = situation.topology, situation.mesh, situation.hops
    fabric = topology.fabric
    marks = unpacked(hops.members, hops.column_count)
    capacity = [
        int(topology.end_capacity_bps[end]) if end < len(topology.end_capacity_bps) else 1 for end in range(len(mesh))
    ]
    arrivals = [
        {is_up: arriving(fabric, node, is_sent_up=is_up) for is_up in (False, True)} for node in topology.switches
    ]
    found: dict[tuple[int, int], Group] = {}
    for column, target in enumerate(situation.targets):
        members: dict[int, list[int]] = {}
        for end in np.flatnonzero(marks[:, column]).tolist():
            members.setdefault(int(mesh.source[end]), []).append(end)

        def share(node: int, target_nodes: tuple[int, ...], members: dict[int, list[int]]) -> Fraction:
            if node in target_nodes:
                return Fraction(1)
            behind = sum(capacity[end] for end in members[node])
            is_sent_up = any(bool(mesh.is_up[end]) for end in members[node])
            return min(Fraction(1), Fraction(behind, arrivals[node][is_sent_up]))

        for node, ends in members.items():
            values = {end: capacity[end] * share(int(mesh.target[end]), target.attachments, members) for end in ends}
            found[node, column] = group_weights(values, previous.get((node, column), {}))
    return found


def groups_of(situation: Situation) -> dict[tuple[int, int], Group]:
    """Return the engine's weights of all groups, by (node, column)."""
    mesh, hops = situation.mesh, situation.hops
    marks = unpacked(hops.members, hops.column_count)
    found: dict[tuple[int, int], Group] = {}
    for end, column in np.argwhere(marks).tolist():
        found.setdefault((int(mesh.source[end]), column), {})[end] = 1
    weights = situation.sharing.weights
    for node in range(mesh.node_count):
        for column, row in zip(*weights.of_node(node), strict=True):
            group = found[node, int(column)]
            known = {
                int(mesh.source_start[node]) + local: weight for local, weight in enumerate(row.tolist()) if weight
            }
            assert known.keys() == group.keys()
            assert len(set(known.values())) > 1  # equal ones are not told
            group.update(known)
    return found


# --- fabrics and what happens to them ------------------------------------------------------------------------------------
def with_speeds(fabric: Fabric, rng: Random, speeds: list[int]) -> Fabric:
    links = [replace(link, capacity_bps=rng.choice(speeds)) for link in fabric.links.values()]
    return Fabric(fabric.nodes.values(), links)


def without(fabric: Fabric, count: int, rng: Random) -> frozenset[LinkId]:
    return frozenset(rng.sample([trunk.id for trunk in fabric.trunks], min(count, len(fabric.trunks))))


def states(topology: Topology, rng: Random, steps: int, *, is_access_too: bool) -> Iterator[frozenset[LinkId]]:
    """Yield what is unusable, step by step; some of it returns now and then."""
    links = [trunk.id for trunk in topology.trunks] + (sorted(topology.endpoint_of_access) if is_access_too else [])
    unusable = frozenset(link for link in links if rng.random() < rng.choice([0.0, 0.1, 0.3]))
    for _ in range(steps):
        yield unusable
        unusable ^= frozenset(rng.sample(links, min(len(links), rng.choice([1, 1, 1, 2, 5]))))


def follow(topology: Topology, rng: Random, steps: int) -> None:
    """Hold the engine to the definition: from nothing, from given weights, and brought up to date."""
    situation: Situation | None = None
    sharing: Sharing | None = None
    known: dict[tuple[int, int], Group] = {}
    cost = {trunk.id: rng.choice([1, 1, 1, 2]) for trunk in topology.trunks} if rng.random() < 0.3 else {}
    for unusable in states(topology, rng, steps, is_access_too=False):
        situation = Situation(topology, unusable, cost, previous=situation, shared=sharing)
        known = expected_groups(situation, known)
        assert groups_of(situation) == known
        fresh = Situation(topology, unusable, cost, shared=sharing)
        assert fresh.sharing == situation.sharing
        sharing = situation.sharing
        again = Situation(topology, unusable, cost, shared=sharing)
        assert again.sharing == sharing
        if rng.random() < 0.2:  # as whoever has just been started
            sharing, known = None, {}


SPEEDS = [[GBPS], [GBPS, GBPS, 2 * GBPS], [25 * GBPS, 40 * GBPS, 100 * GBPS]]


@pytest.mark.parametrize("speeds", SPEEDS, ids=["one-speed", "two-speeds", "three-speeds"])
@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=family_name)
def test_weights_are_the_defined_ones_after_every_change(number: int, speeds: list[int]) -> None:
    rng = Random(1000 * number + len(speeds))
    follow(Topology(with_speeds(family(number), rng, speeds)), rng, 8)


@given(fabrics(), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_weights_of_tangled_fabrics_are_the_defined_ones(fabric: Fabric, seed: int) -> None:
    if fabric.trunks:
        rng = Random(seed)
        follow(Topology(with_speeds(fabric, rng, rng.choice(SPEEDS))), rng, 5)


@pytest.mark.parametrize("seed", range(40))
def test_weights_of_larger_tangles_are_the_defined_ones(seed: int) -> None:
    rng = Random(seed)
    follow(Topology(with_speeds(tangle(rng), rng, rng.choice(SPEEDS))), rng, 8)
