"""Units at the edge: people write "50 ms" and read "12.3 ms"; inside, every instant and duration is integer nanoseconds.

Rule 1: no float ever holds an instant or a duration.
Rule 2: nothing here reads a clock.
"""

import re
from typing import Final

NS: Final = 1
US: Final = 1_000
MS: Final = 1_000_000
SECOND: Final = 1_000_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE

PPM: Final = 1_000_000
"""Shares are integers too: so many millionths."""

GBPS: Final = 1_000_000_000

_DURATION_UNITS: Final = {
    "ns": NS,
    "us": US,
    "µs": US,
    "ms": MS,
    "s": SECOND,
    "min": MINUTE,
    "h": HOUR,
}
_DURATION: Final = re.compile(r"\s*(?P<value>\d+(?:\.\d+)?)\s*(?P<unit>[a-zµ]+)\s*")


def parse_duration(text: str) -> int:
    """
    Return the nanoseconds that *text* names, such as ``50 ms``, ``1.5s`` or ``2 h``.

    Raises:
        ValueError: no number, no unit, or an unknown unit; the message names the units.
    """
    match = _DURATION.fullmatch(text)
    units = ", ".join(unit for unit in _DURATION_UNITS if unit != "µs")
    if match is None:
        raise ValueError(f'"{text}" is not a duration: expected a number and a unit ({units}), such as "50 ms"')
    unit_ns = _DURATION_UNITS.get(match["unit"])
    if unit_ns is None:
        raise ValueError(f'"{text}" has the unknown unit "{match["unit"]}": expected one of {units}')
    whole, _, fraction = match["value"].partition(".")
    fraction_ns = int(fraction) * unit_ns // 10 ** len(fraction) if fraction else 0
    return int(whole) * unit_ns + fraction_ns


def format_duration(duration_ns: int) -> str:
    """Return *duration_ns* for people: three significant digits and the unit that suits it."""
    for unit, unit_ns in (("h", HOUR), ("min", MINUTE), ("s", SECOND), ("ms", MS), ("us", US)):
        if abs(duration_ns) >= unit_ns:
            return (
                f"{duration_ns / unit_ns:.3g} {unit}"
                if abs(duration_ns) < 1000 * unit_ns
                else f"{duration_ns / unit_ns:.0f} {unit}"
            )
    return f"{duration_ns} ns"


def format_ms(duration_ns: int) -> str:
    """Return *duration_ns* in milliseconds with two decimals, the unit of every recovery table."""
    return f"{duration_ns / MS:.2f} ms"


def format_bps(rate_bps: int) -> str:
    """Return *rate_bps* for people, in Gbit/s where it is that large."""
    if rate_bps >= GBPS:
        return f"{rate_bps / GBPS:g} Gb/s"
    return f"{rate_bps / 1_000_000:g} Mb/s"
