"""What every node changes when one link or one switch fails: pruning of the shortest paths, and the few additions that cannot loop.

Rule 1: a change drops next hops that no longer lead anywhere; adding is allowed only along a fixed order of the nodes, so that the next hops and all
additions of all failures together are acyclic.
Rule 2: all failures are worked out at once, as rows (failure, place, set of targets); nothing is recomputed per failure.

A dead node has no next hop left that leads to the target. Everybody who sends by it drops it, and may be dead then: a work list, in rounds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from erfs.ids import DestinationId, NodeId
from erfs.paths.bits import Bits, Indices
from erfs.paths.next_hops import UNREACHABLE, count_by_source, reaches
from erfs.paths.situation import Situation, pair_starts

Counts = NDArray[np.int32]
Words = NDArray[np.uint64]


NO_PATH: Final = "no path remains"
ONLY_VALLEY: Final = "only a valley would remain, which policy forbids"
NO_SAFE_CHANGE: Final = "a path remains, but no change made before restoration is sure not to loop"
# Cases of `_cut_off` worked out together: link-ends x cases bytes at a time.
CASES_AT_ONCE: Final = 1024


@dataclass(frozen=True)
class Unprotected:
    """
    What a single failure cuts off although nothing is armed against it, and why.

    Args:
        failure: The link or switch, or a summary of many access links.
        reason: For people.
        destinations: Which cannot be reached any more.
        nodes: From where: switches with endpoints, and endpoints with several attachments. Empty: from everywhere.
    """

    failure: str
    reason: str
    destinations: tuple[DestinationId, ...]
    nodes: tuple[NodeId, ...]


class Kind(Enum):
    """What fails."""

    TRUNK = "trunk"
    SOURCE = "source"  # an access link, seen by the endpoint that sends over it
    DELIVERY = "delivery"  # an access link, seen by everybody who sends to that endpoint
    NODE = "node"
    SRLG = "srlg"  # links that share a risk, failing together


class Failure(NamedTuple):
    """
    One failure, or one template of many like it.

    *subject* is the topology's trunk, the mesh's link-end (SOURCE), the switch (NODE), the target (DELIVERY, with the *switch* that
    cannot deliver any more), or the place in the fabric's sorted shared-risk groups (SRLG).
    """

    kind: Kind
    subject: int
    switch: int = -1


class Rows(NamedTuple):
    """
    (failure, link-end or node, targets): three arrays of one length. *targets* is a bit set, `words` of 64 targets a row.
    """

    failure: Indices
    place: Indices
    targets: Words


class Triples(NamedTuple):
    """(failure, link-end or node, target): `Rows` taken apart, where single targets have to be counted."""

    failure: Indices
    place: Indices
    target: Indices


@dataclass(frozen=True)
class Armory:
    """
    What to arm.

    Args:
        failures: Numbered as in the triples.
        drops: The link-end's source drops it as next hop to the target when the failure happens.
        adds: The link-end's source adds it.
        unprotected: What remains cut off.
    """

    failures: tuple[Failure, ...]
    drops: Rows
    adds: Rows
    unprotected: tuple[Unprotected, ...]


def arm(situation: Situation) -> Armory:
    """
    Return the changes for every single failure of a usable trunk, of a switch, or of an access link of an endpoint with several attachments.

    - A link's failure never needs an entry at its own ends for dropping it: a dead port is its owner's business.
    - A node's entry covers its links' entries; for destinations behind that node alone it has nothing beyond them.
    - Additions: an endpoint may turn to any of its attachments, since nobody sends through it. A switch may turn to a neighbour at the
      same distance with a smaller number, on fabrics that allow valleys. Then (distance, number) falls along every next hop and every addition.

    Cost: O((link-ends + changes) x log) in numpy, times the rounds of the longest chain of dead nodes.
    """
    return _Pruning(situation).armory()


def nothing_armed(situation: Situation) -> Armory:
    """Return an armory without changes, for runs without protection."""
    no_rows = _no_rows(-(-len(situation.targets) // 64))
    return Armory((), no_rows, no_rows, ())


class _Pruning:
    """The work of `arm`."""

    def __init__(self, situation: Situation) -> None:
        self.situation = situation
        self.mesh = mesh = situation.mesh
        self.is_member = situation.is_member
        self.target_count = len(situation.targets)
        self.is_lateral = self._laterals()
        self.is_choice = self.is_member if self.is_lateral is None else self.is_member | self.is_lateral
        self.choice_count = count_by_source(mesh, self.is_choice)
        self.member_words = packed(self.is_member)
        self.choice_words = self.member_words if self.is_lateral is None else packed(self.is_choice)
        self.pairs = pair_starts(mesh)
        self.pair_key = mesh.source[self.pairs] * mesh.node_count + mesh.target[self.pairs]

        trunk_of_end = situation.topology.end_trunk[situation.trunk_ends]
        trunks, trunk_failure = np.unique(trunk_of_end, return_inverse=True)
        trunk_end_count = len(trunk_of_end)
        source_end_count = len(mesh.source) - trunk_end_count
        self.first_source = len(trunks)
        self.first_node = self.first_source + source_end_count
        self.first_delivery = self.first_node + mesh.transit_count
        self.end_failure: Indices = np.concatenate(
            [trunk_failure.astype(np.int64), self.first_source + np.arange(source_end_count, dtype=np.int64)]
        )
        # Both ends of each failing trunk, lower source first.
        self.ends_of_trunk = np.argsort(trunk_failure, kind="stable").reshape(-1, 2)
        self.deliveries = self._deliveries()
        self.failures = (
            *(Failure(Kind.TRUNK, int(trunk)) for trunk in trunks),
            *(Failure(Kind.SOURCE, trunk_end_count + index) for index in range(source_end_count)),
            *(Failure(Kind.NODE, node) for node in range(mesh.transit_count)),
            *self.deliveries,
        )

    def armory(self) -> Armory:
        """Return what to arm."""
        dead, dropped = self._prune()
        drops = _nonempty(Rows(dropped.failure, dropped.place, dropped.targets & self.member_words[dropped.place]))
        adds = _no_rows(dropped.targets.shape[1]) if self.is_lateral is None else self._adds(dead, dropped)
        drops = self._without_repeats(self._with_node_entries(drops))
        return Armory(self.failures, drops, adds, self._unprotected(dead))

    # --- what may be added -----------------------------------------------------------------------------------------
    def _laterals(self) -> Bits | None:
        """Return which link-ends may be added when all next hops are gone, link-ends x targets; None if there are none."""
        mesh, distance = self.mesh, self.situation.hops.distance
        from_source = mesh.source >= mesh.transit_count
        if self.situation.topology.is_valley_free and not from_source.any():
            return None
        here, there = distance[mesh.source], distance[mesh.target]
        lateral: Bits = from_source[:, None] & (there != UNREACHABLE)
        if not self.situation.topology.is_valley_free:
            is_smaller = ~from_source & (mesh.target < mesh.source)
            beside = is_smaller[:, None] & (there == here) & (here != UNREACHABLE) & (here != 0)
            # What a class adds its endpoints add as well, and a stray one has another order of the nodes than its class.
            beside[:, [target.class_column for target in self.situation.targets if target.strays]] = False
            lateral |= beside
        lateral &= ~self.is_member & self.situation.hops.usable[:, None]
        return lateral if lateral.any() else None

    # --- failures --------------------------------------------------------------------------------------------------
    def _deliveries(self) -> tuple[Failure, ...]:
        """Return a template per target with several attachments, and attachment: the switch cannot deliver to one endpoint of it any more."""
        return tuple(
            Failure(Kind.DELIVERY, column, switch)
            for column, target in enumerate(self.situation.targets)
            if len(target.attachments) > 1
            for switch in target.attachments
        )

    # --- the work list ---------------------------------------------------------------------------------------------
    def _prune(self) -> tuple[Rows, Rows]:
        """Return the dead nodes, and the choices (members and laterals) that lead to them; failing links themselves left out."""
        choice_pairs = self._by_pair(self.is_choice)
        fresh = self._first_dead(choice_pairs)
        dead, dropped = [fresh], [_no_rows(self.choice_words.shape[1])]
        while len(fresh.failure):
            losses = self._incoming(fresh)
            dropped.append(losses)
            fresh = self._next_dead(losses, _joined(dropped), choice_pairs)
            dead.append(fresh)
        return _merged(_joined(dead)), _merged(_joined(dropped))

    def _first_dead(self, choice_pairs: Counts) -> Rows:
        """Return who is dead at once: all its choices are the failing link, or links to the failing node; or it cannot deliver."""
        mesh = self.mesh
        by_link = Rows(self.end_failure, mesh.source, packed(self.is_choice & (self.choice_count[mesh.source] == 1)))
        far, near = mesh.target[self.pairs], mesh.source[self.pairs]
        only_by = (choice_pairs > 0) & (choice_pairs == self.choice_count[near]) & ~self.situation.is_sole[far]
        by_node = Rows(self.first_node + far, near, packed(only_by))
        is_delivered = np.zeros((len(self.deliveries), self.target_count), dtype=np.bool_)
        is_delivered[np.arange(len(self.deliveries)), [failure.subject for failure in self.deliveries]] = True
        by_delivery = Rows(
            self.first_delivery + np.arange(len(self.deliveries), dtype=np.int64),
            np.array([failure.switch for failure in self.deliveries], dtype=np.int64),
            packed(is_delivered),
        )
        return _nonempty(_joined([by_link, by_node, by_delivery]))

    def _incoming(self, dead: Rows) -> Rows:
        """Return the choices that lead to the dead."""
        mesh = self.mesh
        starts = mesh.target_start[dead.place]
        counts = mesh.target_start[dead.place + 1] - starts
        which = np.repeat(np.arange(len(counts)), counts)
        ends = mesh.by_target[starts[which] + _offsets(counts)]
        return _nonempty(Rows(dead.failure[which], ends, dead.targets[which] & self.choice_words[ends]))

    def _next_dead(self, losses: Rows, dropped: Rows, choice_pairs: Counts) -> Rows:
        """Return who is dead now: nodes of *losses*, the newest part of *dropped*, that have no choice left for some target."""
        mesh = self.mesh
        touched = np.unique(losses.failure * mesh.node_count + mesh.source[losses.place])
        group = dropped.failure * mesh.node_count + mesh.source[dropped.place]
        at = np.minimum(np.searchsorted(touched, group), max(len(touched) - 1, 0))
        of_touched = np.flatnonzero(touched[at] == group) if len(touched) else np.zeros(0, dtype=np.int64)
        at = at[of_touched]
        # A node can lose its last choice only where it has no more choices than it lost link-ends, failing ones included.
        lost_ends = np.bincount(at, minlength=len(touched))
        failure, node = np.divmod(touched, mesh.node_count)
        lost_ends += self._failing_ends(failure, node)
        most = int(lost_ends.max(initial=0)) + 1
        bounds, bound_of = np.unique(node * most + lost_ends, return_inverse=True)
        bound_node, bound = np.divmod(bounds, most)
        few = packed(self.choice_count[bound_node] <= bound[:, None])
        targets = dropped.targets[of_touched] & few[bound_of[at]]
        rows = _nonempty(Rows(dropped.failure[of_touched], mesh.source[dropped.place[of_touched]], targets))
        triples = _apart(rows, self.target_count)
        keys, lost = np.unique(self._key(triples), return_counts=True)
        triples = self._from_key(keys)
        lost = lost + self._direct(triples, self.is_choice, choice_pairs)
        return self._together(_select(triples, lost == self.choice_count[triples.place, triples.target]))

    def _failing_ends(self, failure: Indices, node: Indices) -> Indices:
        """Return how many link-ends of each node are the failing link, or lead to the failing node."""
        found = np.zeros(len(failure), dtype=np.int64)
        found[failure < self.first_source] = 1  # one too many for nodes at neither end: only a bound is wanted
        by_node = np.flatnonzero((failure >= self.first_node) & (failure < self.first_delivery))
        pair_sizes = np.diff(self.pairs, append=len(self.mesh.source))
        at, is_there = self._pair_of(node[by_node], failure[by_node] - self.first_node)
        found[by_node[is_there]] = pair_sizes[at[is_there]]
        return found

    def _pair_of(self, near: Indices, far: Indices) -> tuple[Indices, Bits]:
        """Return the pair of parallel link-ends from *near* to *far*, and whether there is one."""
        wanted = near * self.mesh.node_count + far
        if not len(self.pairs):
            return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=np.bool_)
        at = np.minimum(np.searchsorted(self.pair_key, wanted), len(self.pairs) - 1)
        is_there: Bits = self.pair_key[at] == wanted
        return at, is_there

    def _by_pair(self, marks: Bits) -> Counts:
        """Return, pairs of neighbours x targets, how many of the parallel link-ends are marked."""
        if not len(self.pairs):
            return np.zeros((0, self.target_count), dtype=np.int32)
        counts: Counts = np.add.reduceat(marks, self.pairs, axis=0, dtype=np.int32)
        return counts

    def _direct(self, places: Triples, marks: Bits, by_pair: Counts) -> Counts:
        """Return how many of each node's marked link-ends are the failing link itself, or lead to the failing node."""
        direct = np.zeros(len(places.failure), dtype=np.int32)
        by_trunk = np.flatnonzero(places.failure < self.first_source)
        for side in (0, 1):
            ends = self.ends_of_trunk[places.failure[by_trunk], side]
            is_here = self.mesh.source[ends] == places.place[by_trunk]
            direct[by_trunk] += is_here & marks[ends, places.target[by_trunk]]
        by_node = np.flatnonzero((places.failure >= self.first_node) & (places.failure < self.first_delivery))
        at, is_there = self._pair_of(places.place[by_node], places.failure[by_node] - self.first_node)
        direct[by_node[is_there]] = by_pair[at[is_there], places.target[by_node[is_there]]]
        return direct

    # --- single targets --------------------------------------------------------------------------------------------
    def _key(self, triples: Triples) -> Indices:
        key: Indices = (triples.failure * self.mesh.node_count + triples.place) * self.target_count + triples.target
        return key

    def _from_key(self, key: Indices) -> Triples:
        rest, target = np.divmod(key, self.target_count)
        failure, place = np.divmod(rest, self.mesh.node_count)
        return Triples(failure, place, target)

    def _end_key(self, triples: Triples) -> Indices:
        key: Indices = (triples.failure * len(self.mesh.source) + triples.place) * self.target_count + triples.target
        return key

    def _together(self, triples: Triples) -> Rows:
        """Return *triples* as rows, one for each (failure, place)."""
        place_count = max(self.mesh.node_count, len(self.mesh.source))
        keys, row_of = np.unique(triples.failure * place_count + triples.place, return_inverse=True)
        marks = np.zeros((len(keys), self.target_count), dtype=np.bool_)
        marks[row_of, triples.target] = True
        failure, place = np.divmod(keys, place_count)
        return Rows(failure, place, packed(marks))

    # --- additions -------------------------------------------------------------------------------------------------
    def _adds(self, dead: Rows, dropped: Rows) -> Rows:
        """Return what to add where all next hops are gone and something else is left."""
        assert self.is_lateral is not None
        mesh = self.mesh
        member_count = count_by_source(mesh, self.is_member)
        pair_members = self._by_pair(self.is_member)
        can_add = count_by_source(mesh, self.is_lateral) > 0
        can_add_words = packed(can_add)

        by_link = Rows(
            self.end_failure, mesh.source, packed(self.is_member & ((member_count == 1) & can_add)[mesh.source])
        )
        far, near = mesh.target[self.pairs], mesh.source[self.pairs]
        only_by = (
            (pair_members > 0) & (pair_members == member_count[near]) & can_add[near] & ~self.situation.is_sole[far]
        )
        by_node = Rows(self.first_node + far, near, packed(only_by))

        source = mesh.source[dropped.place]
        lost_members = Rows(
            dropped.failure, source, dropped.targets & self.member_words[dropped.place] & can_add_words[source]
        )
        keys, lost = np.unique(self._key(_apart(_nonempty(lost_members), self.target_count)), return_counts=True)
        touched = self._from_key(keys)
        lost = lost + self._direct(touched, self.is_member, pair_members)
        by_drops = _select(touched, lost == member_count[touched.place, touched.target])
        at_once = _apart(_nonempty(_joined([by_link, by_node])), self.target_count)
        emptied = np.unique(np.concatenate([self._key(at_once), self._key(by_drops)]))
        dead_keys = self._key(_apart(dead, self.target_count))
        alive = self._from_key(emptied[~np.isin(emptied, dead_keys)])

        starts = mesh.source_start[alive.place]
        counts = mesh.source_start[alive.place + 1] - starts
        which = np.repeat(np.arange(len(counts)), counts)
        found = Triples(alive.failure[which], starts[which] + _offsets(counts), alive.target[which])
        works = self.is_lateral[found.place, found.target]
        works &= self.end_failure[found.place] != found.failure
        works &= self.first_node + mesh.target[found.place] != found.failure
        found = _select(found, works)
        far_keys = self._key(Triples(found.failure, mesh.target[found.place], found.target))
        found = _select(found, ~np.isin(far_keys, dead_keys))
        # An endpoint turns to its nearest attachments only; a switch's are all at the same distance.
        reach_by = self.situation.hops.distance[mesh.target[found.place], found.target]
        groups, group_of = np.unique(
            self._key(Triples(found.failure, mesh.source[found.place], found.target)), return_inverse=True
        )
        nearest = np.full(len(groups), UNREACHABLE, dtype=np.int32)
        np.minimum.at(nearest, group_of, reach_by)
        return self._together(_select(found, reach_by == nearest[group_of]))

    # --- node entries ----------------------------------------------------------------------------------------------
    def _with_node_entries(self, drops: Rows) -> Rows:
        """Return *drops* with each link's drops repeated for the switches at its ends: a node's entry covers its links' entries."""
        mesh = self.mesh
        parts = [drops]
        by_trunk = _chosen(drops, drops.failure < self.first_source)
        for side in (0, 1):
            node = mesh.source[self.ends_of_trunk[by_trunk.failure, side]]
            part = Rows(self.first_node + node, by_trunk.place, by_trunk.targets)
            parts.append(_chosen(part, mesh.source[part.place] != node))
        if self.deliveries:
            by_delivery = _chosen(drops, drops.failure >= self.first_delivery)
            switches = np.array([failure.switch for failure in self.deliveries], dtype=np.int64)
            node = switches[by_delivery.failure - self.first_delivery]
            parts.append(Rows(self.first_node + node, by_delivery.place, by_delivery.targets))
        return _merged(_joined(parts))

    def _without_repeats(self, drops: Rows) -> Rows:
        """Return *drops* without those of stray endpoints that their class drops as well: a class's drop holds for its endpoints."""
        class_column = np.array([target.class_column for target in self.situation.targets], dtype=np.int64)
        stray = np.flatnonzero(class_column != np.arange(len(class_column)))
        if not len(stray):
            return drops
        marks = unpacked(drops.targets, self.target_count)
        marks[:, stray] &= ~marks[:, class_column[stray]]
        return _nonempty(Rows(drops.failure, drops.place, packed(marks)))

    # --- what remains ----------------------------------------------------------------------------------------------
    def _unprotected(self, dead: Rows) -> tuple[Unprotected, ...]:
        """Return what nothing is armed against: sources that are dead for a target, and targets that hang on one switch or one link."""
        situation = self.situation
        found = [*self._cut_off(dead), *self._behind_one_switch()]
        switches = situation.topology.switches
        from_where: dict[tuple[str, str, int], set[NodeId]] = {}
        for name, reason, target, nodes in found:
            sources = from_where.setdefault((name, reason, target), set())
            for node in nodes:
                is_switch = node < len(switches)
                sources.update((switches[node],) if is_switch else situation.sources[node - len(switches)].endpoints)
        listed: dict[tuple[str, str, tuple[NodeId, ...]], set[DestinationId]] = {}
        for (name, reason, target), sources in from_where.items():
            destinations = listed.setdefault((name, reason, tuple(sorted(sources))), set())
            destinations.update(situation.targets[target].destinations)
        single = sum(len(links) == 1 for links in situation.access.values())
        summary = (
            [Unprotected(f"{single} access links", "an endpoint's only link: nothing can repair it", (), ())]
            if single
            else []
        )
        return (
            *(
                Unprotected(name, reason, tuple(sorted(destinations)), nodes)
                for (name, reason, nodes), destinations in sorted(listed.items())
            ),
            *summary,
        )

    def _behind_one_switch(self) -> Iterator[tuple[str, str, int, tuple[int, ...]]]:
        node, target = np.nonzero(self.situation.is_sole)
        for switch, column in zip(node.tolist(), target.tolist(), strict=True):
            yield self.situation.topology.switches[switch], NO_PATH, column, ()

    def _cut_off(self, dead: Rows) -> Iterator[tuple[str, str, int, tuple[int, ...]]]:
        """Yield (failure, reason, target, sources) for each source that has nothing left towards a target."""
        situation, mesh = self.situation, self.mesh
        is_source = np.zeros(mesh.node_count, dtype=np.bool_)
        is_source[[access.switch for links in situation.access.values() for access in links]] = True
        is_source[mesh.transit_count :] = True
        lost = _apart(_chosen(dead, is_source[dead.place]), self.target_count)
        lost = _select(lost, lost.failure != self.first_node + lost.place)
        if not len(lost.failure):
            return
        cases, case_of = np.unique(lost.failure * self.target_count + lost.target, return_inverse=True)
        failure, target = np.divmod(cases, self.target_count)
        for first in range(0, len(cases), CASES_AT_ONCE):
            chosen = slice(first, first + CASES_AT_ONCE)
            works = self._works_under(failure[chosen])
            attached = situation.is_attached[:, target[chosen]]
            for column, number in enumerate(failure[chosen].tolist()):
                gone = self.failures[number]
                if gone.kind is Kind.DELIVERY:
                    attached[gone.switch, column] = False
            is_permitted = reaches(mesh, attached, works, is_valley_free=situation.topology.is_valley_free)
            is_connected = reaches(mesh, attached, works, is_valley_free=False)
            inside = np.flatnonzero((case_of >= first) & (case_of < first + CASES_AT_ONCE))
            for at in inside.tolist():
                node, column = int(lost.place[at]), int(case_of[at]) - first
                reason = (
                    NO_SAFE_CHANGE
                    if is_permitted[node, column]
                    else ONLY_VALLEY
                    if is_connected[node, column]
                    else NO_PATH
                )
                yield self._name(self.failures[int(lost.failure[at])]), reason, int(lost.target[at]), (node,)

    def _works_under(self, failures: Indices) -> Bits:
        """Return, link-ends x failures, which link-ends still work."""
        mesh = self.mesh
        works: Bits = self.situation.hops.usable[:, None] & (self.end_failure[:, None] != failures)
        works &= (self.first_node + mesh.target)[:, None] != failures
        works &= (self.first_node + mesh.source)[:, None] != failures
        return works

    def _name(self, failure: Failure) -> str:
        topology = self.situation.topology
        match failure.kind:
            case Kind.TRUNK:
                return topology.trunks[failure.subject].id
            case Kind.NODE:
                return topology.switches[failure.subject]
            case Kind.SOURCE:
                return f"access links at {topology.switches[self.mesh.target[failure.subject]]}"
            case Kind.DELIVERY:
                return f"access links at {topology.switches[failure.switch]}"


def _offsets(counts: Indices) -> Indices:
    """Return 0, 1, … within each run of *counts*."""
    total = int(counts.sum())
    return np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)


def _select(triples: Triples, chosen: Bits) -> Triples:
    return Triples(triples.failure[chosen], triples.place[chosen], triples.target[chosen])


def _chosen(rows: Rows, chosen: Bits) -> Rows:
    return Rows(rows.failure[chosen], rows.place[chosen], rows.targets[chosen])


def _nonempty(rows: Rows) -> Rows:
    has_any: Bits = np.logical_or.reduce(rows.targets != 0, axis=1)
    return _chosen(rows, has_any)


def _joined(parts: list[Rows]) -> Rows:
    return Rows(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _merged(rows: Rows) -> Rows:
    """Return *rows* in the order of (place, failure), one row for each, its targets those of any row."""
    if not len(rows.failure):
        return rows
    stride = int(rows.failure.max()) + 1
    key = rows.place * stride + rows.failure
    order = np.argsort(key, kind="stable")
    key = key[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    place, failure = np.divmod(key[starts], stride)
    return Rows(failure, place, np.bitwise_or.reduceat(rows.targets[order], starts, axis=0))


def _apart(rows: Rows, target_count: int) -> Triples:
    which, target = np.nonzero(unpacked(rows.targets, target_count))
    return Triples(rows.failure[which], rows.place[which], target.astype(np.int64))


def _no_rows(word_count: int) -> Rows:
    nothing = np.zeros(0, dtype=np.int64)
    return Rows(nothing, nothing, np.zeros((0, word_count), dtype=np.uint64))


def packed(marks: Bits) -> Words:
    """Return *marks* (rows x targets) as bit sets, 64 targets a word."""
    count = -(-marks.shape[1] // 64)
    packed_bytes = np.zeros((len(marks), count * 8), dtype=np.uint8)
    if marks.size:
        packed_bytes[:, : -(-marks.shape[1] // 8)] = np.packbits(marks, axis=1)
    words: Words = packed_bytes.view(np.uint64)
    return words


def unpacked(words: Words, target_count: int) -> Bits:
    """Return the marks that `packed` made *words* of."""
    if not words.size:
        return np.zeros((len(words), target_count), dtype=np.bool_)
    marks: Bits = np.unpackbits(words.view(np.uint8), axis=1, count=target_count).astype(np.bool_)
    return marks
