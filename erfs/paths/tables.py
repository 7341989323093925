"""What forwarding tables say, as sets of destinations: by which link-end each node may send what.

Rule 1: the tables of a node are compiled once; a program that was met before costs a look-up.
Rule 2: a node may have several tables at once: then it runs one of them, and nobody knows which.
Rule 3: nothing is judged here, and any tables can be compiled: unknown ports, empty routes and strange destinations too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from erfs.fabric import Fabric, goes_up, is_valley_free_required
from erfs.ids import EVERYTHING, DestinationId, LinkId, NodeId, is_endpoint
from erfs.messages import Member, Program
from erfs.paths.bits import WORD_BITS, Bits, Indices, Words, word_count

Table = Mapping[DestinationId, tuple[Member, ...]]

ALL: Final = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
NONE: Final = np.uint64(0)
# What a node runs, what it is given, and a program on the way between.
_REMEMBERED_MAX: Final = 3


class Wiring:
    """
    A fabric as built, as the verifier sees it. Immutable.

    A *sender* is a node that chooses where to send: a switch, or an endpoint with several attachments. A link-end is one of a
    sender's ports; link-ends are numbered by (sender, neighbour, port). Columns are the destination classes in canonical order.

    Cost: O(links log links).
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.nodes: tuple[NodeId, ...] = tuple(fabric.nodes)
        self.index: dict[NodeId, int] = {node: index for index, node in enumerate(self.nodes)}
        self.is_transit: Bits = np.array([node.is_switch for node in fabric.nodes.values()], dtype=np.bool_)
        self.is_multi_homed: Bits = np.array(
            [len(fabric.attachments.get(node, ())) > 1 for node in self.nodes], dtype=np.bool_
        )
        self.is_sender: Bits = self.is_transit | self.is_multi_homed
        attaching = {switch for switches in fabric.attachments.values() for switch in switches}
        self.is_attaching: Bits = np.array([node in attaching for node in self.nodes], dtype=np.bool_)
        self.links: tuple[LinkId, ...] = tuple(fabric.links)
        self._number_ends(fabric)
        self._number_destinations(fabric)

    def _number_ends(self, fabric: Fabric) -> None:
        is_policy = is_valley_free_required(fabric)
        ends: list[tuple[int, int, str, int, bool, bool]] = []
        for number, link in enumerate(fabric.links.values()):
            is_trunk = is_policy and fabric.is_trunk(link)
            for end in link.ends:
                # A cable looped on one switch leads from either port to that switch.
                near, far = self.index[end.node], self.index[link.far_end(end.node).node]
                if self.is_sender[near]:
                    is_up = is_trunk and goes_up(fabric, link, end.node)
                    ends.append((near, far, end.port, number, is_up, is_trunk and not is_up))
        ends.sort()
        self.source: Indices = np.array([end[0] for end in ends], dtype=np.int64)
        self.target: Indices = np.array([end[1] for end in ends], dtype=np.int64)
        self.port: tuple[str, ...] = tuple(end[2] for end in ends)
        self.link: Indices = np.array([end[3] for end in ends], dtype=np.int64)
        self.goes_up: Words = np.where(np.array([end[4] for end in ends], dtype=np.bool_), ALL, NONE)
        self.goes_down: Words = np.where(np.array([end[5] for end in ends], dtype=np.bool_), ALL, NONE)
        self.is_valley_free = is_policy
        self.start: Indices = np.searchsorted(self.source, np.arange(len(self.nodes) + 1))
        self._with_ends: Indices = np.flatnonzero(np.diff(self.start))
        self.by_target: Indices = np.argsort(self.target, kind="stable")
        target_start = np.searchsorted(self.target[self.by_target], np.arange(len(self.nodes) + 1))
        self._with_arrivals: Indices = np.flatnonzero(np.diff(target_start))
        self._arrival_start: Indices = target_start[self._with_arrivals]
        self.local_port: dict[int, dict[str, int]] = {int(node): {} for node in np.flatnonzero(self.is_sender)}
        for number, (near, _, port, *_) in enumerate(ends):
            self.local_port[near][port] = number - int(self.start[near])

    def _number_destinations(self, fabric: Fabric) -> None:
        self.classes: tuple[DestinationId, ...] = tuple(fabric.class_members)
        self.column: dict[DestinationId, int] = {name: column for column, name in enumerate(self.classes)}
        self.bit: dict[DestinationId, int] = {name: 1 << column for column, name in enumerate(self.classes)}
        self.word_count = word_count(len(self.classes))
        self.all_columns: int = (1 << len(self.classes)) - 1
        # Endpoints class by class, which is also the order in which findings are told.
        self.endpoints: tuple[NodeId, ...] = tuple(
            endpoint for members in fabric.class_members.values() for endpoint in members
        )
        self.destinations: tuple[DestinationId, ...] = tuple(
            fabric.destination_of[endpoint] for endpoint in self.endpoints
        )
        self.endpoint: dict[DestinationId, int] = {name: number for number, name in enumerate(self.destinations)}
        self.owner: Indices = np.array([self.index[endpoint] for endpoint in self.endpoints], dtype=np.int64)
        self.endpoint_at: Indices = np.full(len(self.nodes), -1, dtype=np.int64)
        self.endpoint_at[self.owner] = np.arange(len(self.owner))
        self.class_column: Indices = np.array(
            [column for column, members in enumerate(fabric.class_members.values()) for _ in members], dtype=np.int64
        )
        self.attachments: tuple[tuple[int, ...], ...] = tuple(
            tuple(self.index[switch] for switch in fabric.attachments[members[0]])
            for members in fabric.class_members.values()
        )
        attached = np.zeros((len(self.nodes), self.word_count), dtype=np.uint64)
        for column, switches in enumerate(self.attachments):
            attached[list(switches), column // WORD_BITS] |= np.uint64(1 << column % WORD_BITS)
        self.attached: Words = attached
        # One place for each switch of each endpoint: does that switch deliver?
        self.delivery_place: dict[tuple[int, int], int] = {}
        self.delivery_endpoint: list[int] = []
        for number in range(len(self.endpoints)):
            for switch in self.attachments[self.class_column[number]]:
                self.delivery_place[switch, number] = len(self.delivery_endpoint)
                self.delivery_endpoint.append(number)

    def or_by_source(self, values: Words) -> Words:
        """Return for each node the union of *values* (one word a link-end) over its link-ends."""
        found = np.zeros(len(self.nodes), dtype=np.uint64)
        if len(values):
            found[self._with_ends] = np.bitwise_or.reduceat(values, self.start[self._with_ends])
        return found

    def or_by_target(self, values: Words) -> Words:
        """Return for each node the union of *values* (one word a link-end) over the link-ends that lead to it."""
        found = np.zeros(len(self.nodes), dtype=np.uint64)
        if len(values):
            found[self._with_arrivals] = np.bitwise_or.reduceat(values[self.by_target], self._arrival_start)
        return found

    def works(self, working: Iterable[bool]) -> Words:
        """Return a full word for each link-end whose link works; *working* tells of each link in the order of `links`."""
        marks = np.fromiter(working, dtype=np.bool_, count=len(self.links))
        return np.where(marks[self.link], ALL, NONE)


@dataclass(frozen=True, slots=True)
class OwnRoute:
    """A route to one endpoint: by which of the node's link-ends (counted from its first), and by which ports that lead nowhere."""

    ends: tuple[int, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """
    One node's tables, compiled.

    Args:
        rows: The node's link-ends x classes: whether the link-end is a next hop.
        unknown: By port that has no cable: the classes it is a next hop towards.
        routed: The classes with a route, be it empty; as an integer, like all that follows.
        filled: The classes with a next hop.
        unrouted: The classes without a route, as a set.
        unfilled: The classes with an empty route, as a set.
        own: The routes to single endpoints.
        delivered: The endpoints whose own route leads straight to them and nowhere else.
    """

    rows: Words
    unknown: Mapping[str, int]
    routed: int
    filled: int
    unrouted: Words
    unfilled: Words
    own: Mapping[int, OwnRoute]
    delivered: frozenset[int]


# What a node has that has no tables at all: it forwards nothing, and nothing has arrived there.
_EMPTY: Final = np.zeros(0, dtype=np.uint64)
NO_TABLE: Final = Rows(np.zeros((0, 0), dtype=np.uint64), {}, 0, 0, _EMPTY, _EMPTY, {}, frozenset())


class Compiler:
    """Compiles tables and programs, and remembers the latest programs of each node."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._known: dict[int, list[tuple[Program, Rows]]] = {}

    def program(self, node: int, program: Program) -> Rows:
        """Return the tables of *program*, which must be of the sender *node*. Cost: O(routes), or nothing if it was met lately."""
        known = self._known.setdefault(node, [])
        for place, (other, rows) in enumerate(known):
            # A program that is only stamped anew, or armed otherwise, has the same routes.
            if other is program or (other.routes is program.routes and other.groups is program.groups):
                if place:
                    known.insert(0, known.pop(place))
                return rows
        rows = self._compile(
            node,
            {route.destination: route.group for route in program.routes},
            {group.id: group.members for group in program.groups},
        )
        known.insert(0, (program, rows))
        del known[_REMEMBERED_MAX:]
        return rows

    def table(self, node: int, table: Table) -> Rows:
        """Return *table* of the sender *node*, compiled. Cost: O(routes)."""
        numbers = {destination: id(members) for destination, members in table.items()}
        return self._compile(node, numbers, {id(members): members for members in table.values()})

    def _compile(
        self, node: int, chosen: Mapping[DestinationId, int], groups: Mapping[int, tuple[Member, ...]]
    ) -> Rows:
        wiring = self._wiring
        ports, first = wiring.local_port[node], int(wiring.start[node])
        bit_of = wiring.bit
        columns_of = dict.fromkeys(groups, 0)
        own: dict[int, OwnRoute] = {}
        delivered: list[int] = []
        for destination, number in chosen.items():
            bit = bit_of.get(destination)
            if bit is not None:
                columns_of[number] |= bit
            elif is_endpoint(destination) and destination in wiring.endpoint:
                endpoint = wiring.endpoint[destination]
                members = groups[number]
                route = own[endpoint] = OwnRoute(
                    tuple(sorted({ports[member.port] for member in members if member.port in ports})),
                    tuple(sorted({member.port for member in members if member.port not in ports})),
                )
                owner = wiring.owner[endpoint]
                leads_to = {int(wiring.target[first + end]) for end in route.ends}
                if leads_to == {int(owner)} and not route.unknown:
                    delivered.append(endpoint)
        routed = 0
        for columns in columns_of.values():
            routed |= columns
        if EVERYTHING in chosen:
            columns_of[chosen[EVERYTHING]] |= wiring.all_columns & ~routed
            routed = wiring.all_columns
        by_end = [0] * len(ports)
        unknown: dict[str, int] = {}
        filled = 0
        for number, columns in columns_of.items():
            members = groups[number] if columns else ()
            if members:
                filled |= columns
            for member in members:
                end = ports.get(member.port)
                if end is None:
                    unknown[member.port] = unknown.get(member.port, 0) | columns
                else:
                    by_end[end] |= columns
        size = wiring.word_count * 8
        rows = np.frombuffer(b"".join([columns.to_bytes(size, "little") for columns in by_end]), dtype="<u8")
        rows = rows.astype(np.uint64, copy=False).reshape(len(ports), wiring.word_count)
        unrouted = as_words(wiring.all_columns & ~routed, wiring.word_count)
        unfilled = as_words(routed & ~filled, wiring.word_count)
        return Rows(rows, unknown, routed, filled, unrouted, unfilled, own, frozenset(delivered))


def as_words(columns: int, words: int) -> Words:
    """Return the set that the integer *columns* stands for."""
    return np.frombuffer(columns.to_bytes(words * 8, "little"), dtype="<u8").astype(np.uint64, copy=False)


@dataclass(slots=True)
class Plane:
    """
    Up to 64 destinations of a mixture: one word for each link-end or node.

    Args:
        names: The destinations, by bit.
        columns: All of them.
        members: Per link-end: towards which it is a next hop, under some table of its node.
        lost: Per node: for which some table names a port without a cable.
        arrived: Per node: which have arrived there, under some table.
        dead: Per node: for which some table has no next hop though they have not arrived. Endpoints are never dead.
        accepts: Per node: which it may be handed without losing them.
        sends: Per node: which it is a source of.
        cut_off: Those that nobody can reach: endpoints without a working link.
    """

    names: tuple[DestinationId, ...]
    columns: np.uint64
    members: Words
    lost: Words
    arrived: Words
    dead: Words
    accepts: Words
    sends: Words
    cut_off: np.uint64

    def only(self, columns: np.uint64) -> "Plane":
        """Return this plane without all other columns."""
        return Plane(
            self.names,
            self.columns & columns,
            self.members & columns,
            self.lost & columns,
            self.arrived & columns,
            self.dead & columns,
            self.accepts & columns,
            self.sends & columns,
            self.cut_off & columns,
        )


@dataclass
class Mixture:
    """
    What every node may do: one table a node is a forwarding state, several are all the states they can be combined to.

    Cost: replacing a node's tables is O(its link-ends x classes / 64).
    """

    wiring: Wiring
    tables: dict[int, tuple[Rows, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wiring = self.wiring
        shape = (wiring.word_count, len(wiring.nodes))
        self._full = as_words(wiring.all_columns, wiring.word_count)
        self._members: Words = np.zeros((wiring.word_count, len(wiring.source)), dtype=np.uint64)
        self._lost: Words = np.zeros(shape, dtype=np.uint64)
        self._arrived: Words = np.zeros(shape, dtype=np.uint64)
        self._dead: Words = np.where(wiring.is_transit[None, :], self._full[:, None], NONE)
        self._delivers: Bits = np.zeros(len(wiring.delivery_endpoint), dtype=np.bool_)
        self._straying: dict[int, frozenset[int]] = {}

    def put(self, node: int, tables: tuple[Rows, ...]) -> None:
        """Let *node* have one of these *tables*, at least one; `NO_TABLE` may be among them."""
        before = self.tables.get(node, (NO_TABLE,))
        if len(before) == len(tables) and all(one is other for one, other in zip(before, tables, strict=True)):
            return
        wiring = self.wiring
        ends = slice(wiring.start[node], wiring.start[node + 1])
        known = [table for table in tables if table is not NO_TABLE]
        self._members[:, ends] = 0
        self._lost[:, node] = 0
        unrouted: Words = np.zeros(wiring.word_count, dtype=np.uint64)
        unfilled: Words = np.zeros(wiring.word_count, dtype=np.uint64)
        for table in known:
            self._members[:, ends] |= table.rows.T
            unrouted, unfilled = unrouted | table.unrouted, unfilled | table.unfilled
            for columns in table.unknown.values():
                self._lost[:, node] |= as_words(columns, wiring.word_count)
        if wiring.is_transit[node]:
            attached = wiring.attached[node]
            self._arrived[:, node] = unrouted & attached
            self._dead[:, node] = unfilled | (unrouted & ~attached) if len(known) == len(tables) else self._full
        delivered_before = frozenset.intersection(*(table.delivered for table in before))
        delivered = frozenset.intersection(*(table.delivered for table in tables))
        if delivered != delivered_before:
            self._note_deliveries(node, delivered_before - delivered, is_delivered=False)
            self._note_deliveries(node, delivered - delivered_before, is_delivered=True)
        self.tables[node] = tables
        straying = frozenset(endpoint for table in known for endpoint in table.own.keys() - table.delivered)
        if straying:
            self._straying[node] = straying
        else:
            self._straying.pop(node, None)

    def _note_deliveries(self, node: int, endpoints: Iterable[int], *, is_delivered: bool) -> None:
        for endpoint in endpoints:
            place = self.wiring.delivery_place.get((node, endpoint))
            if place is not None:
                self._delivers[place] = is_delivered

    def planes(self, works: Words, chosen: Words, apart: Sequence[int] = ()) -> list[Plane]:
        """
        Return the planes of the *chosen* classes, then those of the endpoints *apart*.

        Args:
            works: Per link-end: full or empty.
            chosen: A set of classes.
            apart: Endpoints, rising.
        """
        wiring = self.wiring
        is_source = wiring.is_attaching.copy()
        is_source[
            [node for node, tables in self.tables.items() if wiring.is_multi_homed[node] and tables[0] is not NO_TABLE]
        ] = True
        found = []
        for word in np.flatnonzero(chosen):
            names = wiring.classes[word * WORD_BITS : (word + 1) * WORD_BITS]
            columns = chosen[word]
            found.append(
                Plane(
                    names,
                    columns,
                    self._members[word] & columns,
                    self._lost[word] & columns,
                    self._arrived[word] & columns,
                    self._dead[word] & columns,
                    np.where(wiring.is_transit, columns, NONE),
                    np.where(is_source, columns, NONE),
                    NONE,
                )
            )
        blocks = range(0, len(apart), WORD_BITS)
        return found + [self._apart(works, apart[first : first + WORD_BITS], is_source) for first in blocks]

    def straying(self, works: Words) -> list[int]:
        """Return the endpoints of which their class does not tell the whole story, rising: some node may route them apart, or not deliver."""
        wiring = self.wiring
        count = len(wiring.endpoints)
        is_apart = np.zeros(count, dtype=np.bool_)
        undelivered = np.asarray(wiring.delivery_endpoint, dtype=np.int64)[~self._delivers]
        is_apart[undelivered] = True
        for endpoints in self._straying.values():
            is_apart[list(endpoints)] = True
        broken = np.flatnonzero((works == NONE) & (wiring.endpoint_at[wiring.target] >= 0))
        for end in broken.tolist():
            node, endpoint = int(wiring.source[end]), int(wiring.endpoint_at[wiring.target[end]])
            local = end - int(wiring.start[node])
            for table in self.tables.get(node, ()):
                route = table.own.get(endpoint)
                if route is not None and local in route.ends:
                    is_apart[endpoint] = True
        return [int(endpoint) for endpoint in np.flatnonzero(is_apart)]

    def _apart(self, works: Words, endpoints: Sequence[int], is_source: Bits) -> Plane:
        wiring = self.wiring
        count = len(endpoints)
        columns = np.uint64((1 << count) - 1)
        members = np.zeros(len(wiring.source), dtype=np.uint64)
        lost, arrived, dead = (np.zeros(len(wiring.nodes), dtype=np.uint64) for _ in range(3))
        accepts = np.where(wiring.is_transit, columns, NONE)
        sends = np.where(is_source, columns, NONE)
        cut_off = NONE
        place_of = {endpoint: place for place, endpoint in enumerate(endpoints)}
        apart: list[set[int]] = [set() for _ in endpoints]
        wanted = frozenset(endpoints)
        for node, straying in self._straying.items():
            for endpoint in straying & wanted:
                apart[place_of[endpoint]].add(node)
        for place, endpoint in enumerate(endpoints):
            column, owner = int(wiring.class_column[endpoint]), int(wiring.owner[endpoint])
            word, shift, bit = column // WORD_BITS, np.uint64(column % WORD_BITS), np.uint64(1 << place)
            one = np.uint64(1)
            up = np.uint64(place)
            members |= ((self._members[word] >> shift) & one) << up
            lost |= ((self._lost[word] >> shift) & one) << up
            dead |= (((self._dead[word] | self._arrived[word]) >> shift) & one) << up
            arrived[owner] |= bit
            accepts[owner] |= bit
            sends[owner] &= ~bit
            for node in {*apart[place], *wiring.attachments[column]}:
                self._route_apart(node, endpoint, column, bit, members, lost, dead)
            start, stop = wiring.start[owner], wiring.start[owner + 1]
            members[start:stop] &= ~bit
            lost[owner] &= ~bit
            access = (wiring.target == owner) & wiring.is_transit[wiring.source]
            if not works[access].any():
                cut_off |= bit
        names = tuple(wiring.destinations[endpoint] for endpoint in endpoints)
        return Plane(names, columns, members, lost, arrived, dead, accepts, sends, cut_off)

    def _route_apart(
        self, node: int, endpoint: int, column: int, bit: np.uint64, members: Words, lost: Words, dead: Words
    ) -> None:
        """Write the routes of *node* to *endpoint* into the words, where some table has one of its own."""
        tables = self.tables.get(node, ())
        if not any(endpoint in table.own for table in tables):
            return
        wiring = self.wiring
        start, stop = int(wiring.start[node]), int(wiring.start[node + 1])
        members[start:stop] &= ~bit
        lost[node] &= ~bit
        dead[node] &= ~bit
        for table in tables:
            route = table.own.get(endpoint)
            if table is NO_TABLE:
                is_empty = True
            elif route is None:
                shift = np.uint64(column % WORD_BITS)
                inherited = (table.rows[:, column // WORD_BITS] >> shift) & np.uint64(1)
                members[start:stop] |= inherited * bit
                if any(columns >> column & 1 for columns in table.unknown.values()):
                    lost[node] |= bit
                is_empty = not table.filled >> column & 1
            else:
                members[[start + end for end in route.ends]] |= bit
                if route.unknown:
                    lost[node] |= bit
                is_empty = not route.ends and not route.unknown
            if is_empty and wiring.is_transit[node]:
                dead[node] |= bit

    def unknown_ports(self, node: int, destination: DestinationId) -> tuple[str, ...]:
        """Return the ports without a cable by which some table of *node* sends *destination*."""
        wiring = self.wiring
        endpoint = wiring.endpoint.get(destination)
        column = int(wiring.class_column[endpoint]) if endpoint is not None else wiring.column[destination]
        found: set[str] = set()
        for table in self.tables.get(node, ()):
            route = table.own.get(endpoint) if endpoint is not None else None
            if route is not None:
                found.update(route.unknown)
            else:
                found.update(port for port, columns in table.unknown.items() if columns >> column & 1)
        return tuple(sorted(found))
