"""Which flows are measured: enough of them across everything that will break, each way, and some that no fault should touch.

Rule 1: chosen before the run, from a named stream of the seed and the ways that flows take now; never by what became of them.
Rule 2: no more than a machine can send without disturbing what it measures.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from erfs.fabric import Fabric, LinkEnd
from erfs.faults import Fault, FaultKind
from erfs.ids import LinkId
from erfs_scenario.demands import DemandSet
from erfs_scenario.kernel.tracing import Flow, Trace

EACH_WAY_MIN: Final = 30
"""Measured flows across a failed link, each way; a node's links share them."""
BESIDE: Final = 6
"""Flows that no fault is meant to touch."""
FLOWS_MAX: Final = 160
_DRAWN_AT_ONCE: Final = 500
_DRAWS_MAX: Final = 8
_PORTS: Final = range(20_000, 50_000)
# Of so many flows through a node, no equal path gets less than a third of its share but by polarised hashing: the odds are
# below 1e-6 for 100 flows over 2 paths, and smaller for more flows.
_SPREAD_FLOWS_MIN: Final = 50
_SHARE_MIN: Final = 3


@dataclass(frozen=True, slots=True)
class Chosen:
    """
    What is measured.

    Args:
        flows: In the order in which they are sent.
        sets: The demand set that each of *flows* was drawn from.
        skewed: Ports of equal paths that nearly no flow chose, among all that were looked at.
    """

    flows: tuple[Flow, ...]
    sets: tuple[str, ...]
    skewed: tuple[LinkEnd, ...]


def sending_ends(fabric: Fabric, fault: Fault, links_hit: Iterable[LinkId]) -> frozenset[LinkEnd]:
    """Return the ports whose packets *fault* harms: both ends of each link it hits, or of a one-way drop the end that is not heard."""
    if fault.kind is FaultKind.ONE_WAY_DROP:
        deaf = frozenset(fault.ends)
        return frozenset(end for link in fault.links for end in fabric.links[link].ends if end not in deaf)
    return frozenset(end for link in links_hit for end in fabric.links[link].ends)


def choose_flows(
    demands: Sequence[DemandSet],
    harmed: Mapping[str, frozenset[LinkEnd]],
    trace: Callable[[Sequence[Flow]], Sequence[Trace]],
    rng: random.Random,
) -> Chosen:
    """
    Return the flows to measure.

    Args:
        demands: Whose pairs they join.
        harmed: By fault, the ports whose packets it harms (`sending_ends`).
        trace: Tells the way of each flow.
        rng: Draws pairs and UDP source ports.

    Returns:
        At most `FLOWS_MAX` flows; across a single harmed link `EACH_WAY_MIN` each way as far as there are any. A flow without a
        way to its target is never among them.

    Cost: up to 4,000 flows traced.
    """
    needed = Counter[LinkEnd]()
    for ends in harmed.values():
        # Both ways of one link have a full sample each; where several links break together they share it.
        each = max(EACH_WAY_MIN // 4, -(-2 * EACH_WAY_MIN // max(1, len(ends)))) if len(ends) > 1 else EACH_WAY_MIN
        for end in ends:
            needed[end] = max(needed[end], each)
    beside = BESIDE
    chosen: dict[Flow, str] = {}
    seen = Counter[LinkEnd]()
    possible: dict[LinkEnd, int] = Counter()
    for _ in range(_DRAWS_MAX):
        drawn = _draw(demands, rng)
        for (flow, name), found in zip(drawn, trace([flow for flow, _ in drawn]), strict=True):
            if not found.is_whole or flow in chosen:
                continue
            for hop in found.hops:
                seen[hop.end] += 1
                for end in (hop.end, *hop.others):
                    possible[end] += 1
            crossed = [hop.end for hop in found.hops if needed[hop.end] > 0]
            is_beside = not any(hop.end in needed for hop in found.hops) and beside > 0
            if (crossed or is_beside) and len(chosen) < FLOWS_MAX:
                chosen[flow] = name
                needed.subtract(crossed)
                beside -= is_beside
        if not beside and not any(count > 0 for count in needed.values()):
            break
    skewed = sorted(
        end
        for end, count in possible.items()
        if count >= _SPREAD_FLOWS_MIN and seen[end] * _SHARE_MIN * _paths(end, possible) < count
    )
    return Chosen(tuple(chosen), tuple(chosen.values()), tuple(skewed))


def _paths(end: LinkEnd, possible: Mapping[LinkEnd, int]) -> int:
    return sum(1 for other in possible if other.node == end.node)


def _draw(demands: Sequence[DemandSet], rng: random.Random) -> list[tuple[Flow, str]]:
    usable = [found for found in demands if found.count]
    drawn = []
    for found in rng.choices(usable, k=_DRAWN_AT_ONCE):
        source, target = found.pair(rng.randrange(found.count))
        drawn.append((Flow(source, target, rng.choice(_PORTS)), found.name))
    return drawn
