"""Where the epoch outlives the controller: one small JSON file, replaced as a whole.

Rule 1: after a power cut the file holds the old epoch or the new one, never a mixture.
Rule 2: a damaged file is an error to look at: to start again from 0 could lead in an epoch that agents refuse.
"""

import json
from pathlib import Path

from erfs.aio.files import replace_file
from erfs.errors import ConfigError, Problem


class EpochStore:
    """The epoch in a file; its folder is made if need be."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> int:
        """
        Return the epoch kept last, 0 if there is none.

        Raises:
            ConfigError: the file cannot be read, or holds something else.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise ConfigError(str(self.path), [Problem(0, f"cannot be read: {error.strerror}")]) from None
        try:
            epoch = json.loads(content)["epoch"]
        except (ValueError, TypeError, KeyError):
            epoch = None
        if type(epoch) is not int or epoch < 0:
            shown = content[:40].decode(errors="replace")
            advice = "remove it to take the epoch from the agents and the broker"
            raise ConfigError(
                str(self.path), [Problem(0, f'expected {{"epoch": N}}, found "{shown}"', suggestion=advice)]
            )
        return epoch

    def save(self, epoch: int) -> None:
        """Keep *epoch*; durable when this returns. Raises OSError."""
        replace_file(self.path, json.dumps({"epoch": epoch}).encode() + b"\n")
