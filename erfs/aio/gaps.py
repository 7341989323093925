"""How many messages of each sender never came? Senders number their messages; receivers count the holes.

Rule 1: late, repeated and reordered messages are no holes; a hole that fills is no longer counted.
Rule 2: it means something only to a receiver that wants all of a sender's messages, as the controller does.
"""

from dataclasses import dataclass, field
from typing import Final

from erfs.messages import Message, Presence

# An urgent message overtakes at most a queue of routine ones (1,000 places by default), so what is further back than this
# has been lost, or its sender began anew.
WINDOW: Final = 2_000


@dataclass(slots=True)
class _Sender:
    highest: int
    missing: dict[int, None] = field(default_factory=dict)
    incarnation: int = 0


class GapCounter:
    """Counts holes and duplicates per sender, by the `seq` of what arrives."""

    def __init__(self) -> None:
        self.duplicate_count = 0
        self._lost_count = 0
        self._senders: dict[str, _Sender] = {}

    @property
    def missing_count(self) -> int:
        """Messages that did not come: lost on the way, dropped from a full queue or replaced there by a newer one."""
        return self._lost_count + sum(len(sender.missing) for sender in self._senders.values())

    def observe(self, message: Message) -> None:
        """
        Take note of one live arrival (a retained copy says nothing of loss; don't show it here).

        A number far below the highest, or a presence with a new incarnation, means that the sender began anew. Number 0
        is a last will, which the broker says.
        """
        seq = message.seq
        if seq == 0:
            return
        sender = self._senders.get(message.sender)
        if sender is None:
            sender = self._senders[message.sender] = _Sender(highest=seq)
            if isinstance(message, Presence):
                sender.incarnation = message.incarnation
            return
        if self._is_new_life(sender, message):
            self._lost_count += len(sender.missing)
            sender.highest = seq
            sender.missing = {}
            return
        if seq > sender.highest:
            first = max(sender.highest + 1, seq - WINDOW)
            self._lost_count += first - (sender.highest + 1)
            sender.missing |= dict.fromkeys(range(first, seq))
            sender.highest = seq
            self._forget(sender)
        elif seq in sender.missing:
            del sender.missing[seq]
        else:
            self.duplicate_count += 1

    def _forget(self, sender: _Sender) -> None:
        while sender.missing and (oldest := next(iter(sender.missing))) < sender.highest - WINDOW:
            del sender.missing[oldest]
            self._lost_count += 1

    @staticmethod
    def _is_new_life(sender: _Sender, message: Message) -> bool:
        if isinstance(message, Presence) and message.incarnation > sender.incarnation:
            sender.incarnation = message.incarnation
            return message.seq <= sender.highest
        return message.seq < sender.highest - WINDOW
