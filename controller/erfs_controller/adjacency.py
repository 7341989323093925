"""What one end of a link believes of it, as a table: the state of an adjacency and what each signal makes of it.

Rule 1: every change of an adjacency happens in `next_state`; a missing cell is a bug and raises.
Rule 2: an agent's silence is never evidence: neither its going nor its return moves an adjacency, only its word does.
Rule 3: nothing here knows about the bus, clocks, graphs or the other end.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from erfs.errors import Bug
from erfs.ids import NodeId
from erfs.messages import DownFact, PortHealth


class Adjacency(StrEnum):
    """One end's last word about its link."""

    UNKNOWN = "unknown"  # has not said anything yet
    UP = "up"
    DOWN = "down"  # down, or up again but still held for its wait-to-restore time


class Signal(StrEnum):
    """What can happen to an adjacency."""

    SAID_UP = "said_up"
    SAID_DOWN = "said_down"
    AGENT_GONE = "agent_gone"
    AGENT_BACK = "agent_back"


# A gone agent's word stands: its node goes on forwarding by what it last knew, and a node that really died is reported by
# its neighbours. A returning agent speaks for itself by its health report, with the counters it has kept.
TRANSITIONS: Final[Mapping[Adjacency, Mapping[Signal, Adjacency]]] = {
    Adjacency.UNKNOWN: {
        Signal.SAID_UP: Adjacency.UP,
        Signal.SAID_DOWN: Adjacency.DOWN,
        Signal.AGENT_GONE: Adjacency.UNKNOWN,
        Signal.AGENT_BACK: Adjacency.UNKNOWN,
    },
    Adjacency.UP: {
        Signal.SAID_UP: Adjacency.UP,
        Signal.SAID_DOWN: Adjacency.DOWN,
        Signal.AGENT_GONE: Adjacency.UP,
        Signal.AGENT_BACK: Adjacency.UP,
    },
    Adjacency.DOWN: {
        Signal.SAID_UP: Adjacency.UP,
        Signal.SAID_DOWN: Adjacency.DOWN,
        Signal.AGENT_GONE: Adjacency.DOWN,
        Signal.AGENT_BACK: Adjacency.DOWN,
    },
}


def next_state(state: Adjacency, signal: Signal) -> Adjacency:
    """
    Return what *signal* makes of an adjacency in *state*.

    Raises:
        Bug: the table has no such cell.
    """
    try:
        return TRANSITIONS[state][signal]
    except KeyError:
        raise Bug(f'adjacency "{state}" has no cell for the signal "{signal}"') from None


@dataclass(frozen=True, slots=True)
class Word:
    """What an end says of its link. *counter* counts this end's ups and downs, in facts and health reports alike."""

    is_up: bool
    counter: int
    far_end: NodeId

    @property
    def signal(self) -> Signal:
        """What the word does to the adjacency."""
        return Signal.SAID_UP if self.is_up else Signal.SAID_DOWN

    @classmethod
    def of_fact(cls, fact: DownFact) -> "Word":
        """Return the word in a down fact."""
        return cls(not fact.down, fact.counter, fact.far_end)

    @classmethod
    def of_health(cls, port: PortHealth) -> "Word":
        """Return the word in a health report: a held port is not up yet."""
        return cls(port.oper_up and not port.held, port.counter, port.far_end)


def replaces(new: Word, old: Word | None) -> bool:
    """
    Return whether *new* is to be believed over *old*: the higher counter is newer, whatever the order of arrival.

    Equal counters mean the same event told twice, by fact and by health. Should the two disagree all the same, the bad news counts:
    it costs a path, the good news could cost packets.
    """
    if old is None or new.counter > old.counter:
        return True
    return new.counter == old.counter and old.is_up and not new.is_up
