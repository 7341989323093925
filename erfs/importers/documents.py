"""What does a JSON or YAML document say, and in which line?

Rule 1: a document is data only: no tags, no types made from text, and no more YAML than YAML_SIZE_MAX.
Rule 2: whoever reports a problem names a path into the document; the line is looked up here.
"""

import bisect
import json
import json.decoder
import json.scanner
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from yaml.scanner import ScannerError

from erfs.errors import ConfigError, Problem
from erfs.importers.building import Draft, Line, shown
from erfs.importers.reading import Source

# PyYAML is pure Python and takes about 10 s for this much; the largest lab file met has 2 kB.
YAML_SIZE_MAX: Final = 1 << 20
# A containerlab file needs six levels.
YAML_DEPTH_MAX: Final = 64

Path = tuple[str | int, ...]
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass
class Document:
    """A parsed document and where its parts stand."""

    source: Source
    data: Any

    def line_of(self, *path: str | int) -> int:
        """Return the line of the object, list or member that *path* leads to, or of the nearest one around it."""
        raise NotImplementedError

    def at(self, *path: str | int) -> Line:
        """Return how to find the line of *path*, for whoever may need it."""
        return partial(self.line_of, *path)

    def checked(self, model: type[_Model], value: object, draft: Draft, *path: str | int, what: str) -> _Model | None:
        """Return *value* as *model*, or None after noting every fault with its line."""
        return checked(model, value, draft, lambda inner: self.line_of(*path, *inner), what=what)


def checked(
    model: type[_Model], value: object, draft: Draft, line_of: Callable[[Path], int], *, what: str
) -> _Model | None:
    """Return *value* as *model*, or None after noting every fault of it with the line *line_of* finds for its place."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_context=False):
            where = ".".join(map(str, fault["loc"]))
            said = fault["msg"].removeprefix("Value error, ")
            message = f"{what}: {where + ': ' if where else ''}{said[:1].lower()}{said[1:]}"
            if fault["type"] != "missing":
                message += f", not {shown(fault['input'])}"
            draft.problem(line_of(tuple(fault["loc"])), message)
        return None


class JsonDocument(Document):
    """A JSON document."""

    @classmethod
    def parse(cls, source: Source) -> "JsonDocument":
        """
        Return the document in *source*.

        Raises:
            ConfigError: it is no JSON; the message names line and column.
        """
        refuse_damage(source)
        try:
            return cls(source, json.loads(source.text))
        except json.JSONDecodeError as error:
            problem = Problem(
                error.lineno, f"is no JSON: {error.msg.lower()}", error.colno, _cut_hint(source, error.pos)
            )
        except RecursionError:
            problem = Problem(0, "is JSON nested too deeply to be a fabric")
        except ValueError as error:  # a number of more than 4,300 digits
            problem = Problem(0, f"is JSON that cannot be read: {str(error).lower()}")
        raise ConfigError(source.name, [problem])

    def line_of(self, *path: str | int) -> int:
        value, line = self._located
        starts = self._starts
        for step in path:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                break
            if isinstance(value, dict | list):
                line = starts[id(value)]
        return line

    @cached_property
    def _starts(self) -> dict[int, int]:
        """The line in which each object and list of `_located` starts."""
        decoder = _LocatingDecoder()
        self._tree = decoder.decode(self.source.text)
        breaks = [at for at, letter in enumerate(self.source.text) if letter == "\n"]
        return {key: _line_at(breaks, at) for key, at in decoder.starts.items()}

    @property
    def _located(self) -> tuple[Any, int]:
        starts = self._starts
        return self._tree, starts.get(id(self._tree), 1)


class _LocatingDecoder(json.JSONDecoder):
    """The standard decoder, its slow path, with the place of every object and list written down. Used only to report."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: dict[int, int] = {}
        for name in ("parse_object", "parse_array"):
            setattr(self, name, self._locating(getattr(self, name)))
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]  # undocumented, there since 2.6

    def _locating(self, parse: Any) -> Any:
        def located(text_and_end: tuple[str, int], *rest: Any) -> tuple[Any, int]:
            value, end = parse(text_and_end, *rest)
            self.starts[id(value)] = text_and_end[1]
            return value, end

        return located


def _line_at(breaks: list[int], at: int) -> int:
    return bisect.bisect_left(breaks, at) + 1


def _cut_hint(source: Source, position: int) -> str:
    return "the file seems to be cut" if position >= len(source.text.rstrip()) - 1 else ""


def refuse_damage(source: Source) -> None:
    """
    Raise what is no text in *source*: a structured document cannot be read around it.

    Raises:
        ConfigError: any line is damaged.
    """
    if source.damaged:
        raise ConfigError(
            source.name, [Problem(line, f"this line {why}") for line, why in sorted(source.damaged.items())]
        )


class _ShallowLoader(yaml.SafeLoader):
    """The safe loader, which refuses deep nesting: its scanner's cost is (depth x text) where brackets are never closed."""

    def fetch_flow_collection_start(self, token_class: type[yaml.Token]) -> None:
        if self.flow_level >= YAML_DEPTH_MAX:
            raise ScannerError(None, None, f"nested more than {YAML_DEPTH_MAX} deep", self.get_mark())
        super().fetch_flow_collection_start(token_class)


class YamlDocument(Document):
    """A YAML document: every scalar is text, every mapping a dict, "<<" merges looked up by `member`."""

    @classmethod
    def parse(cls, source: Source) -> "YamlDocument":
        """
        Return the document in *source*.

        Raises:
            ConfigError: it is no YAML, is too large, or names a key twice; with line and column.
        """
        refuse_damage(source)
        if len(source.text) > YAML_SIZE_MAX:
            raise ConfigError(
                source.name, [Problem(0, f"is YAML of more than {YAML_SIZE_MAX >> 20} MiB, the most that is read")]
            )
        try:
            root = yaml.compose(source.text, Loader=_ShallowLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
            reason = error.problem or error.context or "cannot be read"
            raise ConfigError(source.name, [Problem(line, f"is no YAML: {reason}", column)]) from error
        except yaml.YAMLError as error:
            line = source.text.count("\n", 0, getattr(error, "position", 0)) + 1
            raise ConfigError(
                source.name, [Problem(line, "is no YAML: holds a character that YAML forbids")]
            ) from error
        except RecursionError as error:
            raise ConfigError(source.name, [Problem(0, "is YAML nested too deeply to be a fabric")]) from error
        document = cls(source, None)
        document._nodes = {}
        document.data = document._convert(root) if root is not None else ""
        return document

    _nodes: dict[int, yaml.Node]

    def line_of(self, *path: str | int) -> int:
        value, line = self.data, 1
        for step in path:
            node = self._nodes.get(id(value))
            if isinstance(node, yaml.MappingNode):
                line = next((key.start_mark.line + 1 for key, _ in node.value if key.value == step), line)
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                line = node.value[step].start_mark.line + 1
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                break
        return line

    def _convert(self, root: yaml.Node) -> Any:
        """Return plain dicts, lists and text. What an alias names is one object, however often it is named."""
        made: dict[int, Any] = {}

        def convert(node: yaml.Node) -> Any:
            if id(node) in made:
                return made[id(node)]
            if isinstance(node, yaml.MappingNode):
                mapping: dict[str, Any] = {}
                made[id(node)], self._nodes[id(mapping)] = mapping, node
                for key, value in node.value:
                    if not isinstance(key, yaml.ScalarNode):
                        raise ConfigError(
                            self.source.name, [Problem(key.start_mark.line + 1, "has a key that is no plain text")]
                        )
                    if key.value in mapping:
                        first = next(other for other, _ in node.value if other.value == key.value)
                        raise ConfigError(
                            self.source.name,
                            [
                                Problem(
                                    key.start_mark.line + 1,
                                    f'has the key "{key.value}" twice, first in line {first.start_mark.line + 1}',
                                )
                            ],
                        )
                    mapping[key.value] = convert(value)
                return mapping
            if isinstance(node, yaml.SequenceNode):
                sequence: list[Any] = []
                made[id(node)], self._nodes[id(sequence)] = sequence, node
                sequence.extend(convert(item) for item in node.value)
                return sequence
            return node.value

        try:
            return convert(root)
        except RecursionError as error:
            raise ConfigError(self.source.name, [Problem(0, "is YAML nested too deeply to be a fabric")]) from error


def member(mapping: object, key: str) -> Any:
    """Return *mapping*'s *key*, from its own members first, then from what it merges with "<<"; None if there is none."""
    waiting, seen = [mapping], set[int]()
    while waiting:
        current = waiting.pop(0)
        if not isinstance(current, Mapping) or id(current) in seen:
            continue  # merges may go in circles
        if key in current:
            return current[key]
        seen.add(id(current))
        merged = current.get("<<")
        waiting = (merged if isinstance(merged, list) else [merged]) + waiting
    return None
