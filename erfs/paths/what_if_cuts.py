"""Which fixed cuts stand for a fabric's bisection, and what of them does a failure leave?

Rule 1: the cuts are chosen once, from the fabric as built, in canonical order; a failure only takes capacity from them.
Rule 2: integers alone, so every machine chooses the same.

Exact bisection is hard to compute, and a maximum flow for each failure is dear; fixed cuts cost one sum. In a tiered fabric these are the cuts
between neighbouring tiers that some demand has to cross. Elsewhere it is one halving: for a link a - b the switches are ordered by how
much nearer they are to a than to b, and the first half of the endpoints is one side; of up to 64 links the one whose halving is
crossed by the least capacity is taken. On a torus with even sides this is the bisection itself.
"""

from typing import Final

import numpy as np

from erfs.fabric import Fabric, is_tiered
from erfs.paths.bits import Bits, Indices
from erfs.paths.topology import Topology
from erfs.paths.what_if_state import UNREACHED, Flow, Ground

HALVINGS: Final = 64

DEFINITION: Final = (
    "bisection retained: what remains of the narrowest fixed cut; on tiered fabrics of the cuts between neighbouring tiers that some"
    f" demand has to cross, elsewhere of the narrowest of up to {HALVINGS} halvings of the endpoints, fixed once for the fabric"
)


def bisection_cuts(topology: Topology, ground: Ground) -> Bits:
    """
    Return which trunks cross each cut, cuts x trunks; no cut where there is nothing to cut in two.

    Cost: O(tiers x links), or up to 64 searches on a fabric without tiers.
    """
    if not len(topology.trunks) or not ground.class_count:
        return np.zeros((0, len(topology.trunks)), dtype=np.bool_)
    ends = np.argsort(topology.end_trunk, kind="stable").reshape(-1, 2)
    one, other = ground.source[ends[:, 0]], ground.source[ends[:, 1]]
    if is_tiered(topology.fabric):
        return _between_tiers(topology.fabric, topology, ground, one, other)
    return _halving(ground, one, other, ground.capacity[ends[:, 0]])


def _between_tiers(fabric: Fabric, topology: Topology, ground: Ground, one: Indices, other: Indices) -> Bits:
    tiers = np.array([-1 if (tier := fabric.nodes[node].tier) is None else tier for node in topology.switches])
    low, high = np.minimum(tiers[one], tiers[other]), np.maximum(tiers[one], tiers[other])
    whole = _parts_with_endpoints(ground, np.ones(ground.node_count, dtype=np.bool_))
    cuts = [
        (low >= 0) & (low <= tier) & (tier < high)
        for tier in sorted(set(tiers[tiers >= 0].tolist()))[:-1]
        if _parts_with_endpoints(ground, tiers <= tier) > whole
    ]
    return np.array(cuts, dtype=np.bool_).reshape(-1, len(one))


def _parts_with_endpoints(ground: Ground, stays: Bits) -> int:
    """Return into how many parts the switches with endpoints fall when only the switches that stay are there."""
    label = np.arange(ground.node_count)
    inside = np.flatnonzero(stays[ground.source] & stays[ground.target])
    while True:
        lower = label.copy()
        np.minimum.at(lower, ground.source[inside], label[ground.target[inside]])
        lower = lower[lower]
        if np.array_equal(lower, label):
            return len(np.unique(label[ground.is_home]))
        label = lower


def _halving(ground: Ground, one: Indices, other: Indices, capacity: Indices) -> Bits:
    chosen = np.unique(np.linspace(0, len(one) - 1, HALVINGS).astype(np.int64))
    marks = np.zeros((ground.node_count, 2 * len(chosen)), dtype=np.bool_)
    marks[one[chosen], np.arange(len(chosen))] = True
    marks[other[chosen], len(chosen) + np.arange(len(chosen))] = True
    distance = Flow(ground, marks).distance
    distance[distance == UNREACHED] = ground.node_count
    nearer = distance[:, : len(chosen)] - distance[:, len(chosen) :]
    # An endpoint on several switches counts for the first.
    first = ground.attachment[ground.class_start[:-1]]
    endpoints = np.bincount(first, weights=ground.weight, minlength=ground.node_count).astype(np.int64)
    order = np.argsort(nearer, axis=0, kind="stable")
    before = np.cumsum(endpoints[order], axis=0) - endpoints[order]
    side = np.zeros(nearer.shape, dtype=np.bool_)
    np.put_along_axis(side, order, 2 * before < endpoints.sum(), axis=0)
    crosses = side[one] != side[other]
    width = (crosses * capacity[:, None]).sum(axis=0)
    # A halving that nothing crosses (a fabric in parts) has nothing to lose.
    width[width == 0] = np.iinfo(np.int64).max
    best: Bits = crosses[:, np.argmin(width)][None, :]
    return best if best.any() else best[:0]
