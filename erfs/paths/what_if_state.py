"""Where does traffic go, and how much fits, under many different failures at once? Arrays only.

Rule 1: a column is one destination under one failure; columns are worked out together, 64 to a word, and never looped over.
Rule 2: nothing here knows what failed or why anybody asks; the answers are the same whatever columns are worked out together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from erfs.paths.bits import Bits, Indices, Words, packed, positions, unpacked

# The capacity of an attachment: whatever arrives there is delivered.
UNBOUNDED: Final = np.int64(2**62)
UNREACHED: Final = -1


@dataclass(frozen=True)
class Ground:
    """
    The switches and trunks as built, and who attaches where: all that a worker needs to know of a fabric.

    Args:
        node_count: Switches are 0 .. node_count - 1.
        source, target: Per link-end; *source* ascending, *target* ascending within a source.
        is_up: Per link-end, whether it leads up.
        capacity: Per link-end, in units of the fabric's greatest common capacity, at least 1.
        is_valley_free: Whether a packet that went down may not go up again.
        class_start: Where each class's attachments start in *attachment*; one more entry than classes.
        attachment: Switches, ascending within a class.
        weight: Per class, its endpoints.
    """

    node_count: int
    source: Indices
    target: Indices
    is_up: Bits
    capacity: Indices
    is_valley_free: bool
    class_start: Indices
    attachment: Indices
    weight: Indices

    @property
    def class_count(self) -> int:
        """How many classes there are."""
        return len(self.weight)

    @cached_property
    def class_of_attachment(self) -> Indices:
        """The class of each entry of `attachment`."""
        return np.repeat(np.arange(self.class_count), np.diff(self.class_start))

    @cached_property
    def is_home(self) -> Bits:
        """Which switches have endpoints."""
        home = np.zeros(self.node_count, dtype=np.bool_)
        home[self.attachment] = True
        return home

    @cached_property
    def widest_in(self) -> Indices:
        """The largest capacity of a link-end that leads to each switch; 0 where none does."""
        widest = np.zeros(self.node_count, dtype=np.int64)
        np.maximum.at(widest, self.target, self.capacity)
        return widest

    @cached_property
    def phases(self) -> tuple[Indices, ...]:
        """The link-ends a search from the destination backwards may take, phase by phase."""
        if not self.is_valley_free:
            return (np.arange(len(self.source)),)
        return np.flatnonzero(~self.is_up), np.flatnonzero(self.is_up)


class Runs:
    """
    Items sorted into numbered bins: bin b holds *order*[start[b]:start[b + 1]].

    Args:
        bin_of: Per item.
        count: How many bins there are.
    """

    def __init__(self, bin_of: Indices, count: int) -> None:
        self.order: Indices = np.argsort(bin_of, kind="stable")
        self.start: Indices = np.concatenate([[0], np.cumsum(np.bincount(bin_of, minlength=count))]).astype(np.int64)

    def spread(self, bins: Indices) -> tuple[Indices, Indices]:
        """Return (which of *bins*, item) for every item in each of *bins*."""
        which, at = spread(self.start[bins], self.start[bins + 1] - self.start[bins])
        return which, self.order[at]


def spread(starts: Indices, counts: Indices) -> tuple[Indices, Indices]:
    """Return (which, place) for every place of the runs that begin at *starts* and are *counts* long."""
    total = int(counts.sum())
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(total) - np.repeat(np.cumsum(counts) - counts - starts, counts)


def is_among(sorted_keys: Indices, wanted: Indices) -> Bits:
    """Return which of *wanted* are in *sorted_keys*."""
    if not len(sorted_keys):
        return np.zeros(len(wanted), dtype=np.bool_)
    at = np.minimum(np.searchsorted(sorted_keys, wanted), len(sorted_keys) - 1)
    found: Bits = sorted_keys[at] == wanted
    return found


class Flow:
    """
    The shortest permitted next hops towards each column, and how much fits through them.

    A *member* is one link-end that its source uses towards one column. Where valleys are forbidden a switch with an all-down path
    uses its shortest down next hops, and any other the up next hops that lead to the nearest switch with a permitted path. Either
    way each next hop is one closer.

    Args:
        ground: The fabric.
        is_attached: Switches x columns.
        usable: Link-ends x columns as sets; None where all are usable.

    Cost: O(link-ends x columns / 64) words per hop of distance, and O(members log members).
    """

    def __init__(self, ground: Ground, is_attached: Bits, usable: Words | None = None) -> None:
        self.ground = ground
        self.columns = columns = is_attached.shape[1]
        settled, members = _search(ground, packed(is_attached), usable)
        self.distance: NDArray[np.int32] = np.full(is_attached.shape, UNREACHED, dtype=np.int32)
        for level, words in enumerate(settled):
            self.distance[unpacked(words, columns)] = level
        self.level_count = len(settled)
        end, column = positions(members)
        node = ground.source[end]
        key = (self.distance[node, column].astype(np.int64) * ground.node_count + node) * columns + column
        order = np.argsort(key, kind="stable")
        self.end: Indices = end[order]
        self.column: Indices = column[order]
        self.source: Indices = ground.source[self.end]
        self.target: Indices = ground.target[self.end]
        self._fill(key[order], is_attached)

    def _fill(self, key: Indices, is_attached: Bits) -> None:
        """Work out what fits, from the attachments outwards: a switch's next hops are all one closer than itself."""
        ground, columns = self.ground, self.columns
        self.bandwidth: Indices = np.where(is_attached, UNBOUNDED, np.int64(0))
        self.share: Indices = np.zeros(len(key), dtype=np.int64)
        per_level = ground.node_count * columns
        for level in range(1, self.level_count):
            first, last = np.searchsorted(key, [level * per_level, (level + 1) * per_level])
            if first == last:
                continue
            at = slice(first, last)
            self.share[at] = np.minimum(ground.capacity[self.end[at]], self.bandwidth[self.target[at], self.column[at]])
            starts = np.flatnonzero(np.diff(key[at], prepend=-1))
            sums = np.add.reduceat(self.share[at], starts)
            self.bandwidth[self.source[at][starts], self.column[at][starts]] = sums

    @cached_property
    def path_count(self) -> NDArray[np.float64]:
        """Switches x columns: how many paths lead there over the next hops; 1 at an attachment, 0 where none does."""
        found: NDArray[np.float64] = (self.distance == 0).astype(np.float64)
        # Members are sorted by the distance of their source.
        level = self.distance[self.source, self.column]
        for number in range(1, self.level_count):
            at = slice(*np.searchsorted(level, [number, number + 1]))
            onward = found[self.target[at], self.column[at]]
            np.add.at(found, (self.source[at], self.column[at]), onward)
        return found

    @cached_property
    def by_end(self) -> Runs:
        """The members of each link-end."""
        return Runs(self.end, len(self.ground.source))

    @cached_property
    def by_target(self) -> Runs:
        """The members that lead to each (switch, column), numbered switch * columns + column."""
        return Runs(self.target * self.columns + self.column, self.ground.node_count * self.columns)


def _search(ground: Ground, attached: Words, usable: Words | None) -> tuple[list[Words], Words]:
    """Return the switches settled at each distance, and the members, as sets of columns."""
    settled: list[Words] = [attached]
    is_open = ~attached
    members = np.zeros((len(ground.source), attached.shape[1]), dtype=np.uint64)
    for ends in ground.phases:
        if not len(ends):
            continue
        near, far = ground.source[ends], ground.target[ends]
        sources, starts = np.unique(near, return_index=True)
        level = 0
        while level < len(settled):
            if settled[level].any():
                over = settled[level][far]
                if usable is not None:
                    over &= usable[ends]
                found = np.bitwise_or.reduceat(over, starts, axis=0) & is_open[sources]
                if found.any():
                    fresh = np.zeros_like(attached)
                    fresh[sources] = found
                    is_open &= ~fresh
                    members[ends] |= over & fresh[near]
                    if level + 1 == len(settled):
                        settled.append(fresh)
                    else:
                        settled[level + 1] = settled[level + 1] | fresh
            level += 1
    return settled, members


def reached(ground: Ground, start: Words, usable: Words, *, is_valley_free: bool) -> Words:
    """
    Return from which switches a permitted path leads to any of *start*, as sets of columns.

    Args:
        ground: The fabric.
        start: Switches x columns.
        usable: Link-ends x columns.
        is_valley_free: Whether valleys are forbidden; may be laxer than the fabric's policy.

    Cost: O(link-ends x columns / 64) words per hop of distance.
    """
    found = start.copy()
    phases: Sequence[Indices] = ground.phases if is_valley_free else (np.arange(len(ground.source)),)
    for ends in phases:
        if not len(ends):
            continue
        far, over = ground.target[ends], usable[ends]
        sources, starts = np.unique(ground.source[ends], return_index=True)
        while True:
            more = np.bitwise_or.reduceat(found[far] & over, starts, axis=0) | found[sources]
            if np.array_equal(more, found[sources]):
                break
            found[sources] = more
    return found
