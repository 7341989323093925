"""What operators have taken out of use: may it be, what follows for routes, and when does it end?

Rule 1: a drained link is no failed link: it is no down fact, and what runs over it is moved before it is given up.
Rule 2: a drain that breaks the path floor, or takes somebody's last path, is refused unless it is forced, with a reason.
Rule 3: a drain never partitions afterwards: where failures leave no other path, hard drains carry what nothing else can, like soft ones.
Rule 4: instants are of the wall clock, and given by the caller: a drain outlives every process.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from erfs.errors import FabricError
from erfs.fabric import Fabric, Link
from erfs.ids import LinkId, NodeId
from erfs.messages import DRAIN_NAMED_MAX, Drain, DrainPlan, DrainRequest, Drains, DrainShare, DrainTarget, Strength
from erfs.paths import Topology
from erfs.paths.floor import Remainder, Share, what_remains
from erfs.units import PPM

KINDS: Final[tuple[DrainTarget, ...]] = ("node", "link", "srlg", "rack")
RACK: Final = "rack"
"""The label of nodes that names their rack."""
_NOTHING: Final[frozenset[LinkId]] = frozenset()


@dataclass(frozen=True, slots=True)
class Use:
    """
    What routes may use.

    Args:
        unusable: Links that carry nothing: failed, or taken out of use.
        shunned: Trunks that are used only where nothing else remains.
        is_yielding: Whether hard drains carry what nothing else can.
    """

    unusable: frozenset[LinkId]
    shunned: frozenset[LinkId] = _NOTHING
    is_yielding: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """
    What becomes of a request.

    Args:
        reasons: Why it is refused; empty: it is not.
        overridden: The reasons that the operator's own overrode.
        drain: What is, or would be, drained or no more.
        plan: What a drain would do; None for an undrain, and where the target is unknown.
    """

    reasons: tuple[str, ...] = ()
    overridden: tuple[str, ...] = ()
    drain: Drain | None = None
    plan: DrainPlan | None = None


@dataclass(slots=True)
class _Known:
    """The last answer to `use`, which is asked for at every event."""

    asked: tuple[object, ...] = ()
    use: Use = field(default_factory=lambda: Use(_NOTHING))


class DrainList:
    """
    The drains in force.

    Args:
        topology: The fabric as built.
        floor_ppm: The share of its paths and capacity that every class must keep when something is drained.
        stored: What was drained when the last controller ended; None: nothing is known.
    """

    def __init__(self, topology: Topology, floor_ppm: int, stored: Drains | None = None) -> None:
        self._topology = topology
        self._floor_ppm = floor_ppm
        self._drains: dict[str, Drain] = {}
        self.revision = 0
        self._known = _Known()
        if stored is not None:
            self.adopt(stored)

    @property
    def drains(self) -> tuple[Drain, ...]:
        """All of them, by name."""
        return tuple(self._drains[name] for name in sorted(self._drains))

    def adopt(self, other: Drains) -> bool:
        """Take over what another controller left, if it is newer than what is known here. Return whether it was."""
        if other.revision <= self.revision:
            return False
        self.revision = other.revision
        self._drains = {drain.name: drain for drain in other.drains}
        return True

    def merge(self, other: Drains) -> bool:
        """Take in late what another controller left, beside what has been accepted here meanwhile. Return whether it was newer."""
        accepted = self._drains
        if not self.adopt(other):
            return False
        self._drains |= accepted
        self.revision += 1
        return True

    def replace_fabric(self, topology: Topology) -> None:
        """Take in a new fabric. A drain of what it lacks stays, without effect, until it is undrained or ends."""
        self._topology = topology
        self._known = _Known()

    # --- requests -----------------------------------------------------------------------------------------------------
    def decide(self, request: DrainRequest, down: frozenset[LinkId], wall_ns: int) -> Decision:
        """
        Return what becomes of *request*; nothing is changed by that.

        Args:
            request: An operator's.
            down: The links that have failed.
            wall_ns: Now.

        Cost: that of `what_remains`, for a drain.
        """
        try:
            kind, name = self._target(request.target)
        except FabricError as error:
            return Decision(reasons=(str(error),))
        if request.action == "undrain":
            found = self._drains.get(f"{kind}:{name}")
            if found is None:
                drained = ", ".join(sorted(self._drains)) or "nothing"
                return Decision(reasons=(f'{kind} "{name}" is not drained (drained: {drained})',))
            return Decision(drain=found)
        links = links_of(self._topology.fabric, kind, name)
        others = [drain for drain in self.drains if drain.name != f"{kind}:{name}"]
        remainder = what_remains(self._topology, down | self._links(others), links)
        reasons = self._objections(remainder, request.strength)
        drain = Drain(
            target_kind=kind,
            target=name,
            strength=request.strength,
            by=request.sender,
            begins_wall_ns=wall_ns,
            ends_wall_ns=None if request.lasts_ns is None else wall_ns + request.lasts_ns,
            forced_because=request.force if reasons else "",
            may_cut=request.strength == "hard" and bool(remainder.cut_demands),
        )
        plan = self._plan(drain, links, remainder)
        if reasons and not request.force:
            return Decision(reasons=reasons, drain=drain, plan=plan)
        return Decision(overridden=reasons, drain=drain, plan=plan)

    def begin(self, drain: Drain) -> None:
        """Let *drain* be in force; it replaces one of the same target."""
        self._drains[drain.name] = drain
        self.revision += 1

    def end(self, drain: Drain) -> None:
        """Let *drain* be in force no more."""
        del self._drains[drain.name]
        self.revision += 1

    # --- time ---------------------------------------------------------------------------------------------------------
    def next_end_wall_ns(self) -> int | None:
        """Return when the first drain ends by itself."""
        return min(
            (drain.ends_wall_ns for drain in self._drains.values() if drain.ends_wall_ns is not None), default=None
        )

    def over(self, wall_ns: int) -> tuple[Drain, ...]:
        """Return the drains whose time is up."""
        return tuple(drain for drain in self.drains if drain.ends_wall_ns is not None and drain.ends_wall_ns <= wall_ns)

    def carrying_nothing(self) -> frozenset[LinkId]:
        """Return the links that hard drains take out of use."""
        return self._links(drain for drain in self.drains if drain.strength == "hard")

    # --- what follows for routes --------------------------------------------------------------------------------------
    def use(self, down: frozenset[LinkId]) -> Use:
        """
        Return what routes may use while the links *down* have failed.

        Cost: a look-up; after a change of either, that of `what_remains` if anything is drained hard.
        """
        if not self._drains:
            return Use(down)
        asked = (self.revision, down)
        if self._known.asked != asked:
            self._known = _Known(asked, self._new_use(down))
        return self._known.use

    def _new_use(self, down: frozenset[LinkId]) -> Use:
        hard_drains = [drain for drain in self.drains if drain.strength == "hard"]
        # Whoever forced a drain that cuts somebody off was told what all that was drained by then cuts off together.
        told_wall_ns = max((drain.begins_wall_ns for drain in hard_drains if drain.may_cut), default=-1)
        accepted = self._links(drain for drain in hard_drains if drain.begins_wall_ns <= told_wall_ns)
        hard = self._links(hard_drains) - accepted
        soft = self._links(drain for drain in self.drains if drain.strength == "soft") - accepted - hard
        lost = down | accepted
        is_yielding = bool(hard - lost) and what_remains(self._topology, lost, hard).cut_demands > 0
        if is_yielding:
            hard, soft = _NOTHING, soft | hard
        unusable = lost | hard
        # An endpoint chooses among its own links by leaving those that are shunned alone, as long as it has another one.
        for accesses in self._topology.access.values() if soft else ():
            links = {access.link for access in accesses} - unusable
            if links - soft:
                unusable |= links & soft
        return Use(unusable, frozenset(soft - unusable) & self._topology.trunk_index.keys(), is_yielding)

    def _links(self, drains: Iterable[Drain]) -> frozenset[LinkId]:
        fabric = self._topology.fabric
        return _NOTHING.union(*(links_of(fabric, drain.target_kind, drain.target) for drain in drains))

    # --- judgement ----------------------------------------------------------------------------------------------------
    def _objections(self, remainder: Remainder, strength: Strength) -> tuple[str, ...]:
        found = []
        if strength == "hard" and remainder.cut_demands:
            named = ", ".join(remainder.cut_endpoints[:5])
            more = len(remainder.cut_endpoints) - 5
            and_more = f" and {more} more" if more > 0 else ""
            found.append(f"it would take the last path of {remainder.cut_demands} demands, of {named}{and_more}")
        for share in remainder.shares:
            if share.ppm < self._floor_ppm:
                fabric = self._topology.fabric
                found.append(
                    f"{fabric.nodes[share.source].label} would keep {_percent(share.ppm)} of its {share.of} towards "
                    f"{share.destination}, less than the path floor of {_percent(self._floor_ppm)}"
                )
        return tuple(found)

    def _plan(self, drain: Drain, links: frozenset[LinkId], remainder: Remainder) -> DrainPlan:
        endpoints = sorted(
            endpoint
            for endpoint, accesses in self._topology.access.items()
            if any(one.link in links for one in accesses)
        )
        return DrainPlan(
            target_kind=drain.target_kind,
            target=drain.target,
            link_count=len(links),
            endpoints=tuple(endpoints[:DRAIN_NAMED_MAX]),
            endpoint_count=len(endpoints),
            cut=remainder.cut_endpoints[:DRAIN_NAMED_MAX] if remainder.cut_demands else (),
            cut_count=len(remainder.cut_endpoints) if remainder.cut_demands else 0,
            shares=tuple(_told(share) for share in remainder.shares),
            own_shares=tuple(_told(share) for share in remainder.own_shares),
        )

    # --- targets ------------------------------------------------------------------------------------------------------
    def _target(self, text: str) -> tuple[DrainTarget, str]:
        """
        Return what *text* means.

        Raises:
            FabricError: nothing, or several things.
        """
        fabric = self._topology.fabric
        head, _, rest = text.partition(":")
        asked = [(kind, name) for kind in KINDS for name in _named(fabric, kind, text)]
        asked += [(kind, name) for kind in KINDS if head == kind for name in _named(fabric, kind, rest.strip())]
        # What is drained can be undrained though the fabric file has it no more.
        asked += [(drain.target_kind, drain.target) for drain in self.drains if text in (drain.name, drain.target)]
        found = sorted(set(asked))
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(f"{kind}:{name}" for kind, name in found[:6])
            raise FabricError(f'"{text}" may mean {several}: say which')
        known = [name for kind in KINDS for name in _all_named(fabric, kind)]
        near = difflib.get_close_matches(text, known, n=1, cutoff=0.6)
        advice = f' (did you mean "{near[0]}"?)' if near else ""
        raise FabricError(f'"{text}" is no node, link, shared-risk group or rack of fabric "{fabric.name}"{advice}')


def links_of(fabric: Fabric, kind: DrainTarget, name: str) -> frozenset[LinkId]:
    """Return the links that are drained with a target; none if the fabric lacks it. A rack's are those of its switches."""
    match kind:
        case "link":
            return frozenset({LinkId(name)} & fabric.links.keys())
        case "srlg":
            return frozenset(link.id for link in fabric.links.values() if name in link.srlgs)
        case "node":
            return frozenset(link.id for link in fabric.links_of.get(NodeId(name), ()))
        case "rack":
            racked = [node.id for node in fabric.switches if node.labels.get(RACK) == name]
            return frozenset(link.id for node in racked for link in fabric.links_of[node])


def _named(fabric: Fabric, kind: DrainTarget, text: str) -> set[str]:
    """Return the identities of the things of *kind* that *text* may mean."""
    match kind:
        case "node":
            if text in fabric.nodes:
                return {text}
            return {node.id for node in fabric.nodes.values() if node.name == text}
        case "link":
            if text in fabric.links:
                return {text}
            return {link.id for link in fabric.links.values() if text in _spellings(fabric, link)}
        case _:
            return {text} & set(_all_named(fabric, kind))


def _all_named(fabric: Fabric, kind: DrainTarget) -> list[str]:
    match kind:
        case "node":
            return [*fabric.nodes]
        case "link":
            return [*fabric.links]
        case "srlg":
            return sorted({srlg for link in fabric.links.values() for srlg in link.srlgs})
        case "rack":
            return sorted({node.labels[RACK] for node in fabric.switches if RACK in node.labels})


def _spellings(fabric: Fabric, link: Link) -> set[str]:
    found: set[str] = set()
    for one, other in (link.ends, link.ends[::-1]):
        near, far = fabric.nodes[one.node], fabric.nodes[other.node]
        found |= {one.id, f"{near.label}:{one.port}", f"{near.id} - {far.id}", f"{near.label} - {far.label}"}
    return found


def _told(share: Share) -> DrainShare:
    return DrainShare(
        of="paths" if share.of == "paths" else "capacity",
        source=share.source,
        destination=share.destination,
        ppm=share.ppm,
    )


def _percent(ppm: int) -> str:
    return f"{ppm * 100 / PPM:.4g} %"
