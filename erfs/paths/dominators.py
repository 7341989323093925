"""Whom does every node depend on towards every destination: without which switches and links does nothing lead there?

Rule 1: all nodes and destinations at once; no step loops over them, and no failure is tried out.
Rule 2: after any changes the state is bit for bit the one that a computation from nothing gives.

Who dies with a node towards a destination is who can send by it alone: in the acyclic graph of all choices towards the destination, the nodes
it *dominates*. So one tree per destination answers for all failures. A node's parent there is the lowest common ancestor
of those it may send to, and a node that has one link-end left depends on that too.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from erfs.paths.bits import Indices, Words, has_any, positions, unpacked
from erfs.paths.choices import Choices, Pairs, blocks, choices_of
from erfs.paths.mesh import Mesh, run_starts, runs
from erfs.paths.next_hops import UNREACHABLE

NOTHING: Final = -1
# Endpoints come after all switches, whatever their distance: they may turn to any attachment, and nobody sends to them.
_LAST: Final = int(UNREACHABLE) - 1
# Marks of link-ends x destinations looked at together, so that they stay in the second-level cache.
MARKS_AT_ONCE: Final = 1 << 20


class Dominators:
    """
    The trees of all destinations.

    The root of each tree is the number after the last node: the destination itself, where it has several attachments; an only attachment is at
    the root too, and depends on nothing that anybody could repair. A node that is dead already is its own tree.

    Args:
        choices: Kept; `update` reads it again after it has changed.
        end_failure: Per link-end, the number of the failure that takes it away.
        delivery_failure: Nodes x destinations, sparse: (node, destination, failure) of the attachments whose loss the others can make good.

    Source: Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm", 2001, for all destinations at once, by distance.
    Cost: O(choices of all pairs of node and destination) look-ups of a few times each.
    """

    def __init__(
        self, choices: Choices, end_failure: Indices, delivery_failure: tuple[Indices, Indices, Indices]
    ) -> None:
        self._choices = choices
        self.end_failure = end_failure
        hops = choices.hops
        self.column_count = hops.column_count
        self.root = choices.mesh.node_count
        shape = (self.root + 1, self.column_count)
        self.parent: NDArray[np.int32] = np.full(shape, self.root, dtype=np.int32)
        """Nodes x destinations: the nearest node that all its choices lead by; `root` if there is none."""
        self.sole: NDArray[np.int32] = np.full(shape, NOTHING, dtype=np.int32)
        """Nodes x destinations: the failure of the one link-end it has, or of delivering; `NOTHING` if it has several, or none."""
        self.depth: NDArray[np.int16] = np.zeros(shape, dtype=np.int16)
        """Nodes x destinations: how many switches, itself among them, may fail it there; 0 at the root."""
        node, column, failure = delivery_failure
        self.sole[node, column] = failure
        self.depth[node, column] = 1
        self.length = np.full(shape, UNREACHABLE, dtype=np.int32)
        self._is_waiting = np.zeros(shape[0] * shape[1], dtype=np.bool_)
        self._is_other = np.zeros(shape[0] * shape[1], dtype=np.bool_)
        self._from_nothing()

    @property
    def mesh(self) -> Mesh:
        """The graph as built."""
        return self._choices.mesh

    # --- reading ------------------------------------------------------------------------------------------------------
    def lift(self, node: Indices, column: Indices, depth: Indices) -> Indices:
        """Return the ancestor of each *node* at *depth*, or the node where it is not deeper."""
        node = node.copy()
        depths, parents = self.depth.ravel(), self.parent.ravel()
        low = np.arange(len(node))
        while len(low):
            at = node[low] * self.column_count + column[low]
            is_deeper = depths[at] > depth[low]
            low = low[is_deeper]
            node[low] = parents[at[is_deeper]]
        return node

    def meet(self, one: Indices, other: Indices, column: Indices) -> Indices:
        """Return the lowest common ancestor of each *one* and *other* towards *column*."""
        found = one.copy()
        depths, parents = self.depth.ravel(), self.parent.ravel()
        apart = np.flatnonzero(one != other)
        one, other, column = one[apart], other[apart], column[apart]
        while len(apart):
            at_one, at_other = one * self.column_count + column, other * self.column_count + column
            depth_one, depth_other = depths[at_one], depths[at_other]
            climbed = np.where(depth_one >= depth_other, parents[at_one], one)
            other = np.where(depth_other >= depth_one, parents[at_other], other)
            is_apart = climbed != other
            met = ~is_apart
            found[apart[met]] = other[met]
            apart, column = apart[is_apart], column[is_apart]
            one, other = climbed[is_apart], other[is_apart]
        return found

    def common(self, starts: Indices, nodes: Indices, columns: Indices) -> Indices:
        """
        Return the lowest common ancestor of each run of *nodes*.

        Args:
            starts: Where each run begins; none is empty.
            columns: The destination of each run.
        """
        counts = np.diff(starts, append=len(nodes))
        found = nodes[starts]
        several = np.flatnonzero(counts > 1)
        found[several] = self.meet(found[several], nodes[(starts + counts - 1)[several]], columns[several])
        # Whoever is at the root with its first and last is there with all.
        open_runs = several[(counts[several] > 2) & (self.depth[found[several], columns[several]] > 0)]
        if not len(open_runs):
            return found
        inner, begins = runs(starts[open_runs], starts[open_runs] + counts[open_runs] - 1)
        values, counts, column = nodes[inner], np.diff(begins), columns[open_runs]
        values[begins[:-1]] = found[open_runs]
        # Neighbours in a run are joined two by two until one is left of each.
        while len(values) > len(open_runs):
            begins = np.cumsum(counts) - counts
            rank = np.arange(len(values)) - np.repeat(begins, counts)
            left = np.flatnonzero(rank % 2 == 0)
            has_right = rank[left] + 1 < np.repeat(counts, (counts + 1) // 2)
            joined = values[left]
            pair = left[has_right]
            joined[has_right] = self.meet(values[pair], values[pair + 1], np.repeat(column, counts // 2))
            values, counts = joined, (counts + 1) // 2
        found[open_runs] = values
        return found

    # --- from nothing -------------------------------------------------------------------------------------------------
    def _from_nothing(self) -> None:
        hops, transit = self._choices.hops, self.mesh.transit_count
        for length in sorted(hops.levels):
            level = hops.levels[length]
            self.length[: self.root][unpacked(level, self.column_count)] = length
            if not length:
                continue
            if self._choices.laterals is None:
                self._settle_level(level[:transit])
            else:
                self._settle_in_order(*positions(level[:transit]))
        node, column = positions(hops.reached[transit:])
        self._settle(node + transit, column)

    def _settle_level(self, level: Words) -> None:
        """Put all pairs in *level* in their place; all they may send to are in theirs. Reads whole rows of link-ends, so it is for many pairs."""
        mesh, count = self.mesh, self.column_count
        nodes = np.flatnonzero(has_any(level))
        degree = np.diff(mesh.source_start)[nodes]
        for size in np.unique(degree):
            alike = nodes[degree == size]
            step = max(1, MARKS_AT_ONCE // int(size * count))
            for first in range(0, len(alike), step):
                block = alike[first : first + step]
                ends = mesh.source_start[block][:, None] + np.arange(size)
                words = self._choices.words[ends] & level[block][:, None]
                marks = unpacked(words.reshape(-1, words.shape[2]), count).reshape(len(block), size, count)
                pair, place = np.nonzero(np.ascontiguousarray(marks.transpose(0, 2, 1)).reshape(-1, size))
                starts = run_starts(pair)
                row, column = np.divmod(pair[starts], count)
                targets = mesh.target[ends]
                self._place(block[row], column, starts, targets[pair // count, place], ends[row, place[starts]])

    def _settle(self, node: Indices, column: Indices) -> None:
        """Put (*node*, *column*) in their place; all they may send to are in theirs."""
        for first, stop in blocks(self.mesh, node):
            which, ends = choices_of(self.mesh, node[first:stop], column[first:stop], self._choices.words)
            self._place_runs(node[first:stop], column[first:stop], which, ends)

    def _place_runs(self, node: Indices, column: Indices, which: Indices, ends: Indices) -> None:
        starts = run_starts(which)
        pair = which[starts]
        self._place(node[pair], column[pair], starts, self.mesh.target[ends], ends[starts])

    def _place(self, node: Indices, column: Indices, starts: Indices, targets: Indices, first_ends: Indices) -> None:
        """Put (*node*, *column*) in their place: each sends to the run of *targets* that begins at *starts*, by *first_ends* first."""
        parent = self.common(starts, targets, column)
        is_sole = np.diff(starts, append=len(targets)) == 1
        at = node * self.column_count + column
        self.parent.ravel()[at] = parent
        self.depth.ravel()[at] = self.depth[parent, column] + 1
        self.sole.ravel()[at] = np.where(is_sole, self.end_failure[first_ends], NOTHING)

    def _settle_in_order(self, node: Indices, column: Indices) -> None:
        """Put pairs of one distance in their place, who turns to nobody else among them first."""
        which, ends = choices_of(self.mesh, node, column, self._choices.words)
        waiting = self._is_waiting
        at = node * self.column_count + column
        waiting[at] = True
        while len(which):
            beyond = self.mesh.target[ends] * self.column_count + column[which]
            is_blocked = np.zeros(len(node), dtype=np.bool_)
            is_blocked[which[waiting[beyond]]] = True
            is_ready = ~is_blocked[which]
            ready = which[is_ready]
            assert len(ready), "choices go round in a circle"
            self._place_runs(node, column, ready, ends[is_ready])
            waiting[at[ready]] = False
            which, ends = which[~is_ready], ends[~is_ready]
        waiting[at] = False

    # --- changes ------------------------------------------------------------------------------------------------------
    def update(self, pairs: Pairs) -> tuple[Indices, Indices]:
        """
        Take in that the choices have changed.

        Args:
            pairs: Who may have other choices, or be at another distance.

        Returns:
            For whom what they depend on was looked at again, (nodes, destinations): for all others it is as it was, and so it is for all
            that they may send to.

        Cost: O(choices of these pairs).
        """
        node, column = positions(pairs.columns)
        node = pairs.nodes[node]
        at = node * self.column_count + column
        self._measure(at, node, column)
        lost = at[self.length.ravel()[at] == UNREACHABLE]
        # Nobody sends by a pair that is lost, so nobody upstream has to be told.
        self.parent.ravel()[lost], self.sole.ravel()[lost], self.depth.ravel()[lost] = self.root, NOTHING, 0
        seen, others = [at], [lost]
        todo: dict[int, list[Indices]] = {}
        self._enqueue(todo, at)
        while todo:
            rank = min(todo)
            at = np.unique(np.concatenate(todo.pop(rank)))
            if self._choices.laterals is not None and rank != _LAST:
                at = self._with_beside(at)
            seen.append(at)
            others.append(self._settle_again(at))
            self._enqueue(todo, self._senders(others[-1]))
        for at in others:
            self._is_other[at] = False
        node, column = np.divmod(np.unique(np.concatenate(seen)), self.column_count)
        return node, column

    def _settle_again(self, at: Indices) -> Indices:
        """Put pairs of one distance in their place. Return those that depend on something else than before, be it only higher up the tree."""
        node, column = np.divmod(at, self.column_count)
        tree: tuple[NDArray[np.signedinteger], ...] = self.parent.ravel(), self.sole.ravel(), self.depth.ravel()
        before = [part[at] for part in tree]
        if self._choices.laterals is None:
            self._settle(node, column)
        else:
            self._settle_in_order(node, column)
        # Parents at a smaller distance are final; those beside are in the tree below one that is, or has just been put in its place.
        is_other = np.zeros(len(at), dtype=np.bool_)
        for was, part in zip(before, tree, strict=True):
            is_other |= was != part[at]
        while True:
            self._is_other[at[is_other]] = True
            more = ~is_other & self._is_other[self.parent.ravel()[at].astype(np.int64) * self.column_count + column]
            if not more.any():
                return at[is_other]
            is_other |= more

    def _measure(self, at: Indices, node: Indices, column: Indices) -> None:
        """Look up how far (*node*, *column*) are now."""
        length = np.full(len(at), UNREACHABLE, dtype=np.int32)
        place, shift = column >> 6, (column & 63).astype(np.uint64)
        for distance, level in self._choices.hops.levels.items():
            is_here = (level[node, place] >> shift) & np.uint64(1)
            length[is_here != 0] = distance
        self.length.ravel()[at] = length

    def _enqueue(self, todo: dict[int, list[Indices]], at: Indices) -> None:
        """Sort pairs that are reached, and are no attachments, into *todo* by the order in which they are put in their place."""
        length = self.length.ravel()[at]
        rank = np.where(at >= self.mesh.transit_count * self.column_count, _LAST, length)
        rank[(length == UNREACHABLE) | (length == 0)] = 0
        for value in np.unique(rank):
            if value:
                todo.setdefault(int(value), []).append(at[rank == value])

    def _senders(self, at: Indices) -> Indices:
        """Return who may send to these pairs."""
        node, column = np.divmod(at, self.column_count)
        incoming, begins = self.mesh.incoming(node)
        column = np.repeat(column, np.diff(begins))
        words = self._choices.words
        sends = (words[incoming, column >> 6] >> (column & 63).astype(np.uint64)) & np.uint64(1)
        chosen = np.flatnonzero(sends)
        senders: Indices = self.mesh.source[incoming[chosen]] * self.column_count + column[chosen]
        return senders

    def _with_beside(self, at: Indices) -> Indices:
        """Return these pairs of one distance, and all that may turn to them at this distance."""
        found, fresh = at, at
        while len(fresh):
            senders = self._senders(fresh)
            is_beside = (senders < self.mesh.transit_count * self.column_count) & (
                self.length.ravel()[senders] == self.length.ravel()[at[0]]
            )
            fresh = np.setdiff1d(senders[is_beside], found)
            found = np.union1d(found, fresh)
        return found
