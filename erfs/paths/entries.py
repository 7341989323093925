"""From the rows of an armory to the armed entries of each node.

Rule 1: a node's entries depend on its rows, its ports and the failures they name alone; where these came out equal last time, so do the entries.
Rule 2: nothing here decides what to change.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from erfs.ids import DestinationId, NodeId
from erfs.messages import ArmedEntry
from erfs.paths.bits import Indices
from erfs.paths.mint import Changes, Mint, Witnesses
from erfs.paths.protection import Armory, Failure, Kind, Rows
from erfs.paths.situation import Situation
from erfs.paths.topology import Access


class Armed(NamedTuple):
    """One node's entries in canonical order, and the canonical JSON of each."""

    entries: tuple[ArmedEntry, ...]
    texts: list[str]


class _Case(NamedTuple):
    """A failure as a program names it. *only* is the one endpoint destination it is about, if it is not about all targets."""

    kind: Literal["link", "node"]
    id: str
    witnesses: Witnesses
    tail: str
    only: DestinationId | None = None


class _Stamped(NamedTuple):
    """An entry and its canonical JSON."""

    entry: ArmedEntry
    text: str


class _Part(NamedTuple):
    """One step of a change: drop (or add) *ports* for the targets of set *targets*."""

    is_add: bool
    ports: tuple[str, ...]
    targets: int


class Armourer:
    """Makes the entries of one node after the other."""

    def __init__(self, situation: Situation, armory: Armory, mint: Mint) -> None:
        self._situation = situation
        self._armory = armory
        self._mint = mint
        self._cases: dict[int, tuple[_Case, ...]] = {}
        self._changes: dict[tuple[DestinationId | None, tuple[_Part, ...]], Changes] = {}
        self._stamped: dict[tuple[int, int | tuple[int, ...]], tuple[_Stamped, ...]] = {}
        # Failures come in canonical order, but a template stands for many links with names of their own.
        self._has_templates = any(failure.kind in (Kind.SOURCE, Kind.DELIVERY) for failure in armory.failures)
        self._links_to: dict[NodeId, dict[int, tuple[Access, ...]]] = {}
        self._number_rows()

    def _number_rows(self) -> None:
        situation, armory = self._situation, self._armory
        mesh = situation.mesh
        rows = Rows(*(np.concatenate(pair) for pair in zip(armory.drops, armory.adds, strict=True)))
        is_add = np.repeat([False, True], [len(armory.drops.failure), len(armory.adds.failure)])
        # Ports of one name share their number, so that switches wired alike share their changes.
        names = [situation.topology.end_port[end] for end in situation.trunk_ends]
        self._names = sorted(set(names))
        number_of = {name: number for number, name in enumerate(self._names)}
        place = np.array([*(number_of[name] for name in names), *range(len(names), len(mesh.source))], dtype=np.int64)
        self._sets, set_of_row = _distinct(rows)
        rank = np.array(_ranks(situation, armory.failures), dtype=np.int64)
        node = mesh.source[rows.place]
        order = np.lexsort((rows.place, is_add, rank[rows.failure], node))
        self._place_count = max(len(mesh.source), len(self._names))
        code = (is_add * self._place_count + place[rows.place]) * max(1, len(self._sets)) + set_of_row
        self._codes: list[int] = code[order].tolist()
        node, failure = node[order], rows.failure[order]
        self._rows_of_node = np.searchsorted(node, np.arange(mesh.node_count + 1))
        # Numbers that mean the same in every situation of this topology, whatever is unusable.
        ends = len(situation.topology.end_port) + np.arange(len(mesh.source), dtype=np.int64)
        ends[: len(situation.trunk_ends)] = situation.trunk_ends
        lasting = np.array([_lasting(situation, failure) for failure in armory.failures], dtype=np.int64)
        self._fingerprints = (
            lasting[failure],
            np.where(is_add[order], -1, 1) * (1 + ends[rows.place[order]]),
            rows.targets[order],
        )
        is_first = (np.diff(node, prepend=-1) != 0) | (np.diff(failure, prepend=-1) != 0)
        starts = np.flatnonzero(is_first)
        self._starts: list[int] = [*starts.tolist(), len(node)]
        self._failures: list[int] = failure[starts].tolist()
        self._first_of_node = np.searchsorted(node[starts], np.arange(mesh.node_count + 1))

    def fingerprint(self, switch: int) -> tuple[object, ...]:
        """Return what the entries of a switch depend on, apart from the targets themselves; equal fingerprints, equal entries."""
        situation = self._situation
        topology = situation.topology
        start, stop = self._rows_of_node[switch], self._rows_of_node[switch + 1]
        failures = self._fingerprints[0][start:stop]
        # A switch with unusable links has fewer witnesses.
        lame = situation.lame_switches
        dying = set((failures - len(topology.trunks)).tolist()) if lame else set[int]()
        return (
            *(part[start:stop].tobytes() for part in self._fingerprints),
            tuple((node, lame[node]) for node in sorted(dying & lame.keys())),
        )

    def of_switch(self, switch: int) -> Armed:
        """Return the entries of a switch."""
        found: list[_Stamped] = []
        codes, starts, known = self._codes, self._starts, self._stamped
        for at in range(self._first_of_node[switch], self._first_of_node[switch + 1]):
            failure, start, stop = self._failures[at], starts[at], starts[at + 1]
            key = codes[start] if stop - start == 1 else tuple(codes[start:stop])
            made = known.get((failure, key))
            if made is None:
                parts = self._parts(key, None)
                made = known[failure, key] = tuple(
                    self._stamp(case, self._changes_for(parts, case.only)) for case in self._cases_of(failure)
                )
            found += made
        return self._armed(found)

    def of_endpoint(self, endpoint: NodeId) -> Armed:
        """Return the entries of an endpoint with several attachments; it has none about its own reachability."""
        situation = self._situation
        source = situation.source_of.get(endpoint)
        if source is None:
            return Armed((), [])
        node = situation.mesh.transit_count + source
        itself = situation.topology.fabric.destination_of[endpoint]
        found: list[_Stamped] = []
        for at in range(self._first_of_node[node], self._first_of_node[node + 1]):
            failure, start, stop = self._failures[at], self._starts[at], self._starts[at + 1]
            parts = self._parts(tuple(self._codes[start:stop]), endpoint)
            gone = self._armory.failures[failure]
            if gone.kind is Kind.SOURCE:
                links = self._access_by_switch(endpoint)[int(situation.mesh.target[gone.subject])]
                cases = self._access_cases(endpoint, links, None)
            else:
                cases = self._cases_of(failure)
            found += [self._stamp(case, self._changes_for(parts, case.only)) for case in cases if case.only != itself]
        return self._armed(found)

    @staticmethod
    def _stamp(case: _Case, changes: Changes) -> "_Stamped":
        entry = ArmedEntry(
            failure_kind=case.kind, failure=case.id, witnesses=case.witnesses.value, changes=changes.value
        )
        return _Stamped(entry, f'{{"changes":{changes.text}{case.tail}')

    def _armed(self, found: list["_Stamped"]) -> Armed:
        if self._has_templates:
            found.sort(key=lambda stamped: (stamped.entry.failure_kind, stamped.entry.failure))
        return Armed(tuple([stamped.entry for stamped in found]), [stamped.text for stamped in found])

    # --- failures ----------------------------------------------------------------------------------------------------
    def _cases_of(self, number: int) -> tuple[_Case, ...]:
        found = self._cases.get(number)
        if found is None:
            found = self._cases[number] = tuple(self._make_cases(self._armory.failures[number]))
        return found

    def _make_cases(self, failure: Failure) -> Iterator[_Case]:
        situation = self._situation
        topology = situation.topology
        match failure.kind:
            case Kind.TRUNK:
                link = topology.trunks[failure.subject]
                ends = [(link.id, link.a.node), (link.id, link.b.node)]
                yield self._case("link", link.id, self._mint.witnesses(ends))
            case Kind.NODE:
                node = topology.switches[failure.subject]
                pairs = [pair for pair in topology.witnesses_of[node] if pair[0] not in situation.unusable]
                # An entry of a node needs two reporters; with one, its one link's entry is all there is to say.
                if len({reporter for _, reporter in pairs}) > 1:
                    yield self._case("node", node, self._mint.witnesses(pairs))
            case Kind.DELIVERY:
                for endpoint in situation.endpoints_of(failure.subject):
                    links = self._access_by_switch(endpoint)[failure.switch]
                    yield from self._access_cases(endpoint, links, topology.fabric.destination_of[endpoint])
            case Kind.SOURCE:
                raise AssertionError("only the endpoint itself is armed for its own access link")

    def _access_cases(
        self, endpoint: NodeId, links: tuple[Access, ...], only: DestinationId | None
    ) -> tuple[_Case, ...]:
        """Return the failure of the only link of *endpoint* to a switch; of several parallel ones none matters."""
        if len(links) > 1:
            return ()
        link, switch = links[0].link, self._situation.topology.switches[links[0].switch]
        return (self._case("link", link, self._mint.witnesses(sorted([(link, endpoint), (link, switch)])), only),)

    def _case(
        self, kind: Literal["link", "node"], name: str, witnesses: Witnesses, only: DestinationId | None = None
    ) -> _Case:
        tail = f',"failure":{self._mint.quoted(name)},"failure_kind":"{kind}","witnesses":{witnesses.text}}}'
        return _Case(kind, name, witnesses, tail, only)

    def _access_by_switch(self, endpoint: NodeId) -> dict[int, tuple[Access, ...]]:
        """Return the usable access links of *endpoint* by the switch they lead to."""
        found = self._links_to.get(endpoint)
        if found is None:
            found = self._links_to[endpoint] = {}
            for access in self._situation.access[endpoint]:
                found[access.switch] = (*found.get(access.switch, ()), access)
        return found

    # --- changes -----------------------------------------------------------------------------------------------------
    def _parts(self, key: int | tuple[int, ...], endpoint: NodeId | None) -> tuple[_Part, ...]:
        """Return the steps that row codes stand for, at a switch or at *endpoint*."""
        parts: list[_Part] = []
        for code in (key,) if isinstance(key, int) else key:
            step, targets = divmod(code, len(self._sets))
            is_add, place = divmod(step, self._place_count)
            if endpoint is None:
                ports: tuple[str, ...] = (self._names[place],)
            else:
                links = self._access_by_switch(endpoint)[int(self._situation.mesh.target[place])]
                ports = tuple(access.port for access in links)
            parts.append(_Part(bool(is_add), ports, targets))
        return tuple(parts)

    def _changes_for(self, parts: tuple[_Part, ...], only: DestinationId | None) -> Changes:
        """Return the changes: one for each set of destinations that drop and add the same ports."""
        found = self._changes.get((only, parts))
        if found is None:
            found = self._changes[only, parts] = self._mint.changes(sorted(self._merged(parts, only)))
        return found

    def _merged(
        self, parts: tuple[_Part, ...], only: DestinationId | None
    ) -> Iterator[tuple[tuple[DestinationId, ...], tuple[str, ...], tuple[str, ...]]]:
        if only is not None or len({part.targets for part in parts}) == 1:
            destinations = (only,) if only is not None else self._destinations(self._columns(parts[0].targets))
            drop = sorted(port for part in parts if not part.is_add for port in part.ports)
            add = sorted(port for part in parts if part.is_add for port in part.ports)
            yield destinations, tuple(drop), tuple(add)
            return
        by_column: dict[int, list[_Part]] = {}
        for part in parts:
            for column in self._columns(part.targets):
                by_column.setdefault(column, []).append(part)
        columns_of: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]] = {}
        for column, steps in by_column.items():
            drop = sorted(port for part in steps if not part.is_add for port in part.ports)
            add = sorted(port for part in steps if part.is_add for port in part.ports)
            columns_of.setdefault((tuple(drop), tuple(add)), []).append(column)
        for (dropped, added), columns in columns_of.items():
            yield self._destinations(columns), dropped, added

    def _destinations(self, columns: list[int]) -> tuple[DestinationId, ...]:
        targets = self._situation.targets
        return tuple(sorted(name for column in columns for name in targets[column].destinations))

    def _columns(self, number: int) -> list[int]:
        bits = np.unpackbits(np.frombuffer(self._sets[number], dtype=np.uint8))
        columns: list[int] = np.flatnonzero(bits).tolist()
        return columns


def _distinct(rows: Rows) -> tuple[list[bytes], Indices]:
    """Return the different sets of targets, and which one each row has."""
    if not len(rows.failure):
        return [], np.zeros(0, dtype=np.int64)
    width = rows.targets.shape[1] * 8
    whole = np.ascontiguousarray(rows.targets).view(np.dtype((np.void, width))).ravel()
    distinct, number = np.unique(whole, return_inverse=True)
    return [row.tobytes() for row in distinct], number.astype(np.int64).ravel()


def _lasting(situation: Situation, failure: Failure) -> int:
    """Return a number for *failure* that does not depend on what is unusable."""
    trunk_count, switch_count = len(situation.topology.trunks), len(situation.topology.switches)
    match failure.kind:
        case Kind.TRUNK:
            return failure.subject
        case Kind.NODE:
            return trunk_count + failure.subject
        case Kind.SOURCE:
            return -1 - failure.subject
        case Kind.DELIVERY:
            return trunk_count + switch_count * (1 + failure.subject) + failure.switch


def _ranks(situation: Situation, failures: tuple[Failure, ...]) -> list[int]:
    """Return the place of each failure in canonical order: links before nodes, by name; templates last, in order."""
    topology = situation.topology

    def order(number: int) -> tuple[int, str, int]:
        failure = failures[number]
        if failure.kind is Kind.TRUNK:
            return 0, topology.trunks[failure.subject].id, number
        if failure.kind is Kind.NODE:
            return 1, topology.switches[failure.subject], number
        return 2, "", number

    ranks = [0] * len(failures)
    for rank, number in enumerate(sorted(range(len(failures)), key=order)):
        ranks[number] = rank
    return ranks
