"""What the flows went through, read from a journal: their outages, and which fault or return each of them belongs to.

Rule 1: everything comes from the journal's lines; no fabric, no plan, no walker is asked again.
Rule 2: exact integers: a share in millionths holds from its instant to the next.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from erfs_scenario.report import Magnitude

SERVED = "served"
NOT_RECOVERED = "not_recovered"  # a permitted path exists and is not used in full
CUT_BY_POLICY = "cut_by_policy"  # only a valley is left
CUT = "cut"  # no working path at all

FlowId = tuple[str, str]
"""Source unit and target unit."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of time in which a flow's share stood still below full."""

    start_ns: int
    end_ns: int
    served_ppm: int
    cause: str


@dataclass(frozen=True, slots=True)
class Outage:
    """A stretch of time in which a flow was not served in full: touching segments."""

    flow: FlowId
    segments: tuple[Segment, ...]
    is_open: bool
    """Whether it lasted until the measurement ended."""

    @property
    def start_ns(self) -> int:
        """When the flow was first served less than in full."""
        return self.segments[0].start_ns

    @property
    def end_ns(self) -> int:
        """When it was served in full again, or the measurement ended."""
        return self.segments[-1].end_ns

    def cause_at(self, at_ns: int) -> str:
        """Return why the flow was not served in full just before *at_ns*; "served" outside the outage."""
        return next((part.cause for part in self.segments if part.start_ns < at_ns <= part.end_ns), SERVED)


@dataclass(slots=True)
class FaultTimes:
    """One fault as it really happened, and the flows it could harm."""

    plan: Mapping[str, Any]
    """The fault as the journal's header has it."""
    injected_at_ns: int | None = None
    effective_at_ns: int | None = None
    ended_at_ns: int | None = None
    affected: dict[FlowId, tuple[int, int, bool]] = field(default_factory=dict)
    """Demands, share that crossed in millionths, and whether another node had to act (far end)."""
    capacity: dict[FlowId, int] = field(default_factory=dict)
    """Capacity retained in millionths, where a trunk is needed at all."""
    paths: dict[FlowId, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)
    """Of the flows it harmed longest, a way before it and the one taken right before it ended; empty where there was none."""
    broken: tuple[tuple[str, str], ...] = ()
    """The two nodes of each link that broke, where ways are known."""
    nodes: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    """Name for people and tier of each node on these ways and at the ends of what broke."""
    magnitudes: tuple[Magnitude, ...] = ()
    """How much of it there was."""
    remarks: tuple[str, ...] = ()
    """What the backend found wrong with it."""

    @property
    def id(self) -> str:
        """The fault's name."""
        return str(self.plan["id"])

    @property
    def is_physical(self) -> bool:
        """Whether it breaks the data plane, rather than what controls it."""
        return bool(self.plan["links_hit"])


@dataclass(slots=True)
class Timeline:
    """A journal, sorted out."""

    header: dict[str, Any]
    started_ns: int | None
    finished_ns: int
    """End of the measurement; of a run that broke off, its last line."""
    is_finished: bool
    weights: dict[str, int]
    """Demands in each set."""
    flow_count: int
    flow_weights: dict[FlowId, dict[str, int]]
    """Demands of each set in every flow that ever was not served in full."""
    outages: list[Outage]
    faults: list[FaultTimes]
    marks: list[dict[str, Any]]
    """Everything the cores and the backend said, in order."""
    loops: list[dict[str, Any]]
    abort_reason: str | None
    has_plan: bool
    """Whether the journal has the whole plan, which can then be run again from it."""
    delay_ns: int = 0
    """How long after its plan the run was ready; everything planned moves by that."""

    def demands_of(self, flow: FlowId) -> int:
        """Return how many demands *flow* stands for, over all sets."""
        return sum(self.flow_weights.get(flow, {}).values())


_OWN_EVENTS = frozenset(
    {
        "run_started",
        "run_planned",
        "measurement_started",
        "measurement_finished",
        "flow_changed",
        "flows_affected",
        "capacity_measured",
        "paths_taken",
        "loops_changed",
        "fault_measured",
    }
)


def read_timeline(records: Iterable[dict[str, Any]]) -> Timeline:
    """
    Return the timeline of a journal's *records*.

    Raises:
        ValueError: there is no ``run_started``.

    Cost: O(records).
    """
    header: dict[str, Any] | None = None
    started: int | None = None
    finished: int | None = None
    last_ns = 0
    weights: dict[str, int] = {}
    flow_count = 0
    abort_reason = None
    has_plan = False
    delay_ns = 0
    changes: dict[FlowId, list[tuple[int, int, str]]] = {}
    flow_weights: dict[FlowId, dict[str, int]] = {}
    faults: dict[str, FaultTimes] = {}
    marks = []
    loops = []
    for record in records:
        at_ns, event = record["at_ns"], record["event"]
        last_ns = max(last_ns, at_ns)
        fault = faults.get(str(record.get("fault")))
        match event:
            case "run_started" if header is None:
                header = record
                faults = {str(part["id"]): FaultTimes(part) for part in record["faults"]}
            case "run_planned":
                has_plan = True
            case "measurement_started":
                started, weights, flow_count = at_ns, record["weights"], record["flows"]
            case "measurement_finished":
                finished = at_ns
            case "run_delayed":
                delay_ns = record["by_ns"]
            case "run_aborted":
                abort_reason = str(record["reason"])
            case "flow_changed":
                flow = record["source"], record["destination"]
                flow_weights[flow] = record["weights"]
                changes.setdefault(flow, []).append((at_ns, record["served_ppm"], record["cause"]))
            case "flows_affected" if fault is not None:
                for source, target, by_set, share_ppm, side in record["flows"]:
                    fault.affected[source, target] = sum(by_set.values()), share_ppm, side == "far"
                    flow_weights.setdefault((source, target), by_set)
            case "capacity_measured" if fault is not None:
                fault.capacity = {(source, target): share_ppm for source, target, share_ppm in record["flows"]}
            case "paths_taken" if fault is not None:
                fault.paths = {
                    (source, target): (tuple(before), tuple(after)) for source, target, before, after in record["flows"]
                }
                fault.broken = tuple((one, other) for one, other in record["broken"])
                fault.nodes = {node: (label, tier) for node, (label, tier) in record["nodes"].items()}
            case "loops_changed":
                loops.append(record)
            case "fault_injected" if fault is not None:
                fault.injected_at_ns = at_ns
            case "fault_effective" if fault is not None:
                fault.effective_at_ns = at_ns
            case "fault_ended" if fault is not None:
                fault.ended_at_ns = at_ns
            case "fault_measured" if fault is not None:
                told = {name: value for name, value in record.items() if name in Magnitude.model_fields}
                fault.magnitudes += (Magnitude(**told),)
            case "fault_not_effective" | "fault_not_ended" if fault is not None:
                fault.remarks += (event,)
        if event not in _OWN_EVENTS:
            marks.append(record)
    if header is None:
        raise ValueError("no run_started in the journal")
    end_ns = last_ns if finished is None else finished
    outages = [outage for flow in sorted(changes) for outage in _outages(flow, changes[flow], end_ns)]
    return Timeline(
        header=header,
        started_ns=started,
        finished_ns=end_ns,
        is_finished=finished is not None,
        weights=weights,
        flow_count=flow_count,
        flow_weights=flow_weights,
        outages=outages,
        faults=list(faults.values()),
        marks=marks,
        loops=loops,
        abort_reason=abort_reason,
        has_plan=has_plan,
        delay_ns=delay_ns,
    )


def _outages(flow: FlowId, changes: list[tuple[int, int, str]], end_ns: int) -> list[Outage]:
    found: list[Outage] = []
    parts: list[Segment] = []
    for (at_ns, served_ppm, cause), following in zip(changes, [*changes[1:], None], strict=True):
        until_ns = end_ns if following is None else following[0]
        if cause == SERVED:
            if parts:
                found.append(Outage(flow, tuple(parts), is_open=False))
            parts = []
        elif until_ns > at_ns or following is None:
            parts.append(Segment(at_ns, until_ns, served_ppm, cause))
    if parts:
        found.append(Outage(flow, tuple(parts), is_open=True))
    return found


class Marks:
    """What the cores and the backend said, to be asked by event and time: runs have hundreds of faults and many thousand marks."""

    def __init__(self, marks: Iterable[dict[str, Any]]) -> None:
        self._records: dict[str, list[dict[str, Any]]] = {}
        for record in sorted(marks, key=lambda record: record["at_ns"]):
            self._records.setdefault(record["event"], []).append(record)
        self._instants = {event: [record["at_ns"] for record in found] for event, found in self._records.items()}

    def between(self, event: str, from_ns: int, until_ns: int) -> Iterator[dict[str, Any]]:
        """Yield the records of *event* from *from_ns* to *until_ns*, both included, in order of time. Cost: O(log records) before the first."""
        records, instants = self._records.get(event, []), self._instants.get(event, [])
        for place in range(bisect_left(instants, from_ns), len(records)):
            if instants[place] > until_ns:
                return
            yield records[place]


@dataclass(slots=True)
class Attribution:
    """Which outages belong to what."""

    by_fault: dict[str, list[Outage]]
    """Of flows the fault was known to affect before it happened."""
    by_return: dict[str, list[Outage]]
    """Begun at or after a fault's end, before anything else happened."""
    bystanders: dict[str, list[Outage]]
    """Begun under a fault that crosses none of the flow's paths."""
    steady: list[Outage]
    """Begun before the first fault."""


def attribute(timeline: Timeline) -> Attribution:
    """
    Sort every outage to what caused it: the latest fault or return at or before its start.

    If the latest is a fault that does not affect the flow, an earlier one still in force that does takes it; if there is none the
    flow is a bystander. Of faults at the same instant, each that affects the flow gets it.

    Cost: O((outages + affected flows) * log faults), more only where many faults hold one flow at a time.
    """
    result = Attribution({}, {}, {}, [])
    actions = sorted(
        [(fault.effective_at_ns, 0, fault) for fault in timeline.faults if fault.effective_at_ns is not None]
        + [(fault.ended_at_ns, 1, fault) for fault in timeline.faults if fault.ended_at_ns is not None],
        key=lambda action: (action[0], action[1], action[2].id),
    )
    instants = [at_ns for at_ns, _, _ in actions]
    affecting: dict[FlowId, list[FaultTimes]] = {}
    for _, is_return, fault in actions:
        if not is_return:
            for flow in fault.affected:
                affecting.setdefault(flow, []).append(fault)
    for outage in timeline.outages:
        until = bisect_right(instants, outage.start_ns)
        if not until:
            result.steady.append(outage)
            continue
        latest = actions[bisect_left(instants, instants[until - 1]) : until]
        hits = [fault for _, is_return, fault in latest if not is_return and outage.flow in fault.affected]
        if not hits and all(is_return for _, is_return, _ in latest):
            result.by_return.setdefault(latest[-1][2].id, []).append(outage)
            continue
        if not hits:
            in_force = (
                fault
                for fault in reversed(affecting.get(outage.flow, ()))
                if (fault.effective_at_ns or 0) <= outage.start_ns
                and (fault.ended_at_ns is None or fault.ended_at_ns > outage.start_ns)
            )
            hits = [fault for fault in (next(in_force, None),) if fault is not None]
        for fault in hits:
            result.by_fault.setdefault(fault.id, []).append(outage)
        if not hits:
            fault = next(fault for _, is_return, fault in latest if not is_return)
            result.bystanders.setdefault(fault.id, []).append(outage)
    return result
