"""How does a file say how long, how much, how fast, and how many? With a unit, always; there is no guessing.

Rule 1: a duration becomes whole nanoseconds, a share millionths, a rate bits per second; no float is left.
"""

import re
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from erfs.units import parse_duration

_RATE_UNITS: Final = {"kbit/s": 1_000, "Mbit/s": 1_000_000, "Gbit/s": 1_000_000_000}
_RATE: Final = re.compile(r"\s*(?P<value>\d+)\s*(?P<unit>[kMG]bit/s)\s*")
_PERCENT: Final = re.compile(r"\s*(?P<whole>\d{1,3})(?:\.(?P<fraction>\d{1,4}))?\s*%\s*")


def _duration(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise PydanticCustomError("duration", 'expected a duration such as "50 ms"')
    if not isinstance(value, str):
        raise PydanticCustomError(
            "duration", "{value} has no unit", {"value": value, "advice": f'write "{value} ms" or "{value} s"'}
        )
    if value.strip().startswith("-"):
        raise PydanticCustomError("duration", '"{value}" is negative', {"value": value})
    if re.fullmatch(r"\s*\d+(\.\d+)?\s*", value):
        number = value.strip()
        raise PydanticCustomError(
            "duration", '"{value}" has no unit', {"value": value, "advice": f'write "{number} ms" or "{number} s"'}
        )
    try:
        return parse_duration(value)
    except ValueError as error:
        raise PydanticCustomError("duration", "{text}", {"text": str(error)}) from None


def _share(value: object) -> object:
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise PydanticCustomError("share", 'expected a percentage such as "99.995 %"')
    parts = int(match["whole"]) * 10_000 + int((match["fraction"] or "").ljust(4, "0"))
    if parts > 1_000_000:
        raise PydanticCustomError("share", '"{value}" is more than 100 %', {"value": value})
    return parts


def _rate(value: object) -> object:
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise PydanticCustomError("rate", 'expected a rate such as "10 Mbit/s"')
    return int(match["value"]) * _RATE_UNITS[match["unit"]]


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Duration = Annotated[
    int,
    BeforeValidator(_duration),
    WithJsonSchema(
        {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(ns|us|µs|ms|s|min|h)\s*$", "examples": ["50 ms"]}
    ),
]
Share = Annotated[
    int,
    BeforeValidator(_share),
    WithJsonSchema({"type": "string", "pattern": r"^\s*\d{1,3}(\.\d{1,4})?\s*%\s*$", "examples": ["99.995 %"]}),
]
Rate = Annotated[
    int,
    BeforeValidator(_rate),
    Field(gt=0),
    WithJsonSchema({"type": "string", "pattern": r"^\s*\d+\s*[kMG]bit/s\s*$", "examples": ["10 Mbit/s"]}),
]
Names = Annotated[
    tuple[str, ...],
    BeforeValidator(_listed),
    Field(min_length=1, strict=False),
    WithJsonSchema({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
