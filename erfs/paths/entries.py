"""From the rows of an armory to what each node is armed for.

Rule 1: a node's entries depend on its rows, its ports and the failures they name alone.
Rule 2: nothing here decides what to change.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, TypeVar

import numpy as np

from erfs.ids import DestinationId, LinkId, NodeId, SrlgId
from erfs.messages import ChangeRef, SharedRisk
from erfs.paths.bits import Indices, Words
from erfs.paths.mint import Mint, Outfit
from erfs.paths.protection import Armory, Failure, Kind
from erfs.paths.situation import Situation
from erfs.paths.topology import Access

_T = TypeVar("_T")
_Kind = Literal["link", "node", "srlg"]
_KINDS: Final[tuple[_Kind, ...]] = ("link", "node", "srlg")


class _Case(NamedTuple):
    """
    A failure as a program names it.

    Args:
        label, tail: What its JSON begins and ends with.
        reporters: Who can testify to it.
        links: Of a shared-risk group: its usable links.
        ignored: Of a node: its links that are unusable already.
        only: The one endpoint destination it is about, if it is not about all targets.
    """

    kind: _Kind
    id: str
    label: str
    tail: str
    reporters: tuple[NodeId, ...]
    links: tuple[LinkId, ...] = ()
    ignored: tuple[LinkId, ...] = ()
    only: DestinationId | None = None


class _Numbering(dict[_T, int]):
    """Numbers for things as they come; *named* gives back the thing of each number."""

    def __init__(self) -> None:
        self.named: list[_T] = []

    def __missing__(self, thing: _T) -> int:
        number = self[thing] = len(self.named)
        self.named.append(thing)
        return number


class _Made(dict[int, tuple[_Case, ...]]):
    """What *make* makes of each number that is asked for."""

    def __init__(self, make: Callable[[int], tuple[_Case, ...]]) -> None:
        self._make = make

    def __missing__(self, number: int) -> tuple[_Case, ...]:
        found = self[number] = self._make(number)
        return found


# Of each change the numbers of its destinations and its step, in the armourer's own counting.
_Numbers = tuple[tuple[int, int], ...]


class _Part(NamedTuple):
    """One step of a change: drop (or add) *ports* for the targets of set *targets*."""

    is_add: bool
    ports: tuple[str, ...]
    targets: int


class Armourer:
    """
    Makes the entries of one node after the other.

    Args:
        situation, armory: Of one state.
        nodes: The mesh nodes that will be asked for, rising.
    """

    def __init__(self, situation: Situation, armory: Armory, nodes: Indices, mint: Mint) -> None:
        self._situation = situation
        self._armory = armory
        self._mint = mint
        self._cases = _Made(lambda number: tuple(self._make_cases(armory.failures[number])))
        self._changes: dict[tuple[DestinationId | None, tuple[_Part, ...]], _Numbers] = {}
        self._changes_of_code: dict[tuple[DestinationId | None, int | tuple[int, ...]], _Numbers] = {}
        self._destinations = _Numbering[tuple[DestinationId, ...]]()
        self._steps = _Numbering[tuple[tuple[str, ...], tuple[str, ...]]]()
        # Failures are numbered in canonical order, but a template stands for many links with names of their own.
        self._has_templates = any(failure.kind in (Kind.SOURCE, Kind.DELIVERY) for failure in armory.failures)
        self._links_to: dict[NodeId, dict[int, tuple[Access, ...]]] = {}
        self._number_rows(nodes)

    def _number_rows(self, nodes: Indices) -> None:
        situation = self._situation
        topology, mesh = situation.topology, situation.mesh
        rows = self._armory.rows(nodes)
        # Ports of one name share their number, so that switches wired alike share their changes.
        self._names = sorted(set(topology.end_port))
        number_of = {name: number for number, name in enumerate(self._names)}
        trunk_ends = [number_of[name] for name in topology.end_port]
        place = np.array([*trunk_ends, *range(len(trunk_ends), len(mesh))], dtype=np.int64)
        targets = rows.sets(len(situation.targets))
        first, set_of_row = _distinct(targets)
        begins = rows.starts
        self._columns: list[list[int]] = [rows.columns[begins[row] : begins[row + 1]].tolist() for row in first]
        self._place_count = max(len(mesh), len(self._names))
        code = (rows.is_add * self._place_count + place[rows.end]) * max(1, len(first)) + set_of_row
        self._codes: list[int] = code.tolist()
        is_first = (np.diff(rows.node, prepend=-1) != 0) | (np.diff(rows.failure, prepend=-1) != 0)
        starts = np.flatnonzero(is_first)
        self._starts: list[int] = [*starts.tolist(), len(rows)]
        self._failures: list[int] = rows.failure[starts].tolist()
        self._first_of_node = np.searchsorted(rows.node[starts], np.arange(mesh.node_count + 1))

    def of_switch(self, switch: int) -> Outfit:
        """Return what a switch is armed for."""
        found: list[tuple[_Case, _Numbers]] = []
        codes, starts, known, cases_of = self._codes, self._starts, self._changes_of_code, self._cases
        for at in range(self._first_of_node[switch], self._first_of_node[switch + 1]):
            start, stop = starts[at], starts[at + 1]
            key = codes[start] if stop - start == 1 else tuple(codes[start:stop])
            for case in cases_of[self._failures[at]]:
                changes = known.get((case.only, key))
                if changes is None:
                    changes = known[case.only, key] = self._changes_for(self._parts(key, None), case.only)
                found.append((case, changes))
        return self._outfit(self._situation.topology.switches[switch], found)

    def of_endpoint(self, endpoint: NodeId) -> Outfit:
        """Return what an endpoint with several attachments is armed for; nothing about its own reachability."""
        situation = self._situation
        source = situation.source_of.get(endpoint)
        if source is None:
            return self._nothing
        node = situation.mesh.transit_count + source
        itself = situation.topology.fabric.destination_of[endpoint]
        found: list[tuple[_Case, _Numbers]] = []
        for at in range(self._first_of_node[node], self._first_of_node[node + 1]):
            failure, start, stop = self._failures[at], self._starts[at], self._starts[at + 1]
            parts = self._parts(tuple(self._codes[start:stop]), endpoint)
            gone = self._armory.failures[failure]
            if gone.kind is Kind.SOURCE:
                links = self._access_by_switch(endpoint)[int(situation.mesh.target[gone.subject])]
                cases = self._access_cases(endpoint, links, None)
            else:
                cases = self._cases[failure]
            found += [(case, self._changes_for(parts, case.only)) for case in cases if case.only != itself]
        return self._outfit(endpoint, found)

    @cached_property
    def _nothing(self) -> Outfit:
        return self._outfit(NodeId(""), [])

    def _outfit(self, node: NodeId, found: list[tuple[_Case, _Numbers]]) -> Outfit:
        """Return the entries *found*, sets and steps numbered anew in the order of their first use."""
        if self._has_templates:
            found.sort(key=lambda item: (_KINDS.index(item[0].kind), item[0].id))
        sets, steps = _Numbering[int](), _Numbering[int]()
        refs_of = self._mint.refs
        refs: dict[_Kind, dict[Any, tuple[ChangeRef, ...]]] = {kind: {} for kind in _KINDS}
        texts: dict[_Kind, list[str]] = {kind: [] for kind in _KINDS}
        # Hundreds of thousands of times on a large fabric, so without a function call where there is one change.
        for case, changes in found:
            if len(changes) == 1:
                ((put, step),) = changes
                value, text = refs_of[((sets[put], steps[step]),)]
            else:
                value, text = refs_of[tuple([(sets[put], steps[step]) for put, step in changes])]
            kind = case.kind
            refs[kind][case.id] = value
            texts[kind].append(case.label + text + case.tail)
        reporters = set[NodeId]().union(*[case.reporters for case, _ in found])
        reporters.discard(node)
        ignored = {link for case, _ in found for link in case.ignored}
        risks = {case.id: case.links for case, _ in found if case.kind == "srlg"}
        all_sets, all_steps = self._destinations.named, self._steps.named
        return self._mint.outfit(
            reporters=tuple(sorted(reporters)),
            ignored=tuple(sorted(ignored)),
            sets=[all_sets[number] for number in sets],
            steps=[all_steps[number] for number in steps],
            links=refs["link"],
            nodes=refs["node"],
            srlgs={
                SrlgId(name): SharedRisk.model_construct(links=risks[name], changes=changes)
                for name, changes in refs["srlg"].items()
            },
            texts=[",".join(texts[kind]) for kind in _KINDS],
        )

    # --- failures ----------------------------------------------------------------------------------------------------
    def _make_cases(self, failure: Failure) -> Iterator[_Case]:
        situation = self._situation
        topology = situation.topology
        match failure.kind:
            case Kind.TRUNK:
                link = topology.trunks[failure.subject]
                yield self._case("link", link.id, (link.a.node, link.b.node))
            case Kind.NODE:
                node = topology.switches[failure.subject]
                pairs = [pair for pair in topology.witnesses_of[node] if pair[0] not in situation.unusable]
                reporters = tuple({reporter: None for _, reporter in pairs})
                # An entry of a node needs two reporters; with one, its one link's entry is all there is to say.
                if len(reporters) > 1:
                    yield self._case("node", node, reporters, ignored=situation.lame_switches.get(failure.subject, ()))
            case Kind.SRLG:
                name, links = self._groups[failure.subject]
                # Two of its links have to be reported; with one left, that link's entry is all there is to say.
                if len(links) > 1:
                    ends = [end.node for link in links for end in topology.fabric.links[link].ends]
                    yield self._case("srlg", name, tuple(ends), links)
            case Kind.DELIVERY:
                for endpoint in situation.endpoints_of(failure.subject):
                    by_switch = self._access_by_switch(endpoint)
                    itself = topology.fabric.destination_of[endpoint]
                    yield from self._access_cases(endpoint, by_switch[failure.switch], itself)
            case Kind.SOURCE:
                raise AssertionError("only the endpoint itself is armed for its own access link")

    def _case(
        self,
        kind: _Kind,
        name: str,
        reporters: tuple[NodeId, ...],
        links: tuple[LinkId, ...] = (),
        *,
        ignored: tuple[LinkId, ...] = (),
        only: DestinationId | None = None,
    ) -> _Case:
        label, tail = f"{self._mint.quoted[name]}:", ""
        if kind == "srlg":
            label, tail = f'{label}{{"changes":', f',"links":{self._mint.list_of(links)}}}'
        return _Case(kind, name, label, tail, reporters, links, ignored, only)

    @cached_property
    def _groups(self) -> list[tuple[SrlgId, tuple[LinkId, ...]]]:
        """The fabric's shared-risk groups by name, each with its usable trunks; its entry says nothing about access links."""
        topology = self._situation.topology
        found: dict[SrlgId, list[LinkId]] = {srlg: [] for link in topology.fabric.links.values() for srlg in link.srlgs}
        for trunk in topology.trunks:
            for srlg in trunk.srlgs if trunk.id not in self._situation.unusable else ():
                found[srlg].append(trunk.id)
        return [(srlg, tuple(sorted(found[srlg]))) for srlg in sorted(found)]

    def _access_cases(
        self, endpoint: NodeId, links: tuple[Access, ...], only: DestinationId | None
    ) -> tuple[_Case, ...]:
        """Return the failure of the only link of *endpoint* to a switch; of several parallel ones none matters."""
        if len(links) > 1:
            return ()
        switch = self._situation.topology.switches[links[0].switch]
        return (self._case("link", links[0].link, (endpoint, switch), only=only),)

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
            step, targets = divmod(code, len(self._columns))
            is_add, place = divmod(step, self._place_count)
            if endpoint is None:
                ports: tuple[str, ...] = (self._names[place],)
            else:
                links = self._access_by_switch(endpoint)[int(self._situation.mesh.target[place])]
                ports = tuple(access.port for access in links)
            parts.append(_Part(bool(is_add), ports, targets))
        return tuple(parts)

    def _changes_for(self, parts: tuple[_Part, ...], only: DestinationId | None) -> _Numbers:
        """Return the changes: one for each set of destinations that drop and add the same ports."""
        found = self._changes.get((only, parts))
        if found is None:
            merged = sorted(self._merged(parts, only))
            found = self._changes[only, parts] = tuple(
                [(self._destinations[destinations], self._steps[drop, add]) for destinations, drop, add in merged]
            )
        return found

    def _merged(
        self, parts: tuple[_Part, ...], only: DestinationId | None
    ) -> Iterator[tuple[tuple[DestinationId, ...], tuple[str, ...], tuple[str, ...]]]:
        if only is not None or len({part.targets for part in parts}) == 1:
            destinations = (only,) if only is not None else self._names_of(self._columns[parts[0].targets])
            drop = sorted(port for part in parts if not part.is_add for port in part.ports)
            add = sorted(port for part in parts if part.is_add for port in part.ports)
            yield destinations, tuple(drop), tuple(add)
            return
        by_column: dict[int, list[_Part]] = {}
        for part in parts:
            for column in self._columns[part.targets]:
                by_column.setdefault(column, []).append(part)
        columns_of: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]] = {}
        for column, steps in by_column.items():
            drop = sorted(port for part in steps if not part.is_add for port in part.ports)
            add = sorted(port for part in steps if part.is_add for port in part.ports)
            columns_of.setdefault((tuple(drop), tuple(add)), []).append(column)
        for (dropped, added), columns in columns_of.items():
            yield self._names_of(columns), dropped, added

    def _names_of(self, columns: list[int]) -> tuple[DestinationId, ...]:
        targets = self._situation.targets
        return tuple(sorted(name for column in columns for name in targets[column].destinations))


def _distinct(targets: Words) -> tuple[Indices, Indices]:
    """Return a row with each of the different sets of targets, and which of them each row has."""
    if not len(targets):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    whole = np.ascontiguousarray(targets).view(np.dtype((np.void, 8 * targets.shape[1]))).ravel()
    _, first, number = np.unique(whole, return_index=True, return_inverse=True)
    return first, number.ravel()
