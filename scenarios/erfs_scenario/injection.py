"""Which links and nodes the faults of a plan take away now, and whether the data plane agrees.

Rule 1: faults may overlap: what two of them hold down comes back when the last one lets go.
Rule 2: "injected" is not "in effect": only the data plane's own word counts.
"""

from collections import Counter
from collections.abc import Iterable

from erfs.fabric import Fabric, LinkEnd
from erfs.faults import Fault
from erfs.ids import LinkId, NodeId
from erfs_scenario.dataplane import DataPlane


class PhysicalFaults:
    """The cut links and the nodes without power of one run."""

    def __init__(self, fabric: Fabric, plane: DataPlane) -> None:
        self._fabric = fabric
        self._plane = plane
        self._cuts: Counter[LinkId] = Counter()
        self._outages: Counter[NodeId] = Counter()

    def is_powered(self, node: NodeId) -> bool:
        """Return whether no fault holds *node* down."""
        return not self._outages[node]

    def is_cut(self, link: LinkId) -> bool:
        """Return whether a fault cuts *link*."""
        return self._cuts[link] > 0

    def inject(self, fault: Fault) -> tuple[LinkEnd, ...]:
        """Break what *fault* targets; return the ends, at nodes with power, that lost their carrier by it."""
        return self._apply(fault, 1)

    def heal(self, fault: Fault) -> tuple[LinkEnd, ...]:
        """Undo *fault*; return the ends, at nodes with power, that have their carrier back."""
        return self._apply(fault, -1)

    def is_effective(self, fault: Fault) -> bool:
        """Return whether the data plane confirms that everything *fault* targets is gone."""
        links = set(fault.links)
        for node in fault.nodes:
            links |= {link.id for link in self._fabric.links_of[node]}
        return bool(links) and not any(self._plane.is_link_working(link) for link in links)

    def is_healed(self, fault: Fault) -> bool:
        """Return whether the data plane confirms that everything *fault* targeted works, where no other fault holds it down."""
        links = set(fault.links)
        for node in fault.nodes:
            links |= {link.id for link in self._fabric.links_of[node]}
        return all(self._plane.is_link_working(link) for link in links if not self._is_held_down(link))

    def _is_held_down(self, link: LinkId) -> bool:
        return self.is_cut(link) or not all(self.is_powered(end.node) for end in self._fabric.links[link].ends)

    def _apply(self, fault: Fault, step: int) -> tuple[LinkEnd, ...]:
        ends = tuple(self._ends_of(fault))
        before = {end: self._plane.is_port_up(*end) for end in ends}
        for link in fault.links:
            self._cuts[link] += step
            self._plane.set_link(link, not self._cuts[link])
        for node in fault.nodes:
            self._outages[node] += step
            self._plane.set_node(node, not self._outages[node])
        return tuple(end for end in ends if self.is_powered(end.node) and self._plane.is_port_up(*end) != before[end])

    def _ends_of(self, fault: Fault) -> Iterable[LinkEnd]:
        links = {link: self._fabric.links[link] for link in fault.links}
        for node in fault.nodes:
            links |= {link.id: link for link in self._fabric.links_of[node]}
        return [end for name in sorted(links) for end in links[name].ends]
