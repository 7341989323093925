"""Who is dead under a failure, tried out one failure and one destination at a time; shares no code with the engine but the next hops."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from random import Random
from typing import NamedTuple

import networkx as nx
import numpy as np

from erfs.fabric import Fabric
from erfs.ids import LinkId
from erfs.paths import Topology
from erfs.paths.bits import unpacked
from erfs.paths.next_hops import UNREACHABLE
from erfs.paths.protection import Failure, Kind
from erfs.paths.situation import Situation

SINK = -1

Change = tuple[Failure, int, int]
"""(failure, link-end, destination)"""


class Verdict(NamedTuple):
    """What one failure does to one destination: who is dead, and who has lost all next hops and turns to other link-ends."""

    dead: frozenset[int]
    adds: frozenset[int]


class Oracle:
    """The choices of a situation, and what is left of them."""

    def __init__(self, situation: Situation) -> None:
        self.situation = situation
        self.mesh = mesh = situation.mesh
        self.count = len(situation.targets)
        hops = situation.hops
        self.distance = hops.distance
        self.members = unpacked(hops.members, self.count)
        self.laterals = np.zeros_like(self.members)
        stray_classes = {target.class_column for target in situation.targets if target.strays}
        for end in np.flatnonzero(hops.usable).tolist():
            one, other = int(mesh.source[end]), int(mesh.target[end])
            for column in range(self.count):
                near, far = self.distance[one, column], self.distance[other, column]
                if self.members[end, column] or far == UNREACHABLE:
                    continue
                if one >= mesh.transit_count:
                    self.laterals[end, column] = True
                elif not situation.topology.is_valley_free and other < one and near == far and near > 0:
                    self.laterals[end, column] = column not in stray_classes
        self.choices = self.members | self.laterals

    @cached_property
    def risk_groups(self) -> list[list[int]]:
        """The link-ends of each of the fabric's shared-risk groups, by name."""
        topology = self.situation.topology
        names = sorted({srlg for link in topology.fabric.links.values() for srlg in link.srlgs})
        return [
            [end for end, trunk in enumerate(topology.end_trunk.tolist()) if name in topology.trunks[trunk].srlgs]
            for name in names
        ]

    @cached_property
    def failures(self) -> list[Failure]:
        """Everything that may fail."""
        topology, mesh = self.situation.topology, self.mesh
        first_source = len(topology.end_source)
        return [
            *(Failure(Kind.TRUNK, trunk) for trunk in range(len(topology.trunks))),
            *(Failure(Kind.SOURCE, end) for end in range(first_source, len(mesh))),
            *(Failure(Kind.NODE, node) for node in range(mesh.transit_count)),
            *(
                Failure(Kind.DELIVERY, column, switch)
                for column, target in enumerate(self.situation.targets)
                if len(target.attachments) > 1
                for switch in target.attachments
            ),
            *(Failure(Kind.SRLG, group) for group in range(len(self.risk_groups))),
        ]

    def failing_ends(self, failure: Failure) -> set[int]:
        """Return the link-ends that carry nothing any more; those of a node are counted with the node."""
        match failure.kind:
            case Kind.TRUNK:
                return set(np.flatnonzero(self.mesh.trunk == failure.subject).tolist())
            case Kind.SOURCE:
                return {failure.subject}
            case Kind.SRLG:
                return set(self.risk_groups[failure.subject])
        return set()

    def verdict(self, failure: Failure, column: int) -> Verdict:
        """Return what *failure* does to *column*: take the failing element out of the graph of choices, and see who still gets there."""
        mesh, target = self.mesh, self.situation.targets[column]
        nobody = Verdict(frozenset(), frozenset())
        if failure.kind is Kind.DELIVERY and failure.subject != column:
            return nobody
        gone = failure.subject if failure.kind is Kind.NODE else None
        if target.attachments == (gone,):
            return nobody  # nothing that anybody could repair
        broken = self.failing_ends(failure)
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from([*range(mesh.node_count), SINK])
        graph.add_edges_from((switch, SINK) for switch in target.attachments if switch not in (gone, failure.switch))
        works = [
            end
            for end in np.flatnonzero(self.choices[:, column]).tolist()
            if end not in broken and gone not in (int(mesh.source[end]), int(mesh.target[end]))
        ]
        graph.add_edges_from((int(mesh.source[end]), int(mesh.target[end])) for end in works)
        alive = nx.ancestors(graph, SINK)
        served = {int(mesh.source[end]) for end in np.flatnonzero(self.choices[:, column]).tolist()}
        dead = (served | set(target.attachments)) - alive - {gone}
        leads = [end for end in works if int(mesh.target[end]) in alive]
        served_by_members = {int(mesh.source[end]) for end in leads if self.members[end, column]}
        turning = [end for end in leads if int(mesh.source[end]) not in served_by_members]
        nearest: dict[int, int] = {}
        for end in turning:
            near = int(self.distance[mesh.target[end], column])
            nearest[int(mesh.source[end])] = min(near, nearest.get(int(mesh.source[end]), near))
        adds = {end for end in turning if self.distance[mesh.target[end], column] == nearest[int(mesh.source[end])]}
        return Verdict(frozenset(dead), frozenset(adds))

    def changes(self) -> tuple[set[Change], set[Change]]:
        """Return all drops and all additions, by their definition."""
        drops: set[Change] = set()
        adds: set[Change] = set()
        source, target = self.mesh.source.tolist(), self.mesh.target.tolist()
        for failure in self.failures:
            broken = self.failing_ends(failure)
            for column in range(self.count):
                dead, added = self.verdict(failure, column)
                adds.update((failure, end, column) for end in added)
                drops.update(
                    (failure, end, column)
                    for end in np.flatnonzero(self.members[:, column]).tolist()
                    if target[end] in dead and source[end] not in dead
                    if source[end] != failure.subject or failure.kind is not Kind.NODE
                    if end not in broken or failure.kind is Kind.SRLG
                )
        drops |= set(self._covering(drops))
        drops = {
            (failure, end, column)
            for failure, end, column in drops
            if (own := self.situation.targets[column].class_column) == column or (failure, end, own) not in drops
        }
        return drops, adds

    def _covering(self, drops: Iterable[Change]) -> Iterator[Change]:
        """Yield what a node's entry and a risk group's must have, since its links' entries have it."""
        mesh = self.mesh
        groups_of = {
            trunk: [number for number, ends in enumerate(self.risk_groups) if trunk in mesh.trunk[ends].tolist()]
            for trunk in range(len(self.situation.topology.trunks))
        }
        ends_of = self.situation.topology.ends_of_trunk
        for failure, end, column in drops:
            if failure.kind is Kind.DELIVERY:
                yield Failure(Kind.NODE, failure.switch), end, column
            if failure.kind is Kind.TRUNK:
                for node in mesh.source[ends_of[failure.subject]].tolist():
                    if node != mesh.source[end]:
                        yield Failure(Kind.NODE, node), end, column
                for group in groups_of[failure.subject]:
                    yield Failure(Kind.SRLG, group), end, column


def degraded(fabric: Fabric, random: Random, most: int = 4) -> Situation:
    """Return *fabric* with some of its links out of use, and some trunks to be avoided."""
    unusable = frozenset(random.sample(sorted(fabric.links), min(len(fabric.links), random.randint(0, most))))
    trunks = [trunk.id for trunk in fabric.trunks]
    dear = random.sample(trunks, min(len(trunks), random.choice([0, 0, 2])))
    return Situation(Topology(fabric), unusable, {link: random.choice([2, 3]) for link in dear})


def restless(fabric: Fabric, random: Random, steps: int) -> Iterator[tuple[Situation, Situation]]:
    """Yield, again and again, the next situation of *fabric*, made from the last one, and the same made from nothing."""
    topology = Topology(fabric)
    trunks = [trunk.id for trunk in topology.trunks]
    unusable: set[LinkId] = set()
    costs: dict[LinkId, int] = {}
    situation = Situation(topology, frozenset())
    yield situation, Situation(topology, frozenset())
    for _ in range(steps):
        for link in random.sample(trunks, min(len(trunks), random.randint(1, 3))):
            if random.random() < 0.75:
                unusable ^= {link}
            elif link in costs:
                del costs[link]
            else:
                costs[link] = random.choice([2, 3])
        now = frozenset(unusable)
        situation = Situation(topology, now, dict(costs), previous=situation)
        yield situation, Situation(topology, now, dict(costs))
