"""The plugs between cores and the world: events every core may get, commands every core may give, and the bus port.

Rule 1: a command is a request, never awaited; its outcome returns as an event.
Rule 2: nothing here does I/O.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from erfs.topics import Address, Channel

if TYPE_CHECKING:
    # A process that sends no messages, as that of the sessions, does without pydantic.
    from erfs.messages import Message


# --- events ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Delivered:
    """A message arrived. The shell has decoded it and checked that its sender is the node of *address*."""

    address: Address
    message: "Message"
    is_retained: bool = False


@dataclass(frozen=True, slots=True)
class BusConnected:
    """The bus can be used (again); everything retained that is ours must be republished."""


@dataclass(frozen=True, slots=True)
class BusLost:
    """The bus cannot be used; publishing now is pointless, forwarding goes on."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The core's `next_wakeup_ns` has come."""


# --- commands ----------------------------------------------------------------------------------------------------------
class Priority(IntEnum):
    """Which queue a message waits in. Urgent ones never wait behind reports."""

    URGENT = 0
    ROUTINE = 1


@dataclass(frozen=True, slots=True)
class Publish:
    """Send *message* to *address*. Whether it is retained follows from the channel (`erfs.topics.RETAINED`)."""

    address: Address
    message: "Message"
    priority: Priority = Priority.ROUTINE


@dataclass(frozen=True, slots=True)
class Subscribe:
    """
    From now on want exactly these: whole set, so repetition is harmless.

    *channels* means all topics of a channel; *addresses* single topics; *facts_of* all facts of these reporters.
    """

    channels: tuple[Channel, ...] = ()
    addresses: tuple[Address, ...] = ()
    facts_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """Something happened that logs, journals and measurements want to know. *event* is snake_case, past tense."""

    event: str
    fields: dict[str, object] = field(default_factory=dict)


# --- the bus port ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Incoming:
    """Bytes that arrived by *topic*."""

    topic: str
    payload: bytes
    is_retained: bool


class Bus(Protocol):
    """
    A client's end of the bus. No method blocks; each may be called while disconnected.

    Implementations call ``on_message`` for each arrival and ``on_state`` with True/False when the bus comes and goes.
    Subscriptions survive reconnects. Queued urgent messages leave before routine ones; when a queue is full the oldest
    *routine* message is dropped and counted, an urgent one displaces a routine one, and retained topics keep only
    their newest message.
    """

    on_message: Callable[[Incoming], None]
    on_state: Callable[[bool], None]

    def subscribe(self, filters: frozenset[str]) -> None:
        """Want exactly these topic filters from now on."""

    def publish(self, topic: str, payload: bytes, *, retain: bool, priority: Priority) -> None:
        """Queue one message; QoS 1."""
