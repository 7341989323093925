"""Sessions in a process of their own, which nothing that the agent does can hold up.

Rule 1: an agent that takes in a large program is busy for longer than its neighbours wait for a packet; this process never is.
Rule 2: when the agent is gone, however it ended, this process says goodbye for it: the node still forwards, so the neighbours go on by the carrier.
Rule 3: JSON lines both ways: setup and orders in, changes and marks out. A change is never dropped, a mark is when nobody reads.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import SystemRandom
from typing import Final, Literal

import structlog
from pydantic import TypeAdapter

from erfs.aio.logs import set_up_logs
from erfs.aio.loop import loop_factory
from erfs.ids import NodeId
from erfs.ports import Mark
from erfs.units import SECOND
from erfs_agent.aio.marks import OnMark
from erfs_agent.aio.sessions import OnChange, UdpSessions, Wire, be_realtime, nobody_catches, nobody_listens
from erfs_agent.probing import SessionDown, SessionEnd, Sessions, SessionTiming, SessionUp

_log = structlog.get_logger(__name__)

_STDIN, _STDOUT = 0, 1
_READ_MAX: Final = 65_536
# A reader that is away for so many lines will not miss the marks among them.
_LINES_MAX: Final = 10_000
_AGAIN_NS: Final = 1 * SECOND
_GOODBYE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Setup:
    """All that the process has to know."""

    node: NodeId
    ends: tuple[SessionEnd, ...]
    wires: dict[str, Wire]
    dscp: int = 48
    realtime_priority: int = 0
    """SCHED_FIFO, for this process alone; 0: as an ordinary process."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True)
class Order:
    """What the agent wants."""

    timings: dict[str, SessionTiming]


@dataclass(frozen=True, slots=True)
class Line:
    """What the process says; one of the three."""

    up: SessionUp | None = None
    down: SessionDown | None = None
    mark: Mark | None = None
    at_ns: int = 0
    """When the mark was made: the monotonic clock is the machine's, so the agent need not know it."""


_SETUP: Final = TypeAdapter(Setup)
_ORDER: Final = TypeAdapter(Order)
_LINE: Final = TypeAdapter(Line)


class _Splitter:
    """Cuts what was read into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, content: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + content).split(b"\n")
        return lines


# --- the agent's side ------------------------------------------------------------------------------------------------------
class SessionProcess:
    """
    Sessions as `UdpSessions` runs them, in a child process; if it dies it is started again.

    Args:
        setup: What it is to know.
        on_mark: Told of each mark and its instant, as soon as it is read.
        clock_ns: Monotonic.
    """

    def __init__(self, setup: Setup, *, on_mark: OnMark, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.ports = frozenset(setup.wires)
        self.on_change: OnChange = nobody_listens
        self.on_error: Callable[[Exception], None] = nobody_catches
        self.setup = setup
        self._on_mark = on_mark
        self._clock_ns = clock_ns
        self._child: subprocess.Popen[bytes] | None = None
        self._splitter = _Splitter()
        self._started_ns = 0
        self._again: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        """Begin."""
        assert self._child is None, "started twice"
        self._again = None
        self._started_ns = self._clock_ns()
        self._splitter = _Splitter()
        command = [sys.executable, "-m", __name__]
        # Buffers of ours would hide lines from the loop.
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # noqa: S603 -- ourselves
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)
        asyncio.get_running_loop().add_reader(self._child.stdout.fileno(), self._on_readable)
        self._tell(_SETUP.dump_json(self.setup))

    def stop(self) -> None:
        """End on purpose: the neighbours are told to go on without."""
        child = self._let_go()
        if child is None:
            return
        assert child.stdin is not None
        child.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GOODBYE_S)
        self._bury(child)

    def abandon(self) -> None:
        """End as if the node had died: nobody says goodbye."""
        child = self._let_go()
        if child is not None:
            self._bury(child)

    def retime(self, timings: Mapping[str, SessionTiming]) -> None:
        """Use other intervals from now on."""
        ends = tuple(SessionEnd(end.binding, timings.get(end.binding.port, end.timing)) for end in self.setup.ends)
        setup = self.setup
        self.setup = Setup(setup.node, ends, setup.wires, setup.dscp, setup.realtime_priority, setup.log_level)
        if self._child is not None:
            self._tell(_ORDER.dump_json(Order(dict(timings))))

    def _tell(self, content: bytes) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        # A child that has died is noticed where it is read.
        with contextlib.suppress(BrokenPipeError):
            rest = memoryview(content + b"\n")
            while rest:
                rest = rest[self._child.stdin.write(rest) :]

    def _on_readable(self) -> None:
        assert self._child is not None
        assert self._child.stdout is not None
        content = self._child.stdout.read(_READ_MAX)
        if content is None:
            return
        try:
            if not content:
                self._on_death()
            for line in self._splitter.feed(content):
                self._on_line(_LINE.validate_json(line))
        except Exception as error:  # noqa: BLE001 -- raised where the agent is awaited; here it would end in a callback
            self.abandon()
            self.on_error(error)

    def _on_line(self, line: Line) -> None:
        change = line.up or line.down
        if change is not None:
            self.on_change(change)
        if line.mark is not None:
            self._on_mark(line.mark, line.at_ns)

    def _on_death(self) -> None:
        """Nobody told it to end. What it said last stands until its successor knows better."""
        child = self._let_go()
        assert child is not None
        self._bury(child)
        _log.error("session_process_died", exit_code=child.returncode)
        wait_ns = max(0, self._started_ns + _AGAIN_NS - self._clock_ns())
        self._again = asyncio.get_running_loop().call_later(wait_ns / SECOND, self.start)

    def _let_go(self) -> "subprocess.Popen[bytes] | None":
        if self._again is not None:
            self._again.cancel()
            self._again = None
        child, self._child = self._child, None
        if child is not None:
            assert child.stdout is not None
            asyncio.get_running_loop().remove_reader(child.stdout.fileno())
        return child

    def _bury(self, child: "subprocess.Popen[bytes]") -> None:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            pipe.close()


# --- the child's side ------------------------------------------------------------------------------------------------------
class _Outlet:
    """Says lines without ever waiting for the reader."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        os.set_blocking(_STDOUT, False)

    def say(self, line: Line) -> None:
        if line.mark is not None and len(self._lines) >= _LINES_MAX:
            return
        self._lines.append(_LINE.dump_json(line, exclude_none=True) + b"\n")
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


async def _serve(setup: Setup, splitter: _Splitter) -> None:
    structlog.contextvars.bind_contextvars(node=setup.node)
    outlet = _Outlet()
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    core = Sessions(setup.node, setup.ends, SystemRandom())

    def on_mark(mark: Mark, at_ns: int) -> None:
        outlet.say(Line(mark=mark, at_ns=at_ns))

    sessions = UdpSessions(core, setup.wires, on_mark=on_mark, dscp=setup.dscp)

    def on_change(change: SessionUp | SessionDown) -> None:
        outlet.say(Line(up=change) if isinstance(change, SessionUp) else Line(down=change))

    def on_order() -> None:
        content = os.read(_STDIN, _READ_MAX)
        if not content and not ended.done():
            ended.set_result(None)
        for line in splitter.feed(content):
            sessions.retime(_ORDER.validate_json(line).timings)

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
    splitter = _Splitter()
    lines: list[bytes] = []
    while not lines:
        content = os.read(_STDIN, _READ_MAX)
        if not content:
            return
        lines = splitter.feed(content)
    setup = _SETUP.validate_json(lines[0])
    set_up_logs(setup.log_level)
    if setup.realtime_priority:
        be_realtime(setup.realtime_priority)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(setup, splitter))


if __name__ == "__main__":
    main()
