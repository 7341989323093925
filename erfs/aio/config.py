"""What does a daemon's configuration say? A TOML file, overridden by the environment, every mistake told at once.

Rule 1: a configuration is taken whole or refused whole.
Rule 2: each problem names the file and line, or the environment variable, and what was probably meant.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from erfs.errors import ConfigError, Problem
from erfs.units import parse_duration

DELIMITER: Final = "__"


def _duration(value: object) -> object:
    if isinstance(value, str):
        return parse_duration(value)
    raise ValueError('a duration needs its unit in a string, such as "50 ms"')


Duration = Annotated[int, BeforeValidator(_duration)]
"""Nanoseconds, written with a unit."""


class DaemonSettings(BaseSettings):
    """The base of a daemon's settings; a subclass sets ``env_prefix`` to such as ``ERFS_AGENT__``."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_nested_delimiter=DELIMITER,
        hide_input_in_errors=True,
        validate_default=False,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file; there is nothing else."""
        return env_settings, init_settings


Settings = TypeVar("Settings", bound=DaemonSettings)


def load(model: type[Settings], path: Path) -> Settings:
    """
    Return the settings in *path*, overridden by the environment.

    Raises:
        ConfigError: the file cannot be read, is no TOML, or says something wrong: all problems, each with its line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(path), [Problem(0, f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), [Problem(0, f"is not UTF-8 text (byte {error.start})")]) from None
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(path), [_of_syntax(str(error))]) from None
    prefix = model.model_config["env_prefix"]
    problems = list(_unknown_variables(model, prefix))
    try:
        settings = model(**content)
    except SettingsError as error:
        problems.append(Problem(0, f"environment: {error}"))
    except ValidationError as error:
        lines = _lines_of_keys(text)
        found = error.errors(include_url=False)
        # A list whose only item is wrong is also called too short; the item's own problem says it better.
        wrong = {details["loc"][:length] for details in found for length in range(len(details["loc"]))}
        problems += [
            _of_value(model, details, lines, prefix)
            for details in found
            if details["type"] != "too_short" or details["loc"] not in wrong
        ]
    if problems:
        raise ConfigError(str(path), sorted(problems, key=lambda problem: (problem.line, problem.message)))
    return settings


def _of_syntax(message: str) -> Problem:
    place = re.search(r" \(at line (\d+), column (\d+)\)", message)
    if place is None:
        return Problem(0, f"is not TOML: {message}")
    return Problem(int(place[1]), f"is not TOML: {message[: place.start()]}", int(place[2]))


def _of_value(
    model: type[BaseModel], details: ErrorDetails, lines: Mapping[tuple[str | int, ...], int], prefix: str
) -> Problem:
    place = details["loc"]
    key = _dotted(place)
    variable = _variable_of(place, prefix)
    suggestion = ""
    if details["type"] == "extra_forbidden":
        message = f'unknown key "{key}"'
        suggestion = _did_you_mean(str(place[-1]), _keys_at(model, place[:-1]))
    elif details["type"] == "missing":
        message = f'"{key}" is missing'
    else:
        message = f'"{key}": {_plain(details["msg"])}'
        value = details["input"]
        # Our own validators show the value themselves.
        is_shown = details["type"] == "value_error"
        if isinstance(value, str | int | float | bool) and "password" not in key and not is_shown:
            message += f", not {value!r}"
    if variable:
        return Problem(0, f"environment variable {variable}: {message}", suggestion=suggestion)
    line = next((lines[place[:length]] for length in range(len(place), 0, -1) if place[:length] in lines), 0)
    return Problem(line, message, suggestion=suggestion)


def _plain(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _dotted(place: tuple[str | int, ...]) -> str:
    return ".".join(str(part) for part in place)


def _did_you_mean(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f'did you mean "{close[0]}"?'
    return f"known: {', '.join(sorted(known))}" if known else ""


def _variable_of(place: tuple[str | int, ...], prefix: str) -> str:
    """Return the environment variable that said what is at *place*, "" if none did."""
    names = [prefix + DELIMITER.join(str(part) for part in place[:length]) for length in range(len(place), 0, -1)]
    present = {name.upper(): name for name in os.environ}
    return next((present[name.upper()] for name in names if name.upper() in present), "")


def _unknown_variables(model: type[BaseModel], prefix: str) -> Iterator[Problem]:
    """Variables with our prefix that name no field: the library would pass over them in silence."""
    known = list(model.model_fields)
    for name in sorted(os.environ):
        if name.upper().startswith(prefix):
            first = name[len(prefix) :].split(DELIMITER)[0].lower()
            if first not in known:
                yield Problem(
                    0, f'environment variable {name}: unknown key "{first}"', suggestion=_did_you_mean(first, known)
                )


def _keys_at(model: type[BaseModel], place: tuple[str | int, ...]) -> list[str]:
    """Return the keys that may stand at *place*."""
    models: list[type[BaseModel]] = [model]
    for part in place:
        if isinstance(part, int):
            continue
        models = [
            found
            for candidate in models
            if part in candidate.model_fields
            for found in _models_in(candidate.model_fields[part].annotation)
        ]
    return sorted({key for candidate in models for key in candidate.model_fields})


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


_TABLE: Final = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]")
_KEY: Final = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")


def _lines_of_keys(text: str) -> dict[tuple[str | int, ...], int]:
    """Return the line of each table and key of a sound TOML text; what is inside a value is found by its key."""
    lines: dict[tuple[str | int, ...], int] = {}
    table: tuple[str | int, ...] = ()
    count: dict[tuple[str | int, ...], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if (header := _TABLE.match(line)) is not None:
            table = _parts(header[2])
            if header[1] == "[[":
                count[table] = count.get(table, -1) + 1
                table = (*table, count[table])
            lines.setdefault(table, number)
        elif (key := _KEY.match(line)) is not None:
            lines.setdefault((*table, *_parts(key[1])), number)
    return lines


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
