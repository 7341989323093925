"""Did the run meet what was expected? Rules only: figures in, outcomes and reasons out.

Rule 1: what could not be measured is undecidable, never passed.
Rule 2: no percentile without the sample it needs: with fewer events the maximum is judged and the verdict says so.
Rule 3: a percentile is met or missed by its whole interval; if that holds the bound, more events are needed.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

from erfs.faults import FaultKind
from erfs.units import MS, format_bps, format_duration, format_ms
from erfs_scenario.figures import recoveries_of
from erfs_scenario.report import Check, FaultReport, SetReport, SteadyState, Verdict
from erfs_scenario.statistics import Refusal, events_to_tell, percentile_events_min, percentile_interval
from erfs_scenario.timeline import NOT_RECOVERED, Attribution, Outage, Timeline

Outcome = Literal["passed", "missed", "undecidable"]

_EXIT: Final = {"invalid": 4, "aborted": 3, "undecidable": 2, "missed": 1, "passed": 0}
"""Worst first: where several apply, the first counts (design section 6)."""

LATE_MAX_NS: Final = {"sim": 0, "live": 500 * MS, "kernel": 500 * MS}
"""By backend, what a fault may be off in time and still be the one that was asked for: in real time a busy machine is late."""


def format_share(share_ppm: int) -> str:
    """Return *share_ppm* as a percentage with four decimals, none of them rounded up."""
    return f"{share_ppm // 10_000}.{share_ppm % 10_000:04} %"


def verdict_on(
    timeline: Timeline,
    outages: Attribution,
    steady: SteadyState,
    faults: Sequence[FaultReport],
    sets: Sequence[SetReport],
    loops: Sequence[tuple[str, ...]],
) -> Verdict:
    """Return the verdict with every expectation's check, and the reasons in the order of the exit code's precedence."""
    found: list[tuple[str, str]] = []
    if timeline.abort_reason is not None:
        found.append(("aborted", f"the run was aborted: {timeline.abort_reason}"))
    elif not timeline.is_finished:
        died = format_duration(timeline.finished_ns)
        found.append(("undecidable", f"harness died at {died}: the journal breaks off before the run was finished"))
    for fault, times in zip(faults, timeline.faults, strict=True):
        if timeline.abort_reason is None and timeline.is_finished:
            wrong = not_as_asked(fault, times.remarks, LATE_MAX_NS[timeline.header["backend"]])
            found += [("invalid", f'fault "{fault.id}" {reason}') for reason in wrong]
    found += [("undecidable", reason) for reason in _uncrossed_reasons(timeline, faults)]
    if timeline.started_ns is None:
        found.append(("undecidable", "the measurement never started"))
    elif not steady.held:
        found.append(("undecidable", _steady_reason(steady)))
    checks = _checks(timeline, outages, faults, sets, loops)
    found += [(check.outcome, f"{check.name}: {check.reason}") for check in checks if check.outcome != "passed"]
    outcome = next((one for one in _EXIT if any(one == kind for kind, _ in found)), "passed")
    reasons = [reason for kind in _EXIT for one, reason in found if one == kind]
    if not reasons:
        reasons = [f"{len(checks)} expectation{'s' if len(checks) != 1 else ''} met"]
    return Verdict(outcome=outcome, exit_code=_EXIT[outcome], reasons=tuple(reasons), checks=tuple(checks))


def not_as_asked(fault: FaultReport, remarks: Sequence[str], late_max_ns: int) -> Iterator[str]:
    """
    Yield in what *fault* was another one than was asked for: there, in time, as much of it, and over in time.

    Args:
        fault: With what was measured of it.
        remarks: What the backend found wrong with it.
        late_max_ns: What it may be off in time.
    """
    parts = [
        f"{one.name} {format_magnitude(one.measured, one.unit)} of {format_magnitude(one.asked, one.unit)} asked"
        for one in fault.magnitudes
        if not one.is_as_asked
    ]
    if fault.effective_at_ns is None or "fault_not_effective" in remarks:
        yield "did not take effect" + (f": {', '.join(parts)}" if parts else "")
        return
    if parts:
        yield f"was not as asked: {', '.join(parts)}"
    if fault.kind == FaultKind.DRAIN:
        # How long a drain takes is the controller's business, and measured; there is no instant that it was asked for.
        if fault.ended_at_ns is None or "fault_not_ended" in remarks:
            yield "did not end as asked"
        return
    if (late_ns := fault.effective_at_ns - fault.due_at_ns) > late_max_ns:
        yield f"took effect {format_duration(late_ns)} late"
    elif -late_ns > late_max_ns:
        yield f"took effect {format_duration(-late_ns)} early"
    if fault.ended_at_ns is None or "fault_not_ended" in remarks:
        yield "did not end as asked"
    elif (late_ns := fault.ended_at_ns - fault.due_end_at_ns) > late_max_ns:
        yield f"ended {format_duration(late_ns)} late"
    elif -late_ns > late_max_ns:
        yield f"ended {format_duration(-late_ns)} early"


def format_magnitude(value: int | None, unit: str) -> str:
    """Return how much a fault is of *unit*, for people; a dash where it could not be measured."""
    if value is None:
        return "-"
    return format_share(value) if unit == "ppm" else format_bps(value) if unit == "bps" else f"{value:,}"


def uncrossed_of(faults: Iterable[FaultReport]) -> list[FaultReport]:
    """Return the faults that broke something over which no measured flow went."""
    return [one for one in faults if one.is_physical and one.effective_at_ns is not None and not one.affected.flows]


def _uncrossed_reasons(timeline: Timeline, faults: Sequence[FaultReport]) -> list[str]:
    """
    Return why faults that no measured flow crosses leave something undecided.

    Who states a fault asks what it does, once or in any of its repetitions. Of what chance draws, one that hits an idle link is as
    good a draw as another: only if all of them do, there is nothing to judge.
    """
    drawn = {use["name"] for use in timeline.header.get("rates", ())}
    asked: dict[str | None, list[FaultReport]] = {}
    for fault in faults:
        if fault.is_physical and fault.effective_at_ns is not None:
            cause = fault.id.partition("#")[0]
            asked.setdefault(None if cause in drawn else cause, []).append(fault)
    found = []
    for name, group in asked.items():
        if len(uncrossed_of(group)) < len(group):
            continue
        if len(group) == 1:
            found.append(f'fault "{group[0].id}" ({group[0].target}) is crossed by no measured flow')
        else:
            which = "drawn by chance" if name is None else f'called "{name}"'
            found.append(f"none of the {len(group)} faults {which} is crossed by any measured flow")
    return found


def _steady_reason(steady: SteadyState) -> str:
    if steady.not_served.flows:
        return f"no steady state before the first fault: {steady.not_served.demands} demands with a path were not served in full"
    return "no steady state before the first fault: agents and controller had not come to rest"


def _checks(
    timeline: Timeline,
    outages: Attribution,
    faults: Sequence[FaultReport],
    sets: Sequence[SetReport],
    loops: Sequence[tuple[str, ...]],
) -> list[Check]:
    expected = timeline.header["expectations"]
    checks: list[Check] = []
    if (bound := expected["recovery_max_ns"]) is not None:
        checks.append(recovery_check("recovery max", bound, faults, timeline.finished_ns))
    if (bound := expected["recovery_p95_ns"]) is not None:
        checks.append(p95_check(bound, faults, timeline.finished_ns))
    for name, key, figure in (
        ("availability", "availability_min_ppm", "availability_ppm"),
        ("availability of all", "availability_all_min_ppm", "availability_of_all_ppm"),
        ("job availability", "job_availability_min_ppm", "job_availability_ppm"),
    ):
        if (bound := expected[key]) is not None:
            checks.append(share_check(name, bound, [(part.name, getattr(part, figure)) for part in sets]))
    if (bound := expected["capacity_min_ppm"]) is not None:
        checks.append(
            share_check("capacity retained", bound, [(fault.id, fault.capacity_retained_min_ppm) for fault in faults])
        )
    if expected["is_loop_free"]:
        checks.append(
            _none_check("no loop", len(loops), "loops", f"traffic went round {' - '.join(loops[0])}" if loops else "")
        )
    if expected["is_black_hole_free"]:
        checks.append(_black_hole_check(timeline, outages, faults))
    if expected["loses_nothing_on_return"]:
        lost = [fault for fault in faults if fault.return_.flows_lost]
        reason = f'the end of "{lost[0].id}" cost {lost[0].return_.demands_lost} demands service' if lost else ""
        checks.append(_none_check("lossless return", len(lost), "returns with a loss", reason))
    if expected["converges"]:
        checks.append(_convergence_check(timeline))
    return checks


def recovery_check(name: str, bound_ns: int, faults: Sequence[FaultReport], finished_ns: int) -> Check:
    """
    Return whether every affected flow with a path was served again within *bound_ns*.

    A flow that had not recovered when its fault ended missed the bound if the fault lasted longer than that, and is undecidable
    otherwise.
    """
    expected = f"at most {format_ms(bound_ns)}"
    slowest = max(((fault.all.last_ns, fault.id) for fault in faults if fault.all.last_ns is not None), default=None)
    for fault in faults:
        if fault.not_recovered.flows and fault.effective_at_ns is not None:
            lasted_ns = (finished_ns if fault.ended_at_ns is None else fault.ended_at_ns) - fault.effective_at_ns
            return Check(
                name=name,
                expected=expected,
                measured=f"more than {format_duration(lasted_ns)}",
                outcome="missed" if lasted_ns > bound_ns else "undecidable",
                reason=f'{fault.not_recovered.demands} demands had not recovered when "{fault.id}" ended, after {format_duration(lasted_ns)}',
            )
    if slowest is None:
        is_physical = any(fault.is_physical for fault in faults)
        return Check(
            name=name,
            expected=expected,
            measured="nothing had to recover",
            outcome="undecidable" if is_physical else "passed",
            reason="no affected flow kept a path" if is_physical else "",
        )
    value_ns, fault_id = slowest
    is_met = value_ns <= bound_ns
    return Check(
        name=name,
        expected=expected,
        measured=format_ms(value_ns),
        outcome="passed" if is_met else "missed",
        reason="" if is_met else f'the last flow of "{fault_id}" took {format_ms(value_ns)}',
    )


def p95_check(bound_ns: int, faults: Sequence[FaultReport], finished_ns: int) -> Check:
    """
    Return whether the 95th percentile over events is within *bound_ns*; the maximum, with too few events for a percentile.

    It is met or missed if its whole interval is on one side of the bound, and undecidable if the bound is inside. An event whose
    fault ended before the last flow was served is taken for endless where that is to the worse, and for as long as the fault otherwise.
    """
    recoveries = recoveries_of(faults, finished_ns)
    shortest = percentile_interval([at_least for at_least, _ in recoveries], 0.95)
    longest = percentile_interval([at_most for _, at_most in recoveries], 0.95)
    if isinstance(shortest, Refusal) or isinstance(longest, Refusal):
        check = recovery_check("recovery p95", bound_ns, faults, finished_ns)
        needed = percentile_events_min(0.95)
        count = len(recoveries)
        note = f"{count} event{'s' if count != 1 else ''}, fewer than {needed}: the maximum is judged"
        return check.model_copy(update={"measured": f"{check.measured} ({note})"})
    outcome: Outcome = "undecidable"
    if longest.interval.high <= bound_ns:
        outcome = "passed"
    elif shortest.interval.low > bound_ns:
        outcome = "missed"
    low, value, high = (
        format_ms(int(one)) if math.isfinite(one) else "not recovered"
        for one in (shortest.interval.low, longest.value, longest.interval.high)
    )
    measured = f"{value} over {len(recoveries)} events, 95 % interval {low} to {high}"
    within = sum(at_most <= bound_ns for _, at_most in recoveries)
    needed_to_tell = events_to_tell(within, len(recoveries), 0.95)
    reason = {
        "passed": "",
        "missed": measured,
        "undecidable": f"{measured}: too few to tell it from the bound"
        + ("" if needed_to_tell is None else f", about {needed_to_tell:,} could"),
    }[outcome]
    return Check(
        name="recovery p95",
        expected=f"at most {format_ms(bound_ns)}",
        measured=measured,
        outcome=outcome,
        reason=reason,
    )


def share_check(name: str, bound_ppm: int, shares: Iterable[tuple[str, int | None]]) -> Check:
    """Return whether every share that there is reaches *bound_ppm*; without any it is undecidable."""
    there = [(share, of) for of, share in shares if share is not None]
    expected = f"at least {format_share(bound_ppm)}"
    if not there:
        return Check(
            name=name, expected=expected, measured="not measured", outcome="undecidable", reason="nothing to measure"
        )
    share, of = min(there)
    is_met = share >= bound_ppm
    return Check(
        name=name,
        expected=expected,
        measured=format_share(share),
        outcome="passed" if is_met else "missed",
        reason="" if is_met else f"{format_share(share)} of {of}",
    )


def _none_check(name: str, count: int, what: str, reason: str) -> Check:
    outcome: Outcome = "missed" if count else "passed"
    return Check(
        name=name, expected=f"no {what}", measured=str(count) if count else "none", outcome=outcome, reason=reason
    )


def _black_hole_check(timeline: Timeline, outages: Attribution, faults: Sequence[FaultReport]) -> Check:
    lost: list[tuple[str, Outage]] = [
        (fault_id, outage)
        for fault_id, found in sorted(outages.bystanders.items())
        for outage in found
        if any(part.cause == NOT_RECOVERED for part in outage.segments)
    ]
    left = sum(fault.not_recovered.flows for fault in faults)
    reason = ""
    if lost:
        fault_id, outage = lost[0]
        demands = timeline.demands_of(outage.flow)
        reason = f'{demands} demands {outage.flow[0]} -> {outage.flow[1]} lost service under "{fault_id}", which their paths do not cross'
    elif left:
        reason = f"{left} flows with a path were left unserved until their fault ended"
    return _none_check("no black hole while there is a path", len(lost) + left, "flows lost beside a recovery", reason)


def _convergence_check(timeline: Timeline) -> Check:
    still = [outage for outage in timeline.outages if outage.is_open and outage.segments[-1].cause == NOT_RECOVERED]
    demands = sum(timeline.demands_of(outage.flow) for outage in still)
    return Check(
        name="converges",
        expected="all that have a path are served when the run ends",
        measured=f"{demands} demands are not" if still else "they are",
        outcome="undecidable" if still else "passed",
        reason=f"{demands} demands with a path were not served in full when the run ended" if still else "",
    )
