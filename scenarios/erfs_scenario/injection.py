"""Which links and nodes the faults of a plan take away or spoil now.

Rule 1: faults may overlap: what two of them hold down comes back when the last one lets go.
Rule 2: "injected" is not "in effect": whether a fault is there is for `erfs_scenario.witness` to see, never for this module to say.
"""

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

from erfs.errors import Bug
from erfs.fabric import Fabric, LinkEnd
from erfs.faults import Fault, FaultKind
from erfs.ids import LinkId, NodeId
from erfs.units import PPM
from erfs_scenario.dataplane import DataPlane


class PhysicalFaults:
    """The cut, deaf and lossy links and the nodes without power of one run."""

    def __init__(self, fabric: Fabric, plane: DataPlane) -> None:
        self._fabric = fabric
        self._plane = plane
        self._cuts: Counter[LinkId] = Counter()
        self._outages: Counter[NodeId] = Counter()
        self._deafnesses: Counter[LinkEnd] = Counter()
        self._losses: dict[LinkId, list[int]] = {}
        self._flaps_down: set[str] = set()

    def is_powered(self, node: NodeId) -> bool:
        """Return whether no fault holds *node* down."""
        return not self._outages[node]

    def is_cut(self, link: LinkId) -> bool:
        """Return whether a fault cuts *link*."""
        return self._cuts[link] > 0

    def inject(self, fault: Fault) -> tuple[LinkEnd, ...]:
        """Break what *fault* targets; return the ends, at nodes with power, that lost their carrier by it."""
        if fault.kind is FaultKind.LINK_FLAP:
            self._flaps_down.add(fault.id)
        return self._apply(fault, 1)

    def heal(self, fault: Fault) -> tuple[LinkEnd, ...]:
        """Undo *fault*; return the ends, at nodes with power, that have their carrier back."""
        if fault.kind is FaultKind.LINK_FLAP:
            if fault.id not in self._flaps_down:
                return ()
            self._flaps_down.remove(fault.id)
        return self._apply(fault, -1)

    def flap(self, fault: Fault) -> tuple[LinkEnd, ...]:
        """Turn the links of a ``link_flap`` in force over; return the ends, at nodes with power, whose carrier changed."""
        return self.heal(fault) if fault.id in self._flaps_down else self.inject(fault)

    def _apply(self, fault: Fault, step: int) -> tuple[LinkEnd, ...]:
        ends = tuple(self._ends_of(fault))
        before = {end: self._plane.is_port_up(*end) for end in ends}
        match fault.kind:
            case FaultKind.LINK_DOWN | FaultKind.LINK_FLAP:
                for link in fault.links:
                    self._cuts[link] += step
                    self._plane.set_link(link, not self._cuts[link])
            case FaultKind.NODE_DOWN:
                for node in fault.nodes:
                    self._outages[node] += step
                    self._plane.set_node(node, not self._outages[node])
            case FaultKind.SILENT_DROP | FaultKind.NODE_ISOLATED | FaultKind.ONE_WAY_DROP:
                for end in fault.ends if fault.kind is FaultKind.ONE_WAY_DROP else ends:
                    self._deafnesses[end] += step
                    self._plane.set_deaf(end, self._deafnesses[end] > 0)
            case FaultKind.PACKET_LOSS:
                for link in fault.links:
                    self._lose(link, fault.loss_ppm, step)
            case _:
                raise Bug(f'"{fault.kind}" is nothing that a simulated data plane can do')
        return tuple(end for end in ends if self.is_powered(end.node) and self._plane.is_port_up(*end) != before[end])

    def _lose(self, link: LinkId, loss_ppm: int, step: int) -> None:
        losses = self._losses.setdefault(link, [])
        if step > 0:
            losses.append(loss_ppm)
        else:
            losses.remove(loss_ppm)
        passed = Fraction(1)
        for part_ppm in losses:
            passed *= Fraction(PPM - part_ppm, PPM)
        self._plane.set_loss(link, 1 - passed if losses else 0)

    def _links_of(self, fault: Fault) -> list[LinkId]:
        links = set(fault.links)
        for node in fault.nodes:
            links |= {link.id for link in self._fabric.links_of[node]}
        return sorted(links)

    def _ends_of(self, fault: Fault) -> Iterable[LinkEnd]:
        return [end for name in self._links_of(fault) for end in self._fabric.links[name].ends]
