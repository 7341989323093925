"""The simulated fabric: which cables and nodes work, and what every node's forwarding table says. What it would do with a packet now.

Rule 1: the physical truth and the tables are kept apart: a table may well point at a dead link, that is what a black hole is.
Rule 2: tables change only by what drivers write; nothing here repairs, computes or checks a route.
Rule 3: a link has two lanes, one for each direction; what a lane carries and what the carrier says are different things.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from erfs.fabric import Fabric, LinkEnd
from erfs.ids import DestinationId, LinkId, NodeId
from erfs.messages import Member

Share = int | Fraction
"""0, 1 or a Fraction between them: exact, never a float."""


class Hops:
    """One group of one node, compiled: where its members lead, and which of them work now."""

    __slots__ = ("branches", "carrying", "live", "members", "onward", "total")

    def __init__(self, members: tuple[Member, ...], branches: tuple[tuple[int, int, int], ...]) -> None:
        self.members = members
        self.branches = branches
        """(lane index, far node index, weight) of each member."""
        self.total = sum(weight for _, _, weight in branches)
        self.carrying = branches
        """Those of them over which something gets through."""
        self.live: dict[int, Share] = {}
        """What gets through of the weight, by far node index."""
        self.onward: tuple[int, ...] = ()
        """The switches among them."""

    def refresh(self, lanes: list[Share], is_switch: list[bool]) -> None:
        """Take over what works now."""
        live: dict[int, Share] = {}
        self.carrying = tuple(branch for branch in self.branches if lanes[branch[0]])
        for lane, far, weight in self.carrying:
            live[far] = live.get(far, 0) + weight * lanes[lane]
        self.live = live
        self.onward = tuple(far for far in live if is_switch[far])


@dataclass(frozen=True, slots=True)
class Dirty:
    """What changed since the last question: at which nodes, towards which destinations; and whether a link or node did."""

    routes: dict[DestinationId, tuple[int, ...]] = field(default_factory=dict)
    """Node indices by destination as spelled in the tables ("*" included), both in canonical order."""
    is_physical: bool = False

    def __bool__(self) -> bool:
        return self.is_physical or bool(self.routes)


class DataPlane:
    """
    The simulated fabric. Satisfies the agent driver's ``Plane``.

    A node without power forwards nothing, forgets its table, and the far ends of its links lose carrier. Writes to it are lost.

    Args:
        fabric: As built: every link and node works at first, every table is empty.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.nodes: list[NodeId] = list(fabric.nodes)
        self.node_index: dict[NodeId, int] = {node: index for index, node in enumerate(self.nodes)}
        self.is_switch: list[bool] = [node.is_switch for node in fabric.nodes.values()]
        self.links: list[LinkId] = list(fabric.links)
        self.link_index: dict[LinkId, int] = {link: index for index, link in enumerate(self.links)}
        self.working: list[bool] = [True] * len(self.links)
        """Of each link: whether both lanes carry something."""
        self.lanes: list[Share] = [1] * (2 * len(self.links))
        """What gets through of what is sent, by `lane_index`."""
        self.is_powered: list[bool] = [True] * len(self.nodes)
        self.tables: list[dict[DestinationId, Hops]] = [{} for _ in self.nodes]
        self.state_version = 0
        """Counts changes of the physical truth."""
        self._cut: list[bool] = [False] * len(self.links)
        self._silent: list[bool] = [False] * len(self.lanes)
        self._loss: list[Share] = [0] * len(self.links)
        self._ends: list[tuple[int, int]] = [
            (self.node_index[link.a.node], self.node_index[link.b.node]) for link in fabric.links.values()
        ]
        self.neighbours: list[tuple[int, ...]] = [
            tuple(sorted({self.node_index[link.far_end(node).node] for link in fabric.links_of[node]}))
            for node in self.nodes
        ]
        self._port_far: list[dict[str, tuple[int, int]]] = [{} for _ in self.nodes]
        for index, link in enumerate(fabric.links.values()):
            for lane, end, far in ((2 * index, link.a, link.b), (2 * index + 1, link.b, link.a)):
                self._port_far[self.node_index[end.node]][end.port] = (lane, self.node_index[far.node])
        # Agents hand over the same tuple for all destinations of a group: compiling by identity makes a write of hundreds of
        # routes cost a few groups. The Hops keep the tuple alive, so an identity cannot be reused.
        self._compiled: list[dict[int, Hops]] = [{} for _ in self.nodes]
        self._dirty: dict[DestinationId, set[int]] = {}
        self._is_physical = False

    # --- the physical truth ---------------------------------------------------------------------------------------------
    def set_link(self, link: LinkId, is_up: bool) -> None:
        """Cut the cable of *link*, or mend it."""
        index = self.link_index[link]
        self._cut[index] = not is_up
        self._refresh([index])

    def set_deaf(self, end: LinkEnd, is_deaf: bool) -> None:
        """Let nothing arrive at *end* any more, or everything again; carriers stay as they are."""
        lane = self._port_far[self.node_index[end.node]][end.port][0] ^ 1
        self._silent[lane] = is_deaf
        self._refresh([lane >> 1])

    def set_loss(self, link: LinkId, loss: Share) -> None:
        """Lose the share *loss* of what crosses *link*, in both directions; carriers stay as they are."""
        index = self.link_index[link]
        self._loss[index] = loss
        self._refresh([index])

    def set_node(self, node: NodeId, is_up: bool) -> None:
        """Take the power of *node*, its table with it; or give it back, with an empty table."""
        index = self.node_index[node]
        self.is_powered[index] = is_up
        if not is_up:
            for destination in self.tables[index]:
                self._dirty.setdefault(destination, set()).add(index)
            self.tables[index] = {}
            self._compiled[index] = {}
        self._refresh([self.link_index[link.id] for link in self.fabric.links_of[node]])

    def is_link_working(self, link: LinkId) -> bool:
        """Return whether packets get through *link* both ways, though some of them may be lost."""
        return self.working[self.link_index[link]]

    def ends_of(self, link: int) -> tuple[int, int]:
        """Return the nodes at both ends of the link with this index."""
        return self._ends[link]

    def lane_index(self, sender: LinkEnd) -> int:
        """Return the number of the lane on which *sender* sends; the link's other lane differs in the lowest bit."""
        return self._port_far[self.node_index[sender.node]][sender.port][0]

    def share_from(self, sender: LinkEnd) -> Share:
        """Return what gets through of that which *sender* sends over its link."""
        return self.lanes[self.lane_index(sender)]

    def is_node_up(self, node: NodeId) -> bool:
        """Return whether *node* has power."""
        return self.is_powered[self.node_index[node]]

    def is_port_up(self, node: NodeId, port: str) -> bool:
        """Return whether *port* of *node* has carrier. A port without a cable has none."""
        link = self.fabric.link_at.get(LinkEnd(node, port))
        return link is not None and self._has_carrier(self.link_index[link.id])

    def _has_carrier(self, index: int) -> bool:
        a, b = self._ends[index]
        return not self._cut[index] and self.is_powered[a] and self.is_powered[b]

    def _refresh(self, links: Iterable[int]) -> None:
        self.state_version += 1
        self._is_physical = True
        changed: dict[int, set[int]] = {}
        for index in links:
            passed = 1 - self._loss[index] if self._has_carrier(index) else 0
            for lane, node in zip((2 * index, 2 * index + 1), self._ends[index], strict=True):
                share = 0 if self._silent[lane] else passed
                if share != self.lanes[lane]:
                    self.lanes[lane] = share
                    changed.setdefault(node, set()).add(lane)
            self.working[index] = bool(self.lanes[2 * index]) and bool(self.lanes[2 * index + 1])
        for node, node_lanes in changed.items():
            touched = set()
            for identity, hops in self._compiled[node].items():
                if any(lane in node_lanes for lane, _, _ in hops.branches):
                    hops.refresh(self.lanes, self.is_switch)
                    touched.add(identity)
            for destination, hops in self.tables[node].items():
                if id(hops.members) in touched:
                    self._dirty.setdefault(destination, set()).add(node)

    # --- the tables -----------------------------------------------------------------------------------------------------
    def write_routes(
        self,
        node: NodeId,
        routes: Mapping[DestinationId, tuple[Member, ...]],
        removed: Iterable[DestinationId] = (),
    ) -> None:
        """
        Change the table of *node*: set *routes*, forget *removed*. An empty tuple is a route that drops everything.

        Raises:
            KeyError: a member names a port that has no cable.
        """
        index = self.node_index[node]
        if not self.is_powered[index]:
            return
        table = self.tables[index]
        compiled = self._compiled[index]
        for destination, members in routes.items():
            hops = compiled.get(id(members))
            if hops is None:
                ports = self._port_far[index]
                hops = Hops(members, tuple((*ports[member.port], member.weight) for member in members))
                hops.refresh(self.lanes, self.is_switch)
                compiled[id(members)] = hops
            if table.get(destination) is not hops:
                table[destination] = hops
                self._dirty.setdefault(destination, set()).add(index)
        for destination in removed:
            if table.pop(destination, None) is not None:
                self._dirty.setdefault(destination, set()).add(index)
        if len(compiled) > 2 * len(table) + 64:
            used = {id(hops.members): hops for hops in table.values()}
            self._compiled[index] = used

    def routes_of(self, node: NodeId) -> dict[DestinationId, tuple[Member, ...]]:
        """Return the table of *node* as it was written, destinations sorted."""
        table = self.tables[self.node_index[node]]
        return {destination: table[destination].members for destination in sorted(table)}

    def take_dirty(self) -> Dirty:
        """Return what changed since the last call, and forget it."""
        routes = {destination: tuple(sorted(self._dirty[destination])) for destination in sorted(self._dirty)}
        dirty = Dirty(routes, self._is_physical)
        self._dirty = {}
        self._is_physical = False
        return dirty
