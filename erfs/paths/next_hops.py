"""Which link-ends lead to which destination: distances and next hops of all destinations at once.

Rule 1: the class axis is never looped over; every step is one numpy operation on (nodes or link-ends) x classes.
Rule 2: valley-free paths are found in two phases, so a next hop depends on the node alone, never on where a packet came from.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from erfs.paths.topology import Bits, Indices

Distances = NDArray[np.int16]
UNREACHABLE: Final = np.int16(np.iinfo(np.int16).max)


@dataclass(frozen=True)
class Mesh:
    """
    A directed graph of link-ends in the order of their source.

    Args:
        node_count: Nodes are 0 .. node_count - 1.
        transit_count: Nodes below this number forward for others; no link-end leads to the others.
        source, target: Per link-end; *source* ascending, *target* ascending within a source.
        is_up: Per link-end, whether it leads up.
    """

    node_count: int
    transit_count: int
    source: Indices
    target: Indices
    is_up: Bits

    @cached_property
    def by_target(self) -> Indices:
        """The link-ends in the order of their target."""
        return np.argsort(self.target, kind="stable")

    @cached_property
    def target_start(self) -> Indices:
        """Where each node's incoming link-ends start in `by_target`; one more entry than nodes."""
        return np.searchsorted(self.target[self.by_target], np.arange(self.node_count + 1))

    @cached_property
    def source_start(self) -> Indices:
        """Where each node's outgoing link-ends start; one more entry than nodes."""
        return np.searchsorted(self.source, np.arange(self.node_count + 1))


@dataclass(frozen=True)
class NextHops:
    """
    Where each node sends what goes to each destination.

    Args:
        distance: Nodes x destinations: links to go, 0 at an attachment, `UNREACHABLE` where policy permits no path.
        is_member: Link-ends x destinations: whether the link-end's source uses it.
    """

    distance: Distances
    is_member: Bits


def next_hops(mesh: Mesh, is_attached: Bits, *, is_valley_free: bool) -> NextHops:
    """
    Return the shortest permitted next hops of every node towards every destination.

    Plain: all link-ends on a shortest path. Valley-free: a node with an all-down path uses its shortest down next hops; any other
    uses the up next hops that lead to the nearest node with a permitted path. Either way each next hop is one closer, so the
    next hops of one destination form an acyclic graph.

    Args:
        mesh: Usable link-ends only.
        is_attached: Nodes x destinations.
        is_valley_free: Whether a packet that went down may not go up again.

    Cost: O(link-ends x destinations / 64) words per hop of distance.
    """
    if not is_valley_free:
        everywhere = np.ones(len(mesh.source), dtype=np.bool_)
        distance = _flood(mesh, everywhere, is_attached)
        return NextHops(distance, _is_closer(mesh, distance))
    down = _flood(mesh, ~mesh.is_up, is_attached)
    has_down = down != UNREACHABLE
    distance = _flood_over(mesh, mesh.is_up, down)
    # A neighbour below that itself must go up first would be a valley: down members count all-down distances only.
    is_member = np.where(
        mesh.is_up[:, None], _is_closer(mesh, distance) & ~has_down[mesh.source], _is_closer(mesh, down)
    )
    return NextHops(distance, is_member)


def count_by_source(mesh: Mesh, marks: Bits) -> NDArray[np.int32]:
    """Return, nodes x destinations, how many of each node's link-ends are marked in *marks* (link-ends x destinations)."""
    counts = np.zeros((mesh.node_count, marks.shape[1]), dtype=np.int32)
    nodes = np.flatnonzero(np.diff(mesh.source_start))
    if len(nodes):
        counts[nodes] = np.add.reduceat(marks, mesh.source_start[nodes], axis=0, dtype=np.int32)
    return counts


def reaches(mesh: Mesh, is_attached: Bits, works: Bits, *, is_valley_free: bool) -> Bits:
    """
    Return from where a permitted path exists, nodes x cases; each case has attachments and working link-ends of its own.

    Args:
        mesh: The link-ends.
        is_attached: Nodes x cases.
        works: Link-ends x cases.
        is_valley_free: Whether a packet that went down may not go up again.

    Cost: O(link-ends x cases / 8) bytes per hop of distance.
    """
    reached = np.packbits(is_attached, axis=1)
    usable = np.packbits(works, axis=1)
    for ends in (np.flatnonzero(~mesh.is_up), np.flatnonzero(mesh.is_up)) if is_valley_free else (slice(None),):
        sources, starts = np.unique(mesh.source[ends], return_index=True)
        while len(sources):
            found = np.bitwise_or.reduceat(reached[mesh.target[ends]] & usable[ends], starts, axis=0)
            if not (found & ~reached[sources]).any():
                break
            reached[sources] |= found
    marks: Bits = np.unpackbits(reached, axis=1, count=is_attached.shape[1]).astype(np.bool_)
    return marks


def _is_closer(mesh: Mesh, distance: Distances) -> Bits:
    near = distance[mesh.source]
    closer: Bits = (distance[mesh.target] == near - 1) & (near != UNREACHABLE)
    return closer


def _flood(mesh: Mesh, may_use: Bits, is_attached: Bits) -> Distances:
    """Return the links to go from each node to the nearest attachment, over the link-ends *may_use* alone."""
    start = np.full(is_attached.shape, UNREACHABLE, dtype=np.int16)
    start[is_attached] = 0
    return _flood_over(mesh, may_use, start)


def _flood_over(mesh: Mesh, may_use: Bits, settled: Distances) -> Distances:
    """
    Return *settled* with the open places filled: one more than the nearest neighbour over the link-ends *may_use*.

    Breadth first with starts at different depths; destinations are packed 8 to a byte, so a level costs one pass over the link-ends.
    """
    distance = settled.copy()
    ends = np.flatnonzero(may_use)
    if not len(ends) or not distance.size:
        return distance
    sources, starts = np.unique(mesh.source[ends], return_index=True)
    targets = mesh.target[ends]
    is_open = np.packbits(settled == UNREACHABLE, axis=1)
    deepest = int(settled[settled != UNREACHABLE].max(initial=-1))
    level = 0
    while True:
        frontier = np.packbits(distance == level, axis=1)
        if level > deepest and not frontier.any():
            return distance
        level += 1
        found = np.bitwise_or.reduceat(frontier[targets], starts, axis=0) & is_open[sources]
        if not found.any():
            continue
        is_open[sources] &= ~found
        rows = np.flatnonzero(found.any(axis=1))
        hits = np.unpackbits(found[rows], axis=1, count=distance.shape[1]).astype(np.bool_)
        block = distance[sources[rows]]
        block[hits] = level
        distance[sources[rows]] = block
