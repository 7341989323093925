"""The life of one port, as a table: bad news at once, good news after a wait that grows with each flap.

Rule 1: every state change of a port happens in `next_state`.
Rule 2: nothing here knows about buses, programs or drivers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from erfs.errors import Bug


class PortState(StrEnum):
    """Whether a port may be used."""

    UP = "up"
    DOWN = "down"  # no carrier
    HELD = "held"  # carrier again, not yet trusted


class Signal(StrEnum):
    """What can happen to a port."""

    CARRIER_LOST = "carrier_lost"
    CARRIER_BACK = "carrier_back"
    WAIT_OVER = "wait_over"


TRANSITIONS: Final[Mapping[PortState, Mapping[Signal, PortState]]] = {
    PortState.UP: {Signal.CARRIER_LOST: PortState.DOWN, Signal.CARRIER_BACK: PortState.UP},
    PortState.DOWN: {Signal.CARRIER_LOST: PortState.DOWN, Signal.CARRIER_BACK: PortState.HELD},
    PortState.HELD: {
        Signal.CARRIER_LOST: PortState.DOWN,
        Signal.CARRIER_BACK: PortState.HELD,
        Signal.WAIT_OVER: PortState.UP,
    },
}


def next_state(state: PortState, signal: Signal) -> PortState:
    """
    Return the state after *signal*.

    Raises:
        Bug: a wait that was never begun is said to be over.
    """
    found = TRANSITIONS[state].get(signal)
    if found is None:
        raise Bug(f'port state "{state}" cannot get the signal "{signal}"')
    return found


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long a repaired port must stay good, and what counts as a flap."""

    wait_to_restore_ns: int
    wait_to_restore_max_ns: int
    flap_window_ns: int
    """A loss of carrier this soon after the port was last bad is a flap and doubles the wait."""


class Port:
    """The state of one port over time."""

    __slots__ = ("_bad_until_ns", "_flap_count", "_waiting", "held_until_ns", "state")

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._flap_count = 0
        self._bad_until_ns: int | None = None
        self.state = PortState.UP
        self.held_until_ns: int | None = None

    def signal(self, signal: Signal, now_ns: int) -> bool:
        """Take *signal*; return whether the state changed."""
        before = self.state
        self.state = next_state(before, signal)
        if self.state is before:
            return False
        if self.state is PortState.DOWN:
            self._count_flap(was_bad=before is PortState.HELD, now_ns=now_ns)
            self.held_until_ns = None
        elif self.state is PortState.HELD:
            self.held_until_ns = now_ns + self.wait_ns
        else:
            self._bad_until_ns = now_ns
            self.held_until_ns = None
        return True

    @property
    def wait_ns(self) -> int:
        """How long the next return of the carrier must last."""
        doubled = self._waiting.wait_to_restore_ns << min(self._flap_count, 62)
        return min(doubled, self._waiting.wait_to_restore_max_ns)

    def wait_as(self, waiting: Waiting) -> None:
        """Use other times from the next signal on."""
        self._waiting = waiting

    def _count_flap(self, *, was_bad: bool, now_ns: int) -> None:
        is_soon = self._bad_until_ns is not None and now_ns - self._bad_until_ns <= self._waiting.flap_window_ns
        self._flap_count = self._flap_count + 1 if was_bad or is_soon else 0
