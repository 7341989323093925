"""Do two journals tell the same, byte for byte, and if not, where do they first differ?

Rule 1: bytes are compared, not meanings: what repeats exactly has the same bytes.
Rule 2: a journal that was cut short differs in nothing as far as it goes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from os import SEEK_END
from pathlib import Path
from typing import Any, Final

_SHOWN_MAX: Final = 400
_LAST_MAX: Final = 1000
"""Bytes that the last line of a run has room in; it says next to nothing."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first line that two journals do not share; None where one of them has ended."""

    line: int
    """From 1."""
    one: str | None
    other: str | None

    @property
    def column(self) -> int:
        """The first byte in which the lines differ, from 1; 1 where one of them is not there."""
        if self.one is None or self.other is None:
            return 1
        pairs = zip_longest(self.one, self.other)
        return 1 + next((place for place, (a, b) in enumerate(pairs) if a != b), 0)

    def to_json(self, names: tuple[str, str]) -> dict[str, Any]:
        """Return plain JSON values, the lines under these *names*."""
        return {"line": self.line, "column": self.column, names[0]: self.one, names[1]: self.other}

    def told(self, names: tuple[str, str]) -> str:
        """Return where they differ and how, in lines for people, the journals under these *names*."""
        width = max(map(len, names)) + 1
        shown = [f"  {name + ':':{width}} {part}" for name, part in zip(names, self.excerpts(), strict=True)]
        return "\n".join([f"line {self.line:,} is the first that differs, from column {self.column:,} on", *shown])

    def excerpts(self) -> tuple[str, str]:
        """Return what to show of both lines: whole, or the part about the difference where they are long."""
        start = max(0, self.column - 1 - _SHOWN_MAX // 2)
        found = []
        for line in (self.one, self.other):
            if line is None:
                found.append("(there is no such line)")
                continue
            part = line[start : start + _SHOWN_MAX]
            found.append(f"{'…' if start else ''}{part}{'…' if start + _SHOWN_MAX < len(line) else ''}")
        return found[0], found[1]


def first_difference(one: Iterable[bytes], other: Iterable[bytes], *, is_one_cut: bool = False) -> Difference | None:
    """
    Return the first line in which *one* and *other* differ, None if they are the same.

    Args:
        one: Lines with their ends.
        other: The same.
        is_one_cut: *one* was cut short, so it is not asked for more lines than it has.

    Cost: O(bytes), a line of each in memory.
    """
    for number, (left, right) in enumerate(zip_longest(one, other), start=1):
        if left is None and is_one_cut:
            return None
        if left != right:
            return Difference(number, _text(left), _text(right))
    return None


def _text(line: bytes | None) -> str | None:
    return None if line is None else line.decode(errors="backslashreplace").rstrip("\n")


def repeatable(journal: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a *journal* that a rerun repeats: not one cut short by a crash, nor the word of Ctrl-C, which came from outside."""
    return (line for line in journal if line.endswith(b"\n") and not _is_interruption(line))


def is_whole(journal: Path) -> bool:
    """Return whether *journal* has the end of its run: finished, or aborted by a guard, which a rerun repeats. Cost: O(1)."""
    with journal.open("rb") as file:
        file.seek(max(0, file.seek(0, SEEK_END) - _LAST_MAX))
        lines = file.read().splitlines(keepends=True)
    if not lines or not lines[-1].endswith(b"\n") or _is_interruption(lines[-1]):
        return False
    return any(event in lines[-1] for event in (b'"event":"run_finished"', b'"event":"run_aborted"'))


def _is_interruption(line: bytes) -> bool:
    return b'"event":"run_aborted"' in line and b'"reason":"interrupted"' in line
