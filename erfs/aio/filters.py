"""Which topic filters does a topic match? Answered by dictionary, not by trying every filter.

Rule 1: the answer comes in the order in which the filters were added, so it is the same on every machine.
Rule 2: only the shapes ERFS uses are fast (``a/b``, ``a/b/+``, ``a/b/#``); any other ``+`` is tried one by one.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

Holder = TypeVar("Holder")


def matches(pattern: str, topic: str) -> bool:
    """Return whether *topic* matches the MQTT filter *pattern* (MQTT 3.1.1 section 4.7)."""
    wanted = pattern.split("/")
    levels = topic.split("/")
    if levels[0].startswith("$") and wanted[0] in ("+", "#"):
        return False
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(levels) or level not in ("+", levels[index]):
            return False
    return len(wanted) == len(levels)


def ancestors(topic: str) -> Iterator[str]:
    """Yield the topics above *topic*, the nearest first: ``a/b/c`` gives ``a/b`` and ``a``."""
    end = topic.rfind("/")
    while end > 0:
        yield topic[:end]
        end = topic.rfind("/", 0, end)


class FilterIndex(Generic[Holder]):
    """Who holds which filters. Holders must be hashable; each is returned once, however many of its filters match."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[Holder, None]] = {}
        self._children: dict[str, dict[Holder, None]] = {}
        self._below: dict[str, dict[Holder, None]] = {}
        self._other: dict[str, dict[Holder, None]] = {}

    def add(self, pattern: str, holder: Holder) -> None:
        """Let *holder* hold *pattern*; doing it twice is harmless."""
        table, key = self._place(pattern)
        table.setdefault(key, {})[holder] = None

    def remove(self, pattern: str, holder: Holder) -> None:
        """Take *pattern* from *holder*, if it held it."""
        table, key = self._place(pattern)
        holders = table.get(key)
        if holders is None:
            return
        holders.pop(holder, None)
        if not holders:
            del table[key]

    def holders(self, topic: str) -> dict[Holder, None]:
        """
        Return those who hold a filter that matches *topic*. The result is the caller's to read, not to change.

        Cost: one look-up per level of the topic, plus one match per filter of an unusual shape.
        """
        found: list[dict[Holder, None]] = []
        if (exact := self._exact.get(topic)) is not None:
            found.append(exact)
        if self._children and (parent := topic.rpartition("/")[0]) and (children := self._children.get(parent)):
            found.append(children)
        if self._below:
            # "a/b/#" matches "a/b" too (MQTT 3.1.1, 4.7.1.2).
            found.extend(self._below[place] for place in (topic, *ancestors(topic)) if place in self._below)
        if self._other:
            found.extend(holders for pattern, holders in self._other.items() if matches(pattern, topic))
        if len(found) == 1:
            return found[0]
        merged: dict[Holder, None] = {}
        for holders in found:
            merged |= holders
        return merged

    def _place(self, pattern: str) -> tuple[dict[str, dict[Holder, None]], str]:
        head, _, last = pattern.rpartition("/")
        if "+" not in head and "#" not in head and head and not head.startswith("$"):
            if last == "#":
                return self._below, head
            if last == "+":
                return self._children, head
        if "+" in pattern or "#" in pattern:
            return self._other, pattern
        return self._exact, pattern
