"""The parts of programs as messages, each with the canonical JSON that a program's digest is made of.

Rule 1: equal parts are one object, so thousands of entries share them.
Rule 2: the JSON is put together, not dumped: a program of a large fabric has thousands of entries, and dumping them to find its digest costs
more than finding the paths. A test holds every digest equal to `erfs.messages.content_digest`.
"""

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from erfs.ids import DestinationId, LinkId, NodeId
from erfs.messages import CANONICAL, Change, FactRef, Group, Member, PortBinding, Route, Witness


class Witnesses(NamedTuple):
    """Who testifies to a failure."""

    value: tuple[Witness, ...]
    text: str


class Changes(NamedTuple):
    """What an entry changes."""

    value: tuple[Change, ...]
    text: str


class Mint:
    """Makes parts of programs, equal ones once."""

    def __init__(self) -> None:
        self._quoted: dict[str, str] = {}
        self._members: dict[tuple[str, ...], tuple[tuple[Member, ...], str]] = {}
        self._routes: dict[tuple[DestinationId, int, bool], tuple[Route, str]] = {}
        self._lists: dict[tuple[str, ...], str] = {}

    def quoted(self, text: str) -> str:
        """Return *text* as a JSON string."""
        found = self._quoted.get(text)
        if found is None:
            found = self._quoted[text] = json.dumps(text)
        return found

    def list_of(self, texts: tuple[str, ...]) -> str:
        """Return a JSON list of strings."""
        found = self._lists.get(texts)
        if found is None:
            found = self._lists[texts] = "[" + ",".join([self.quoted(text) for text in texts]) + "]"
        return found

    def members(self, ports: tuple[str, ...]) -> tuple[tuple[Member, ...], str]:
        """Return the members that send by *ports*."""
        found = self._members.get(ports)
        if found is None:
            texts = [f'{{"port":{self.quoted(port)},"weight":1}}' for port in ports]
            found = self._members[ports] = (tuple([Member(port=port) for port in ports]), _list(texts))
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

    def groups(self, ports: Iterable[tuple[str, ...]]) -> tuple[tuple[Group, ...], str]:
        """Return groups, numbered in the order given."""
        members = [self.members(group) for group in ports]
        texts = [f'{{"id":{number},"members":{text}}}' for number, (_, text) in enumerate(members)]
        return tuple([Group(id=number, members=group) for number, (group, _) in enumerate(members)]), _list(texts)

    def changes(self, parts: Iterable[tuple[tuple[DestinationId, ...], tuple[str, ...], tuple[str, ...]]]) -> Changes:
        """Return changes: for each part its destinations, the ports to drop and the ports to add."""
        values: list[Change] = []
        texts: list[str] = []
        for destinations, drop, add in parts:
            added, added_text = self.members(add)
            values.append(Change(destinations=destinations, drop=drop, add=added))
            texts.append(
                f'{{"add":{added_text},"destinations":{self.list_of(destinations)},"drop":{self.list_of(drop)}}}'
            )
        return Changes(tuple(values), _list(texts))

    def witnesses(self, pairs: Sequence[tuple[LinkId, NodeId]]) -> Witnesses:
        """Return the witnesses (link, reporter) of a failure."""
        texts = [f'{{"link":{self.quoted(link)},"reporter":{self.quoted(reporter)}}}' for link, reporter in pairs]
        return Witnesses(tuple([Witness(link=link, reporter=reporter) for link, reporter in pairs]), _list(texts))

    def bindings(self, ports: Sequence[PortBinding]) -> str:
        """Return the JSON of port bindings."""
        quoted = self.quoted
        return _list(
            [
                f'{{"far_end":{quoted(port.far_end)},"link":{quoted(port.link)},"port":{quoted(port.port)}}}'
                for port in ports
            ]
        )

    def facts(self, facts: Sequence[FactRef]) -> str:
        """Return the JSON of fact references."""
        return json.dumps([fact.model_dump() for fact in facts], **CANONICAL)


def _list(texts: list[str]) -> str:
    return "[" + ",".join(texts) + "]"
