"""Which way did a flow's traffic take: over what breaks, and once it is repaired? One path for people, of all the equal ones.

Rule 1: only the walker's hops are read: tables as written, links as they are.
Rule 2: of several ways the one that tells most: before, one that crosses the fault; after, the one that differs least from it.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from erfs_scenario.dataplane import DataPlane, Share
from erfs_scenario.walker import Walk

# More hops than any sane path: what goes on for longer goes round in a circle.
HOPS_MAX = 32


def path_over(
    plane: DataPlane, walk: Walk, source: int, links: frozenset[int], crosses: Callable[[int], Share]
) -> tuple[int, ...]:
    """
    Return the first path from *source* that crosses *links*, as node indices.

    Args:
        plane: Whose tables are followed.
        walk: Towards the destination.
        source: Index of the sending node.
        links: Link indices, one of which the path shall cross.
        crosses: The share of a node's traffic that crosses *links*.

    Cost: O(hops * degree).
    """

    def choose(_: int, branches: Sequence[tuple[int, int, int]]) -> int:
        for lane, far, _weight in branches:
            if lane >> 1 in links or (plane.is_switch[far] and crosses(far)):
                return far
        return branches[0][1]

    return _follow(plane, walk, source, choose)


def path_beside(plane: DataPlane, walk: Walk, before: tuple[int, ...]) -> tuple[int, ...]:
    """Return the path from where *before* begins that leaves it as late, and no more often, than the tables make it. Cost: O(hops * degree)."""
    onward = dict(pairwise(before))

    def choose(node: int, branches: Sequence[tuple[int, int, int]]) -> int:
        fars = [far for _, far, _ in branches]
        return onward[node] if onward.get(node) in fars else fars[0]

    return _follow(plane, walk, before[0], choose)


def _follow(
    plane: DataPlane, walk: Walk, source: int, choose: Callable[[int, Sequence[tuple[int, int, int]]], int]
) -> tuple[int, ...]:
    """Return the nodes from *source* on by *choose*; where nothing leads on the path ends."""
    path = [source]
    while len(path) < HOPS_MAX:
        node = path[-1]
        if node in walk.attachments and len(walk.members) > 1:
            return (*path, walk.members[0][0])
        hops = walk.hops(node)
        if hops is None or not hops.carrying:
            break
        path.append(choose(node, hops.carrying))
        if not plane.is_switch[path[-1]]:
            break
    return tuple(path)
