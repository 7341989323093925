"""What would the same faults have cost with another system? Forwarding that follows that system's delays, watched by the same meter.

Rule 1: faults, flows, walker and judge are those of the run itself; only who writes the tables, and when, is another.
Rule 2: no messages, no processes: what is wrong with the fabric is known after a delay, and all nodes change at one instant, which is
kinder to a distributed system than the truth.
Rule 3: what hits controller, broker or agents hits nothing here: these systems have none of them.
"""

import heapq
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from erfs.fabric import LinkEnd
from erfs.faults import PHYSICAL, Fault, FaultKind
from erfs.ids import EVERYTHING, DestinationId, LinkId, NodeId
from erfs.messages import Member
from erfs.units import PPM
from erfs_scenario.behaviours import Behaviour, behaviours
from erfs_scenario.dataplane import DataPlane
from erfs_scenario.figures import availability_figures, natural_figures
from erfs_scenario.injection import PhysicalFaults
from erfs_scenario.judging import costs_json, jobs_of, lost_with_path_ns, set_report
from erfs_scenario.measurement import Meter, Record
from erfs_scenario.plan import Plan
from erfs_scenario.timeline import attribute, read_timeline

MEASURED: Final = "baseline_measured"
"""The journal's event with one behaviour's figures."""
_JUDGED: Final = frozenset(
    {"measurement_started", "measurement_finished", "flow_changed", "flows_affected", "fault_effective", "fault_ended"}
)


def run_baselines(plan: Plan, record: Record) -> None:
    """
    Replay the faults of *plan* against each behaviour it names, and record its figures: availability by demand set, and the
    demand-time that each fault cost.

    Cost: each behaviour O(changes of links * nodes they concern), independent of the time between them.
    """
    switches = sum(node.is_switch for node in plan.fabric.nodes.values())
    known = behaviours(switches)
    header: dict[str, Any] = {"at_ns": 0, "event": "run_started", **plan.header("sim")}
    for name in plan.baselines:
        behaviour = known[name]
        records = [header]

        def keep(at_ns: int, event: str, fields: dict[str, object], kept: list[dict[str, Any]] = records) -> None:
            if event in _JUDGED:
                kept.append({"at_ns": at_ns, "event": event, **fields})

        replay(plan, behaviour, keep)
        timeline = read_timeline(records)
        outages = attribute(timeline)
        faults = [fault for fault in timeline.faults if fault.effective_at_ns is not None]
        sets = [set_report(timeline, part) for part in timeline.header["demands"]]
        fields: dict[str, object] = {
            "name": name,
            "is_validated": behaviour.is_validated,
            "source": behaviour.source,
            "demand_sets": [part.model_dump() for part in sets],
            "figures": [
                figure.model_dump()
                for figure in (
                    *availability_figures(timeline, outages, sets),
                    *natural_figures(timeline, outages, sets),
                )
            ],
            "jobs": {job: part.model_dump() for job, part in jobs_of(timeline).items()},
            "lost_demand_ns": {fault.id: lost_with_path_ns(timeline, outages, fault) for fault in faults},
        } | costs_json(timeline, outages)
        record(plan.duration_ns, MEASURED, fields)


def replay(plan: Plan, behaviour: Behaviour, record: Record) -> None:
    """Run the faults of *plan* against *behaviour*; *record* gets what the meter sees."""
    _Replay(plan, behaviour, record).run()


class _Replay:
    def __init__(self, plan: Plan, behaviour: Behaviour, record: Record) -> None:
        self._plan = plan
        self._behaviour = behaviour
        self._record = record
        self._plane = DataPlane(plan.fabric)
        self._physical = PhysicalFaults(plan.fabric, self._plane)
        self._meter = Meter(plan, self._plane, record, has_returns=False)
        self._routes = _Routes(plan, self._plane)
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._now_ns = 0
        self._version: dict[LinkId, int] = {}
        self._state: dict[LinkId, str] = {}

    def run(self) -> None:
        plan = self._plan
        self._at(0, self._routes.write)
        self._at(plan.measure_from_ns, _nothing)
        for fault in plan.faults:
            if fault.kind not in PHYSICAL:
                continue
            self._at(fault.at_ns, partial(self._begin, fault))
            if fault.kind is FaultKind.LINK_FLAP:
                for at_ns in range(fault.at_ns, fault.end_at_ns, fault.period_ns // 2)[1:]:
                    self._at(at_ns, partial(self._change, fault, self._physical.flap))
            self._at(fault.end_at_ns, partial(self._end, fault))
        heap = self._heap
        while heap and heap[0][0] <= plan.duration_ns:
            self._now_ns = heap[0][0]
            while heap and heap[0][0] == self._now_ns:
                heapq.heappop(heap)[2]()
            self._routes.write()
            self._meter.settle(self._now_ns)
        self._meter.finish(plan.duration_ns)

    def _at(self, at_ns: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (at_ns, self._count, action))
        self._count += 1

    def _begin(self, fault: Fault) -> None:
        self._meter.before_fault(fault, self._now_ns)
        self._change(fault, self._physical.inject)
        self._record(self._now_ns, "fault_effective", {"fault": fault.id})

    def _end(self, fault: Fault) -> None:
        self._change(fault, self._physical.heal)
        self._record(self._now_ns, "fault_ended", {"fault": fault.id})

    def _change(self, fault: Fault, act: Callable[[Fault], object]) -> None:
        """Let the truth change, and ask when it will be known."""
        act(fault)
        behaviour = self._behaviour
        for link in self._plan.links_hit(fault):
            state = self._state_of(link)
            if state == self._state.get(link, "good"):
                continue
            self._state[link] = state
            version = self._version[link] = self._version.get(link, 0) + 1
            if state == "good":
                self._later(link, version, self._return_ns(link), partial(self._believe, link, is_up=True))
                continue
            if state == "dark":
                self._later(link, version, behaviour.near_end_ns, partial(self._routes.prune, link))
            known_ns = {
                "dark": behaviour.node_ns if fault.kind is FaultKind.NODE_DOWN else behaviour.carrier_ns,
                "silent": behaviour.silent_ns,
            }.get(state)
            self._later(link, version, known_ns, partial(self._believe, link, is_up=False))

    def _later(self, link: LinkId, version: int, delay_ns: int | None, action: Callable[[], None]) -> None:
        """Do *action* in *delay_ns*, unless the state of *link* has changed again by then."""
        if delay_ns is not None:
            self._at(self._now_ns + delay_ns, lambda: action() if self._version[link] == version else None)

    def _return_ns(self, link: LinkId) -> int:
        """Return the wait before *link* is used again: none for a host's link, nor for a switch that has just started and has no other."""
        plane = self._plane
        nodes = [plane.node_index[end.node] for end in self._plan.fabric.links[link].ends]
        is_settled = all(plane.is_switch[node] and plane.tables[node] for node in nodes)
        return self._behaviour.return_ns if is_settled else 0

    def _believe(self, link: LinkId, *, is_up: bool) -> None:
        if is_up:
            for end in self._plan.fabric.links[link].ends:
                self._routes.forget_if_empty(end.node)
        self._routes.believe(link, is_up=is_up)

    def _state_of(self, link: LinkId) -> str:
        """Return whether *link* has no carrier, carries nothing one way, loses much, or is good as far as anybody notices."""
        ends = self._plan.fabric.links[link].ends
        if not all(self._plane.is_port_up(*end) for end in ends):
            return "dark"
        passed = min(self._plane.share_from(end) for end in ends)
        noticed = self._behaviour.loss_noticed_min_ppm
        return "silent" if not passed or (noticed is not None and (1 - passed) * PPM >= noticed) else "good"


class _Routes:
    """Shortest paths over the links believed up, all equal ones used, each cable alike; written where they differ from what is written."""

    def __init__(self, plan: Plan, plane: DataPlane) -> None:
        fabric = plan.fabric
        self._fabric = fabric
        self._plane = plane
        self._down: set[LinkId] = set()
        self._pruned: set[LinkEnd] = set()
        self._switches = [node.id for node in fabric.nodes.values() if node.is_switch]
        self._neighbours: dict[NodeId, dict[NodeId, list[LinkEnd]]] = {node: {} for node in fabric.nodes}
        for link in fabric.links.values():
            if not link.is_self_loop:
                for near, far in ((link.a, link.b), (link.b, link.a)):
                    self._neighbours[near.node].setdefault(far.node, []).append(near)
        self._columns: dict[DestinationId, tuple[NodeId, ...]] = {
            name: fabric.attachments[members[0]] for name, members in fabric.class_members.items()
        }
        self._next: dict[DestinationId, dict[NodeId, tuple[NodeId, ...]]] = {}
        self._written: dict[NodeId, dict[DestinationId, tuple[Member, ...]]] = {node: {} for node in fabric.nodes}
        self._members: dict[NodeId, dict[tuple[NodeId, ...], tuple[Member, ...]]] = {}
        self._stale_nodes: set[NodeId] = set(fabric.nodes)
        self._stale_columns: set[DestinationId] = set(self._columns)

    def believe(self, link: LinkId, *, is_up: bool) -> None:
        """Take over what is now known of *link*."""
        ends = self._fabric.links[link].ends
        pair = ends[0].node, ends[1].node
        was_joined = self._is_joined(*pair)
        if is_up:
            self._down.discard(link)
            self._pruned.difference_update(ends)
        else:
            self._down.add(link)
        self._touch(pair)
        if self._is_joined(*pair) == was_joined:
            return
        endpoint = next((node for node in pair if self._fabric.nodes[node].is_endpoint), None)
        if endpoint is None:
            self._stale_columns.update(self._columns)
        elif len(self._fabric.attachments[endpoint]) > 1:
            self._set_apart(endpoint)

    def prune(self, link: LinkId) -> None:
        """Let both ends of *link* do without it where they can."""
        ends = self._fabric.links[link].ends
        self._pruned.update(ends)
        self._touch([end.node for end in ends])

    def forget_if_empty(self, node: NodeId) -> None:
        """Write *node*'s whole table again if it lost it with its power."""
        if self._written[node] and not self._plane.tables[self._plane.node_index[node]]:
            self._written[node] = {}
            self._touch([node])

    def write(self) -> None:
        """Bring all tables up to date."""
        changed: dict[NodeId, set[DestinationId]] = {}
        for column in sorted(self._stale_columns):
            before, after = self._next.get(column, {}), self._search(self._columns.get(column, ()))
            self._next[column] = after
            for node in before.keys() | after.keys():
                if before.get(node) != after.get(node):
                    changed.setdefault(node, set()).add(column)
        self._stale_columns = set()
        stale, self._stale_nodes = self._stale_nodes, set()
        for node in sorted(stale | changed.keys()):
            if node in stale:
                wanted = self._table(node)
            else:
                wanted = {
                    one: self._group(node, self._next[one][node]) for one in changed[node] if node in self._next[one]
                }
            written = self._written[node]
            gone = (written.keys() - wanted.keys()) & (written.keys() if node in stale else changed[node])
            routes = {one: wanted[one] for one in sorted(wanted) if written.get(one) is not wanted[one]}
            self._plane.write_routes(node, routes, sorted(gone))
            written |= routes
            for one in gone:
                del written[one]

    def _touch(self, nodes: Iterable[NodeId]) -> None:
        for node in nodes:
            self._stale_nodes.add(node)
            self._members.pop(node, None)

    def _is_joined(self, one: NodeId, other: NodeId) -> bool:
        return any(self._fabric.link_at[end].id not in self._down for end in self._neighbours[one].get(other, ()))

    def _set_apart(self, endpoint: NodeId) -> None:
        """Give *endpoint* routes of its own while it lacks one of several attachments."""
        destination = self._fabric.destination_of[endpoint]
        every = self._fabric.attachments[endpoint]
        left = tuple(switch for switch in every if self._is_joined(endpoint, switch))
        if left in ((), every):
            self._columns.pop(destination, None)
        else:
            self._columns[destination] = left
        self._stale_columns.add(destination)

    def _search(self, attachments: Iterable[NodeId]) -> dict[NodeId, tuple[NodeId, ...]]:
        """Return the next switches of every switch towards *attachments*; these themselves are left out."""
        found: dict[NodeId, tuple[NodeId, ...]] = {}
        ring = sorted(attachments)
        seen = set(ring)
        while ring:
            nearer: dict[NodeId, list[NodeId]] = {}
            for node in ring:
                for far in self._neighbours[node]:
                    if far not in seen and self._fabric.nodes[far].is_switch and self._is_joined(node, far):
                        nearer.setdefault(far, []).append(node)
            found |= {node: tuple(nexts) for node, nexts in nearer.items()}
            ring = sorted(nearer)
            seen.update(ring)
        return found

    def _table(self, node: NodeId) -> dict[DestinationId, tuple[Member, ...]]:
        if self._fabric.nodes[node].is_endpoint:
            group = self._group(node, self._fabric.attachments.get(node, ()))
            return {EVERYTHING: group} if group else {}
        table = {one: self._group(node, nexts[node]) for one, nexts in self._next.items() if node in nexts}
        for far in self._neighbours[node]:
            destination = self._fabric.destination_of.get(far)
            if destination is not None and destination not in table and (group := self._group(node, (far,))):
                table[destination] = group
        return table

    def _group(self, node: NodeId, nexts: tuple[NodeId, ...]) -> tuple[Member, ...]:
        groups = self._members.setdefault(node, {})
        found = groups.get(nexts)
        if found is None:
            ends = [end for far in nexts for end in self._neighbours[node][far]]
            ends = [end for end in ends if self._fabric.link_at[end].id not in self._down]
            left = [end for end in ends if end not in self._pruned] or ends
            found = groups[nexts] = tuple(Member(port=end.port) for end in left)
        return found


def _nothing() -> None:
    pass
