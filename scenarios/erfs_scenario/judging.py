"""From a journal to a report: what each fault did, what was lost, what is left.

Rule 1: `judge` is a pure function of the journal's records, so that anyone can judge a journal again.
Rule 2: it measures; whether that is good enough is decided in `erfs_scenario.verdict`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from erfs.errors import ConfigError, Problem
from erfs.journal import read
from erfs.units import PPM
from erfs_scenario.costs import costs_by_fault, down_by_fault
from erfs_scenario.exhibits import (
    drawings_of,
    limits_of,
    outage_lengths,
    replay_command,
    service_of,
    worst_flows,
)
from erfs_scenario.fault_model import MONTH_NS
from erfs_scenario.figures import figures_of
from erfs_scenario.jobs import Training, stalls_of, work_of
from erfs_scenario.report import (
    DEFINITIONS,
    Baseline,
    Chain,
    Cost,
    FabricSummary,
    FaultReport,
    Figure,
    Job,
    Probes,
    Rate,
    Report,
    Return,
    SetReport,
    Spread,
    Stages,
    SteadyState,
    Tally,
    Unserved,
)
from erfs_scenario.schema import TAIL_NS
from erfs_scenario.timeline import (
    CUT,
    CUT_BY_POLICY,
    NOT_RECOVERED,
    SERVED,
    Attribution,
    FaultTimes,
    FlowId,
    Marks,
    Outage,
    Timeline,
    attribute,
    read_timeline,
)
from erfs_scenario.verdict import uncrossed_of, verdict_on

# Enough to see what kind of demand it is; the journal has all of them.
LISTED_MAX: Final = 50
# Enough for a picture; a recovery has a handful of steps, a restoration some hundreds.
CURVE_POINTS_MAX: Final = 400


def judge(journal: Path) -> Report:
    """
    Return the report on the run that *journal* tells of.

    Raises:
        ConfigError: the journal is damaged, or holds no run.
    """
    return judge_records(read(journal), str(journal))


def judge_records(records: Iterable[dict[str, Any]], source: str = "journal") -> Report:
    """Return the report on *records*. Raises ConfigError if they hold no run. Cost: O(records + outages * faults)."""
    try:
        timeline = read_timeline(records)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(source, [Problem(0, f"not the journal of a run: {error}")]) from None
    outages = attribute(timeline)
    marks = Marks(timeline.marks)
    outages_of: dict[FlowId, list[Outage]] = {}
    for outage in timeline.outages:
        outages_of.setdefault(outage.flow, []).append(outage)
    faults = tuple(_fault_report(timeline, marks, outages, outages_of, fault) for fault in timeline.faults)
    header = timeline.header
    steady = _steady_state(timeline, outages)
    sets = tuple(set_report(timeline, part) for part in header["demands"])
    loops = tuple(sorted({tuple(loop) for record in timeline.loops for loop in record["loops"]}))
    listed = _unserved(timeline, outages)
    baselines = _baselines(timeline, outages)
    return Report(
        name=header["name"],
        description=header["description"],
        backend=header["backend"],
        seed=header["seed"],
        is_protecting=header["is_protecting"],
        # Journals of before there was a choice do not say.
        is_bus_in_band=header.get("is_bus_in_band", False),
        replay=replay_command(timeline),
        fabric=FabricSummary(**header["fabric"]),
        measured_from_ns=timeline.started_ns,
        measured_until_ns=timeline.finished_ns,
        verdict=verdict_on(timeline, outages, steady, faults, sets, loops),
        steady_state=steady,
        probes=_probes(timeline),
        faults=faults,
        uncrossed=tuple(fault.id for fault in uncrossed_of(faults)),
        service=service_of(timeline),
        outage_lengths=outage_lengths(outages),
        worst_flows=worst_flows(timeline, outages),
        drawings=drawings_of(timeline),
        demand_sets=sets,
        jobs=jobs_of(timeline),
        baselines=baselines,
        figures=figures_of(timeline, outages, faults, sets, baselines),
        costs=_costs(timeline, outages),
        rates=tuple(_rate(use) for use in header.get("rates", ())),
        loops=loops,
        unserved=tuple(listed[:LISTED_MAX]),
        unserved_count=len(listed),
        expectations=header["expectations"],
        timers=header["timers"],
        timing=header["timing"],
        limits=limits_of(timeline),
        definitions=DEFINITIONS,
    )


def _probes(timeline: Timeline) -> Probes | None:
    found = next((record for record in timeline.marks if record["event"] == "probes_measured"), None)
    if found is None:
        return None
    return Probes(flows=timeline.flow_count, **{name: found[name] for name in Probes.model_fields if name != "flows"})


def spread(durations: Sequence[int]) -> Spread:
    """Return first, median and last of *durations*."""
    ordered = sorted(durations)
    if not ordered:
        return Spread(flows=0)
    return Spread(
        flows=len(ordered), first_ns=ordered[0], median_ns=ordered[(len(ordered) - 1) // 2], last_ns=ordered[-1]
    )


def _tally(timeline: Timeline, outages: Iterable[Outage]) -> Tally:
    flows = sorted({outage.flow for outage in outages})
    return Tally(flows=len(flows), demands=sum(timeline.demands_of(flow) for flow in flows))


def _steady_state(timeline: Timeline, outages: Attribution) -> SteadyState:
    def of_cause(cause: str) -> Tally:
        return _tally(timeline, (one for one in outages.steady if any(part.cause == cause for part in one.segments)))

    begun = [fault.effective_at_ns for fault in timeline.faults if fault.effective_at_ns is not None]
    before_ns = min(begun, default=timeline.finished_ns)
    # A flow that a later fault harms while it was never served belongs to the steady state only as far as that lasted.
    not_served = [
        outage
        for outage in outages.steady
        if any(part.cause == NOT_RECOVERED and part.start_ns < before_ns for part in outage.segments)
    ]
    remarks = tuple(record["event"] for record in timeline.marks if record["event"] == "steady_state_missed")
    return SteadyState(
        held=timeline.started_ns is not None and not not_served and not remarks,
        flows=timeline.flow_count,
        not_served=_tally(timeline, not_served),
        cut=of_cause(CUT),
        cut_by_policy=of_cause(CUT_BY_POLICY),
        remarks=remarks,
    )


def _fault_report(
    timeline: Timeline,
    marks: Marks,
    outages: Attribution,
    outages_of: Mapping[FlowId, Sequence[Outage]],
    fault: FaultTimes,
) -> FaultReport:
    effective_ns = fault.effective_at_ns
    end_ns = timeline.finished_ns if fault.ended_at_ns is None else fault.ended_at_ns
    own: dict[tuple[str, str], list[Outage]] = {}
    for outage in outages.by_fault.get(fault.id, []):
        own.setdefault(outage.flow, []).append(outage)
    recovered: dict[bool, list[int]] = {False: [], True: []}
    left: dict[str, list[Outage]] = {NOT_RECOVERED: [], CUT: [], CUT_BY_POLICY: []}
    lost_demand = 0
    if effective_ns is not None:
        for flow, (_, _, is_far) in fault.affected.items():
            last = max(own.get(flow, []), key=lambda outage: outage.end_ns, default=None)
            cause = SERVED if last is None else last.cause_at(end_ns)
            if last is not None and cause != SERVED:
                left[cause].append(last)
            else:
                recovered[is_far].append(0 if last is None else last.end_ns - effective_ns)
            if cause in (SERVED, NOT_RECOVERED):
                lost_demand += sum(
                    _lost_ppm_ns(one, effective_ns, end_ns) * timeline.demands_of(flow) for one in own.get(flow, [])
                )
    pathless = {one.flow for one in (*left[CUT], *left[CUT_BY_POLICY])}
    capacity = [share_ppm for flow, share_ppm in fault.capacity.items() if flow not in pathless]
    plan = fault.plan
    return FaultReport(
        id=fault.id,
        kind=plan["kind"],
        target=plan["target"],
        links=tuple(plan["links"]),
        nodes=tuple(plan["nodes"]),
        is_physical=fault.is_physical,
        planned_at_ns=plan["at_ns"],
        planned_end_at_ns=plan["end_at_ns"],
        due_at_ns=plan["at_ns"] + timeline.delay_ns,
        due_end_at_ns=plan["end_at_ns"] + timeline.delay_ns,
        effective_at_ns=effective_ns,
        ended_at_ns=fault.ended_at_ns,
        magnitudes=fault.magnitudes,
        affected=Tally(flows=len(fault.affected), demands=sum(demands for demands, _, _ in fault.affected.values())),
        lost_something=_tally(timeline, (one for found in own.values() for one in found)),
        near=spread(recovered[False]),
        far=spread(recovered[True]),
        all=spread(recovered[False] + recovered[True]),
        stages=_stages(timeline, marks, fault),
        chain=_chain(timeline, fault),
        not_recovered=_tally(timeline, left[NOT_RECOVERED]),
        cut=_tally(timeline, left[CUT]),
        cut_by_policy=_tally(timeline, left[CUT_BY_POLICY]),
        capacity_retained_min_ppm=min(capacity, default=None),
        bystanders=_tally(timeline, outages.bystanders.get(fault.id, [])),
        lost_demand_ns=lost_demand // PPM,
        return_=_return(timeline, marks, outages, fault, [*left[CUT], *left[CUT_BY_POLICY]]),
        curve=_curve(timeline, outages_of, fault),
    )


def _lost_ppm_ns(outage: Outage, from_ns: int, until_ns: int) -> int:
    return sum(
        (PPM - part.served_ppm) * max(0, min(part.end_ns, until_ns) - max(part.start_ns, from_ns))
        for part in outage.segments
    )


def _stages(timeline: Timeline, marks: Marks, fault: FaultTimes) -> Stages:
    begin_ns = fault.effective_at_ns
    if begin_ns is None or not fault.is_physical:
        return Stages()
    end_ns = timeline.finished_ns if fault.ended_at_ns is None else fault.ended_at_ns
    links = set(fault.plan["links_hit"])

    def first(event: str, *, after_ns: int = begin_ns, is_ours: bool = False) -> int | None:
        return next(
            (
                int(record["at_ns"])
                for record in marks.between(event, after_ns, end_ns)
                if not is_ours or (record.get("link") in links and record.get("down", True))
            ),
            None,
        )

    def since(at_ns: int | None, start_ns: int | None = begin_ns) -> int | None:
        return None if at_ns is None or start_ns is None else at_ns - start_ns

    detected = first("port_down_detected", is_ours=True)
    adjudicated = first("link_down_adjudicated", is_ours=True)
    believed = detected if adjudicated is None else adjudicated
    computed = None if believed is None else first("routes_computed", after_ns=believed)
    finished = None if computed is None else first("restoration_finished", after_ns=computed)
    # Without a computation every change up to the end is protection's.
    changed = [
        int(record["at_ns"])
        for record in marks.between("change_acknowledged", begin_ns, end_ns if computed is None else computed)
        if links & set(record.get("failures", ())) | set(fault.plan["nodes"]) & set(record.get("failures", ()))
    ]
    return Stages(
        detection_ns=since(detected),
        fact_received_first_ns=since(first("fact_received", is_ours=True)),
        protection_first_ns=since(min(changed, default=None)),
        protection_last_ns=since(max(changed, default=None)),
        adjudicated_ns=since(adjudicated),
        computation_ns=since(computed, believed),
        programming_ns=since(finished, computed),
        restoration_finished_ns=since(finished),
        cannot_reach_count=len(
            {
                record["node"]
                for record in marks.between("cannot_reach_published", begin_ns, end_ns)
                if record.get("destinations")
            }
        ),
    )


def _chain(timeline: Timeline, fault: FaultTimes) -> Chain | None:
    record = next(
        (one for one in timeline.marks if one["event"] == "chains_measured" and one["fault"] == fault.id), None
    )
    if record is None:
        return None
    rows = [row[3:] for row in record["flows"]]

    def median(place: int) -> int | None:
        return spread([row[place] for row in rows if row[place] is not None]).median_ns

    rests = [abs(through - acknowledged) for _, _, acknowledged, through in rows]
    return Chain(
        flows=len(rows),
        detected_ns=median(0),
        fact_received_ns=median(1),
        acknowledged_ns=median(2),
        through_ns=median(3),
        rest_max_ns=max(rests, default=None),
        within_two_intervals=sum(rest <= 2 * record["interval_ns"] for rest in rests),
    )


def _return(
    timeline: Timeline, marks: Marks, outages: Attribution, fault: FaultTimes, pathless: Sequence[Outage]
) -> Return:
    lost = outages.by_return.get(fault.id, [])
    tally = _tally(timeline, lost)
    ended_ns = fault.ended_at_ns
    restored = []
    not_restored = []
    for outage in pathless:
        if outage.is_open or ended_ns is None:
            not_restored.append(outage)
        else:
            restored.append(outage.end_ns - ended_ns)
    back = None
    if ended_ns is not None and fault.is_physical:
        links = set(fault.plan["links_hit"])
        up: dict[str, int] = {}
        for record in marks.between("link_up_adjudicated", ended_ns, timeline.finished_ns):
            if record["link"] in links:
                # Later ones are the returns of other faults.
                up.setdefault(record["link"], record["at_ns"])
                if len(up) == len(links):
                    break
        if up:
            finished = marks.between("restoration_finished", max(up.values()), timeline.finished_ns)
            back = next((record["at_ns"] - ended_ns for record in finished), None)
    return Return(
        flows_lost=tally.flows,
        demands_lost=tally.demands,
        longest_loss_ns=max((one.end_ns - one.start_ns for one in lost), default=None),
        restored=spread(restored),
        not_restored=_tally(timeline, not_restored),
        capacity_back_ns=back,
    )


def _curve(
    timeline: Timeline, outages_of: Mapping[FlowId, Sequence[Outage]], fault: FaultTimes
) -> tuple[tuple[int, int], ...]:
    """Return the served share of the affected demands as steps, from the fault's effect until a while after its end: what other faults do later is theirs."""
    total = sum(demands for demands, _, _ in fault.affected.values())
    if not total or fault.effective_at_ns is None:
        return ()
    begin_ns = fault.effective_at_ns
    until_ns = timeline.finished_ns if fault.ended_at_ns is None else fault.ended_at_ns + TAIL_NS
    steps: dict[int, int] = {0: 0}
    for flow, (demands, _, _) in fault.affected.items():
        own = outages_of.get(flow, ())
        for outage in own[bisect_left(own, begin_ns, key=lambda one: one.end_ns) :]:
            if outage.start_ns > until_ns:
                break
            for part in outage.segments:
                if part.end_ns <= begin_ns or part.start_ns > until_ns:
                    continue
                lost = (PPM - part.served_ppm) * demands
                start, end = max(0, part.start_ns - begin_ns), part.end_ns - begin_ns
                steps[start] = steps.get(start, 0) + lost
                steps[end] = steps.get(end, 0) - lost
    curve = []
    level = 0
    for at_ns in sorted(steps):
        level += steps[at_ns]
        curve.append((at_ns, PPM - level // total if level % total == 0 else PPM - level // total - 1))
    if len(curve) > CURVE_POINTS_MAX:
        # Keep the ends and thin the middle evenly; the figures do not come from here.
        stride = len(curve) / (CURVE_POINTS_MAX - 1)
        curve = [curve[int(index * stride)] for index in range(CURVE_POINTS_MAX - 1)] + [curve[-1]]
    return tuple(curve)


def lost_with_path_ns(timeline: Timeline, outages: Attribution, fault: FaultTimes) -> int:
    """Return the demand-time that *fault* and its return cost while there was a permitted path, bystanders included."""
    lost = sum(
        (PPM - part.served_ppm) * (part.end_ns - part.start_ns) * timeline.demands_of(outage.flow)
        for found in (outages.by_fault, outages.by_return, outages.bystanders)
        for outage in found.get(fault.id, [])
        for part in outage.segments
        if part.cause == NOT_RECOVERED
    )
    return lost // PPM


def jobs_of(timeline: Timeline) -> dict[str, Job]:
    """Return what the outages cost each training job that the header has terms for."""
    found = {}
    for part in timeline.header["demands"]:
        if "training" not in part or timeline.started_ns is None:
            continue
        name, gpus = part["name"], part["gpus"]
        training = Training(**part["training"])
        work = work_of(stalls_of(timeline, name, training), timeline.started_ns, timeline.finished_ns, training)
        total_ns = timeline.finished_ns - timeline.started_ns
        found[name] = Job(
            gpus=gpus,
            goodput_ppm=work.useful_ns * PPM // total_ns if total_ns else 0,
            lost_gpu_ns=(total_ns - work.useful_ns) * gpus,
            **asdict(work),
            **part["training"],
        )
    return found


def costs_json(timeline: Timeline, outages: Attribution) -> dict[str, Any]:
    """Return what each fault cost, as `baseline_measured` has it for other systems: demand-time, and job time."""
    jobs = [part["name"] for part in timeline.header["demands"] if part["is_job"]]
    return {
        "costs": {fault: cost._asdict() for fault, cost in costs_by_fault(timeline, outages).items()},
        "down": {job: down_by_fault(timeline, outages, job) for job in jobs},
    }


def _costs(timeline: Timeline, outages: Attribution) -> tuple[Cost, ...]:
    """Return what faults cost by name, in the order in which the names first took effect."""
    systems = {"erfs": costs_json(timeline, outages)}
    systems |= {
        record["name"]: record
        for record in timeline.marks
        if record["event"] == "baseline_measured" and "costs" in record
    }
    groups: dict[str, list[FaultTimes]] = {}
    for fault in timeline.faults:
        if fault.effective_at_ns is not None:
            groups.setdefault(fault.id.partition("#")[0], []).append(fault)
    jobs = [part["name"] for part in timeline.header["demands"] if part["is_job"]]

    def lost(faults: Sequence[FaultTimes], measure: str) -> dict[str, int]:
        return {
            system: sum(record["costs"].get(fault.id, {measure: 0})[measure] for fault in faults)
            for system, record in systems.items()
        }

    return tuple(
        Cost(
            name=name,
            kind=faults[0].plan["kind"],
            faults=len(faults),
            lost_ns=lost(faults, "with_path"),
            lost_of_all_ns=lost(faults, "of_all"),
            not_in_full_ns=lost(faults, "in_full"),
            down_ns={
                job: {
                    system: sum(record["down"][job].get(fault.id, 0) for fault in faults)
                    for system, record in systems.items()
                }
                for job in jobs
            },
        )
        for name, faults in groups.items()
    )


def _rate(use: dict[str, Any]) -> Rate:
    """Return a rate as reports have it."""
    per_month = use["per_month_ppm"] * use["things"] / PPM
    natural = per_month * (use["until_ns"] - use["from_ns"]) / MONTH_NS
    return Rate(natural_events=round(natural, 6), **{name: use[name] for name in Rate.model_fields if name in use})


def _baselines(timeline: Timeline, outages: Attribution) -> tuple[Baseline, ...]:
    measured = [record for record in timeline.marks if record["event"] == "baseline_measured"]
    if not measured:
        return ()
    kinds = {fault.id: str(fault.plan["kind"]) for fault in timeline.faults}
    own = {fault.id: lost_with_path_ns(timeline, outages, fault) for fault in timeline.faults}
    return tuple(_baseline(record, own, kinds) for record in measured)


def _baseline(record: dict[str, Any], own: dict[str, int], kinds: dict[str, str]) -> Baseline:
    lost = {str(fault): int(lost_ns) for fault, lost_ns in record["lost_demand_ns"].items()}
    # What hits only what controls the fabric is nothing to the behaviour, and has no pair.
    paired = sorted(lost)
    by_kind: dict[str, int] = {}
    for fault in paired:
        by_kind[kinds[fault]] = by_kind.get(kinds[fault], 0) + lost[fault]
    return Baseline(
        name=record["name"],
        is_validated=record["is_validated"],
        source=record["source"],
        demand_sets=tuple(SetReport(**part) for part in record["demand_sets"]),
        jobs={name: Job(**part) for name, part in record.get("jobs", {}).items()},
        figures=tuple(Figure(**part) for part in record["figures"]),
        lost_demand_ns=lost,
        lost_demand_ns_by_kind=dict(sorted(by_kind.items())),
        erfs_lost_demand_ns={fault: own[fault] for fault in paired},
        faults_paired=len(paired),
        erfs_lost_less=sum(own[fault] < lost[fault] for fault in paired),
        erfs_lost_more=sum(own[fault] > lost[fault] for fault in paired),
    )


def set_report(timeline: Timeline, part: dict[str, Any]) -> SetReport:
    """Return what became of the demand set that *part* of the header names."""
    name, count = part["name"], timeline.weights.get(part["name"], part["count"])
    duration_ns = 0 if timeline.started_ns is None else timeline.finished_ns - timeline.started_ns
    total = count * duration_ns
    lost = 0
    pathless = 0
    not_in_full = 0
    down: list[tuple[int, int]] = []
    for outage in timeline.outages:
        demands = timeline.flow_weights[outage.flow].get(name, 0)
        if not demands:
            continue
        down.append((outage.start_ns, outage.end_ns))
        for segment in outage.segments:
            length = segment.end_ns - segment.start_ns
            lost += (PPM - segment.served_ppm) * length * demands
            if segment.cause in (CUT, CUT_BY_POLICY):
                pathless += length * demands
            else:
                not_in_full += length * demands
    served = total * PPM - lost
    with_path = total - pathless
    down_ns = _covered(down)
    return SetReport(
        name=name,
        is_job=part["is_job"],
        demands=count,
        availability_of_all_ppm=served // total if total else 0,
        # With nothing ever pathful there is nothing to be unavailable.
        availability_ppm=served // with_path if with_path else PPM if total else 0,
        pair_availability_ppm=(with_path - not_in_full) * PPM // with_path if with_path else PPM if total else 0,
        lost_demand_ns=-(-lost // PPM),
        pathless_demand_ns=pathless,
        total_demand_ns=total,
        down_ns=down_ns if part["is_job"] else None,
        job_availability_ppm=((duration_ns - down_ns) * PPM // duration_ns if duration_ns else 0)
        if part["is_job"]
        else None,
    )


def _covered(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the length of the union of *intervals*."""
    total = 0
    reached = 0
    for start, end in sorted(intervals):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total


def _unserved(timeline: Timeline, outages: Attribution) -> list[Unserved]:
    """Return the flows that were without full service when a fault ended, or in the steady state."""
    found: dict[tuple[str, str, str, str], Unserved] = {}

    def note(outage: Outage, cause: str, when: str) -> None:
        if cause != SERVED:
            source, destination = outage.flow
            demands = timeline.demands_of(outage.flow)
            item = Unserved(source=source, destination=destination, demands=demands, cause=cause, when=when)
            found[when, cause, source, destination] = item

    for outage in outages.steady:
        note(outage, outage.segments[0].cause, "steady state")
    for fault in timeline.faults:
        end_ns = timeline.finished_ns if fault.ended_at_ns is None else fault.ended_at_ns
        for outage in (*outages.by_fault.get(fault.id, []), *outages.bystanders.get(fault.id, [])):
            note(outage, outage.cause_at(end_ns), fault.id)
    return [found[key] for key in sorted(found)]
