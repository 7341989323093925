"""How do two runs of the same faults differ? Event by event, each with itself, so that what differs between events cancels out.

Rule 1: only events that are the same in both runs are compared; what has no counterpart is counted.
Rule 2: a difference is the second run's figure minus the first's, and has an interval or the reason why there is none.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from erfs.errors import FabricError
from erfs_scenario.figures import in_ns, interval_in_ns, refusal_report, together
from erfs_scenario.plan import stream
from erfs_scenario.report import FaultReport, IntervalReport, RefusalReport, Report
from erfs_scenario.statistics import Estimate, Refusal, paired_difference

DEFINITIONS: Final = {
    "recovery": "of each event until the last affected flow that kept a path was served in full; longer than anything where one was not when its fault ended",
    "demand-time lost": "of each event, not served although there was a path",
}


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Estimated(_Value):
    """A difference and how sure it is; absent: beyond anything measured, or refused."""

    value_ns: int | None
    interval: IntervalReport | None
    refusal: RefusalReport | None


class Paired(_Value):
    """One quantity over all pairs of events."""

    name: str
    definition: str
    pairs: int
    left_out: int
    """Events without the quantity in either run, or endless in both."""
    smaller: int
    """Pairs in which the second run has less."""
    equal: int
    larger: int
    median: Estimated
    mean: Estimated


class EventPair(_Value):
    """One event in both runs."""

    faults: tuple[str, ...]
    at_ns: int
    """As planned."""
    recovery_ns: tuple[int | None, int | None]
    """None: no affected flow kept a path, or it did not recover."""
    not_recovered_flows: tuple[int, int]
    lost_demand_ns: tuple[int, int]


class SetPair(_Value):
    """Availability of one demand set in both runs."""

    name: str
    availability_ppm: tuple[int, int]
    availability_of_all_ppm: tuple[int, int]
    job_availability_ppm: tuple[int | None, int | None]
    difference_ppm: int
    """Of the availability over demand-time with a permitted path."""


class Difference(_Value):
    """A setting in which the runs differ."""

    name: str
    first: str
    second: str


class Comparison(_Value):
    """What `erfs compare --json` prints."""

    comparison_version: Literal[1] = 1
    first: str
    second: str
    differences: tuple[Difference, ...]
    faults_unpaired: tuple[int, int]
    """Faults of each run that the other does not have, or that did not take effect in both."""
    quantities: tuple[Paired, ...]
    demand_sets: tuple[SetPair, ...]
    events: tuple[EventPair, ...]


def compare(first: Report, second: Report, names: tuple[str, str]) -> Comparison:
    """
    Return how *second* differs from *first*.

    Args:
        first: The run to compare with.
        second: The run compared.
        names: What to call them.

    Raises:
        FabricError: they ran on different fabrics, or have no fault in common.

    Cost: O(faults).
    """
    if first.fabric.digest != second.fabric.digest:
        raise FabricError(
            f'"{names[0]}" ran on fabric {first.fabric.name} ({first.fabric.digest}), "{names[1]}" on {second.fabric.name}'
            f" ({second.fabric.digest}): only runs on the same fabric can be compared"
        )
    others = {_identity(fault): fault for fault in second.faults if fault.effective_at_ns is not None}
    paired = [
        (fault, others[_identity(fault)])
        for fault in first.faults
        if fault.effective_at_ns is not None and _identity(fault) in others
    ]
    if not paired:
        raise FabricError(
            f'"{names[0]}" and "{names[1]}" have no fault in common that took effect in both:'
            " run the same scenario with the same seed"
        )
    pairs = [_event(event) for event in together((pair[0].planned_at_ns, pair) for pair in paired)]
    return Comparison(
        first=names[0],
        second=names[1],
        differences=tuple(_differences(first, second)),
        faults_unpaired=(len(first.faults) - len(paired), len(second.faults) - len(paired)),
        quantities=(
            _paired("recovery", pairs, _recovery, first.seed),
            _paired("demand-time lost", pairs, lambda pair, side: float(pair.lost_demand_ns[side]), first.seed),
        ),
        demand_sets=tuple(_sets(first, second)),
        events=tuple(pairs),
    )


def _identity(fault: FaultReport) -> tuple[object, ...]:
    """Return what makes a fault the same in another run: what was asked, not what became of it."""
    return fault.id, fault.kind, fault.links, fault.nodes, fault.planned_at_ns, fault.planned_end_at_ns


def _event(pairs: Sequence[tuple[FaultReport, FaultReport]]) -> EventPair:
    sides = tuple(zip(*pairs, strict=True))

    def last_ns(faults: tuple[FaultReport, ...]) -> int | None:
        return max((fault.all.last_ns for fault in faults if fault.all.last_ns is not None), default=None)

    left = [sum(fault.not_recovered.flows for fault in faults) for faults in sides]
    lost = [sum(fault.lost_demand_ns for fault in faults) for faults in sides]
    recoveries = [None if count else last_ns(faults) for count, faults in zip(left, sides, strict=True)]
    return EventPair(
        faults=tuple(fault.id for fault, _ in pairs),
        at_ns=pairs[0][0].planned_at_ns,
        recovery_ns=(recoveries[0], recoveries[1]),
        not_recovered_flows=(left[0], left[1]),
        lost_demand_ns=(lost[0], lost[1]),
    )


def _recovery(pair: EventPair, side: int) -> float | None:
    """Return the recovery on one *side*: infinite where it did not come, None where nothing could recover."""
    if pair.not_recovered_flows[side]:
        return math.inf
    found = pair.recovery_ns[side]
    return None if found is None else float(found)


def _paired(
    name: str, pairs: Iterable[EventPair], value: Callable[[EventPair, int], float | None], seed: int
) -> Paired:
    both = [(value(pair, 0), value(pair, 1)) for pair in pairs]
    kept = [
        (one, other)
        for one, other in both
        if one is not None and other is not None and not (math.isinf(one) and math.isinf(other))
    ]
    found = paired_difference(
        [one for one, _ in kept], [other for _, other in kept], stream(seed, f"statistics/compare/{name}")
    )
    return Paired(
        name=name,
        definition=DEFINITIONS[name],
        pairs=found.pairs,
        left_out=len(both) - len(kept),
        smaller=found.smaller,
        equal=found.equal,
        larger=found.larger,
        median=_estimated(found.median),
        mean=_estimated(found.mean),
    )


def _estimated(found: Estimate | Refusal) -> Estimated:
    if isinstance(found, Refusal):
        return Estimated(value_ns=None, interval=None, refusal=refusal_report(found))
    return Estimated(value_ns=in_ns(found.value, round), interval=interval_in_ns(found.interval), refusal=None)


def _sets(first: Report, second: Report) -> Iterable[SetPair]:
    others = {part.name: part for part in second.demand_sets}
    for one in first.demand_sets:
        other = others.get(one.name)
        if other is not None:
            yield SetPair(
                name=one.name,
                availability_ppm=(one.availability_ppm, other.availability_ppm),
                availability_of_all_ppm=(one.availability_of_all_ppm, other.availability_of_all_ppm),
                job_availability_ppm=(one.job_availability_ppm, other.job_availability_ppm),
                difference_ppm=other.availability_ppm - one.availability_ppm,
            )


def _differences(first: Report, second: Report) -> Iterable[Difference]:
    def settings(report: Report) -> dict[str, str]:
        found = {
            "scenario": report.name,
            "backend": report.backend,
            "seed": str(report.seed),
            "protection": "armed" if report.is_protecting else "none",
            "bus": "in band" if report.is_bus_in_band else "out of band",
        }
        found |= {f"timers.{name}": str(value) for name, value in report.timers.items()}
        return found | {f"timing.{name}": str(value) for name, value in report.timing.items()}

    one, other = settings(first), settings(second)
    for name in one | other:
        values = one.get(name, "-"), other.get(name, "-")
        if values[0] != values[1]:
            yield Difference(name=name, first=values[0], second=values[1])
