"""The namespaces of a lab, held by descriptors of this process alone.

Rule 1: nothing has a name: when this process is gone, however it went, so are the namespaces and all cables between them.
Rule 2: what the kernel refuses is said with the command and the namespace it was meant for.
"""

import fcntl
import os
import socket
import struct
import subprocess
from pathlib import Path
from typing import Final

from erfs.addressing import Addressing
from erfs.aio.namespaces import inside, new_namespace
from erfs.errors import ErfsError
from erfs.fabric import Fabric, LinkEnd
from erfs.ids import NodeId
from erfs_scenario.kernel.wiring import HASH_SEED, SpaceSetup, Wiring, wire

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_BATCH_S: Final = 60
_OPTIONAL: Final = frozenset({HASH_SEED, "net/ipv4/nexthop_compat_mode"})


class LabError(ErfsError):
    """The kernel, or a program of the lab, did not do what was asked."""


class Spaces:
    """
    A namespace for each node of a fabric, wired, and one for the bus, or the one of a host where the bus is in band.

    Args:
        fabric: What to build.
        addressing: Its plan.
        is_bus_in_band: Whether the bus runs over the fabric's links.

    Raises:
        FabricError: too large, or not to be built.
        LabError: the kernel refused something.
        OSError: namespaces are not permitted here.
    """

    def __init__(self, fabric: Fabric, addressing: Addressing, *, is_bus_in_band: bool = False) -> None:
        self.fabric = fabric
        self.addressing = addressing
        self._fds: dict[NodeId | None, int] = {}
        self._controls: dict[NodeId, socket.socket] = {}
        try:
            # None is the bus, for a node may bear any name.
            for made in fabric.nodes:
                self._fds[made] = new_namespace()
            self.wiring: Wiring = wire(fabric, addressing, self.path, is_bus_in_band=is_bus_in_band)
            host = self.wiring.bus_host
            self._fds[None] = new_namespace() if host is None else os.dup(self._fds[host])
            everybody: list[tuple[NodeId | None, SpaceSetup]] = [(None, self.wiring.bus), *self.wiring.nodes.items()]
            for node, setup in everybody:
                self._set(node, setup.settings)
            for node, setup in everybody:
                self.batch(node, setup.links)
            for node, setup in everybody:
                self.batch(node, setup.finish)
                self._set(node, setup.settings_after)
            for node, routes in self.wiring.underlay.items():
                self.batch(node, routes)
            for made in fabric.nodes:
                with inside(self.path(made)):
                    self._controls[made] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        except BaseException:
            self.close()
            raise

    def path(self, node: NodeId | None) -> Path:
        """Return where anybody may open the namespace of *node* (None: of the bus) while this process lives."""
        return Path(f"/proc/{os.getpid()}/fd/{self._fds[node]}")

    def descriptors(self) -> dict[NodeId | None, int]:
        """Return the number of each descriptor, for those who open it by way of /proc."""
        return dict(self._fds)

    def far_end(self, end: LinkEnd) -> LinkEnd:
        """Return the other end of a port's cable."""
        return self.fabric.link_at[end].other_end(end)

    def device(self, end: LinkEnd) -> str:
        """Return the interface of a port."""
        return self.addressing.nodes[end.node].ports[end.port].device

    def batch(self, node: NodeId | None, lines: tuple[str, ...]) -> None:
        """
        Run `ip` commands in a namespace.

        Raises:
            LabError: one was refused; those before it are done.
        """
        if lines:
            self.run(node, ("ip", "-batch", "-"), "\n".join(lines) + "\n")

    def run(self, node: NodeId | None, program: tuple[str, ...], text: str = "") -> str:
        """Run a program in a namespace; return what it prints. Raises LabError if it fails."""
        done = self.attempt(node, program, text)
        if done.returncode:
            place = "the bus" if node is None else f'"{node}"'
            raise LabError(f"{' '.join(program)} in the namespace of {place}: {done.stderr.strip()}")
        return done.stdout

    def attempt(
        self, node: NodeId | None, program: tuple[str, ...], text: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program in a namespace; return how it went."""
        with inside(self.path(node)):
            return subprocess.run(  # noqa: S603 -- programs of ours by name, no shell
                program, input=text, capture_output=True, text=True, timeout=_BATCH_S, check=False
            )

    def counters(self, node: NodeId) -> dict[LinkEnd, tuple[int, int]]:
        """Return how many packets each port has received and sent."""
        with inside(self.path(node)):
            lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
        fields = {name.strip(): rest.split() for name, _, rest in (line.partition(":") for line in lines)}
        found = {}
        for port, addressed in self.addressing.nodes[node].ports.items():
            counted = fields[addressed.device]
            found[LinkEnd(node, port)] = int(counted[1]), int(counted[9])
        return found

    def set_up(self, end: LinkEnd, is_up: bool) -> None:
        """Set a port admin up or down. One ioctl: no program is started for it."""
        device, control = self.device(end), self._controls[end.node]
        answer = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH14x", device.encode(), 0))
        flags = struct.unpack_from("=H", answer, 16)[0]
        flags = flags | _IFF_UP if is_up else flags & ~_IFF_UP
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", device.encode(), flags))

    def flags(self, end: LinkEnd) -> int:
        """Return the interface flags of a port as the kernel has them now (IFF_UP 1, IFF_RUNNING 64)."""
        request = struct.pack("16sH14x", self.device(end).encode(), 0)
        found: int = struct.unpack_from("=H", fcntl.ioctl(self._controls[end.node], _SIOCGIFFLAGS, request), 16)[0]
        return found

    def lay_underlay_again(self, node: NodeId) -> None:
        """
        Put those routes of a bus in band back that the kernel removed when the last port of theirs was set down.

        What configures a machine's interfaces does so whenever one comes up. Where the bus has a network of its own there are none.
        """
        routes = self.wiring.underlay.get(node, ())
        if routes:
            # Those that are there are refused, as are those over a port that is still down: its own turn comes.
            self.attempt(node, ("ip", "-force", "-batch", "-"), "\n".join(routes) + "\n")

    def close(self) -> None:
        """Let go of everything; the kernel takes it apart."""
        for control in self._controls.values():
            control.close()
        for descriptor in self._fds.values():
            os.close(descriptor)
        self._controls, self._fds = {}, {}

    def _set(self, node: NodeId | None, settings: dict[str, str]) -> None:
        with inside(self.path(node)):
            for name, value in settings.items():
                path = Path("/proc/sys", name)
                try:
                    path.write_text(value)
                except FileNotFoundError:
                    if name not in _OPTIONAL:
                        raise LabError(f"this kernel has no setting {name.replace('/', '.')}") from None
