"""What does the benchmark of the path engine run: a fabric as we and as the peers see it, and what a controller does on it?

Rule 1: nothing here is timed; who times it calls it.
Rule 2: a wrong answer ends the benchmark.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import networkx as nx
import numpy as np
import rustworkx as rx

from benchmarks.timing import (
    fail,
)
from erfs.fabric import Fabric
from erfs.ids import LinkId, NodeId
from erfs.messages import Program
from erfs.paths import Topology
from erfs.paths.bits import unpacked
from erfs.paths.entries import Armourer
from erfs.paths.mesh import run_starts
from erfs.paths.mint import Mint
from erfs.paths.next_hops import UNREACHABLE, NextHops
from erfs.paths.protection import Kind, arm
from erfs.paths.situation import Situation
from erfs.paths.weights import Ground, Weighing

# All changes of a large fabric at once are gigabytes that nobody wants to hold.
NODES_AT_ONCE: Final = 64


# --- the fabric, as we and as the peers see it ---------------------------------------------------------------------------
class Bench:
    """One fabric, with everything built that no run is to pay for."""

    def __init__(self, name: str, fabric: Fabric, seed: int) -> None:
        self.name = name
        self.topology = Topology(fabric)
        self.random = Random(seed)
        self.situation = Situation(self.topology, frozenset())
        self.mesh = self.situation.mesh
        self.switch_count = len(self.topology.switches)
        self.class_count = len(self.situation.targets)
        self.usable = np.ones(len(self.mesh), dtype=np.bool_)
        self.cost = np.ones(len(self.mesh), dtype=np.int64)
        # Found once, these stay: a controller has them from its start.
        self.ground = Ground(self.next_hops(), self.topology.arrivals_bps)
        _ = self.situation.attached, self.mesh.target_start, self.mesh.source_start, self.topology.ends_of_trunk
        self.between = np.flatnonzero(self.mesh.source < self.mesh.transit_count)
        pairs = self.mesh.source[self.between] * self.switch_count + self.mesh.target[self.between]
        self.pairs, self.pair_of_end = np.unique(pairs, return_inverse=True)

    @property
    def trunk_count(self) -> int:
        """How many cables there are between switches: the links that paths are computed over."""
        return len(self.topology.trunks)

    def next_hops(self, *, is_valley_free: bool | None = None) -> NextHops:
        """Compute all next hops from nothing."""
        return NextHops(
            self.mesh,
            self.situation.attached,
            self.class_count,
            self.usable,
            self.cost,
            is_valley_free=self.topology.is_valley_free if is_valley_free is None else is_valley_free,
        )

    def weights(self, hops: NextHops) -> Weighing:
        """Compute all weights from nothing."""
        return Weighing(hops, self.ground)

    def random_trunks(self, count: int) -> list[int]:
        """Return *count* different cables between switches, drawn from the seed."""
        return self.random.sample(range(self.trunk_count), min(count, self.trunk_count))

    def hops_without(self, trunks: list[int]) -> NextHops:
        """Compute all next hops from nothing, without some cables."""
        usable = self.usable.copy()
        usable[self.topology.ends_of_trunk[trunks]] = False
        return NextHops(
            self.mesh,
            self.situation.attached,
            self.class_count,
            usable,
            self.cost,
            is_valley_free=self.topology.is_valley_free,
        )

    def change(self, state: "State", trunk: int, *, is_usable: bool) -> None:
        """Cut or restore one cable: next hops and weights are brought up to date."""
        ends = self.topology.ends_of_trunk[trunk]
        touched = state.hops.update(ends, np.full(len(ends), is_usable), self.cost[ends])
        state.weighing.update(touched)

    # --- peers --------------------------------------------------------------------------------------------------------
    def sole_attachments(self) -> list[int]:
        """Return the switch of each class. The peers search from one node each, so there may be one only."""
        found = [target.attachments for target in self.situation.targets]
        if any(len(switches) != 1 for switches in found):
            fail(f"{self.name}: the peers' search starts at one switch, and some class has several")
        return [switches[0] for switches in found]

    def networkx_graph(self) -> "nx.Graph[int]":
        """Return the switches and who is joined to whom."""
        graph: nx.Graph[int] = nx.Graph()
        graph.add_nodes_from(range(self.switch_count))
        graph.add_edges_from(divmod(int(pair), self.switch_count) for pair in self.pairs)
        return graph

    def rustworkx_graph(self) -> "rx.PyGraph[None, None]":
        """Return the same for rustworkx."""
        graph: rx.PyGraph[None, None] = rx.PyGraph(multigraph=False)
        graph.add_nodes_from([None] * self.switch_count)
        graph.add_edges_from_no_data(
            [(near, far) for near, far in (divmod(int(pair), self.switch_count) for pair in self.pairs) if near < far]
        )
        return graph

    # --- are the answers the same? ------------------------------------------------------------------------------------
    def members_by_pair(self, hops: NextHops) -> "np.ndarray[Any, np.dtype[np.bool_]]":
        """Return pairs of neighbours x classes: whether the one sends by the other."""
        found = np.zeros((len(self.pairs), self.class_count), dtype=np.bool_)
        np.logical_or.at(found, self.pair_of_end, unpacked(hops.members[self.between], self.class_count))
        return found

    def compare_with_networkx(self, hops: NextHops, answer: list[dict[int, list[int]]]) -> str:
        """Compare next-hop sets; return in which mode they are equal."""
        theirs = np.zeros((len(self.pairs), self.class_count), dtype=np.bool_)
        place = {int(pair): number for number, pair in enumerate(self.pairs)}
        for column, nearer in enumerate(answer):
            rows = [place[node * self.switch_count + hop] for node, hops_of in nearer.items() for hop in hops_of]
            theirs[rows, column] = True
        if np.array_equal(self.members_by_pair(hops), theirs):
            return "equal"
        if not np.array_equal(self.members_by_pair(self.next_hops(is_valley_free=False)), theirs):
            fail(f"{self.name}: next hops differ from those of networkx")
        return "equal without the valley-free policy, which networkx does not know"

    def compare_with_rustworkx(self, hops: NextHops, answer: "np.ndarray[Any, np.dtype[np.float64]]") -> str:
        """Compare distances; return in which mode they are equal."""
        theirs = answer[self.sole_attachments()].T
        if np.array_equal(self.distances(hops), theirs):
            return "equal"
        if not np.array_equal(self.distances(self.next_hops(is_valley_free=False)), theirs):
            fail(f"{self.name}: distances differ from those of rustworkx")
        return "equal without the valley-free policy, which rustworkx does not know"

    def distances(self, hops: NextHops) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Return switches x classes; -1 where no path leads."""
        found = hops.distance[: self.switch_count].astype(np.float64)
        found[found == UNREACHABLE] = -1
        return found


class State:
    """Next hops and weights that are kept up to date."""

    def __init__(self, bench: Bench) -> None:
        self.hops = bench.next_hops()
        self.weighing = bench.weights(self.hops)


def is_same(one: NextHops, other: NextHops) -> bool:
    """Return whether two states are the same, bit for bit."""
    return (
        np.array_equal(one.members, other.members)
        and np.array_equal(one.descends, other.descends)
        and np.array_equal(one.distance, other.distance)
    )


# --- what a controller does ---
class Chain:
    """One situation after the other, as a controller sees them: each takes over what the one before had found."""

    def __init__(self, bench: Bench, *, is_protecting: bool) -> None:
        self._topology = bench.topology
        self._situation = Situation(bench.topology, frozenset())
        _ = self._situation.sharing
        self.armory = arm(self._situation) if is_protecting else None

    def follow(self, unusable: frozenset[LinkId]) -> None:
        """Go on to the situation without some links: its next hops and weights."""
        self._situation = Situation(self._topology, unusable, previous=self._situation)
        _ = self._situation.sharing

    def rearm(self) -> None:
        """Bring the armory up to date."""
        if self.armory is not None:
            self.armory = arm(self._situation, previous=self.armory)
            assert self.armory.changed is not None, "the armory was made anew"

    def write_changes(self) -> None:
        """Write out what the nodes change whose changes may differ now."""
        assert self.armory is not None
        assert self.armory.changed is not None
        self.armory.rows(self.armory.changed.nodes, self.armory.changed.columns)

    def list_unprotected(self) -> None:
        """List what no change is armed for."""
        assert self.armory is not None
        _ = self.armory.unprotected


class Protecting:
    """Arms for all single failures from nothing, with the next hops at hand."""

    def __init__(self, bench: Bench) -> None:
        self._topology = bench.topology
        self._nodes = np.arange(bench.mesh.node_count)
        self._situation = Situation(bench.topology, frozenset())
        _ = self._situation.hops
        self._armory = arm(self._situation)

    @property
    def failure_count(self) -> int:
        """How many failures of links between switches, and of switches, are armed for."""
        return sum(failure.kind in (Kind.TRUNK, Kind.NODE) for failure in self._armory.failures)

    def arm(self) -> None:
        """Find out whom everybody depends on."""
        self._situation = Situation(self._topology, frozenset(), previous=self._situation)
        self._armory = arm(self._situation)

    def write_changes(self) -> None:
        """Write out what every node changes for every failure, some nodes at a time, as they are made into programs."""
        for start in range(0, len(self._nodes), NODES_AT_ONCE):
            self._armory.rows(self._nodes[start : start + NODES_AT_ONCE])

    def list_unprotected(self) -> None:
        """List what no change is armed for."""
        _ = self._armory.unprotected


def check_updates(bench: Bench, trunk: int) -> None:
    """End the benchmark if a cut, or the return, is not what a computation from nothing gives."""
    state = State(bench)
    as_built = state.weighing.weights
    bench.change(state, trunk, is_usable=False)
    anew = bench.hops_without([trunk])
    if not is_same(state.hops, anew):
        fail(f"{bench.name}: next hops brought up to date differ from those computed anew")
    # Weights depend on those before them, by design: both go on from those as built.
    cut_weights = Weighing(anew, bench.ground, as_built).weights
    if state.weighing.weights != cut_weights:
        fail(f"{bench.name}: weights brought up to date differ from those computed anew")
    bench.change(state, trunk, is_usable=True)
    if not is_same(state.hops, bench.next_hops()):
        fail(f"{bench.name}: next hops after a cable's return differ from those before its cut")
    if state.weighing.weights != Weighing(state.hops, bench.ground, cut_weights).weights:
        fail(f"{bench.name}: weights after a cable's return differ from those computed anew")


# --- what programs hold ready ---
@dataclass
class Armed:
    """What the programs of a fabric hold ready."""

    agents: int
    bytes_median: int
    bytes_max: int
    link_failures: int
    link_messages_median: float
    link_messages_max: int
    link_flips_median: float
    link_flips_max: int
    switch_failures: int
    switch_messages_median: float
    switch_messages_max: int
    switch_flips_median: float
    switch_flips_max: int


def count_armed(programs: Mapping[NodeId, Program], topology: Topology) -> Armed:
    """
    Count what the programs hold ready and what a failure sets in motion.

    Messages are the facts published, one by each witness, and their deliveries to the agents that are armed for the failure. A flip is one
    next-hop group replaced: at the ends of a failed cable, which need no entry, and at the armed agents.
    """
    sizes: list[int] = []
    told: dict[str, int] = {}
    flips: dict[str, int] = {}
    for node, program in programs.items():
        if node in topology.switch_index:
            sizes.append(len(program.armed.model_dump_json()))
        group_of = {route.destination: route.group for route in program.routes}
        for entry in program.armed.entries():
            told[entry.failure] = told.get(entry.failure, 0) + 1
            changed = {
                (number, group_of.get(name))
                for number, change in enumerate(entry.changes)
                for name in change.destinations
            }
            flips[entry.failure] = flips.get(entry.failure, 0) + len(changed)
    links, switches = [], []
    for trunk in topology.trunks:
        own = sum(
            any(member.port == end.port for member in group.members)
            for end in trunk.ends
            for group in programs[end.node].groups
        )
        links.append((2 + 2 * told.get(trunk.id, 0), own + flips.get(trunk.id, 0)))
    for switch in topology.switches:
        witnesses = len(topology.witnesses_of[switch])
        switches.append((witnesses * (1 + told.get(switch, 0)), flips.get(switch, 0)))
    return _summed(len(programs), sizes, links, switches)


def _summed(agents: int, sizes: list[int], links: list[tuple[int, int]], switches: list[tuple[int, int]]) -> Armed:
    """Return the figures: *sizes* in bytes, and for each failure its messages and its flips."""
    return Armed(
        agents=agents,
        bytes_median=int(statistics.median(sizes)),
        bytes_max=max(sizes),
        link_failures=len(links),
        link_messages_median=statistics.median(messages for messages, _ in links),
        link_messages_max=max(messages for messages, _ in links),
        link_flips_median=statistics.median(count for _, count in links),
        link_flips_max=max(count for _, count in links),
        switch_failures=len(switches),
        switch_messages_median=statistics.median(messages for messages, _ in switches),
        switch_messages_max=max(messages for messages, _ in switches),
        switch_flips_median=statistics.median(count for _, count in switches),
        switch_flips_max=max(count for _, count in switches),
    )


def count_armed_without_programs(bench: Bench, sample: int) -> Armed:
    """
    Count as `count_armed` does where all programs at once are too much: from the arrays that they are made of.

    Bytes are those of a *sample* of switches of each tier, each standing for its share of the tier; messages and flips are counted for all.
    """
    topology, count = bench.topology, bench.class_count
    situation = Situation(topology, frozenset())
    hops, armory, mesh = situation.hops, arm(situation), bench.mesh
    told = np.zeros(len(armory.failures), dtype=np.int64)
    flips = np.zeros(len(armory.failures), dtype=np.int64)
    own = np.zeros(len(topology.trunks), dtype=np.int64)
    for first in range(0, mesh.transit_count, NODES_AT_ONCE):
        nodes = np.arange(first, min(first + NODES_AT_ONCE, mesh.transit_count))
        group_of = np.zeros((len(nodes), count), dtype=np.int64)
        for node in nodes.tolist():
            ends = np.arange(mesh.source_start[node], mesh.source_start[node + 1])
            marks = unpacked(hops.members[ends], count)
            groups, group_of[node - first] = np.unique(marks, axis=1, return_inverse=True)
            np.add.at(own, mesh.trunk[ends], groups.sum(axis=1))
        rows = armory.rows(nodes)
        key = rows.node * len(told) + rows.failure
        told += np.bincount(rows.failure[run_starts(key)], minlength=len(told))
        which = np.repeat(np.arange(len(rows)), np.diff(rows.starts))
        groups_hit = np.unique(key[which] * count + group_of[rows.node[which] - first, rows.columns])
        flips += np.bincount(groups_hit // count % len(told), minlength=len(told))
    numbers = {(failure.kind, failure.subject): number for number, failure in enumerate(armory.failures)}
    links, switches = [], []
    for trunk in range(len(topology.trunks)):
        number = numbers[Kind.TRUNK, trunk]
        links.append((2 + 2 * int(told[number]), int(own[trunk] + flips[number])))
    for switch, name in enumerate(topology.switches):
        number = numbers[Kind.NODE, switch]
        witnesses = len(topology.witnesses_of[name])
        switches.append((witnesses * (1 + int(told[number])), int(flips[number])))
    by_tier: dict[int | None, list[int]] = {}
    for switch, name in enumerate(topology.switches):
        by_tier.setdefault(topology.fabric.nodes[name].tier, []).append(switch)
    sizes: list[int] = []
    for switches_of_tier in by_tier.values():
        chosen = sorted(bench.random.sample(switches_of_tier, min(sample, len(switches_of_tier))))
        armourer = Armourer(situation, armory, np.array(chosen), Mint())
        found = [len(armourer.of_switch(switch).value.model_dump_json()) for switch in chosen]
        sizes += [found[place * len(found) // len(switches_of_tier)] for place in range(len(switches_of_tier))]
    return _summed(len(topology.bindings), sizes, links, switches)
