"""What every node changes when a link, a switch or a group of links fails: what no longer leads anywhere is dropped, and little is added.

Rule 1: a change drops next hops that no longer lead anywhere; adding is allowed only along a fixed order of the nodes, so that the next hops and all
additions of all failures together are acyclic.
Rule 2: all failures are worked out at once; nothing is recomputed per failure.
Rule 3: after one more failure or repair only what it touches is worked out again, and the result is the one that a computation from nothing gives.
"""

from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from erfs.ids import LinkId, SrlgId
from erfs.paths.bits import Indices, Words, empty, packed, unpacked, word_count
from erfs.paths.choices import Choices, Pairs, merged_pairs
from erfs.paths.dominators import Dominators
from erfs.paths.next_hops import Touched
from erfs.paths.pruning import ArmedRows, Numbers, Pruning
from erfs.paths.shared_risks import SharedRisks
from erfs.paths.situation import Situation
from erfs.paths.topology import Topology
from erfs.paths.unprotected import CutOff, Loss, Unprotected, cut_off, listed, source_nodes

__all__ = ["Armory", "Failure", "Kind", "Protection", "Rows", "Unprotected", "arm", "nothing_armed"]


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
    """(failure, link-end, targets): three arrays of one length. *targets* is a bit set of 64 targets a word, the first the highest of a byte."""

    failure: Indices
    place: Indices
    targets: Words


class _Layout:
    """The failures of a topology and how they are numbered; the same for all situations with the same targets and sources."""

    def __init__(self, situation: Situation) -> None:
        topology, mesh, targets = situation.topology, situation.mesh, situation.targets
        self.mesh, self.targets = mesh, targets
        trunk_count, trunk_end_count = len(topology.trunks), len(topology.end_source)
        source_end_count = len(mesh) - trunk_end_count
        self.first_node = trunk_count + source_end_count
        self.first_delivery = self.first_node + mesh.transit_count
        self.end_failure: Indices = np.concatenate([topology.end_trunk, trunk_count + np.arange(source_end_count)])
        deliveries = [
            Failure(Kind.DELIVERY, column, switch)
            for column, target in enumerate(targets)
            if len(target.attachments) > 1
            for switch in target.attachments
        ]
        self.first_group = self.first_delivery + len(deliveries)
        groups = _groups(topology)
        self.group_names = tuple(groups)
        self.ends_of_group = [
            np.sort(topology.ends_of_trunk[np.array([topology.trunk_index[link] for link in links], np.int64)].ravel())
            for links in groups.values()
        ]
        self.failures = (
            *(Failure(Kind.TRUNK, trunk) for trunk in range(trunk_count)),
            *(Failure(Kind.SOURCE, trunk_end_count + index) for index in range(source_end_count)),
            *(Failure(Kind.NODE, node) for node in range(mesh.transit_count)),
            *deliveries,
            *(Failure(Kind.SRLG, group) for group in range(len(groups))),
        )
        self.delivery: tuple[Indices, Indices, Indices] = (
            np.array([failure.switch for failure in deliveries], dtype=np.int64),
            np.array([failure.subject for failure in deliveries], dtype=np.int64),
            self.first_delivery + np.arange(len(deliveries)),
        )
        self.class_column: Indices = np.array([target.class_column for target in targets], dtype=np.int64)

    @cached_property
    def numbers(self) -> Numbers:
        """The numbers of the failures."""
        trunk = self.mesh.trunk
        of_group = [np.unique(trunk[ends]) for ends in self.ends_of_group]
        number = np.repeat(np.arange(len(of_group)), [len(trunks) for trunks in of_group])
        member = np.concatenate([np.zeros(0, dtype=np.int64), *of_group])
        order = np.argsort(member, kind="stable")
        start = np.searchsorted(member[order], np.arange(self.first_node + 1))
        return Numbers(self.first_node, self.first_group, len(self.failures), start, number[order])

    @cached_property
    def never_beside(self) -> Words:
        """The classes that have strays: what a class adds its endpoints add as well, and a stray one has another order of the nodes."""
        marks = np.zeros((1, len(self.targets)), dtype=np.bool_)
        marks[0, [target.class_column for target in self.targets if target.strays]] = True
        words: Words = packed(marks)[0]
        return words


class _Losses(dict[int, Loss]):
    """What each failure takes away, worked out when it is asked for."""

    def __init__(self, layout: _Layout, topology: Topology) -> None:
        self._layout = layout
        self._topology = topology

    def __missing__(self, number: int) -> Loss:
        found = self[number] = self._loss(self._layout.failures[number])
        return found

    def _loss(self, failure: Failure) -> Loss:
        switches, mesh = self._topology.switches, self._layout.mesh
        match failure.kind:
            case Kind.TRUNK:
                ends = self._topology.ends_of_trunk[failure.subject]
                return Loss(self._topology.trunks[failure.subject].id, ends)
            case Kind.SOURCE:
                name = f"access links at {switches[mesh.target[failure.subject]]}"
                return Loss(name, np.array([failure.subject]))
            case Kind.NODE:
                node = np.array([failure.subject])
                ends = np.concatenate([mesh.outgoing(node)[0], mesh.incoming(node)[0]])
                return Loss(switches[failure.subject], ends, node=failure.subject)
            case Kind.DELIVERY:
                name = f"access links at {switches[failure.switch]}"
                nothing = np.zeros(0, dtype=np.int64)
                return Loss(name, nothing, switch=failure.switch, column=failure.subject)
            case Kind.SRLG:
                return Loss(self._layout.group_names[failure.subject], self._layout.ends_of_group[failure.subject])


class Armory:
    """What to arm: nothing, as in runs without protection."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation

    changed: Pairs | None = None
    """For which nodes, and for which destinations of each, `rows` may differ from those before; None: for any."""

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What may fail, numbered as in the rows."""
        return ()

    @property
    def unprotected(self) -> tuple[Unprotected, ...]:
        """What a failure cuts off although nothing is armed against it, in canonical order."""
        return ()

    def rows(self, nodes: Indices, columns: Words | None = None) -> ArmedRows:
        """
        Return what *nodes* change for each failure, sorted by node, failure, drops before additions, and link-end.

        Args:
            nodes: Rising.
            columns: For each of *nodes*, the destinations to look at; None: all.
        """
        del nodes, columns
        nothing = np.zeros(0, dtype=np.int64)
        return ArmedRows(nothing, nothing, nothing.astype(np.bool_), nothing, np.zeros(1, dtype=np.int64), nothing)

    def rows_of(self, node: int) -> ArmedRows:
        """Return the `rows` of one node."""
        return self.rows(np.array([node]))

    @property
    def drops(self) -> Rows:
        """What is dropped, of all nodes at once. Cost: O(rows x targets / 64), which on large fabrics is too much."""
        return self._all_rows(is_add=False)

    @property
    def adds(self) -> Rows:
        """What is added, of all nodes at once."""
        return self._all_rows(is_add=True)

    def _all_rows(self, *, is_add: bool) -> Rows:
        count = len(self._situation.targets)
        rows = self.rows(np.arange(self._situation.mesh.node_count))
        chosen = np.flatnonzero(rows.is_add == is_add)
        marks = unpacked(rows.sets(count)[chosen], count)
        as_bytes = np.zeros((len(chosen), 8 * word_count(count)), dtype=np.uint8)
        as_bytes[:, : -(-count // 8)] = np.packbits(marks, axis=1)
        return Rows(rows.failure[chosen], rows.end[chosen], as_bytes.view(np.uint64))


class Protection(Armory):
    """
    What to arm, for one situation; good for as long as the situation's next hops are.

    - A link's failure never needs an entry at its own ends for dropping it: a dead port is its owner's business.
    - A node's entry, and a risk group's, covers its links' entries; for destinations behind that node alone it has nothing beyond them.
    - Who has nothing left towards a destination changes nothing for it: those who send to it do.
    - Of a risk group's access links only their own entries say anything: its rows are about its trunks.

    Args:
        situation: Of which `arm` is asked.
    """

    def __init__(self, situation: Situation) -> None:
        super().__init__(situation)
        self._layout = layout = _Layout(situation)
        self._hops = situation.hops
        self._choices = Choices(situation.hops, layout.never_beside)
        self._dominators = Dominators(self._choices, layout.end_failure, layout.delivery)
        self._losses = _Losses(layout, situation.topology)
        self._risks = SharedRisks(self._choices, layout.ends_of_group) if layout.group_names else None
        self._pruning = Pruning(self._choices, self._dominators, layout.numbers, layout.class_column, self._risks)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What may fail, numbered as in the rows."""
        return self._layout.failures

    def rows(self, nodes: Indices, columns: Words | None = None) -> ArmedRows:
        """
        Return what *nodes* change for each failure, sorted by node, failure, drops before additions, and link-end.

        Args:
            nodes: Rising.
            columns: For each of *nodes*, the destinations to look at; None: all.

        Cost: O(next hops of these nodes x failures that these depend on), sorted.
        """
        return self._pruning.rows(nodes, columns)

    @cached_property
    def unprotected(self) -> tuple[Unprotected, ...]:
        """
        What a failure cuts off although nothing is armed against it, in canonical order.

        Cost: O(sources x destinations), and what `erfs.paths.unprotected.listed` says for those that are cut off.
        """
        return listed(self._situation, self._cut_off(), self._losses)

    def is_of(self, situation: Situation) -> bool:
        """Return whether this can become the armory of *situation*: it has the next hops of this one, brought up to date."""
        return situation.hops is self._hops

    def update(self, situation: Situation, touched: Touched) -> None:
        """
        Become the armory of *situation*, which has the same targets, sources and next hops' memory, and differs by *touched*.

        Cost: O(choices of those who depend on something else now), and the risk groups.
        """
        assert self.is_of(situation)
        self._situation = situation
        self.__dict__.pop("unprotected", None)
        node, column = self._dominators.update(self._choices.update(touched))
        count = len(self._layout.targets)
        pairs = [node * count + column]
        if self._risks is not None:
            pairs.append(self._with_senders(self._risks.update(node, column)))
        self.changed = self._whole_classes(np.unique(np.concatenate(pairs)))

    def _with_senders(self, at: Indices) -> Indices:
        """Return *at*, and who may send to those."""
        count, mesh = len(self._layout.targets), self._layout.mesh
        node, column = np.divmod(at, count)
        incoming, begins = mesh.incoming(node)
        column = np.repeat(column, np.diff(begins))
        sends = (self._choices.words[incoming, column >> 6] >> (column & 63).astype(np.uint64)) & np.uint64(1)
        chosen = np.flatnonzero(sends)
        return np.concatenate([at, mesh.source[incoming[chosen]] * count + column[chosen]])

    def _whole_classes(self, at: Indices) -> Pairs:
        """Return the pairs *at*, and with a stray destination its class and all other strays of it."""
        targets = self._layout.targets
        count = len(targets)
        node, column = np.divmod(at, count)
        words = empty(len(at), count)
        words[np.arange(len(at)), column >> 6] = np.left_shift(np.uint64(1), (column & 63).astype(np.uint64))
        if any(target.strays for target in targets):
            of_class = packed(self._layout.class_column[:, None] == self._layout.class_column)
            words = of_class[column]
        return merged_pairs(node, words)

    def _cut_off(self) -> CutOff:
        found = cut_off(self._situation, self._dominators, self._layout.first_node)
        risks = self._risks
        if risks is None:
            return found
        sources = source_nodes(self._situation)
        at, group = np.divmod(risks.dead, risks.group_count)
        node, column = np.divmod(at, len(self._layout.targets))
        is_source = np.zeros(self._layout.mesh.node_count, dtype=np.bool_)
        is_source[sources] = True
        chosen = np.flatnonzero(is_source[node])
        shared = CutOff(self._layout.first_group + group[chosen], node[chosen], column[chosen])
        return CutOff(*(np.concatenate(pair) for pair in zip(found, shared, strict=True)))


def arm(situation: Situation, previous: Armory | None = None) -> Armory:
    """
    Return the changes for every single failure of a usable trunk, of a switch, of an access link of an endpoint with several attachments, and of
    a group of links that share a risk.

    Args:
        situation: With its next hops.
        previous: The armory of the situation that this one was made from, which nobody asks any more: it is brought up to date.

    Cost: See `Dominators` and `SharedRisks`; with *previous*, what `Armory.update` says.
    """
    touched = situation.touched
    if isinstance(previous, Protection) and touched is not None and previous.is_of(situation):
        previous.update(situation, touched)
        return previous
    return Protection(situation)


def nothing_armed(situation: Situation) -> Armory:
    """Return an armory without changes, for runs without protection."""
    return Armory(situation)


def _groups(topology: Topology) -> dict[SrlgId, list[LinkId]]:
    """Return the fabric's shared-risk groups, sorted, and the trunks of each."""
    found: dict[SrlgId, list[LinkId]] = {}
    for link in topology.fabric.links.values():
        for srlg in link.srlgs:
            trunks = found.setdefault(srlg, [])
            if link.id in topology.trunk_index:
                trunks.append(link.id)
    return {srlg: found[srlg] for srlg in sorted(found)}
