"""The graph to route on: directed link-ends in the order of their source, found by source and by target.

Rule 1: a mesh is as built: what is out of use stays in its place, so that indexes mean the same before and after a failure.
Rule 2: nothing here knows about distances, destinations or failures.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from erfs.paths.bits import Bits, Indices


@dataclass(frozen=True)
class Mesh:
    """
    A directed graph of link-ends.

    Args:
        node_count: Nodes are 0 .. node_count - 1.
        transit_count: Nodes below this number forward for others; no link-end leads to the others.
        source, target: Per link-end; *source* ascending, *target* ascending within a source.
        is_up: Per link-end, whether it leads up.
        capacity_bps: Per link-end.
        trunk: Per link-end, the topology's trunk it is a direction of; -1 for an endpoint's access link.
    """

    node_count: int
    transit_count: int
    source: Indices
    target: Indices
    is_up: Bits
    capacity_bps: Indices
    trunk: Indices

    def __len__(self) -> int:
        return len(self.source)

    @cached_property
    def source_start(self) -> Indices:
        """Where each node's outgoing link-ends start; one more entry than nodes."""
        return np.searchsorted(self.source, np.arange(self.node_count + 1))

    @cached_property
    def by_target(self) -> Indices:
        """The link-ends in the order of their target."""
        return np.argsort(self.target, kind="stable")

    @cached_property
    def target_start(self) -> Indices:
        """Where each node's incoming link-ends start in `by_target`; one more entry than nodes."""
        return np.searchsorted(self.target[self.by_target], np.arange(self.node_count + 1))

    def outgoing(self, nodes: Indices) -> tuple[Indices, Indices]:
        """Return the link-ends that leave *nodes*, node by node, and where each node's begin (one more entry than nodes)."""
        return runs(self.source_start[nodes], self.source_start[nodes + 1])

    def incoming(self, nodes: Indices) -> tuple[Indices, Indices]:
        """Return the link-ends that lead to *nodes*, node by node, and where each node's begin (one more entry than nodes)."""
        places, starts = runs(self.target_start[nodes], self.target_start[nodes + 1])
        return self.by_target[places], starts


def runs(starts: Indices, stops: Indices) -> tuple[Indices, Indices]:
    """Return the numbers of all the ranges starts[i] .. stops[i] - 1, one range after the other, and where each begins in the result."""
    begins = np.zeros(len(starts) + 1, dtype=np.int64)
    np.cumsum(stops - starts, out=begins[1:])
    return np.arange(begins[-1]) + np.repeat(starts - begins[:-1], stops - starts), begins


def run_starts(values: Indices) -> Indices:
    """Return where each run of equal *values* begins."""
    is_new = np.empty(len(values), dtype=np.bool_)
    is_new[:1] = True
    np.not_equal(values[1:], values[:-1], out=is_new[1:])
    return np.flatnonzero(is_new)


def lengths_of(starts: Indices, total: int) -> Indices:
    """Return how long each run is: they begin at *starts* and are *total* long together."""
    lengths = np.empty(len(starts), dtype=np.int64)
    np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
    lengths[-1:] = total - starts[-1:]
    return lengths
