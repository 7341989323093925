"""From arrays to messages: one program for each switch and each attached endpoint.

Rule 1: equal situations give byte-identical programs; whatever does not concern a node does not change its program.
Rule 2: no path is found or judged here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from erfs.ids import EVERYTHING, DestinationId, LinkId, NodeId
from erfs.messages import CONTROLLER, ArmedEntry, FactRef, PortBinding, Program, Route, canonical_digest
from erfs.paths.entries import Armed, Armourer
from erfs.paths.mint import Mint
from erfs.paths.protection import Unprotected, arm, nothing_armed
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
    armory = arm(situation) if is_protecting else nothing_armed(situation)
    armourer = Armourer(situation, armory, mint)
    programs: dict[NodeId, Program] = {}
    for node, ways in _all_ways(situation).items():
        switch = topology.switch_index.get(node)
        armed = armourer.of_endpoint(node) if switch is None else armourer.of_switch(switch)
        programs[node] = _program(topology, node, ways, armed, facts, mint)
    return ProgramSet({node: programs[node] for node in sorted(programs)}, armory.unprotected)


# --- routes ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Way:
    """Where one destination goes: the route before groups are numbered."""

    destination: DestinationId
    ports: tuple[str, ...]
    has_detour: bool = True


def _all_ways(situation: Situation) -> dict[NodeId, list[_Way]]:
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


# --- messages ----------------------------------------------------------------------------------------------------------
def _program(
    topology: Topology, node: NodeId, ways: list[_Way], armed: Armed, facts: tuple[FactRef, ...], mint: Mint
) -> Program:
    """Return the sealed program: groups numbered in the order of the routes that use them first."""
    bindings = topology.bindings[node]
    numbers: dict[tuple[str, ...], int] = {}
    routes: list[tuple[Route, str]] = []
    for way in sorted(ways, key=lambda way: way.destination):
        group = numbers.setdefault(way.ports, len(numbers))
        routes.append(mint.route(way.destination, group, way.has_detour))
    groups, groups_text = mint.groups(numbers)
    computed_from = _concerning(facts, bindings, armed.entries)
    content = "".join(
        [
            '{"armed":[',
            *armed.pieces,
            '],"computed_from":',
            mint.facts(computed_from),
            ',"groups":',
            groups_text,
            ',"node":',
            mint.quoted(node),
            ',"ports":',
            mint.bindings(bindings),
            ',"routes":[',
            ",".join([text for _, text in routes]),
            "]}",
        ]
    )
    digest = canonical_digest(content)
    program = Program(
        sender=CONTROLLER,
        node=node,
        generation=1,
        digest=digest,
        computed_from=computed_from,
        ports=bindings,
        groups=groups,
        routes=tuple([route for route, _ in routes]),
        armed=armed.entries,
    )
    # What `content_digest` would find by dumping the program; it looks whether the content is still this one.
    program.__dict__["content_and_digest"] = (program.content, digest)
    return program


def _concerning(
    facts: tuple[FactRef, ...], bindings: Sequence[PortBinding], armed: Sequence[ArmedEntry]
) -> tuple[FactRef, ...]:
    if not facts:
        return ()
    links = {port.link for port in bindings}
    others = {(fact.link, fact.reporter) for fact in facts if fact.link not in links}
    heard = {
        (witness.link, witness.reporter)
        for entry in (armed if others else ())
        for witness in entry.witnesses
        if (witness.link, witness.reporter) in others
    }
    return tuple(
        sorted(
            (fact for fact in facts if fact.link in links or (fact.link, fact.reporter) in heard),
            key=lambda fact: (fact.link, fact.reporter, fact.counter),
        )
    )
