"""Measure a data plane later, at the instants at which it changed: in real time measuring must not delay what is measured.

Rule 1: what changes is noted with its instant, at once and cheaply; a second plane goes through the same changes when
there is time, and only that one is measured.
Rule 2: changes are replayed in the order in which they were made, nothing between two of them.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from erfs.fabric import Fabric
from erfs.ids import DestinationId, LinkId, NodeId
from erfs.messages import Member
from erfs_scenario.dataplane import DataPlane

Settle = Callable[[int], None]
"""Called with an instant once everything of that instant has been replayed."""


@dataclass(frozen=True, slots=True)
class _Change:
    at_ns: int
    make: Callable[[DataPlane], None]


class NotedPlane(DataPlane):
    """
    The data plane that agents write to, which keeps note of every change.

    Args:
        fabric: As built.
        now_ns: The clock of the run.
    """

    def __init__(self, fabric: Fabric, now_ns: Callable[[], int]) -> None:
        super().__init__(fabric)
        self.rewritten_count = 0
        """Routes written that say something else than before."""
        self._now_ns = now_ns
        self._notes: deque[_Change] = deque()
        self._last_at_ns = 0
        self._shadow = DataPlane(fabric)

    @property
    def shadow(self) -> DataPlane:
        """The plane that goes through the same changes later."""
        return self._shadow

    @property
    def oldest_note_ns(self) -> int | None:
        """Return when the first change not yet replayed was made."""
        return self._notes[0].at_ns if self._notes else None

    @property
    def newest_note_ns(self) -> int:
        """Return when the last change was made."""
        return self._last_at_ns

    def set_link(self, link: LinkId, is_up: bool) -> None:
        """Cut the cable of *link*, or mend it."""
        super().set_link(link, is_up)
        self._note(lambda plane: plane.set_link(link, is_up))

    def set_node(self, node: NodeId, is_up: bool) -> None:
        """Take the power of *node*, or give it back."""
        super().set_node(node, is_up)
        self._note(lambda plane: plane.set_node(node, is_up))

    def write_routes(
        self, node: NodeId, routes: Mapping[DestinationId, tuple[Member, ...]], removed: Iterable[DestinationId] = ()
    ) -> None:
        """Change the table of *node*."""
        gone = tuple(removed)
        table = self.tables[self.node_index[node]]
        for destination, members in routes.items():
            hops = table.get(destination)
            self.rewritten_count += hops is None or hops.members != members
        self.rewritten_count += sum(destination in table for destination in gone)
        super().write_routes(node, routes, gone)
        self._note(lambda plane: plane.write_routes(node, routes, gone))

    def replay(self, settle: Settle) -> None:
        """Let the shadow go through everything noted so far; *settle* is called once for each instant."""
        while self._notes:
            at_ns = self._notes[0].at_ns
            while self._notes and self._notes[0].at_ns == at_ns:
                self._notes.popleft().make(self._shadow)
            settle(at_ns)

    def _note(self, make: Callable[[DataPlane], None]) -> None:
        self._last_at_ns = self._now_ns()
        self._notes.append(_Change(self._last_at_ns, make))
        # Nobody asks this plane what is dirty; what it gathers for the question would only grow.
        self._dirty.clear()
