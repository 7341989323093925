"""Which paths lead from one place to another: the equal-cost ones, counted and in order, and sets that share no link, switch or risk group?

Rule 1: a place is an endpoint or a switch; endpoints carry nothing for others, so a path has switches inside and nothing else.
Rule 2: equal-cost paths are those the next hops of the path engine make: shortest, valley-free where that is asked for.
Rule 3: a set of disjoint paths that may not be the largest says so.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import networkx as nx
import numpy as np

from erfs.fabric import Fabric, Link, goes_up
from erfs.ids import LinkId, NodeId, SrlgId
from erfs.paths.topology import Topology
from erfs.paths.what_if_state import UNREACHED, Flow, Ground

BY_LINK: Final = "link"
BY_NODE: Final = "node"
BY_GROUP: Final = "risk group"


@dataclass(frozen=True)
class Path:
    """Nodes from one place to the other, and the links between them: one fewer."""

    nodes: tuple[NodeId, ...]
    links: tuple[LinkId, ...]

    @property
    def order(self) -> tuple[int, tuple[NodeId, ...], tuple[LinkId, ...]]:
        """What to sort by: shortest first, then by the nodes and links on the way."""
        return len(self.links), self.nodes, self.links


@dataclass(frozen=True)
class Disjoint:
    """
    Paths that share nothing of one sort; nor do they share a link, whatever the sort.

    Args:
        by: `BY_LINK`, `BY_NODE` or `BY_GROUP`.
        paths: Shortest first.
        is_largest: Whether no larger set exists; otherwise there may be one.
        exempt: What all paths share because an end has nothing else: switches, or risk groups.
    """

    by: str
    paths: tuple[Path, ...]
    is_largest: bool
    exempt: tuple[str, ...]


class Between:
    """
    The paths from *one* place to the *other*.

    Args:
        fabric: As built.
        one, other: Endpoints or switches, different.
        is_valley_free: Whether a path that went down may not go up again.

    Cost: O(links) to prepare.
    """

    def __init__(self, fabric: Fabric, one: NodeId, other: NodeId, *, is_valley_free: bool) -> None:
        assert one != other
        self.fabric = fabric
        self.one = one
        self.other = other
        self.is_valley_free = is_valley_free

    # --- equal-cost paths ------------------------------------------------------------------------------------------
    @cached_property
    def _hops(self) -> dict[NodeId, list[tuple[LinkId, NodeId]]]:
        """The next hops of every node towards the other place, by neighbour, then link."""
        topology = Topology(self.fabric)
        ground = Ground(
            len(topology.switches),
            topology.end_source,
            topology.end_target,
            topology.end_is_up,
            np.ones(len(topology.end_source), dtype=np.int64),
            self.is_valley_free,
            np.zeros(1, dtype=np.int64),
            np.zeros(0, dtype=np.int64),
            np.zeros(0, dtype=np.int64),
        )
        homes = self._homes(self.other)
        index = topology.switch_index
        is_attached = np.zeros((ground.node_count, 1), dtype=np.bool_)
        is_attached[[index[home] for home in homes], 0] = True
        flow = Flow(ground, is_attached)
        hops: dict[NodeId, list[tuple[LinkId, NodeId]]] = {}
        for end, source, target in zip(flow.end.tolist(), flow.source.tolist(), flow.target.tolist(), strict=True):
            link = topology.trunks[topology.end_trunk[end]].id
            hops.setdefault(topology.switches[source], []).append((link, topology.switches[target]))
        if self.other in self.fabric.access_links:
            for home, links in homes.items():
                hops[home] = [(link.id, self.other) for link in links]
        if self.one in self.fabric.access_links:
            distance = {home: int(flow.distance[index[home], 0]) for home in self._homes(self.one)}
            reach = [hops_ for hops_ in distance.values() if hops_ != UNREACHED]
            hops[self.one] = [
                (link.id, home)
                for home, links in self._homes(self.one).items()
                if reach and distance[home] == min(reach)
                for link in links
            ]
        return hops

    def _homes(self, place: NodeId) -> dict[NodeId, list[Link]]:
        """Return the switches of a place, with the links there; a switch is its own."""
        if self.fabric.nodes[place].is_switch:
            return {place: []}
        found: dict[NodeId, list[Link]] = {}
        for link in self.fabric.access_links.get(place, ()):
            found.setdefault(link.far_end(place).node, []).append(link)
        return {home: found[home] for home in sorted(found)}

    @cached_property
    def count(self) -> int:
        """How many equal-cost paths there are, counted without walking them. Cost: O(next hops)."""
        counts: dict[NodeId, int] = {self.other: 1}
        todo = [self.one]
        while todo:
            node = todo[-1]
            hops = self._hops.get(node, [])
            missing = [far for _, far in hops if far not in counts]
            if missing and node not in counts:
                todo += missing
                continue
            todo.pop()
            counts.setdefault(node, sum(counts[far] for _, far in hops))
        return counts[self.one]

    def equal_cost(self) -> Iterator[Path]:
        """Yield the equal-cost paths in canonical order: by the first neighbour, its link, and so on. Cost: O(links) a path."""
        todo: list[tuple[tuple[NodeId, ...], tuple[LinkId, ...]]] = [((self.one,), ())]
        while todo:
            nodes, links = todo.pop()
            if nodes[-1] == self.other:
                yield Path(nodes, links)
                continue
            todo += reversed([((*nodes, far), (*links, link)) for link, far in self._hops.get(nodes[-1], [])])

    # --- disjoint paths --------------------------------------------------------------------------------------------
    def disjoint(self, by: str) -> Disjoint:
        """
        Return a set of permitted paths that share no link, no switch or no risk group.

        What no path can avoid, because an end has no other switch or link, does not count as shared.

        By link and by node through a maximum flow over (switch, went down yet); the set is the largest unless two of its paths turned out to
        share something all the same. By risk group one path after the other, since the largest set is hard to find.

        Cost: O(paths x links). Source: Menger's theorem; for risk groups Hu, Networks 41 (2003).
        """
        if by == BY_GROUP:
            return self._group_disjoint()
        exempt: frozenset[str] = self._only_homes if by == BY_NODE else self._only_links
        first = self._shortest(lambda link: link.id in self._only_links)
        if first is not None:
            return Disjoint(by, (first,), True, tuple(sorted(exempt)))
        paths, is_largest = self._apart([self._without_loops(path) for path in self._by_flow(by)], by, exempt)
        return Disjoint(by, tuple(sorted(paths, key=lambda path: path.order)), is_largest, tuple(sorted(exempt)))

    @cached_property
    def _only_homes(self) -> frozenset[NodeId]:
        """The switches that no path can avoid because an end is on no other."""
        homes = (self._homes(place) for place in (self.one, self.other))
        return frozenset(switch for found in homes if len(found) == 1 for switch in found) - {self.one, self.other}

    @cached_property
    def _steps(self) -> dict[NodeId, list[tuple[Link, NodeId, bool]]]:
        """The links that may be taken from each switch and from the first place, with where they lead and whether that is up."""
        steps: dict[NodeId, list[tuple[Link, NodeId, bool]]] = {}
        for link in self.fabric.links.values():
            for end in link.ends:
                far = link.far_end(end.node).node
                leads_on = self.fabric.nodes[far].is_switch or far == self.other
                may_start = self.fabric.nodes[end.node].is_switch or end.node == self.one
                if leads_on and may_start and (self.fabric.is_trunk(link) or self.fabric.is_access(link)):
                    steps.setdefault(end.node, []).append((link, far, goes_up(self.fabric, link, end.node)))
        return {node: sorted(found, key=lambda step: (step[1], step[0].id)) for node, found in steps.items()}

    def _moves(self, node: NodeId, went_down: bool) -> Iterator[tuple[Link, NodeId, bool]]:
        """Yield the links that may be taken, with where they lead and whether the path went down then."""
        for link, far, is_up in self._steps.get(node, ()):
            if not (self.is_valley_free and went_down and is_up):
                yield link, far, self.is_valley_free and (went_down or not is_up)

    def _by_flow(self, by: str) -> list[Path]:
        """Return the paths of a maximum flow; each link, or each switch, carries one path in each state, but for what none can avoid."""
        # Vertices are numbers, so that no hash seed reaches the order in which networkx looks at them.
        number: dict[Hashable, int] = {}
        graph: nx.DiGraph[int] = nx.DiGraph()

        def vertex(*key: Hashable) -> int:
            return number.setdefault(key, len(number))

        most = len(self.fabric.links)
        start, end = vertex("start"), vertex("end")
        graph.add_nodes_from((start, end))
        taken: dict[tuple[int, int], tuple[Link, NodeId]] = {}
        seen = {(self.one, False)}
        todo = deque(seen)
        while todo:
            node, went_down = todo.popleft()
            leave = start if node == self.one else vertex("out", node, went_down)
            for link, far, then_down in self._moves(node, went_down):
                if far == self.one:
                    continue
                along = vertex("along", link.id, far)
                arrive = end if far == self.other else vertex("in", far, then_down)
                # From either state onto the link, and one path off it.
                graph.add_edge(leave, along)
                graph.add_edge(along, arrive, capacity=most if link.id in self._only_links else 1)
                taken[along, arrive] = (link, far)
                if far != self.other:
                    is_shared = by == BY_LINK or far in self._only_homes
                    graph.add_edge(arrive, vertex("out", far, then_down), capacity=most if is_shared else 1)
                    if (far, then_down) not in seen:
                        seen.add((far, then_down))
                        todo.append((far, then_down))
        if not nx.has_path(graph, start, end):
            return []
        _, flow = nx.maximum_flow(graph, start, end, flow_func=nx.algorithms.flow.shortest_augmenting_path)
        left = {one: [other for other, amount in flow[one].items() for _ in range(amount)] for one in flow}
        paths: list[Path] = []
        while left[start]:
            nodes, links, at = [self.one], [], start
            while at != end:
                after = left[at].pop(0)
                if (at, after) in taken:
                    link, far = taken[at, after]
                    links.append(link.id)
                    nodes.append(far)
                at = after
            paths.append(Path(tuple(nodes), tuple(links)))
        return paths

    def _without_loops(self, path: Path) -> Path:
        """Return *path* without coming back to a node; whoever comes back went down, so the rest stays permitted."""
        nodes: list[NodeId] = []
        links: list[LinkId] = []
        for node, link in zip(path.nodes, (None, *path.links), strict=True):
            if link is not None:
                links.append(link)
            if node in nodes:
                at = nodes.index(node)
                del nodes[at + 1 :], links[at:]
            else:
                nodes.append(node)
        return Path(tuple(nodes), tuple(links))

    def _apart(self, paths: list[Path], by: str, exempt: frozenset[str]) -> tuple[list[Path], bool]:
        """Return *paths* that share nothing: tails are swapped where two walk one link against each other, and what still clashes is left out."""

        def things(path: Path) -> set[str]:
            nodes = path.nodes[1:-1] if by == BY_NODE else ()
            return set[str]((*nodes, *path.links)) - exempt - self._only_links

        while True:
            swapped = next(filter(None, (self._swapped(*pair) for pair in _pairs(paths))), None)
            if swapped is None:
                break
            old, new = swapped
            paths = [path for path in paths if path not in old] + new
        kept: list[Path] = []
        for path in sorted(paths, key=lambda path: path.order):
            if not any(things(path) & things(other) for other in kept):
                kept.append(path)
        return kept, len(kept) == len(paths)

    def _swapped(self, one: Path, other: Path) -> tuple[list[Path], list[Path]] | None:
        """Return two paths that use a link against each other, and two permitted ones without it; None where that cannot be."""
        against = {(nodes, link) for nodes, link in zip(pairwise(other.nodes), other.links, strict=True)}
        for at, (nodes, link) in enumerate(zip(pairwise(one.nodes), one.links, strict=True)):
            if ((nodes[1], nodes[0]), link) in against:
                back = other.links.index(link)
                first = Path(one.nodes[: at + 1] + other.nodes[back + 2 :], one.links[:at] + other.links[back + 1 :])
                second = Path(other.nodes[: back + 1] + one.nodes[at + 2 :], other.links[:back] + one.links[at + 1 :])
                new = [self._without_loops(first), self._without_loops(second)]
                if all(self.is_permitted(path) for path in new):
                    return [one, other], new
        return None

    def is_permitted(self, path: Path) -> bool:
        """Return whether *path* may be taken: it is no valley, or valleys may be."""
        went_down = False
        for node, link in zip(path.nodes, path.links, strict=False):
            is_up = goes_up(self.fabric, self.fabric.links[link], node)
            if self.is_valley_free and went_down and is_up:
                return False
            went_down = went_down or not is_up
        return True

    def _group_disjoint(self) -> Disjoint:
        exempt = self._only_groups
        used: set[SrlgId] = set()
        links: set[LinkId] = set()
        paths: list[Path] = []

        def is_free(link: Link) -> bool:
            return link.id not in links and not (set(link.srlgs) - exempt) & used

        while (path := self._shortest(is_free)) is not None:
            paths.append(path)
            links |= {link for link in path.links if link not in self._only_links}
            used |= {srlg for link in path.links for srlg in self.fabric.links[link].srlgs}
            if not set(path.links) - self._only_links:
                break
        # No more paths can share no risk group than can share no link.
        is_largest = not paths or len(paths) == len(self.disjoint(BY_LINK).paths)
        return Disjoint(BY_GROUP, tuple(paths), is_largest, tuple(sorted({*exempt, *self._only_links})))

    @cached_property
    def _only_links(self) -> frozenset[LinkId]:
        """The links that no path can avoid because an end has no other."""
        ends = (self._homes(place) for place in (self.one, self.other))
        access = ([link for links in found.values() for link in links] for found in ends)
        return frozenset(links[0].id for links in access if len(links) == 1)

    @cached_property
    def _only_groups(self) -> frozenset[SrlgId]:
        return frozenset(srlg for link in self._only_links for srlg in self.fabric.links[link].srlgs)

    def _shortest(self, is_free: Callable[[Link], bool]) -> Path | None:
        """Return the first of the shortest permitted paths over free links."""
        came: dict[tuple[NodeId, bool], tuple[tuple[NodeId, bool], LinkId] | None] = {(self.one, False): None}
        todo = deque(came)
        while todo:
            state = todo.popleft()
            if state[0] == self.other:
                nodes, links = [state[0]], []
                while (before := came[state]) is not None:
                    state, link_id = before
                    nodes.append(state[0])
                    links.append(link_id)
                return Path(tuple(reversed(nodes)), tuple(reversed(links)))
            for link, far, went_down in self._moves(*state):
                if (far, went_down) not in came and (is_free(link) or link.id in self._only_links):
                    came[far, went_down] = (state, link.id)
                    todo.append((far, went_down))
        return None


def _pairs(paths: Sequence[Path]) -> Iterable[tuple[Path, Path]]:
    return ((one, other) for index, one in enumerate(paths) for other in paths[index + 1 :])
