"""Which routes, tables and rules must the kernel hold so that it sends around a lost link by itself?

Rule 1: no I/O: writes go out, answers and readings come in.
Rule 2: nothing here delays, shadows or undoes a route to members; those are `kernel_routes`' business, and go first.
Rule 3: only rules and routes with our protocol number are ever touched.

A *backup* is a second route of a prefix, with a metric one higher: when the kernel has deleted a group with its last member, and the routes that
used it, packets find the backup in the same instant. What came by a port must not go back by it: each port that needs one has a table of its own,
and a rule for what came by the port to look there first. It holds, for what this node would send by that port and by others, the others.

A table names only what differs from the rest: where most destinations of the fabric want the same, one route for all of them, and a *throw* (look on
in the next table) for each that the table has nothing to say about. docs/linux-driver.md has the sizes.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from erfs.addressing import Addressing
from erfs.ids import EVERYTHING, DestinationId, is_endpoint
from erfs.messages import Member
from erfs_agent.drivers.kernel_objects import (
    BITS,
    TABLE_MAIN,
    TABLES,
    BackupWrite,
    GroupMembers,
    Place,
    Prefix,
    PutBackup,
    PutGroup,
    PutRule,
    RemoveBackup,
    RemoveObject,
    RemoveRule,
    RouteObject,
    Rule,
    Stamp,
    Write,
)
from erfs_agent.forwarding import NO_BACKUPS, Backups

Owned = Mapping[Prefix, tuple[Member, ...]]
"""Where each prefix goes that this node knows a destination for; no members: to nothing."""
Contents = Callable[[tuple[Member, ...], int], GroupMembers | None]
"""Turns members and an address family into what a group of those that exist holds; None if none does."""
NewId = Callable[[str, Collection[int]], int]
"""Returns a number for a group, by its name and the numbers in use."""

_ELSEWHERE: Final[GroupMembers] = ()
"""In place of a group's members: look on in the next table."""


class _Pair(NamedTuple):
    """What a prefix wants, and what the narrowest wider one of this node wants (None: there is none)."""

    members: tuple[Member, ...]
    outer: tuple[Member, ...] | None
    family: int
    is_summed: bool
    """Whether it has no wider one but is part of what the fabric's summary means."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """The prefixes by what decides whether a port's table names them."""

    pairs: dict[_Pair, list[Prefix]]
    summaries: dict[int, tuple[Prefix, ...]]
    """By family, prefixes that mean everything in the fabric and that no route has."""


def layout(owned: Owned, summary: Iterable[Prefix]) -> _Layout:
    """Return the layout of *owned*. Cost: O(prefixes x different lengths)."""
    summaries: dict[int, list[Prefix]] = {}
    for prefix in summary:
        # Not a whole default route: what leaves the fabric is not ours to decide about.
        if prefix.length and prefix not in owned:
            summaries.setdefault(prefix.family, []).append(prefix)
    lengths: dict[int, list[int]] = {
        family: sorted({prefix.length for prefix in owned if prefix.family == family}, reverse=True) for family in BITS
    }
    pairs: dict[_Pair, list[Prefix]] = {}
    for prefix, members in owned.items():
        outer: tuple[Member, ...] | None = None
        for length in lengths[prefix.family]:
            outer = owned.get(cut(prefix, length)) if length < prefix.length else None
            if outer is not None:
                break
        is_summed = outer is None and any(
            wider.length <= prefix.length and cut(prefix, wider.length) == wider
            for wider in summaries.get(prefix.family, ())
        )
        pairs.setdefault(_Pair(members, outer, prefix.family, is_summed), []).append(prefix)
    return _Layout(pairs, {family: tuple(found) for family, found in summaries.items()})


def cut(prefix: Prefix, length: int) -> Prefix:
    """Return the prefix of *length* that *prefix* is part of."""
    bits = BITS[prefix.family]
    number = int.from_bytes(prefix.address) >> (bits - length) << (bits - length)
    return Prefix(prefix.family, number.to_bytes(bits // 8), length)


def table_of(found: _Layout, banned: Collection[str], contents: Contents) -> dict[Prefix, GroupMembers]:
    """
    Return what a port's own table holds: by prefix the members of its group, none for a throw.

    Args:
        found: What this node sends where.
        banned: The ports to the far end of the port the table is for.
        contents: As described with the type.

    Returns:
        For a prefix that is sent by a banned port and by others the others, and nothing for one that is not, in as few routes as
        one summary allows.

    Cost: O(pairs of the layout + routes in the table).
    """
    known: dict[tuple[tuple[Member, ...], int], GroupMembers] = {}

    def wanted(members: tuple[Member, ...], family: int) -> GroupMembers:
        key = members, family
        if key not in known:
            others = tuple(member for member in members if member.port not in banned)
            is_named = others and len(others) < len(members)
            known[key] = (contents(others, family) if is_named else None) or _ELSEWHERE
        return known[key]

    table: dict[Prefix, GroupMembers] = {}
    summed: dict[int, GroupMembers] = {}
    for family, summaries in found.summaries.items():
        votes: Counter[GroupMembers] = Counter()
        for pair, prefixes in found.pairs.items():
            if pair.is_summed and pair.family == family:
                votes[wanted(pair.members, family)] += len(prefixes)
        usual, count = max(votes.items(), key=lambda item: (item[1], item[0]), default=(_ELSEWHERE, 0))
        exceptions = sum(number for content, number in votes.items() if content == _ELSEWHERE)
        if usual and count > len(summaries) + exceptions:
            summed[family] = usual
            table.update(dict.fromkeys(summaries, usual))
    for pair, prefixes in found.pairs.items():
        content = wanted(pair.members, pair.family)
        if pair.outer is not None:
            around = wanted(pair.outer, pair.family)
        else:
            around = summed.get(pair.family, _ELSEWHERE) if pair.is_summed else _ELSEWHERE
        if content != around:
            table.update(dict.fromkeys(prefixes, content))
    return table


class KernelBackups:
    """
    The books of one node's backups, port tables and rules in the kernel.

    Args:
        addressing: What destinations mean.
        prefixes: The same as the kernel wants it.
        devices: The interface of each port.
        stamp: What marks routes and rules as ours.
    """

    def __init__(
        self,
        addressing: Addressing,
        prefixes: Mapping[DestinationId, tuple[Prefix, ...]],
        devices: Mapping[str, str],
        stamp: Stamp,
    ) -> None:
        self._metric = stamp.metric + 1
        self._prefixes = prefixes
        self._devices = devices
        self._tables = dict(zip(sorted(devices), TABLES, strict=False))
        self._summary = prefixes.get(EVERYTHING, ())
        self._claims: dict[Prefix, list[DestinationId]] = {}
        for destination in sorted(addressing.destinations, key=lambda name: (not is_endpoint(name), name)):
            for prefix in prefixes[destination]:
                self._claims.setdefault(prefix, []).append(destination)
        self.backups = NO_BACKUPS
        """What is wanted."""
        self._is_asked = False
        self._behind: dict[Place, GroupMembers] = {}
        self._by_port: dict[Place, GroupMembers] = {}
        self._wanted_rules: set[Rule] = set()
        # What has to be worked out anew, and whether the kernel holds what was worked out.
        self._is_behind_due = self._is_by_port_due = False
        self._is_behind_settled = self._is_by_port_settled = True
        self._groups: dict[int, GroupMembers] = {}
        self._routes: dict[Place, int] = {}
        self._rules: set[Rule] = set()
        self._refused: dict[Place | Rule | GroupMembers, str] = {}

    # --- what there is ---------------------------------------------------------------------------------------------------
    def is_backed(self, prefix: Prefix) -> bool:
        """Return whether the kernel sends *prefix* somewhere even if no route to members is there."""
        place = self._place_behind(prefix)
        if place not in self._routes or not self._is_asked:
            return place in self._routes
        return self._claimed_by(prefix) is not None if self._is_behind_due else place in self._behind

    def has(self, place: Place) -> bool:
        """Return whether the kernel should hold a route of ours at *place*."""
        return place in self._routes

    def has_rule(self, rule: Rule) -> bool:
        """Return whether the kernel should hold our *rule*."""
        return rule in self._rules

    def is_ours(self, object_id: int) -> bool:
        """Return whether the group *object_id* is one the kernel should hold for us."""
        return object_id in self._groups

    @property
    def is_following_due(self) -> bool:
        """Whether the ports' tables have still to follow what this node sends where."""
        return self._is_asked and not self._is_by_port_settled

    def problems(self) -> list[str]:
        """Return what of the wanted the kernel refuses; forwarding does not depend on it."""
        return [f"{_named(thing)}: {why}" for thing, why in self._refused.items()]

    def _place_behind(self, prefix: Prefix) -> Place:
        return Place(TABLE_MAIN, prefix, self._metric)

    # --- what comes in ---------------------------------------------------------------------------------------------------
    def want(self, backups: Backups | None) -> None:
        """From now on hold *backups*, None: what was wanted before; where the routes lead has changed."""
        if not self._is_asked or (backups is not None and backups != self.backups):
            self._is_behind_due, self._is_behind_settled = True, False
            self._refused.clear()
        if not self._is_asked or self.backups.no_return or (backups is not None and backups.no_return):
            self._is_by_port_due, self._is_by_port_settled = True, False
        self._is_asked = True
        if backups is not None:
            self.backups = backups

    def hops_changed(self) -> None:
        """There may be more single next hops than before."""
        self._is_behind_due = self._is_by_port_due = True
        self._is_behind_settled = self._is_by_port_settled = False

    def lose_hops(self, lost: Collection[int]) -> list[Prefix]:
        """Do what the kernel does when the single next hops *lost* are gone; return the prefixes whose backup went with them."""
        found: list[Prefix] = []
        for group, members in list(self._groups.items()):
            left = tuple(member for member in members if member[0] not in lost)
            if left:
                self._groups[group] = left
            else:
                found += self._lose_group(group)
        self.hops_changed()
        return found

    def _lose_group(self, group: int) -> list[Prefix]:
        self._groups.pop(group, None)
        gone = [place for place, used in self._routes.items() if used == group]
        for place in gone:
            del self._routes[place]
        if gone:
            self._is_behind_settled = self._is_by_port_settled = False
        return [place.prefix for place in gone if place.table == TABLE_MAIN]

    def read_back(
        self, groups: Mapping[int, GroupMembers], routes: Iterable[RouteObject], rules: Iterable[Rule]
    ) -> None:
        """Take what the kernel really holds in place of what it was thought to."""
        self._groups = dict(groups)
        self._routes = {Place(route.table, route.prefix, route.metric): route.group for route in routes}
        self._rules = set(rules)
        self.hops_changed()

    # --- what goes out ---------------------------------------------------------------------------------------------------
    def writes(
        self, contents: Contents, owned: Callable[[], Owned], new_id: NewId, *, has_tables: bool, is_tidying: bool
    ) -> list[Write]:
        """
        Return what to ask for next, in order; ask again once these are answered.

        Args:
            contents, new_id: As described with the types.
            owned: Returns what this node sends where.
            has_tables: Whether the ports' tables are to follow now.
            is_tidying: Whether what is merely no longer used is to go.

        Cost: O(1) when nothing has changed, else O(routes of this node).
        """
        if not self._is_asked or (self._is_behind_settled and (self._is_by_port_settled or not has_tables)):
            return self._unused() if is_tidying and self._is_asked else []
        self._work_out(contents, owned, has_tables=has_tables)
        found = self._puts(new_id, has_tables=has_tables) or self._route_removals(has_tables=has_tables)
        if found:
            return found
        self._is_behind_settled = True
        self._is_by_port_settled |= has_tables
        return self._unused() if is_tidying else []

    def _puts(self, new_id: NewId, *, has_tables: bool) -> list[Write]:
        """Return groups, then routes, narrow ones first, then rules; rules that are not wanted go before what they look for."""
        wanted = self._behind | self._by_port if has_tables else self._behind
        groups: list[Write] = []
        routes: list[PutBackup] = []
        of_content = {content: group for group, content in sorted(self._groups.items())}
        used: set[int] = set(self._groups)
        for place, content in wanted.items():
            held = self._routes.get(place)
            if held is not None and (self._groups.get(held) if held else _ELSEWHERE) == content:
                continue
            if place in self._refused or content in self._refused:
                continue
            group = 0
            if content:
                if content not in of_content:
                    group = of_content[content] = new_id(str(content), used)
                    used.add(group)
                    groups.append(PutGroup(group, content, is_new=True))
                group = of_content[content]
            routes.append(PutBackup(place, group, is_new=held is None))
        routes.sort(key=lambda write: -write.place.prefix.length)
        rules: list[Write] = []
        if has_tables:
            rules += [PutRule(rule) for rule in sorted(self._wanted_rules - self._rules) if rule not in self._refused]
            rules += [RemoveRule(rule) for rule in sorted(self._rules - self._wanted_rules)]
        return [*groups, *routes, *rules]

    def _route_removals(self, *, has_tables: bool) -> list[Write]:
        """Return the routes to take out, wide ones first: a narrow one holds off what a wider one says."""
        unwanted = [
            place
            for place in self._routes
            if (place not in self._behind if place.table == TABLE_MAIN else has_tables and place not in self._by_port)
        ]
        return [RemoveBackup(place) for place in sorted(unwanted, key=lambda place: (place.prefix.length, place))]

    def _unused(self) -> list[Write]:
        """Return the removals of groups that nothing uses."""
        used = set(self._routes.values())
        return [RemoveObject(group) for group in sorted(self._groups.keys() - used)]

    def answered(self, write: BackupWrite | PutGroup | RemoveObject) -> None:
        """Take note that *write*, which is one of these, is done."""
        match write:
            case PutGroup():
                self._groups[write.id] = write.members
            case PutBackup():
                self._routes[write.place] = write.group
            case RemoveBackup():
                self._routes.pop(write.place, None)
            case PutRule():
                self._rules.add(write.rule)
            case RemoveRule():
                self._rules.discard(write.rule)
            case RemoveObject():
                self._lose_group(write.id)

    def give_up(self, write: BackupWrite | PutGroup | RemoveObject, text: str) -> None:
        """Take note that the kernel will not do *write*, because of *text*: do without it until something else is wanted."""
        match write:
            case PutGroup():
                self._refused[write.members] = text
            case PutBackup():
                self._refused[write.place] = text
            case PutRule():
                self._refused[write.rule] = text
            case RemoveBackup() | RemoveRule() | RemoveObject():
                # It is not ours to insist: forget it, as if it were gone.
                self.answered(write)

    # --- what is wanted --------------------------------------------------------------------------------------------------
    def _work_out(self, contents: Contents, owned: Callable[[], Owned], *, has_tables: bool) -> None:
        if self._is_behind_due:
            self._is_behind_due = False
            self._behind = {}
            for destination, members in self.backups.routes.items():
                for prefix in self._prefixes.get(destination, ()):
                    content = contents(members, prefix.family) if self._claimed_by(prefix) == destination else None
                    if content:
                        self._behind[self._place_behind(prefix)] = content
        if self._is_by_port_due and has_tables:
            self._is_by_port_due = False
            self._by_port = {}
            self._wanted_rules = set()
            found = layout(owned(), self._summary) if self.backups.no_return else _Layout({}, {})
            for port, banned in self.backups.no_return.items():
                table = self._tables.get(port)
                if table is None:
                    continue
                for prefix, content in table_of(found, banned, contents).items():
                    self._by_port[Place(table, prefix, self._metric)] = content
                    self._wanted_rules.add(Rule(prefix.family, self._devices[port], table))

    def _claimed_by(self, prefix: Prefix) -> DestinationId | None:
        """Return the most specific destination with a backup that means *prefix*."""
        return next((name for name in self._claims[prefix] if name in self.backups.routes), None)


def _named(thing: Place | Rule | GroupMembers) -> str:
    match thing:
        case Place():
            return f"backup of {thing.prefix} in table {thing.table}"
        case Rule():
            return f"rule for {thing.device}"
        case _:
            return f"group of {len(thing)} backup members"
