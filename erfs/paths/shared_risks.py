"""Who is dead when several links fail together, for each group of links that share a risk?

Rule 1: all groups at once; no step loops over them, and what a group does not touch costs nothing.
Rule 2: nothing here is read from the trees of single failures, so each can be checked by the other.

A dead node has no choice left that leads to the destination. Whoever may send by it is looked at again, until nobody dies any more.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from erfs.paths.bits import Bits, Indices, Words, positions
from erfs.paths.choices import Choices, choices_of
from erfs.paths.mesh import run_starts, runs

# Groups x nodes x destinations worked on at once, in words.
WORDS_AT_ONCE = 1 << 22


class _Places(NamedTuple):
    """(group, node, word of destinations), each once."""

    group: Indices
    node: Indices
    word: Indices


class SharedRisks:
    """
    Who is dead towards each destination under each group.

    Args:
        choices: As they are now.
        groups: For each group the link-ends that fail, both directions, rising.

    Cost: O(words of destinations for which somebody loses a choice x link-ends at that node), for each group.
    """

    def __init__(self, choices: Choices, groups: Sequence[Indices]) -> None:
        self._choices = choices
        self._groups = groups
        self.column_count = choices.hops.column_count
        self.group_count = len(groups)
        numbers = np.repeat(np.arange(len(groups)), [len(ends) for ends in groups])
        self._failing = np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *groups]) * len(groups) + numbers)
        hops = choices.hops
        self._served: Words = hops.reached & ~hops.attached
        every = np.arange(len(groups))
        self.dead, self.emptied = self._found(every)

    # (node x destinations + destination) x groups + group, rising
    dead: Indices
    """Whose choices are all gone."""
    emptied: Indices
    """Whose next hops are all gone, while some lateral leads on."""

    def update(self, node: Indices, column: Indices) -> Indices:
        """
        Take in that the choices of (*node*, *column*) may have changed, and only these.

        A group is worked on again only if what it did before does not fit the choices as they are: what fits them everywhere is the one answer,
        since choices are acyclic.

        Returns:
            For which nodes x destinations + destination the answer is another, for some group.

        Cost: O(choices of these pairs x groups that concern them), O(dead), and as from nothing for the groups worked on again.
        """
        hops = self._choices.hops
        self._served[:] = hops.reached & ~hops.attached
        groups = self._misfits(node, column)
        if not len(groups):
            return groups
        is_again = np.zeros(self.group_count, dtype=np.bool_)
        is_again[groups] = True
        differ: list[Indices] = []
        fresh: list[Indices] = []
        for before, after in zip((self.dead, self.emptied), self._found(groups), strict=True):
            is_old = is_again[before % self.group_count]
            differ.append(differing(before[is_old], after) // self.group_count)
            fresh.append(np.sort(np.concatenate([before[~is_old], after])))
        self.dead, self.emptied = fresh
        return np.unique(np.concatenate(differ))

    def _misfits(self, node: Indices, column: Indices) -> Indices:
        """Return the groups for which somebody of (*node*, *column*) is not what its choices make it."""
        choices, mesh, count = self._choices, self._choices.mesh, self.column_count
        at = node * count + column
        # Whoever is dead, or emptied, now has lost its first choice or next hop as well.
        keys = [at[which] * self.group_count + group for which, group in map(self.under, self._lists, [at, at])]
        for words in (choices.words, choices.hops.members):
            which, ends = choices_of(mesh, node, column, words)
            first = run_starts(which)
            which, ends = which[first], ends[first]
            pair, group = self.under(self.dead, mesh.target[ends] * count + column[which])
            keys.append(at[which[pair]] * self.group_count + group)
            low, high = (np.searchsorted(self._failing, (ends + step) * self.group_count) for step in (0, 1))
            places, begins = runs(low, high)
            keys.append(
                np.repeat(at[which], np.diff(begins)) * self.group_count + self._failing[places] % self.group_count
            )
        key = np.unique(np.concatenate(keys))
        at, group = np.divmod(key, self.group_count)
        node, column = np.divmod(at, count)
        leads = []
        for words in (choices.words, choices.hops.members):
            which, ends = choices_of(mesh, node, column, words)
            works = ~self.fails(ends, group[which])
            works &= ~self.is_dead(mesh.target[ends] * count + column[which], group[which])
            leads.append(np.bincount(which[works], minlength=len(key)) > 0)
        served = (self._served[node, column >> 6] >> (column & 63).astype(np.uint64)) & np.uint64(1)
        is_dead = (served != 0) & ~leads[0]
        is_emptied = leads[0] & ~leads[1]
        is_misfit = (is_dead != self.is_dead(at, group)) | (is_emptied != _is_among(self.emptied, key))
        return np.unique(group[is_misfit])

    @property
    def _lists(self) -> tuple[Indices, Indices]:
        return self.dead, self.emptied

    def _found(self, groups: Indices) -> tuple[Indices, Indices]:
        """Return who is dead and who is emptied under *groups*."""
        dead, emptied = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        step = max(1, WORDS_AT_ONCE // max(1, self._choices.hops.attached.size))
        for first in range(0, len(groups), step):
            found = self._prune(groups[first : first + step])
            dead.append(found[0])
            emptied.append(found[1])
        return np.sort(np.concatenate(dead)), np.sort(np.concatenate(emptied))

    def is_dead(self, at: Indices, group: Indices) -> Bits:
        """Return whether each node x destinations + destination is dead under *group*."""
        return _is_among(self.dead, at * self.group_count + group)

    def fails(self, end: Indices, group: Indices) -> Bits:
        """Return whether each link-end is in *group*."""
        return _is_among(self._failing, end * self.group_count + group)

    def under(self, keys: Indices, at: Indices) -> tuple[Indices, Indices]:
        """Return the groups under which each of *at* is among *keys*: (number in *at*, group)."""
        low = np.searchsorted(keys, at * self.group_count)
        high = np.searchsorted(keys, (at + 1) * self.group_count)
        places, begins = runs(low, high)
        which = np.repeat(np.arange(len(at)), np.diff(begins))
        group: Indices = keys[places] - at[which] * self.group_count
        return which, group

    # --- the work list ------------------------------------------------------------------------------------------------
    def _prune(self, numbers: Indices) -> tuple[Indices, Indices]:
        choices, mesh = self._choices, self._choices.mesh
        width = choices.words.shape[1]
        groups = [self._groups[number] for number in numbers]
        shape = (len(groups), mesh.node_count, width)
        dead = np.zeros(shape, dtype=np.uint64)
        emptied = np.zeros(shape, dtype=np.uint64)
        fails = np.zeros((len(groups), len(mesh)), dtype=np.bool_)
        group = np.repeat(np.arange(len(groups)), [len(ends) for ends in groups])
        end = np.concatenate([np.zeros(0, dtype=np.int64), *groups])
        fails[group, end] = True
        places = self._places(shape, group, mesh.source[end], choices.words[end])
        while len(places.group):
            fresh = self._look_at(places, fails, dead, emptied)
            some = np.flatnonzero(fresh)
            incoming, begins = mesh.incoming(places.node[some])
            which = some[np.repeat(np.arange(len(some)), np.diff(begins))]
            sends = (choices.words[incoming, places.word[which]] & fresh[which]) != 0
            which, incoming = which[sends], incoming[sends]
            key = (places.group[which] * shape[1] + mesh.source[incoming]) * shape[2] + places.word[which]
            places = self._apart(shape, np.unique(key))
        return self._keys(numbers, dead), self._keys(numbers, emptied)

    def _places(self, shape: tuple[int, int, int], group: Indices, node: Indices, columns: Words) -> _Places:
        which, word = np.nonzero(columns)
        return self._apart(shape, np.unique((group[which] * shape[1] + node[which]) * shape[2] + word))

    @staticmethod
    def _apart(shape: tuple[int, int, int], key: Indices) -> _Places:
        rest, word = np.divmod(key, shape[2])
        group, node = np.divmod(rest, shape[1])
        return _Places(group, node, word)

    def _look_at(self, places: _Places, fails: Bits, dead: Words, emptied: Words) -> Words:
        """Note what is left at *places*, and return who is dead there that was not."""
        choices, mesh = self._choices, self._choices.mesh
        outgoing, begins = mesh.outgoing(places.node)
        which = np.repeat(np.arange(len(places.node)), np.diff(begins))
        group, word = places.group[which], places.word[which]
        leads = ~dead[group, mesh.target[outgoing], word]
        leads[fails[group, outgoing]] = 0
        # Whoever is looked at has link-ends: it lost one.
        left = np.bitwise_or.reduceat(choices.words[outgoing, word] & leads, begins[:-1])
        was = dead[places.group, places.node, places.word]
        fresh = self._served[places.node, places.word] & ~left & ~was
        dead[places.group, places.node, places.word] = was | fresh
        if choices.laterals is not None:
            members = np.bitwise_or.reduceat(choices.hops.members[outgoing, word] & leads, begins[:-1])
            emptied[places.group, places.node, places.word] = left & ~members
        return fresh

    def _keys(self, numbers: Indices, marks: Words) -> Indices:
        groups, nodes, width = marks.shape
        row, column = positions(marks.reshape(groups * nodes, width))
        group, node = np.divmod(row, nodes)
        keys: Indices = (node * self.column_count + column) * self.group_count + numbers[group]
        return keys


def _is_among(keys: Indices, wanted: Indices) -> Bits:
    if not len(keys):
        return np.zeros(len(wanted), dtype=np.bool_)
    found: Bits = keys[np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)] == wanted
    return found


def differing(one: Indices, other: Indices) -> Indices:
    """Return the keys that are in just one of two rising lists."""
    both = np.sort(np.concatenate([one, other]))
    starts = run_starts(both)
    single = np.diff(starts, append=len(both)) == 1
    found: Indices = both[starts[single]]
    return found
