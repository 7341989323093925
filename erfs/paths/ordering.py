"""In which order new programs may be installed so that no mixture of old and new loops or loses a packet.

Rule 1: a node gains a next hop only after everything that next hop leads to has its new routes: the destination first.
Rule 2: programs are read as they are; nothing here knows how they were computed.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Final

from erfs.fabric import Fabric, Link, LinkEnd, goes_up, is_valley_free_required
from erfs.ids import EVERYTHING, DestinationId, NodeId, class_of, is_endpoint, lookup_order
from erfs.messages import ArmedEntry, Change, Group, Member, Program, Route, sealed

_Members = tuple[Member, ...]


# The rank of a move that no round makes.
_HELD: Final = 1 << 30


def plan_rounds(
    old: Mapping[NodeId, Program],
    new: Mapping[NodeId, Program],
    fabric: Fabric,
    pinned: Mapping[NodeId, tuple[Program, ...]] = MappingProxyType({}),
) -> list[dict[NodeId, Program]]:
    """
    Return the rounds in which to install *new* over *old*; a round may start when all of the previous one is installed.

    Per destination, a node that gains no next hop may change at once: forwarding stays within the old acyclic graph. A node that gains some
    has to wait for its new next hops and all they lead to. So a packet is either still within the old graph or has entered a
    part of the new one that is complete and never leaves it: no mixture of two adjacent rounds loops. Next hops that a switch is
    armed to add count as if it had them, so this holds whatever fails meanwhile. A node that loses its last next hop
    does so after everybody else, so that what still works is not cut while its upstream nodes move away.

    Until its round comes, a node has the next hops that both programs name, or its old ones if there are none such. Armed changes are
    the new ones from its first round on, without what they would add for a destination that waits.

    A *pinned* node keeps forwarding as it did, for nobody there can change it. Everybody else is ordered around that. A destination for which
    the new next hops of the others and those of the pinned nodes would close a loop, or lead into a pinned node that has none, is held:
    its next hops are only reduced, never extended, until a plan without that pinned node. A pinned node is given its own program in the
    last round, so that it may return at any time, but without what could loop while another pinned node has not returned.

    Args:
        old: What runs now. A node without an entry forwards nothing. If it is empty nothing forwards anywhere yet, so one round will do.
        new: What shall run. A node without an entry keeps its old program.
        fabric: Tells switches, which forward, from endpoints, where a packet has arrived.
        pinned: Nodes whose agent is gone while the node forwards, each with the programs it may be running.

    Returns:
        Only nodes whose program changes are in a round; the last program a node gets is that of *new*, but for destinations that are held.
        Empty if nothing changes.

    Cost: O(changed nodes x routes + changed destinations x links). Source: ordered updates as in RFC 6976, section 4, turned
    destination first.
    """
    changed = [node for node in sorted(new) if node not in old or old[node].digest != new[node].digest]
    if not changed:
        return []
    if not old:
        return [{node: new[node] for node in changed}]
    pool = _Pool()
    variants = max(map(len, pinned.values()), default=0)
    stuck = [
        _Tables({node: programs[index] for node, programs in pinned.items() if index < len(programs)}, pool)
        for index in range(variants)
    ]
    ranks = _Ranks(pool, _Tables(old, pool), _Tables({**old, **new}, pool), changed, fabric, frozenset(pinned), stuck)
    rounds: list[dict[NodeId, Program]] = []
    given = {node: old[node].digest for node in changed if node in old}
    for number in range(ranks.highest() + 1):
        programs: dict[NodeId, Program] = {}
        for node in changed:
            if number and not ranks.moves(node, number):
                continue
            program = new[node] if ranks.is_done(node, number) else ranks.intermediate(new[node], number)
            if given.get(node) != program.digest:
                given[node] = program.digest
                programs[node] = program
        if programs:
            rounds.append(programs)
    return rounds


class _Pool:
    """Sets of members by number. Equal ones have one number and are one object, which makes comparing them cheap."""

    def __init__(self) -> None:
        self.members: list[_Members] = []
        self._numbers: dict[tuple[tuple[str, int], ...], int] = {}
        # Programs of one computation share their members; looking at the identity spares looking inside.
        self._seen: dict[int, tuple[int, _Members]] = {}

    def number(self, members: _Members) -> int:
        """Return the number of *members*."""
        seen = self._seen.get(id(members))
        if seen is not None:
            return seen[0]
        key = tuple([(member.port, member.weight) for member in members])
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.members)
            self.members.append(members)
        self._seen[id(members)] = found, members
        return found


class _Tables:
    """The routes of a set of programs, looked up as a node does."""

    def __init__(self, programs: Mapping[NodeId, Program], pool: _Pool) -> None:
        self.programs = programs
        self._pool = pool
        self._numbers: dict[NodeId, dict[DestinationId, int]] = {}
        self._far_ends: dict[NodeId, dict[str, NodeId]] = {}
        self._adds: dict[NodeId, dict[DestinationId, set[str]]] = {}

    def numbers(self, node: NodeId) -> dict[DestinationId, int]:
        """Return the number in the pool of each route's members at *node*; none if it has no program."""
        found = self._numbers.get(node)
        if found is None:
            program = self.programs.get(node)
            if program is None:
                found = {}
            else:
                of_group = {group.id: self._pool.number(group.members) for group in program.groups}
                found = {route.destination: of_group[route.group] for route in program.routes}
            self._numbers[node] = found
        return found

    def routes(self, node: NodeId) -> dict[DestinationId, _Members]:
        """Return the members of each route of *node*."""
        members = self._pool.members
        return {destination: members[number] for destination, number in self.numbers(node).items()}

    def members(self, node: NodeId, destination: DestinationId) -> _Members:
        """Return where *node* sends what goes to *destination*."""
        numbers = self.numbers(node)
        for name in lookup_order(destination):
            if name in numbers:
                return self._pool.members[numbers[name]]
        return ()

    def adds(self, node: NodeId) -> dict[DestinationId, set[str]]:
        """Return the ports that *node* is armed to add for each destination, for any failure."""
        found = self._adds.get(node)
        if found is None:
            program = self.programs.get(node)
            found = self._adds[node] = {}
            is_adding = program is not None and any(step.add for step in program.armed.steps)
            for entry in program.armed.entries() if program is not None and is_adding else ():
                for change in entry.changes:
                    for destination in change.destinations if change.add else ():
                        found.setdefault(destination, set()).update(member.port for member in change.add)
        return found

    def choices(self, node: NodeId, destination: DestinationId) -> set[str]:
        """Return the ports *node* may use for *destination*: its members', and those it is armed to add."""
        ports = {member.port for member in self.members(node, destination)}
        adds = self.adds(node)
        return ports.union(*(adds[name] for name in lookup_order(destination) if name in adds)) if adds else ports

    def far_ends(self, node: NodeId, destination: DestinationId) -> set[NodeId]:
        """Return the neighbours *node* may send to."""
        far_ends = self._far_ends.get(node)
        if far_ends is None:
            program = self.programs.get(node)
            ports = () if program is None else program.ports
            far_ends = self._far_ends[node] = {port.port: port.far_end for port in ports}
        return {far_ends[port] for port in self.choices(node, destination)}


@dataclass(frozen=True, slots=True)
class _Move:
    """How one node's forwarding towards one destination changes: *waiting* before round *rank*, the new members from then on."""

    rank: int
    waiting: _Members


class _Ranks:
    """Which node may change which destination in which round."""

    def __init__(
        self,
        pool: _Pool,
        old: _Tables,
        new: _Tables,
        changed: Iterable[NodeId],
        fabric: Fabric,
        pinned: frozenset[NodeId],
        stuck: Sequence[_Tables],
    ) -> None:
        self._pool = pool
        self._old = old
        self._new = new
        self._switches = frozenset(node.id for node in fabric.switches)
        self._pinned = pinned
        self._stuck = stuck
        self._changed = tuple(changed)
        self._fabric = fabric
        self._moves: dict[NodeId, dict[DestinationId, _Move]] = {node: {} for node in self._changed}
        for destination, nodes in sorted(self._touched().items()):
            self._rank(destination, nodes)

    def highest(self) -> int:
        """Return the number of the last round."""
        ranks = (move.rank for moves in self._moves.values() for move in moves.values())
        return max((rank for rank in ranks if rank != _HELD), default=0)

    def moves(self, node: NodeId, number: int) -> bool:
        """Return whether *node* changes in round *number*."""
        return any(move.rank == number for move in self._moves[node].values())

    def is_done(self, node: NodeId, number: int) -> bool:
        """Return whether *node* has all its new routes in round *number*."""
        return all(move.rank <= number for move in self._moves[node].values())

    def intermediate(self, program: Program, number: int) -> Program:
        """Return *program* with the routes that still wait in round *number* as they are until then."""
        node = program.node
        final = {route.destination: route for route in program.routes}
        routes = dict(self._new.routes(node))
        # Classes before their endpoints: an endpoint needs a route of its own while its class has another one.
        for destination in sorted(self._moves[node], key=lambda name: (is_endpoint(name), name)):
            move = self._moves[node][destination]
            members = self._new.members(node, destination) if move.rank <= number else move.waiting
            inherited: _Members = ()
            for name in lookup_order(destination)[1:]:
                if name in routes:
                    inherited = routes[name]
                    break
            if destination in final or set(members) != set(inherited):
                routes[destination] = members
            else:
                routes.pop(destination, None)
            if not is_endpoint(destination) and not members and destination not in self._old.numbers(node):
                routes.pop(destination, None)
        waiting = {name for name, move in self._moves[node].items() if move.rank > number}
        waiting |= {class_of(name) for name in waiting}  # what a class adds its endpoints add
        armed = program.armed
        if node in self._switches and waiting & self._new.adds(node).keys():
            armed = armed.with_entries(_without_adds(entry, waiting) for entry in armed.entries())
        return self._with_routes(program.model_copy(update={"armed": armed}), routes, final)

    def _with_routes(
        self, program: Program, members: Mapping[DestinationId, _Members], final: Mapping[DestinationId, Route]
    ) -> Program:
        before = self._old.programs.get(program.node)
        known = {route.destination: route for route in before.routes} if before is not None else {}
        known.update(final)
        numbers: dict[int, int] = {}
        groups: list[Group] = []
        routes: list[Route] = []
        for destination in sorted(members):
            pooled = self._pool.number(members[destination])
            number = numbers.get(pooled)
            if number is None:
                number = numbers[pooled] = len(groups)
                groups.append(Group(id=number, members=members[destination]))
            route = known.get(destination)
            if route is None or route.group != number:
                has_detour = route is None or route.has_detour
                route = Route(destination=destination, group=number, has_detour=has_detour)
            routes.append(route)
        return sealed(program.model_copy(update={"routes": tuple(routes), "groups": tuple(groups)}))

    def _touched(self) -> dict[DestinationId, set[NodeId]]:
        """Return who changes each destination; endpoints that do not follow their class everywhere change with it."""
        found: dict[DestinationId, set[NodeId]] = {}
        for node in self._changed:
            for destination, _ in self._old.numbers(node).items() ^ self._new.numbers(node).items():
                found.setdefault(destination, set()).add(node)
            if node in self._switches:
                armed_before, armed_after = self._old.adds(node), self._new.adds(node)
                for destination, ports in armed_after.items():
                    if not ports <= armed_before.get(destination, set()):
                        found.setdefault(destination, set()).add(node)
        several = {
            name
            for name in found
            if not is_endpoint(name)
            and any(len(self._fabric.attachments[member]) > 1 for member in self._fabric.class_members.get(name, ()))
        }
        for tables in (self._old, self._new) if several else ():
            for node in tables.programs:
                for name in tables.numbers(node):
                    if is_endpoint(name) and class_of(name) in several:
                        found.setdefault(name, set()).update(found[class_of(name)])
        return found

    def _gains(self, node: NodeId, destination: DestinationId) -> bool:
        """Return whether *node* may use a port that it could not use before. Nobody sends through an endpoint: what it may add is its own matter."""
        if node in self._switches:
            return not self._new.choices(node, destination) <= self._old.choices(node, destination)
        before = {member.port for member in self._old.members(node, destination)}
        return any(member.port not in before for member in self._new.members(node, destination))

    def _rank(self, destination: DestinationId, touched: set[NodeId]) -> None:
        """Work out the moves towards *destination* of the nodes *touched*; nobody else changes."""
        changes = {
            node: (self._old.members(node, destination), self._new.members(node, destination))
            for node in sorted(touched)
        }
        emptied = {node for node, (before, after) in changes.items() if before and not after}
        moving: dict[NodeId, _Members] = {}
        for node, (before, after) in changes.items():
            kept = {member.port for member in before}
            moving[node] = tuple(member for member in after if member.port in kept) or before
        # An endpoint with one way out for everything has nothing to wait for: its switch forwards already.
        gaining = [
            node
            for node in changes
            if node not in self._pinned
            and node not in emptied
            and destination != EVERYTHING
            and self._gains(node, destination)
        ]
        closure = _Closure(lambda node: self._leads_to(node, destination), gaining, self._switches)
        ranks = closure.ranks({})
        early: dict[NodeId, int] = {}
        above = {node: self._senders_down(node, destination) for node in gaining if self._turns_up(node, destination)}
        if any(above.values()) and self._is_valley_free:
            ranks, early = self._without_valleys(destination, closure, above, emptied, moving, ranks)
        # The new routes lead to these and no farther, to an endpoint that is cut off. If it could come back from there by the old
        # ones, or go up again, it has to end there at once.
        dead_ends = {
            node
            for node in (emptied & closure.explored) - self._pinned
            if self._may_return(node, destination, frozenset(gaining))
            or (self._sends_up(node, self._old.members(node, destination)) and self._is_valley_free)
        }
        is_held = closure.is_held or any(
            self._is_stuck_dry(node, destination) or self._is_stuck_upward(node, destination)
            for node in closure.explored & self._pinned
        )
        others: list[int] = []
        for node, (before, after) in changes.items():
            own = ranks.get(node, 0)
            if before == after and not own:
                del moving[node]
                if is_endpoint(destination):
                    # It stays as it is, which takes a route of its own while its class waits with another one.
                    self._moves[node][destination] = _Move(0, after)
            elif node not in emptied and node not in self._pinned:
                others.append(own)
        last = 1 + max(others) if others else 0
        for node, waiting in moving.items():
            own = ranks.get(node, 0)
            if is_held:
                own = _HELD
            elif node in self._pinned and self._gains(node, destination):
                own = _HELD if self._may_circle(node, destination) else max(last, 1)
                if self._turns_up(node, destination) and self._is_valley_free:
                    senders = set(self._senders_down(node, destination))
                    own = _HELD if senders & self._pinned else own + bool(senders & emptied)
            elif node in early:
                own = early[node]
            elif node in emptied - dead_ends:
                own = last
            self._moves[node][destination] = _Move(own, waiting)

    @cached_property
    def _is_valley_free(self) -> bool:
        return is_valley_free_required(self._fabric)

    def _without_valleys(
        self,
        destination: DestinationId,
        closure: "_Closure",
        above: Mapping[NodeId, Sequence[NodeId]],
        emptied: set[NodeId],
        moving: Mapping[NodeId, _Members],
        ranks: dict[NodeId, int],
    ) -> tuple[dict[NodeId, int], dict[NodeId, int]]:
        """
        Return the ranks with which nobody turns up while somebody may still send down to it, and the ranks of those that are emptied for that.

        *above* tells who sends down by the old routes to each node that turns up. By the new ones nobody does, so it waits until they have
        left it. Each such wait leads upward, so no two nodes wait for one another. Where they do all the same, nobody waits.
        """
        if any(sender in self._pinned for senders in above.values() for sender in senders):
            closure.is_held = True
            return ranks, {}

        def leaves(sender: NodeId, node: NodeId) -> int:
            """Return the round in which *sender* no longer sends to *node*; -1 if it never does, for it is the new routes that are wrong then."""
            if sender not in moving:
                return -1
            if not self._leads(sender, node, moving[sender]):
                return 0
            return early[sender] if sender in emptied else found.get(sender, 0)

        # Whoever is emptied among them goes as soon as nobody sends to it any more, not last; so do those before it.
        users: dict[NodeId, list[NodeId]] = {}
        waiting = [sender for senders in above.values() for sender in senders if sender in emptied]
        while waiting:
            sender = waiting.pop()
            if sender not in users:
                users[sender] = self._users(sender, destination)
                waiting += [user for user in users[sender] if user in emptied]
        found, early = ranks, dict.fromkeys(sorted(users), 0)
        for _ in range(len(moving) + 2):
            later = {sender: 1 + max((leaves(user, sender) for user in users[sender]), default=-1) for sender in early}
            least = {
                node: 1 + max(leaves(sender, node) for sender in senders) for node, senders in above.items() if senders
            }
            again = closure.ranks(least)
            if again == found and later == early:
                return found, early
            found, early = again, later
        return ranks, {}

    def _turns_up(self, node: NodeId, destination: DestinationId) -> bool:
        """Return whether *node* sends nothing up before, and something afterwards."""
        if node not in self._switches:
            return False
        before, after = self._old.members(node, destination), self._new.members(node, destination)
        return self._sends_up(node, after) and not self._sends_up(node, before)

    def _sends_up(self, node: NodeId, members: _Members) -> bool:
        return any(goes_up(self._fabric, link, node) for link in self._links(node, members))

    def _senders_down(self, node: NodeId, destination: DestinationId) -> list[NodeId]:
        """Return the switches above *node* that send *destination* down to it by the old routes."""
        fabric = self._fabric
        above = {link.far_end(node).node for link in fabric.links_of[node] if goes_up(fabric, link, node)}
        return [far for far in self._users(node, destination) if far in above]

    def _users(self, node: NodeId, destination: DestinationId) -> list[NodeId]:
        """Return the neighbours that send *destination* to *node* by the old routes."""
        around = {link.far_end(node).node for link in self._fabric.links_of[node]} - {node}
        return [
            far
            for far in sorted(around)
            if any(
                self._leads(far, node, tables.members(far, destination))
                for tables in (self._stuck if far in self._pinned else (self._old,))
            )
        ]

    def _leads(self, node: NodeId, far: NodeId, members: _Members) -> bool:
        return any(link.far_end(node).node == far for link in self._links(node, members))

    def _links(self, node: NodeId, members: _Members) -> list[Link]:
        ends = self._fabric.link_at
        found = [ends.get(LinkEnd(node, member.port)) for member in members]
        return [link for link in found if link is not None]

    def _leads_to(self, node: NodeId, destination: DestinationId) -> set[NodeId]:
        """Return whom *node* may send to once all who can have their new routes."""
        if node not in self._pinned:
            return self._new.far_ends(node, destination)
        return {far for tables in self._stuck for far in tables.far_ends(node, destination)}

    def _may_return(self, node: NodeId, destination: DestinationId, gaining: frozenset[NodeId]) -> bool:
        """Return whether by its old routes *node* could send to some switch that gains next hops, whatever those in between run."""
        seen: set[NodeId] = set()
        waiting = self._old.far_ends(node, destination)
        while waiting:
            far = waiting.pop()
            if far not in seen and far in self._switches:
                if far in gaining:
                    return True
                seen.add(far)
                waiting |= self._old.far_ends(far, destination) | self._leads_to(far, destination)
        return False

    def _may_circle(self, node: NodeId, destination: DestinationId) -> bool:
        """Return whether a pinned *node* with its new routes could get its packets back by another pinned one, old or new."""
        seen: set[NodeId] = set()
        waiting = self._new.far_ends(node, destination)
        while waiting:
            far = waiting.pop()
            if far == node:
                return True
            if far not in seen and far in self._switches:
                seen.add(far)
                waiting |= self._new.far_ends(far, destination)
                if far in self._pinned:
                    waiting |= self._leads_to(far, destination)
        return False

    def _is_stuck_upward(self, node: NodeId, destination: DestinationId) -> bool:
        """Return whether *node* is pinned to next hops that lead up, and by the new routes comes down to it what would make that a valley."""
        if not any(self._sends_up(node, tables.members(node, destination)) for tables in self._stuck):
            return False
        above = {link.far_end(node).node for link in self._fabric.links_of[node] if goes_up(self._fabric, link, node)}
        return self._is_valley_free and any(
            self._leads(far, node, self._new.members(far, destination)) for far in above - self._pinned
        )

    def _is_stuck_dry(self, node: NodeId, destination: DestinationId) -> bool:
        """Return whether *node* is pinned without a next hop where its new routes would have one."""
        if node not in self._pinned or not self._new.members(node, destination):
            return False
        return any(not tables.members(node, destination) for tables in self._stuck if node in tables.programs)


class _Closure:
    """
    What the new routes of some nodes lead to, and how many rounds it takes until all of it is complete.

    Args:
        leads_to: Whom a node may send to.
        gaining: Who has to wait for all that it leads to.
        switches: Who forwards; whoever else is sent a packet, there it has arrived.
    """

    def __init__(
        self, leads_to: Callable[[NodeId], set[NodeId]], gaining: Collection[NodeId], switches: frozenset[NodeId]
    ) -> None:
        self.explored: set[NodeId] = set()
        """The switches that packets of the *gaining* nodes may come to."""
        self.is_held = False
        """Whether some of them send in a circle: new routes alone never do, with the old ones of a pinned node they may."""
        self._leads_to = leads_to
        self._gaining = dict.fromkeys(gaining)
        self._switches = switches
        self._onward: dict[NodeId, set[NodeId]] = {}
        self._complete: dict[NodeId, int] = {}

    def ranks(self, least: Mapping[NodeId, int]) -> dict[NodeId, int]:
        """Return the round in which each gaining node may move, no sooner than *least* says."""
        self._complete = {}
        found: dict[NodeId, int] = {}
        for node in self._gaining:
            self._explore(node, least)
            found[node] = self._rank(node, least)
        return found

    def _rank(self, node: NodeId, least: Mapping[NodeId, int]) -> int:
        below = max((self._complete.get(far, 0) for far in self._far_ends(node)), default=0)
        return max(1 + below, least.get(node, 0))

    def _far_ends(self, node: NodeId) -> set[NodeId]:
        found = self._onward.get(node)
        if found is None:
            found = self._onward[node] = self._leads_to(node)
        return found

    def _explore(self, start: NodeId, least: Mapping[NodeId, int]) -> None:
        """Find out after which round *start* and all it leads to have their new routes. A chain may be as long as a fabric is wide."""
        if start in self._complete:
            return
        open_nodes = {start}
        stack = [(start, iter(self._far_ends(start)))]
        while stack:
            node, below = stack[-1]
            for far in below:
                if far not in self._switches:
                    continue
                if far in open_nodes:
                    self.is_held = True
                elif far not in self._complete:
                    open_nodes.add(far)
                    stack.append((far, iter(self._far_ends(far))))
                    break
            else:
                stack.pop()
                open_nodes.discard(node)
                if node in self._switches:
                    self.explored.add(node)
                    below_it = max((self._complete.get(far, 0) for far in self._far_ends(node)), default=0)
                    rank = self._rank(node, least) if node in self._gaining else 0
                    self._complete[node] = max(below_it, rank)


def _without_adds(entry: ArmedEntry, waiting: set[DestinationId]) -> ArmedEntry:
    """Return *entry* without what it adds for the destinations that are *waiting*."""
    if not any(change.add and not waiting.isdisjoint(change.destinations) for change in entry.changes):
        return entry
    changes: list[Change] = []
    for change in entry.changes:
        held = tuple(name for name in change.destinations if change.add and name in waiting)
        free = tuple(name for name in change.destinations if name not in held)
        if free:
            changes.append(change._replace(destinations=free))
        if held and change.drop:
            changes.append(Change(destinations=held, drop=change.drop))
    return entry._replace(changes=tuple(changes))
