"""What does each node change for each failure? Read from the trees of whom everybody depends on.

Rule 1: a node drops a next hop for the failures that the next hop depends on and the node itself does not: for those its upstream nodes are armed.
Rule 2: what a node changes for a switch includes what it changes for each link of that switch.
Rule 3: what a class drops its endpoints drop, so stray destinations repeat none of it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from erfs.paths.bits import Bits, Indices, Words, empty, has_any, positions
from erfs.paths.choices import Choices, choices_of
from erfs.paths.dominators import NOTHING, Dominators
from erfs.paths.mesh import run_starts, runs
from erfs.paths.shared_risks import SharedRisks

# Sums that are kept in one integer: node, failure, add or drop, link-end, destination.
KEY_BITS_MAX = 63


@dataclass(frozen=True, slots=True)
class ArmedRows:
    """
    Changes, in the order of (node, failure, drops first, link-end): arrays of one length, and the destinations of all of them.

    Row i is for the destinations *columns[starts[i] : starts[i + 1]]*, rising.
    """

    node: Indices
    failure: Indices
    is_add: Bits
    end: Indices
    starts: Indices
    columns: Indices

    def __len__(self) -> int:
        return len(self.node)

    def sets(self, column_count: int) -> Words:
        """Return the destinations of each row as a set. Cost: O(rows x destinations / 64)."""
        words = empty(len(self), column_count)
        which = np.repeat(np.arange(len(self)), np.diff(self.starts))
        bits = np.left_shift(np.uint64(1), (self.columns & 63).astype(np.uint64))
        # Each (row, word) is one run, since columns rise within a row.
        place = which * words.shape[1] + (self.columns >> 6)
        at = run_starts(place)
        if len(at):
            words.ravel()[place[at]] = np.bitwise_or.reduceat(bits, at)
        return words


class Numbers(NamedTuple):
    """
    How failures are numbered.

    Args:
        first_node: The failure of node 0; those of the others follow.
        first_group: The failure of the first group of links that share a risk; those of the others follow.
        total: How many failures there are.
        group_start, group_of: By failure of a link, the groups that it is in: *group_of[group_start[i] : group_start[i + 1]]*.
    """

    first_node: int
    first_group: int
    total: int
    group_start: Indices
    group_of: Indices


class _Steps(NamedTuple):
    """Single changes: a link-end, a destination, and the failure for which it is dropped or added."""

    failure: Indices
    end: Indices
    column: Indices


class Pruning:
    """
    Makes the rows of nodes from the trees.

    Args:
        choices, dominators: As they are when rows are asked for.
        numbers: Of the failures.
        class_column: Per destination, its class: itself but for strays.
        risks: Who is dead under groups of links, if there are any.
    """

    def __init__(
        self,
        choices: Choices,
        dominators: Dominators,
        numbers: Numbers,
        class_column: Indices,
        risks: SharedRisks | None = None,
    ) -> None:
        self._choices = choices
        self._dominators = dominators
        self.risks = risks
        self._numbers = numbers
        self._first_node = numbers.first_node
        self._class_column = class_column
        self._is_stray = class_column != np.arange(len(class_column))
        mesh = choices.mesh
        most_ends = int(np.diff(mesh.source_start).max(initial=1))
        self._column_bits = len(class_column).bit_length()
        self._end_bits = most_ends.bit_length()
        self._failure_bits = numbers.total.bit_length()
        bits = mesh.node_count.bit_length() + self._failure_bits + 1 + self._end_bits + self._column_bits
        assert bits <= KEY_BITS_MAX, "the fabric is too large to be sorted by one integer"
        self._failure_shift = 1 + self._end_bits + self._column_bits
        # What a change of each link-end has in its key, whatever the failure and the destination.
        local = np.arange(len(mesh)) - mesh.source_start[mesh.source]
        self._key_of_end: Indices = (
            mesh.source << (self._failure_bits + self._failure_shift) | local << self._column_bits
        )

    def rows(self, nodes: Indices, columns: Words | None = None) -> ArmedRows:
        """
        Return what *nodes* change for each failure.

        Args:
            nodes: Rising.
            columns: For each of *nodes*, the destinations to look at; None: all. With a stray destination its class has to be looked at as well.

        Cost: O(next hops of these nodes x failures that these depend on), sorted.
        """
        mesh = self._choices.mesh
        ends, begins = mesh.outgoing(nodes)
        members = self._choices.hops.members[ends]
        if columns is not None:
            members &= np.repeat(columns, np.diff(begins), axis=0)
        which, column = positions(members)
        keys = self._drops(ends[which], column)
        if self.risks is not None:
            keys = np.sort(np.concatenate([keys, self._shared(ends[which], column, keys)]))
            keys = keys[run_starts(keys)]
        else:
            keys.sort()
        keys = self._without_repeats(keys)
        if self._choices.laterals is not None:
            laterals = self._choices.laterals[ends]
            if columns is not None:
                laterals &= np.repeat(columns, np.diff(begins), axis=0)
            if has_any(laterals).any():
                which, column = positions(laterals)
                adds = self._adds(ends[which], column)
                if self.risks is not None:
                    adds = _joined([adds, self._shared_adds(ends[which], column)])
                keys = np.sort(np.concatenate([keys, self._keys_of_adds(adds)]))
        return self._grouped(keys)

    # --- drops --------------------------------------------------------------------------------------------------------
    def _drops(self, end: Indices, column: Indices) -> Indices:
        """Return for which failures members are dropped: what the far end depends on below the node that the near end depends on. As keys."""
        tree, mesh, first_node = self._dominators, self._choices.mesh, self._first_node
        count, parents, soles = tree.column_count, tree.parent.ravel(), tree.sole.ravel()
        shift = self._failure_shift
        node = mesh.target[end]
        top = parents[mesh.source[end] * count + column]
        below = np.flatnonzero(node != top)
        end, column, top, node = end[below], column[below], top[below], node[below]
        base = self._key_of_end[end] | column
        found: list[Indices] = []
        is_next_door = True
        while len(base):
            at = node * count + column
            sole, above = soles[at], parents[at]
            has_sole = np.flatnonzero(sole != NOTHING)
            with_sole = base[has_sole]
            found.append(with_sole | sole[has_sole].astype(np.int64) << shift)
            # A node next door fails as this node's own port; what its links take with them is listed for it as well.
            if is_next_door:
                found.append(with_sole | (first_node + node[has_sole]) << shift)
            else:
                found.append(base | (first_node + node) << shift)
            is_next_door = False
            is_last = above == top
            covers = has_sole[is_last[has_sole] & (above[has_sole] != tree.root)]
            found.append(base[covers] | (first_node + above[covers].astype(np.int64)) << shift)
            on = np.flatnonzero(~is_last)
            base, column, top, node = base[on], column[on], top[on], above[on].astype(np.int64)
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    # --- additions ----------------------------------------------------------------------------------------------------
    def _adds(self, end: Indices, column: Indices) -> _Steps:
        """Return for which failures laterals are added: those that take all next hops of the node, and not the lateral."""
        tree, mesh, hops = self._dominators, self._choices.mesh, self._choices.hops
        count, parents, soles = tree.column_count, tree.parent.ravel(), tree.sole.ravel()
        source = mesh.source[end]
        pair, pair_of = np.unique(source * count + column, return_inverse=True)
        node, to = np.divmod(pair, count)
        which, members = choices_of(mesh, node, to, hops.members)
        starts = run_starts(which)
        has_members = which[starts]
        by = np.full(len(pair), tree.root, dtype=np.int64)
        by[has_members] = tree.common(starts, mesh.target[members], to[has_members])
        sole = np.full(len(pair), NOTHING, dtype=np.int64)
        is_sole = np.diff(starts, append=len(which)) == 1
        sole[has_members[is_sole]] = tree.end_failure[members[starts[is_sole]]]
        # (pair, failure, node that is dead then): the members' own tree up to where the laterals lead by as well.
        mine = np.flatnonzero(sole != NOTHING)
        cases: list[tuple[Indices, Indices, Indices]] = [(mine, sole[mine], np.full(len(mine), tree.root))]
        going = has_members[by[has_members] != parents[pair[has_members]]]
        at_node = by[going]
        while len(going):
            at = at_node * count + to[going]
            cases.append((going, self._first_node + at_node, at_node))
            has_sole = soles[at] != NOTHING
            cases.append((going[has_sole], soles[at[has_sole]], at_node[has_sole]))
            above = parents[at].astype(np.int64)
            goes_on = above != parents[pair[going]]
            going, at_node = going[goes_on], above[goes_on]
        case_pair, failure, dead = (np.concatenate(part) for part in zip(*cases, strict=True))
        # Each case with each lateral of its pair.
        order = np.argsort(pair_of, kind="stable")
        first = np.searchsorted(pair_of[order], np.arange(len(pair) + 1))
        places, begins = runs(first[case_pair], first[case_pair + 1])
        case, lateral = np.repeat(np.arange(len(case_pair)), np.diff(begins)), order[places]
        turn, toward = mesh.target[end[lateral]], column[lateral]
        depth = tree.depth[dead[case], toward]
        works = (dead[case] == tree.root) | (tree.lift(turn, toward, depth) != dead[case])
        works &= tree.end_failure[end[lateral]] != failure[case]
        case, lateral, turn, toward = (part[works] for part in (case, lateral, turn, toward))
        # An endpoint turns to its nearest attachments only; a switch's are all at the same distance.
        length = tree.length[turn, toward]
        nearest = np.full(len(case_pair), np.iinfo(np.int32).max, dtype=np.int32)
        np.minimum.at(nearest, case, length)
        is_near = length == nearest[case]
        case, lateral = case[is_near], lateral[is_near]
        return _Steps(failure[case], end[lateral], column[lateral])

    # --- groups of links that share a risk ----------------------------------------------------------------------------
    def _shared(self, end: Indices, column: Indices, drops: Indices) -> Indices:
        """Return for which groups members are dropped: those that kill the far end alone, and those of a link for which they are. As keys."""
        risks, numbers, shift = self.risks, self._numbers, self._failure_shift
        assert risks is not None
        mesh, count = self._choices.mesh, risks.column_count
        which, group = risks.under(risks.dead, mesh.target[end] * count + column)
        lives = ~risks.is_dead(mesh.source[end[which]] * count + column[which], group)
        which, group = which[lives], group[lives]
        dropped = self._key_of_end[end[which]] | column[which] | (numbers.first_group + group) << shift
        failure = drops >> shift & ((1 << self._failure_bits) - 1)
        of_link = np.flatnonzero(failure < len(numbers.group_start) - 1)
        failure = failure[of_link]
        places, begins = runs(numbers.group_start[failure], numbers.group_start[failure + 1])
        sizes = np.diff(begins)
        base = drops[of_link] ^ failure << shift
        covered = np.repeat(base, sizes) | (numbers.first_group + numbers.group_of[places]) << shift
        return np.concatenate([dropped, covered])

    def _shared_adds(self, end: Indices, column: Indices) -> _Steps:
        """Return for which groups laterals are added: those that take all next hops of the node, and not the lateral."""
        risks, numbers, mesh = self.risks, self._numbers, self._choices.mesh
        assert risks is not None
        count = risks.column_count
        source, turn = mesh.source[end] * count + column, mesh.target[end]
        which, group = risks.under(risks.emptied, source)
        works = ~risks.is_dead(turn[which] * count + column[which], group) & ~risks.fails(end[which], group)
        which, group = which[works], group[works]
        # An endpoint turns to its nearest attachments only; a switch's are all at the same distance.
        length = self._dominators.length[turn[which], column[which]]
        case, case_of = np.unique(source[which] * risks.group_count + group, return_inverse=True)
        nearest = np.full(len(case), np.iinfo(np.int32).max, dtype=np.int32)
        np.minimum.at(nearest, case_of, length)
        is_near = length == nearest[case_of]
        which, group = which[is_near], group[is_near]
        return _Steps(numbers.first_group + group, end[which], column[which])

    # --- rows ---------------------------------------------------------------------------------------------------------
    def _keys_of_adds(self, steps: _Steps) -> Indices:
        keys: Indices = self._key_of_end[steps.end] | steps.column | steps.failure << self._failure_shift
        return keys | 1 << (self._end_bits + self._column_bits)

    def _without_repeats(self, keys: Indices) -> Indices:
        """Return *keys* of drops, sorted, without those of stray destinations that their class drops as well."""
        if not self._is_stray.any():
            return keys
        column = keys & ((1 << self._column_bits) - 1)
        of_class = keys - column + self._class_column[column]
        at = np.minimum(np.searchsorted(keys, of_class), max(len(keys) - 1, 0))
        kept: Indices = keys[~(self._is_stray[column] & (keys[at] == of_class))]
        return kept

    def _grouped(self, keys: Indices) -> ArmedRows:
        row = keys >> self._column_bits
        starts = run_starts(row)
        columns = keys & ((1 << self._column_bits) - 1)
        row = row[starts]
        local = row & ((1 << self._end_bits) - 1)
        row = row >> self._end_bits
        is_add = (row & 1).astype(np.bool_)
        row = row >> 1
        node = row >> self._failure_bits
        failure = row & ((1 << self._failure_bits) - 1)
        end = self._choices.mesh.source_start[node] + local
        return ArmedRows(node, failure, is_add, end, np.append(starts, len(keys)), columns)


def _joined(parts: list[_Steps]) -> _Steps:
    if not parts:
        nothing = np.zeros(0, dtype=np.int64)
        return _Steps(nothing, nothing, nothing)
    return _Steps(*(np.concatenate(column).astype(np.int64, copy=False) for column in zip(*parts, strict=True)))
