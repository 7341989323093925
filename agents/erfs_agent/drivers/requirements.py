"""What must the system be set to so that this node forwards, and what of it is not so?

Rule 1: nothing is set here: whether a machine is a router is for whoever runs it to say.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from erfs.addressing import NodeAddressing

ReadSysctl = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Missing:
    """A setting that is not as it must be."""

    setting: str
    found: str
    wanted: str


_ROUTER: Final = (("net/ipv4/ip_forward", ("1",)), ("net/ipv6/conf/all/forwarding", ("1", "2")))
# Strict filtering drops what comes in by another of several equal paths.
_LOOSE: Final = ("0", "2")


def missing(node: NodeAddressing, read: ReadSysctl) -> list[Missing]:
    """
    Return what is missing.

    Args:
        node: The node's part of the addressing.
        read: Returns the value of a setting, None if there is none.
    """
    wanted = list(_ROUTER) if node.is_forwarding else []
    devices = [port.device for port in node.ports.values()]
    wanted += [(f"net/ipv6/conf/{device}/disable_ipv6", ("0",)) for device in devices]
    found = [(name, read(name), values) for name, values in wanted]
    # The kernel takes the larger one of "all" and the interface's own.
    everywhere = read("net/ipv4/conf/all/rp_filter") or "0"
    for device in devices:
        name = f"net/ipv4/conf/{device}/rp_filter"
        own = read(name)
        found.append((name, max(own, everywhere) if own is not None else None, _LOOSE))
    return [
        Missing(name.replace("/", "."), value if value is not None else "no such setting", " or ".join(values))
        for name, value, values in found
        if value not in values
    ]


def read_sysctl(name: str) -> str | None:
    """Return the value of a kernel setting in the namespace this thread is in, None if there is none."""
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None
