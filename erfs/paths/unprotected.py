"""What does a single failure cut off although nothing is armed against it, and why?

Rule 1: only what is cut off is looked into: a fabric without such pairs costs one look at its trees.
Rule 2: "a path remains" means: permitted by policy. What only policy cuts off is told apart from what is cut off.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from erfs.ids import DestinationId, NodeId
from erfs.paths.bits import Bits, Indices, Words, empty, full, has_any, packed
from erfs.paths.dominators import NOTHING, Dominators
from erfs.paths.mesh import run_starts, runs
from erfs.paths.situation import Situation

NO_PATH: Final = "no path remains"
ONLY_VALLEY: Final = "only a valley would remain, which policy forbids"
NO_SAFE_CHANGE: Final = "a path remains, but no change made before restoration is sure not to loop"
REASONS: Final = (NO_PATH, NO_SAFE_CHANGE, ONLY_VALLEY)
ONLY_LINK: Final = "an endpoint's only link: nothing can repair it"
# Link-ends x cases looked into at once, in words.
WORDS_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True)
class Unprotected:
    """
    What a single failure cuts off although nothing is armed against it, and why.

    Args:
        failure: The link or switch, the shared-risk group, or a summary of many access links.
        reason: For people.
        destinations: Which cannot be reached any more.
        nodes: From where: switches with endpoints, and endpoints with several attachments. Empty: from everywhere.
    """

    failure: str
    reason: str
    destinations: tuple[DestinationId, ...]
    nodes: tuple[NodeId, ...]


class Loss(NamedTuple):
    """What one failure takes away. *node* is the switch that fails, *switch* and *column* what cannot be delivered there; -1 if none."""

    name: str
    ends: Indices
    node: int = -1
    switch: int = -1
    column: int = -1


class CutOff(NamedTuple):
    """Arrays of one length: under *failure* nothing is left at *node* towards *column*."""

    failure: Indices
    node: Indices
    column: Indices


def cut_off(situation: Situation, tree: Dominators, first_node: int) -> CutOff:
    """
    Return who is cut off by a single failure of a link or another switch: what a source depends on.

    Args:
        first_node: The failure of node 0; those of the others follow.

    Cost: O(sources x destinations), and O(failures) for each pair that depends on any.
    """
    sources = source_nodes(situation)
    count = tree.column_count
    depends = (tree.depth[sources] > 1) | (tree.sole[sources] != NOTHING)
    which, column = np.nonzero(depends)
    node = sources[which]
    soles, parents, depths = tree.sole.ravel(), tree.parent.ravel(), tree.depth.ravel()
    sole = soles[node * count + column]
    has_sole = sole != NOTHING
    found = [(sole[has_sole], node[has_sole], column[has_sole])]
    at = parents[node * count + column].astype(np.int64)
    while len(node):
        inner = depths[at * count + column] > 0
        node, column, at = node[inner], column[inner], at[inner]
        found.append((first_node + at, node, column))
        sole = soles[at * count + column]
        has_sole = sole != NOTHING
        found.append((sole[has_sole], node[has_sole], column[has_sole]))
        at = parents[at * count + column].astype(np.int64)
    return CutOff(*(np.concatenate(part).astype(np.int64) for part in zip(*found, strict=True)))


def source_nodes(situation: Situation) -> Indices:
    """Return the nodes where packets start: switches with endpoints, and endpoints with several attachments."""
    mesh = situation.mesh
    is_source = np.zeros(mesh.node_count, dtype=np.bool_)
    is_source[[access.switch for links in situation.access.values() for access in links]] = True
    is_source[mesh.transit_count :] = True
    return np.flatnonzero(is_source)


def listed(situation: Situation, cut: CutOff, losses: Mapping[int, Loss]) -> tuple[Unprotected, ...]:
    """
    Return what nothing is armed against, in canonical order.

    Args:
        cut: Who is cut off; each once.
        losses: By failure; those that cut off somebody are asked for.

    Cost: O(link-ends / 64 x hops) for each failure that cuts off somebody, and for each (failure, destination) where policy decides.
    """
    topology, count = situation.topology, len(situation.targets)
    switches = topology.switches
    key = cut.failure * count + cut.column
    order = np.lexsort((cut.node, key))
    cut = CutOff(cut.failure[order], cut.node[order], cut.column[order])
    reason = _reasons(situation, cut, losses)
    # Failures of one name are told as one, and destinations that it cuts off from the same nodes for the same reason together.
    number: dict[str, int] = {}
    failures, failure_of = np.unique(cut.failure, return_inverse=True)
    names_of = [losses[int(failure)].name for failure in failures]
    named = np.array([number.setdefault(name, len(number)) for name in names_of], dtype=np.int64)[failure_of]
    order = np.lexsort((cut.node, cut.column, reason, named))
    failure, node, column, reason = cut.failure[order], cut.node[order], cut.column[order], reason[order]
    starts = run_starts((named[order] * len(REASONS) + reason) * count + column)
    bounds = np.append(starts, len(order)).tolist()
    together: dict[tuple[str, str, tuple[NodeId, ...]], set[DestinationId]] = {}
    names: dict[bytes, tuple[NodeId, ...]] = {}
    for start, stop in pairwise(bounds):
        where = node[start:stop].tobytes()
        if where not in names:
            found: set[NodeId] = set()
            for place in node[start:stop].tolist():
                is_switch = place < len(switches)
                found.update((switches[place],) if is_switch else situation.sources[place - len(switches)].endpoints)
            names[where] = tuple(sorted(found))
        told = losses[int(failure[start])].name, REASONS[int(reason[start])], names[where]
        together.setdefault(told, set()).update(situation.targets[int(column[start])].destinations)
    for target in situation.targets:
        if len(target.attachments) == 1:
            told = switches[target.attachments[0]], NO_PATH, ()
            together.setdefault(told, set()).update(target.destinations)
    listing = [
        Unprotected(name, reason, tuple(sorted(destinations)), nodes)
        for (name, reason, nodes), destinations in sorted(together.items())
    ]
    single = sum(len(links) == 1 for links in situation.access.values())
    if single:
        listing.append(Unprotected(f"{single} access links", ONLY_LINK, (), ()))
    return tuple(listing)


def _reasons(situation: Situation, cut: CutOff, losses: Mapping[int, Loss]) -> Indices:
    """Return the reason of each of *cut*, which is in the order of (failure, destination)."""
    reason = np.full(len(cut.failure), REASONS.index(NO_PATH))
    if not len(reason):
        return reason
    is_joined, is_apart = _sides(situation, cut, losses)
    if not situation.topology.is_valley_free:
        reason[is_joined] = REASONS.index(NO_SAFE_CHANGE)
        open_cases = np.flatnonzero(~is_joined & ~is_apart)
    else:
        open_cases = np.flatnonzero(~is_apart)
    if len(open_cases):
        reason[open_cases] = _searched(situation, CutOff(*(part[open_cases] for part in cut)), losses)
    return reason


def _sides(situation: Situation, cut: CutOff, losses: Mapping[int, Loss]) -> tuple[Bits, Bits]:
    """Return who of *cut* is surely joined to its destination by working links, and who is surely not: one search for each failure."""
    mesh = situation.mesh
    starts = run_starts(cut.failure)
    failures, case_of = cut.failure[starts], np.repeat(np.arange(len(starts)), np.diff(starts, append=len(cut.failure)))
    attachments = [target.attachments for target in situation.targets]
    homes, begins = np.concatenate([*attachments, ()]).astype(np.int64), np.cumsum([0, *map(len, attachments)])
    home_starts, home_stops = begins[cut.column], begins[cut.column + 1]
    is_joined, is_apart = np.zeros(len(case_of), dtype=np.bool_), np.zeros(len(case_of), dtype=np.bool_)
    step = 64 * max(1, WORDS_AT_ONCE // max(1, len(mesh)))
    for first in range(0, len(failures), step):
        cases = [losses[failure] for failure in failures[first : first + step].tolist()]
        roots = np.zeros((mesh.node_count, len(cases)), dtype=np.bool_)
        roots[[int(loss.node == 0) for loss in cases], np.arange(len(cases))] = True
        side = reach(situation, packed(roots), _works(situation.hops.usable, cases), [np.arange(len(mesh))])
        inside = np.flatnonzero((case_of >= first) & (case_of < first + step))
        case = case_of[inside] - first
        near = _at(side, cut.node[inside], case)
        chosen, runs_start = runs(home_starts[inside], home_stops[inside])
        home_case = np.repeat(case, np.diff(runs_start))
        is_lost = np.array([loss.node for loss in cases])[home_case] == homes[chosen]
        far = _at(side, homes[chosen], home_case)
        some_there = np.logical_or.reduceat(far & ~is_lost, runs_start[:-1])
        some_elsewhere = np.logical_or.reduceat(~far & ~is_lost, runs_start[:-1])
        is_told = np.array([loss.switch < 0 for loss in cases])[case]
        is_joined[inside] = near & some_there & is_told
        # An endpoint with several attachments may be on both sides.
        is_inside = near & (cut.node[inside] < mesh.transit_count)
        is_apart[inside] = ((is_inside & ~some_there) | (~near & ~some_elsewhere)) & is_told
    return is_joined, is_apart


def _searched(situation: Situation, cut: CutOff, losses: Mapping[int, Loss]) -> Indices:
    """Return the reason of each of *cut*: one search for each (failure, destination)."""
    mesh, count = situation.mesh, len(situation.targets)
    key = cut.failure * count + cut.column
    starts = run_starts(key)
    failures, columns = np.divmod(key[starts], count)
    case_of = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(key)))
    every = np.arange(len(mesh))
    ways = [(np.flatnonzero(~mesh.is_up), np.flatnonzero(mesh.is_up)), (every,)]
    policies = ways if situation.topology.is_valley_free else ways[1:]
    reason = np.zeros(len(key), dtype=np.int64)
    step = 64 * max(1, WORDS_AT_ONCE // max(1, len(mesh)))
    for first in range(0, len(starts), step):
        cases = [losses[failure] for failure in failures[first : first + step].tolist()]
        works = _works(situation.hops.usable, cases)
        attached = situation.is_attached[:, columns[first : first + step]]
        for case, loss in enumerate(cases):
            if loss.column == columns[first + case]:
                attached[loss.switch, case] = False
            if loss.node >= 0:
                attached[loss.node, case] = False
        reached = [reach(situation, packed(attached), works, phases) for phases in policies]
        inside = np.flatnonzero((case_of >= first) & (case_of < first + step))
        node, number = cut.node[inside], case_of[inside] - first
        is_permitted, is_connected = _at(reached[0], node, number), _at(reached[-1], node, number)
        reason[inside] = np.where(
            is_permitted,
            REASONS.index(NO_SAFE_CHANGE),
            np.where(is_connected, REASONS.index(ONLY_VALLEY), REASONS.index(NO_PATH)),
        )
    return reason


def _at(words: Words, node: Indices, case: Indices) -> Bits:
    marks: Bits = ((words[node, case >> 6] >> (case & 63).astype(np.uint64)) & np.uint64(1)).astype(np.bool_)
    return marks


def _works(usable: Bits, cases: Sequence[Loss]) -> Words:
    """Return, link-ends x cases, which link-ends still work."""
    works = empty(len(usable), len(cases))
    works[usable] = full(len(cases))
    ends = np.concatenate([loss.ends for loss in cases])
    case = np.repeat(np.arange(len(cases)), [len(loss.ends) for loss in cases])
    broken = ~np.left_shift(np.uint64(1), (case & 63).astype(np.uint64))
    np.bitwise_and.at(works, (ends, case >> 6), broken)
    return works


def reach(situation: Situation, attached: Words, works: Words, phases: Sequence[Indices]) -> Words:
    """
    Return from where a path exists, nodes x cases; each case has attachments and working link-ends of its own.

    Args:
        attached: Nodes x cases.
        works: Link-ends x cases.
        phases: The link-ends a search from the destination backwards may take, phase by phase.

    Cost: O(link-ends x cases / 64) words per hop.
    """
    mesh = situation.mesh
    reached = attached.copy()
    for ends in phases:
        sources = mesh.source[ends]
        starts = run_starts(sources)
        nodes, targets, usable = sources[starts], mesh.target[ends], works[ends]
        while len(nodes):
            found = np.bitwise_or.reduceat(reached[targets] & usable, starts, axis=0)
            if not has_any(found & ~reached[nodes]).any():
                break
            reached[nodes] |= found
    return reached
