"""What can be broken in a lab: cables, directions of cables, the management network, programs; how, whether it is so, and how it ends.

Rule 1: every breakage ends by itself: its lease is kept by the kernel (an expiring set element), or it is part of a namespace
or a process that cannot outlive the lab's owner.
Rule 2: "begun" is not "in effect": only what is read back from the kernel counts.
"""

import asyncio
import itertools
import json
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from erfs.fabric import LinkEnd
from erfs.ids import NodeId
from erfs.units import MS, PPM, SECOND
from erfs_scenario.kernel.members import Members
from erfs_scenario.kernel.spaces import LabError, Spaces

LEASE_NS: Final = 3 * SECOND
"""A drop that nobody renews ends after so long."""
RENEWAL_NS: Final = 800 * MS
_IFF_UP, _IFF_RUNNING = 1, 64
# What a token bucket holds at most, in time: below it a rate is rather a rhythm.
_BURST_BYTES: Final = 32_768
_numbers = itertools.count(1)


class Breakage(Protocol):
    """Something that can be broken and mended."""

    async def begin(self) -> None:
        """Break it."""

    async def end(self) -> None:
        """Mend it."""

    def is_in_effect(self) -> bool:
        """Return whether the kernel says that it is broken, all of it."""

    def is_over(self) -> bool:
        """Return whether the kernel says that nothing of it is left."""


class PortsDown:
    """
    Ports set admin down: each loses its link, and the far end its carrier. Of a cut cable either end will do.

    Args:
        spaces: The lab.
        ends: The ports.
    """

    def __init__(self, spaces: Spaces, ends: Sequence[LinkEnd]) -> None:
        self._spaces = spaces
        self._ends = tuple(ends)

    async def begin(self) -> None:
        """Set them down."""
        for end in self._ends:
            self._spaces.set_up(end, False)

    async def end(self) -> None:
        """Set them up."""
        for end in self._ends:
            self._spaces.set_up(end, True)
        for node in sorted({end.node for end in self._ends}):
            self._spaces.lay_underlay_again(node)

    def is_in_effect(self) -> bool:
        """Return whether all are down, and no far end has carrier."""
        return not any(self._spaces.flags(end) & _IFF_UP or self._has_far_carrier(end) for end in self._ends)

    def is_over(self) -> bool:
        """Return whether all are up and both ends have carrier, where the far one is not held down by something else."""
        for end in self._ends:
            far = self._spaces.far_end(end)
            if not self._spaces.flags(end) & _IFF_UP:
                return False
            if self._spaces.flags(far) & _IFF_UP and not (
                self._spaces.flags(end) & _IFF_RUNNING and self._has_far_carrier(end)
            ):
                return False
        return True

    def _has_far_carrier(self, end: LinkEnd) -> bool:
        return bool(self._spaces.flags(self._spaces.far_end(end)) & _IFF_RUNNING)


class Silence:
    """
    Ports that hear nothing, or only a share: what arrives is dropped before anything of the system sees it; the carrier stays.

    One end of a cable is one direction of it. The drop is a lease: the kernel ends it `LEASE_NS` after the last renewal.

    Args:
        spaces: The lab.
        ends: The ports that are to hear nothing.
        loss_ppm: How much is dropped, at random, in millionths.
    """

    def __init__(self, spaces: Spaces, ends: Sequence[LinkEnd], *, loss_ppm: int = PPM) -> None:
        assert 0 < loss_ppm <= PPM
        self._spaces = spaces
        self._loss_ppm = loss_ppm
        self._table = f"breakage{next(_numbers)}"
        self._devices: dict[NodeId, list[str]] = {}
        for end in ends:
            self._devices.setdefault(end.node, []).append(spaces.device(end))
        self._renewing: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Drop from now on, and keep the lease."""
        for node, devices in self._devices.items():
            self._spaces.run(node, ("nft", "-f", "-"), self._rules(devices))
        self._renewing = asyncio.ensure_future(self._renew_again())

    async def end(self) -> None:
        """Let everything through."""
        await self.forget()
        for node in self._devices:
            self._spaces.run(node, ("nft", "delete", "table", "netdev", self._table))

    async def forget(self) -> None:
        """Renew no more, and do nothing: what an owner does that has died."""
        if self._renewing is not None:
            self._renewing.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewing
            self._renewing = None

    def is_in_effect(self) -> bool:
        """Return whether every lease runs."""
        return all(set(devices) == self._leased(node) for node, devices in self._devices.items())

    def is_over(self) -> bool:
        """Return whether no lease runs."""
        return not any(self._leased(node) for node in self._devices)

    def dropped(self) -> int:
        """Return how many packets the kernel has dropped for this."""
        total = 0
        for node in self._devices:
            text = self._spaces.run(node, ("nft", "-j", "list", "table", "netdev", self._table))
            for item in json.loads(text)["nftables"]:
                for part in item.get("rule", {}).get("expr", ()):
                    total += part.get("counter", {}).get("packets", 0) if isinstance(part, dict) else 0
        return total

    def _rules(self, devices: list[str]) -> str:
        chance = "" if self._loss_ppm == PPM else f"numgen random mod {PPM} < {self._loss_ppm} "
        lease = f"{LEASE_NS // MS}ms"
        elements = ", ".join(f'"{device}" timeout {lease}' for device in devices)
        chains = "".join(
            f' chain c{place} {{\n  type filter hook ingress device "{device}" priority 0; policy accept;\n'
            f"  iifname @leased {chance}counter drop\n }}\n"
            for place, device in enumerate(devices)
        )
        return (
            f"table netdev {self._table} {{\n set leased {{\n  type ifname\n  flags timeout\n"
            f"  elements = {{ {elements} }}\n }}\n{chains}}}\n"
        )

    async def _renew_again(self) -> None:
        while True:
            await asyncio.sleep(RENEWAL_NS / SECOND)
            for node, devices in self._devices.items():
                lines = []
                for device in devices:
                    # In one transaction no packet slips through; the first line is for a lease that has run out.
                    plain = f'element netdev {self._table} leased {{ "{device}" }}'
                    fresh = f'element netdev {self._table} leased {{ "{device}" timeout {LEASE_NS // MS}ms }}'
                    lines += [f"add {fresh}", f"delete {plain}", f"add {fresh}"]
                await self._tell(node, "\n".join(lines) + "\n")

    async def _tell(self, node: NodeId, text: str) -> None:
        program = ("nsenter", f"--net={self._spaces.path(node)}", "nft", "-f", "-")
        process = await asyncio.create_subprocess_exec(
            *program, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        _, err = await process.communicate(text.encode())
        if process.returncode:
            raise LabError(f'nft in the namespace of "{node}": {err.decode().strip()}')

    def _leased(self, node: NodeId) -> set[str]:
        try:
            text = self._spaces.run(node, ("nft", "-j", "list", "set", "netdev", self._table, "leased"))
        except LabError:
            return set()
        (found,) = (item["set"] for item in json.loads(text)["nftables"] if "set" in item)
        return {element["elem"]["val"] for element in found.get("elem", ())}


class Slow:
    """
    A direction of a cable with less capacity: what a port sends waits in a token bucket, and is dropped where it waits too long.

    Taking the bucket away drops what is in it.

    Args:
        spaces: The lab.
        end: The port that sends.
        rate_bps: What is left.
    """

    def __init__(self, spaces: Spaces, end: LinkEnd, *, rate_bps: int) -> None:
        self._spaces = spaces
        self._node = end.node
        self._device = spaces.device(end)
        self._rate_bps = rate_bps

    async def begin(self) -> None:
        """Put the bucket there."""
        shape = ("tbf", "rate", f"{self._rate_bps}bit", "burst", str(_BURST_BYTES), "latency", "50ms")
        self._spaces.run(self._node, ("tc", "qdisc", "add", "dev", self._device, "root", *shape))

    async def end(self) -> None:
        """Take it away."""
        self._spaces.run(self._node, ("tc", "qdisc", "del", "dev", self._device, "root"))

    def is_in_effect(self) -> bool:
        """Return whether the bucket has the rate asked for."""
        # The kernel counts bytes a second.
        return self._rates() == [self._rate_bps // 8]

    def is_over(self) -> bool:
        """Return whether there is none."""
        return not self._rates()

    def _rates(self) -> list[int]:
        text = self._spaces.run(self._node, ("tc", "-j", "qdisc", "show", "dev", self._device))
        return [int(found["options"]["rate"]) for found in json.loads(text) if found["kind"] == "tbf"]


class CutOff:
    """
    Nodes without the bus: the bridge forwards nothing for them, and nobody is told.

    Args:
        spaces: The lab.
        nodes: Whom.
    """

    def __init__(self, spaces: Spaces, nodes: Sequence[NodeId]) -> None:
        self._spaces = spaces
        self._ports = tuple(spaces.wiring.bridge_ports[node] for node in nodes)

    async def begin(self) -> None:
        """Cut them off."""
        self._set("0")

    async def end(self) -> None:
        """Let them in."""
        self._set("3")

    def is_in_effect(self) -> bool:
        """Return whether the bridge says "disabled" of all."""
        return self._states() == {"disabled"}

    def is_over(self) -> bool:
        """Return whether the bridge says "forwarding" of all."""
        return self._states() == {"forwarding"}

    def _set(self, state: str) -> None:
        lines = "".join(f"link set dev {port} state {state}\n" for port in self._ports)
        self._spaces.run(None, ("bridge", "-batch", "-"), lines)

    def _states(self) -> set[str]:
        found = json.loads(self._spaces.run(None, ("bridge", "-j", "link", "show")))
        return {item["state"] for item in found if item["ifname"] in self._ports}


class Killed:
    """Programs that are gone: broker, controller, agents (their tables stay). Mending starts them again."""

    def __init__(self, members: Members, names: Sequence[NodeId]) -> None:
        self._members = members
        self._names = tuple(names)

    async def begin(self) -> None:
        """End them without a word."""
        for name in self._names:
            await self._members.kill(name)

    async def end(self) -> None:
        """Start those again that nobody has started since."""
        for name in self._names:
            if not self._members.running[name].is_running:
                await self._members.revive(name)

    def is_in_effect(self) -> bool:
        """Return whether none runs."""
        return not any(self._members.running[name].is_running for name in self._names)

    def is_over(self) -> bool:
        """Return whether all run."""
        return all(self._members.running[name].is_running for name in self._names)


class Frozen:
    """Programs that are there and do nothing: stopped by a signal. They are children of the owner and go with it, stopped or not."""

    def __init__(self, members: Members, names: Sequence[NodeId]) -> None:
        self._members = members
        self._names = tuple(names)

    async def begin(self) -> None:
        """Stop them."""
        for name in self._names:
            self._members.running[name].send_signal(signal.SIGSTOP)

    async def end(self) -> None:
        """Let them go on."""
        for name in self._names:
            self._members.running[name].send_signal(signal.SIGCONT)

    def is_in_effect(self) -> bool:
        """Return whether all are stopped, says the kernel."""
        return all(state == "T" for state in self._states())

    def is_over(self) -> bool:
        """Return whether none is stopped."""
        return not any(state == "T" for state in self._states())

    def _states(self) -> list[str]:
        found = []
        for name in self._names:
            child = self._members.running[name]
            with suppress(FileNotFoundError):
                if child.is_running:
                    stat = Path(f"/proc/{child.pid}/stat").read_text()
                    found.append(stat[stat.rindex(")") + 2])
        return found
