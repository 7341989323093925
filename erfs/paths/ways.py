"""Where each node sends what, as ports: the arrays read back, before there are groups and messages.

Rule 1: a switch has one way per class attached elsewhere, one per own endpoint, and one per stray endpoint that leaves its class.
Rule 2: a destination without a permitted path has no way, except where a wider one would carry it astray: that one is empty.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from erfs.ids import EVERYTHING, DestinationId, NodeId
from erfs.paths.backups import backup_ports
from erfs.paths.bits import unpacked
from erfs.paths.situation import Situation


class Way(NamedTuple):
    """Where one destination goes: the route before groups are numbered."""

    destination: DestinationId
    ports: tuple[str, ...]
    has_detour: bool = True
    weights: tuple[int, ...] = ()
    """One for each of *ports*; none if they share equally."""
    backup: tuple[str, ...] = ()
    """Ports to send by once the only link of *ports* is lost."""


def transit_ways(situation: Situation, node: int, *, has_backups: bool = False) -> Iterable[Way]:
    """
    Yield a switch's routes towards what is attached elsewhere: by class, and by endpoint where a stray one goes another way.

    Args:
        situation, node: Which switch of which situation.
        has_backups: Give each way its backup. Whoever may be sent what others could not deliver must say when it can't either.
    """
    mesh, targets = situation.mesh, situation.targets
    start, stop = mesh.source_start[node], mesh.source_start[node + 1]
    ports_by_row = situation.topology.end_port[start:stop]
    chosen = np.packbits(unpacked(situation.hops.members[start:stop], len(targets)), axis=0).T
    has_detour = situation.has_detour(node)
    backups: Sequence[tuple[str, ...]] = [()] * len(targets)
    if has_backups:
        has_detour = has_detour | unpacked(situation.has_choice[node : node + 1], len(targets))[0]
        backups = backup_ports(situation, node)
    detours = has_detour.tolist()
    ports_of: dict[bytes, tuple[str, ...]] = {}
    columns: list[tuple[str, ...]] = []
    for row in chosen:
        key = row.tobytes()
        ports = ports_of.get(key)
        if ports is None:
            marks = np.unpackbits(row, count=len(ports_by_row)).tolist()
            ports = ports_of[key] = tuple(sorted(port for port, mark in zip(ports_by_row, marks, strict=True) if mark))
        columns.append(ports)
    weights_of = _weights_by_port(situation, node, ports_by_row)
    for column, (target, ports, backup) in enumerate(zip(targets, columns, backups, strict=True)):
        of_class = target.class_column
        if not target.strays:
            if ports:
                yield Way(target.destinations[0], ports, detours[column], weights_of.get(column, ()), backup)
        elif node in target.attachments:
            continue
        elif (ports, backup) != (columns[of_class], backups[of_class]) or (
            node in targets[of_class].attachments and ports
        ):
            # Nothing permitted leads to the stray endpoint: say so, else its class's route would carry it into a valley.
            for destination in target.destinations:
                yield Way(destination, ports, detours[column] and bool(ports), weights_of.get(column, ()), backup)


def _weights_by_port(situation: Situation, node: int, ports: Sequence[str]) -> dict[int, tuple[int, ...]]:
    """Return, for each target that *node* shares unequally, the weights of its next hops in the order of their ports."""
    columns, weights = situation.sharing.weights.of_node(node)
    if not len(columns):
        return {}
    by_port = sorted(range(len(ports)), key=ports.__getitem__)
    found: dict[int, tuple[int, ...]] = {}
    known: dict[bytes, tuple[int, ...]] = {}
    for column, row in zip(columns.tolist(), weights, strict=True):
        key = row.tobytes()
        if key not in known:
            known[key] = tuple(weight for weight in row[by_port].tolist() if weight)
        found[column] = known[key]
    return found


def delivery_ways(situation: Situation, switch: int) -> Iterable[Way]:
    """Yield a switch's routes to its own endpoints."""
    topology = situation.topology
    detours = situation.has_detour(switch)
    for endpoint in topology.endpoints_at.get(switch, ()):
        ports = tuple(sorted(access.switch_port for access in situation.access[endpoint] if access.switch == switch))
        if ports:
            has_detour = bool(detours[situation.column_of(endpoint)])
            yield Way(topology.fabric.destination_of[endpoint], ports, has_detour)


def endpoint_ways(situation: Situation, endpoint: NodeId) -> list[Way]:
    """
    Return an endpoint's own routes.

    One attachment as built: everything by all its links. Several: by class, so that it leaves by the nearest. An endpoint with no
    usable link keeps all of them in its one route: nothing is lost by trying.
    """
    topology = situation.topology
    usable = situation.access[endpoint]
    source = situation.source_of.get(endpoint)
    if source is None:
        ports = tuple(sorted(access.port for access in usable or topology.access[endpoint]))
        return [Way(EVERYTHING, ports, has_detour=False)]
    mesh = situation.mesh
    node = mesh.transit_count + source
    start, stop = mesh.source_start[node], mesh.source_start[node + 1]
    rows = mesh.target[start:stop].tolist()
    chosen = unpacked(situation.hops.members[start:stop], len(situation.targets)).T.tolist()
    # Parallel links to one switch have its weight each: what they carry differs from others' by their number.
    by_port = sorted((access.port, rows.index(access.switch)) for access in usable)
    unequal, weight = situation.sharing.weights.of_node(node)
    weights_of = {
        column: tuple(row[place] for _, place in by_port if row[place])
        for column, row in zip(unequal.tolist(), weight.tolist(), strict=True)
    }
    ways: list[Way] = []
    ports_of: dict[tuple[bool, ...], tuple[str, ...]] = {}
    for column, (target, row) in enumerate(zip(situation.targets, chosen, strict=True)):
        key = tuple(row)
        if key not in ports_of:
            switches = {switch for switch, mark in zip(rows, row, strict=True) if mark}
            ports_of[key] = tuple(sorted(access.port for access in usable if access.switch in switches))
        ports = ports_of[key]
        if not target.strays:
            if ports:
                weights = weights_of.get(column, ())
                ways.append(Way(target.destinations[0], ports, has_detour=False, weights=weights))
        elif row != chosen[target.class_column]:
            ways += [
                Way(destination, ports, has_detour=False, weights=weights_of.get(column, ()))
                for destination, stray in zip(target.destinations, target.strays, strict=True)
                if stray != endpoint
            ]
    return ways
