"""Where the epoch and the drains outlive the controller: one SQLite file in WAL mode.

Rule 1: what is saved is on disk when `save_…` returns; after a power cut the file holds the old value or the new one, never a mixture.
Rule 2: a damaged file is an error to look at: to start again from 0 could lead in an epoch that agents refuse.
Rule 3: values only, each under its name; what they mean is the core's business.
"""

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from erfs.errors import ConfigError, Problem, WireError
from erfs.messages import Drains, decode, encode

_TABLE: Final = "CREATE TABLE IF NOT EXISTS kept (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT"
# Another controller that is about to notice that only one may lead holds the file for some ms at most.
_BUSY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Stored:
    """What the last controller left: its epoch, 0 if there was none, and what was drained, None if nothing ever was."""

    epoch: int = 0
    drains: Drains | None = None


class ControllerStore:
    """A controller's file; it and its folder are made at the first look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None

    def load(self) -> Stored:
        """
        Return what was kept last.

        Raises:
            ConfigError: the file cannot be read or made, or holds something else.
        """
        try:
            rows = dict(self._open().execute("SELECT name, value FROM kept"))
            epoch, drains = int(rows.get("epoch", b"0")), rows.get("drains")
            kept = None if drains is None else decode(drains)
        except (sqlite3.Error, OSError, ValueError, TypeError, WireError) as error:
            raise self._damaged(str(error)) from None
        if epoch < 0 or not (kept is None or isinstance(kept, Drains)):
            raise self._damaged("it holds something else")
        return Stored(epoch, kept)

    def save_epoch(self, epoch: int) -> None:
        """Keep *epoch*. Raises sqlite3.Error."""
        self._save("epoch", str(epoch).encode())

    def save_drains(self, drains: Drains) -> None:
        """Keep all that is drained. Raises sqlite3.Error."""
        self._save("drains", encode(drains))

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _save(self, name: str, value: bytes) -> None:
        with self._open() as connection:
            connection.execute("INSERT OR REPLACE INTO kept VALUES (?, ?)", (name, value))

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=_BUSY_S)
            connection.execute("PRAGMA journal_mode=WAL")
            # In WAL mode only FULL waits for the disk at each commit.
            connection.execute("PRAGMA synchronous=FULL")
            with connection:
                connection.execute(_TABLE)
            self._connection = connection
        return self._connection

    def _damaged(self, what: str) -> ConfigError:
        advice = "move it away to take the epoch and the drains from the agents and the broker"
        return ConfigError(str(self.path), [Problem(0, f"cannot be used: {what}", suggestion=advice)])
