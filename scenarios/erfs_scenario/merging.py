"""One journal from several writers: puts what arrives a little late into the order of time.

Rule 1: what has been passed on is never taken back: a line later than the window keeps its own instant and its late place.
"""

import contextlib
import heapq
import json
from pathlib import Path
from typing import Any

from erfs_scenario.measurement import Record


class Merger:
    """
    Holds records back for a short window and passes them on in order of time.

    Args:
        record: Where they go.
        window_ns: How late a writer may be.
    """

    def __init__(self, record: Record, window_ns: int) -> None:
        self._record = record
        self._window_ns = window_ns
        self._sequence = 0
        self._held: list[tuple[int, int, str, dict[str, object]]] = []

    def put(self, at_ns: int, event: str, fields: dict[str, object]) -> None:
        """Take one record."""
        heapq.heappush(self._held, (at_ns, self._sequence, event, fields))
        self._sequence += 1

    def pass_on(self, now_ns: int, *, unmeasured_ns: int | None = None) -> None:
        """Pass on what is older than the window, and than *unmeasured_ns*, of which something is still to be written."""
        until_ns = now_ns - self._window_ns
        if unmeasured_ns is not None:
            until_ns = min(until_ns, unmeasured_ns - 1)
        while self._held and self._held[0][0] <= until_ns:
            at_ns, _, event, fields = heapq.heappop(self._held)
            self._record(at_ns, event, fields)

    def pass_on_all(self) -> None:
        """Pass on everything."""
        while self._held:
            at_ns, _, event, fields = heapq.heappop(self._held)
            self._record(at_ns, event, fields)


class Tail:
    """The lines another process appends to its journal, as they come; lines that are no records are left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the whole records written since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        whole, _, _ = content.rpartition(b"\n")
        if not whole:
            return []
        self._offset += len(whole) + 1
        found = []
        for line in whole.split(b"\n"):
            # A writer that was killed may have left half a line behind, and its successor's first record after it.
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found
