"""Which flows are served, exactly when, and which a fault may harm: written to the journal as it happens, judged later.

A flow is what one source unit sends to one target unit. Units are whole destination classes wherever their endpoints cannot
differ, and single endpoints where they can: those a fault touches, and as sources those with several attachments, whose own
tables change at instants of their own.

Rule 1: nothing here knows what controller or agents believe: only the data plane's truth and tables.
Rule 2: every instant is the caller's; a share holds from one `settle` to the next.
"""

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Final

from erfs.errors import Bug
from erfs.faults import WHOLE_NODES, Fault
from erfs.ids import EVERYTHING, DestinationId, NodeId, class_of, is_endpoint
from erfs.units import PPM
from erfs_scenario.dataplane import DataPlane, Share
from erfs_scenario.pathways import path_beside, path_over
from erfs_scenario.permitted import Permission
from erfs_scenario.plan import Plan
from erfs_scenario.timeline import SERVED
from erfs_scenario.walker import Walk, ppm

# A fault of a spine is crossed by thousands of flows: the paths of so many are kept until it ends.
PATHS_KEPT_MAX: Final = 128
# A report shows the paths of the worst ten flows: no later fault need tell of those that are not among them.
PATHS_TOLD_MAX: Final = 10

Record = Callable[[int, str, dict[str, object]], None]
"""(at_ns, event, fields): writes one journal line."""


class _Source:
    """Endpoints that send alike."""

    __slots__ = ("attachments", "id", "members", "own", "representative")

    def __init__(self, name: str, members: tuple[int, ...], attachments: tuple[int, ...]) -> None:
        self.id = name
        self.members = members
        self.attachments = attachments
        self.representative = members[0]
        self.own: dict[int, Share] = dict.fromkeys(members, 0)
        """Of a unit of several: the share of each member's traffic that gets onto the working access links."""

    @property
    def is_single(self) -> bool:
        return len(self.members) == 1


class _Target:
    """Endpoints that are reached alike; several walks only once somebody wrote a route for a single member."""

    __slots__ = ("attachments", "destinations", "id", "of_class", "walks")

    def __init__(
        self,
        name: str,
        of_class: DestinationId,
        destinations: dict[DestinationId, int],
        attachments: tuple[int, ...],
        walk: Walk,
    ) -> None:
        self.id = name
        self.of_class = of_class
        self.destinations = destinations
        """The members: endpoint index by own destination."""
        self.attachments = attachments
        self.walks = [walk]

    @property
    def is_single(self) -> bool:
        return len(self.destinations) == 1


class _Flow:
    """What one source unit sends to one target unit; *weights* by demand set."""

    __slots__ = ("cause", "index", "restored_at_ns", "served_ppm", "source", "target", "weights")

    def __init__(self, index: int, source: _Source, target: _Target) -> None:
        self.index = index
        self.source = source
        self.target = target
        self.weights: dict[str, int] = {}
        self.served_ppm = PPM
        self.cause = SERVED
        self.restored_at_ns = -1
        """When it was last served in full again."""


class Meter:
    """
    Watches a data plane on behalf of a plan's demands.

    The backend calls `settle` after the last change of an instant, and once when ``plan.measure_from_ns`` has come: the first
    call at or after it starts the measurement. Right before it injects a fault it calls `before_fault`, right before it ends
    one `before_return`, and `finish` when the run is over.

    Args:
        plan: Whose demands and faults are measured.
        plane: The data plane, as built.
        record: Writes one journal line.
        has_returns: Whether `before_return` will be called: only that tells of capacities and ways, which are kept from the fault on.
    """

    def __init__(self, plan: Plan, plane: DataPlane, record: Record, *, has_returns: bool = True) -> None:
        self._plan = plan
        self._plane = plane
        self._record = record
        self._has_returns = has_returns
        self._permission = Permission(plane)
        self._is_started = False
        self._loops: dict[str, tuple[tuple[NodeId, ...], ...]] = {}
        self._capacity_before: dict[str, dict[int, int]] = {}
        self._affected: dict[str, list[_Flow]] = {}
        self._paths_before: dict[str, tuple[int, list[tuple[_Flow, Walk, tuple[int, ...]]]]] = {}
        self._longest_told: list[int] = []
        self._make_units()
        self._make_flows()

    # --- units and flows ------------------------------------------------------------------------------------------------
    def _make_units(self) -> None:
        fabric, index = self._plan.fabric, self._plane.node_index
        touched = touched_endpoints(self._plan)
        demanded = {endpoint for demands in self._plan.demands for endpoint in demands.endpoints}
        for demands in self._plan.demands:
            demanded.update(endpoint for pair in demands.pairs for endpoint in pair)
        self._source_of: dict[NodeId, str] = {}
        self._target_of: dict[NodeId, str] = {}
        self._sources: dict[str, _Source] = {}
        self._targets: dict[str, _Target] = {}
        leaves = {index[switch] for endpoint in demanded for switch in fabric.attachments[endpoint]}
        for name, every_member in fabric.class_members.items():
            members = [endpoint for endpoint in every_member if endpoint in demanded]
            if not members:
                continue
            switches = fabric.attachments[members[0]]
            attachments = tuple(index[switch] for switch in switches)
            alike = [endpoint for endpoint in members if endpoint not in touched]
            apart = [endpoint for endpoint in members if endpoint in touched]
            for endpoint in members:
                is_alone = endpoint in touched or len(switches) > 1
                self._source_of[endpoint] = fabric.destination_of[endpoint] if is_alone else name
            if len(switches) == 1 and alike:
                self._sources[name] = _Source(name, tuple(index[endpoint] for endpoint in alike), attachments)
            for endpoint in members if len(switches) > 1 else apart:
                own = fabric.destination_of[endpoint]
                self._sources[own] = _Source(own, (index[endpoint],), attachments)
            for unit, unit_members in [(name, alike), *((fabric.destination_of[one], [one]) for one in apart)]:
                if unit_members:
                    destinations = {fabric.destination_of[endpoint]: index[endpoint] for endpoint in unit_members}
                    pairs = [(number, own) for own, number in destinations.items()]
                    walk = Walk(self._plane, name, pairs, attachments, leaves)
                    self._targets[unit] = _Target(unit, name, destinations, attachments, walk)
                    self._target_of |= dict.fromkeys(unit_members, unit)
        self._targets_of_class: dict[DestinationId, list[_Target]] = {}
        for target in self._targets.values():
            self._targets_of_class.setdefault(target.of_class, []).append(target)
        self._target_by_destination = {
            destination: target for target in self._targets.values() for destination in target.destinations
        }
        self._source_by_node = {node: source for source in self._sources.values() for node in source.members}

    def _make_flows(self) -> None:
        flows: dict[tuple[str, str], _Flow] = {}
        for demands in self._plan.demands:
            for units, weight in demands.weights(self._source_of, self._target_of).items():
                flow = flows.get(units)
                if flow is None:
                    flow = flows[units] = _Flow(len(flows), self._sources[units[0]], self._targets[units[1]])
                flow.weights[demands.name] = weight
        self._flows = list(flows.values())
        self._flows_at: dict[tuple[str, int], list[_Flow]] = {}
        self._flows_from: dict[str, list[_Flow]] = {}
        for flow in self._flows:
            for node in (*flow.source.attachments, *(flow.source.members if flow.source.is_single else ())):
                self._flows_at.setdefault((flow.target.id, node), []).append(flow)
            self._flows_from.setdefault(flow.source.id, []).append(flow)
        self._lost: dict[int, _Flow] = {}

    # --- the backend's calls --------------------------------------------------------------------------------------------
    def settle(self, now_ns: int) -> None:
        """Re-walk what changed since the last call and record the flows whose share changed."""
        if not self._is_started:
            if now_ns >= self._plan.measure_from_ns:
                self._start(now_ns)
            return
        dirty = self._plane.take_dirty()
        if not dirty:
            return
        touched: dict[int, _Flow] = {}
        walks: dict[str, set[int]] = {}
        for destination, nodes in dirty.routes.items():
            for node in nodes:
                if self._plane.is_switch[node]:
                    self._collect_walks(destination, node, walks)
                else:
                    self._collect_flows(destination, node, touched)
        for name in sorted(walks):
            target = self._targets[name]
            for node in self._update(target, walks[name]):
                for flow in self._flows_at.get((name, node), ()):
                    touched[flow.index] = flow
            self._note_loops(now_ns, target)
        if dirty.is_physical:
            touched |= self._lost  # the share may stand, but what is possible has changed
        for number in sorted(touched):
            self._measure(now_ns, touched[number])

    def before_fault(self, fault: Fault, now_ns: int) -> None:
        """Record which flows *fault* may harm, from the paths as they are before anything happens."""
        self.settle(now_ns)
        links = self._target_links(fault)
        affected = []
        rows: list[list[object]] = []
        paths: list[tuple[_Flow, Walk, tuple[int, ...]]] = []
        if links and self._is_started:
            for target in self._targets.values():
                crossing = _Crossing(self._plane, target, links)
                upstream = {
                    flow.index: flow for node in crossing.upstream for flow in self._flows_at.get((target.id, node), ())
                }
                for _, flow in sorted(upstream.items()):
                    share, is_far = crossing.of(flow.source)
                    if share:
                        affected.append(flow)
                        rows.append(
                            [flow.source.id, target.id, dict(flow.weights), ppm(share), "far" if is_far else "near"]
                        )
                        if self._has_returns and len(paths) < PATHS_KEPT_MAX:
                            paths.append((flow, *crossing.path_of(flow.source)))
        if self._has_returns:
            self._paths_before[fault.id] = now_ns, paths
            self._affected[fault.id] = affected
            self._capacity_before[fault.id] = self._capacities(affected)
        self._record(now_ns, "flows_affected", {"fault": fault.id, "flows": rows})

    def before_return(self, fault: Fault, now_ns: int) -> None:
        """Record what capacity the flows that *fault* affected have left, right before it ends."""
        self.settle(now_ns)
        affected = self._affected.pop(fault.id, [])
        before = self._capacity_before.pop(fault.id, {})
        after = self._capacities(affected)
        rows = [
            [flow.source.id, flow.target.id, min(PPM, after[flow.index] * PPM // before[flow.index])]
            for flow in affected
            if before[flow.index]
        ]
        self._record(now_ns, "capacity_measured", {"fault": fault.id, "flows": rows})
        self._note_paths(fault, now_ns)

    def finish(self, now_ns: int) -> None:
        """Settle for the last time and record what is still open."""
        self.settle(now_ns)
        for fault in self._plan.faults:
            if fault.id in self._affected:
                self.before_return(fault, now_ns)
        if self._is_started:
            self._record(now_ns, "measurement_finished", {"flows_below_full": len(self._lost)})

    # --- inside ---------------------------------------------------------------------------------------------------------
    def _start(self, now_ns: int) -> None:
        self._is_started = True
        self._plane.take_dirty()
        for source in self._sources.values():
            for node in source.members:
                self._take_own(source, node)
        weights = {demands.name: demands.count for demands in self._plan.demands}
        self._record(now_ns, "measurement_started", {"flows": len(self._flows), "weights": weights})
        exceptions = [
            (destination, node)
            for node, table in enumerate(self._plane.tables)
            if self._plane.is_switch[node]
            for destination in table
            if is_endpoint(destination)
        ]
        for destination, node in exceptions:
            self._collect_walks(destination, node, {})
        for target in self._targets.values():
            for walk in target.walks:
                walk.walk()
            self._note_loops(now_ns, target)
        for flow in self._flows:
            self._measure(now_ns, flow)

    def _collect_walks(self, destination: DestinationId, node: int, walks: dict[str, set[int]]) -> None:
        """Note in *walks* which targets have to be walked anew because of a switch's route."""
        if destination == EVERYTHING:
            for target in self._targets.values():
                walks.setdefault(target.id, set()).add(node)
        elif not is_endpoint(destination):
            for target in self._targets_of_class.get(destination, ()):
                walks.setdefault(target.id, set()).add(node)
        elif (found := self._target_by_destination.get(destination)) is not None:
            if not found.is_single:
                self._set_apart_if_special(found, destination, node)
            walks.setdefault(found.id, set()).add(node)

    def _set_apart_if_special(self, target: _Target, destination: DestinationId, node: int) -> None:
        """Give a member of *target* a walk of its own once *node* has a route for it that is no plain delivery."""
        hops = self._plane.tables[node].get(destination)
        endpoint = target.destinations[destination]
        if hops is None or (node in target.attachments and all(far == endpoint for _, far, _ in hops.branches)):
            return
        shared = target.walks[0]
        if len(shared.members) == 1 or (endpoint, destination) not in shared.members:
            return
        rest = [member for member in shared.members if member != (endpoint, destination)]
        for walk in (
            Walk(self._plane, target.of_class, rest, target.attachments, shared.sources),
            Walk(self._plane, target.of_class, [(endpoint, destination)], target.attachments, shared.sources),
        ):
            walk.walk()
            target.walks.append(walk)
        del target.walks[0]
        target.walks.sort(key=lambda walk: -len(walk.members))

    def _update(self, target: _Target, nodes: set[int]) -> Iterable[int]:
        if len(target.walks) == 1:
            return target.walks[0].update(nodes)
        # With members apart the mean may have moved anywhere; this is rare and small.
        for walk in target.walks:
            walk.update(nodes)
        return [node for name, node in self._flows_at if name == target.id]

    def _collect_flows(self, destination: DestinationId, node: int, touched: dict[int, _Flow]) -> None:
        """Note in *touched* the flows that an endpoint's own route concerns."""
        source = self._source_by_node.get(node)
        if source is None:
            return
        self._take_own(source, node)
        for flow in self._flows_from.get(source.id, ()):
            if not source.is_single or destination == EVERYTHING or flow.target.of_class == class_of(destination):
                touched[flow.index] = flow

    def _take_own(self, source: _Source, node: int) -> None:
        if source.is_single:
            return
        table = self._plane.tables[node]
        if table.keys() - {EVERYTHING}:
            raise Bug(f'endpoint "{self._plane.nodes[node]}" has one attachment and yet routes other than "*"')
        hops = table.get(EVERYTHING)
        source.own[node] = Fraction(sum(hops.live.values()), hops.total) if hops is not None and hops.total else 0

    def _note_loops(self, now_ns: int, target: _Target) -> None:
        loops = tuple(sorted({loop for walk in target.walks for loop in walk.loops}))
        if loops != self._loops.get(target.id, ()):
            self._loops[target.id] = loops
            fields: dict[str, object] = {"destination": target.id, "loops": [list(loop) for loop in loops]}
            self._record(now_ns, "loops_changed", fields)

    def _measure(self, now_ns: int, flow: _Flow) -> None:
        served = ppm(self._share(flow))
        cause = SERVED if served == PPM else self._cause(flow)
        if (served, cause) == (flow.served_ppm, flow.cause):
            return
        flow.served_ppm, flow.cause = served, cause
        if cause == SERVED:
            flow.restored_at_ns = now_ns
            self._lost.pop(flow.index, None)
        else:
            self._lost[flow.index] = flow
        fields: dict[str, object] = {
            "source": flow.source.id,
            "destination": flow.target.id,
            "served_ppm": served,
            "cause": cause,
            "weights": dict(flow.weights),
        }
        self._record(now_ns, "flow_changed", fields)

    def _share(self, flow: _Flow) -> Share:
        source, walks = flow.source, flow.target.walks
        parts = [self._share_of(source, walk) for walk in walks]
        if len(parts) == 1 or all(part == 1 for part in parts):
            return parts[0]
        counts = [len(walk.members) for walk in walks]
        return _mean(parts, counts)

    def _share_of(self, source: _Source, walk: Walk) -> Share:
        if source.is_single:
            return walk.share_from(source.representative)
        reached = walk.value.get(source.attachments[0], 0)
        if not reached:
            return 0
        own = list(source.own.values())
        return reached if all(share == 1 for share in own) else reached * _mean(own, [1] * len(own))

    def _cause(self, flow: _Flow) -> str:
        # The members of a unit differ in nothing that a fault touches.
        target = next(iter(flow.target.destinations.values()))
        return self._permission.cause(self._plane.nodes[flow.source.representative], self._plane.nodes[target])

    def _note_paths(self, fault: Fault, now_ns: int) -> None:
        """Record the way before and now of the flows that *fault* harmed longest, if they are among the worst so far."""
        began_ns, kept = self._paths_before.pop(fault.id, (now_ns, []))

        def harmed_ns(flow: _Flow) -> int:
            return (flow.restored_at_ns if flow.cause == SERVED else now_ns) - began_ns

        harmed = sorted(
            (item for item in kept if harmed_ns(item[0]) > 0), key=lambda item: (-harmed_ns(item[0]), item[0].index)
        )
        rows: list[list[object]] = []
        broken = sorted(
            {tuple(end.node for end in self._plan.fabric.links[link].ends) for link in self._plan.links_hit(fault)}
        )
        seen = {node for pair in broken for node in pair}
        for flow, walk, before in harmed[:PATHS_TOLD_MAX]:
            length_ns = harmed_ns(flow)
            if len(self._longest_told) == PATHS_TOLD_MAX and length_ns <= self._longest_told[-1]:
                break
            self._longest_told = sorted([*self._longest_told, length_ns], reverse=True)[:PATHS_TOLD_MAX]
            after = path_beside(self._plane, walk, before) if flow.cause == SERVED else ()
            paths = [[self._plane.nodes[node] for node in path] for path in (before, after)]
            seen.update(node for path in paths for node in path)
            rows.append([flow.source.id, flow.target.id, *paths])
        if rows:
            nodes = {node: [self._plan.fabric.nodes[node].label, self._plan.fabric.nodes[node].tier] for node in seen}
            fields: dict[str, object] = {
                "fault": fault.id,
                "flows": rows,
                "broken": list(map(list, broken)),
                "nodes": nodes,
            }
            self._record(now_ns, "paths_taken", fields)

    def _target_links(self, fault: Fault) -> frozenset[int]:
        # Both lanes of a link that works one way only: who is deaf stops sending, too.
        return frozenset(self._plane.link_index[link] for link in self._plan.links_hit(fault))

    def _capacities(self, flows: list[_Flow]) -> dict[int, int]:
        found = {}
        by_target: dict[str, _Capacity] = {}
        for flow in flows:
            capacity = by_target.get(flow.target.id)
            if capacity is None:
                capacity = by_target[flow.target.id] = _Capacity(self._plane, flow.target)
            found[flow.index] = capacity.of(flow.source)
        return found


class _Crossing:
    """How much of each unit's traffic towards one target crosses some links, and whether those who send over them can do without."""

    def __init__(self, plane: DataPlane, target: _Target, links: frozenset[int]) -> None:
        self._plane = plane
        self._links = links
        self._target = target
        self._known: dict[tuple[int, int], tuple[Share, bool]] = {}
        ends = {node for link in links for node in plane.ends_of(link)}
        self._upstream = [self._found_upstream(walk, ends) for walk in target.walks]
        self.upstream = frozenset().union(*self._upstream)
        """The nodes some of whose traffic may cross the links; of endpoints only those at their ends."""

    def _found_upstream(self, walk: Walk, ends: set[int]) -> frozenset[int]:
        """Return the nodes at the *ends* of the links, and the switches that send to them by some way."""
        found = set(ends)
        waiting = [node for node in ends if self._plane.is_switch[node]]
        while waiting:
            node = waiting.pop()
            for above in self._plane.neighbours[node]:
                if above not in found and self._plane.is_switch[above] and node in walk.next_switches(above):
                    found.add(above)
                    waiting.append(above)
        return frozenset(found)

    def of(self, source: _Source) -> tuple[Share, bool]:
        """Return (share that crosses, whether another node than the one that sends over the links must act)."""
        shares = [self._at(number, source.representative) for number in range(len(self._target.walks))]
        if len(shares) == 1:
            return shares[0]
        counts = [len(walk.members) for walk in self._target.walks]
        return _mean([share for share, _ in shares], counts), any(is_far for _, is_far in shares)

    def path_of(self, source: _Source) -> tuple[Walk, tuple[int, ...]]:
        """Return one path of *source* over the links, and the walk it is of."""
        walks = self._target.walks
        number = next(number for number in range(len(walks)) if self._at(number, source.representative)[0])
        walk = walks[number]
        path = path_over(self._plane, walk, source.representative, self._links, lambda node: self._at(number, node)[0])
        return walk, path

    def _at(self, number: int, node: int) -> tuple[Share, bool]:
        if self._plane.is_switch[node] and node not in self._upstream[number]:
            return 0, False
        known = self._known.get((number, node))
        if known is not None:
            return known
        self._known[number, node] = (0, False)  # a cycle adds nothing
        walk = self._target.walks[number]
        hops = None if node in walk.attachments and len(walk.members) > 1 else walk.hops(node)
        total: Share = 0
        is_far = False
        if hops is not None and hops.total:
            is_switch = self._plane.is_switch
            direct = 0
            is_alone = True
            below: dict[int, int] = {}
            for lane, far, weight in hops.carrying:
                if lane >> 1 in self._links:
                    direct += weight
                else:
                    is_alone = False
                    if is_switch[far]:
                        below[far] = below.get(far, 0) + weight
            total = direct
            is_far = bool(direct) and is_alone
            for far, weight in below.items():
                share, is_far_below = self._at(number, far)
                if share:
                    total += share * weight
                    is_far = is_far or is_far_below
            total = Fraction(total, hops.total) if total else 0
        self._known[number, node] = (total, is_far)
        return total, is_far


class _Capacity:
    """
    The trunk capacity of the next-hop DAG towards one target: over the next hops, the sum of the smaller of the link's capacity
    and what the far node can carry on. Branches that meet again further down each count their own share of what is below, so it
    is an upper bound; access links don't count.
    """

    def __init__(self, plane: DataPlane, target: _Target) -> None:
        self._plane = plane
        self._walk = target.walks[0]
        self._capacity = [link.capacity_bps for link in plane.fabric.links.values()]
        self._known: dict[int, int | None] = {}

    def of(self, source: _Source) -> int:
        """Return the capacity in bit/s; 0 if there is none, or if no trunk is needed."""
        if not source.is_single:
            return self._at(source.attachments[0]) or 0
        hops = self._walk.hops(source.representative)
        parts = [self._at(far) for far in hops.live] if hops is not None else []
        return 0 if None in parts else sum(part for part in parts if part is not None)

    def _at(self, node: int) -> int | None:
        """Return what *node* can send on, None for as much as you like: it delivers."""
        if node in self._known:
            return self._known[node]
        self._known[node] = 0  # a cycle carries nothing
        found: int | None = 0
        walk = self._walk
        hops = walk.hops(node)
        if node in walk.attachments and (
            len(walk.members) > 1 or (hops is not None and walk.members[0][0] in hops.live)
        ):
            found = None if self._plane.is_powered[node] else 0
        elif hops is not None:
            total = 0
            for lane, far, _ in hops.carrying:
                if self._plane.is_switch[far]:
                    below, own = self._at(far), self._capacity[lane >> 1]
                    total += own if below is None else min(own, below)
            found = total
        self._known[node] = found
        return found


def _mean(shares: Sequence[Share], counts: Sequence[int]) -> Share:
    """Return the mean of *shares*, the first counting as often as the first of *counts* says, and so on."""
    total = sum((Fraction(share) * count for share, count in zip(shares, counts, strict=True)), start=Fraction(0))
    return total / sum(counts)


def touched_endpoints(plan: Plan) -> frozenset[NodeId]:
    """Return the endpoints that lose a link, or themselves, to some fault of *plan*: only those may differ from their class."""
    fabric = plan.fabric
    found: set[NodeId] = set()
    for fault in plan.faults:
        ends = [end.node for link in fault.links for end in fabric.links[link].ends]
        hit = set(fault.nodes) if fault.kind in WHOLE_NODES else set()
        found.update(node for node in (*ends, *hit) if fabric.nodes[node].is_endpoint)
        for switch in hit:
            if fabric.nodes[switch].is_switch:
                far_ends = [link.far_end(switch).node for link in fabric.links_of[switch]]
                # Those with no other attachment share the switch's fate, all alike.
                found.update(node for node in far_ends if len(fabric.attachments.get(node, ())) > 1)
    return frozenset(found)
