"""What would be left for everybody if these links were taken away on purpose, from the fabric as it is now?

Rule 1: shares are of the fabric as built, so that one loss after another adds up; only what a change makes worse counts against it.
Rule 2: whoever hangs on what is taken away loses a share of its attachments by that alone, so it is told apart from everybody else.
Rule 3: nothing here decides whether that is enough.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from erfs.ids import DestinationId, LinkId, NodeId
from erfs.paths.bits import Bits, empty, full
from erfs.paths.topology import Topology
from erfs.paths.what_if import ground_of
from erfs.paths.what_if_state import UNREACHED, Flow, Ground
from erfs.units import PPM

PATHS: Final = "paths"
CAPACITY: Final = "capacity"

_Counts = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Share:
    """
    What a switch keeps towards a class.

    Args:
        of: `PATHS`, the shortest ones, or `CAPACITY`, what fits over the next hops.
        source: A switch with endpoints.
        destination: The class.
        ppm: Millionths of what there was as built.
    """

    of: str
    source: NodeId
    destination: DestinationId
    ppm: int


@dataclass(frozen=True, slots=True)
class Remainder:
    """
    What is left.

    Args:
        cut_endpoints: Who loses the last path to somebody, canonical order: those without any attachment left alone, if that is why.
        cut_demands: Ordered pairs of endpoints that are connected now and would not be.
        shares: The least share of paths and that of capacity that the change itself lessens, over all switches with endpoints and
            all classes that do not hang on what is taken away. Empty: it lessens none.
        own_shares: The same of the classes that do.
    """

    cut_endpoints: tuple[NodeId, ...] = ()
    cut_demands: int = 0
    shares: tuple[Share, ...] = ()
    own_shares: tuple[Share, ...] = ()


@dataclass(frozen=True, slots=True)
class _Parcel:
    """Endpoints with the same attachments as built, now, and afterwards."""

    endpoints: list[NodeId]
    states: tuple[tuple[int, ...], ...]

    @property
    def is_own(self) -> bool:
        """Whether the change takes an attachment from them."""
        return self.states[1] != self.states[2]


def what_remains(topology: Topology, unusable: frozenset[LinkId], without: frozenset[LinkId]) -> Remainder:
    """
    Return what is left if *without* is taken away where *unusable* is gone already.

    Paths are the shortest permitted ones, as routes are computed. Capacity is, from a switch towards a class, the sum over its next
    hops of what the link and the next hop can carry.

    Args:
        topology: The fabric as built.
        unusable: Links that carry nothing now.
        without: Links to take away; those that are unusable already make no difference.

    Cost: three times that of the what-if engine's search: O(link-ends x classes / 64) words per hop of distance, and O(members log members).
    """
    lost = (frozenset[LinkId](), unusable, unusable | without)
    parcels = _parcels(topology, lost)
    if not parcels:
        return Remainder()
    weight = np.array([len(parcel.endpoints) for parcel in parcels], dtype=np.int64)
    ground = ground_of(
        topology, [parcel.states[0] for parcel in parcels], weight, is_valley_free=topology.is_valley_free
    )
    built, now, after = (_flow(topology, ground, parcels, state, gone) for state, gone in enumerate(lost))
    was_connected, is_connected = (_connected(flow, parcels, state) for state, flow in ((1, now), (2, after)))
    # A lone endpoint of its kind has no demand with itself.
    demands = weight[:, None] * weight[None, :] - np.diag(weight)
    cut = was_connected & ~is_connected & (demands > 0)
    own = np.array([parcel.is_own for parcel in parcels])
    judged = _judged(built, parcels, cut)
    counts = {
        PATHS: (built.path_count, now.path_count, after.path_count),
        CAPACITY: tuple(flow.bandwidth.astype(np.float64) for flow in (built, now, after)),
    }
    least = {
        is_own: tuple(
            share
            for of, states in counts.items()
            if (share := _least(topology, of, states, judged & (own == is_own)[None, :], parcels)) is not None
        )
        for is_own in (False, True)
    }
    return Remainder(_cut_endpoints(cut, parcels), int(demands[cut].sum()), least[False], least[True])


def _parcels(topology: Topology, lost: tuple[frozenset[LinkId], ...]) -> list[_Parcel]:
    found: dict[tuple[tuple[int, ...], ...], list[NodeId]] = {}
    for endpoint, accesses in topology.access.items():
        states = tuple(tuple(sorted({one.switch for one in accesses if one.link not in gone})) for gone in lost)
        found.setdefault(states, []).append(endpoint)
    return [_Parcel(found[states], states) for states in sorted(found)]


def _flow(topology: Topology, ground: Ground, parcels: list[_Parcel], state: int, gone: frozenset[LinkId]) -> Flow:
    attached = np.zeros((ground.node_count, len(parcels)), dtype=np.bool_)
    for column, parcel in enumerate(parcels):
        attached[list(parcel.states[state]), column] = True
    trunks = [topology.trunk_index[link] for link in gone if link in topology.trunk_index]
    if not trunks:
        return Flow(ground, attached)
    usable = empty(len(ground.source), len(parcels))
    usable[:] = full(len(parcels))
    usable[topology.ends_of_trunk[trunks].ravel()] = 0
    return Flow(ground, attached, usable)


def _connected(flow: Flow, parcels: list[_Parcel], state: int) -> Bits:
    """Return, parcels x parcels, from which endpoints a path leads to which."""
    reached = flow.distance != UNREACHED
    return np.array([reached[list(parcel.states[state])].any(axis=0) for parcel in parcels], dtype=np.bool_)


def _judged(built: Flow, parcels: list[_Parcel], cut: Bits) -> Bits:
    """Return, switches x parcels, whose shares count: of switches that keep endpoints, where these are not told to be cut."""
    is_home = np.zeros(len(built.distance), dtype=np.bool_)
    is_cut = np.zeros_like(built.distance, dtype=np.bool_)
    for parcel, row in zip(parcels, cut, strict=True):
        is_home[list(parcel.states[2])] = True
        is_cut[list(parcel.states[2])] |= row
    return is_home[:, None] & (built.distance > 0) & ~is_cut


def _least(
    topology: Topology, of: str, states: tuple[_Counts, ...], judged: Bits, parcels: list[_Parcel]
) -> Share | None:
    """Return the least share among those *judged* that the change lessens, the first in canonical order; None if it lessens none."""
    built, now, after = states
    switch, column = np.nonzero(judged & (after < now))
    if not len(switch):
        return None
    shares = after[switch, column] / built[switch, column]
    place = int(np.argmin(shares))
    destination = topology.class_of(parcels[int(column[place])].endpoints[0])
    return Share(of, topology.switches[int(switch[place])], destination, int(shares[place] * PPM + 1e-6))


def _cut_endpoints(cut: Bits, parcels: list[_Parcel]) -> tuple[NodeId, ...]:
    def endpoints(chosen: Iterable[_Parcel]) -> tuple[NodeId, ...]:
        return tuple(sorted(endpoint for parcel in chosen for endpoint in parcel.endpoints))

    involved = [parcel for parcel, row, column in zip(parcels, cut, cut.T, strict=True) if row.any() or column.any()]
    detached = [parcel for parcel in involved if not parcel.states[2]]
    is_detached = np.array([not parcel.states[2] for parcel in parcels])
    others = cut & ~is_detached[:, None] & ~is_detached[None, :]
    if not others.any():
        return endpoints(detached)
    return endpoints(
        [*detached]
        + [parcel for parcel, row, column in zip(parcels, others, others.T, strict=True) if row.any() or column.any()]
    )
