"""The shell around one agent's core: feeds it events, carries out its commands, keeps its one timer.

Rule 1: no decisions here.
Rule 2: nothing is awaited between the core's answer and the last of its commands; an event that arises meanwhile waits
its turn.
Rule 3: saving state takes a thread and the newest state only, when the repair is done; forwarding never waits for a disk.
Rule 4: an event happened when it came in, whatever was still to be done before it; what the core says first of it carries
that instant.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, assert_never

import structlog

from erfs.aio import edge
from erfs.messages import Program
from erfs.ports import Bus, BusConnected, BusLost, Incoming, Mark, Publish, Subscribe, TimerFired
from erfs.topics import Topics
from erfs_agent.aio.marks import OnMark, log_mark
from erfs_agent.aio.realtime import ordinary
from erfs_agent.aio.sessions import PortSessions
from erfs_agent.aio.store import Store
from erfs_agent.core import AgentCommand, AgentCore, AgentEvent, AgentTimers, Persist, PortChanged, WriteRoutes
from erfs_agent.drivers.base import Driver
from erfs_agent.state import AgentState

_log = structlog.get_logger(__name__)

# A program of some size takes longer than others on this machine should have to wait; facts have some hundred bytes.
_LONG_WORK_BYTES: Final = 8_192
# A thread that saves takes the interpreter from the one that repairs. What a crash meanwhile loses, the broker retains.
_SAVE_WAIT_S: Final = 0.1


class AgentRuntime:
    """
    One agent in an event loop; many may share a loop.

    Args:
        core: Not yet started.
        driver: Its data plane.
        bus: Its end of the bus; whoever made it runs it, with ``core.last_will()`` as its last will.
        store: Where its state goes; None keeps nothing.
        sessions: Those of its ports that have one; they begin and end with the agent.
        topics: The fabric's topics.
        on_mark: Told of each mark and its instant, at once.
        clock_ns: Monotonic.
    """

    def __init__(
        self,
        core: AgentCore,
        driver: Driver,
        bus: Bus,
        store: Store | None = None,
        sessions: PortSessions | None = None,
        *,
        topics: Topics | None = None,
        on_mark: OnMark = log_mark,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.core = core
        self.tally = edge.Tally()
        self._driver = driver
        self._bus = bus
        self._store = store
        self._sessions = sessions
        self._topics = topics or Topics()
        self._on_mark = on_mark
        self._clock_ns = clock_ns
        self._events: deque[tuple[AgentEvent, int]] = deque()
        self._is_draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns: int | None = None
        self._unsaved: AgentState | None = None
        self._has_unsaved = asyncio.Event()
        self._ended: asyncio.Future[None] | None = None
        # From now on, not from `run` on: a bus that is connected by then would not say so again.
        bus.on_message = self._on_message
        bus.on_state = self._on_state
        driver.on_port = self._on_port

    async def run(self) -> None:
        """
        Start the core and serve it until `stop` or `abandon`.

        Raises:
            Bug: an invariant of the core broke.
        """
        self._ended = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._save_newest(), name=f"save-state-{self.core.node}")
                now_ns = self._clock_ns()
                self._dispatch(self.core.start(now_ns), now_ns)
                # A carrier may have changed since the core was told of it; to hear it twice is harmless.
                for port, is_up in self._driver.ports().items():
                    self._events.appendleft((PortChanged(port, is_up), now_ns))
                self._drain()
                if self._sessions is not None and self._is_running:
                    self._sessions.on_change = self._take
                    self._sessions.on_error = self._end
                    self._sessions.start()
                await self._ended
        finally:
            self._disarm()
            self._fall_silent()

    def stop(self) -> None:
        """End on purpose: say goodbye on the bus, which must still be run until it has sent that."""
        if self._is_running:
            if self._sessions is not None:
                self._sessions.stop()
            self._dispatch(self.core.stop(), self._clock_ns())
            self._end()

    def abandon(self) -> None:
        """End as if killed: nothing more is said, written or saved. The bus is to be cut off without a goodbye too."""
        self._unsaved = None
        if self._is_running:
            self._end()

    def reload(self, timers: AgentTimers) -> None:
        """Use other times from now on."""
        self.core.reload(timers)
        self._arm()

    @property
    def _is_running(self) -> bool:
        return self._ended is not None and not self._ended.done()

    def _end(self, error: BaseException | None = None) -> None:
        assert self._ended is not None
        self._disarm()
        self._fall_silent()
        self._has_unsaved.set()
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    def _fall_silent(self) -> None:
        self._events.clear()
        if self._sessions is not None:
            self._sessions.abandon()
        self._bus.on_message = _ignore
        self._bus.on_state = _ignore
        self._driver.on_port = _ignore_port

    # --- events ----------------------------------------------------------------------------------------------------------
    def _on_message(self, incoming: Incoming) -> None:
        if len(incoming.payload) < _LONG_WORK_BYTES:
            self._receive(incoming)
        else:
            with ordinary():
                self._receive(incoming)

    def _receive(self, incoming: Incoming) -> None:
        delivered = edge.receive(self._topics, incoming, self.tally)
        if delivered is not None:
            self._take(delivered)
            if isinstance(delivered.message, Program):
                # When the answer to it has gone out: the controller waits for that.
                asyncio.get_running_loop().call_soon(self._rehearse)

    def _rehearse(self) -> None:
        with ordinary():
            self.core.rehearse()

    def _on_state(self, is_connected: bool) -> None:
        self._take(BusConnected() if is_connected else BusLost())

    def _on_port(self, port: str, oper_up: bool) -> None:
        self._take(PortChanged(port, oper_up))

    def _on_timer(self) -> None:
        self._timer = self._armed_ns = None
        self._take(TimerFired())

    def _take(self, event: AgentEvent) -> None:
        self._events.append((event, self._clock_ns()))
        if self._is_running:
            self._drain()

    def _drain(self) -> None:
        if self._is_draining:
            return
        self._is_draining = True
        try:
            while self._events:
                event, at_ns = self._events.popleft()
                self._dispatch(self.core.handle(event, at_ns), at_ns)
            self._arm()
        except Exception as error:  # noqa: BLE001 -- raised where the agent is awaited; here it would end in a callback
            self._end(error)
        finally:
            self._is_draining = False

    # --- commands --------------------------------------------------------------------------------------------------------
    def _dispatch(self, commands: list[AgentCommand], at_ns: int) -> None:
        """Carry out *commands*, the answer to what happened at *at_ns*."""
        for index, command in enumerate(commands):
            match command:
                case WriteRoutes():
                    written = self._driver.write(command)
                    self._events.append((written, self._clock_ns()))
                case Publish():
                    edge.publish(self._bus, self._topics, command)
                case Subscribe():
                    self._bus.subscribe(edge.filters(self._topics, command))
                case Mark():
                    self._on_mark(command, self._clock_ns() if index else at_ns)
                case Persist():
                    self._unsaved = command.state
                    self._has_unsaved.set()
                case _:
                    assert_never(command)

    def _arm(self) -> None:
        wakeup_ns = self.core.next_wakeup_ns()
        if wakeup_ns == self._armed_ns:
            return
        self._disarm()
        if wakeup_ns is not None and self._is_running:
            loop = asyncio.get_running_loop()
            delay_ns = max(0, wakeup_ns - self._clock_ns())
            self._armed_ns = wakeup_ns
            self._timer = loop.call_at(loop.time() + delay_ns / 1e9, self._on_timer)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._armed_ns = None

    # --- state -----------------------------------------------------------------------------------------------------------
    async def _save_newest(self) -> None:
        while self._is_running or self._unsaved is not None:
            await self._has_unsaved.wait()
            assert self._ended is not None
            await asyncio.wait((self._ended,), timeout=_SAVE_WAIT_S)
            self._has_unsaved.clear()
            state, self._unsaved = self._unsaved, None
            if state is not None:
                await asyncio.to_thread(self._save, state)

    def _save(self, state: AgentState) -> None:
        if self._store is None:
            return
        try:
            self._store.save(state)
        except OSError as error:
            # The agent forwards all the same; only its next start has to be told its program again.
            _log.warning("state_not_saved", reason=str(error))


def _ignore(_: object) -> None:
    """Stand for a runtime that has ended."""


def _ignore_port(port: str, oper_up: bool) -> None:
    """Stand for a runtime that has ended."""
