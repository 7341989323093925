"""What does each of many failures do to the demands towards some classes? Arrays only.

Rule 1: a failure costs what it touches: losses are followed from the dead link-ends up the shortest paths, all failures together; nothing is
recomputed for a failure that leaves a source without next hops, and then for that destination alone.
Rule 2: every answer is a sum or a minimum over classes, so it does not matter how the classes are shared out.

A failure is a set of link-ends that die and of attachments that classes lose. A switch that has no next hop left towards a class that its
neighbours could still use is *dead* for it, and loses what its own neighbours send over it in turn.
"""

import itertools
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from erfs.paths.bits import Bits, Indices, packed
from erfs.paths.what_if_state import UNBOUNDED, UNREACHED, Flow, Ground, Runs, is_among, reached, spread

Shares = NDArray[np.float64]

# Failures worked on together: so many, or until they kill so many members.
FAILURES_AT_ONCE: Final = 1024
MEMBERS_AT_ONCE: Final = 400_000
# Searches worked on together, and link-ends x columns of a recomputation.
SEARCHES_AT_ONCE: Final = 4096
CELLS_AT_ONCE: Final = 4_000_000


@dataclass(frozen=True)
class Failures:
    """
    Failures as lists sorted by failure.

    Args:
        count: How many.
        end_failure, end: Link-ends that die; sorted by (failure, link-end).
        does_end_start: Per dead link-end, whether its source lives.
        lost_failure, lost_class, lost_switch: Attachments that a whole class loses; sorted.
        gone_failure, gone_class, gone_count: How many endpoints of a class lose all their attachments; sorted.
        is_delivery: Per failure, whether it is about one endpoint of a class, which loses one attachment of several; only what is
            sent to it is worked out.
    """

    count: int
    end_failure: Indices
    end: Indices
    does_end_start: Bits
    lost_failure: Indices
    lost_class: Indices
    lost_switch: Indices
    gone_failure: Indices
    gone_class: Indices
    gone_count: Indices
    is_delivery: Bits

    def between(self, first: int, last: int) -> "Failures":
        """Return the failures *first* up to *last*, numbered from 0."""
        ends = slice(*np.searchsorted(self.end_failure, [first, last]))
        lost = slice(*np.searchsorted(self.lost_failure, [first, last]))
        gone = slice(*np.searchsorted(self.gone_failure, [first, last]))
        return Failures(
            last - first,
            self.end_failure[ends] - first,
            self.end[ends],
            self.does_end_start[ends],
            self.lost_failure[lost] - first,
            self.lost_class[lost],
            self.lost_switch[lost],
            self.gone_failure[gone] - first,
            self.gone_class[gone],
            self.gone_count[gone],
            self.is_delivery[first:last],
        )


@dataclass(frozen=True)
class Impact:
    """
    What each failure does to the demands towards some classes; demands of endpoints that it detaches are left out.

    Args:
        cut: Demands without any path left.
        cut_by_policy: Demands whose only paths left are valleys.
        waiting: Demands without a next hop left on the way that have another permitted path: restoration finds it.
        retained: The least share of its capacity that a connected (switch, class) keeps; 1 where nothing is lost.
        is_connected: Classes x these classes, as built.
    """

    cut: Indices
    cut_by_policy: Indices
    waiting: Indices
    retained: Shares
    is_connected: Bits


@dataclass
class _Rows:
    """Switches that are dead for a column under a failure: arrays of one length."""

    failure: Indices
    switch: Indices
    column: Indices


def impact_of(ground: Ground, failures: Failures, classes: range) -> Impact:
    """
    Return what each of *failures* does to the demands towards *classes*.

    Cost: O(members killed, and members upstream of them whose capacity changes, x log), and a search for each (failure, destination) that
    leaves a switch with endpoints without a next hop.
    """
    is_attached = np.zeros((ground.node_count, len(classes)), dtype=np.bool_)
    first, last = ground.class_start[classes.start], ground.class_start[classes.stop]
    is_attached[ground.attachment[first:last], ground.class_of_attachment[first:last] - classes.start] = True
    flow = Flow(ground, is_attached)
    reach_count = np.add.reduceat(
        flow.distance[ground.attachment] != UNREACHED, ground.class_start[:-1], axis=0, dtype=np.int64
    )
    cut, by_policy, waiting = (np.zeros(failures.count, dtype=np.int64) for _ in range(3))
    retained = np.ones(failures.count, dtype=np.float64)
    for start, stop in _blocks(failures, flow):
        block = _Block(ground, flow, failures.between(start, stop), classes, reach_count)
        cut[start:stop], by_policy[start:stop], waiting[start:stop], retained[start:stop] = block.answer()
    return Impact(cut, by_policy, waiting, retained, reach_count > 0)


def _blocks(failures: Failures, flow: Flow) -> list[tuple[int, int]]:
    """Return bounds of blocks of failures that fit the memory."""
    per_end = np.diff(flow.by_end.start)[failures.end]
    killed = np.bincount(failures.end_failure, weights=per_end, minlength=failures.count)
    before = np.concatenate([[0], np.cumsum(killed)])
    bounds = [0]
    while bounds[-1] < failures.count:
        start = bounds[-1]
        stop = int(np.searchsorted(before, before[start] + MEMBERS_AT_ONCE, side="right")) - 1
        bounds.append(min(max(stop, start + 1), start + FAILURES_AT_ONCE, failures.count))
    return list(itertools.pairwise(bounds))


class _Block:
    """The work of `impact_of` on some of the failures."""

    def __init__(self, ground: Ground, flow: Flow, failures: Failures, classes: range, reach_count: Indices) -> None:
        self.ground = ground
        self.flow = flow
        self.failures = failures
        self.classes = classes
        self.reach_count = reach_count
        self.killed = failures.end_failure * len(ground.source) + failures.end
        self.lost = self._lost_key(failures.lost_failure, failures.lost_class, failures.lost_switch)
        self.gone = failures.gone_failure * ground.class_count + failures.gone_class
        self.all_gone = self.gone[failures.gone_count == ground.weight[failures.gone_class]]
        self.retained = np.ones(failures.count, dtype=np.float64)

    def answer(self) -> tuple[Indices, Indices, Indices, Shares]:
        """Return what to fill into an `Impact`."""
        dead = self._dead()
        is_permitted = self._still_has_path(dead, is_valley_free=self.ground.is_valley_free)
        self._restored_capacity(dead, is_permitted)
        return *self._demands(dead, is_permitted), self.retained

    # --- following the losses --------------------------------------------------------------------------------------
    def _dead(self) -> _Rows:
        """Return the switches with endpoints that are dead for a column; note what capacity the others retain."""
        ground, flow = self.ground, self.flow
        stride = ground.node_count * flow.columns
        starts = self._starts()
        pending_key, pending_loss = self._at_attachments(), np.zeros(0, dtype=np.int64)
        dead: list[Indices] = []
        for level in range(flow.level_count):
            if level:
                key = np.concatenate([pending_key, starts[level][0]])
                order = np.argsort(key, kind="stable")
                first = np.flatnonzero(np.diff(key[order], prepend=-1))
                key = key[order][first]
                loss = np.concatenate([pending_loss, starts[level][1]])[order]
                loss = np.add.reduceat(loss, first) if len(first) else loss
                failure, place = np.divmod(key, stride)
                before = flow.bandwidth.reshape(-1)[place]
                left = before - loss
                self._note(failure, place // flow.columns, left, before)
            else:
                key = pending_key
                failure, place = np.divmod(key, stride)
                left = np.zeros(len(key), dtype=np.int64)
            is_dead = left == 0
            dead.append(key[is_dead & ground.is_home[place // flow.columns]])
            pending_key, pending_loss = self._upstream(failure, place, left)
        found, place = np.divmod(np.concatenate(dead), stride)
        switch, column = np.divmod(place, flow.columns)
        return _Rows(found, switch, column)

    def _starts(self) -> list[tuple[Indices, Indices]]:
        """Return, by the distance of its source, each member that a failure kills: (failure, source, column) as a key, and its capacity."""
        ground, flow, failures = self.ground, self.flow, self.failures
        first = np.flatnonzero(failures.does_end_start)
        which, member = flow.by_end.spread(failures.end[first])
        failure = failures.end_failure[first][which]
        column = flow.column[member]
        stays = ~self._is_column_gone(failure, column)
        failure, member, column = failure[stays], member[stays], column[stays]
        source = flow.source[member]
        key = (failure * ground.node_count + source) * flow.columns + column
        level = flow.distance[source, column]
        order = np.argsort(level, kind="stable")
        bounds = np.searchsorted(level[order], np.arange(flow.level_count + 1))
        parts = [order[low:high] for low, high in itertools.pairwise(bounds)]
        return [(key[part], flow.share[member[part]]) for part in parts]

    def _at_attachments(self) -> Indices:
        """Return the keys of the attachments that cannot deliver any more."""
        ground, failures = self.ground, self.failures
        here = np.flatnonzero((failures.lost_class >= self.classes.start) & (failures.lost_class < self.classes.stop))
        failure, column = failures.lost_failure[here], failures.lost_class[here] - self.classes.start
        stays = ~self._is_column_gone(failure, column)
        key: Indices = (failure * ground.node_count + failures.lost_switch[here]) * self.flow.columns + column
        return np.sort(key[stays])

    def _upstream(self, failure: Indices, place: Indices, left: Indices) -> tuple[Indices, Indices]:
        """Return the losses of those who send over the (switch, column) of *place*, which have *left* capacity."""
        ground, flow = self.ground, self.flow
        matters = np.flatnonzero(left < ground.widest_in[place // flow.columns])
        which, member = flow.by_target.spread(place[matters])
        at = matters[which]
        loss = flow.share[member] - np.minimum(ground.capacity[flow.end[member]], left[at])
        loses = np.flatnonzero(loss > 0)
        at, member, loss = at[loses], member[loses], loss[loses]
        lives = np.flatnonzero(~is_among(self.killed, failure[at] * len(ground.source) + flow.end[member]))
        at, member, loss = at[lives], member[lives], loss[lives]
        key = (failure[at] * ground.node_count + flow.source[member]) * flow.columns + flow.column[member]
        return key, loss

    def _note(self, failure: Indices, switch: Indices, left: Indices, before: Indices) -> None:
        """Lower `retained` to the least share of *left* in *before*, over switches with endpoints that have some left."""
        counts = np.flatnonzero((left > 0) & self.ground.is_home[switch])
        np.minimum.at(self.retained, failure[counts], left[counts] / before[counts])

    # --- what else there is ----------------------------------------------------------------------------------------
    def _still_has_path(self, dead: _Rows, *, is_valley_free: bool) -> Bits:
        """
        Return, for each of *dead*, whether another path remains.

        Paths can be walked either way, so one search answers for all rows that share the failure and the destination, or the failure and
        the switch: each row goes with the larger crowd.
        """
        ground = self.ground
        if not len(dead.failure):
            return np.zeros(0, dtype=np.bool_)
        by_switch = dead.failure * ground.node_count + dead.switch
        by_class = dead.failure * ground.class_count + dead.column + self.classes.start
        is_for_class = _crowd(by_class) >= _crowd(by_switch)
        kinds = ground.node_count + ground.class_count
        pivot = np.where(is_for_class, ground.node_count + dead.column + self.classes.start, dead.switch)
        searches, search_of = np.unique(dead.failure * kinds + pivot, return_inverse=True)
        answer = np.zeros(len(pivot), dtype=np.bool_)
        order = np.argsort(search_of, kind="stable")
        bounds = np.searchsorted(search_of[order], np.arange(0, len(searches) + SEARCHES_AT_ONCE, SEARCHES_AT_ONCE))
        for number, (low, high) in enumerate(itertools.pairwise(bounds)):
            first = number * SEARCHES_AT_ONCE
            failure, start = np.divmod(searches[first : first + SEARCHES_AT_ONCE], kinds)
            from_class = np.flatnonzero(start >= ground.node_count)
            marks = np.zeros((ground.node_count, len(start)), dtype=np.bool_)
            from_switch = np.flatnonzero(start < ground.node_count)
            marks[start[from_switch], from_switch] = True
            self._attach(marks, from_class, failure[from_class], start[from_class] - ground.node_count)
            found = reached(ground, packed(marks), self._usable(failure), is_valley_free=is_valley_free)
            rows = order[low:high]
            at = search_of[rows] - first
            answer[rows] = self._arrives(found, at, dead, rows, is_for_class[rows])
        return answer

    def _arrives(self, found: NDArray[np.uint64], at: Indices, dead: _Rows, rows: Indices, is_for_class: Bits) -> Bits:
        """Return whether the searches *at* arrived: at the switch of each row, or at an attachment of its class that it still has."""
        ground = self.ground
        there = np.where(is_for_class, _bit(found, dead.switch[rows], at), False)
        open_ = np.flatnonzero(~is_for_class)
        class_ = dead.column[rows[open_]] + self.classes.start
        which, place = spread(ground.class_start[class_], np.diff(ground.class_start)[class_])
        failure = dead.failure[rows[open_]]
        keeps = ~is_among(self.lost, self._lost_key(failure[which], class_[which], ground.attachment[place]))
        arrives = _bit(found, ground.attachment[place], at[open_][which]) & keeps
        there[open_] = np.bincount(which, weights=arrives, minlength=len(open_)) > 0
        return there

    def _attach(self, marks: Bits, column: Indices, failure: Indices, class_: Indices) -> None:
        """Mark in each *column* the attachments that *class_* keeps under *failure*."""
        ground = self.ground
        which, place = spread(ground.class_start[class_], np.diff(ground.class_start)[class_])
        switch = ground.attachment[place]
        keeps = ~is_among(self.lost, self._lost_key(failure[which], class_[which], switch))
        marks[switch[keeps], column[which[keeps]]] = True

    def _usable(self, failure: Indices) -> NDArray[np.uint64]:
        """Return the link-ends that live, link-ends x *failure* as sets."""
        failures = self.failures
        bounds = np.searchsorted(failures.end_failure, np.arange(failures.count + 1))
        which, place = spread(bounds[failure], np.diff(bounds)[failure])
        lives = np.ones((len(self.ground.source), len(failure)), dtype=np.bool_)
        lives[failures.end[place], which] = False
        return packed(lives)

    def _restored_capacity(self, dead: _Rows, is_permitted: Bits) -> None:
        """Note what those of *dead* that get other paths retain once these are found."""
        ground, flow = self.ground, self.flow
        rows = np.flatnonzero(is_permitted & (flow.bandwidth[dead.switch, dead.column] != UNBOUNDED))
        cases, case_of = np.unique(dead.failure[rows] * flow.columns + dead.column[rows], return_inverse=True)
        order = np.argsort(case_of, kind="stable")
        at_once = max(1, CELLS_AT_ONCE // max(len(ground.source), 1))
        bounds = np.searchsorted(case_of[order], np.arange(0, len(cases) + at_once, at_once))
        for number, (low, high) in enumerate(itertools.pairwise(bounds)):
            first = number * at_once
            failure, column = np.divmod(cases[first : first + at_once], flow.columns)
            marks = np.zeros((ground.node_count, len(failure)), dtype=np.bool_)
            self._attach(marks, np.arange(len(failure)), failure, column + self.classes.start)
            after = Flow(ground, marks, self._usable(failure)).bandwidth
            chosen = rows[order[low:high]]
            switch = dead.switch[chosen]
            left = after[switch, case_of[order[low:high]] - first]
            self._note(dead.failure[chosen], switch, left, flow.bandwidth[switch, dead.column[chosen]])

    # --- demands ---------------------------------------------------------------------------------------------------
    def _demands(self, dead: _Rows, is_permitted: Bits) -> tuple[Indices, Indices, Indices]:
        """Return the demands cut, cut by policy, and waiting: a class is as well off as the best of the attachments it keeps.

        Demands inside a class are never among them: its endpoints meet at any attachment they keep.
        """
        ground, columns, failures = self.ground, self.flow.columns, self.failures
        of_switch = self._classes_at
        which, place = of_switch.spread(dead.switch)
        class_ = ground.class_of_attachment[place]
        failure, column = dead.failure[which], dead.column[which]
        keeps = ~is_among(self.lost, self._lost_key(failure, class_, dead.switch[which]))
        # An attachment that a class lost is as bad as a dead one, for every destination.
        away = np.flatnonzero(~failures.is_delivery[failures.lost_failure])
        reach = self.flow.distance[failures.lost_switch[away]] != UNREACHED
        lost, lost_column = np.nonzero(reach)
        lost = away[lost]
        key = np.concatenate(
            [
                (failure[keeps] * ground.class_count + class_[keeps]) * columns + column[keeps],
                (failures.lost_failure[lost] * ground.class_count + failures.lost_class[lost]) * columns + lost_column,
            ]
        )
        permitted = np.concatenate([is_permitted[which[keeps]], np.zeros(len(lost), dtype=np.bool_)])
        cases, case_of, losses = np.unique(key, return_inverse=True, return_counts=True)
        failure_class, column = np.divmod(cases, columns)
        failure, class_ = np.divmod(failure_class, ground.class_count)
        has_permitted = np.bincount(case_of, weights=permitted, minlength=len(cases)) > 0
        target = column + self.classes.start
        is_hit = losses == self.reach_count[class_, column]
        is_hit &= ~self._is_class_gone(failure, class_) & ~self._is_column_gone(failure, column)
        failure, class_, column, target = (item[is_hit] for item in (failure, class_, column, target))
        has_permitted = has_permitted[is_hit]
        has_path = has_permitted.copy()
        if ground.is_valley_free:
            has_path[~has_permitted] = self._has_any_path(
                failure[~has_permitted], class_[~has_permitted], column[~has_permitted]
            )
        is_single = failures.is_delivery[failure]
        sources = ground.weight[class_] - self._gone_of(failure, class_)
        weight = sources * np.where(is_single, 1, ground.weight[target] - self._gone_of(failure, target))
        # What cannot reach an endpoint cannot be reached from it: permitted paths can be walked either way.
        both = np.where(is_single, 2 * weight, weight)
        return (
            self._sum(failure, both, ~has_path),
            self._sum(failure, both, has_path & ~has_permitted),
            self._sum(failure, weight, has_permitted),
        )

    def _has_any_path(self, failure: Indices, class_: Indices, column: Indices) -> Bits:
        """Return whether a path, valley or not, leads from an attachment that *class_* keeps; from one without a permitted path as built, too."""
        ground = self.ground
        which, place = spread(ground.class_start[class_], np.diff(ground.class_start)[class_])
        switch = ground.attachment[place]
        keeps = ~is_among(self.lost, self._lost_key(failure[which], class_[which], switch))
        which, switch = which[keeps], switch[keeps]
        arrives = self._still_has_path(_Rows(failure[which], switch, column[which]), is_valley_free=False)
        found: Bits = np.bincount(which, weights=arrives, minlength=len(failure)) > 0
        return found

    @property
    def _classes_at(self) -> Runs:
        return Runs(self.ground.attachment, self.ground.node_count)

    def _sum(self, failure: Indices, weight: Indices, chosen: Bits) -> Indices:
        total = np.zeros(self.failures.count, dtype=np.int64)
        np.add.at(total, failure[chosen], weight[chosen])
        return total

    def _gone_of(self, failure: Indices, class_: Indices) -> Indices:
        """Return how many endpoints of *class_* lose all their attachments."""
        if not len(self.gone):
            return np.zeros(len(failure), dtype=np.int64)
        wanted = failure * self.ground.class_count + class_
        at = np.minimum(np.searchsorted(self.gone, wanted), len(self.gone) - 1)
        return np.where(self.gone[at] == wanted, self.failures.gone_count[at], 0)

    def _is_class_gone(self, failure: Indices, class_: Indices) -> Bits:
        return is_among(self.all_gone, failure * self.ground.class_count + class_)

    def _is_column_gone(self, failure: Indices, column: Indices) -> Bits:
        return self._is_class_gone(failure, column + self.classes.start)

    def _lost_key(self, failure: Indices, class_: Indices, switch: Indices) -> Indices:
        key: Indices = (failure * self.ground.class_count + class_) * self.ground.node_count + switch
        return key


def _crowd(key: Indices) -> Indices:
    """Return, for each item, how many share its key."""
    _, item_of, counts = np.unique(key, return_inverse=True, return_counts=True)
    crowd: Indices = counts[item_of]
    return crowd


def _bit(words: NDArray[np.uint64], row: Indices, column: Indices) -> Bits:
    """Return single marks out of sets."""
    picked = words[row, column // 64] >> (column % 64).astype(np.uint64)
    marks: Bits = (picked & np.uint64(1)).astype(np.bool_)
    return marks
