"""Which figures does a run give, over how many events, and how sure are they?

Rule 1: an event is all that was planned for one instant: parts that share a risk fail together and count once.
Rule 2: every share and percentile has its interval or the reason why not; rounding only ever widens an interval.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Final, TypeVar

from erfs.units import PPM
from erfs_scenario.costs import Owed, Weight, lost_in, weights_by_nature
from erfs_scenario.plan import stream
from erfs_scenario.report import Baseline, FaultReport, Figure, IntervalReport, RefusalReport, SetReport
from erfs_scenario.statistics import (
    Estimate,
    Interval,
    Refusal,
    bootstrap_interval,
    mean,
    paired_difference,
    percentile_interval,
    proportion_interval,
)
from erfs_scenario.timeline import CUT, CUT_BY_POLICY, Attribution, Outage, Timeline

PERCENTILES: Final = (0.5, 0.95, 0.99)
_BY_NATURE: Final = (
    "the same without acceleration: of each event, what lasted until its fault ended weighs as much as that is long by nature, what was"
    " over before as it was, and there are as many fewer events"
)
_RESAMPLED: Final = "; interval: what as many other events of the same kinds would have given, the length of the run and what has a path being as here"

T = TypeVar("T")
Event = tuple[FaultReport, ...]
"""The faults planned for one instant."""


def events_of(faults: Iterable[FaultReport]) -> list[Event]:
    """Return the events that took effect, in the order of their instants."""
    return together((fault.planned_at_ns, fault) for fault in faults if fault.effective_at_ns is not None)


def together(planned: Iterable[tuple[int, T]]) -> list[tuple[T, ...]]:
    """Return what is *planned* (instant, what) by instant, in their order; what has one instant is one event."""
    found: dict[int, list[T]] = {}
    for at_ns, one in planned:
        found.setdefault(at_ns, []).append(one)
    return [tuple(found[at_ns]) for at_ns in sorted(found)]


def recoveries_of(faults: Iterable[FaultReport], finished_ns: int) -> list[tuple[float, float]]:
    """
    Return at least and at most how long each event took until the last affected flow that kept a path was served.

    The two differ only where a fault ended before that: it took as long as the fault lasted, and for all we know forever. Events
    that left no affected flow a path are left out.
    """
    found = []
    for event in events_of(faults):
        last = [float(fault.all.last_ns) for fault in event if fault.all.last_ns is not None]
        lasted = [
            float((finished_ns if fault.ended_at_ns is None else fault.ended_at_ns) - fault.effective_at_ns)
            for fault in event
            if fault.not_recovered.flows and fault.effective_at_ns is not None
        ]
        if last or lasted:
            found.append((max(last + lasted), math.inf if lasted else max(last)))
    return found


def figures_of(
    timeline: Timeline,
    outages: Attribution,
    faults: Sequence[FaultReport],
    sets: Sequence[SetReport],
    baselines: Sequence[Baseline] = (),
) -> tuple[Figure, ...]:
    """Return every figure that generalises beyond the run. Cost: O(events**2 + outages) for each demand set."""
    return (
        *recovery_figures(faults, timeline.header["expectations"], timeline.finished_ns),
        *availability_figures(timeline, outages, sets),
        *natural_figures(timeline, outages, sets),
        *(figure for one in baselines for figure in difference_figures(one, faults, timeline.header["seed"])),
    )


def recovery_figures(
    faults: Sequence[FaultReport], expectations: Mapping[str, int | bool | None], finished_ns: int
) -> list[Figure]:
    """Return percentiles of the recovery over events, and the shares of events that went well."""
    recoveries = [at_most for _, at_most in recoveries_of(faults, finished_ns)]
    found = [_percentile(recoveries, share) for share in PERCENTILES]
    found.append(
        share_figure(
            "events recovered",
            sum(not math.isinf(one) for one in recoveries),
            len(recoveries),
            "events after which every affected flow with a path was served in full before the fault ended, of those that left one a path",
        )
    )
    bounds = {expectations.get(name) for name in ("recovery_max_ns", "recovery_p95_ns")} - {None}
    found += [
        share_figure(
            f"events recovered within {bound / 1e6:g} ms",
            sum(one <= bound for one in recoveries),
            len(recoveries),
            "of the same events, those whose last flow was served in full that soon",
        )
        for bound in sorted(bound for bound in bounds if bound is not None)
    ]
    returns = [
        event for event in events_of(faults) if all(one.ended_at_ns is not None and one.is_physical for one in event)
    ]
    found.append(
        share_figure(
            "lossless returns",
            sum(not any(one.return_.flows_lost for one in event) for event in returns),
            len(returns),
            "events of links and switches whose end cost no flow any service, of all such events that ended",
        )
    )
    return found


def availability_figures(timeline: Timeline, outages: Attribution, sets: Sequence[SetReport]) -> list[Figure]:
    """Return availability in its definitions for each demand set, with what resampling the events says of it."""
    events = _events_in(timeline)
    by_outage = _event_of_each(outages, events)
    duration_ns = 0 if timeline.started_ns is None else timeline.finished_ns - timeline.started_ns
    found: list[Figure] = []
    for part in sets:
        # The last place is for what no event caused.
        lost_all = [0] * (len(events) + 1)
        lost_with_path = [0] * (len(events) + 1)
        not_in_full = [0] * (len(events) + 1)
        down: list[tuple[int, int, int]] = []
        for outage in timeline.outages:
            demands = timeline.flow_weights[outage.flow].get(part.name, 0)
            if not demands:
                continue
            place = by_outage.get(id(outage), len(events))
            down.append((outage.start_ns, outage.end_ns, place))
            for segment in outage.segments:
                lost = (PPM - segment.served_ppm) * (segment.end_ns - segment.start_ns) * demands
                lost_all[place] += lost
                if segment.cause not in (CUT, CUT_BY_POLICY):
                    lost_with_path[place] += lost
                    not_in_full[place] += PPM * (segment.end_ns - segment.start_ns) * demands
        with_path_ns = part.total_demand_ns - part.pathless_demand_ns
        found += [
            _availability(
                timeline,
                "availability",
                part,
                part.availability_ppm,
                lost_with_path,
                with_path_ns * PPM,
                "served demand-time over demand-time that had a permitted path",
            ),
            _availability(
                timeline,
                "availability of all",
                part,
                part.availability_of_all_ppm,
                lost_all,
                part.total_demand_ns * PPM,
                "served demand-time over all demand-time, cut or not",
            ),
        ]
        if part.pair_availability_ppm is not None:
            found.append(
                _availability(
                    timeline,
                    "pair availability",
                    part,
                    part.pair_availability_ppm,
                    not_in_full,
                    with_path_ns * PPM,
                    "time in which a pair was served in full over time in which it had a permitted path, of all pairs together",
                )
            )
        if part.job_availability_ppm is not None:
            found.append(
                _availability(
                    timeline,
                    "job availability",
                    part,
                    part.job_availability_ppm,
                    _down_of_each(down, len(events)),
                    duration_ns,
                    "time in which all demands of the job were served in full, over all time",
                )
            )
    return found


def natural_figures(timeline: Timeline, outages: Attribution, sets: Sequence[SetReport]) -> list[Figure]:
    """
    Return the availability that the same events would leave if they came and were mended as they do by nature.

    Nothing where no rate was accelerated; a refusal where it is not known that repairs were scaled as the rates were.
    """
    rates = timeline.header.get("rates", ())
    if all(use["acceleration"] == 1 for use in rates):
        return []
    weights = weights_by_nature(timeline)
    events = _events_in(timeline)
    place_of = {fault: place for place, event in enumerate(events) for fault in event}
    owed = Owed(timeline, outages)
    duration_ns = 0 if timeline.started_ns is None else timeline.finished_ns - timeline.started_ns
    found: list[Figure] = []
    for part in sets:
        losses = _natural_losses(timeline, owed, weights, place_of, part) if not isinstance(weights, str) else None
        with_path_ns = part.total_demand_ns - part.pathless_demand_ns
        wanted = {
            "availability": with_path_ns * PPM,
            "availability of all": part.total_demand_ns * PPM,
            "pair availability": with_path_ns * PPM,
        }
        if part.is_job:
            wanted["job availability"] = duration_ns
        for name, whole in wanted.items():
            lost = [0] if losses is None else losses[name]
            value_ppm = (whole - sum(lost)) * PPM // whole if whole else 0
            title = f"{name} at natural rates"
            figure = _availability(timeline, title, part, value_ppm, lost, whole, _BY_NATURE)
            if isinstance(weights, str):
                refusal = RefusalReport(reason=weights, events_needed=None)
                figure = figure.model_copy(
                    update={"value": None, "interval": None, "refusal": refusal, "events": len(events)}
                )
            found.append(figure)
    return found


def _natural_losses(
    timeline: Timeline,
    owed: Owed,
    weights: Mapping[str, tuple[Weight, Weight]],
    place_of: Mapping[str, int],
    part: SetReport,
) -> dict[str, list[int]]:
    """Return what each event, and last what none caused, would cost by nature: demand-time in millionths times ns, job time in ns."""
    places = max(place_of.values(), default=-1) + 2
    with_path, of_all, in_full, down = ([0] * places for _ in range(4))
    pieces: list[tuple[int, int, int, int, Weight]] = []
    for outage in timeline.outages:
        demands = timeline.flow_weights[outage.flow].get(part.name, 0)
        if not demands:
            continue
        for number, piece in enumerate(owed.pieces_of(outage)):
            lasting, passing = (Weight(), Weight()) if piece.fault is None else weights[piece.fault]
            weight = lasting if piece.is_lasting else passing
            place = places - 1 if piece.fault is None else place_of[piece.fault]
            lost = lost_in(outage.segments, piece)
            of_all[place] += weight.of(lost.of_all * demands)
            with_path[place] += weight.of(lost.with_path * demands)
            in_full[place] += weight.of(lost.in_full * demands)
            pieces.append((piece.start_ns, piece.end_ns, place, number, weight))
    reached = 0
    for start_ns, end_ns, place, _, weight in sorted(pieces, key=lambda one: one[:4]):
        if end_ns > reached:
            down[place] += weight.of(end_ns - max(start_ns, reached))
            reached = end_ns
    return {
        "availability": with_path,
        "availability of all": of_all,
        "pair availability": in_full,
        "job availability": down,
    }


def _events_in(timeline: Timeline) -> list[tuple[str, ...]]:
    """Return the faults of each event that took effect, by name."""
    return together(
        (int(fault.plan["at_ns"]), fault.id) for fault in timeline.faults if fault.effective_at_ns is not None
    )


def difference_figures(baseline: Baseline, faults: Sequence[FaultReport], seed: int) -> list[Figure]:
    """Return what the events of this run cost more or less than the same events with *baseline*, pair by pair."""
    events = [
        [fault.id for fault in event if fault.id in baseline.lost_demand_ns]
        for event in events_of(faults)
        if any(fault.id in baseline.lost_demand_ns for fault in event)
    ]
    theirs = [float(sum(baseline.lost_demand_ns[one] for one in event)) for event in events]
    ours = [float(sum(baseline.erfs_lost_demand_ns[one] for one in event)) for event in events]
    found = paired_difference(theirs, ours, stream(seed, f"statistics/baseline/{baseline.name}"))
    cost = f"demand-time that an event cost while there was a path, here minus with {baseline.name}"
    return [
        share_figure(
            f"events that cost less than with {baseline.name}",
            found.smaller,
            found.pairs,
            f"of the events that are events to {baseline.name} too, those that cost less demand-time with a path in this run",
        ),
        _duration(
            f"cost minus that with {baseline.name}, median", found.pairs, found.median, f"median over events of {cost}"
        ),
        _duration(
            f"cost minus that with {baseline.name}, mean", found.pairs, found.mean, f"mean over events of {cost}"
        ),
    ]


def share_figure(name: str, successes: int, trials: int, definition: str) -> Figure:
    """Return the share that *successes* of *trials* events are, with its exact interval."""
    interval = proportion_interval(successes, trials)
    return Figure(
        name=name,
        of="events",
        unit="ppm",
        value=successes * PPM // trials if trials else None,
        events=trials,
        count=successes,
        interval=_ppm(interval) if isinstance(interval, Interval) else None,
        refusal=refusal_report(interval) if isinstance(interval, Refusal) else None,
        definition=definition,
    )


def _percentile(recoveries: Sequence[float], share: float) -> Figure:
    return _duration(
        f"recovery p{share * 100:g}",
        len(recoveries),
        percentile_interval(recoveries, share),
        "over events, each with its last affected flow that kept a path; one that was not served when its fault ended counts as slower than all",
    )


def _duration(name: str, events: int, found: Estimate | Refusal, definition: str) -> Figure:
    value = interval = refusal = None
    if isinstance(found, Estimate):
        value, interval = in_ns(found.value, round), interval_in_ns(found.interval)
    else:
        refusal = refusal_report(found)
    return Figure(
        name=name,
        of="events",
        unit="ns",
        value=value,
        events=events,
        interval=interval,
        refusal=refusal,
        definition=definition,
    )


def interval_in_ns(interval: Interval) -> IntervalReport:
    """Return *interval*, in nanoseconds, as reports have it: rounded outwards."""
    return IntervalReport(
        low=in_ns(interval.low, math.floor),
        high=in_ns(interval.high, math.ceil),
        level_ppm=round(interval.level * PPM),
        method=interval.method,
    )


def in_ns(value: float, rounded: Callable[[float], int]) -> int | None:
    """Return *value* rounded; None where it is infinite."""
    return None if math.isinf(value) else rounded(value)


def _availability(
    timeline: Timeline,
    name: str,
    part: SetReport,
    value_ppm: int,
    lost: Sequence[int],
    whole: int,
    definition: str,
) -> Figure:
    interval = refusal = None
    if not whole:
        refusal = RefusalReport(reason="nothing was measured", events_needed=None)
    else:
        # Divided as integers: the sums are beyond what a float holds exactly, their quotients are not.
        *shares, rest = (float(Fraction(one, whole)) for one in lost)
        events = len(shares)
        found = bootstrap_interval(
            shares,
            lambda resampled: 1 - rest - events * mean(resampled),
            # The same resamples for each definition: where nothing is cut they must not differ by chance.
            stream(timeline.header["seed"], f"statistics/{part.name}"),
        )
        if isinstance(found, Estimate):
            interval = _ppm(found.interval)
        else:
            refusal = refusal_report(found)
    return Figure(
        name=name,
        of=part.name,
        unit="ppm",
        value=value_ppm if whole else None,
        events=len(lost) - 1,
        interval=interval,
        refusal=refusal,
        definition=definition + _RESAMPLED,
    )


def _ppm(interval: Interval) -> IntervalReport:
    return IntervalReport(
        low=max(0, math.floor(interval.low * PPM)),
        high=min(PPM, math.ceil(interval.high * PPM)),
        level_ppm=round(interval.level * PPM),
        method=interval.method,
    )


def refusal_report(refusal: Refusal) -> RefusalReport:
    """Return *refusal* as reports have it."""
    return RefusalReport(reason=refusal.reason, events_needed=refusal.events_needed)


def _event_of_each(outages: Attribution, events: Sequence[Sequence[str]]) -> dict[int, int]:
    """Return the place of the event that each outage (by its identity) belongs to; one that several share is the first's."""
    found: dict[int, int] = {}
    for place, event in enumerate(events):
        for fault in event:
            own: list[Outage] = [
                *outages.by_fault.get(fault, ()),
                *outages.by_return.get(fault, ()),
                *outages.bystanders.get(fault, ()),
            ]
            for outage in own:
                found.setdefault(id(outage), place)
    return found


def _down_of_each(down: Iterable[tuple[int, int, int]], events: int) -> list[int]:
    """Return how long each event, and last what no event caused, kept a job down: what several cover is the first's, so that the sum is the job's down time."""
    found = [0] * (events + 1)
    reached = 0
    for start, end, event in sorted(down):
        if end > reached:
            found[event] += end - max(start, reached)
            reached = end
    return found
