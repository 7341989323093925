"""From arrays to messages: one program for each switch and each attached endpoint.

Rule 1: equal situations give byte-identical programs; whatever does not concern a node does not change its program.
Rule 2: no path is found or judged here.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from erfs.ids import EVERYTHING, DestinationId, LinkId, NodeId
from erfs.messages import (
    CANONICAL,
    CONTROLLER,
    ArmedEntry,
    Change,
    FactRef,
    Group,
    Member,
    PortBinding,
    Program,
    Route,
    Witness,
    canonical_digest,
    vouched,
)
from erfs.paths.protection import Armory, Failure, Kind, Unprotected, arm
from erfs.paths.situation import Situation
from erfs.paths.topology import Access, Topology


@dataclass(frozen=True)
class ProgramSet:
    """All programs of one situation, and what they do not protect."""

    programs: dict[NodeId, Program]
    unprotected: tuple[Unprotected, ...]


def compute(
    topology: Topology,
    *,
    unusable: frozenset[LinkId],
    facts: tuple[FactRef, ...] = (),
    is_protecting: bool = True,
) -> ProgramSet:
    """
    Return the program of every switch and every attached endpoint.

    Sender, epoch 0 and generation 1 are placeholders for the controller to restamp; the digest covers none of them.

    Args:
        topology: The fabric as built.
        unusable: Links that carry nothing now.
        facts: Down facts taken into account. A program lists those that could change what its node does: about its own links, or by
            a witness of an entry it is armed with. So a failure elsewhere leaves a program's digest alone.
        is_protecting: Whether to arm the programs for single failures.

    Cost: O(link-ends x destinations + armed changes).
    """
    situation = Situation(topology, unusable)
    mint = Mint()
    armory = arm(situation) if is_protecting else Armory()
    armed = _Armourer(situation, armory, mint).entries()
    programs: dict[NodeId, Program] = {}
    for node, routes in _all_routes(situation).items():
        programs[node] = _program(topology, node, routes, armed.get(node, ()), facts, mint)
    return ProgramSet({node: programs[node] for node in sorted(programs)}, armory.unprotected)


# --- routes ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Way:
    """Where one destination goes: the route before groups are numbered."""

    destination: DestinationId
    ports: tuple[str, ...]
    has_detour: bool = True


def _all_routes(situation: Situation) -> dict[NodeId, list[_Way]]:
    ways: dict[NodeId, list[_Way]] = {node: [] for node in situation.topology.switches}
    for index, node in enumerate(situation.topology.switches):
        ways[node] += _transit_ways(situation, index)
    for endpoint, links in situation.topology.access.items():
        for access, way in _delivery_ways(situation, endpoint, links):
            ways[situation.topology.switches[access.switch]].append(way)
        ways[endpoint] = _endpoint_ways(situation, endpoint)
    return ways


def _transit_ways(situation: Situation, node: int) -> Iterable[_Way]:
    """Yield a switch's routes towards what is attached elsewhere: by class, and by endpoint where a stray one goes another way."""
    mesh, targets = situation.mesh, situation.targets
    start, stop = mesh.source_start[node], mesh.source_start[node + 1]
    end_port, trunk_ends = situation.topology.end_port, situation.trunk_ends
    ports_by_row = [end_port[end] for end in trunk_ends[start:stop]]
    chosen = np.packbits(situation.hops.is_member[start:stop], axis=0).T
    detours = situation.has_detour[node].tolist()
    ports_of: dict[bytes, tuple[str, ...]] = {}
    columns: list[tuple[str, ...]] = []
    for row in chosen:
        key = row.tobytes()
        ports = ports_of.get(key)
        if ports is None:
            marks = np.unpackbits(row, count=len(ports_by_row)).tolist()
            ports = ports_of[key] = tuple(sorted(port for port, mark in zip(ports_by_row, marks, strict=True) if mark))
        columns.append(ports)
    for column, (target, ports) in enumerate(zip(targets, columns, strict=True)):
        if not target.strays:
            if ports:
                yield _Way(target.destinations[0], ports, detours[column])
        elif node in target.attachments:
            continue
        elif ports != columns[target.class_column] or (node in targets[target.class_column].attachments and ports):
            # Nothing permitted leads to the stray endpoint: say so, else its class's route would carry it into a valley.
            for destination in target.destinations:
                yield _Way(destination, ports, detours[column] and bool(ports))


def _delivery_ways(situation: Situation, endpoint: NodeId, links: Sequence[Access]) -> Iterable[tuple[Access, _Way]]:
    """Yield, for each switch the endpoint can be reached from, its own route there."""
    destination = situation.topology.fabric.destination_of[endpoint]
    column = situation.column_of(endpoint)
    for access in {access.switch: access for access in links}.values():
        ports = tuple(sorted(usable.switch_port for usable in situation.usable_access(endpoint, access.switch)))
        if ports:
            yield access, _Way(destination, ports, bool(situation.has_detour[access.switch, column]))


def _endpoint_ways(situation: Situation, endpoint: NodeId) -> list[_Way]:
    """
    Return an endpoint's own routes.

    One attachment as built: everything by all its links. Several: by class, so that it leaves by the nearest. An endpoint with no usable link keeps all of
    them in its one route: nothing is lost by trying.
    """
    topology = situation.topology
    usable = situation.access[endpoint]
    source = situation.source_of.get(endpoint)
    if source is None:
        ports = tuple(sorted(access.port for access in usable or topology.access[endpoint]))
        return [_Way(EVERYTHING, ports, has_detour=False)]
    mesh = situation.mesh
    node = mesh.transit_count + source
    start, stop = mesh.source_start[node], mesh.source_start[node + 1]
    rows = mesh.target[start:stop].tolist()
    chosen = situation.hops.is_member[start:stop].T.tolist()
    ways: list[_Way] = []
    ports_of: dict[tuple[bool, ...], tuple[str, ...]] = {}
    for target, row in zip(situation.targets, chosen, strict=True):
        key = tuple(row)
        if key not in ports_of:
            switches = {switch for switch, mark in zip(rows, row, strict=True) if mark}
            ports_of[key] = tuple(sorted(access.port for access in usable if access.switch in switches))
        ports = ports_of[key]
        if not target.strays:
            if ports:
                ways.append(_Way(target.destinations[0], ports, has_detour=False))
        elif row != chosen[target.class_column]:
            ways += [
                _Way(destination, ports, has_detour=False)
                for destination, stray in zip(target.destinations, target.strays, strict=True)
                if stray != endpoint
            ]
    return ways


# --- armed entries -----------------------------------------------------------------------------------------------------
_Entries = dict[NodeId, list[tuple[ArmedEntry, str]]]
_Witnesses = tuple[tuple[Witness, ...], str]


class _Case(NamedTuple):
    """A failure as a program names it. *only* is the one endpoint destination it is about, if it is not about all targets."""

    kind: Literal["link", "node"]
    id: str
    witnesses: _Witnesses
    only: DestinationId | None = None


class _Blank(NamedTuple):
    """One node's changes for one failure: what each set of targets drops and adds, by mesh link-end."""

    failure: int
    drops: tuple[tuple[int, bytes], ...]
    adds: tuple[tuple[int, bytes], ...]


class _Armourer:
    """Turns an armory into entries."""

    def __init__(self, situation: Situation, armory: Armory, mint: "Mint") -> None:
        self._situation = situation
        self._armory = armory
        self._mint = mint
        self._columns: dict[bytes, tuple[int, ...]] = {}
        self._changes: dict[tuple[object, ...], tuple[tuple[Change, ...], str]] = {}
        self._cases: dict[int, tuple[_Case, ...]] = {}
        self._links_to: dict[NodeId, dict[int, tuple[Access, ...]]] = {}

    def entries(self) -> _Entries:
        """Return each node's entries: links before nodes, by failure."""
        switches = self._situation.topology.switches
        found: _Entries = {}
        port_of = [self._situation.topology.end_port[end] for end in self._situation.trunk_ends]
        for node, blanks in self._blanks():
            if node < len(switches):
                found[switches[node]] = self._of_switch(blanks, port_of)
            else:
                for endpoint in self._situation.sources[node - len(switches)].endpoints:
                    found[endpoint] = self._of_endpoint(endpoint, blanks)
        for entries in found.values():
            entries.sort(key=lambda entry: (entry[0].failure_kind, entry[0].failure))
        return found

    def _blanks(self) -> Iterator[tuple[int, list[_Blank]]]:
        """Yield each node of the mesh that changes anything, with its changes in the order of the failures."""
        by_case: dict[tuple[int, int], tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]] = {}
        source = self._situation.mesh.source
        for which, rows in enumerate((self._armory.drops, self._armory.adds)):
            width = rows.targets.shape[1] * 8
            sets = rows.targets.tobytes()
            nodes = source[rows.place].tolist()
            places = rows.place.tolist()
            for at, (node, failure, place) in enumerate(zip(nodes, rows.failure.tolist(), places, strict=True)):
                case = by_case.get((node, failure))
                if case is None:
                    case = by_case[node, failure] = ([], [])
                case[which].append((place, sets[at * width : at * width + width]))
        blanks: dict[int, list[_Blank]] = {}
        for (node, failure), (drops, adds) in by_case.items():
            blanks.setdefault(node, []).append(_Blank(failure, tuple(drops), tuple(adds)))
        yield from sorted(blanks.items())

    # --- switches ----------------------------------------------------------------------------------------------------
    def _of_switch(self, blanks: list[_Blank], port_of: list[str]) -> list[tuple[ArmedEntry, str]]:
        entries: list[tuple[ArmedEntry, str]] = []
        for blank in blanks:
            drops: list[tuple[tuple[str, ...], bytes]] = [((port_of[end],), targets) for end, targets in blank.drops]
            adds: list[tuple[tuple[str, ...], bytes]] = [((port_of[end],), targets) for end, targets in blank.adds]
            entries += [
                self._mint.entry(case.kind, case.id, case.witnesses, self._changes_for(drops, adds, case.only))
                for case in self._cases_of(blank.failure)
            ]
        return entries

    # --- endpoints with several attachments --------------------------------------------------------------------------
    def _of_endpoint(self, endpoint: NodeId, blanks: list[_Blank]) -> list[tuple[ArmedEntry, str]]:
        switch_of = self._situation.mesh.target
        links_to = self._access_by_switch(endpoint)
        itself = self._situation.topology.fabric.destination_of[endpoint]

        def ports(end: int) -> tuple[str, ...]:
            return tuple(access.port for access in links_to[int(switch_of[end])])

        entries: list[tuple[ArmedEntry, str]] = []
        for blank in blanks:
            failure = self._armory.failures[blank.failure]
            if failure.kind is Kind.SOURCE:
                links = links_to[int(switch_of[failure.subject])]
                cases = self._access_cases(endpoint, links, None)
            else:
                cases = tuple(case for case in self._cases_of(blank.failure) if case.only != itself)
            if not cases:
                continue
            drops = [(ports(end), targets) for end, targets in blank.drops]
            adds = [(ports(end), targets) for end, targets in blank.adds]
            entries += [
                self._mint.entry(case.kind, case.id, case.witnesses, self._changes_for(drops, adds, case.only))
                for case in cases
            ]
        return entries

    def _access_by_switch(self, endpoint: NodeId) -> dict[int, tuple[Access, ...]]:
        found = self._links_to.get(endpoint)
        if found is None:
            found = self._links_to[endpoint] = {}
            for access in self._situation.access[endpoint]:
                found[access.switch] = (*found.get(access.switch, ()), access)
        return found

    # --- failures ----------------------------------------------------------------------------------------------------
    def _cases_of(self, number: int) -> tuple[_Case, ...]:
        found = self._cases.get(number)
        if found is None:
            found = self._cases[number] = tuple(self._make_cases(self._armory.failures[number]))
        return found

    def _make_cases(self, failure: Failure) -> Iterator[_Case]:
        situation, mint = self._situation, self._mint
        topology = situation.topology
        if failure.kind is Kind.TRUNK:
            link = topology.trunks[failure.subject]
            yield _Case("link", link.id, mint.witnesses([(link.id, link.a.node), (link.id, link.b.node)]))
        elif failure.kind is Kind.NODE:
            node = topology.switches[failure.subject]
            pairs = [pair for pair in topology.witnesses_of[node] if pair[0] not in situation.unusable]
            # An entry of a node needs two reporters; with one, its one link's entry is all there is to say.
            if len({reporter for _, reporter in pairs}) > 1:
                yield _Case("node", node, mint.witnesses(pairs))
        elif failure.kind is Kind.DELIVERY:
            for endpoint in situation.endpoints_of(failure.subject):
                links = self._access_by_switch(endpoint)[failure.switch]
                yield from self._access_cases(endpoint, links, topology.fabric.destination_of[endpoint])

    def _access_cases(
        self, endpoint: NodeId, links: tuple[Access, ...], only: DestinationId | None
    ) -> tuple[_Case, ...]:
        """Return the failure of the only link of *endpoint* to a switch; of several parallel ones none matters."""
        if len(links) > 1:
            return ()
        link, switch = links[0].link, self._situation.topology.switches[links[0].switch]
        ends = sorted([(link, endpoint), (link, switch)])
        return (_Case("link", link, self._mint.witnesses(ends), only),)

    # --- changes -----------------------------------------------------------------------------------------------------
    def _changes_for(
        self,
        drops: list[tuple[tuple[str, ...], bytes]],
        adds: list[tuple[tuple[str, ...], bytes]],
        only: DestinationId | None,
    ) -> tuple[tuple[Change, ...], str]:
        """Return the changes: one for each set of targets that drop and add the same ports."""
        key = (only, *drops, None, *adds)
        found = self._changes.get(key)
        if found is not None:
            return found
        if only is not None:
            merged = {(_flat(ports for ports, _ in drops), _flat(ports for ports, _ in adds)): [only]}
        else:
            by_column: dict[int, tuple[list[tuple[str, ...]], list[tuple[str, ...]]]] = {}
            for which, rows in enumerate((drops, adds)):
                for ports, targets in rows:
                    for column in self._columns_in(targets):
                        by_column.setdefault(column, ([], []))[which].append(ports)
            merged = {}
            for column, (dropped, added) in by_column.items():
                destinations = self._situation.targets[column].destinations
                merged.setdefault((_flat(dropped), _flat(added)), []).extend(destinations)
        minted = [
            self._mint.change(destinations, drop, add)
            for destinations, drop, add in sorted(
                (tuple(sorted(destinations)), drop, add) for (drop, add), destinations in merged.items()
            )
        ]
        text = "[" + ",".join([text for _, text in minted]) + "]"
        found = self._changes[key] = (tuple([change for change, _ in minted]), text)
        return found

    def _columns_in(self, targets: bytes) -> tuple[int, ...]:
        found = self._columns.get(targets)
        if found is None:
            bits = np.unpackbits(np.frombuffer(targets, dtype=np.uint8))
            found = self._columns[targets] = tuple(np.flatnonzero(bits).tolist())
        return found


def _flat(ports: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(sorted(port for group in ports for port in group))


# --- messages ----------------------------------------------------------------------------------------------------------
class Mint:
    """
    Makes the parts of programs, equal ones once, each with its canonical JSON: what a digest covers is put together, not dumped.

    A program of a large fabric has thousands of entries; dumping them to find the digest costs more than finding the paths.
    """

    def __init__(self) -> None:
        self._quoted: dict[str, str] = {}
        self._members: dict[tuple[str, ...], tuple[tuple[Member, ...], str]] = {}
        self._routes: dict[tuple[DestinationId, int, bool], tuple[Route, str]] = {}
        self._changes: dict[tuple[tuple[DestinationId, ...], tuple[str, ...], tuple[str, ...]], tuple[Change, str]] = {}

        self._entries: dict[tuple[str, str, str], tuple[ArmedEntry, str]] = {}

    def quoted(self, text: str) -> str:
        """Return *text* as a JSON string."""
        found = self._quoted.get(text)
        if found is None:
            found = self._quoted[text] = json.dumps(text)
        return found

    def list_of(self, texts: Iterable[str]) -> str:
        """Return a JSON list of strings."""
        return "[" + ",".join([self.quoted(text) for text in texts]) + "]"

    def members(self, ports: tuple[str, ...]) -> tuple[tuple[Member, ...], str]:
        """Return the members that send by *ports*."""
        found = self._members.get(ports)
        if found is None:
            texts = [f'{{"port":{self.quoted(port)},"weight":1}}' for port in ports]
            found = self._members[ports] = (tuple(Member(port=port) for port in ports), "[" + ",".join(texts) + "]")
        return found

    def route(self, destination: DestinationId, group: int, has_detour: bool) -> tuple[Route, str]:
        """Return a route."""
        key = destination, group, has_detour
        found = self._routes.get(key)
        if found is None:
            detour = "true" if has_detour else "false"
            text = f'{{"destination":{self.quoted(destination)},"group":{group},"has_detour":{detour}}}'
            found = self._routes[key] = (Route(destination=destination, group=group, has_detour=has_detour), text)
        return found

    def change(
        self, destinations: tuple[DestinationId, ...], drop: tuple[str, ...], add: tuple[str, ...]
    ) -> tuple[Change, str]:
        """Return a change."""
        key = destinations, drop, add
        found = self._changes.get(key)
        if found is None:
            added, added_text = self.members(add)
            text = f'{{"add":{added_text},"destinations":{self.list_of(destinations)},"drop":{self.list_of(drop)}}}'
            found = self._changes[key] = (Change(destinations=destinations, drop=drop, add=added), text)
        return found

    def witnesses(self, pairs: Sequence[tuple[LinkId, NodeId]]) -> tuple[tuple[Witness, ...], str]:
        """Return the witnesses (link, reporter) of a failure."""
        texts = [f'{{"link":{self.quoted(link)},"reporter":{self.quoted(reporter)}}}' for link, reporter in pairs]
        return tuple(Witness(link=link, reporter=reporter) for link, reporter in pairs), "[" + ",".join(texts) + "]"

    def entry(
        self,
        kind: Literal["link", "node"],
        failure: str,
        witnesses: tuple[tuple[Witness, ...], str],
        changes: tuple[tuple[Change, ...], str],
    ) -> tuple[ArmedEntry, str]:
        """Return an armed entry."""
        key = kind, failure, changes[1]
        found = self._entries.get(key)
        if found is None:
            text = (
                f'{{"changes":{changes[1]},"failure":{self.quoted(failure)},'
                f'"failure_kind":"{kind}","witnesses":{witnesses[1]}}}'
            )
            entry = ArmedEntry(failure_kind=kind, failure=failure, witnesses=witnesses[0], changes=changes[0])
            found = self._entries[key] = (entry, text)
        return found

    def bindings(self, ports: Sequence[PortBinding]) -> str:
        """Return the JSON of port bindings."""
        texts = [
            f'{{"far_end":{self.quoted(port.far_end)},"link":{self.quoted(port.link)},"port":{self.quoted(port.port)}}}'
            for port in ports
        ]
        return "[" + ",".join(texts) + "]"


def _program(
    topology: Topology,
    node: NodeId,
    ways: list[_Way],
    armed: Sequence[tuple[ArmedEntry, str]],
    facts: tuple[FactRef, ...],
    mint: Mint,
) -> Program:
    """Return the sealed program: groups numbered in the order of the routes that use them first."""
    bindings = topology.bindings[node]
    numbers: dict[tuple[str, ...], int] = {}
    routes: list[tuple[Route, str]] = []
    for way in sorted(ways, key=lambda way: way.destination):
        group = numbers.setdefault(way.ports, len(numbers))
        routes.append(mint.route(way.destination, group, way.has_detour))
    members = [mint.members(ports) for ports in numbers]
    computed_from = _concerning(facts, bindings, armed)
    content = ",".join(
        (
            '{"armed":[' + ",".join([text for _, text in armed]) + "]",
            '"computed_from":' + json.dumps([fact.model_dump() for fact in computed_from], **CANONICAL),
            '"groups":[' + ",".join([f'{{"id":{i},"members":{text}}}' for i, (_, text) in enumerate(members)]) + "]",
            '"node":' + mint.quoted(node),
            '"ports":' + mint.bindings(bindings),
            '"routes":[' + ",".join([text for _, text in routes]) + "]}",
        )
    )
    return vouched(
        Program(
            sender=CONTROLLER,
            node=node,
            generation=1,
            digest=canonical_digest(content),
            computed_from=computed_from,
            ports=bindings,
            groups=tuple(Group(id=i, members=group) for i, (group, _) in enumerate(members)),
            routes=tuple([route for route, _ in routes]),
            armed=tuple([entry for entry, _ in armed]),
        )
    )


def _concerning(
    facts: tuple[FactRef, ...], bindings: Sequence[PortBinding], armed: Sequence[tuple[ArmedEntry, str]]
) -> tuple[FactRef, ...]:
    if not facts:
        return ()
    links = {port.link for port in bindings}
    others = {(fact.link, fact.reporter) for fact in facts if fact.link not in links}
    heard = {
        (witness.link, witness.reporter)
        for entry, _ in (armed if others else ())
        for witness in entry.witnesses
        if (witness.link, witness.reporter) in others
    }
    return tuple(
        sorted(
            (fact for fact in facts if fact.link in links or (fact.link, fact.reporter) in heard),
            key=lambda fact: (fact.link, fact.reporter, fact.counter),
        )
    )
