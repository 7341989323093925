"""Does a push withdraw what the fabric can still reach? Then it is refused until an operator confirms it.

Rule 1: a search of its own over what agents report, never the path engine, never the fabric file alone: either may be what is wrong.
Rule 2: only an end's own word that a link is down, or an operator's that it is drained, explains a withdrawal; a link that is missing in a new file explains nothing.
Rule 3: "can reach" means by policy: up, then down, where valleys are forbidden; endpoints forward for nobody.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from erfs.fabric import Fabric, Node, is_valley_free_required
from erfs.ids import EVERYTHING, DestinationId, LinkId, NodeId, attachments_of, endpoint_of, lookup_order
from erfs.messages import Program
from erfs.ports import Mark
from erfs_controller.adjacency import Word

# So many nodes and destinations are named in a refusal; the count is exact.
NAMED_MAX: Final = 10
# A node that loses more destinations than this is searched from once, instead of once from each destination.
_SEARCH_FROM_NODE_ABOVE: Final = 8

Withdrawal = tuple[NodeId, DestinationId]
Words = Iterable[tuple[LinkId, NodeId, Word]]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A generation that may not be pushed, and why."""

    generation: int
    withdrawn: frozenset[Withdrawal]

    def mark(self) -> Mark:
        """Return what is told about it."""
        nodes = sorted({node for node, _ in self.withdrawn})
        destinations = sorted({destination for _, destination in self.withdrawn})
        return Mark(
            "push_refused",
            {
                "generation": self.generation,
                "nodes": nodes[:NAMED_MAX],
                "destinations": destinations[:NAMED_MAX],
                "count": len(self.withdrawn),
                "node_count": len(nodes),
                "destination_count": len(destinations),
            },
        )


class Guard:
    """
    Compares what nodes served before with what they would serve after.

    Args:
        fabric: The fabric at the start. After a reload the nodes and tiers of the old one stay authoritative for what it knew,
            until a push under the new one has passed.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.refusal: Refusal | None = None
        """The refusal that stands."""
        self._confirmed: frozenset[Withdrawal] = frozenset()
        self._trusted = fabric
        self._served: dict[NodeId, _Served] = {}

    def confirm(self, generation: int) -> bool:
        """Take in an operator's word. Return whether it meant the refusal that stands."""
        if self.refusal is None or self.refusal.generation != generation:
            return False
        self._confirmed = self.refusal.withdrawn
        return True

    def check(
        self,
        before: Mapping[NodeId, Program],
        after: Mapping[NodeId, Program],
        words: Words,
        fabric: Fabric,
        generation: int,
        drained: Collection[LinkId] = (),
    ) -> Refusal | None:
        """
        Return why *after* may not be pushed, or None.

        Args:
            before: What nodes run.
            after: What they would run; the same object where nothing changes.
            words: What the ends of all links said last, also of links that the fabric lacks.
            fabric: What *after* was computed on.
            drained: Links that operators have taken out of use, which explains a withdrawal as well as a failure does.
            generation: The number to refuse it under, unless a refusal stands: an unchanged one keeps its number, another one gets the next.

        Cost: O(changed routes), plus a search over the reported links per withdrawn destination or per node that loses many.
        """
        withdrawn = list(self._withdrawals(before, after))
        unexplained: frozenset[Withdrawal] = frozenset()
        if withdrawn:
            unexplained = frozenset(_Reported(self._trusted, fabric, before, words, drained).reachable_among(withdrawn))
        if unexplained <= self._confirmed:
            self.refusal, self._confirmed, self._trusted = None, frozenset(), fabric
            return None
        if self.refusal is None:
            self.refusal = Refusal(generation, unexplained)
        elif self.refusal.withdrawn != unexplained:
            # Not what the operator was shown, so a confirmation of the earlier number must not mean this one.
            self.refusal = Refusal(self.refusal.generation + 1, unexplained)
        return self.refusal

    def _withdrawals(self, before: Mapping[NodeId, Program], after: Mapping[NodeId, Program]) -> Iterator[Withdrawal]:
        for node, new in after.items():
            old = before.get(node)
            if old is None or old.digest == new.digest:
                continue
            was, will = self._known(old), _Served(new)
            # A route may also be gone because the class's, or the one to everything, serves its destination again;
            # and a new route without members takes away what the class's served.
            for destination in sorted((was.full - will.full) | will.empty):
                if was.serves(destination) and not will.serves(destination):
                    yield from ((node, lost) for lost in self._lost(destination, will))

    def _lost(self, destination: DestinationId, will: "_Served") -> Iterable[DestinationId]:
        """
        Return what a node that served *destination* loses.

        An endpoint without any way sends everything everywhere; once it has some again it has routes to what it can reach. That
        takes away only what none of them leads to.
        """
        if destination != EVERYTHING:
            return (destination,)
        lost = [name for name in self._trusted.class_members if not will.serves(name)]
        return (EVERYTHING,) if len(lost) == len(self._trusted.class_members) else lost

    def _known(self, program: Program) -> "_Served":
        known = self._served.get(program.node)
        if known is None or known.digest != program.digest:
            known = self._served[program.node] = _Served(program)
        return known


class _Served:
    """What a program serves."""

    def __init__(self, program: Program) -> None:
        self.digest = program.digest
        groups_full = {group.id for group in program.groups if group.members}
        self.full = frozenset(route.destination for route in program.routes if route.group in groups_full)
        self.empty = frozenset(route.destination for route in program.routes if route.group not in groups_full)

    def serves(self, destination: DestinationId) -> bool:
        """Return whether the route that applies to *destination* has a member."""
        for name in lookup_order(destination):
            if name in self.full:
                return True
            if name in self.empty:
                return False
        return False


class _Reported:
    """
    The links that nobody calls down and no operator has drained, and what can be reached over them.

    A link exists if a fabric has it, or if both its ends claim it: by what they report or by the program they run. Tiers are the
    trusted fabric's. A node that no fabric has counts as a switch below all others, for it may be a leaf that a file lost.
    """

    def __init__(
        self,
        trusted: Fabric,
        fabric: Fabric,
        before: Mapping[NodeId, Program],
        words: Words,
        drained: Collection[LinkId],
    ) -> None:
        self._nodes: dict[NodeId, Node] = {**fabric.nodes, **trusted.nodes}
        self._is_valley_free = is_valley_free_required(trusted)
        claims: dict[LinkId, set[tuple[NodeId, NodeId]]] = defaultdict(set)
        for link in (*trusted.links.values(), *fabric.links.values()):
            claims[link.id] |= {(link.a.node, link.b.node), (link.b.node, link.a.node)}
        for node, program in before.items():
            for port in program.ports:
                claims[port.link].add((node, port.far_end))
        down = set(drained)
        for link_id, reporter, word in words:
            claims[link_id].add((reporter, word.far_end))
            if not word.is_up:
                down.add(link_id)
        self._neighbours: dict[NodeId, set[NodeId]] = defaultdict(set)
        for link_id, pairs in claims.items():
            if link_id not in down:
                for near, far in pairs:
                    if near != far and (far, near) in pairs:
                        self._neighbours[near].add(far)

    def reachable_among(self, withdrawn: Iterable[Withdrawal]) -> Iterator[Withdrawal]:
        """Yield those of *withdrawn* that a permitted path still leads to."""
        by_node: dict[NodeId, list[DestinationId]] = defaultdict(list)
        by_destination: dict[DestinationId, list[NodeId]] = defaultdict(list)
        for node, destination in withdrawn:
            by_node[node].append(destination)
        for node, destinations in by_node.items():
            if len(destinations) > _SEARCH_FROM_NODE_ABOVE or EVERYTHING in destinations:
                found = self.reachable_from(node)
                for destination in destinations:
                    if len(found) > 1 if destination == EVERYTHING else not found.isdisjoint(_targets(destination)):
                        yield node, destination
            else:
                for destination in destinations:
                    by_destination[destination].append(node)
        for destination, nodes in by_destination.items():
            # A permitted path is one backwards too, so what can reach a target is what can be reached from it.
            found = set().union(*(self.reachable_from(target) for target in _targets(destination)))
            for node in nodes:
                if node in found:
                    yield node, destination

    def reachable_from(self, start: NodeId) -> set[NodeId]:
        """Return the nodes at the end of a permitted path from *start*, itself included. Cost: O(reported links)."""
        seen = {(start, True)}
        frontier = [(start, True)]
        while frontier:
            node, may_go_up = frontier.pop()
            if node != start and not self._is_transit(node):
                continue
            for far in self._neighbours.get(node, ()):
                goes_up = self._height(far) > self._height(node)
                if self._is_valley_free and goes_up and not may_go_up:
                    continue
                state = far, may_go_up and (goes_up or not self._is_valley_free)
                if state not in seen:
                    seen.add(state)
                    frontier.append(state)
        return {node for node, _ in seen}

    def _is_transit(self, node: NodeId) -> bool:
        known = self._nodes.get(node)
        return known is None or known.is_switch

    def _height(self, node: NodeId) -> tuple[int, NodeId]:
        known = self._nodes.get(node)
        return (-1 if known is None or known.tier is None else known.tier), node


def _targets(destination: DestinationId) -> tuple[NodeId, ...]:
    endpoint = endpoint_of(destination)
    return attachments_of(destination) if endpoint is None else (endpoint,)
