"""Does a path exist that policy permits? Asked of the working links alone, whatever the tables say.

Rule 1: independent of the path engine, like the walker.
Rule 2: a valley (up after down) is no path where policy forbids valleys; what only a valley could serve is told apart from what
nothing could.
"""

from collections.abc import Iterable

from erfs.fabric import goes_up, is_valley_free_required
from erfs.ids import NodeId
from erfs_scenario.dataplane import DataPlane
from erfs_scenario.timeline import CUT, CUT_BY_POLICY, NOT_RECOVERED


class Permission:
    """Answers for one data plane; each answer is kept until a link or node changes."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        fabric = plane.fabric
        self.is_valley_free = is_valley_free_required(fabric)
        # Per switch: (link, far switch, whether going there leads up).
        self._trunks: list[list[tuple[int, int, bool]]] = [[] for _ in plane.nodes]
        for link in fabric.trunks:
            index = plane.link_index[link.id]
            for near, far in ((link.a, link.b), (link.b, link.a)):
                entry = (index, plane.node_index[far.node], goes_up(fabric, link, near.node))
                self._trunks[plane.node_index[near.node]].append(entry)
        self._version = -1
        self._climbs: dict[int, frozenset[int]] = {}
        self._component: list[int] = []

    def has_way(self, sources: Iterable[int], targets: Iterable[int]) -> bool:
        """
        Return whether any of the switches *sources* has a permitted path to any of the switches *targets*.

        Where valleys are forbidden a path climbs and then descends, so there is one if and only if what both ends can climb to has a
        switch in common.

        Cost: O(trunks that lead up from there), once for each switch and physical state.
        """
        self._take_over()
        if not self.is_valley_free:
            return self.is_connected(sources, targets)
        climbed: set[int] = set()
        for node in targets:
            climbed |= self._above(node)
        return any(not climbed.isdisjoint(self._above(node)) for node in sources)

    def is_connected(self, sources: Iterable[int], targets: Iterable[int]) -> bool:
        """Return whether any of the switches *sources* has any path at all, valleys included, to any of *targets*."""
        self._take_over()
        if not self._component:
            self._component = self._components()
        powered = self._plane.is_powered
        ends = {self._component[node] for node in targets if powered[node]}
        return any(self._component[node] in ends for node in sources if powered[node])

    def attachments(self, endpoint: NodeId) -> frozenset[int]:
        """Return the switches that *endpoint* is attached to by working links."""
        plane = self._plane
        return frozenset(
            plane.node_index[link.far_end(endpoint).node]
            for link in plane.fabric.access_links[endpoint]
            if plane.is_link_working(link.id)
        )

    def cause(self, source: NodeId, target: NodeId) -> str:
        """Return why a flow between two endpoints that is not served in full is not: is there a way, one that policy forbids, or none?"""
        sources, targets = self.attachments(source), self.attachments(target)
        if self.has_way(sources, targets):
            return NOT_RECOVERED
        return CUT_BY_POLICY if self.is_connected(sources, targets) else CUT

    def _take_over(self) -> None:
        if self._version != self._plane.state_version:
            self._version = self._plane.state_version
            self._climbs = {}
            self._component = []

    def _above(self, switch: int) -> frozenset[int]:
        """Return the switches that *switch* can climb to, itself included; none without power."""
        found = self._climbs.get(switch)
        if found is None:
            found = self._climbs[switch] = self._spread(switch, is_climbing=True)
        return found

    def _spread(self, start: int, *, is_climbing: bool) -> frozenset[int]:
        """Return the switches that can be reached from *start* over working links, if *is_climbing* over those that lead up."""
        if not self._plane.is_powered[start]:
            return frozenset()
        working = self._plane.working
        found = {start}
        waiting = [start]
        while waiting:
            for link, far, is_up in self._trunks[waiting.pop()]:
                if far not in found and (is_up or not is_climbing) and working[link]:
                    found.add(far)
                    waiting.append(far)
        return frozenset(found)

    def _components(self) -> list[int]:
        component = [-1] * len(self._plane.nodes)
        for start in range(len(component)):
            if component[start] < 0:
                for node in self._spread(start, is_climbing=False):
                    component[node] = start
        return component
