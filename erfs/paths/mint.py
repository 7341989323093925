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
    ChangeRef,
    FactRef,
    Group,
    Member,
    PortBinding,
    Route,
    SharedRisk,
    Step,
)


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
        self._members: dict[tuple[str, ...], tuple[tuple[Member, ...], str]] = {}
        self._routes: dict[tuple[DestinationId, int, bool], tuple[Route, str]] = {}
        self._lists: dict[tuple[str, ...], str] = {}
        self._steps: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[Step, str]] = {}

    def list_of(self, texts: tuple[str, ...]) -> str:
        """Return a JSON list of strings."""
        found = self._lists.get(texts)
        if found is None:
            found = self._lists[texts] = "[" + ",".join([self.quoted[text] for text in texts]) + "]"
        return found

    def members(self, ports: tuple[str, ...]) -> tuple[tuple[Member, ...], str]:
        """Return the members that send by *ports*."""
        found = self._members.get(ports)
        if found is None:
            texts = [f'{{"port":{self.quoted[port]},"weight":1}}' for port in ports]
            found = self._members[ports] = (tuple([Member(port=port) for port in ports]), _list(texts))
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

    def groups(self, ports: Iterable[tuple[str, ...]]) -> tuple[tuple[Group, ...], str]:
        """Return groups, numbered in the order given."""
        members = [self.members(group) for group in ports]
        texts = [f'{{"id":{number},"members":{text}}}' for number, (_, text) in enumerate(members)]
        return tuple([Group(id=number, members=group) for number, (group, _) in enumerate(members)]), _list(texts)

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
        links: Mapping[LinkId, Refs],
        nodes: Mapping[NodeId, Refs],
        srlgs: Mapping[SrlgId, tuple[tuple[LinkId, ...], Refs]],
    ) -> Outfit:
        """Return what a node is armed for; the mappings sorted by name."""
        quoted = self.quoted
        made = [self.step(*step) for step in steps]
        # Nothing here needs to be checked again: half of the cost of a large program.
        value = Armed.model_construct(
            reporters=reporters,
            ignored=ignored,
            sets=tuple(sets),
            steps=tuple([step for step, _ in made]),
            links={link: refs.value for link, refs in links.items()},
            nodes={node: refs.value for node, refs in nodes.items()},
            srlgs={name: SharedRisk(links=group, changes=refs.value) for name, (group, refs) in srlgs.items()},
        )
        risks = [
            f'{quoted[name]}:{{"changes":{refs.text},"links":{self.list_of(group)}}}'
            for name, (group, refs) in srlgs.items()
        ]
        text = "".join(
            [
                f'{{"ignored":{self.list_of(ignored)},"links":{{',
                ",".join([f"{quoted[link]}:{refs.text}" for link, refs in links.items()]),
                '},"nodes":{',
                ",".join([f"{quoted[node]}:{refs.text}" for node, refs in nodes.items()]),
                f'}},"reporters":{self.list_of(reporters)},"sets":',
                _list([self.list_of(destinations) for destinations in sets]),
                f',"srlgs":{{{",".join(risks)}}},"steps":',
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
