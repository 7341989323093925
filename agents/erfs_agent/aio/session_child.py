"""Sessions in a process of their own, which nothing that the agent does can hold up: that process.

Rule 1: when the agent is gone, however it ended, this process says goodbye for it: the node still forwards, so the neighbours go on by the carrier.
Rule 2: JSON lines both ways: setup and orders in, changes and marks out. A change is never dropped, a mark is when nobody reads.
Rule 3: one of these runs on every node, so it loads what it uses: no pydantic, no log, no bus.
"""

import asyncio
import json
import os
import signal
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Final, NamedTuple

from erfs.aio.loop import loop_factory
from erfs.ids import LinkId, NodeId
from erfs.ports import Mark
from erfs_agent.aio.realtime import be_realtime
from erfs_agent.aio.sessions import UdpSessions, Wire
from erfs_agent.probing import DownReason, SessionDown, SessionEnd, Sessions, SessionTiming, SessionUp

_STDIN, _STDOUT = 0, 1
_READ_MAX: Final = 65_536
# A reader that is away for so many lines will not miss the marks among them.
_LINES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Setup:
    """All that the process has to know."""

    node: NodeId
    ends: tuple[SessionEnd, ...]
    wires: dict[str, Wire]
    dscp: int = 48
    realtime_priority: int = 0
    """SCHED_FIFO, for this process alone; 0: as an ordinary process."""


class Line(NamedTuple):
    """What the process says."""

    said: SessionUp | SessionDown | Mark
    at_ns: int
    """When, on the machine's monotonic clock, which agent and process share."""


class _End(NamedTuple):
    """A `Binding`."""

    port: str
    link: LinkId
    far_end: NodeId


# --- lines -----------------------------------------------------------------------------------------------------------------
class Splitter:
    """Cuts what was read into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, content: bytes) -> list[bytes]:
        """Return the lines that are complete now."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        return lines


def encode_setup(setup: Setup) -> bytes:
    """Return *setup* as the line that starts the process."""
    content = {
        "node": setup.node,
        "ends": [[end.binding.port, end.binding.link, end.binding.far_end, *astuple(end.timing)] for end in setup.ends],
        "wires": {
            port: [wire.local, wire.remote, wire.interface, str(wire.namespace) if wire.namespace else None]
            for port, wire in setup.wires.items()
        },
        "dscp": setup.dscp,
        "realtime_priority": setup.realtime_priority,
    }
    return json.dumps(content).encode()


def decode_setup(line: bytes) -> Setup:
    """Return what `encode_setup` said."""
    content = json.loads(line)
    return Setup(
        NodeId(content["node"]),
        tuple(SessionEnd(_End(*end[:3]), SessionTiming(*end[3:])) for end in content["ends"]),
        {
            port: Wire(tuple(local), tuple(remote), interface, Path(namespace) if namespace else None)
            for port, (local, remote, interface, namespace) in content["wires"].items()
        },
        content["dscp"],
        content["realtime_priority"],
    )


def encode_timings(timings: Mapping[str, SessionTiming]) -> bytes:
    """Return the order to use other intervals."""
    return json.dumps({port: astuple(timing) for port, timing in timings.items()}).encode()


def decode_timings(line: bytes) -> dict[str, SessionTiming]:
    """Return what `encode_timings` said."""
    return {port: SessionTiming(*numbers) for port, numbers in json.loads(line).items()}


def encode_line(line: Line) -> bytes:
    """Return what the process says."""
    said = line.said
    match said:
        case SessionUp():
            content: dict[str, Any] = {"up": said.port}
        case SessionDown():
            content = {"down": said.port, "reason": said.reason}
        case Mark():
            content = {"mark": said.event, "fields": said.fields}
    return json.dumps(content | {"at_ns": line.at_ns}).encode()


def decode_line(line: bytes) -> Line:
    """Return what `encode_line` said."""
    content = json.loads(line)
    at_ns = content["at_ns"]
    if "down" in content:
        return Line(SessionDown(content["down"], DownReason(content["reason"])), at_ns)
    if "up" in content:
        return Line(SessionUp(content["up"]), at_ns)
    return Line(Mark(content["mark"], content["fields"]), at_ns)


# --- the process -----------------------------------------------------------------------------------------------------------
class _Outlet:
    """Says lines without ever waiting for the reader."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        os.set_blocking(_STDOUT, False)

    def say(self, line: Line) -> None:
        if isinstance(line.said, Mark) and len(self._lines) >= _LINES_MAX:
            return
        self._lines.append(encode_line(line) + b"\n")
        if len(self._lines) == 1:
            self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._lines:
            try:
                count = os.write(_STDOUT, self._lines[0])
            except BlockingIOError:
                loop.add_writer(_STDOUT, self._flush)
                return
            except BrokenPipeError:
                # The agent is gone; its end of the other pipe says so, too.
                self._lines.clear()
                break
            rest = self._lines.popleft()[count:]
            if rest:
                self._lines.appendleft(rest)
        loop.remove_writer(_STDOUT)


async def _serve(setup: Setup, splitter: Splitter) -> None:
    outlet = _Outlet()
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    # A system call for each jitter would be one for each packet; it is no secret.
    core = Sessions(setup.node, setup.ends, Random(SystemRandom().getrandbits(64)))  # noqa: S311

    def on_mark(mark: Mark, at_ns: int) -> None:
        outlet.say(Line(mark, at_ns))

    if setup.realtime_priority:
        refused = be_realtime(setup.realtime_priority)
        if refused is not None:
            on_mark(refused, time.monotonic_ns())
    sessions = UdpSessions(core, setup.wires, on_mark=on_mark, dscp=setup.dscp)

    def on_change(change: SessionUp | SessionDown) -> None:
        outlet.say(Line(change, time.monotonic_ns()))

    def on_order() -> None:
        content = os.read(_STDIN, _READ_MAX)
        if not content and not ended.done():
            ended.set_result(None)
        for line in splitter.feed(content):
            sessions.retime(decode_timings(line))

    def end() -> None:
        if not ended.done():
            ended.set_result(None)

    sessions.on_change = on_change
    sessions.on_error = ended.set_exception
    loop = asyncio.get_running_loop()
    # A service manager and a terminal signal the whole group.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    loop.add_reader(_STDIN, on_order)
    sessions.start()
    await ended
    sessions.stop()


def main() -> None:
    """Run the child."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    splitter = Splitter()
    lines: list[bytes] = []
    while not lines:
        content = os.read(_STDIN, _READ_MAX)
        if not content:
            return
        lines = splitter.feed(content)
    setup = decode_setup(lines[0])
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(setup, splitter))


if __name__ == "__main__":
    main()
