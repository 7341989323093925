"""Where does traffic end up? The referee's own answer, from the tables as written and the links as they are.

Rule 1: independent of the path engine: nothing of `erfs.paths` is used here, so that one can convict the other.
Rule 2: all equal-cost branches are followed, weighted, in exact arithmetic: a share is 0, 1 or a Fraction, never a float.
Rule 3: what is sent along a cycle counts as lost: pessimistic, and the same wherever the traffic came from.
"""

import heapq
from collections.abc import Iterable, Sequence
from fractions import Fraction

import networkx as nx

from erfs.ids import EVERYTHING, DestinationId, NodeId
from erfs.units import PPM
from erfs_scenario.dataplane import DataPlane, Hops, Share


def ppm(share: Share) -> int:
    """Return *share* in millionths, rounded down, so that only all of it is 1,000,000."""
    return int(share * PPM)


class Walk:
    """
    The share of traffic from each node that reaches one destination, kept up to date as tables and links change.

    Args:
        plane: Whose tables are walked.
        of_class: The destination class.
        members: Endpoints of the class (index, own destination). With several, the walk uses class routes and averages the
            members' delivery at their switches; with one, that endpoint's own routes come first at every node.
        attachments: The switches of the class.
        sources: The switches from which traffic comes.
    """

    def __init__(
        self,
        plane: DataPlane,
        of_class: DestinationId,
        members: Sequence[tuple[int, DestinationId]],
        attachments: Iterable[int],
        sources: Iterable[int],
    ) -> None:
        self.plane = plane
        self.members = tuple(members)
        self.attachments = frozenset(attachments)
        self.sources = tuple(sorted(sources))
        self.value: dict[int, Share] = {}
        self.loops: tuple[tuple[NodeId, ...], ...] = ()
        """Cycles met in the last walk, each the sorted nodes of one knot."""
        self._height: dict[int, int] = {}
        self._is_single = len(self.members) == 1
        self._target = self.members[0][0] if self._is_single else -1
        self._order = (self.members[0][1], of_class, EVERYTHING) if self._is_single else (of_class, EVERYTHING)

    def hops(self, node: int) -> Hops | None:
        """Return the group by which *node* sends towards this destination, most specific route first; None without one."""
        table = self.plane.tables[node]
        for destination in self._order:
            found = table.get(destination)
            if found is not None:
                return found
        return None

    def next_switches(self, node: int) -> tuple[int, ...]:
        """Return the switches *node* sends to over working links, the delivery at an attachment not among them."""
        if node in self.attachments and not self._is_single:
            return ()
        hops = self.hops(node)
        return hops.onward if hops is not None else ()

    def share_from(self, node: int, *, ignoring: frozenset[int] = frozenset()) -> Share:
        """
        Return the share served of what *node* sends, from what is known of its next hops. *node* may be an endpoint.

        Args:
            node: Index of the sending node.
            ignoring: Next hops that serve nothing (the knot *node* is in).
        """
        if node in self.attachments and not self._is_single:
            return self._delivery(node)
        hops = self.hops(node)
        if hops is None or not hops.total:
            return 0
        served: Share = 0
        parts: dict[Share, Share] = {}
        for far, weight in hops.live.items():
            if far == self._target:
                served += weight
                continue
            if far in ignoring or not self.plane.is_switch[far]:
                continue  # going round, or handed to somebody else's endpoint
            share = self.value[far]
            if share == 1:
                served += weight
            elif share:
                parts[share] = parts.get(share, 0) + weight
        if served == hops.total:
            return 1
        total: Share = served
        for share, weight in parts.items():
            total += share * weight
        return Fraction(total, hops.total) if total else 0

    def walk(self) -> None:
        """Walk everything from all sources anew. Cost: O(nodes + members of their groups)."""
        self.value = {}
        self._height = {}
        self.loops = ()
        if not all(self._explore(source) for source in self.sources):
            self._walk_with_cycles()

    def update(self, nodes: Iterable[int]) -> list[int]:
        """
        Bring the walk up to date after the groups of *nodes*, or their links, changed.

        Returns:
            The nodes whose share changed, sorted.

        Cost: O(changed nodes * degree) while no cycle can have appeared, a whole walk otherwise.
        """
        replaced: dict[int, Share] = {}
        if not self.loops and self._update_in_place(nodes, replaced):
            return sorted(replaced)
        before = self.value | replaced
        self.walk()
        return sorted(node for node in before.keys() | self.value.keys() if before.get(node) != self.value.get(node))

    def _delivery(self, node: int) -> Share:
        table = self.plane.tables[node]
        whole = 0
        rest: Share = 0
        for endpoint, destination in self.members:
            hops = table.get(destination)
            if hops is None or not hops.total:
                continue
            weight = hops.live.get(endpoint, 0)
            if weight == hops.total:
                whole += 1
            else:
                rest += Fraction(weight, hops.total)
        if whole == len(self.members):
            return 1
        return Fraction(whole + rest, len(self.members)) if whole or rest else 0

    def _explore(self, start: int) -> bool:
        """Value *start* and everything not yet known below it; False as soon as a cycle shows."""
        if start in self.value:
            return True
        open_nodes = {start}
        stack = [(start, iter(self.next_switches(start)))]
        while stack:
            node, below = stack[-1]
            for far in below:
                if far in open_nodes:
                    return False
                if far not in self.value:
                    open_nodes.add(far)
                    stack.append((far, iter(self.next_switches(far))))
                    break
            else:
                stack.pop()
                open_nodes.discard(node)
                heights = [self._height[far] for far in self.next_switches(node)]
                self._height[node] = 1 + max(heights, default=0)
                self.value[node] = self.share_from(node)
        return True

    def _walk_with_cycles(self) -> None:
        graph = nx.DiGraph()
        waiting = list(self.sources)
        graph.add_nodes_from(waiting)
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            for far in self.next_switches(node):
                graph.add_edge(node, far)
                if far not in seen:
                    seen.add(far)
                    waiting.append(far)
        self.value = {}
        self._height = {}
        loops = []
        # networkx yields strongly connected components sinks first, so what a knot leads to is known when it comes.
        for knot in nx.strongly_connected_components(graph):
            is_loop = len(knot) > 1 or any(graph.has_edge(node, node) for node in knot)
            inside = frozenset(knot) if is_loop else frozenset()
            self.value |= {node: self.share_from(node, ignoring=inside) for node in sorted(knot)}
            if is_loop:
                loops.append(tuple(sorted(self.plane.nodes[node] for node in knot)))
        self.loops = tuple(sorted(loops))

    def _update_in_place(self, nodes: Iterable[int], replaced: dict[int, Share]) -> bool:
        """
        Propagate upwards along falling heights, noting in *replaced* the shares that changed, as they were.

        Returns False, half done, once heights no longer prove the absence of cycles.

        Invariant: every node stands higher than all its next hops, so the groups as a whole have no cycle.
        """
        queue = [(self._height[node], node) for node in nodes if node in self.value]
        heapq.heapify(queue)
        queued = {node for _, node in queue}
        while queue:
            height, node = heapq.heappop(queue)
            queued.discard(node)
            for far in self.next_switches(node):
                if not self._explore(far) or self._height[far] >= height:
                    return False
            share = self.share_from(node)
            if share == self.value[node]:
                continue
            replaced[node] = self.value[node]
            self.value[node] = share
            for above in self.plane.neighbours[node]:
                if above in self.value and above not in queued and node in self.next_switches(above):
                    queued.add(above)
                    heapq.heappush(queue, (self._height[above], above))
        return True
