"""The shell around the controller's core: feeds it events, carries out its commands, keeps its one timer.

Rule 1: no decisions here.
Rule 2: nothing is awaited between the core's answer and the last of its commands; an event that arises meanwhile waits its turn.
Rule 3: an epoch is on disk before anything is said in it, and a drain before anybody is told of it.

A computation takes seconds on a fabric of thousands of nodes. It runs in a thread, the core being left alone until it is done: what
arrives meanwhile waits its turn, and the shell says the last leader message again at each refresh, so that no newcomer takes us for dead.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, assert_never

import structlog

from erfs.aio import edge
from erfs.errors import ErfsError
from erfs.journal import Journal
from erfs.messages import Leader
from erfs.ports import Bus, BusConnected, BusLost, Incoming, Mark, Publish, Subscribe, TimerFired
from erfs.topics import Topics
from erfs.units import SECOND
from erfs_controller.aio.store import ControllerStore
from erfs_controller.core import Command, ControllerCore, Event, Exit, PersistDrains, PersistEpoch

_log = structlog.get_logger(__name__)
_ALARMS: Final = frozenset(
    {
        "acknowledgement_refused",
        "another_leads",
        "drains_yielded",
        "fact_refused",
        "generation_incomplete",
        "program_not_installed",
        "push_refused",
        "push_withheld",
    }
)


class AnotherLeads(ErfsError):  # noqa: N818 -- it names what is so; the process ends because of it
    """Another controller leads this fabric."""


class ControllerRuntime:
    """
    The controller in an event loop.

    Args:
        core: Not yet started.
        bus: Its end of the bus; whoever made it runs it, with ``core.last_will()`` as its last will.
        store: Where the epoch and the drains go.
        journal: Where every mark goes.
        topics: The fabric's topics.
        refresh_ns: How often a leader says that it lives.
        clock_ns: Monotonic.
    """

    def __init__(
        self,
        core: ControllerCore,
        bus: Bus,
        store: ControllerStore,
        journal: Journal,
        *,
        topics: Topics,
        refresh_ns: int,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.core = core
        self.tally = edge.Tally()
        self._bus = bus
        self._store = store
        self._journal = journal
        self._topics = topics
        self._refresh_ns = refresh_ns
        self._clock_ns = clock_ns
        self._events: deque[Event] = deque()
        self._is_draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns: int | None = None
        self._ended: asyncio.Future[None] | None = None
        self._heavy: asyncio.Queue[Event] = asyncio.Queue(maxsize=1)
        self._leader: Publish | None = None

    async def run(self) -> None:
        """
        Start the core and serve it until `stop`.

        Raises:
            AnotherLeads: this controller must give way; nothing of it is left on the bus.
            Bug: an invariant of the core broke.
        """
        self._ended = asyncio.get_running_loop().create_future()
        rival: AnotherLeads | None = None
        self._bus.on_message = self._on_message
        self._bus.on_state = self._on_state
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = tasks.create_task(self._compute_beside(), name="compute")
                self._dispatch(self.core.start(self._clock_ns()))
                self._arm()
                try:
                    await self._ended
                except AnotherLeads as error:
                    rival = error
                beside.cancel()
        finally:
            self._disarm()
            self._bus.on_message = _ignore
            self._bus.on_state = _ignore
        if rival is not None:
            raise rival

    def stop(self) -> None:
        """End on purpose: say that nobody leads now. The bus must still be run until it has sent that."""
        if self._is_running:
            self._dispatch(self.core.farewell())
            self._end()

    def take(self, event: Event) -> None:
        """Give the core an event that arose outside of the bus: a reloaded fabric."""
        if self._is_running:
            self._events.append(event)
            self._drain()

    @property
    def _is_running(self) -> bool:
        return self._ended is not None and not self._ended.done()

    def _end(self, error: BaseException | None = None) -> None:
        self._events.clear()
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    # --- events ----------------------------------------------------------------------------------------------------------
    def _on_message(self, incoming: Incoming) -> None:
        delivered = edge.receive(self._topics, incoming, self.tally)
        if delivered is not None:
            self.take(delivered)

    def _on_state(self, is_connected: bool) -> None:
        self.take(BusConnected() if is_connected else BusLost())

    def _on_timer(self) -> None:
        self._timer = self._armed_ns = None
        self.take(TimerFired())

    def _drain(self) -> None:
        if self._is_draining:
            return
        self._is_draining = True
        try:
            while self._events:
                event, now_ns = self._events.popleft(), self._clock_ns()
                if self.core.is_computation_near(event, now_ns):
                    self._heavy.put_nowait(event)
                    return  # draining goes on when that is done
                self._dispatch(self.core.handle(event, now_ns))
            self._is_draining = False
            self._arm()
        except Exception as error:  # noqa: BLE001 -- raised where the controller is awaited; here it would end in a callback
            self._end(error)

    async def _compute_beside(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            event = await self._heavy.get()
            self._disarm()
            working = loop.run_in_executor(None, self.core.handle, event, self._clock_ns())
            repeated_at_ns: int | None = None
            while not (await asyncio.wait((working,), timeout=self._refresh_ns / SECOND))[0]:
                if self._leader is not None:
                    edge.publish(self._bus, self._topics, self._leader)
                    repeated_at_ns = self._clock_ns()
            commands = await working
            if not self._is_running:
                return
            if repeated_at_ns is not None:
                self.core.leader_repeated(repeated_at_ns)
            self._dispatch(commands)
            self._is_draining = False
            self._drain()

    # --- commands --------------------------------------------------------------------------------------------------------
    def _dispatch(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Publish():
                    if isinstance(command.message, Leader):
                        self._leader = command
                    edge.publish(self._bus, self._topics, command)
                case Subscribe():
                    self._bus.subscribe(edge.filters(self._topics, command))
                case Mark():
                    self._note(command)
                case PersistEpoch(epoch):
                    self._store.save_epoch(epoch)
                case PersistDrains(drains):
                    self._store.save_drains(drains)
                case Exit(reason):
                    self._end(AnotherLeads(reason))
                case _:
                    assert_never(command)

    def _note(self, mark: Mark) -> None:
        # Durations are differences of at_ns; the wall time is for people and may jump.
        wall_time = datetime.now(UTC).isoformat(timespec="microseconds")
        self._journal.append(self._clock_ns(), mark.event, **(mark.fields | {"wall_time": wall_time}))
        (_log.warning if mark.event in _ALARMS else _log.info)(mark.event, **mark.fields)

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


def _ignore(event: object) -> None:
    """Nobody is left to tell."""
