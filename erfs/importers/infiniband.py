"""How fast is "4xNDR"? The names InfiniBand tools print, to bits per second and back.

Rule 1: a capacity is the nominal rate people name the link by (a 4x NDR link is 400 Gb/s), not the signalling rate and not the
rate left after line coding, so that 4xEDR and 100G Ethernet compare equal.
Rule 2: a speed that is not in the table is unknown; nothing is guessed.
"""

import re
from typing import Final

# Gbit/s per lane by name. Source: InfiniBand Architecture Specification volume 1 (LinkSpeedActive, LinkSpeedExtActive) and the
# IBTA roadmap's nominal rates. FDR10 is Mellanox's 10 Gb/s with 64/66 coding. SDR, DDR and QDR lose a fifth to 8b/10b coding.
LANE_MBPS: Final = {
    "SDR": 2_500,
    "DDR": 5_000,
    "QDR": 10_000,
    "FDR10": 10_000,
    "FDR": 14_000,
    "EDR": 25_000,
    "HDR": 50_000,
    "NDR": 100_000,
    "XDR": 200_000,
}
# The signalling rates that libibmad's mad_dump_linkspeed family prints per lane, and the name each stands for.
_SIGNALLING: Final = {
    "2.5": "SDR",
    "5": "DDR",
    "10": "QDR",
    "10.3125": "FDR10",
    "14.0625": "FDR",
    "25.78125": "EDR",
    "53.125": "HDR",
    "106.25": "NDR",
    "212.5": "XDR",
}
_WIDTHS: Final = (4, 1, 2, 8, 12)
_SPEED: Final = re.compile(r"(?P<lanes>1|2|4|8|12)[xX]\s*(?:(?P<name>[A-Z]+(?:10)?)|(?P<gbps>\d+(?:\.\d+)?)\s*Gbps)")


def capacity_of(speed: str) -> int | None:
    """
    Return the bits per second of *speed*, such as ``4xNDR``, ``4x NDR`` or ``4x 106.25 Gbps`` (per lane); None if unknown.

    The tools print ``4x???`` for a speed newer than they are.
    """
    match = _SPEED.fullmatch(speed)
    if match is None:
        return None
    name = match["name"]
    if name is None:
        whole, _, fraction = match["gbps"].partition(".")
        fraction = fraction.rstrip("0")
        name = _SIGNALLING.get(f"{int(whole)}.{fraction}" if fraction else str(int(whole)), "")
    lane_mbps = LANE_MBPS.get(name)
    return None if lane_mbps is None else int(match["lanes"]) * lane_mbps * 1_000_000


def speed_of(capacity_bps: int) -> str | None:
    """Return the name of a speed with exactly *capacity_bps*, four lanes preferred, the newest first; None if there is none."""
    for lanes in _WIDTHS:
        for name in reversed(LANE_MBPS):
            if lanes * LANE_MBPS[name] * 1_000_000 == capacity_bps:
                return f"{lanes}x{name}"
    return None
