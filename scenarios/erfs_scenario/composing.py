"""How do a scenario's file, the files it includes and its parameters become one document?

Rule 1: data in, data out: mappings are merged, lists joined, ``${name}`` is replaced by a value; nothing is computed or repeated.
Rule 2: every value keeps the file, line and column at which it was written; what is wrong here is told with everything else.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, Final

from erfs.errors import ConfigError, Problem
from erfs_scenario.yaml_marks import Document, Path, load, read_bounded, scalar_of, suggest

Scalar = str | int | float | bool

FRAGMENT_KEYS: Final = (
    "parameters",
    "includes",
    "demands",
    "faults",
    "random_faults",
    "expect",
    "abort",
    "blast_radius",
    "timing",
    "timers",
    "baselines",
)
"""What an included file may say: all but what makes a scenario itself, its name, fabric and seed."""
# A scenario has a handful; this is for a folder that includes itself by many names.
INCLUDED_MAX: Final = 100
_USE: Final = re.compile(r"\$\{([^{}]*)\}")


def compose(root: Document, path: FilePath, settings: Mapping[str, str]) -> dict[str, str]:
    """
    Take into *root* what its includes say, and put the values of parameters where they are used.

    What the including file says counts over what it includes, and of two included files the later over the earlier. Lists are
    joined, what is included first. A file that is included twice counts once.

    Args:
        root: As read; changed in place, problems included.
        path: Of its file.
        settings: Values for parameters as text, instead of the file's own.

    Returns:
        The value of each parameter, as text that gives the same value when it is set.

    Cost: O(values of all files).
    """
    included = _Includes(root, path)
    own = replace(root, values=dict(root.values), keys=dict(root.keys))
    if included.found:
        root.data, root.values, root.keys = {}, {(): own.value_mark(())}, {}
        for document in (*included.found, own):
            _merge(root, document, (), document.data)
    parameters = _parameters(root, settings)
    _Filling(root, parameters).fill()
    return {name: text_of(value) for name, value in sorted(parameters.items()) if value is not None}


def text_of(value: Scalar) -> str:
    """Return the text that `scalar_of` makes *value* of: text that looks like a number is put in quotes."""
    text = json.dumps(value) if isinstance(value, bool) else str(value)
    return text if scalar_of(text) == value else json.dumps(text, ensure_ascii=False)


class _Includes:
    """The files that one includes, those included by an included file before it."""

    def __init__(self, root: Document, path: FilePath) -> None:
        self._root = root
        self.found: list[Document] = []
        self._seen: set[FilePath] = set()
        self._gather(root, path, ((path.resolve(), root.source),))

    def _gather(self, document: Document, path: FilePath, chain: tuple[tuple[FilePath, str], ...]) -> None:
        listed = document.data.get("includes", [])
        if isinstance(listed, str):
            self._include(document, path, chain, listed, ("includes",))
        elif isinstance(listed, list):
            for index, name in enumerate(listed):
                self._include(document, path, chain, name, ("includes", index))
        elif document is not self._root:  # of the root the schema says so
            self._complain(document, ("includes",), "expected the name of a file, or a list of them")

    def _include(
        self, document: Document, path: FilePath, chain: tuple[tuple[FilePath, str], ...], name: object, place: Path
    ) -> None:
        if not isinstance(name, str) or not name:
            self._complain(document, place, "expected the name of a file")
            return
        file, called = path.parent / name, str(FilePath(document.source).parent / name)
        identity = file.resolve()
        sources = [source for _, source in chain]
        if identity in [known for known, _ in chain]:
            self._complain(document, place, f"a file includes itself: {' -> '.join([*sources, called])}")
            return
        if identity in self._seen:
            return
        self._seen.add(identity)
        if len(self._seen) > INCLUDED_MAX:
            self._complain(document, place, f"more than {INCLUDED_MAX} files are included")
            return
        try:
            fragment = load(read_bounded(file), called)
        except OSError as error:
            advice = f"file names are relative to {document.source}"
            self._complain(document, place, f'cannot include "{name}": {error.strerror or error}', advice)
            return
        except ConfigError as error:
            self._root.problems += [replace(problem, source=error.source) for problem in error.problems]
            return
        self._root.problems += [replace(problem, source=fragment.source) for problem in fragment.problems]
        for key in [key for key in fragment.data if key not in FRAGMENT_KEYS]:
            message = f'"{key}" may not stand in an included file'
            self._complain(fragment, (key,), message, suggest(key, FRAGMENT_KEYS), is_key=True)
            del fragment.data[key]
        self._gather(fragment, file, (*chain, (identity, called)))
        fragment.data.pop("includes", None)
        self.found.append(fragment)

    def _complain(
        self, document: Document, place: Path, message: str, suggestion: str = "", *, is_key: bool = False
    ) -> None:
        problem = document.problem(place, message, suggestion, is_key=is_key)
        own = "" if document is self._root else document.source
        self._root.problems.append(replace(problem, source=own))


def _merge(into: Document, source: Document, path: Path, value: Mapping[str, Any]) -> None:
    """Let what *source* says in the mapping at *path* count in *into*, which has a mapping there, too."""
    mapping = _at(into.data, path)
    for key, item in value.items():
        place = (*path, key)
        into.keys[place] = source.keys[place]
        known = mapping.get(key)
        if isinstance(known, dict) and isinstance(item, dict):
            into.values[place] = source.values[place]
            _merge(into, source, place, item)
        elif isinstance(known, list) and isinstance(item, list):
            for index, member in enumerate(item):
                _copy_marks(into, source, (*place, len(known) + index), (*place, index), member)
            mapping[key] = [*known, *item]
        else:
            if key in mapping:
                _forget_marks(into, place)
            _copy_marks(into, source, place, place, item)
            mapping[key] = item


def _at(data: Any, path: Path) -> Any:
    for part in path:
        data = data[part]
    return data


def _copy_marks(into: Document, source: Document, to: Path, at: Path, value: object) -> None:
    into.values[to] = source.values[at]
    if at in source.keys:
        into.keys[to] = source.keys[at]
    if isinstance(value, dict):
        for key, item in value.items():
            _copy_marks(into, source, (*to, key), (*at, key), item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _copy_marks(into, source, (*to, index), (*at, index), item)


def _forget_marks(document: Document, path: Path) -> None:
    for marks in (document.values, document.keys):
        for known in [known for known in marks if known[: len(path)] == path and known != path]:
            del marks[known]


def _parameters(document: Document, settings: Mapping[str, str]) -> dict[str, Scalar | None]:
    """Return the value of each parameter, None for what has none; what is wrong with them goes to the document's problems."""
    declared = document.data.get("parameters", {})
    if not isinstance(declared, dict):
        return {}  # the schema says so
    found: dict[str, Scalar | None] = {}
    for name, default in declared.items():
        place: Path = ("parameters", name)
        value = scalar_of(settings[name]) if name in settings else default
        if isinstance(value, dict | list):
            continue  # the schema says so
        found[name] = value
        if value is None:
            message, advice = f'the parameter "{name}" has no value', f"give it one here, or say --set {name}=VALUE"
            document.problems.append(document.problem(place, message, advice, is_key=True))
        elif isinstance(value, str) and "${" in value:
            message = f'the value of the parameter "{name}" is "{value}": a parameter cannot use another'
            document.problems.append(document.problem(place, message))
    for name in sorted(settings.keys() - declared.keys()):
        message, advice = f'--set {name}: there is no parameter "{name}"', suggest(name, declared)
        problem = document.problem(("parameters",), message, advice or 'the file has no "parameters"', is_key=True)
        if "parameters" not in document.data:
            problem = Problem(0, message, suggestion=problem.suggestion)
        document.problems.append(problem)
    return found


class _Filling:
    """Puts the values of parameters where they are used."""

    def __init__(self, document: Document, parameters: Mapping[str, Scalar | None]) -> None:
        self._document = document
        self._parameters = parameters

    def fill(self) -> None:
        """Change the document's data."""
        data = self._document.data
        for key, value in data.items():
            if key not in ("parameters", "includes"):
                data[key] = self._filled(value, (key,))

    def _filled(self, value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return {key: self._filled(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self._filled(item, (*path, index)) for index, item in enumerate(value)]
        return self._text(value, path) if isinstance(value, str) and "${" in value else value

    def _text(self, text: str, path: Path) -> Scalar:
        names = _USE.findall(text)
        if not names:
            self._complain(path, f'"{text}": a "${{" has no end', "write ${name}")
            return text
        known = True
        for name in dict.fromkeys(names):
            if name not in self._parameters:
                advice = suggest(name, self._parameters) or f'add "parameters: {{{name}: …}}"'
                self._complain(path, f'there is no parameter "{name}"', advice)
            known = known and self._parameters.get(name) is not None
        if not known:
            self._document.not_filled_in.append(path)
            return text
        said = ", ".join(
            f"${{{name}}} is {json.dumps(self._value(name), ensure_ascii=False)}" for name in dict.fromkeys(names)
        )
        self._document.filled_in[path] = said
        if len(names) == 1 and text == f"${{{names[0]}}}":
            return self._value(names[0])
        return _USE.sub(lambda use: str(json.dumps(one) if isinstance(one := self._value(use[1]), bool) else one), text)

    def _value(self, name: str) -> Scalar:
        value = self._parameters[name]
        assert value is not None
        return value

    def _complain(self, path: Path, message: str, suggestion: str) -> None:
        self._document.problems.append(self._document.problem(path, message, suggestion))
