"""Whether forwarding tables deliver: loops, black holes, valleys and destinations out of reach, found in the tables alone.

Rule 1: any tables may be judged, half-installed and hand-made ones too; nothing is assumed of how they came about.
Rule 2: a packet is followed along every next hop; shares don't matter here.
Rule 3: all destinations are followed at once, 64 to a word; only what is wrong is looked at one by one.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import networkx as nx
import numpy as np

from erfs.fabric import Fabric
from erfs.ids import EVERYTHING, DestinationId, LinkId, NodeId, class_of
from erfs.messages import Member, Program
from erfs.paths.bits import WORD_BITS, Indices, Words, columns_of, positions
from erfs.paths.tables import ALL, NO_TABLE, NONE, Compiler, Mixture, Plane, Rows, Wiring, as_words

Tables = Mapping[NodeId, Mapping[DestinationId, tuple[Member, ...]]]


@dataclass(frozen=True, slots=True)
class Loop:
    """Nodes that send what goes to *destination* round among themselves, canonical order."""

    destination: DestinationId
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Blackhole:
    """*node* is sent what goes to *destination* and loses it: by *port*, whose link does not work, or for want of a next hop (port empty)."""

    destination: DestinationId
    node: NodeId
    port: str = ""


@dataclass(frozen=True, slots=True)
class Valley:
    """What goes to *destination* comes down to *node*, which sends it up again by *port* though policy forbids that."""

    destination: DestinationId
    node: NodeId
    port: str


@dataclass(frozen=True, slots=True)
class Unreached:
    """None of what *sources* send to *destination* arrives."""

    destination: DestinationId
    sources: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What is wrong with the tables; each part in canonical order.

    Args:
        missed: The part of *unreached* for which there is a permitted path over working links all the same.
    """

    loops: tuple[Loop, ...]
    blackholes: tuple[Blackhole, ...]
    unreached: tuple[Unreached, ...]
    valleys: tuple[Valley, ...] = ()
    missed: tuple[Unreached, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether nothing loops, nothing is lost on the way and nothing crosses a valley. What is out of reach is no fault of the tables alone."""
        return not self.loops and not self.blackholes and not self.valleys


@dataclass(frozen=True, slots=True)
class RoundVerdict:
    """
    What may go wrong while the nodes of one round change over, that did not before; each part in canonical order.

    Args:
        loops: For destinations that nothing looped before.
        valleys: For destinations that crossed none before.
        interrupted: What arrived whole before the first round and does after the last one, but may be lost here.
    """

    loops: tuple[Loop, ...] = ()
    valleys: tuple[Valley, ...] = ()
    interrupted: tuple[Unreached, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether nothing of it may happen."""
        return not self.loops and not self.valleys and not self.interrupted


@dataclass(frozen=True, slots=True)
class PushVerdict:
    """
    What may go wrong in the rounds of a push.

    Args:
        rounds: One verdict a round.
        is_repair: Whether something arrives whole after the last round that does not now.
    """

    rounds: tuple[RoundVerdict, ...]
    is_repair: bool

    def unsafe_round(self) -> int | None:
        """
        Return the first round that must not be pushed, counted from 0; None if all may.

        No push may loop or cross a valley. One that changes only what works must not lose anything either; one that repairs something
        may, for a while, rather than leave it broken.
        """
        for number, verdict in enumerate(self.rounds):
            if verdict.loops or verdict.valleys or (verdict.interrupted and not self.is_repair):
                return number
        return None


def verify(
    fabric: Fabric,
    tables: Tables,
    *,
    working: Callable[[LinkId], bool],
    destinations: Collection[DestinationId] | None = None,
) -> Verdict:
    """Judge *tables* once, as `Verifier.verify` does, which remembers what it has compiled."""
    return Verifier(fabric).verify(tables, working=working, destinations=destinations)


class Verifier:
    """
    Judges forwarding tables of one fabric, again and again.

    Immutable, but for a memory that spares work and changes no result.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._wiring = Wiring(fabric)
        self._compiler = Compiler(self._wiring)
        self._mixture = Mixture(self._wiring)
        self._senders: tuple[tuple[NodeId, int], ...] = tuple(
            (node, index) for index, node in enumerate(self._wiring.nodes) if self._wiring.is_sender[index]
        )
        number = {link: place for place, link in enumerate(self._wiring.links)}
        # By port, and those that are access links.
        self._single_homed: dict[NodeId, tuple[dict[str, int], tuple[int, ...]]] = {
            node: (
                {link.end_at(node).port: number[link.id] for link in fabric.links_of[node]},
                tuple(number[link.id] for link in fabric.access_links[node]),
            )
            for node in fabric.nodes
            if len(fabric.attachments.get(node, ())) == 1
        }

    # --- one state ----------------------------------------------------------------------------------------------------
    def verify(
        self,
        tables: Tables | Mapping[NodeId, Program],
        *,
        working: Callable[[LinkId], bool],
        destinations: Collection[DestinationId] | None = None,
    ) -> Verdict:
        """
        Judge *tables* for every destination class, and for every endpoint of which its class does not tell the whole story.

        Sources are the switches with endpoints, and the endpoints that have a table and several attachments. An endpoint with one
        attachment is judged once, under `EVERYTHING`: does its table lead to a switch? A class has arrived at any of its switches that
        has no route for it; from there each endpoint's own route must lead to the endpoint.

        Args:
            tables: Programs, or members by destination, for each node, looked up the most specific first; a node without an entry
                forwards nothing.
            working: Whether a link carries packets now.
            destinations: Judge just the classes of these; all if None.

        Returns:
            Loops whether or not anybody sends into them; black holes and valleys where a source's packets come by. An endpoint without
            a working link is unreached, whoever sends to it, and reaches nobody; that is nobody's black hole.

        Cost: O(routes of programs not met before), and O(link-ends x classes / 64) for each hop of the longest way. What is wrong costs
        O(nodes) for each destination concerned.
        """
        wiring, mixture = self._wiring, self._mixture
        is_working = [working(link) for link in wiring.links]
        works = wiring.works(is_working)
        for node, index in self._senders:
            table = tables.get(node)
            mixture.put(index, (NO_TABLE if table is None else self._compiled(index, table),))
        found = _Findings(wiring)
        if destinations is None or EVERYTHING in destinations:
            self._judge_single_homed(tables, is_working, found)
        chosen, apart = self._chosen(destinations), mixture.straying(works)
        apart = [endpoint for endpoint in apart if _has(chosen, int(wiring.class_column[endpoint]))]
        for plane in mixture.planes(works, chosen, apart):
            _Judge(wiring, plane, works).judge(mixture, found)
        return found.verdict()

    def _compiled(self, index: int, table: Mapping[DestinationId, tuple[Member, ...]] | Program) -> Rows:
        return (
            self._compiler.program(index, table) if isinstance(table, Program) else self._compiler.table(index, table)
        )

    def _chosen(self, destinations: Collection[DestinationId] | None) -> Words:
        wiring = self._wiring
        columns = wiring.all_columns
        if destinations is not None:
            columns = 0
            for name in destinations:
                columns |= wiring.bit.get(class_of(name), 0)
        return as_words(columns, wiring.word_count)

    def _judge_single_homed(
        self, tables: Tables | Mapping[NodeId, Program], is_working: Sequence[bool], found: "_Findings"
    ) -> None:
        """Find the endpoints with one attachment whose table leads to no switch though a link of theirs works."""
        lost: list[NodeId] = []
        for node, (links, access) in self._single_homed.items():
            table = tables.get(node)
            if table is None:
                continue
            used = [links[port] for port in _ports_for_everything(table) if port in links]
            if not any(is_working[link] for link in used) and any(is_working[link] for link in access):
                lost.append(node)
        if lost:
            found.unreached.append((_FIRST, Unreached(EVERYTHING, tuple(lost))))
            found.missed.append((_FIRST, Unreached(EVERYTHING, tuple(lost))))

    # --- the rounds of a push -----------------------------------------------------------------------------------------
    def verify_rounds(
        self,
        before: Mapping[NodeId, Program],
        rounds: Sequence[Mapping[NodeId, Program]],
        *,
        working: Callable[[LinkId], bool],
        pinned: Mapping[NodeId, tuple[Program, ...]] = MappingProxyType({}),
    ) -> PushVerdict:
        """
        Judge every mixture that the *rounds* may pass through: of each round any of its nodes may have its new program, or not yet.

        What was wrong before the first round is not held against the rounds, for they may be what repairs it: destinations that loop or
        cross a valley from the start are not judged for that, and only what arrives whole both before and after counts as lost.

        Args:
            before: What runs. A node without an entry forwards nothing.
            rounds: As pushed one after the other; a round starts when all nodes of the one before have their programs.
            working: Whether a link carries packets now. A loop counts over any links, for they may come back.
            pinned: Nodes that may run any of several programs, and after a round that gives them another one, that too.

        Returns:
            The verdicts on those destinations whose routes some round changes.

        Cost: O(routes of new programs), and for each round O(link-ends x changed classes / 64) for each hop of the longest way.
        """
        wiring, mixture = self._wiring, self._mixture
        works = wiring.works(working(link) for link in wiring.links)
        base: dict[int, tuple[Rows, ...]] = {}
        for node, index in self._senders:
            programs = pinned.get(node) or ((before[node],) if node in before else ())
            tables = tuple(self._compiler.program(index, program) for program in programs) or (NO_TABLE,)
            mixture.put(index, tables)
            base[index] = tables
        turns = [
            {
                wiring.index[node]: self._compiler.program(wiring.index[node], program)
                for node, program in programs.items()
                if node in wiring.index and wiring.is_sender[wiring.index[node]]
            }
            for programs in rounds
        ]
        stuck = {wiring.index[node] for node in pinned if node in wiring.index}
        changed, endpoints = self._changes(base, turns)
        chosen = as_words(changed, wiring.word_count)
        steps = list(_steps(base, turns, stuck))
        # Which endpoints go apart from their class may change from round to round; what is compared must be the same for all.
        apart = set(mixture.straying(works))
        if endpoints:
            for tables_of in (tables_of for step in steps for tables_of in step):
                self._put(tables_of)
                apart.update(mixture.straying(works))
            self._put(base)
        concerned = sorted(
            endpoint for endpoint in apart if endpoint in endpoints or changed >> int(wiring.class_column[endpoint]) & 1
        )
        first = [self._look(plane, works) for plane in mixture.planes(works, chosen, concerned)]
        mixed_planes: list[list[Plane]] = []
        for mixed, after in steps:
            self._put(mixed)
            mixed_planes.append(mixture.planes(works, chosen, concerned))
            self._put(after)
        planes_after = mixture.planes(works, chosen, concerned)
        last = [_Judge(wiring, plane, works).wholly_served()[0] for plane in planes_after]
        verdicts = []
        for planes in mixed_planes:
            found = _Findings(wiring)
            for before_it, good_after, plane in zip(first, last, planes, strict=True):
                self._judge_change(before_it, good_after, plane, works, found)
            verdicts.append(found.round_verdict())
        is_repair = any(
            (plane.sends & good_after & ~before_it.good).any()
            for before_it, good_after, plane in zip(first, last, planes_after, strict=True)
        )
        return PushVerdict(tuple(verdicts), is_repair)

    def _put(self, tables_of: Mapping[int, tuple[Rows, ...]]) -> None:
        for index, tables in tables_of.items():
            self._mixture.put(index, tables)

    def _changes(
        self, base: Mapping[int, tuple[Rows, ...]], turns: Sequence[Mapping[int, Rows]]
    ) -> tuple[int, set[int]]:
        """Return the classes whose routes some round changes, as an integer, and the endpoints whose own routes it changes."""
        wiring = self._wiring
        changed = np.zeros(wiring.word_count, dtype=np.uint64)
        other = 0
        endpoints: set[int] = set()
        for turn in turns:
            for index, rows in turn.items():
                for known in base[index]:
                    if known is rows:
                        continue
                    if len(rows.rows):
                        is_other = rows.rows ^ known.rows if len(known.rows) else rows.rows
                        changed |= np.bitwise_or.reduce(is_other, axis=0)
                    other |= (rows.routed ^ known.routed) | (rows.filled ^ known.filled)
                    if rows.unknown != known.unknown:
                        for columns in (*rows.unknown.values(), *known.unknown.values()):
                            other |= columns
                    if rows.own != known.own:
                        endpoints |= {
                            endpoint
                            for endpoint in rows.own.keys() | known.own.keys()
                            if rows.own.get(endpoint) != known.own.get(endpoint)
                        }
        return int.from_bytes(changed.astype("<u8").tobytes(), "little") | other, endpoints

    def _look(self, plane: Plane, works: Words) -> "_Look":
        judge = _Judge(self._wiring, plane, works)
        good, suspicious = judge.wholly_served()
        loops = valleys = NONE
        if suspicious:
            loops = _Judge(self._wiring, plane.only(suspicious), np.full_like(works, ALL)).looping()
            valleys = np.bitwise_or.reduce(judge.valleys(judge.reached()[0]), initial=NONE)
        return _Look(good, loops, valleys)

    def _judge_change(self, first: "_Look", good_after: Words, plane: Plane, works: Words, found: "_Findings") -> None:
        judge = _Judge(self._wiring, plane, works)
        good, suspicious = judge.wholly_served()
        found.add_sources(plane, plane.sends & first.good & good_after & ~good, found.unreached)
        if suspicious:
            anywhere = _Judge(self._wiring, plane.only(suspicious & ~first.loops), np.full_like(works, ALL))
            found.add_loops(plane, anywhere.rings())
            suspected = judge.only(suspicious & ~first.valleys)
            found.add_valleys(plane, suspected.valleys(suspected.reached()[0]))


@dataclass(frozen=True, slots=True)
class _Look:
    """What is known of one plane of a state: per node what arrives whole, and which destinations loop or cross a valley."""

    good: Words
    loops: np.uint64
    valleys: np.uint64


class _Judge:
    """The verdict on the destinations of one plane."""

    def __init__(self, wiring: Wiring, plane: Plane, works: Words) -> None:
        self._wiring = wiring
        self._plane = plane
        self._works = works
        self._live: Words = plane.members & works
        self._has: Words = wiring.or_by_source(plane.members) | plane.lost
        self._lossy: Words = wiring.or_by_source(plane.members & ~works) | plane.lost | plane.dead

    def only(self, columns: np.uint64) -> "_Judge":
        """Return the judge of some of the destinations."""
        return _Judge(self._wiring, self._plane.only(columns), self._works)

    def wholly_served(self) -> tuple[Words, np.uint64]:
        """
        Return per node what arrives whole whatever way it takes, and the destinations of which something else must be known.

        All other destinations neither loop nor lose anything nor cross a valley.
        """
        wiring, plane = self._wiring, self._plane
        able = (self._has | plane.arrived) & ~self._lossy
        good = plane.arrived & ~self._has & able
        while True:
            astray = wiring.or_by_source(plane.members & ~(good & plane.accepts)[wiring.target])
            found = able & ~astray
            if np.array_equal(found, good) or np.array_equal(found, able):
                good = found
                break
            good = found
        suspicious = np.bitwise_or.reduce(self._has & ~good, initial=NONE)
        if wiring.is_valley_free:
            suspicious |= np.bitwise_or.reduce(self.valleys(np.full(len(wiring.nodes), ALL)), initial=NONE)
        return good, suspicious

    def judge(self, mixture: Mixture, found: "_Findings") -> None:
        """Add what is wrong to *found*."""
        plane = self._plane
        served, suspicious = self.wholly_served()
        if suspicious:
            suspected = self.only(suspicious)
            served = (served & ~suspicious) | suspected.reaching()
            reached, handed = suspected.reached()
            found.add_loops(plane, suspected.rings())
            found.add_valleys(plane, suspected.valleys(reached))
            suspected.add_blackholes(mixture, reached & ~plane.cut_off, handed & ~plane.cut_off, found)
        lost = plane.sends & ~served
        if lost.any():
            found.add_sources(plane, lost, found.unreached)
            columns = np.bitwise_or.reduce(lost, initial=NONE)
            found.add_sources(plane, lost & self.only(columns).could_reach(), found.missed)

    def reached(self) -> tuple[Words, Words]:
        """Return per node what comes by there from a source, sources included, and what it is handed by another node."""
        wiring, plane = self._wiring, self._plane
        # An endpoint is not transit: what is handed to the wrong one is lost there, whatever its own table says.
        onward = np.where(wiring.is_transit, ALL, NONE)
        # An endpoint without a working link loses nothing that any table could save.
        has_link = wiring.is_transit | (wiring.or_by_source(self._works) != NONE)
        reached = np.where(has_link, plane.sends, NONE)
        while True:
            handed = wiring.or_by_target(self._live & reached[wiring.source])
            grown = reached | (handed & onward)
            if np.array_equal(grown, reached):
                return reached, handed
            reached = grown

    def reaching(self) -> Words:
        """Return per node what arrives by some way."""
        wiring, plane = self._wiring, self._plane
        served = plane.arrived
        while True:
            grown = served | wiring.or_by_source(self._live & (served & plane.accepts)[wiring.target])
            if np.array_equal(grown, served):
                return served
            served = grown

    def valleys(self, reached: Words) -> Words:
        """Return per link-end what goes up by it after it came down, of what comes by (*reached*, per node)."""
        wiring = self._wiring
        came_down = wiring.or_by_target(self._live & wiring.goes_down & reached[wiring.source])
        return self._live & wiring.goes_up & came_down[wiring.source]

    def looping(self) -> np.uint64:
        """Return the destinations that go round somewhere."""
        return np.uint64(np.bitwise_or.reduce(self._circling(), initial=NONE))

    def rings(self) -> Iterator[tuple[int, list[tuple[int, ...]]]]:
        """Yield the destinations that loop, by bit, each with the nodes of its loops."""
        wiring = self._wiring
        circling = self._circling()
        for bit in columns_of(np.array([np.bitwise_or.reduce(circling, initial=NONE)])).tolist():
            mask = np.uint64(1 << bit)
            is_in = (circling & mask) != NONE
            ends = np.flatnonzero(((self._live & mask) != NONE) & is_in[wiring.source] & is_in[wiring.target])
            graph: nx.DiGraph[int] = nx.DiGraph(
                zip(wiring.source[ends].tolist(), wiring.target[ends].tolist(), strict=True)
            )
            rings = [
                tuple(sorted(ring))
                for ring in nx.strongly_connected_components(graph)
                if len(ring) > 1 or graph.has_edge(*(2 * tuple(ring)))
            ]
            yield bit, sorted(rings)

    def _circling(self) -> Words:
        """Return per node what goes round there, or comes from a loop and leads into one."""
        wiring = self._wiring
        between = np.where(wiring.is_transit[wiring.source] & wiring.is_transit[wiring.target], self._live, NONE)
        left = wiring.or_by_source(between)
        # Nearly always there is no loop: taking away what leads nowhere, again and again, leaves nothing.
        while left.any():
            onward = left & wiring.or_by_source(between & left[wiring.target])
            if np.array_equal(onward, left):
                break
            left = onward
        while left.any():
            onward = left & wiring.or_by_target(between & left[wiring.source])
            if np.array_equal(onward, left):
                break
            left = onward
        return left

    def could_reach(self) -> Words:
        """Return per node what a permitted path over working links leads to, whatever the tables say."""
        wiring, plane = self._wiring, self._plane
        known = np.zeros(len(wiring.nodes), dtype=np.uint64)
        for bit in columns_of(np.array([plane.columns])).tolist():
            name, mask = plane.names[bit], np.uint64(1 << bit)
            endpoint = wiring.endpoint.get(name)
            if endpoint is None:
                known[list(wiring.attachments[wiring.column[name]])] |= mask
            else:
                access = (wiring.target == wiring.owner[endpoint]) & (self._works != NONE)
                known[wiring.source[access & wiring.is_transit[wiring.source]]] |= mask
        usable = np.where(wiring.is_transit[wiring.source] & wiring.is_transit[wiring.target], self._works, NONE)
        phases = [usable & wiring.goes_down, usable & wiring.goes_up] if wiring.is_valley_free else [usable]
        for ends in phases:
            while True:
                grown = known | wiring.or_by_source(ends & known[wiring.target])
                if np.array_equal(grown, known):
                    break
                known = grown
        # Only switches are known so far; endpoints are sources over any of theirs.
        return np.where(wiring.is_transit, known, wiring.or_by_source(self._works & known[wiring.target]))

    def add_blackholes(self, mixture: Mixture, reached: Words, handed: Words, found: "_Findings") -> None:
        """Add where what comes by is lost: *reached* tells what does, *handed* what does from another node, both per node."""
        wiring, plane = self._wiring, self._plane
        broken = plane.members & ~self._works & reached[wiring.source]
        for end, bit in zip(*_places(broken), strict=True):
            found.add_blackhole(plane.names[bit], int(wiring.source[end]), wiring.port[end])
        for node, bit in zip(*_places(plane.lost & reached), strict=True):
            for port in mixture.unknown_ports(int(node), plane.names[bit]):
                found.add_blackhole(plane.names[bit], int(node), port)
        stuck = np.where(wiring.is_transit, plane.dead, ~plane.arrived)
        for node, bit in zip(*_places(handed & stuck), strict=True):
            found.add_blackhole(plane.names[bit], int(node), "")


# Before all destinations.
_FIRST = (-1, -1)


@dataclass
class _Findings:
    """What is wrong, with the order it is told in: classes first, each followed by its endpoints."""

    wiring: Wiring
    loops: list[tuple[tuple[int, int], Loop]] = field(default_factory=list)
    blackholes: list[tuple[tuple[tuple[int, int], int, bool, str], Blackhole]] = field(default_factory=list)
    valleys: list[tuple[tuple[tuple[int, int], int, str], Valley]] = field(default_factory=list)
    unreached: list[tuple[tuple[int, int], Unreached]] = field(default_factory=list)
    missed: list[tuple[tuple[int, int], Unreached]] = field(default_factory=list)

    def place(self, name: DestinationId) -> tuple[int, int]:
        """Return where *name* stands in the order."""
        endpoint = self.wiring.endpoint.get(name)
        if endpoint is None:
            return self.wiring.column[name], -1
        return int(self.wiring.class_column[endpoint]), endpoint

    def add_loops(self, plane: Plane, rings: Iterator[tuple[int, list[tuple[int, ...]]]]) -> None:
        """Take in the loops of some destinations."""
        for bit, found in rings:
            name = plane.names[bit]
            for ring in found:
                self.loops.append((self.place(name), Loop(name, tuple(self.wiring.nodes[node] for node in ring))))

    def add_blackhole(self, name: DestinationId, node: int, port: str) -> None:
        """Take in one black hole."""
        self.blackholes.append(
            ((self.place(name), node, not port, port), Blackhole(name, self.wiring.nodes[node], port))
        )

    def add_valleys(self, plane: Plane, marks: Words) -> None:
        """Take in the valleys *marks* (per link-end)."""
        for end, bit in zip(*_places(marks), strict=True):
            name, node, port = plane.names[bit], int(self.wiring.source[end]), self.wiring.port[end]
            self.valleys.append(((self.place(name), node, port), Valley(name, self.wiring.nodes[node], port)))

    def add_sources(self, plane: Plane, marks: Words, found: list[tuple[tuple[int, int], Unreached]]) -> None:
        """Add the sources in *marks* (per node) to *found*, by destination."""
        by_name: dict[DestinationId, list[NodeId]] = {}
        for node, bit in zip(*_places(marks), strict=True):
            by_name.setdefault(plane.names[bit], []).append(self.wiring.nodes[node])
        found += [(self.place(name), Unreached(name, tuple(nodes))) for name, nodes in by_name.items()]

    def verdict(self) -> Verdict:
        """Return all of it."""
        return Verdict(
            loops=tuple(item for _, item in sorted(self.loops, key=lambda found: found[0])),
            blackholes=tuple(item for _, item in sorted(self.blackholes, key=lambda found: found[0])),
            unreached=tuple(item for _, item in sorted(self.unreached, key=lambda found: found[0])),
            valleys=tuple(item for _, item in sorted(self.valleys, key=lambda found: found[0])),
            missed=tuple(item for _, item in sorted(self.missed, key=lambda found: found[0])),
        )

    def round_verdict(self) -> RoundVerdict:
        """Return all of it, where what is unreached is what was interrupted."""
        all_of_it = self.verdict()
        return RoundVerdict(all_of_it.loops, all_of_it.valleys, all_of_it.unreached)


def _steps(
    base: Mapping[int, tuple[Rows, ...]], turns: Sequence[Mapping[int, Rows]], stuck: Collection[int]
) -> Iterator[tuple[dict[int, tuple[Rows, ...]], dict[int, tuple[Rows, ...]]]]:
    """Yield for each round what its nodes may run while it lasts, and what they run after it."""
    running = dict(base)
    for turn in turns:
        mixed = {
            index: running[index] if any(rows is known for known in running[index]) else (*running[index], rows)
            for index, rows in turn.items()
        }
        after = {index: mixed[index] if index in stuck else (rows,) for index, rows in turn.items()}
        running.update(after)
        yield mixed, after


def _has(chosen: Words, column: int) -> bool:
    return bool(int(chosen[column // WORD_BITS]) >> column % WORD_BITS & 1)


def _places(marks: Words) -> tuple[list[int], list[int]]:
    """Return the (row, bit) of each mark in one word a row, by row."""
    rows: Indices
    rows, bits = positions(marks[:, None])
    return rows.tolist(), bits.tolist()


def _ports_for_everything(table: Mapping[DestinationId, tuple[Member, ...]] | Program) -> list[str]:
    if not isinstance(table, Program):
        return [member.port for member in table.get(EVERYTHING, ())]
    wanted = [route.group for route in table.routes if route.destination == EVERYTHING]
    return [member.port for group in table.groups if group.id in wanted for member in group.members]
