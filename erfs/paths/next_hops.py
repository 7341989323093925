"""Which link-ends lead to which destination: next hops and distances of all destinations at once, and what a change of links does to them.

Rule 1: no step loops over nodes, links or destinations: it is one operation on sets of destinations, 64 to a word.
Rule 2: valley-free paths are found in two phases, so a next hop depends on the node alone, never on where a packet came from.
Rule 3: after any changes the state is bit for bit the one that a computation from nothing gives.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from erfs.paths.bits import WORD_BITS, Bits, Indices, Words, full, has_any, rows_of, unpacked
from erfs.paths.mesh import Mesh, lengths_of, run_starts

Distances = NDArray[np.int32]
UNREACHABLE: Final = np.int32(np.iinfo(np.int32).max)
# Rows of link-ends worked on at once: so many words stay in the second-level cache (measured best between 32 and 128 Ki words).
BLOCK_WORDS: Final = 64 * 1024


class Touched(NamedTuple):
    """
    What a change did.

    Args:
        ends: The link-ends whose row of `NextHops.members` may differ, rising, each once.
        nodes: The nodes that reach some destination by other next hops, at another distance or not at all any more, rising.
        columns: For each of *nodes* a set of destinations that holds all for which this is so.
    """

    ends: Indices
    nodes: Indices
    columns: Words


@dataclass(frozen=True, slots=True)
class _Phase:
    """The link-ends one phase may use, and whether it leads down: then a neighbour counts only with its all-down path."""

    ends: Indices
    is_descent: bool


class NextHops:
    """
    Where each node sends what goes to each destination: the shortest permitted paths, and all of them.

    Plain: all link-ends on a shortest path. Valley-free: a node with an all-down path uses its shortest down next hops; any other uses
    the up next hops that lead to the nearest node with a permitted path. Either way each next hop is nearer by the link-end's cost, so
    the next hops of one destination form an acyclic graph.

    Args:
        mesh: As built.
        attached: Nodes x destinations: who delivers.
        column_count: How many destinations there are.
        usable: Per link-end of the mesh.
        cost: Per link-end, at least 1; few different values.
        is_valley_free: Whether a packet that went down may not go up again.

    Cost: O(link-ends x destinations / 64) words per distance that occurs. Source: breadth-first search from all destinations at once, as in
    Then et al., "The More the Merrier: Efficient Multi-Source Graph Traversal", VLDB 2014; costs by buckets (Dial 1969).
    """

    def __init__(
        self, mesh: Mesh, attached: Words, column_count: int, usable: Bits, cost: Indices, *, is_valley_free: bool
    ) -> None:
        self.mesh = mesh
        self.attached = attached
        self.column_count = column_count
        self.usable = usable.copy()
        self.cost = cost.copy()
        self.is_valley_free = is_valley_free
        self.members: Words = np.zeros((len(mesh), attached.shape[1]), dtype=np.uint64)
        """Link-ends x destinations: whether the link-end's source uses it."""
        self.levels: dict[int, Words] = {0: attached.copy()}
        """By distance, nodes x destinations: who is just so far away. A node is in one level at most; levels may be empty."""
        self.descends: Words = attached.copy()
        """Nodes x destinations: who has an all-down path; everybody who has any where valleys are allowed."""
        open_words = ~attached
        for phase in self._phases(np.flatnonzero(self.usable)):
            self._flood(phase, open_words)

    # --- reading ------------------------------------------------------------------------------------------------------
    @property
    def reached(self) -> Words:
        """Nodes x destinations: from where a permitted path leads there. Cost: O(nodes x destinations / 64) per level."""
        found = np.zeros_like(self.attached)
        for level in self.levels.values():
            found |= level
        return found

    @property
    def distance(self) -> Distances:
        """Nodes x destinations: the sum of costs to go; `UNREACHABLE` where policy permits no path. Cost: O(nodes x destinations)."""
        found = np.full((len(self.attached), self.column_count), UNREACHABLE, dtype=np.int32)
        for length, level in self.levels.items():
            found[unpacked(level, self.column_count)] = length
        return found

    # --- from nothing -------------------------------------------------------------------------------------------------
    def _phases(self, ends: Indices) -> Iterator[_Phase]:
        if not self.is_valley_free:
            yield _Phase(ends, is_descent=True)
            return
        is_up = self.mesh.is_up[ends]
        yield _Phase(ends[~is_up], is_descent=True)
        yield _Phase(ends[is_up], is_descent=False)

    def _flood(self, phase: _Phase, open_words: Words, *, is_sparse: bool = False) -> list[tuple[int, Indices, Words]]:
        """
        Settle who is open and reaches a settled node by link-ends of *phase*; each is settled once, at its distance.

        Args:
            open_words: Nodes x destinations: who may be settled; what is settled is taken out.
            is_sparse: The link-ends are few: don't look first which of them lead to somebody settled. Others may have ways up already,
                which don't count where *phase* leads down.

        Returns:
            What was settled: (distance, nodes, their destinations).
        """
        by_cost = self._by_cost(phase.ends)
        settled: list[tuple[int, Indices, Words]] = []
        waiting = {length + cost for length in self.levels for cost in by_cost}
        while waiting:
            length = min(waiting)
            waiting.remove(length)
            found: list[tuple[Indices, Words]] = []
            for cost, ends in by_cost.items():
                near = self.levels.get(length - cost)
                if near is not None:
                    if is_sparse and phase.is_descent and self.is_valley_free:
                        near = near & self.descends
                    used = ends if is_sparse else ends[has_any(near).take(self.mesh.target[ends])]
                    found += self._reach(near, used, open_words)
            if not found:
                continue
            level = self.levels.setdefault(length, np.zeros_like(self.attached))
            waiting.update(length + cost for cost in by_cost)
            for nodes, columns in found:
                level[nodes] |= columns
                if phase.is_descent:
                    self.descends[nodes] |= columns
                open_words[nodes] &= ~columns
                settled.append((length, nodes, columns))
        return settled

    def _by_cost(self, ends: Indices) -> dict[int, Indices]:
        return {cost: ends[places] for cost, places in _split(self.cost[ends])}

    def _reach(self, near: Words, ends: Indices, open_words: Words) -> list[tuple[Indices, Words]]:
        """Mark the members among *ends* that lead from somebody open to *near*, and return who that is: (nodes, destinations)."""
        found: list[tuple[Indices, Words]] = []
        source, target = self.mesh.source, self.mesh.target
        for block in self._blocks(ends):
            sources = source[block]
            starts = run_starts(sources)
            nodes = sources[starts]
            leads = rows_of(near, target[block])
            fresh = np.bitwise_or.reduceat(leads, starts, axis=0)
            fresh &= rows_of(open_words, nodes)
            is_fresh = has_any(fresh)
            if not is_fresh.any():
                continue
            leads &= np.repeat(fresh, lengths_of(starts, len(block)), axis=0)
            leads |= rows_of(self.members, block)
            self.members[block] = leads
            found.append((nodes[is_fresh], fresh[is_fresh]))
        return found

    def _blocks(self, ends: Indices) -> Iterator[Indices]:
        """Yield *ends* in parts that fit the cache; all of one source are in the same part."""
        size = max(1, BLOCK_WORDS // max(1, self.attached.shape[1]))
        sources = self.mesh.source[ends]
        start = 0
        while start < len(ends):
            stop = min(start + size, len(ends))
            if stop < len(ends):
                cut = int(np.searchsorted(sources, sources[stop]))
                # One source with more link-ends than a part is a part of its own.
                stop = cut if cut > start else int(np.searchsorted(sources, sources[stop], side="right"))
            yield ends[start:stop]
            start = stop

    # --- changes ------------------------------------------------------------------------------------------------------
    def update(self, ends: Indices, usable: Bits, cost: Indices) -> Touched:
        """
        Take in how some link-ends are now.

        What is lost goes first: whoever has no next hop left towards a destination loses its place, and so do those upstream who have
        nobody else; then these look for a new place among the others. What is gained spreads from where it is, nearest first.

        Args:
            ends: Link-ends, each once; one that is as it was costs nothing.
            usable, cost: For each of *ends*.

        Cost: O(link-ends at the nodes whose next hops change x their destinations / 64).
        Source: Ramalingam and Reps, "An incremental algorithm for a generalization of the shortest-path problem", 1996, for sets of destinations.
        """
        change = _Change(self.attached.shape[1])
        was_usable = self.usable[ends]
        is_recosted = was_usable & usable & (cost != self.cost[ends])
        lost, gained = ends[was_usable & (~usable | is_recosted)], ends[usable & (~was_usable | is_recosted)]
        self.usable[lost] = False
        if len(lost):
            self._lose(lost, change)
        self.usable[ends] = usable
        self.cost[ends] = cost
        if len(gained):
            self._gain(np.sort(gained), change)
        touched = change.merged()
        return touched._replace(columns=touched.columns & full(self.column_count))

    def _window(self, columns: Words) -> tuple["NextHops", slice]:
        """Return a state that shares its memory with this one, of just the words in which *columns* (rows of sets) are, and these words."""
        words = np.flatnonzero(columns.any(axis=0))
        part = slice(int(words[0]), int(words[-1]) + 1)
        window = copy.copy(self)
        window.attached, window.members = self.attached[:, part], self.members[:, part]
        window.descends = self.descends[:, part]
        window.levels = {length: level[:, part] for length, level in self.levels.items()}
        return window, part

    def _adopt(self, window: "NextHops", part: slice) -> None:
        """Take over the distances that are new in *window*."""
        for length in window.levels.keys() - self.levels.keys():
            level = self.levels[length] = np.zeros_like(self.attached)
            level[:, part] = window.levels[length]

    def _lose(self, lost: Indices, change: "_Change") -> None:
        """Take *lost* out of use."""
        gone = self.members[lost]
        is_used = has_any(gone)
        nodes, columns = self._drop(lost[is_used], gone[is_used], change)
        if len(nodes):
            window, part = self._window(columns)
            inner = change.within(part)
            strays = window._uproot(nodes, columns[:, part], inner)  # noqa: SLF001  # a window is this state
            if strays.any():
                window._start_over(strays, inner)  # noqa: SLF001
            self._adopt(window, part)

    def _drop(self, ends: Indices, gone: Words, change: "_Change") -> tuple[Indices, Words]:
        """Take the destinations *gone* from the members *ends*. Return who has no next hop left: (nodes, destinations)."""
        self.members[ends] &= ~gone
        order = np.argsort(self.mesh.source[ends], kind="stable")
        ends, gone = ends[order], gone[order]
        starts = run_starts(self.mesh.source[ends])
        nodes = self.mesh.source[ends[starts]]
        columns = np.bitwise_or.reduceat(gone, starts, axis=0) if len(ends) else gone
        change.add(ends, nodes, columns)
        columns = columns & ~self._any_member(nodes, columns)
        is_orphan = has_any(columns)
        return nodes[is_orphan], columns[is_orphan]

    def _uproot(self, nodes: Indices, columns: Words, change: "_Change") -> Words:
        """
        Take *nodes*, which have no next hop left towards *columns*, from where they are, and all who have nobody else; find new places.

        Returns:
            The destinations for which somebody came nearer by it, which this way of counting cannot follow.
        """
        open_words = np.zeros_like(self.attached)
        while len(nodes):
            open_words[nodes] |= columns
            incoming, begins = self.mesh.incoming(nodes)
            gone = self.members[incoming] & np.repeat(columns, np.diff(begins), axis=0)
            is_used = has_any(gone)
            nodes, columns = self._drop(incoming[is_used], gone[is_used], change)
        return self._replant(open_words, change)

    def _any_member(self, nodes: Indices, columns: Words) -> Words:
        """Return, for each of *nodes*, the destinations it has next hops to; right only where *columns* are."""
        if not len(nodes):
            return columns
        ends, begins = self.mesh.outgoing(nodes)
        words = np.flatnonzero(columns.any(axis=0))
        if 4 * len(words) > columns.shape[1]:
            return np.bitwise_or.reduceat(rows_of(self.members, ends), begins[:-1], axis=0)
        found = np.zeros_like(columns)
        for word in words:
            found[:, word] = np.bitwise_or.reduceat(self.members[ends, word], begins[:-1])
        return found

    def _replant(self, open_words: Words, change: "_Change") -> Words:
        """Find new places for those who lost all their next hops. Returns what `_uproot` does."""
        strays = np.zeros(self.attached.shape[1], dtype=np.uint64)
        homeless = np.flatnonzero(has_any(open_words))
        columns = open_words[homeless]
        before = {length: level[homeless] & columns for length, level in self.levels.items()}
        for level in self.levels.values():
            level[homeless] &= ~columns
        self.descends[homeless] &= ~columns
        ends, _ = self.mesh.outgoing(homeless)
        settled: list[tuple[int, Indices, Words]] = []
        for phase in self._phases(ends[self.usable[ends]]):
            settled += self._flood(phase, open_words, is_sparse=True)
        for length, nodes, found in settled:
            outgoing, _ = self.mesh.outgoing(nodes)
            change.add(outgoing, nodes, found)
            # Whoever gives up an all-down path for a way up may come nearer by it.
            places = np.searchsorted(homeless, nodes)
            for old, level in before.items():
                if old >= length:
                    strays |= np.bitwise_or.reduce(level[places] & found, axis=0)
        return strays

    def _gain(self, gained: Indices, change: "_Change") -> None:
        """Take *gained* into use. First whatever is as far away as before and has one more next hop; then who comes nearer."""
        nearer = np.zeros((1, self.attached.shape[1]), dtype=np.uint64)
        for phase in self._phases(gained):
            for cost, places in _split(self.cost[phase.ends]):
                ends = phase.ends[places]
                nodes = self.mesh.source[ends]
                for length, level in self.levels.items():
                    offered = self._counting(level, self.mesh.target[ends], phase)
                    also = offered & self._at(length + cost, nodes, phase)
                    self.members[ends] |= also
                    change.add(ends, nodes, also)
                    nearer |= np.bitwise_or.reduce(offered & ~self._keeping(length + cost, nodes, phase), axis=0)
        if nearer.any():
            window, part = self._window(nearer)
            inner = change.within(part)
            strays = np.zeros(window.attached.shape[1], dtype=np.uint64)
            above: list[tuple[int, Indices, Words]] = []
            for phase in self._phases(gained):
                above = window._spread(phase, above, inner, strays)  # noqa: SLF001  # a window is this state
            if strays.any():
                window._start_over(strays, inner)  # noqa: SLF001
            self._adopt(window, part)

    def _spread(
        self, phase: _Phase, nearer: list[tuple[int, Indices, Words]], change: "_Change", strays: Words
    ) -> list[tuple[int, Indices, Words]]:
        """
        Let what *phase* offers, and what came nearer in the phase before, spread upstream.

        Args:
            strays: Takes in the destinations for which somebody is farther away now, as only an all-down path can make it.

        Returns:
            Who came nearer: (distance, nodes, destinations).
        """
        mesh = self.mesh
        # By distance: link-ends to look at, and for which destinations of their target.
        waiting: dict[int, list[tuple[Indices, Words]]] = {}

        def offer(length: int, ends: Indices, columns: Words) -> None:
            for cost, places in _split(self.cost[ends]):
                picked = columns[places]
                is_some = has_any(picked)
                if is_some.any():
                    waiting.setdefault(length + cost, []).append((ends[places][is_some], picked[is_some]))

        def upstream(length: int, nodes: Indices, columns: Words) -> None:
            incoming, begins = mesh.incoming(nodes)
            fits = self.usable[incoming]
            if self.is_valley_free:
                fits = fits & (mesh.is_up[incoming] != phase.is_descent)
            offer(length, incoming[fits], np.repeat(columns, np.diff(begins), axis=0)[fits])

        for length, nodes, columns in nearer:
            upstream(length, nodes, columns)
        for length, level in self.levels.items():
            offer(length, phase.ends, self._counting(level, mesh.target[phase.ends], phase))
        spread: list[tuple[int, Indices, Words]] = []
        while waiting:
            length = min(waiting)
            offers = waiting.pop(length)
            ends, columns = _merged([part for part, _ in offers], [part for _, part in offers])
            starts = run_starts(mesh.source[ends])
            nodes = mesh.source[ends[starts]]
            offered = np.bitwise_or.reduceat(columns, starts, axis=0)
            here = offered & self._at(length, nodes, phase)
            fresh = offered & ~self._keeping(length, nodes, phase)
            is_some = has_any(here)
            if is_some.any():
                also = columns & np.repeat(here, lengths_of(starts, len(ends)), axis=0)
                self.members[ends] |= also
                change.add(ends[has_any(also)], nodes[is_some], here[is_some])
            is_some = has_any(fresh)
            if is_some.any():
                nodes, fresh = nodes[is_some], fresh[is_some]
                for other, old in self.levels.items():
                    if other < length:
                        strays |= np.bitwise_or.reduce(old[nodes] & fresh, axis=0)
                    old[nodes] &= ~fresh
                self.levels.setdefault(length, np.zeros_like(self.attached))[nodes] |= fresh
                if phase.is_descent:
                    self.descends[nodes] |= fresh
                outgoing = self._choose(length, nodes, fresh, phase)
                change.add(outgoing, nodes, fresh)
                spread.append((length, nodes, fresh))
                upstream(length, nodes, fresh)
        return spread

    def _at(self, length: int, nodes: Indices, phase: _Phase) -> Words:
        """Return for which destinations *nodes* are just *length* away by *phase*."""
        level = self.levels.get(length)
        if level is None:
            return np.zeros((len(nodes), self.attached.shape[1]), dtype=np.uint64)
        found = level[nodes]
        if self.is_valley_free:
            found &= self.descends[nodes] if phase.is_descent else ~self.descends[nodes]
        return found

    def _keeping(self, length: int, nodes: Indices, phase: _Phase) -> Words:
        """Return for which destinations *nodes* are not helped by a path of *phase* that is *length* long."""
        found = np.zeros((len(nodes), self.attached.shape[1]), dtype=np.uint64)
        for other, level in self.levels.items():
            if other <= length:
                found |= level[nodes]
        if self.is_valley_free:
            # An all-down path counts before any way up, however long it is.
            found = found & self.descends[nodes] if phase.is_descent else found | self.descends[nodes]
        return found

    def _counting(self, level: Words, nodes: Indices, phase: _Phase) -> Words:
        """Return for which destinations *nodes* are in *level*, as far as that counts in *phase*."""
        found = level[nodes]
        return found & self.descends[nodes] if self.is_valley_free and phase.is_descent else found

    def _settled_by(self, length: int, nodes: Indices) -> Words:
        """Return for which destinations *nodes* are at most *length* away."""
        found = np.zeros((len(nodes), self.attached.shape[1]), dtype=np.uint64)
        for other, level in self.levels.items():
            if other <= length:
                found |= level[nodes]
        return found

    def _choose(self, length: int, nodes: Indices, columns: Words, phase: _Phase) -> Indices:
        """Set the next hops of *nodes*, now *length* away from *columns*, from their neighbours' distances. Return their link-ends."""
        mesh = self.mesh
        ends, begins = mesh.outgoing(nodes)
        wanted = np.repeat(columns, np.diff(begins), axis=0)
        chosen = np.zeros_like(wanted)
        fits = self.usable[ends]
        if self.is_valley_free:
            fits = fits & (mesh.is_up[ends] != phase.is_descent)
        for cost, places in _split(self.cost[ends]):
            level = self.levels.get(length - cost)
            if level is not None:
                fitting = places[fits[places]]
                chosen[fitting] = self._counting(level, mesh.target[ends[fitting]], phase)
        self.members[ends] = (self.members[ends] & ~wanted) | (chosen & wanted)
        return ends

    def _start_over(self, columns: Words, change: "_Change") -> None:
        """Compute the words in which *columns* are from nothing."""
        window, part = self._window(columns[None, :])
        anew = NextHops(
            self.mesh,
            window.attached,
            WORD_BITS * window.attached.shape[1],
            self.usable,
            self.cost,
            is_valley_free=self.is_valley_free,
        )
        window.members[:], window.descends[:] = anew.members, anew.descends
        for length in window.levels.keys() | anew.levels.keys():
            level = window.levels.setdefault(length, np.zeros_like(window.attached))
            level[:] = anew.levels.get(length, 0)
        self._adopt(window, part)
        everywhere = np.zeros_like(self.attached)
        everywhere[:, part] = ~np.uint64(0)
        change.add(np.arange(len(self.mesh)), np.arange(self.mesh.node_count), everywhere)


class _Change:
    """
    What has been touched so far.

    Args:
        width: Words a row.
        outer: Another change that takes in the same, of which this one sees only *part* of the words.
    """

    def __init__(self, width: int, outer: "_Change | None" = None, part: slice = slice(0)) -> None:
        self._width = width
        self._outer = outer
        self._part = part
        self._ends: list[Indices] = []
        self._nodes: list[Indices] = []
        self._columns: list[Words] = []

    def within(self, part: slice) -> "_Change":
        """Return this change for whoever sees only *part* of its words."""
        return _Change(part.stop - part.start, self, part)

    def add(self, ends: Indices, nodes: Indices, columns: Words) -> None:
        """Note *ends*, and *nodes* with their destinations."""
        if self._outer is not None:
            whole = np.zeros((len(columns), self._outer._width), dtype=np.uint64)  # noqa: SLF001  # one change, seen in two widths
            whole[:, self._part] = columns
            self._outer.add(ends, nodes, whole)
        elif len(nodes):
            self._ends.append(ends)
            self._nodes.append(nodes)
            self._columns.append(columns)

    def merged(self) -> Touched:
        """Return all of it."""
        if not self._nodes:
            nothing = np.zeros(0, dtype=np.int64)
            return Touched(nothing, nothing, np.zeros((0, self._width), dtype=np.uint64))
        ends = np.sort(np.concatenate(self._ends))
        return Touched(ends[run_starts(ends)], *_merged(self._nodes, self._columns))


def _merged(places: list[Indices], columns: list[Words]) -> tuple[Indices, Words]:
    """Return the different *places*, rising, each with all its *columns*."""
    if len(places) == 1 and (np.diff(places[0]) > 0).all():
        return places[0], columns[0]
    joined = np.concatenate(places)
    order = np.argsort(joined, kind="stable")
    joined = joined[order]
    starts = run_starts(joined)
    return joined[starts], np.bitwise_or.reduceat(np.concatenate(columns)[order], starts, axis=0)


def _split(costs: Indices) -> list[tuple[int, Indices]]:
    """Return, for each different value of *costs*, where it is."""
    if not len(costs):
        return []
    if (costs == costs[0]).all():
        return [(int(costs[0]), np.arange(len(costs)))]
    return [(int(cost), np.flatnonzero(costs == cost)) for cost in np.unique(costs)]
