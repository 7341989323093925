"""The simulated fabric: which cables and nodes work, and what every node's forwarding table says. What it would do with a packet now.

Rule 1: the physical truth and the tables are kept apart: a table may well point at a dead link, that is what a black hole is.
Rule 2: tables change only by what drivers write; nothing here repairs, computes or checks a route.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from erfs.fabric import Fabric, LinkEnd
from erfs.ids import DestinationId, LinkId, NodeId
from erfs.messages import Member


class Hops:
    """One group of one node, compiled: where its members lead, and which of them work now."""

    __slots__ = ("branches", "live", "members", "onward", "total")

    def __init__(self, members: tuple[Member, ...], branches: tuple[tuple[int, int, int], ...]) -> None:
        self.members = members
        self.branches = branches
        """(link index, far node index, weight) of each member."""
        self.total = sum(weight for _, _, weight in branches)
        self.live: dict[int, int] = {}
        """Weight by far node index, over working links only."""
        self.onward: tuple[int, ...] = ()
        """The switches among them."""

    def refresh(self, working: list[bool], is_switch: list[bool]) -> None:
        """Take over what works now."""
        live: dict[int, int] = {}
        for link, far, weight in self.branches:
            if working[link]:
                live[far] = live.get(far, 0) + weight
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
        self.is_powered: list[bool] = [True] * len(self.nodes)
        self.tables: list[dict[DestinationId, Hops]] = [{} for _ in self.nodes]
        self.state_version = 0
        """Counts changes of the physical truth."""
        self._cut: list[bool] = [False] * len(self.links)
        self._ends: list[tuple[int, int]] = [
            (self.node_index[link.a.node], self.node_index[link.b.node]) for link in fabric.links.values()
        ]
        self.neighbours: list[tuple[int, ...]] = [
            tuple(sorted({self.node_index[link.far_end(node).node] for link in fabric.links_of[node]}))
            for node in self.nodes
        ]
        self._port_far: list[dict[str, tuple[int, int]]] = [{} for _ in self.nodes]
        for index, link in enumerate(fabric.links.values()):
            for end, far in ((link.a, link.b), (link.b, link.a)):
                self._port_far[self.node_index[end.node]][end.port] = (index, self.node_index[far.node])
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
        """Return whether a packet gets through *link*: not cut, both ends powered."""
        return self.working[self.link_index[link]]

    def is_node_up(self, node: NodeId) -> bool:
        """Return whether *node* has power."""
        return self.is_powered[self.node_index[node]]

    def is_port_up(self, node: NodeId, port: str) -> bool:
        """Return whether *port* of *node* has carrier. A port without a cable has none."""
        link = self.fabric.link_at.get(LinkEnd(node, port))
        return link is not None and self.is_link_working(link.id)

    def _refresh(self, links: Iterable[int]) -> None:
        self.state_version += 1
        self._is_physical = True
        changed: dict[int, set[int]] = {}
        for index in links:
            a, b = self._ends[index]
            is_working = not self._cut[index] and self.is_powered[a] and self.is_powered[b]
            if is_working != self.working[index]:
                self.working[index] = is_working
                changed.setdefault(a, set()).add(index)
                changed.setdefault(b, set()).add(index)
        for node, node_links in changed.items():
            touched = set()
            for identity, hops in self._compiled[node].items():
                if any(link in node_links for link, _, _ in hops.branches):
                    hops.refresh(self.working, self.is_switch)
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
                hops.refresh(self.working, self.is_switch)
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
