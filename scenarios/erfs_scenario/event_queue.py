"""What happens next in simulated time, and in which order.

Rule 1: events of one instant run in the order in which they were asked for; nothing else (hash, address, thread) decides.
Rule 2: nothing here knows what an event does; time moves only between events.
"""

import heapq
from collections.abc import Callable
from functools import partial
from typing import Protocol

from erfs.errors import Bug

Action = Callable[[], None]


class Source(Protocol):
    """Something else with a timetable of its own, such as a simulated bus."""

    def next_event_ns(self) -> int | None:
        """Return when it has something to do next."""

    def advance(self, now_ns: int) -> None:
        """Do what is due up to *now_ns*; then it is *now_ns* there too."""


class EventQueue:
    """
    A heap of (instant, sequence, action), beside one other *source* of events.

    In an instant the source comes first, then what was asked for here, in turn until neither has anything left.
    """

    def __init__(self, source: Source) -> None:
        self.now_ns = 0
        self._source = source
        self._sequence = 0
        self._heap: list[tuple[int, int, Action]] = []

    def at(self, at_ns: int, action: Action) -> None:
        """
        Run *action* at *at_ns*, after everything already asked for that instant.

        Raises:
            Bug: *at_ns* is in the past.
        """
        if at_ns < self.now_ns:
            raise Bug(f"an event was asked for {self.now_ns - at_ns} ns before now ({self.now_ns})")
        heapq.heappush(self._heap, (at_ns, self._sequence, action))
        self._sequence += 1

    def after(self, delay_ns: int, action: Action) -> None:
        """Run *action* in *delay_ns*."""
        self.at(self.now_ns + delay_ns, action)

    def run(self, until_ns: int, *, instant_ended: Callable[[int], None]) -> None:
        """
        Run every event up to and including *until_ns*, then stand at *until_ns*.

        Args:
            until_ns: Events later than this stay in the queue.
            instant_ended: Called with the instant once nothing is left to do in it, before time moves on.

        Cost: O(log events) an event.
        """
        heap, source = self._heap, self._source
        while (now_ns := self._next_ns()) is not None and now_ns <= until_ns:
            self.now_ns = now_ns
            while self._next_ns() == now_ns:
                source.advance(now_ns)
                while heap and heap[0][0] == now_ns:
                    heapq.heappop(heap)[2]()
            instant_ended(now_ns)
        self.now_ns = max(self.now_ns, until_ns)

    def _next_ns(self) -> int | None:
        source_ns = self._source.next_event_ns()
        if not self._heap:
            return source_ns
        own_ns = self._heap[0][0]
        return own_ns if source_ns is None else min(own_ns, source_ns)

    def __len__(self) -> int:
        return len(self._heap)


class Alarm:
    """
    The one timer of one core, with entries of the queue that may turn out to be for nothing.

    An entry stays in the queue until its instant; it fires only if it is the one that counts then, so a core that puts off its
    wake-up a thousand times costs one entry.
    """

    __slots__ = ("_fire", "_pending_ns", "_queue")

    def __init__(self, queue: EventQueue, fire: Callable[[], None]) -> None:
        self._queue = queue
        self._fire = fire
        self._pending_ns: int | None = None

    def set(self, wakeup_ns: int | None) -> None:
        """Have the core woken at *wakeup_ns*, or earlier for nothing."""
        if wakeup_ns is None or (self._pending_ns is not None and self._pending_ns <= wakeup_ns):
            return
        at_ns = max(wakeup_ns, self._queue.now_ns)
        self._pending_ns = at_ns
        self._queue.at(at_ns, partial(self._expire, at_ns))

    def _expire(self, at_ns: int) -> None:
        if self._pending_ns == at_ns:
            self._pending_ns = None
            self._fire()
