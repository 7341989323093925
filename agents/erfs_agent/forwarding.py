"""What a node's next-hop groups must be, given its program and what is known to be down.

Rule 1: forwarding is a pure function of (program, set of facts, own ports, what far ends cannot reach): the order in
which anything became known, how often it was said, and how late, make no difference.
Rule 2: nothing here knows about buses, clocks or drivers.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from erfs.ids import DestinationId, LinkId, NodeId, SrlgId, is_endpoint, lookup_order
from erfs.messages import Change, ChangeRef, FailureKind, Member, Program, Route
from erfs.topics import NOBODY

FactKey = tuple[LinkId, NodeId]
"""(link, reporter)"""

FailureKey = tuple[FailureKind, str]
"""What failed: kind and name."""

NOWHERE: Final[tuple[Member, ...]] = ()


@dataclass(frozen=True, slots=True)
class Backups:
    """What the data plane is to hold behind the routes, all of it, so that it acts without the agent."""

    routes: dict[DestinationId, tuple[Member, ...]] = field(default_factory=dict)
    """What serves each destination while its group is empty or gone; never an empty group."""
    no_return: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By port: the ports to its far end, by which nothing leaves that came by it, as long as its destination has another live member."""


NO_BACKUPS: Final = Backups()


class KnownFact(NamedTuple):
    """The newest word of one reporter about one link."""

    counter: int
    down: bool
    far_end: NodeId


class FactSet:
    """
    Which ends of which links say what; a value: adding a fact gives another set.

    The newest counter of each (link, reporter) stays, in whatever order facts come. Two words with one counter cannot
    come from an honest reporter; "down" is then the one that stays, so that order still makes no difference.
    """

    __slots__ = ("_down", "_facts")

    def __init__(self, facts: Mapping[FactKey, KnownFact] | None = None) -> None:
        self._facts: dict[FactKey, KnownFact] = dict(facts or {})
        self._down: dict[FactKey, int] = {key: fact.counter for key, fact in self._facts.items() if fact.down}

    def with_fact(
        self, link: LinkId, reporter: NodeId, counter: int, down: bool, far_end: NodeId = NOBODY
    ) -> "FactSet":
        """
        Return the set that also knows this fact; the same object if it says nothing new.

        Cost: O(facts), which are few: the ends of links that ever failed.
        """
        return self.with_word((link, reporter), KnownFact(counter, down, far_end))

    def with_word(self, key: FactKey, word: KnownFact) -> "FactSet":
        """Return the set that also knows *word*, as `with_fact`."""
        known = self._facts.get(key)
        if known is not None and known >= word:
            return self
        return FactSet(self._facts | {key: word})

    def without(self, keys: Iterable[FactKey]) -> "FactSet":
        """Return the set that has forgotten *keys*; for reporters that no longer matter."""
        gone = set(keys)
        return FactSet({key: fact for key, fact in self._facts.items() if key not in gone})

    @property
    def down(self) -> Mapping[FactKey, int]:
        """The counters of the facts that say down."""
        return self._down

    def get(self, link: LinkId, reporter: NodeId) -> KnownFact | None:
        """Return the newest word of *reporter* about *link*, None if there was none."""
        return self._facts.get((link, reporter))

    def far_end(self, key: FactKey) -> NodeId:
        """Return which node the reporter of a known fact has at the other end of its link."""
        return self._facts[key].far_end

    def items(self) -> list[tuple[FactKey, KnownFact]]:
        """Return everything known, in canonical order."""
        return sorted(self._facts.items())

    def __len__(self) -> int:
        return len(self._facts)

    def __iter__(self) -> Iterator[FactKey]:
        return iter(sorted(self._facts))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FactSet) and self._facts == other._facts

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"FactSet({dict(self.items())!r})"


@dataclass(frozen=True, slots=True)
class Forwarding:
    """What the data plane is to hold, and what to say to upstream nodes."""

    routes: dict[DestinationId, tuple[Member, ...]] = field(default_factory=dict)
    """Sorted by destination. A destination without a route of its own in the program is here only while it differs
    from the route that would serve it otherwise. An empty group is a blackhole."""
    last_resort: frozenset[DestinationId] = frozenset()
    """Destinations served by members that are known to lead nowhere good, because nothing better is left."""
    cannot_reach: frozenset[DestinationId] = frozenset()
    """Destinations an upstream node should reach another way."""
    active: tuple[str, ...] = ()
    """The failures whose entries apply, sorted."""
    backups: Backups = NO_BACKUPS


class CompiledProgram:
    """
    A program and the indexes over it; build once, use for every change.

    Cost: indexes are built on first use, so a program that never sees a failure costs one dictionary of its routes.
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    def restamped(self, program: Program) -> "CompiledProgram":
        """Return this for *program*, whose content is the same (equal digest) under another epoch or generation."""
        assert program.digest == self.program.digest
        other = copy.copy(self)
        other.program = program
        return other

    @cached_property
    def routes(self) -> dict[DestinationId, Route]:
        """The routes, sorted by destination."""
        return {route.destination: route for route in sorted(self.program.routes, key=_destination)}

    @cached_property
    def members_of_group(self) -> dict[int, tuple[Member, ...]]:
        """The members of each group."""
        return {group.id: group.members for group in self.program.groups}

    @cached_property
    def plain(self) -> dict[DestinationId, tuple[Member, ...]]:
        """The program's groups as they are."""
        groups = self.members_of_group
        return {destination: groups[route.group] for destination, route in self.routes.items()}

    @cached_property
    def undisturbed(self) -> Forwarding:
        """The forwarding while nothing is down; a group may be empty from the start."""
        empty = frozenset(destination for destination, members in self.plain.items() if not members)
        cannot_reach = frozenset(destination for destination in empty if self.routes[destination].has_detour)
        return Forwarding(self.plain, last_resort=empty, cannot_reach=cannot_reach, backups=self.backups)

    @cached_property
    def backups(self) -> Backups:
        """The program's backups as they are; a route that is to drop has none."""
        if self.program.backups is None:
            return NO_BACKUPS
        plain = self.plain
        found: dict[DestinationId, tuple[Member, ...]] = {}
        for backup in self.program.backups:
            members = tuple(Member(port=port) for port in backup.ports)
            found.update((name, members) for name in backup.destinations if members and plain.get(name))
        through = self.transit_far_ends
        bindings = [binding for binding in self.program.ports if binding.far_end in through]
        return Backups(
            dict(sorted(found.items())), {binding.port: self.ports_to[binding.far_end] for binding in bindings}
        )

    @cached_property
    def below(self) -> dict[DestinationId, tuple[DestinationId, ...]]:
        """The routes for part of what each destination means."""
        found: dict[DestinationId, list[DestinationId]] = {}
        for destination in self.routes:
            for wider in lookup_order(destination)[1:]:
                found.setdefault(wider, []).append(destination)
        return {wider: tuple(narrower) for wider, narrower in found.items()}

    @cached_property
    def destinations_of_port(self) -> dict[str, tuple[DestinationId, ...]]:
        """The routes whose group has a member over each port."""
        of_group: dict[int, list[DestinationId]] = {}
        for destination, route in self.routes.items():
            of_group.setdefault(route.group, []).append(destination)
        found: dict[str, list[DestinationId]] = {}
        for group, destinations in of_group.items():
            for member in self.members_of_group[group]:
                found.setdefault(member.port, []).extend(destinations)
        return {port: tuple(destinations) for port, destinations in found.items()}

    @cached_property
    def ports_to(self) -> dict[NodeId, tuple[str, ...]]:
        """The ports that lead to each far end."""
        found: dict[NodeId, list[str]] = {}
        for binding in self.program.ports:
            found.setdefault(binding.far_end, []).append(binding.port)
        return {node: tuple(ports) for node, ports in found.items()}

    @cached_property
    def port_of_far_end(self) -> dict[FactKey, str]:
        """The port whose link the far end speaks of, by (link, far end)."""
        return {(binding.link, binding.far_end): binding.port for binding in self.program.ports}

    def failures_of(self, link: LinkId, reporter: NodeId, far_end: NodeId) -> list[FailureKey]:
        """
        Return the failures armed for to which a fact of *reporter* about *link* testifies.

        The fact must be true to its link (`erfs.ids.is_own_end`); that is looked at once, where it arrives. Cost: a few look-ups.
        """
        armed = self.program.armed
        found: list[FailureKey] = []
        if link in armed.links:
            found.append(("link", link))
        if far_end in armed.nodes and far_end != reporter and link not in self._ignored:
            found.append(("node", far_end))
        found += [("srlg", srlg) for srlg in self._risks_of_link.get(link, ())]
        return found

    @cached_property
    def _ignored(self) -> frozenset[LinkId]:
        return frozenset(self.program.armed.ignored)

    @cached_property
    def _risks_of_link(self) -> dict[LinkId, list[SrlgId]]:
        found: dict[LinkId, list[SrlgId]] = {}
        for srlg, risk in self.program.armed.srlgs.items():
            for link in risk.links:
                found.setdefault(link, []).append(srlg)
        return found

    @cached_property
    def reporters(self) -> frozenset[NodeId]:
        """Whose facts this node is armed for."""
        return frozenset(self.program.armed.reporters)

    def changes_for(self, failure: FailureKey) -> tuple[Change, ...]:
        """Return what the program changes for *failure*."""
        kind, name = failure
        armed = self.program.armed
        refs: tuple[ChangeRef, ...]
        match kind:
            case "link":
                refs = armed.links[LinkId(name)]
            case "node":
                refs = armed.nodes[NodeId(name)]
            case "srlg":
                refs = armed.srlgs[SrlgId(name)].changes
        return armed.changes(refs)

    @cached_property
    def transit_far_ends(self) -> frozenset[NodeId]:
        """The far ends that forward for this node: whatever is not just an endpoint at its own port."""
        groups = {route.group for route in self.program.routes if not is_endpoint(route.destination)}
        ports = {member.port for group in groups for member in self.members_of_group[group]}
        for step in self.program.armed.steps:
            ports.update(member.port for member in step.add)
        for backup in self.program.backups or ():
            ports.update(backup.ports)
        return frozenset(binding.far_end for binding in self.program.ports if binding.port in ports)

    @cached_property
    def listed(self) -> dict[FactKey, int]:
        """The counter up to which each fact has been taken into account already."""
        return {(ref.link, ref.reporter): ref.counter for ref in self.program.computed_from}

    def base(self, destination: DestinationId) -> Route | None:
        """Return the route that serves *destination*, the most specific one; None if nothing does."""
        for candidate in lookup_order(destination):
            route = self.routes.get(candidate)
            if route is not None:
                return route
        return None

    def active_facts(self, facts: FactSet) -> list[FactKey]:
        """Return the down facts that the program has not taken into account, in canonical order."""
        if not facts.down:
            return []
        listed = self.listed
        return sorted(key for key, counter in facts.down.items() if listed.get(key, 0) < counter)

    def active_failures(self, active_facts: Iterable[FactKey], facts: FactSet) -> list[FailureKey]:
        """
        Return the failures whose entries apply, given the facts not yet taken into account, in canonical order.

        A link's entry needs one fact; a node's needs two different reporters about two different links, so that a single cut cable
        never looks like a dead switch; a risk group's needs facts about two of its links.
        """
        testimony: dict[FailureKey, list[FactKey]] = {}
        for key in active_facts:
            for failure in self.failures_of(*key, facts.far_end(key)):
                testimony.setdefault(failure, []).append(key)
        return sorted(failure for failure, keys in testimony.items() if _applies(failure, keys))


def _destination(route: Route) -> DestinationId:
    return route.destination


def _applies(failure: FailureKey, keys: list[FactKey]) -> bool:
    match failure[0]:
        case "link":
            return True
        case "node":
            return len({link for link, _ in keys}) >= 2 and len({reporter for _, reporter in keys}) >= 2
        case "srlg":
            return len({link for link, _ in keys}) >= 2


def forwarding(
    program: Program | CompiledProgram,
    facts: FactSet,
    ports_down: frozenset[str],
    unreachable: Mapping[NodeId, frozenset[DestinationId]],
    *,
    is_protecting: bool = True,
) -> Forwarding:
    """
    Return the next-hop groups that *program* asks for in this situation.

    Args:
        program: The installed program; pass the compiled form when asking more than once.
        facts: Everything known, the node's own facts among it.
        ports_down: Own ports that must not be used: without carrier, or still within their wait-to-restore time.
        unreachable: What each far end last said it cannot reach.
        is_protecting: False leaves the program's groups as they are; the controller alone reacts then.

    Returns:
        For each destination its group's members minus those over a port that is down, minus those over a link that its
        far end lost (a cable broken in one direction), minus the drops of entries that apply, minus members whose far
        end cannot reach it, plus the adds of the one entry that adds. If nothing is left: the group's members whose
        own port is up, flagged; if there are none, an empty group. The backups are the program's, minus ports that are
        not to be used for a destination: what a neighbour cannot reach either does not circle between it and this node.

    Cost: O(routes) while nothing is down; O(routes + destinations of the entries that apply) otherwise.
    Source: design.md section 2; `cannot_reach` compares to RIFT negative disaggregation, RFC 9692.
    """
    compiled = program if isinstance(program, CompiledProgram) else CompiledProgram(program)
    if not is_protecting:
        return Forwarding(routes=compiled.plain)
    effects = effects_of(compiled, facts, ports_down, unreachable)
    if effects.is_none:
        return compiled.undisturbed
    return _resolve(compiled, effects, Forwarding(), None)


@dataclass(frozen=True, slots=True)
class Effects:
    """What the situation takes from, and adds to, the groups of each destination named anywhere."""

    ports_down: frozenset[str]
    refused: dict[DestinationId, set[str]]
    """Ports not to be used for a destination, by drops and by far ends' word."""
    refused_for_all: frozenset[str]
    """Ports whose far end says it lost the link, though this end still sees carrier."""
    adds: dict[DestinationId, dict[FailureKey, tuple[Member, ...]]]
    """Members to add, by the failure whose entry adds."""
    active: list[FailureKey]

    @property
    def named(self) -> frozenset[DestinationId]:
        """The destinations for which something is refused or added."""
        return frozenset(self.refused) | frozenset(self.adds)

    @property
    def is_none(self) -> bool:
        """Whether the program's own groups stand."""
        return not (self.ports_down or self.refused_for_all or self.refused or self.adds or self.active)


def effects_of(
    compiled: CompiledProgram,
    facts: FactSet,
    ports_down: frozenset[str],
    unreachable: Mapping[NodeId, frozenset[DestinationId]],
) -> Effects:
    """Return what the situation does to each destination, before any group is looked at."""
    active_facts = compiled.active_facts(facts)
    active = compiled.active_failures(active_facts, facts) if active_facts else []
    refused_for_all = frozenset(
        compiled.port_of_far_end[key] for key in active_facts if key in compiled.port_of_far_end
    )
    covered = _covered(compiled, active, active_facts, facts)
    refused: dict[DestinationId, set[str]] = {}
    adds: dict[DestinationId, dict[FailureKey, tuple[Member, ...]]] = {}
    for failure in active:
        is_covered = failure[0] == "link" and failure[1] in covered
        for change in compiled.changes_for(failure):
            for destination in change.destinations:
                if change.drop:
                    refused.setdefault(destination, set()).update(change.drop)
                if change.add and not is_covered:
                    of_destination = adds.setdefault(destination, {})
                    of_destination[failure] = of_destination.get(failure, NOWHERE) + change.add
    for node, destinations in unreachable.items():
        ports = compiled.ports_to.get(node, ())
        if ports:
            for destination in destinations:
                refused.setdefault(destination, set()).update(ports)
    return Effects(ports_down, refused, refused_for_all, adds, active)


def _covered(
    compiled: CompiledProgram, active: list[FailureKey], active_facts: list[FactKey], facts: FactSet
) -> set[LinkId]:
    """Return the links whose adds are not a second opinion: a node's entry and a risk group's are supersets of their links' entries."""
    nodes = {name for kind, name in active if kind == "node"}
    found = {key[0] for key in active_facts if nodes and (key[1] in nodes or facts.far_end(key) in nodes)}
    for kind, name in active:
        if kind == "srlg":
            found.update(compiled.program.armed.srlgs[SrlgId(name)].links)
    return found


def is_one_failure(
    compiled: CompiledProgram,
    facts: FactSet,
    ports_down: frozenset[str],
    unreachable: Mapping[NodeId, frozenset[DestinationId]],
) -> bool:
    """
    Return whether one failure explains all that is down; arguments as for `forwarding`.

    Whoever sends to this node is then armed for it as well, and drops it by the same facts: after one failure nobody needs to be told
    what cannot be reached from here. So it is with a node that has no port left: nobody reaches it.

    Cost: O(facts that say down x own ports).
    """
    if any(unreachable.values()):
        return False
    active_facts = compiled.active_facts(facts)
    own = [binding for binding in compiled.program.ports if binding.port in ports_down]
    links = {link for link, _ in active_facts} | {binding.link for binding in own}
    if len(links) <= 1 or len(own) == len(compiled.program.ports):
        return True
    ends = [{reporter, facts.far_end((link, reporter))} for link, reporter in active_facts]
    ends += [{compiled.program.node, binding.far_end} for binding in own]
    for kind, name in compiled.active_failures(active_facts, facts):
        if kind == "node" and all(name in of_link for of_link in ends):
            return True
        if kind == "srlg" and links <= set(compiled.program.armed.srlgs[SrlgId(name)].links):
            return True
    return False


NO_EFFECTS: Final = Effects(frozenset(), {}, frozenset(), {}, [])


class Forwarder:
    """
    The forwarding of one program as its situation changes; equals `forwarding` at every step, but works out only the
    destinations that a change touches. Arguments as for `forwarding`.
    """

    def __init__(self, compiled: CompiledProgram, *, is_protecting: bool = True) -> None:
        self.compiled = compiled
        self._is_protecting = is_protecting
        self._effects = NO_EFFECTS
        self._current = compiled.undisturbed if is_protecting else Forwarding(routes=compiled.plain)

    def update(
        self,
        facts: FactSet,
        ports_down: frozenset[str],
        unreachable: Mapping[NodeId, frozenset[DestinationId]],
    ) -> Forwarding:
        """
        Return the forwarding for this situation.

        Cost: O(destinations of the entries that apply, and those touched), plus a copy of the table.
        """
        if self._is_protecting:
            before = self._effects
            self._effects = effects_of(self.compiled, facts, ports_down, unreachable)
            if self._effects.is_none:
                self._current = self.compiled.undisturbed
            else:
                touched = _touched(self.compiled, before, self._effects)
                self._current = _resolve(self.compiled, self._effects, self._current, touched)
        return self._current


def _touched(compiled: CompiledProgram, before: Effects, after: Effects) -> frozenset[DestinationId]:
    """Return the destinations, with or without a route of their own, whose groups may differ."""
    named = before.named | after.named
    changed = {
        destination
        for destination in named
        if before.refused.get(destination) != after.refused.get(destination)
        or before.adds.get(destination) != after.adds.get(destination)
    }
    ports = (before.ports_down ^ after.ports_down) | (before.refused_for_all ^ after.refused_for_all)
    for port in ports:
        changed.update(compiled.destinations_of_port.get(port, ()))
    if ports:
        # What is added by a port comes and goes with it, as the members of the program do.
        added = [*before.adds.items(), *after.adds.items()]
        changed.update(
            destination
            for destination, by_failure in added
            if any(member.port in ports for members in by_failure.values() for member in members)
        )
    # What a class loses its endpoints lose too.
    touched = set(changed)
    for destination in changed:
        touched.update(compiled.below.get(destination, ()))
    for destination in named:
        if any(candidate in touched for candidate in lookup_order(destination)):
            touched.add(destination)
    return frozenset(touched)


class _Resolved(NamedTuple):
    members: tuple[Member, ...]
    is_last_resort: bool


def _resolve(
    compiled: CompiledProgram, effects: Effects, before: Forwarding, touched: frozenset[DestinationId] | None
) -> Forwarding:
    """Return the forwarding under *effects*, taking from *before* what is not *touched* (None: work out everything)."""
    own = compiled.routes
    exceptions = effects.named - own.keys()
    if touched is None:
        routes: dict[DestinationId, tuple[Member, ...]] = {}
        last_resort: set[DestinationId] = set()
        cannot_reach: set[DestinationId] = set()
        todo: Iterable[DestinationId] = own
    else:
        routes = dict(before.routes)
        last_resort = set(before.last_resort - touched)
        cannot_reach = set(before.cannot_reach - touched)
        for destination in touched - own.keys():
            routes.pop(destination, None)
        todo = touched & own.keys()
        exceptions &= touched
    # Hundreds of routes share a few groups and a few sets of refused ports: each pair is worked out once.
    worked_out: dict[tuple[int, frozenset[str]], _Resolved] = {}
    for destination in todo:
        route = own[destination]
        resolved = _members(compiled, effects, route, destination, worked_out)
        routes[destination] = resolved.members
        if resolved.is_last_resort:
            last_resort.add(destination)
            if route.has_detour:
                cannot_reach.add(destination)
    # In order, so that a class is worked out before its endpoints, which inherit from it.
    for destination in sorted(exceptions):
        base = compiled.base(destination)
        if base is None:
            continue
        resolved = _members(compiled, effects, base, destination, worked_out)
        if resolved.members != _inherited(routes, destination):
            routes[destination] = resolved.members
        if resolved.is_last_resort and not any(named in last_resort for named in lookup_order(destination)[1:]):
            last_resort.add(destination)
            if base.has_detour:
                cannot_reach.add(destination)
    return Forwarding(
        routes=routes if routes.keys() == own.keys() else dict(sorted(routes.items())),
        last_resort=frozenset(last_resort),
        cannot_reach=frozenset(cannot_reach),
        active=tuple(sorted(name for _, name in effects.active)),
        backups=_backups(compiled, effects, routes.keys() - own.keys()),
    )


def _backups(compiled: CompiledProgram, effects: Effects, exceptions: Iterable[DestinationId]) -> Backups:
    """Return what is left of the program's backups; *exceptions* are the routes besides the program's own."""
    plain = compiled.backups
    if not plain.routes:
        return plain
    unusable = effects.ports_down | effects.refused_for_all
    bases = {destination: destination for destination in plain.routes}
    for destination in exceptions:
        base = compiled.base(destination)
        if base is not None and base.destination in plain.routes:
            bases[destination] = base.destination
    worked_out: dict[tuple[int, frozenset[str]], tuple[Member, ...]] = {}
    found: dict[DestinationId, tuple[Member, ...]] = {}
    for destination, base_name in bases.items():
        members = plain.routes[base_name]
        refused = unusable.union(*(effects.refused.get(name, ()) for name in lookup_order(destination)))
        key = (id(members), refused)
        if key not in worked_out:
            left = tuple(member for member in members if member.port not in refused)
            worked_out[key] = members if len(left) == len(members) else left
        if worked_out[key]:
            found[destination] = worked_out[key]
    return Backups(dict(sorted(found.items())), plain.no_return)


def _inherited(routes: Mapping[DestinationId, tuple[Member, ...]], destination: DestinationId) -> tuple[Member, ...]:
    for candidate in lookup_order(destination)[1:]:
        if candidate in routes:
            return routes[candidate]
    return NOWHERE


def _members(
    compiled: CompiledProgram,
    effects: Effects,
    route: Route,
    destination: DestinationId,
    worked_out: dict[tuple[int, frozenset[str]], _Resolved],
) -> _Resolved:
    refused = set(effects.refused_for_all)
    adds: dict[FailureKey, tuple[Member, ...]] = {}
    for named in lookup_order(destination):
        refused |= effects.refused.get(named, frozenset())
        for failure, members in effects.adds.get(named, {}).items():
            adds[failure] = adds.get(failure, NOWHERE) + members
    key = (route.group, frozenset(refused))
    resolved = worked_out.get(key)
    if resolved is None or adds:
        base = compiled.members_of_group[route.group]
        resolved = _work_out(base, effects.ports_down, refused, adds)
        if not adds:
            worked_out[key] = resolved
    return resolved


def _work_out(
    base: tuple[Member, ...], ports_down: frozenset[str], refused: set[str], adds: dict[FailureKey, tuple[Member, ...]]
) -> _Resolved:
    members = tuple(member for member in base if member.port not in ports_down and member.port not in refused)
    if len(adds) == 1:
        # Two entries that add for one destination were each computed as if the other's failure had not happened.
        present = {member.port for member in members}
        for member in next(iter(adds.values())):
            if member.port not in ports_down and member.port not in refused and member.port not in present:
                present.add(member.port)
                members += (member,)
    if members:
        return _Resolved(members, is_last_resort=False)
    return _Resolved(tuple(member for member in base if member.port not in ports_down), is_last_resort=True)
