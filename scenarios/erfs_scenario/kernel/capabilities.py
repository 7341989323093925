"""What can this machine's kernel do of what a lab needs, and what is the way round where it cannot?

Rule 1: everything is tried, in a namespace that is gone afterwards; nothing is concluded from a version number.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from erfs.aio.namespaces import inside, new_namespace
from erfs.errors import ConfigError, Problem
from erfs_scenario.kernel.wiring import HASH_SEED

_TRY_S: Final = 20


@dataclass(frozen=True, slots=True)
class Capability:
    """
    One thing a kernel can or cannot do.

    Args:
        program: What is tried; it fails where the thing is missing.
        text: Its standard input.
        purpose: What a lab needs it for.
        substitute: What to do without it.
    """

    program: tuple[str, ...]
    text: str
    purpose: str
    substitute: str


_SIMULATE: Final = "run the scenario with --backend sim or live"
CAPABILITIES: Final = {
    "next-hop objects": Capability(
        ("ip", "-batch", "-"),
        "link set lo up\nnexthop add id 1 blackhole\nnexthop add id 2 group 1\n",
        "forwarding by ERFS's agents",
        f"use Linux 5.16 or newer, or {_SIMULATE}",
    ),
    "expiring drops": Capability(
        ("nft", "-f", "-"),
        "table netdev t {\n set s { type ifname; flags timeout; elements = { lo timeout 1s }; }\n"
        " chain i { type filter hook ingress device lo priority 0; iifname @s drop; }\n"
        " chain e { type filter hook egress device lo priority 0; oifname @s drop; }\n}\n",
        "silent drops that end by themselves",
        "install nftables, on Linux 5.16 or newer; cut the cable instead (link_down)",
    ),
    "random drops": Capability(
        ("nft", "-f", "-"),
        "table netdev t {\n chain i { type filter hook ingress device lo priority 0; numgen random mod 1000 < 10 drop; }\n}\n",
        "random loss",
        "build the kernel with CONFIG_NFT_NUMGEN; a silent drop is the nearest fault",
    ),
    "tbf": Capability(
        ("tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "1mbit", "burst", "32k", "latency", "50ms"),
        "",
        "rate limits",
        "build the kernel with CONFIG_NET_SCH_TBF; random loss is the nearest fault",
    ),
    "netem": Capability(
        ("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"),
        "",
        "delays",
        "nothing else delays packets; rate limits (tbf) and random drops (nft) do without it",
    ),
}


def missing_capabilities() -> dict[str, str]:
    """
    Return what this kernel lacks, and its own words for it.

    Raises:
        OSError: namespaces are not permitted here.

    Cost: a namespace and a program for each.
    """
    found = {}
    for name, capability in CAPABILITIES.items():
        said = _try(capability)
        if said:
            found[name] = said
    return found


def has_hash_seed() -> bool:
    """Return whether each namespace can spread flows its own way (Linux 6.11); without it spreads are less even."""
    return Path("/proc/sys", HASH_SEED).exists()


def require(needed: set[str], missing: dict[str, str], what: str) -> None:
    """
    Refuse what the kernel cannot do.

    Args:
        needed: Names of `CAPABILITIES`.
        missing: What `missing_capabilities` found.
        what: The file or command that needs them, for the message.

    Raises:
        ConfigError: something is missing; names the substitute.
    """
    problems = [
        Problem(
            0,
            f"this kernel has no {name}, needed for {CAPABILITIES[name].purpose}: {missing[name]}",
            suggestion=CAPABILITIES[name].substitute,
        )
        for name in sorted(needed & missing.keys())
    ]
    if problems:
        raise ConfigError(what, problems)


def _try(capability: Capability) -> str:
    """Return why it is not to be had, "" if it is."""
    if shutil.which(capability.program[0]) is None:
        return f'no program "{capability.program[0]}"'
    space = new_namespace()
    try:
        with inside(Path(f"/proc/self/fd/{space}")):
            done = subprocess.run(  # noqa: S603 -- programs of ours by name, no shell
                capability.program, input=capability.text, capture_output=True, text=True, timeout=_TRY_S, check=False
            )
    finally:
        os.close(space)
    said = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else (said[0] if said else f"exit code {done.returncode}")
