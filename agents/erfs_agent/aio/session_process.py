"""Sessions in a process of their own, which nothing that the agent does can hold up: the agent's side.

Rule 1: an agent that takes in a large program is busy for longer than its neighbours wait for a packet; that process never is.
Rule 2: if it dies it is started again; what it said last stands until its successor knows better.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import structlog

from erfs.ports import Mark
from erfs.units import SECOND
from erfs_agent.aio import session_child
from erfs_agent.aio.marks import OnMark
from erfs_agent.aio.session_child import Line, Setup, Splitter
from erfs_agent.aio.sessions import OnChange, nobody_catches, nobody_listens
from erfs_agent.probing import SessionEnd, SessionTiming

_log = structlog.get_logger(__name__)

_READ_MAX: Final = 65_536
_AGAIN_NS: Final = 1 * SECOND
_GOODBYE_S: Final = 1.0


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
        self._splitter = Splitter()
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
        self._splitter = Splitter()
        command = [sys.executable, "-m", session_child.__name__]
        # Buffers of ours would hide lines from the loop.
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)  # noqa: S603 -- ourselves
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)
        asyncio.get_running_loop().add_reader(self._child.stdout.fileno(), self._on_readable)
        self._tell(session_child.encode_setup(self.setup))

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
        self.setup = replace(self.setup, ends=ends)
        if self._child is not None:
            self._tell(session_child.encode_timings(timings))

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
                self._on_line(session_child.decode_line(line))
        except Exception as error:  # noqa: BLE001 -- raised where the agent is awaited; here it would end in a callback
            self.abandon()
            self.on_error(error)

    def _on_line(self, line: Line) -> None:
        said, at_ns = line
        if isinstance(said, Mark):
            self._on_mark(said, at_ns)
        else:
            self.on_change(said)

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
