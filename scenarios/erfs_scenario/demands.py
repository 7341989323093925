"""Who should be able to talk to whom: sets of ordered pairs of endpoints, kept small by never writing out a clique.

Rule 1: a clique of n endpoints costs n, not n * (n - 1): the 293,000 pairs of a 542-endpoint fabric are counted, not listed.
Rule 2: chance is an argument; equal seeds give equal demands on every machine.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from erfs.ids import NodeId
from erfs_scenario.jobs import Training


@dataclass(frozen=True, slots=True)
class Demand:
    """An ordered pair (source, target) that should be connected, with a weight; *group* is the demand set's name."""

    id: str
    source: NodeId
    target: NodeId
    weight: int = 1
    group: str = ""


@dataclass(frozen=True, slots=True)
class DemandSet:
    """
    A named set of demands: every ordered pair of *endpoints*, and the *pairs* listed one by one.

    A job is a set whose work stops while any of its demands is not served.
    """

    name: str
    is_job: bool = False
    endpoints: tuple[NodeId, ...] = ()
    pairs: tuple[tuple[NodeId, NodeId], ...] = ()
    training: Training | None = None
    """Of a job whose goodput is asked for: what it does about outages."""

    @property
    def members(self) -> frozenset[NodeId]:
        """Return the endpoints that talk to each other."""
        return frozenset(self.endpoints) | {endpoint for pair in self.pairs for endpoint in pair}

    @property
    def count(self) -> int:
        """How many demands there are."""
        return len(self.endpoints) * (len(self.endpoints) - 1) + len(self.pairs)

    def pair(self, number: int) -> tuple[NodeId, NodeId]:
        """Return the demand with this *number*, below `count`: those listed come first."""
        listed = len(self.pairs)
        return self.pairs[number] if number < listed else pair_of(self.endpoints, number - listed)

    def demands(self) -> Iterator[Demand]:
        """Yield each demand; for small sets and for looking, the meter never does."""
        for source in self.endpoints:
            for target in self.endpoints:
                if source != target:
                    yield Demand(f"{source}->{target}", source, target, group=self.name)
        for source, target in self.pairs:
            yield Demand(f"{source}->{target}", source, target, group=self.name)

    def weights(
        self, source_unit: Mapping[NodeId, str], target_unit: Mapping[NodeId, str]
    ) -> dict[tuple[str, str], int]:
        """
        Return how many demands lead from each source unit to each target unit; pairs of units without any are left out.

        Args:
            source_unit: The unit each endpoint belongs to as a source. Units partition the endpoints.
            target_unit: The same for targets; another partition is allowed.

        Cost: O(endpoints + listed pairs + source units * target units).
        """
        found: Counter[tuple[str, str]] = Counter()
        sources = Counter(source_unit[endpoint] for endpoint in self.endpoints)
        targets = Counter(target_unit[endpoint] for endpoint in self.endpoints)
        for source, sources_count in sources.items():
            for target, targets_count in targets.items():
                found[source, target] += sources_count * targets_count
        for endpoint in self.endpoints:  # nobody talks to themselves
            found[source_unit[endpoint], target_unit[endpoint]] -= 1
        for pair_source, pair_target in self.pairs:
            found[source_unit[pair_source], target_unit[pair_target]] += 1
        return {units: found[units] for units in sorted(found) if found[units]}


def pair_of(endpoints: Sequence[NodeId], number: int) -> tuple[NodeId, NodeId]:
    """Return one of the ordered pairs of *endpoints*, by its number, without counting them out."""
    source, target = divmod(number, len(endpoints) - 1)
    return endpoints[source], endpoints[target + (target >= source)]


def sampled_pairs(endpoints: Sequence[NodeId], count: int, rng: random.Random) -> tuple[tuple[NodeId, NodeId], ...]:
    """
    Return *count* different ordered pairs of *endpoints*, sorted; all pairs if there are no more than that.

    Cost: O(count), whatever the number of pairs: a pair is drawn as one number.
    """
    size = len(endpoints)
    pair_count = size * (size - 1)
    drawn = range(pair_count) if count >= pair_count else rng.sample(range(pair_count), count)
    return tuple(pair_of(endpoints, number) for number in sorted(drawn))


def ring_of_each(members: Sequence[NodeId], rail_of: Mapping[NodeId, str]) -> tuple[tuple[NodeId, NodeId], ...]:
    """Return the demands of a ring over those *members* that share a rail, for each rail in its order."""
    by_rail: dict[str, list[NodeId]] = {}
    for member in members:
        by_rail.setdefault(rail_of[member], []).append(member)
    return tuple(pair for rail in sorted(by_rail) for pair in ring_pairs(by_rail[rail]))


def ring_pairs(members: Sequence[NodeId]) -> tuple[tuple[NodeId, NodeId], ...]:
    """Return the demands of a ring over *members* in their order, both directions, each once."""
    following = [*members[1:], *members[:1]]
    forward = [(one, other) for one, other in zip(members, following, strict=True) if one != other]
    return tuple(dict.fromkeys(forward + [(other, one) for one, other in forward]))
