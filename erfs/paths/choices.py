"""Which link-ends a node may ever use towards a destination: its next hops, and those it may turn to when all of these are gone.

Rule 1: the choices of all nodes towards one destination are acyclic: along each of them (distance, number of the node) falls. So they stay
acyclic whatever is dropped and whatever is added.
Rule 2: after any changes the state is bit for bit the one that a computation from nothing gives.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from erfs.paths.bits import Indices, Words, has_any
from erfs.paths.mesh import Mesh, run_starts
from erfs.paths.next_hops import NextHops, Touched

# Link-ends of pairs looked at together, so that the arrays of one step stay in the second-level cache.
ENDS_AT_ONCE: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class Pairs:
    """Nodes, rising, and for each of them a set of destinations."""

    nodes: Indices
    columns: Words


class Choices:
    """
    The next hops and the laterals of all nodes.

    A *lateral* is a link-end that is added when all next hops are gone. An endpoint may turn to any of its attachments, since nobody sends
    through it. A switch may turn to a neighbour at the same distance with a smaller number, where valleys are allowed.

    Args:
        hops: Kept; `update` reads it again after it has changed.
        never_beside: Destinations for which no switch may turn to a neighbour.

    Cost: O(link-ends x destinations / 64) words for each distance, where there are laterals; nothing where there are none.
    """

    def __init__(self, hops: NextHops, never_beside: Words) -> None:
        self.hops = hops
        self._beside = ~never_beside
        mesh = hops.mesh
        from_endpoint = mesh.source >= mesh.transit_count
        may_turn = from_endpoint | (
            (mesh.target < mesh.source) if not hops.is_valley_free else np.zeros(len(mesh), dtype=np.bool_)
        )
        self._may_turn = may_turn
        self._usable = hops.usable.copy()
        self.laterals: Words | None = None
        """Link-ends x destinations; None where policy and wiring leave none."""
        self.words: Words = hops.members
        """Link-ends x destinations: next hops and laterals."""
        if may_turn.any():
            self.laterals = np.zeros_like(hops.members)
            ends = np.flatnonzero(may_turn)
            self.laterals[ends] = self._laterals_of(ends)
            self.words = hops.members | self.laterals

    @property
    def mesh(self) -> Mesh:
        """The graph as built."""
        return self.hops.mesh

    def update(self, touched: Touched) -> Pairs:
        """
        Take in that `hops` has changed.

        Returns:
            Who may have other choices, or be at another distance.

        Cost: O(link-ends at the touched nodes x destinations / 64).
        """
        if self.laterals is None:
            return Pairs(touched.nodes, touched.columns)
        mesh, hops = self.mesh, self.hops
        ends = np.unique(
            np.concatenate(
                [
                    mesh.outgoing(touched.nodes)[0],
                    mesh.incoming(touched.nodes)[0],
                    np.flatnonzero(self._usable != hops.usable),
                    touched.ends,
                ]
            )
        )
        self._usable[ends] = hops.usable[ends]
        before = self.laterals[ends]
        after = np.where(self._may_turn[ends, None], self._laterals_of(ends), np.uint64(0))
        self.laterals[ends] = after
        self.words[ends] = hops.members[ends] | after
        differs = before ^ after
        is_other = has_any(differs)
        nodes = np.concatenate([touched.nodes, mesh.source[ends[is_other]]])
        return merged_pairs(nodes, np.concatenate([touched.columns, differs[is_other]]))

    def _laterals_of(self, ends: Indices) -> Words:
        mesh, hops = self.mesh, self.hops
        source, target = mesh.source[ends], mesh.target[ends]
        found = np.zeros((len(ends), hops.members.shape[1]), dtype=np.uint64)
        of_endpoint = source >= mesh.transit_count
        of_switch = np.flatnonzero(~of_endpoint)
        for length, level in hops.levels.items():
            found[of_endpoint] |= level[target[of_endpoint]]
            if length and len(of_switch) and not hops.is_valley_free:
                found[of_switch] |= level[source[of_switch]] & level[target[of_switch]] & self._beside
        found &= ~hops.members[ends]
        found[~hops.usable[ends]] = 0
        return found


def merged_pairs(nodes: Indices, columns: Words) -> Pairs:
    """Return the different *nodes*, rising, each with all its *columns*."""
    order = np.argsort(nodes, kind="stable")
    nodes = nodes[order]
    starts = run_starts(nodes)
    return Pairs(nodes[starts], np.bitwise_or.reduceat(columns[order], starts, axis=0) if len(starts) else columns[:0])


def choices_of(mesh: Mesh, node: Indices, column: Indices, words: Words) -> tuple[Indices, Indices]:
    """
    Return which link-ends each (*node*, *column*) has, pair by pair: (number of the pair, link-end).

    Args:
        words: Link-ends x destinations: those to look for.

    Cost: O(link-ends at the nodes), for each pair.
    """
    which, ends = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    flat, width = words.ravel(), words.shape[1]
    place, shift = column >> 6, (column & 63).astype(np.uint64)
    for first, stop in blocks(mesh, node):
        outgoing, begins = mesh.outgoing(node[first:stop])
        pair = np.repeat(np.arange(first, stop), np.diff(begins))
        is_marked = (flat[outgoing * width + place[pair]] >> shift[pair]) & np.uint64(1)
        chosen = np.flatnonzero(is_marked)
        which.append(pair[chosen])
        ends.append(outgoing[chosen])
    return np.concatenate(which), np.concatenate(ends)


def blocks(mesh: Mesh, node: Indices) -> Iterator[tuple[int, int]]:
    """Yield ranges of *node* whose link-ends can be looked at together."""
    most = int(np.diff(mesh.source_start).max(initial=1))
    step = max(1, ENDS_AT_ONCE // max(1, most))
    for first in range(0, len(node), step):
        yield first, min(first + step, len(node))
