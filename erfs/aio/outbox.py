"""What waits to be sent when it cannot be sent at once, and what gives way when there is no more room.

Rule 1: urgent messages leave first and are never dropped for a routine one.
Rule 2: a retained topic keeps only its newest message, in the more urgent of the two lanes.
Rule 3: nothing here does I/O or knows MQTT; the real bus and the simulated one share it.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from erfs.ports import Priority

Payload = TypeVar("Payload")


@dataclass(frozen=True, slots=True, eq=False)
class Item(Generic[Payload]):
    """One message on its way out."""

    topic: str
    payload: Payload
    retain: bool
    priority: Priority


class Outbox(Generic[Payload]):
    """
    Two lanes that share *length_max* places.

    When all are taken the oldest routine message gives way, to an urgent or a routine newcomer alike; with none left to
    displace, a routine newcomer is dropped itself and an urgent one displaces the oldest urgent message. All that is
    dropped is counted; what a newer message of the same retained topic replaces is not a loss and is counted apart.
    """

    def __init__(self, length_max: int) -> None:
        assert length_max >= 1
        self.length_max = length_max
        self.dropped_count = 0
        self.superseded_count = 0
        # Dictionaries as queues: in order of arrival, and an item in the middle can go at once.
        self._lanes: dict[Priority, dict[Item[Payload], None]] = {priority: {} for priority in Priority}
        self._newest: dict[str, Item[Payload]] = {}

    def __len__(self) -> int:
        return sum(len(lane) for lane in self._lanes.values())

    def count(self, priority: Priority) -> int:
        """Return how many messages wait in the lane of *priority*."""
        return len(self._lanes[priority])

    def put(self, item: Item[Payload]) -> Item[Payload] | None:
        """Queue *item*; return what was dropped for it (perhaps itself), or None."""
        if item.retain and (older := self._newest.get(item.topic)) is not None:
            self._remove(older)
            self.superseded_count += 1
            if older.priority < item.priority:
                item = Item(item.topic, item.payload, item.retain, older.priority)
        dropped = None
        if len(self) >= self.length_max:
            self.dropped_count += 1
            dropped = self._give_way(item)
            if dropped is item:
                return item
        self._lanes[item.priority][item] = None
        if item.retain:
            self._newest[item.topic] = item
        return dropped

    def take(self, priority: Priority) -> Item[Payload] | None:
        """Return and remove the oldest message of the lane of *priority*, or None."""
        lane = self._lanes[priority]
        if not lane:
            return None
        item = next(iter(lane))
        self._remove(item)
        return item

    def put_back(self, items: list[Item[Payload]]) -> None:
        """Return *items*, taken but never confirmed, to the front of their lanes, except those replaced meanwhile."""
        for priority in Priority:
            lane = self._lanes[priority]
            again = {
                item: None
                for item in items
                if item.priority is priority and not (item.retain and item.topic in self._newest)
            }
            self._lanes[priority] = again | lane
            self._newest |= {item.topic: item for item in again if item.retain}
        while len(self) > self.length_max:
            self.dropped_count += 1
            self._remove(self._oldest())

    def _give_way(self, item: Item[Payload]) -> Item[Payload]:
        if item.priority is Priority.ROUTINE and not self._lanes[Priority.ROUTINE]:
            return item
        oldest = self._oldest()
        self._remove(oldest)
        return oldest

    def _oldest(self) -> Item[Payload]:
        lane = self._lanes[Priority.ROUTINE] or self._lanes[Priority.URGENT]
        return next(iter(lane))

    def _remove(self, item: Item[Payload]) -> None:
        del self._lanes[item.priority][item]
        if item.retain and self._newest.get(item.topic) is item:
            del self._newest[item.topic]
