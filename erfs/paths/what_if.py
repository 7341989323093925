"""What would break if this link, this switch, this risk group failed? Every failure of a fabric, compiled and judged.

Rule 1: "before" is the fabric as built; a demand that it does not serve is nobody's loss.
Rule 2: a demand that is cut at its own endpoint, one that is cut inside, and one that only policy cuts are three things.
Rule 3: the answers depend on the fabric alone, never on how the work is shared out (`pieces`, `answer`, `merged`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Final, NamedTuple

import numpy as np

from erfs.fabric import Fabric, Link
from erfs.ids import NodeId, SrlgId
from erfs.paths.bits import Indices
from erfs.paths.topology import Topology
from erfs.paths.what_if_cuts import bisection_cuts
from erfs.paths.what_if_impact import Failures, Impact, impact_of
from erfs.paths.what_if_state import Ground, Runs, spread
from erfs.units import PPM

KINDS: Final = ("link", "node", "srlg")
# Classes worked on together: fixed, so that the work falls into the same pieces however many workers there are.
CLASSES_AT_ONCE: Final = 16

# What repairs a failure, and why not better.
BY_REMOVAL: Final = "removal"
BY_RESTORATION: Final = "restoration"
BY_NOTHING: Final = "nothing"
NO_PATH: Final = "no path remains"
ONLY_VALLEY: Final = "only a valley would remain, which policy forbids"
OWN_ACCESS: Final = "endpoints lose their only attachment"
LONGER: Final = "only paths that are no shortest ones remain"

CAPACITY: Final = (
    "capacity retained: from a switch towards a class, the sum over its next hops of what the link and the next hop can carry, after the"
    " repair over before; the least over all switches with endpoints and classes that are still connected"
)


@dataclass(frozen=True)
class Failure:
    """
    One thing that can fail.

    Args:
        kind: "link", "node" or "srlg".
        id: The link's, switch's or group's.
        name: For people.
        sort: For people: what it is and in which tiers, such as "trunk 1-2".
    """

    kind: str
    id: str
    name: str
    sort: str


@dataclass(frozen=True)
class Outcome:
    """
    What one failure does. Demands are ordered pairs of endpoints that were connected before.

    Args:
        detached: Demands of endpoints that lose all their attachments.
        cut: Other demands without any path left.
        cut_by_policy: Demands whose only paths left are valleys, where these are forbidden.
        waiting: Demands that have a path left which only restoration finds: taking next hops away does not repair them.
        retained_ppm: The least share of its capacity that a connected (switch, class) keeps.
        bisection_ppm: The share of the narrowest fixed cut that remains.
    """

    failure: Failure
    detached: int
    cut: int
    cut_by_policy: int
    waiting: int
    retained_ppm: int
    bisection_ppm: int

    @property
    def repaired_by(self) -> str:
        """What brings every demand back: a change armed beforehand that only removes next hops, restoration, or nothing."""
        if self.lost:
            return BY_NOTHING
        return BY_RESTORATION if self.waiting else BY_REMOVAL

    @property
    def lost(self) -> int:
        """Demands that are not served until the failure ends."""
        return self.detached + self.cut + self.cut_by_policy

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why removal is not enough; empty where it is."""
        found = (
            (self.cut, NO_PATH),
            (self.cut_by_policy, ONLY_VALLEY),
            (self.detached, OWN_ACCESS),
            (self.waiting, LONGER),
        )
        return tuple(reason for count, reason in found if count)

    @property
    def badness(self) -> tuple[int, int, int, int, int, int]:
        """What to sort by, the worst first when ascending."""
        return -self.cut, -self.cut_by_policy, -self.detached, -self.waiting, self.retained_ppm, self.bisection_ppm


class Access(NamedTuple):
    """Links of the endpoints of one parcel to one switch that are in the same risk groups."""

    class_: int
    switch: int
    parcel: int
    srlgs: tuple[SrlgId, ...]


class Sweep:
    """
    Every failure of some kinds on one fabric, ready to be worked out.

    The failures that need work come first: trunks, switches, risk groups (each only if asked for), then one template for each class and
    attachment that a single endpoint of the class can lose.

    Args:
        fabric: As built.
        kinds: Of `KINDS`.
        are_valleys_allowed: Whether to let packets go up again even where policy forbids it.

    Cost: O(links log links).
    """

    def __init__(self, fabric: Fabric, kinds: Iterable[str], *, are_valleys_allowed: bool = False) -> None:
        self.fabric = fabric
        self.kinds = frozenset(kinds)
        assert self.kinds <= set(KINDS)
        self.topology = topology = Topology(fabric)
        self.is_valley_free = topology.is_valley_free and not are_valleys_allowed
        self._compile_classes()
        weight = np.bincount(list(self.class_of.values()), minlength=len(self.classes)).astype(np.int64)
        self.ground = ground_of(topology, self.classes, weight, is_valley_free=self.is_valley_free)
        self.cuts = bisection_cuts(topology, self.ground)
        self._compile_failures()

    # --- compiling -------------------------------------------------------------------------------------------------
    def _compile_classes(self) -> None:
        """
        Sort the endpoints: those of a class attach to the same switches and lose the same of them in any failure.

        An *access* is what a failure takes away whole: links to one switch in the same risk groups. A *parcel* is the endpoints of one class
        with the same accesses. Endpoints with one attachment are one class whatever their parcels, since they keep it or are gone.
        """
        parcels: dict[tuple[tuple[int, tuple[SrlgId, ...]], ...], list[NodeId]] = {}
        for endpoint, links in self.topology.access.items():
            accesses = {
                (access.switch, self.fabric.links[access.link].srlgs if "srlg" in self.kinds else ())
                for access in links
            }
            parcels.setdefault(tuple(sorted(accesses)), []).append(endpoint)
        self.classes: list[tuple[int, ...]] = []
        self.class_of: dict[NodeId, int] = {}
        self.accesses: list[Access] = []
        self.parcel_weights: list[int] = []
        alone: dict[int, int] = {}
        for number, key in enumerate(sorted(parcels)):
            switches = tuple(sorted({switch for switch, _ in key}))
            index = alone.setdefault(switches[0], len(self.classes)) if len(switches) == 1 else len(self.classes)
            if index == len(self.classes):
                self.classes.append(switches)
            self.class_of |= dict.fromkeys(parcels[key], index)
            self.accesses += [Access(index, switch, number, srlgs) for switch, srlgs in key]
            self.parcel_weights.append(len(parcels[key]))

    def _compile_failures(self) -> None:
        topology, ground = self.topology, self.ground
        trunks = np.arange(len(topology.trunks)) if "link" in self.kinds else np.zeros(0, dtype=np.int64)
        switches = np.arange(ground.node_count) if "node" in self.kinds else np.zeros(0, dtype=np.int64)
        self.groups: dict[SrlgId, list[Link]] = {}
        if "srlg" in self.kinds:
            for link in self.fabric.links.values():
                for srlg in link.srlgs:
                    self.groups.setdefault(srlg, []).append(link)
        self.groups = {srlg: self.groups[srlg] for srlg in sorted(self.groups)}
        self.first_switch = len(trunks)
        self.first_group = self.first_switch + len(switches)
        self.first_delivery = self.first_group + len(self.groups)
        self.deliveries: list[tuple[int, int]] = []
        if "link" in self.kinds:
            several = np.diff(ground.class_start)[ground.class_of_attachment] > 1
            self.deliveries = list(
                zip(ground.class_of_attachment[several].tolist(), ground.attachment[several].tolist(), strict=True)
            )
        draft = _Draft(ground, self.accesses, self.parcel_weights)
        of_trunk = Runs(topology.end_trunk, len(topology.trunks))
        draft.kill(*of_trunk.spread(trunks))
        for runs in (Runs(ground.source, ground.node_count), Runs(ground.target, ground.node_count)):
            which, end = runs.spread(switches)
            draft.kill(self.first_switch + which, end)
        which, access = draft.at_switch.spread(switches)
        draft.hit(self.first_switch + which, access)
        self._compile_groups(draft, of_trunk)
        lone = draft.of_attachment(self.deliveries)
        draft.hit(self.first_delivery + lone[0], lone[1])
        dead = np.full(self.first_delivery + len(self.deliveries), -1, dtype=np.int64)
        dead[self.first_switch : self.first_group] = switches
        self._draft = draft
        self.failures = draft.done(dead, self.first_delivery)

    def _compile_groups(self, draft: "_Draft", of_trunk: Runs) -> None:
        trunk_index = {link.id: index for index, link in enumerate(self.topology.trunks)}
        at: dict[SrlgId, list[int]] = {}
        for index, access in enumerate(self.accesses):
            for srlg in access.srlgs:
                at.setdefault(srlg, []).append(index)
        for number, (srlg, links) in enumerate(self.groups.items(), start=self.first_group):
            trunks = np.array([trunk_index[link.id] for link in links if link.id in trunk_index], dtype=np.int64)
            _, end = of_trunk.spread(trunks)
            draft.kill(np.full(len(end), number), end)
            hit = np.array(at.get(srlg, []), dtype=np.int64)
            draft.hit(np.full(len(hit), number), hit)

    # --- working ---------------------------------------------------------------------------------------------------
    def outcomes(self, impact: Impact) -> list[Outcome]:
        """Return the outcome of every failure in canonical order: links, switches, risk groups."""
        detached = self.detached(self.failures, impact)
        bisection = self.bisection(self.failures)
        retained = [round(share * PPM) for share in impact.retained.tolist()]
        columns = [column.tolist() for column in (detached, impact.cut, impact.cut_by_policy, impact.waiting)]

        def outcome(failure: Failure, number: int) -> Outcome:
            detached_, cut, cut_by_policy, waiting = (column[number] for column in columns)
            return Outcome(failure, detached_, cut, cut_by_policy, waiting, retained[number], bisection[number])

        found: list[Outcome] = []
        trunk_index = {link.id: index for index, link in enumerate(self.topology.trunks)}
        if "link" in self.kinds:
            delivery_of = {key: self.first_delivery + index for index, key in enumerate(self.deliveries)}
            alone = self._detached_alone(impact).tolist()
            for link in self.fabric.links.values():
                failure = self._link(link)
                if link.id in trunk_index:
                    found.append(outcome(failure, trunk_index[link.id]))
                    continue
                endpoint, switch = self._lone_access(link)
                if endpoint is None:
                    found.append(Outcome(failure, 0, 0, 0, 0, PPM, PPM))
                elif len(self.classes[self.class_of[endpoint]]) == 1:
                    found.append(Outcome(failure, alone[self.class_of[endpoint]], 0, 0, 0, PPM, PPM))
                else:
                    found.append(outcome(failure, delivery_of[self.class_of[endpoint], switch]))
        if "node" in self.kinds:
            for index, node in enumerate(self.fabric.switches):
                tier = "-" if node.tier is None else node.tier
                failure = Failure("node", node.id, node.label, f"switch {tier}")
                found.append(outcome(failure, self.first_switch + index))
        for index, (srlg, links) in enumerate(self.groups.items()):
            sort = srlg.partition(":")[0] if ":" in srlg else "risk group"
            name = f"{srlg} ({len(links)} link{'s' * (len(links) != 1)})"
            found.append(outcome(Failure("srlg", srlg, name, sort), self.first_group + index))
        return found

    def _link(self, link: Link) -> Failure:
        nodes = [self.fabric.nodes[end.node] for end in link.ends]
        tiers = sorted(("-" if node.tier is None else str(node.tier)) for node in nodes)
        what = "trunk" if self.fabric.is_trunk(link) else "access" if self.fabric.is_access(link) else "idle"
        return Failure("link", link.id, " to ".join(node.label for node in nodes), f"{what} {'-'.join(tiers)}")

    def _lone_access(self, link: Link) -> tuple[NodeId | None, int]:
        """Return whose only link to which switch *link* is; None where it is nobody's."""
        for end in link.ends:
            far = link.far_end(end.node).node
            if end.node in self.topology.access and far in self.topology.switch_index:
                switch = self.topology.switch_index[far]
                alike = [access for access in self.topology.access[end.node] if access.switch == switch]
                return (end.node if len(alike) == 1 else None), switch
        return None, -1

    def detached(self, failures: Failures, impact: Impact) -> Indices:
        """Return, per failure, the connected demands with an end that loses all its attachments."""
        ground = self.ground
        gone = failures.gone_count
        alone = 2 * (self._connected_to(impact) - 1)
        total = np.zeros(failures.count, dtype=np.int64)
        np.add.at(total, failures.gone_failure, gone * (alone[failures.gone_class] + 1))
        # Demands between two such endpoints were counted at both; an endpoint has none to itself.
        start = np.searchsorted(failures.gone_failure, np.arange(failures.count + 1))
        count = np.diff(start)[failures.gone_failure]
        which, other = spread(start[failures.gone_failure], count)
        both = gone[which] * gone[other] * impact.is_connected[failures.gone_class[which], failures.gone_class[other]]
        np.subtract.at(total, failures.gone_failure[which], both)
        assert ground.class_count or not total.any()
        return total

    def _connected_to(self, impact: Impact) -> Indices:
        """Return, per class, how many endpoints one of its endpoints is connected with, itself counted."""
        found: Indices = impact.is_connected @ self.ground.weight
        return found

    def _detached_alone(self, impact: Impact) -> Indices:
        """Return, per class, how many demands one of its endpoints has, in and out."""
        alone: Indices = 2 * (self._connected_to(impact) - 1)
        return alone

    def demand_count(self, impact: Impact) -> int:
        """Return how many demands the fabric as built serves."""
        return int((self.ground.weight * (self._connected_to(impact) - 1)).sum())

    def bisection(self, failures: Failures) -> list[int]:
        """Return, per failure, the millionths of the narrowest cut that remain."""
        if not len(self.cuts):
            return [PPM] * failures.count
        ground = self.ground
        width = np.zeros(len(self.topology.trunks), dtype=np.int64)
        width[self.topology.end_trunk] = ground.capacity
        before = (self.cuts * width).sum(axis=1)
        trunk = self.topology.end_trunk[failures.end]
        least = np.full(failures.count, before.max(), dtype=np.int64)
        for cut, whole in zip(self.cuts, before.tolist(), strict=True):
            lost = np.zeros(failures.count, dtype=np.int64)
            # A dead trunk is there with both its ends.
            np.add.at(lost, failures.end_failure, np.where(cut[trunk], width[trunk], 0))
            least = np.minimum(least, whole - lost // 2)
        return [round(share * PPM) for share in (least / before.min()).tolist()]

    # --- pairs -----------------------------------------------------------------------------------------------------
    @cached_property
    def elements(self) -> list[Failure]:
        """What can be half of a pair, numbered as in `failures`: trunks, switches, risk groups."""
        trunks = [self._link(link) for link in self.topology.trunks] if "link" in self.kinds else []
        by_id = {
            (failure.kind, failure.id): failure
            for failure in (
                *trunks,
                *(
                    Failure("node", node.id, node.label, f"switch {'-' if node.tier is None else node.tier}")
                    for node in self.fabric.switches
                    if "node" in self.kinds
                ),
                *(Failure("srlg", srlg, srlg, "risk group") for srlg in self.groups),
            )
        }
        return list(by_id.values())

    def together(self, one: Indices, other: Indices) -> Failures:
        """Return the failures that are two of `elements` at once."""
        pair = np.arange(len(one))
        draft = self._draft.empty()
        dead: list[Indices] = []
        for half in (one, other):
            self._draft.copy(half, pair, draft)
            is_switch = (half >= self.first_switch) & (half < self.first_group)
            dead.append(np.where(is_switch, half - self.first_switch, -1))
        return draft.done(np.stack(dead), len(one))


def ground_of(topology: Topology, classes: Sequence[Sequence[int]], weight: Indices, *, is_valley_free: bool) -> Ground:
    """
    Return the fabric of *topology* as built, for `Flow`.

    Args:
        topology: The switches and trunks.
        classes: Per class, the switches it attaches to, ascending.
        weight: Per class, its endpoints.
        is_valley_free: Whether valleys are forbidden.
    """
    capacities = [max(link.capacity_bps, 1) for link in topology.trunks]
    unit = gcd(*capacities) if capacities else 1
    return Ground(
        len(topology.switches),
        topology.end_source,
        topology.end_target,
        topology.end_is_up,
        np.array([capacities[trunk] // unit for trunk in topology.end_trunk.tolist()], dtype=np.int64),
        is_valley_free,
        np.cumsum([0, *map(len, classes)], dtype=np.int64),
        np.array([switch for switches in classes for switch in switches], dtype=np.int64),
        weight,
    )


def pieces(ground: Ground) -> list[tuple[int, int]]:
    """Return the classes in pieces that can be worked on apart, the same whoever works."""
    return [
        (start, min(start + CLASSES_AT_ONCE, ground.class_count))
        for start in range(0, ground.class_count, CLASSES_AT_ONCE)
    ]


def answer(ground: Ground, failures: Failures, piece: tuple[int, int]) -> Impact:
    """Return one piece of the answer; what a worker runs."""
    return impact_of(ground, failures, range(*piece))


def merged(failures: Failures, parts: Sequence[Impact]) -> Impact:
    """Return the whole answer; *parts* in the order of `pieces`."""
    if not parts:
        nothing = np.zeros(failures.count, dtype=np.int64)
        return Impact(nothing, nothing, nothing, np.ones(failures.count), np.zeros((0, 0), dtype=np.bool_))
    return Impact(
        np.sum([part.cut for part in parts], axis=0),
        np.sum([part.cut_by_policy for part in parts], axis=0),
        np.sum([part.waiting for part in parts], axis=0),
        np.min([part.retained for part in parts], axis=0),
        np.concatenate([part.is_connected for part in parts], axis=1),
    )


class _Draft:
    """
    Failures in the making.

    Args:
        ground: The fabric.
        accesses: All of them.
        parcel_weights: Per parcel, its endpoints.
    """

    def __init__(self, ground: Ground, accesses: Sequence[Access], parcel_weights: Sequence[int]) -> None:
        self.ground = ground
        self.accesses = accesses
        self.parcel_weights = np.array(parcel_weights, dtype=np.int64)
        class_ = np.array([access.class_ for access in accesses], dtype=np.int64)
        switch = np.array([access.switch for access in accesses], dtype=np.int64)
        self.at_switch = Runs(switch, ground.node_count)
        self.parcel = np.array([access.parcel for access in accesses], dtype=np.int64)
        self.class_of_parcel = np.zeros(len(parcel_weights), dtype=np.int64)
        self.class_of_parcel[self.parcel] = class_
        # Which attachment of its class an access belongs to.
        of_attachment = class_ * ground.node_count + switch
        self.attachment_key = ground.class_of_attachment * ground.node_count + ground.attachment
        self.attachment = np.searchsorted(self.attachment_key, of_attachment)
        self._killed: list[tuple[Indices, Indices]] = []
        self._hit: list[tuple[Indices, Indices]] = []

    def empty(self) -> "_Draft":
        """Return a draft for the same fabric without any failure."""
        return _Draft(self.ground, self.accesses, self.parcel_weights.tolist())

    def kill(self, failure: Indices, end: Indices) -> None:
        """Let link-ends die."""
        self._killed.append((failure, end))

    def hit(self, failure: Indices, access: Indices) -> None:
        """Let accesses die."""
        self._hit.append((failure, access))

    def of_attachment(self, wanted: Sequence[tuple[int, int]]) -> tuple[Indices, Indices]:
        """Return (which of *wanted*, access) for every access of a (class, switch)."""
        pairs = np.array(wanted, dtype=np.int64).reshape(-1, 2)
        place = np.searchsorted(self.attachment_key, pairs[:, 0] * self.ground.node_count + pairs[:, 1])
        return Runs(self.attachment, len(self.attachment_key)).spread(place)

    def copy(self, wanted: Indices, number: Indices, into: "_Draft") -> None:
        """Let in *into* happen as failure *number* what happens here in *wanted*."""
        for parts, add in ((self._killed, into.kill), (self._hit, into.hit)):
            failure, thing = _columns(parts)
            order = np.argsort(failure, kind="stable")
            count = max(int(wanted.max(initial=-1)), int(failure.max(initial=-1))) + 1
            start = np.searchsorted(failure[order], np.arange(count + 1))
            which, place = spread(start[wanted], np.diff(start)[wanted])
            add(number[which], thing[order][place])

    def done(self, dead: Indices, first_delivery: int) -> Failures:
        """
        Return the failures.

        Args:
            dead: The switch that dies in each failure, -1 for none; or several rows of these.
            first_delivery: From which number on failures are deliveries.
        """
        ground = self.ground
        dead = np.atleast_2d(dead)
        failure, end = _distinct(self._killed, len(ground.source))
        starts = ~(dead[:, failure] == ground.source[end]).any(axis=0)
        hit_failure, access = _distinct(self._hit, len(self.accesses))
        per_attachment = np.bincount(self.attachment, minlength=len(self.attachment_key))
        lost_failure, attachment = _complete(hit_failure, self.attachment[access], per_attachment)
        gone_failure, parcel = _complete(hit_failure, self.parcel[access], np.bincount(self.parcel))
        class_count = max(ground.class_count, 1)
        gone, gone_of = np.unique(gone_failure * class_count + self.class_of_parcel[parcel], return_inverse=True)
        gone_count = np.zeros(len(gone), dtype=np.int64)
        np.add.at(gone_count, gone_of, self.parcel_weights[parcel])
        gone_failure, gone_class = np.divmod(gone, class_count)
        return Failures(
            dead.shape[1],
            failure,
            end,
            starts,
            lost_failure,
            ground.class_of_attachment[attachment],
            ground.attachment[attachment],
            gone_failure,
            gone_class,
            gone_count,
            np.arange(dead.shape[1]) >= first_delivery,
        )


def _columns(parts: Sequence[tuple[Indices, Indices]]) -> tuple[Indices, Indices]:
    empty = np.zeros(0, dtype=np.int64)
    one, other = (np.concatenate([empty, *column]) for column in zip(*parts, strict=True)) if parts else (empty, empty)
    return one, other


def _distinct(parts: Sequence[tuple[Indices, Indices]], count: int) -> tuple[Indices, Indices]:
    """Return the distinct (failure, thing) of *parts*, sorted; things are below *count*."""
    failure, thing = _columns(parts)
    return np.divmod(np.unique(failure * max(count, 1) + thing), max(count, 1))


def _complete(failure: Indices, whole: Indices, sizes: Indices) -> tuple[Indices, Indices]:
    """Return the (failure, whole) that are there as often as *whole* has parts, sorted."""
    keys, counts = np.unique(failure * max(len(sizes), 1) + whole, return_counts=True)
    failure, whole = np.divmod(keys, max(len(sizes), 1))
    is_complete = counts == sizes[whole]
    return failure[is_complete], whole[is_complete]
