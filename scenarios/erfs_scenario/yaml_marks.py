"""YAML into plain values, and where each of them stands in the file: so that every later complaint can name its line and column.

Rule 1: everything wrong with the text itself becomes a Problem; no exception of the YAML library leaves this file.
Rule 2: only plain values come out (text, numbers, truth, nothing, lists, mappings with text keys); no tag runs any code.
"""

import difflib
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple

import yaml

from erfs.errors import ConfigError, Problem

# The largest scenario in the library has 2 kB. These bounds are for files that are no scenarios, or mean harm.
SIZE_MAX: Final = 1024 * 1024
VALUE_COUNT_MAX: Final = 50_000

Path = tuple[str | int, ...]


class Mark(NamedTuple):
    """Where something stands: line and column count from 1."""

    line: int
    column: int
    source: str
    """The file."""


_PLAIN_TAGS: Final = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map")
)
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"  # a bare date is text to us


@dataclass
class Document:
    """A YAML file's values with the places of all keys and values."""

    source: str
    data: Any = None
    problems: list[Problem] = field(default_factory=list)
    values: dict[Path, Mark] = field(default_factory=dict)
    keys: dict[Path, Mark] = field(default_factory=dict)
    filled_in: dict[Path, str] = field(default_factory=dict)
    """Where parameters were put in, and what to say of it: ``${hold} is "3 s"``."""
    not_filled_in: list[Path] = field(default_factory=list)
    """Where none could be put in, which has been told: what stands there is no value yet."""

    def value_mark(self, path: Path) -> Mark:
        """Return where the value at *path* stands; where there is none, where the nearest value around it does."""
        while path and path not in self.values:
            path = path[:-1]
        return self.values.get(path, Mark(1, 1, self.source))

    def key_mark(self, path: Path) -> Mark:
        """Return where the key at *path* stands, or else its value."""
        return self.keys.get(path) or self.value_mark(path)

    def problem(self, path: Path, message: str, suggestion: str = "", *, is_key: bool = False) -> Problem:
        """Return the problem *message* at the place of *path*."""
        mark = self.key_mark(path) if is_key else self.value_mark(path)
        advice = "; ".join(filter(None, (suggestion, self.filled_in.get(path, ""))))
        return Problem(mark.line, message, mark.column, advice, "" if mark.source == self.source else mark.source)


def read_bounded(path: FilePath) -> bytes:
    """
    Return the bytes of *path*; of one that is too large as many as tell that: a device or a huge file is not read whole.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(SIZE_MAX + 1)


def scalar_of(text: str) -> str | int | float | bool | None:
    """Return what *text* is as a value in a file: a number, a truth, nothing, or else the text."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.ScalarNode) or node.tag not in _PLAIN_TAGS:
            return text
        value: str | int | float | bool | None = loader.construct_object(node)
    except (ValueError, yaml.YAMLError):
        return text
    return value


def suggest(word: str, known: Any) -> str:
    """Return "did you mean …?" for the *known* words nearest to *word*, or the first few known ones, or nothing."""
    words = [str(one) for one in known]
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    if near:
        return f'did you mean "{near[0]}"?'
    return f"known: {', '.join(words[:12])}{', …' if len(words) > 12 else ''}" if words else ""


def load(content: bytes, source: str) -> Document:
    """
    Return the one document of *content*; duplicate keys and tags are among its problems, to be told with all the others.

    Raises:
        ConfigError: the text cannot be read as YAML at all: too large, not UTF-8, a syntax error, aliases that explode.
    """

    def fail(line: int, message: str, column: int = 0, suggestion: str = "") -> ConfigError:
        return ConfigError(source, [Problem(line, message, column, suggestion)])

    if len(content) > SIZE_MAX:
        raise fail(0, f"{len(content):,} bytes: a scenario has at most {SIZE_MAX:,}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise fail(
            line, f"not UTF-8 text: byte 0x{content[error.start]:02x}", suggestion="is this a scenario?"
        ) from None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        raise fail(line, f"the character U+{error.character:04X} is not allowed", column) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = str(error.problem or error.context)
        if error.context and error.context_mark is not None:
            what += f", {error.context} that starts in line {error.context_mark.line + 1}"
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise fail(place[0], f"not YAML: {what}", place[1], _syntax_advice(text, place[0])) from None
    except RecursionError:
        raise fail(0, "nested too deeply") from None
    if node is None:
        raise fail(0, "the file is empty", suggestion="see scenarios/library for examples")
    document = Document(source)
    try:
        document.data = _Builder(document, loader).build(node, ())
    except RecursionError:
        raise fail(0, "nested too deeply, or an alias that contains itself") from None
    if not isinstance(document.data, dict):
        begin = document.value_mark(())
        message = f"expected a mapping with keys such as name and faults, found {_kind(document.data)}"
        raise fail(begin.line, message, begin.column)
    return document


class _Builder:
    def __init__(self, document: Document, loader: yaml.SafeLoader) -> None:
        self._document = document
        self._loader = loader
        self._count = 0

    def _mark(self, node: yaml.Node) -> Mark:
        return Mark(node.start_mark.line + 1, node.start_mark.column + 1, self._document.source)

    def build(self, node: yaml.Node, path: Path) -> Any:
        mark = self._mark(node)
        self._document.values.setdefault(path, mark)
        self._count += 1
        if self._count > VALUE_COUNT_MAX:
            problem = Problem(
                mark.line, f"more than {VALUE_COUNT_MAX:,} values once aliases are written out", mark.column
            )
            raise ConfigError(self._document.source, [problem])
        if node.tag == _TIMESTAMP:
            return node.value
        if node.tag not in _PLAIN_TAGS:
            self._document.problems.append(Problem(mark.line, f'the tag "{node.tag}" is not allowed', mark.column))
            return None
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            mark = self._mark(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self._document.problems.append(Problem(mark.line, "a key must be plain text", mark.column))
                continue
            key = str(key_node.value)
            if key in found:
                first = self._document.keys[(*path, key)].line
                self._document.problems.append(
                    Problem(mark.line, f'"{key}" is there twice, first in line {first}', mark.column)
                )
                continue
            self._document.keys[(*path, key)] = mark
            found[key] = self.build(value_node, (*path, key))
        return found

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        try:
            return self._loader.construct_object(node)
        except (ValueError, yaml.YAMLError):
            self._document.problems.append(
                self._document.problem(path, f'"{node.value}" is no {node.tag.rpartition(":")[2]}')
            )
            return None


def _syntax_advice(text: str, line: int) -> str:
    lines = text.splitlines()
    before = lines[max(0, line - 2) : line]
    if any("\t" in found for found in before):
        return "indent with spaces, not tabs"
    if any("${" in found for found in before):
        return 'put quotes round a "${…}" that stands inside braces or brackets'
    if any(found.count('"') % 2 for found in before):
        return "a quote is not closed"
    return ""


def _kind(value: object) -> str:
    return {list: "a list", str: "text", int: "a number", float: "a number", bool: "a truth value"}.get(
        type(value), "nothing"
    )
