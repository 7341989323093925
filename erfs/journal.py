"""The journal: everything that happened, in order, one JSON object a line, written before anything is judged.

Rule 1: same run, same bytes: keys sorted, integers only for time, no floats that depend on the machine.
Rule 2: each line is flushed; what is in the file happened, whatever became of us after.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from erfs.errors import ConfigError, Problem


def line_of(at_ns: int, event: str, fields: Mapping[str, object]) -> bytes:
    """Return one canonical journal line. *fields* must hold JSON values; sets are refused by json, sort them first."""
    record = {"at_ns": at_ns, "event": event} | dict(fields)
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


class Journal:
    """An append-only journal file; use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("ab", buffering=0)

    def append(self, at_ns: int, event: str, **fields: object) -> None:
        """Write one event; it is with the operating system when this returns."""
        self._file.write(line_of(at_ns, event, fields))

    def close(self) -> None:
        """Make the file durable and close it."""
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """
    Yield the records of a journal. A last line cut short by a crash is left out; damage elsewhere is an error.

    Raises:
        ConfigError: a line that is not JSON, with its number.
    """
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            yield json.loads(line)
        except ValueError as error:
            if number == len(lines):
                return
            raise ConfigError(str(path), [Problem(number, f"not a journal record: {error}")]) from None
