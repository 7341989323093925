"""Where an agent's state outlives it: one JSON file, replaced as a whole.

Rule 1: after a power cut the file is the old state or the new one, never a mixture.
Rule 2: a damaged file is told and set aside; the agent starts without it.
"""

from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from erfs.aio.files import replace_file
from erfs.errors import ConfigError, Problem
from erfs_agent.state import AgentState


class Store(Protocol):
    """Keeps an agent's state."""

    def save(self, state: AgentState) -> None:
        """Keep *state*, durable when this returns. Raises OSError. Called from a thread, one call at a time."""


class FileStore:
    """A store in one file; its folder is made if need be."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> AgentState | None:
        """
        Return the state kept last, None if there is none.

        Raises:
            ConfigError: the file cannot be read, or is damaged.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(str(self.path), [Problem(0, f"cannot be read: {error.strerror}")]) from None
        try:
            return AgentState.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            message = f"is no agent state: {place or 'content'}: {first['msg']}"
            raise ConfigError(str(self.path), [Problem(0, message)]) from None

    def set_aside(self) -> Path:
        """Move a damaged file out of the way, so that someone can look at it; return where it is now."""
        aside = self.path.with_name(self.path.name + ".damaged")
        self.path.replace(aside)
        return aside

    def save(self, state: AgentState) -> None:
        """Keep *state*."""
        replace_file(self.path, state.model_dump_json().encode())


class MemoryStore:
    """A store that lives as long as whoever holds it; for agents that are restarted inside one process."""

    def __init__(self, state: AgentState | None = None) -> None:
        self.state = state

    def save(self, state: AgentState) -> None:
        """Keep *state*."""
        self.state = state
