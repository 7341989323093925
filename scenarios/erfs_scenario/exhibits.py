"""What a report shows beside its figures: service over the whole run, how long outages lasted, the worst flows and their ways, drawings.

Rule 1: pure functions of a journal's timeline; nothing here passes a verdict.
Rule 2: what is left out for want of room is counted.
"""

import shlex
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from erfs.units import MS, PPM, SECOND, US
from erfs_scenario.report import Bucket, Drawing, DrawnNode, OutageLengths, WorstFlow
from erfs_scenario.timeline import CUT, CUT_BY_POLICY, Attribution, Outage, Timeline

WORST_MAX: Final = 10
# A page's width in pixels, about: more steps than this nobody sees.
SERVICE_POINTS_MAX: Final = 800
# Twelve pictures are a long page; the flows' ways are in the table of the worst, too.
DRAWINGS_MAX: Final = 12
ROW_DRAWN_MAX: Final = 16

_BOUNDS: Final = tuple(
    factor * unit for unit in (100 * US, MS, 10 * MS, 100 * MS, SECOND, 10 * SECOND) for factor in (1, 2, 5)
)
"""100 us, 200 us, 500 us, 1 ms … up to 50 s: a decade has three."""


def service_of(timeline: Timeline) -> tuple[tuple[int, int], ...]:
    """Return the served share of all demands as (instant, millionths rounded down), as steps over the measurement. Cost: O(n log n) of segments."""
    total = sum(timeline.weights.values())
    if timeline.started_ns is None or not total:
        return ()
    changes: dict[int, int] = {timeline.started_ns: 0}
    for outage in timeline.outages:
        demands = timeline.demands_of(outage.flow)
        for part in outage.segments:
            lost = (PPM - part.served_ppm) * demands
            changes[part.start_ns] = changes.get(part.start_ns, 0) + lost
            changes[part.end_ns] = changes.get(part.end_ns, 0) - lost
    steps = []
    level = 0
    for at_ns in sorted(changes):
        level += changes[at_ns]
        steps.append((at_ns, PPM - -(-level // total)))
    if len(steps) <= SERVICE_POINTS_MAX:
        return tuple(steps)
    return _lowest(steps, timeline.started_ns, timeline.finished_ns)


def _lowest(steps: list[tuple[int, int]], from_ns: int, until_ns: int) -> tuple[tuple[int, int], ...]:
    """Return *steps* thinned to the lowest share of each of `SERVICE_POINTS_MAX` stretches: no loss disappears, but none looks shorter."""
    length_ns = max(1, -(-(until_ns - from_ns) // SERVICE_POINTS_MAX))
    lowest: dict[int, int] = {}
    for (at_ns, share), (next_ns, _) in zip(steps, [*steps[1:], (until_ns, 0)], strict=True):
        first, last = (at_ns - from_ns) // length_ns, (max(at_ns, next_ns - 1) - from_ns) // length_ns
        for index in range(first, last + 1):
            lowest[index] = min(lowest.get(index, PPM), share)
    found: list[tuple[int, int]] = []
    for index in sorted(lowest):
        if not found or found[-1][1] != lowest[index]:
            found.append((from_ns + index * length_ns, lowest[index]))
    return tuple(found)


def outage_lengths(outages: Attribution) -> OutageLengths:
    """Return how long outages lasted, in classes of 1, 2 and 5. Cost: O(outages)."""
    with_path = [0] * (len(_BOUNDS) + 1)
    pathless = [0] * (len(_BOUNDS) + 1)
    found = [outage for _, outage in _caused(outages)]
    for outage in found:
        length_ns = outage.end_ns - outage.start_ns
        counts = pathless if _pathless_ns(outage) else with_path
        counts[bisect_right(_BOUNDS, length_ns)] += 1
    bounds = (0, *_BOUNDS)
    used = [index for index in range(len(bounds)) if with_path[index] or pathless[index]]
    return OutageLengths(
        outages=len(found),
        still_open=sum(outage.is_open for outage in found),
        longest_ns=max((outage.end_ns - outage.start_ns for outage in found), default=None),
        buckets=tuple(
            Bucket(
                from_ns=bounds[index],
                until_ns=bounds[index + 1] if index + 1 < len(bounds) else None,
                with_path=with_path[index],
                pathless=pathless[index],
            )
            for index in (range(used[0], used[-1] + 1) if used else ())
        ),
    )


def worst_flows(timeline: Timeline, outages: Attribution) -> tuple[WorstFlow, ...]:
    """Return the ten flows that lost most, each by its longest outage. Cost: O(outages log outages)."""
    faults = {fault.id: fault for fault in timeline.faults}

    def rank(fault: str, outage: Outage) -> tuple[int, int, bool]:
        """Order by: never cut, then by length; those cut by how long they were, as their waiting after the return is planned."""
        pathless_ns = _pathless_ns(outage)
        length_ns = pathless_ns or outage.end_ns - outage.start_ns
        # Many are cut exactly alike: those that show their way tell more.
        return bool(pathless_ns), -length_ns, outage.flow not in faults[fault].paths

    worst: dict[tuple[str, str], tuple[tuple[int, int, bool], str, Outage]] = {}
    for fault, outage in _caused(outages):
        item = (rank(fault, outage), fault, outage)
        known = worst.get(outage.flow)
        if known is None or item[0] < known[0]:
            worst[outage.flow] = item
    ordered = sorted(worst.items(), key=lambda item: (item[1][0], item[0]))
    found = []
    for (source, destination), (_, fault_id, outage) in ordered[:WORST_MAX]:
        times = faults[fault_id]
        before, after = times.paths.get((source, destination), ((), ()))
        found.append(
            WorstFlow(
                source=source,
                destination=destination,
                demands=timeline.demands_of(outage.flow),
                fault=fault_id,
                at_ns=outage.start_ns,
                lasted_ns=outage.end_ns - outage.start_ns,
                pathless_ns=_pathless_ns(outage),
                is_open=outage.is_open,
                served_min_ppm=min(part.served_ppm for part in outage.segments),
                path_before=tuple(times.nodes[node][0] for node in before),
                path_after=tuple(times.nodes[node][0] for node in after),
            )
        )
    return tuple(found)


def drawings_of(timeline: Timeline) -> tuple[Drawing, ...]:
    """Return a drawing for each of the first faults whose ways the journal has. Cost: O(nodes log nodes) of each."""
    found: list[Drawing] = []
    for fault in timeline.faults:
        if not fault.nodes or len(found) == DRAWINGS_MAX:
            continue
        before = {pair for path, _ in fault.paths.values() for pair in pairwise(path)}
        after = {pair for _, path in fault.paths.values() for pair in pairwise(path)}
        # Those on the flows' ways first: a node without power has more links than a drawing has room for.
        on_ways = {node for pair in before | after for node in pair}
        order = sorted(fault.nodes, key=lambda node: (node not in on_ways, node not in fault.plan["nodes"], node))
        drawn: set[str] = set()
        in_row: dict[int, int] = {}
        for node in order:
            tier = fault.nodes[node][1] or 0
            in_row[tier] = in_row.get(tier, 0) + 1
            if in_row[tier] <= ROW_DRAWN_MAX:
                drawn.add(node)
        nodes = sorted(drawn, key=lambda node: (-(fault.nodes[node][1] or 0), node))

        def kept(pairs: Iterable[tuple[str, str]], drawn: set[str] = drawn) -> tuple[tuple[str, str], ...]:
            return tuple(sorted({(min(pair), max(pair)) for pair in pairs if drawn.issuperset(pair)}))

        found.append(
            Drawing(
                fault=fault.id,
                nodes=tuple(
                    DrawnNode(id=node, label=fault.nodes[node][0], tier=fault.nodes[node][1]) for node in nodes
                ),
                hit=tuple(
                    sorted(drawn.intersection(fault.plan["nodes"] or {end for pair in fault.broken for end in pair}))
                ),
                broken=kept(fault.broken),
                before=kept(before),
                after=kept(after),
                left_out=len(fault.nodes) - len(drawn),
            )
        )
    return tuple(found)


def replay_command(timeline: Timeline) -> str:
    """Return the command that runs the same faults again: beside the journal, or given the scenario's file where that has no plan."""
    header = timeline.header
    options = [] if header["backend"] == "sim" else [f"--backend {header['backend']}"]
    if timeline.has_plan:
        return " ".join(["erfs replay journal.jsonl", *options])
    options.insert(0, f"--seed {header['seed']}")
    if not header["is_protecting"]:
        options.append("--no-protection")
    options += [f"--set {shlex.quote(f'{name}={value}')}" for name, value in header.get("parameters", {}).items()]
    return f"erfs run {header['name']}.yaml {' '.join(options)}"


def limits_of(timeline: Timeline) -> tuple[str, ...]:
    """Return what this measurement cannot tell, in sentences for people."""
    backend = timeline.header["backend"]
    found = []
    if backend == "kernel":
        found += [
            "The flows are a sample of the demands, chosen so that many cross what breaks: availability is that of the sample, lower than that of all demands.",
            "Nothing is finer than the interval between two datagrams of a flow.",
            "Everything shares one machine: with few cores, agents are late because of other nodes' work, which the figures include.",
            "The ways of flows are not in the journal of this backend, so none are shown.",
        ]
    else:
        found.append("Packets do not exist one by one: nothing is said about their order, queues or congestion.")
    if backend == "sim":
        found.append("Delays are settings with a source each (timing in report.json), not measurements of this run.")
    if backend == "live":
        found.append(
            "Processes, bus and clock are real; the data plane is simulated, so no kernel has confirmed a repair."
        )
    if not timeline.is_finished:
        found.append(
            "The journal breaks off: what happened after its last line is unknown, and no outage still open then has a length."
        )
    found.append("One run is one sample: another seed hits other parts of the fabric.")
    return tuple(found)


def _caused(outages: Attribution) -> Iterable[tuple[str, Outage]]:
    """Yield each outage that a fault or a return caused once, with the fault's name."""
    seen: set[int] = set()
    for group in (outages.by_fault, outages.by_return, outages.bystanders):
        for fault, found in sorted(group.items()):
            for outage in found:
                if id(outage) not in seen:
                    seen.add(id(outage))
                    yield fault, outage


def _pathless_ns(outage: Outage) -> int:
    return sum(part.end_ns - part.start_ns for part in outage.segments if part.cause in (CUT, CUT_BY_POLICY))
