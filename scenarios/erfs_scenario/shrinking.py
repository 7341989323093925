"""What is the least that still fails? A failing plan made smaller: fewer faults, fewer targets, a smaller fabric, less time.

Rule 1: a smaller plan counts only if it fails as the first did (`Finding.is_like`): another failure is another story.
Rule 2: nothing here draws anything: the same plan shrinks to the same plan, whoever does it.
Rule 3: whatever ends it early, what is smallest so far is a plan that has been seen to fail.

Source: A. Zeller, R. Hildebrandt, Simplifying and Isolating Failure-Inducing Input, IEEE TSE 28(2), 2002 (ddmin).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from erfs.errors import ErfsError
from erfs.fabric import Fabric
from erfs.faults import LINK_KINDS, Fault
from erfs.ids import LinkId, NodeId
from erfs.units import MS, SECOND
from erfs_scenario.campaign import Finding, Run, examine, simulated
from erfs_scenario.demands import DemandSet
from erfs_scenario.plan import Plan
from erfs_scenario.schema import TAIL_NS

Part = TypeVar("Part")
Told = Callable[[Plan, int], None]
"""Called with the smallest plan so far and the runs it took, after each run."""

_LASTS_NS: Final = (100 * MS, 500 * MS, 1 * SECOND, 5 * SECOND)
"""How long faults are tried to last, shortest first: round figures are easier to think about than the shortest possible."""
_TAILS_NS: Final = (1 * SECOND, TAIL_NS)


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest plan found."""

    plan: Plan
    finding: Finding
    runs: int
    is_minimal: bool
    """Whether no single fault, target, node or link can be left out; False if it was ended early."""


class Shrinker:
    """
    One plan being made smaller.

    Args:
        plan: The plan that fails.
        run: What runs a plan.
        runs_max: End after so many runs.
        on_run: Told of each run.

    Attributes:
        plan: The smallest so far.
        finding: How the first plan fails.
    """

    def __init__(
        self, plan: Plan, *, run: Run = simulated, runs_max: int = 2000, on_run: Told = lambda _plan, _runs: None
    ) -> None:
        # How it was drawn is not true of a part of it, and what others would have done is not asked.
        self.plan = replace(plan, passed_over=(), rates=(), missing=(), baselines=())
        self.runs = 1
        self._run = run
        self._runs_max = runs_max
        self._on_run = on_run
        self._seen: dict[tuple[object, ...], bool] = {}
        self.finding = examine(self.plan, run)

    def shrink(self) -> Shrunk:
        """
        Return the smallest plan there is by leaving out; the plan itself if it does not fail.

        Cost: O(parts²) runs at worst, a small multiple of log(parts) where few parts matter.
        """
        if self.finding.outcome != "failed":
            return Shrunk(self.plan, self.finding, self.runs, is_minimal=False)
        try:
            before = None
            while before is not self.plan:  # what one step leaves out may let another leave out more
                before = self.plan
                self._fewer_faults()
                self._less_time()
                self._fewer_targets()
                self._fewer_nodes()
                self._fewer_links()
        except _EnoughRunsError:
            return Shrunk(self.plan, self.finding, self.runs, is_minimal=False)
        return Shrunk(self.plan, examine(self.plan, self._run), self.runs, is_minimal=True)

    # --- steps -----------------------------------------------------------------------------------------------------------
    def _fewer_faults(self) -> None:
        self._without(self.plan.faults, lambda faults: replace(self.plan, faults=tuple(faults)))

    def _fewer_targets(self) -> None:
        for place, fault in enumerate(self.plan.faults):
            targets: tuple[LinkId | NodeId, ...] = fault.links or fault.nodes
            if len(targets) > 1:
                self._without(
                    range(len(targets)),
                    lambda kept, place=place, fault=fault: self._with_fault(place, _narrowed(fault, kept)),  # type: ignore[misc]
                )

    def _less_time(self) -> None:
        first_ns = min(fault.at_ns for fault in self.plan.faults)
        for place in range(len(self.plan.faults)):
            fault = self.plan.faults[place]
            if fault.at_ns > first_ns:
                self._is_better(self._with_fault(place, _moved(fault, first_ns, fault.end_at_ns - fault.at_ns)))
            fault = self.plan.faults[place]
            for lasts_ns in _LASTS_NS:
                is_shorter = fault.period_ns < lasts_ns < fault.end_at_ns - fault.at_ns
                if is_shorter and self._is_better(self._with_fault(place, _moved(fault, fault.at_ns, lasts_ns))):
                    break
        last_ns = max(fault.end_at_ns for fault in self.plan.faults)
        for tail_ns in _TAILS_NS:
            is_shorter = last_ns + tail_ns < self.plan.duration_ns
            if is_shorter and self._is_better(replace(self.plan, duration_ns=last_ns + tail_ns)):
                break

    def _fewer_nodes(self) -> None:
        needed = {node for fault in self.plan.faults for node in fault.nodes}
        links = self.plan.fabric.links
        needed |= {end.node for fault in self.plan.faults for link in fault.links for end in links[link].ends}
        spare = tuple(node for node in self.plan.fabric.nodes if node not in needed)
        self._without(spare, lambda kept: _on_nodes(self.plan, needed | set(kept)))

    def _fewer_links(self) -> None:
        needed = {link for fault in self.plan.faults for link in fault.links}
        spare = tuple(link for link in self.plan.fabric.links if link not in needed)
        self._without(spare, lambda kept: _on_links(self.plan, needed | set(kept)))

    def _with_fault(self, place: int, fault: Fault) -> Plan:
        faults = [*self.plan.faults]
        faults[place] = fault
        return replace(self.plan, faults=tuple(faults))

    # --- delta debugging ---------------------------------------------------------------------------------------------------
    def _without(self, parts: Sequence[Part], make: Callable[[Sequence[Part]], Plan | None]) -> None:
        """
        Leave out of *parts* whatever can be, first in halves, then in ever smaller pieces.

        Args:
            parts: What the smallest plan so far has of something.
            make: Returns that plan with only so many of them; None if there is no such plan.
        """
        kept = list(parts)
        size = max(1, len(kept))
        while kept:
            for piece in _pieces(kept, size):
                rest = [part for part in kept if part not in piece]
                smaller = make(rest)
                if smaller is not None and self._is_better(smaller):
                    kept = rest
                    break
            else:
                if size == 1:
                    return
                size = (size + 1) // 2
            size = min(size, max(1, len(kept)))

    def _is_better(self, plan: Plan) -> bool:
        """Return whether *plan* fails as the first did; then it is the smallest so far."""
        key = plan.faults, plan.duration_ns, tuple(plan.fabric.nodes), tuple(plan.fabric.links)
        if key not in self._seen:
            if self.runs >= self._runs_max:
                raise _EnoughRunsError
            self.runs += 1
            self._seen[key] = self._fails(plan)
            if self._seen[key]:
                self.plan = plan
            self._on_run(self.plan, self.runs)
        elif self._seen[key]:
            self.plan = plan
        return self._seen[key]

    def _fails(self, plan: Plan) -> bool:
        if not plan.faults or not any(demands.count for demands in plan.demands):
            return False
        try:
            return examine(plan, self._run).is_like(self.finding)
        except ErfsError:
            return False  # what is left is no fabric to run on


class _EnoughRunsError(Exception):
    pass


def _pieces(parts: Sequence[Part], size: int) -> Iterator[Sequence[Part]]:
    return (parts[start : start + size] for start in range(0, len(parts), size))


def _moved(fault: Fault, at_ns: int, lasts_ns: int) -> Fault:
    return replace(fault, at_ns=at_ns, end_at_ns=at_ns + lasts_ns)


def _narrowed(fault: Fault, kept: Sequence[int]) -> Fault:
    """Return *fault* with only these of its targets, by place."""
    if fault.kind in LINK_KINDS:
        ends = tuple(fault.ends[place] for place in kept) if fault.ends else ()
        return replace(fault, links=tuple(fault.links[place] for place in kept), ends=ends)
    return replace(fault, nodes=tuple(fault.nodes[place] for place in kept))


def _on_nodes(plan: Plan, nodes: set[NodeId]) -> Plan:
    """Return *plan* on the part of its fabric that has only these nodes and the links between them."""
    fabric = plan.fabric
    links = [link for link in fabric.links.values() if all(end.node in nodes for end in link.ends)]
    left = Fabric([node for node in fabric.nodes.values() if node.id in nodes], links, name=fabric.name)
    return replace(plan, fabric=left, demands=_among(plan.demands, left))


def _on_links(plan: Plan, links: set[LinkId]) -> Plan:
    """Return *plan* on its fabric with only these links."""
    fabric = plan.fabric
    kept = [link for link in fabric.links.values() if link.id in links]
    left = Fabric(fabric.nodes.values(), kept, name=fabric.name)
    return replace(plan, fabric=left, demands=_among(plan.demands, left))


def _among(sets: Sequence[DemandSet], fabric: Fabric) -> tuple[DemandSet, ...]:
    """Return what is left of the demands: those between endpoints that are still attached."""
    there = {node.id for node in fabric.endpoints if fabric.attachments.get(node.id)}
    found = []
    for demands in sets:
        left = replace(
            demands,
            endpoints=tuple(node for node in demands.endpoints if node in there),
            pairs=tuple(pair for pair in demands.pairs if there.issuperset(pair)),
        )
        if left.count:
            found.append(left)
    return tuple(found)
