"""The shell around the controller's core: feeds it events, carries out its commands, keeps its one timer.

Rule 1: no decisions here.
Rule 2: nothing is awaited between the core's answer and the last of its commands; an event that arises meanwhile waits its turn.
Rule 3: an epoch is on disk before anything is said in it.

A computation runs inside the loop, some 100 ms on a large fabric and up to a second or two on one of thousands of nodes. Meanwhile
nothing is sent; what arrives waits in the socket. Nothing comes of that: the leader's refresh is late by that time at most, a
newcomer listens for three refreshes before it takes us for dead, and should a computation last longer than that, the
election treats its end like the end of any freeze and listens before it says anything more.
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
from erfs.ports import Bus, BusConnected, BusLost, Incoming, Mark, Publish, Subscribe, TimerFired
from erfs.topics import Topics
from erfs_controller.aio.store import EpochStore
from erfs_controller.core import Command, ControllerCore, Event, Exit, PersistEpoch

_log = structlog.get_logger(__name__)
_ALARMS: Final = frozenset(
    {
        "acknowledgement_refused",
        "another_leads",
        "fact_refused",
        "generation_incomplete",
        "program_not_installed",
        "push_refused",
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
        store: Where the epoch goes.
        journal: Where every mark goes.
        topics: The fabric's topics.
        clock_ns: Monotonic.
    """

    def __init__(
        self,
        core: ControllerCore,
        bus: Bus,
        store: EpochStore,
        journal: Journal,
        *,
        topics: Topics,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.core = core
        self.tally = edge.Tally()
        self._bus = bus
        self._store = store
        self._journal = journal
        self._topics = topics
        self._clock_ns = clock_ns
        self._events: deque[Event] = deque()
        self._is_draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns: int | None = None
        self._ended: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """
        Start the core and serve it until `stop`.

        Raises:
            AnotherLeads: this controller must give way; nothing of it is left on the bus.
            Bug: an invariant of the core broke.
        """
        self._ended = asyncio.get_running_loop().create_future()
        self._bus.on_message = self._on_message
        self._bus.on_state = self._on_state
        try:
            self._dispatch(self.core.start(self._clock_ns()))
            self._arm()
            await self._ended
        finally:
            self._disarm()
            self._bus.on_message = _ignore
            self._bus.on_state = _ignore

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
                self._dispatch(self.core.handle(self._events.popleft(), self._clock_ns()))
            self._arm()
        except Exception as error:  # noqa: BLE001 -- raised where the controller is awaited; here it would end in a callback
            self._end(error)
        finally:
            self._is_draining = False

    # --- commands --------------------------------------------------------------------------------------------------------
    def _dispatch(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Publish():
                    edge.publish(self._bus, self._topics, command)
                case Subscribe():
                    self._bus.subscribe(edge.filters(self._topics, command))
                case Mark():
                    self._note(command)
                case PersistEpoch(epoch):
                    self._store.save(epoch)
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
