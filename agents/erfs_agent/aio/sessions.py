"""The shell around one node's sessions: a UDP socket for each port, one timer for all of them.

Rule 1: no decisions here; what was received is handed over before the timer is.
Rule 2: a socket that fails is told once and opened again; the session over it falls silent, which is the truth.
Rule 3: nothing is allocated, awaited or logged for a packet that says nothing new.
Rule 4: a packet that nobody waits for wakes nobody: it is read at the next waking, and counts from when the kernel says that it came.
"""

import asyncio
import errno
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, assert_never

from erfs.aio.namespaces import inside
from erfs.ports import Mark, TimerFired
from erfs.units import MS, SECOND
from erfs_agent.probing import (
    HOP_LIMIT,
    Received,
    Retimed,
    Send,
    SessionCommand,
    SessionDown,
    Sessions,
    SessionTiming,
    SessionUp,
)

if TYPE_CHECKING:
    # The process of the sessions has no log of its own, and does without what a log needs.
    from erfs_agent.aio.marks import OnMark

# Linux's numbers, which Python's socket module lacks. The second is the type of the control message, too.
_IP_RECVTTL: Final = 12
_SO_TIMESTAMPNS: Final = 35
_TIMESPEC: Final = struct.Struct("@ll")
_ANCILLARY_SPACE: Final = socket.CMSG_SPACE(struct.calcsize("i")) + socket.CMSG_SPACE(_TIMESPEC.size)
_PACKET_MAX: Final = 128
# A second's packets of the fastest session: what a frozen process finds when it thaws. More than that is somebody's flood,
# and the rest waits for the next waking.
_ROUNDS_MAX: Final = 512
_REOPEN_NS: Final = 250 * MS
# The neighbour is not there, or the queue is full: the next packet may do better over the same socket.
_PASSING: Final = frozenset(
    {errno.ECONNREFUSED, errno.EAGAIN, errno.ENOBUFS, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EPERM, errno.EINTR}
)


OnChange = Callable[[SessionUp | SessionDown], None]


class PortSessions(Protocol):
    """The sessions of a node, wherever they run: `UdpSessions` in this process, `SessionProcess` in one of their own."""

    ports: frozenset[str]
    on_change: OnChange
    on_error: Callable[[Exception], None]
    """An invariant broke, and the sessions have ended."""

    def start(self) -> None:
        """Begin, in the running loop."""

    def stop(self) -> None:
        """End on purpose: the neighbours are told to go on without."""

    def abandon(self) -> None:
        """End as if the node had died; harmless if not running."""

    def retime(self, timings: Mapping[str, SessionTiming]) -> None:
        """Use other intervals from now on."""


@dataclass(frozen=True, slots=True)
class Wire:
    """Where the packets of one port leave and arrive."""

    local: tuple[str, int]
    """An address literal and a UDP port. "::" with an *interface*: whatever arrives there."""
    remote: tuple[str, int]
    """A multicast group needs an *interface*; ff02::1 is whoever is at the other end of the cable."""
    interface: str | None = None
    """The operating system's name of the port; None where routing alone decides, as on loopback."""
    namespace: Path | None = None
    """The network namespace the interface is in, for a laboratory that hosts many nodes in one process; None: our own."""


@dataclass(slots=True)
class _Line:
    """One port's socket; None while it cannot be opened."""

    port: str
    wire: Wire
    udp: socket.socket | None = None
    group: tuple[str, int, int, int] | None = None
    """The destination, where the socket is not connected to it."""
    reopen_ns: int = 0
    is_told: bool = False


class Arrivals:
    """
    Turns the kernel's stamps, which are wall clock, into instants of the monotonic one.

    A stamp is never taken for earlier than it was, though the wall clock was set meanwhile, nor for later than now.
    """

    def __init__(self) -> None:
        self._offset_ns = self._before_ns = -(2**63)
        self._now_ns = 0

    def begin(self, wall_ns: int, now_ns: int) -> None:
        """Begin to read a batch; *wall_ns* was taken first, so a pause between the two makes stamps later, not earlier."""
        self._before_ns, self._offset_ns = self._offset_ns, now_ns - wall_ns
        self._now_ns = now_ns

    def instant_ns(self, stamp_ns: int) -> int:
        """Return when the packet of *stamp_ns* came. It was stamped under this batch's offset or under the last one's."""
        return min(self._now_ns, stamp_ns + max(self._offset_ns, self._before_ns))


class UdpSessions:
    """
    Runs *core* in the event loop; many nodes may share a loop.

    Args:
        core: Not yet started.
        wires: One for each of its ports.
        dscp: The class of service of the packets; they must not wait behind the traffic they watch.
        on_mark: Told of each mark and its instant, at once.
        clock_ns: Monotonic.
        wall_ns: What the kernel stamps packets with.
    """

    def __init__(
        self,
        core: Sessions,
        wires: Mapping[str, Wire],
        *,
        on_mark: "OnMark",
        dscp: int = 48,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.core = core
        self.send_errors = 0
        self.ports = frozenset(wires)
        self.on_change: OnChange = nobody_listens
        self.on_error: Callable[[Exception], None] = nobody_catches
        self._dscp = dscp
        self._on_mark = on_mark
        self._clock_ns = clock_ns
        self._lines = {port: _Line(port, wire) for port, wire in wires.items()}
        self._by_descriptor: dict[int, _Line] = {}
        self._arrivals = Arrivals()
        self._wall_ns = wall_ns
        self._epoll: select.epoll | None = None
        self._alert: select.epoll | None = None
        self._watched: frozenset[str] = frozenset()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns: int | None = None

    # --- what the agent's runtime asks -----------------------------------------------------------------------------------
    def start(self) -> None:
        """Open the sockets and begin."""
        assert self._epoll is None, "started twice"
        # One descriptor stands for all sockets: what has come is found with one call. Another stands for those that the loop watches.
        self._epoll, self._alert = select.epoll(), select.epoll()
        asyncio.get_running_loop().add_reader(self._alert.fileno(), self._on_readable)
        for line in self._lines.values():
            self._open(line)
        self._guarded(lambda: self._carry_out(self.core.start(self._clock_ns())))

    def stop(self) -> None:
        """End on purpose: the neighbours are told to go on without."""
        if self._epoll is not None:
            self._carry_out(self.core.stop())
            self.abandon()

    def abandon(self) -> None:
        """End as if killed."""
        if self._epoll is None:
            return
        assert self._alert is not None
        self._disarm()
        asyncio.get_running_loop().remove_reader(self._alert.fileno())
        for line in self._lines.values():
            self._close(line)
        self._alert.close()
        self._epoll.close()
        self._epoll = self._alert = None
        self._watched = frozenset()

    def retime(self, timings: Mapping[str, SessionTiming]) -> None:
        """Use other intervals from now on."""
        for port, timing in sorted(timings.items()):
            self._carry_out(self.core.handle(Retimed(port, timing), self._clock_ns()))
        self._arm()

    # --- waking ----------------------------------------------------------------------------------------------------------
    def _on_timer(self) -> None:
        self._timer = self._armed_ns = None
        self._guarded(self._wake)

    def _wake(self) -> None:
        self._read()
        self._carry_out(self.core.handle(_TIMER_FIRED, self._clock_ns()))

    def _on_readable(self) -> None:
        # Once round: if there is more, the loop says so again, and mostly there is not.
        self._guarded(lambda: self._read(1))

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
            self._arm()
        except Exception as error:  # noqa: BLE001 -- raised where the agent is awaited; here it would end in a callback
            self.abandon()
            self.on_error(error)

    def _arm(self) -> None:
        if self._epoll is None:
            return
        if self.core.watched is not self._watched:
            self._watch(self.core.watched)
        wakeup_ns = self.core.next_wakeup_ns()
        if wakeup_ns == self._armed_ns:
            return
        self._disarm()
        if wakeup_ns is not None:
            loop = asyncio.get_running_loop()
            self._armed_ns = wakeup_ns
            self._timer = loop.call_later(max(0, wakeup_ns - self._clock_ns()) / SECOND, self._on_timer)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._armed_ns = None

    def _watch(self, ports: frozenset[str]) -> None:
        """Have the loop wake us for what comes at *ports*, and at no others."""
        assert self._alert is not None
        for port in ports ^ self._watched:
            udp = self._lines[port].udp
            if udp is None:
                continue  # `_open` looks it up
            if port in ports:
                self._alert.register(udp.fileno(), select.EPOLLIN)
            else:
                self._alert.unregister(udp.fileno())
        self._watched = ports

    # --- packets ---------------------------------------------------------------------------------------------------------
    def _read(self, rounds: int = _ROUNDS_MAX) -> None:
        """Hand over all that has arrived, oldest first on each port, at most *rounds* packets of each."""
        take_usual, instant_ns, lines = self.core.take_usual, self._arrivals.instant_ns, self._by_descriptor
        for _ in range(rounds):
            if self._epoll is None or not (ready := self._epoll.poll(0)):
                return
            wall_ns = self._wall_ns()
            self._arrivals.begin(wall_ns, self._clock_ns())
            for descriptor, _events in ready:
                line = lines.get(descriptor)
                if line is None or line.udp is None:
                    continue
                try:
                    payload, ancillary, _flags, _sender = line.udp.recvmsg(_PACKET_MAX, _ANCILLARY_SPACE)
                except OSError as error:
                    self._on_failure(line, error)
                    continue
                hop_limit, heard_ns = 0, instant_ns(wall_ns)
                for level, kind, content in ancillary:
                    if level != socket.SOL_SOCKET:
                        hop_limit = int.from_bytes(content, sys.byteorder)
                    elif kind == _SO_TIMESTAMPNS:
                        seconds, rest_ns = _TIMESPEC.unpack(content)
                        heard_ns = instant_ns(seconds * SECOND + rest_ns)
                if not take_usual(line.port, payload, hop_limit, heard_ns):
                    received = Received(line.port, payload, hop_limit, heard_ns)
                    self._carry_out(self.core.handle(received, self._clock_ns()))

    def _carry_out(self, commands: list[SessionCommand]) -> None:
        at_ns = self._clock_ns()
        for command in commands:
            match command:
                case Send():
                    self._send(self._lines[command.port], command.payload)
                case SessionUp() | SessionDown():
                    self.on_change(command)
                case Mark():
                    self._on_mark(command, at_ns)
                case _:
                    assert_never(command)

    def _send(self, line: _Line, payload: bytes) -> None:
        if self._epoll is None:
            return  # an earlier command ended the agent
        if line.udp is None:
            if self._clock_ns() < line.reopen_ns or not self._open(line):
                return
            assert line.udp is not None
        try:
            if line.group is None:
                line.udp.send(payload)
            else:
                line.udp.sendto(payload, line.group)
            line.is_told = False
        except OSError as error:
            self.send_errors += 1
            self._on_failure(line, error)

    # --- sockets ---------------------------------------------------------------------------------------------------------
    def _open(self, line: _Line) -> bool:
        assert self._epoll is not None
        assert self._alert is not None
        try:
            line.udp, line.group = open_wire(line.wire, self._dscp)
        except OSError as error:
            self._on_failure(line, error)
            return False
        self._by_descriptor[line.udp.fileno()] = line
        self._epoll.register(line.udp.fileno(), select.EPOLLIN)
        if line.port in self._watched:
            self._alert.register(line.udp.fileno(), select.EPOLLIN)
        return True

    def _close(self, line: _Line) -> None:
        if line.udp is not None:
            assert self._epoll is not None
            assert self._alert is not None
            self._epoll.unregister(line.udp.fileno())
            if line.port in self._watched:
                self._alert.unregister(line.udp.fileno())
            del self._by_descriptor[line.udp.fileno()]
            line.udp.close()
            line.udp = None

    def _on_failure(self, line: _Line, error: OSError) -> None:
        if error.errno in _PASSING:
            return
        if not line.is_told:
            line.is_told = True
            failed = Mark("session_socket_failed", {"port": line.port, "reason": str(error), "alarm": True})
            self._on_mark(failed, self._clock_ns())
        # The interface may be gone, or be another one of the same name.
        self._close(line)
        line.reopen_ns = self._clock_ns() + _REOPEN_NS


_TIMER_FIRED: Final = TimerFired()


def open_wire(wire: Wire, dscp: int) -> tuple[socket.socket, tuple[str, int, int, int] | None]:
    """
    Return a socket for *wire*, and where to send if it is not connected (a multicast group).

    Raises:
        OSError: no such interface or address, or no permission.
    """
    with inside(wire.namespace):
        is_v6 = ":" in wire.remote[0]
        found = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            _set_options(found, wire.interface, dscp)
            index = socket.if_nametoindex(wire.interface) if wire.interface is not None else 0
            found.bind((*wire.local, 0, index) if is_v6 else wire.local)
            if is_v6 and wire.remote[0].lower().startswith("ff"):
                return found, (*wire.remote, 0, index)
            # Connected, the kernel drops what comes from elsewhere and need not look up the way for each packet.
            found.connect((*wire.remote, 0, index) if is_v6 else wire.remote)
        except BaseException:
            found.close()
            raise
        return found, None


def _set_options(found: socket.socket, interface: str | None, dscp: int) -> None:
    if interface is not None:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
    if found.family == socket.AF_INET6:
        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, HOP_LIMIT)
        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, HOP_LIMIT)
        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, 1)
        found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, dscp << 2)
    else:
        found.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, HOP_LIMIT)
        found.setsockopt(socket.IPPROTO_IP, _IP_RECVTTL, 1)
        found.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
    found.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    # After the class of service, which sets it too. 6 is what the kernel gives without privilege.
    found.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 6)


def nobody_listens(change: SessionUp | SessionDown) -> None:
    """Stand for the time before an agent listens."""


def nobody_catches(error: Exception) -> None:
    """Stand for the time before somebody runs the agent."""
    raise error
