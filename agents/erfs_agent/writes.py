"""What was asked of the data plane, what it confirmed, and what must be asked again?

Rule 1: a request is the difference to what was last requested, so nothing that is right already is touched; backups, which change seldom, are
said whole.
Rule 2: what the data plane refused is asked again with the next request of any cause, and counts as unknown until then.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from erfs.errors import Bug
from erfs.ids import DestinationId
from erfs.messages import Installed, Member
from erfs.units import MS, SECOND
from erfs_agent.forwarding import NO_BACKUPS, Backups

Routes = Mapping[DestinationId, tuple[Member, ...]]

# A data plane that refuses a write is usually busy: try soon, then less often, then leave it to the next change.
RETRY_FIRST_NS: Final = 10 * MS
RETRY_MAX_NS: Final = 1 * SECOND
RETRY_COUNT_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class WriteRoutes:
    """Put *routes* into the data plane and take *removed* out: the difference to what was last requested. Urgent."""

    change: int
    routes: dict[DestinationId, tuple[Member, ...]]
    removed: tuple[DestinationId, ...]
    backups: Backups | None = None
    """All of them, in place of those before; None: as they are. None to begin with: whatever the data plane has is then left over."""


@dataclass(frozen=True, slots=True)
class RoutesWritten:
    """What became of a `WriteRoutes`."""

    change: int
    is_ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """A change the data plane has not answered yet, and why it was asked for."""

    destinations: frozenset[DestinationId]
    failures: tuple[str, ...]
    program: Installed
    has_backups: bool = False


class Writes:
    """
    The conversation with one data plane.

    Args:
        installed: What it holds already.
    """

    def __init__(self, installed: Routes) -> None:
        self.change = 0
        """The last one requested."""
        self.retry_at_ns: int | None = None
        self._requested: Routes = dict(installed)
        self._backups: Backups | None = NO_BACKUPS
        """What was last requested, None if that was refused."""
        self._in_flight: dict[int, Request] = {}
        self._unwritten: frozenset[DestinationId] = frozenset()
        self._retry_count = 0

    def request(
        self, wanted: Routes, failures: tuple[str, ...], program: Installed, backups: Backups = NO_BACKUPS
    ) -> WriteRoutes | None:
        """Return what to write so that the data plane holds *wanted* and *backups*, None if it was asked for that already."""
        routes, removed = _difference(self._requested, wanted, self._unwritten)
        self._requested = wanted
        news = None if backups == self._backups else backups
        self._backups = backups
        if not routes and not removed and news is None:
            return None
        self.change += 1
        self._unwritten = frozenset()
        self.retry_at_ns = None
        destinations = frozenset(routes) | frozenset(removed)
        self._in_flight[self.change] = Request(destinations, failures, program, has_backups=news is not None)
        return WriteRoutes(self.change, routes, removed, news)

    def confirmed(self, change: int) -> Request:
        """Take note that *change* was written; return what it was."""
        request = self._answered(change)
        if not self._unwritten and self._backups is not None:
            self._retry_count = 0
        return request

    def refused(self, change: int, now_ns: int) -> tuple[Request, bool]:
        """Take note that *change* was not written; return what it was, and whether it will be tried again by itself."""
        request = self._answered(change)
        self._unwritten |= request.destinations
        if request.has_backups:
            self._backups = None
        if self._retry_count == RETRY_COUNT_MAX:
            self._retry_count = 0
            return request, False
        self.retry_at_ns = now_ns + min(RETRY_FIRST_NS << self._retry_count, RETRY_MAX_NS)
        self._retry_count += 1
        return request, True

    def is_confirmed(self, change: int) -> bool:
        """Return whether everything up to *change* is in the data plane."""
        return (
            not self._unwritten and self._backups is not None and all(pending > change for pending in self._in_flight)
        )

    def _answered(self, change: int) -> Request:
        request = self._in_flight.pop(change, None)
        if request is None:
            raise Bug(f"change {change} was answered but is not in flight")
        return request


def _difference(
    before: Routes, after: Routes, unwritten: frozenset[DestinationId]
) -> tuple[dict[DestinationId, tuple[Member, ...]], tuple[DestinationId, ...]]:
    """Return the routes to write and those to remove, sorted; *unwritten* ones count as unknown before."""
    if before is after and not unwritten:
        return {}, ()
    # Hundreds of routes share a few member tuples: each pair is compared once.
    is_same: dict[tuple[int, int], bool] = {}
    routes: dict[DestinationId, tuple[Member, ...]] = {}
    for destination, members in after.items():
        old = before.get(destination)
        if old is members and destination not in unwritten:
            continue
        pair = (id(old), id(members))
        if pair not in is_same:
            is_same[pair] = old == members
        if not is_same[pair] or destination in unwritten:
            routes[destination] = members
    removed = tuple(sorted((before.keys() | unwritten) - after.keys()))
    return routes, removed
