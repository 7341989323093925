"""Network namespaces that nobody has to clean up, and the wires between them.

Rule 1: a namespace has no name; a child with a parent-death signal holds it, so it goes when the test goes, however that ends.
Rule 2: each end of a wire has an index of its own: ends with equal ones get their carrier events a second late.
"""

import fcntl
import itertools
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from erfs.aio.namespaces import inside

_INDEXES = itertools.count(1000)
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def why_not() -> str:
    """Return why namespaces cannot be made here, "" if they can."""
    if sys.platform != "linux":
        return "needs Linux"
    if os.geteuid() != 0:
        return "needs root"
    done = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, timeout=20, check=False)
    return f"needs network namespaces: {done.stderr.strip()}" if done.returncode else ""


class Namespace:
    """One namespace, with IPv6 addresses that can be used at once."""

    def __init__(self) -> None:
        program = ["unshare", "--net", "sh", "-c", "echo ready; exec cat"]
        self._child = subprocess.Popen(
            [sys.executable, "-m", "erfs_scenario.child", str(os.getpid()), *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._child.stdout is not None
        assert self._child.stdout.readline() == "ready\n"
        self.path = Path(f"/proc/{self._child.pid}/ns/net")
        with inside(self.path):
            self._control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sysctl("net/ipv6/conf/default/accept_dad", "0")
        self.sysctl("net/ipv6/conf/all/accept_dad", "0")
        self("ip link set lo up")

    def __enter__(self) -> "Namespace":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._control.close()
        self._child.kill()
        self._child.communicate()

    def popen(self, command: str) -> "subprocess.Popen[str]":
        """Start *command* inside."""
        inside_here = ["nsenter", f"--net={self.path}", *command.split()]
        return subprocess.Popen(inside_here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __call__(self, command: str, *, is_checked: bool = True) -> str:
        """Run *command* inside and return what it prints."""
        process = self.popen(command)
        out, err = process.communicate(timeout=60)
        assert not is_checked or process.returncode == 0, f"{command}: {err}"
        return out

    def sysctl(self, name: str, value: str) -> None:
        """Set a kernel setting inside."""
        with inside(self.path):
            Path("/proc/sys", name).write_text(value)

    def set_up(self, device: str, is_up: bool) -> None:
        """Set an interface admin up or down, without starting a program for it."""
        request = struct.pack("16sH14x", device.encode(), 0)
        answer = fcntl.ioctl(self._control, _SIOCGIFFLAGS, request)
        flags = struct.unpack_from("=H", answer, 16)[0]
        flags = flags | _IFF_UP if is_up else flags & ~_IFF_UP
        fcntl.ioctl(self._control, _SIOCSIFFLAGS, struct.pack("16sH14x", device.encode(), flags))


def wire(one: Namespace, device: str, mac: str, other: Namespace, far_device: str, far_mac: str) -> None:
    """Lay a cable between two namespaces and set both ends up."""
    index, far_index = next(_INDEXES), next(_INDEXES)
    one(
        f"ip link add {device} address {mac} index {index} type veth"
        f" peer name {far_device} address {far_mac} index {far_index} netns {other.path}"
    )
    one.set_up(device, True)
    other.set_up(far_device, True)
