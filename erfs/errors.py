"""The four ways something goes wrong, and how each is told to a person.

Every message is lower case, has no full stop, shows the value, and says what was expected and what to do.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class ErfsError(Exception):
    """Any error ERFS raises on purpose."""


class FabricError(ErfsError):
    """The fabric has no such node, link or path."""


class WireError(ErfsError):
    """A peer sent something that cannot be read, or that it may not say."""


class Bug(ErfsError):  # noqa: N818 -- the glossary's word; it names a broken invariant, not a user's error
    """An invariant of ours broke; the process should crash and say so."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in an input file. *line* and *column* count from 1; 0 means the file as a whole."""

    line: int
    message: str
    column: int = 0
    suggestion: str = ""
    source: str = ""
    """The file it stands in, where that is another one than the error is about: an included one."""

    def describe(self, source: str) -> str:
        """Return ``file:line:column: message (suggestion)``, leaving out what is not known."""
        place = self.source or source
        if self.line:
            place += f":{self.line}"
            if self.column:
                place += f":{self.column}"
        tail = f" ({self.suggestion})" if self.suggestion else ""
        return f"{place}: {self.message}{tail}"


class ConfigError(ErfsError):
    """
    Something the user has to fix in a file: all its problems at once.

    Args:
        source: The file's name as the user gave it.
        problems: At least one.
    """

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        assert problems
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(problem.describe(source) for problem in self.problems))

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[str, tuple[Problem, ...]]]:
        # By default an exception is made again from its text, which is not what this one is made from: workers raise it, too.
        return type(self), (self.source, self.problems)


def first_error(error: BaseException) -> BaseException:
    """Return *error*; of a group, the one that went wrong first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
