"""The parts of programs as messages, each with the canonical JSON that a program's digest is made of.

Rule 1: equal parts are one object, so thousands of entries share them.
Rule 2: the JSON is put together, not dumped: a program of a large fabric has thousands of entries, and dumping them to find its digest costs
more than finding the paths. A test holds every digest equal to `erfs.messages.content_digest`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from erfs.ids import DestinationId, LinkId, NodeId, SrlgId
from erfs.messages import (
    CANONICAL,
    Armed,
    Backup,
    ChangeRef,
    FactRef,
    Group,
    Member,
    PortBinding,
    Route,
    SharedRisk,
    Step,
)
from erfs.paths.ways import Way


class Refs(NamedTuple):
    """What an entry changes, by places in its program's tables."""

    value: tuple[ChangeRef, ...]
    text: str


class Outfit(NamedTuple):
    """All that one node is armed for."""

    value: Armed
    text: str


class _Quoted(dict[str, str]):
    """Names as JSON strings, each quoted once; a look-up costs less than a call."""

    def __missing__(self, text: str) -> str:
        found = self[text] = json.dumps(text)
        return found


class _RefsOf(dict[tuple[tuple[int, int], ...], Refs]):
    """Changes by what they refer to: the place of the destinations and of the step of each."""

    def __missing__(self, places: tuple[tuple[int, int], ...]) -> Refs:
        texts = [f"[{destinations},{step}]" for destinations, step in places]
        found = self[places] = Refs(tuple([ChangeRef(*place) for place in places]), _list(texts))
        return found


class Mint:
    """Makes parts of programs, equal ones once."""

    def __init__(self) -> None:
        self.quoted: Mapping[str, str] = _Quoted()
        """JSON strings, made as they are asked for."""
        self.refs: Mapping[tuple[tuple[int, int], ...], Refs] = _RefsOf()
        """Changes, made as they are asked for: for each the places of its destinations and of its step."""
        self._members: dict[tuple[tuple[str, ...], tuple[int, ...]], tuple[tuple[Member, ...], str]] = {}
        self._routes: dict[tuple[DestinationId, int, bool], tuple[Route, str]] = {}
        self._lists: dict[tuple[str, ...], str] = {}
        self._steps: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[Step, str]] = {}

    def list_of(self, texts: tuple[str, ...]) -> str:
        """Return a JSON list of strings."""
        found = self._lists.get(texts)
        if found is None:
            found = self._lists[texts] = "[" + ",".join([self.quoted[text] for text in texts]) + "]"
        return found

    def members(self, ports: tuple[str, ...], weights: tuple[int, ...] = ()) -> tuple[tuple[Member, ...], str]:
        """Return the members that send by *ports*: with *weights*, one for each, or equally."""
        found = self._members.get((ports, weights))
        if found is None:
            pairs = list(zip(ports, weights or (1,) * len(ports), strict=True))
            texts = [f'{{"port":{self.quoted[port]},"weight":{weight}}}' for port, weight in pairs]
            members = tuple([Member(port=port, weight=weight) for port, weight in pairs])
            found = self._members[ports, weights] = (members, _list(texts))
        return found

    def route(self, destination: DestinationId, group: int, has_detour: bool) -> tuple[Route, str]:
        """Return a route."""
        key = destination, group, has_detour
        found = self._routes.get(key)
        if found is None:
            detour = "true" if has_detour else "false"
            text = f'{{"destination":{self.quoted[destination]},"group":{group},"has_detour":{detour}}}'
            found = self._routes[key] = (Route(destination=destination, group=group, has_detour=has_detour), text)
        return found

    def groups(self, parts: Iterable[tuple[tuple[str, ...], tuple[int, ...]]]) -> tuple[tuple[Group, ...], str]:
        """Return groups, numbered in the order given: for each its ports, and their weights if they are not equal."""
        members = [self.members(*part) for part in parts]
        texts = [f'{{"id":{number},"members":{text}}}' for number, (_, text) in enumerate(members)]
        return tuple([Group(id=number, members=group) for number, (group, _) in enumerate(members)]), _list(texts)

    def backups(self, ways: Iterable[Way]) -> tuple[tuple[Backup, ...], str]:
        """Return the backups of *ways*, each set of ports once, in the order of first use; the JSON is that of the program's field with its name."""
        of_ports: dict[tuple[str, ...], list[DestinationId]] = {}
        for way in ways:
            if way.backup:
                of_ports.setdefault(way.backup, []).append(way.destination)
        made = [Backup(ports=ports, destinations=tuple(names)) for ports, names in of_ports.items()]
        texts = [
            f'{{"destinations":{self.list_of(backup.destinations)},"ports":{self.list_of(backup.ports)}}}'
            for backup in made
        ]
        return tuple(made), f',"backups":{_list(texts)}'

    def step(self, drop: tuple[str, ...], add: tuple[str, ...]) -> tuple[Step, str]:
        """Return the step that drops and adds these ports."""
        found = self._steps.get((drop, add))
        if found is None:
            added, added_text = self.members(add)
            text = f'{{"add":{added_text},"drop":{self.list_of(drop)}}}'
            found = self._steps[drop, add] = (Step(drop=drop, add=added), text)
        return found

    def outfit(
        self,
        *,
        reporters: tuple[NodeId, ...],
        ignored: tuple[LinkId, ...],
        sets: Sequence[tuple[DestinationId, ...]],
        steps: Sequence[tuple[tuple[str, ...], tuple[str, ...]]],
        links: dict[LinkId, tuple[ChangeRef, ...]],
        nodes: dict[NodeId, tuple[ChangeRef, ...]],
        srlgs: dict[SrlgId, SharedRisk],
        texts: Sequence[str],
    ) -> Outfit:
        """
        Return what a node is armed for.

        Args:
            reporters, ignored, links, nodes, srlgs: As in the message, sorted.
            sets: In the order of their places.
            steps: In the order of their places: what to drop, and what to add.
            texts: The JSON of the items of *links*, *nodes* and *srlgs*.
        """
        made = [self.step(*step) for step in steps]
        # Nothing here needs to be checked again: half of the cost of a large program.
        value = Armed.model_construct(
            reporters=reporters,
            ignored=ignored,
            sets=tuple(sets),
            steps=tuple([step for step, _ in made]),
            links=links,
            nodes=nodes,
            srlgs=srlgs,
        )
        of_links, of_nodes, of_srlgs = texts
        text = "".join(
            [
                f'{{"ignored":{self.list_of(ignored)},"links":{{',
                of_links,
                '},"nodes":{',
                of_nodes,
                f'}},"reporters":{self.list_of(reporters)},"sets":',
                _list([self.list_of(destinations) for destinations in sets]),
                f',"srlgs":{{{of_srlgs}}},"steps":',
                _list([text for _, text in made]),
                "}",
            ]
        )
        return Outfit(value, text)

    def bindings(self, ports: Sequence[PortBinding]) -> str:
        """Return the JSON of port bindings."""
        quoted = self.quoted
        return _list(
            [
                f'{{"far_end":{quoted[port.far_end]},"link":{quoted[port.link]},"port":{quoted[port.port]}}}'
                for port in ports
            ]
        )

    def facts(self, facts: Sequence[FactRef]) -> str:
        """Return the JSON of fact references."""
        return json.dumps([fact.model_dump() for fact in facts], **CANONICAL)


def _list(texts: list[str]) -> str:
    return "[" + ",".join(texts) + "]"
