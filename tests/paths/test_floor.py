"""What remains when links are taken away on purpose, held against a search that walks one pair of endpoints at a time."""

from collections.abc import Iterable
from functools import cache
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.fabric import Fabric, Link, goes_up, is_valley_free_required
from erfs.generators import generate
from erfs.ids import DestinationId, LinkId, NodeId
from erfs.paths import Topology
from erfs.paths.floor import CAPACITY, PATHS, Remainder, Share, what_remains
from tests.paths.fabrics import fabrics

NONE: frozenset[LinkId] = frozenset()


def of_nodes(fabric: Fabric, *nodes: str) -> frozenset[LinkId]:
    return frozenset(link.id for node in nodes for link in fabric.links_of[NodeId(node)])


class ByHand:
    """One state of a fabric, looked at with dictionaries and searches."""

    def __init__(self, fabric: Fabric, gone: Iterable[LinkId]) -> None:
        self.fabric, self.gone = fabric, frozenset(gone)
        self.is_valley_free = is_valley_free_required(fabric)

    def homes(self, endpoint: NodeId) -> set[NodeId]:
        links = self.fabric.access_links[endpoint]
        return {link.far_end(endpoint).node for link in links if link.id not in self.gone}

    def steps(self, node: NodeId) -> list[tuple[NodeId, Link, bool]]:
        return [
            (link.far_end(node).node, link, goes_up(self.fabric, link, node))
            for link in self.fabric.links_of[node]
            if self.fabric.is_trunk(link) and link.id not in self.gone
        ]

    def reach(self, starts: Iterable[NodeId]) -> set[NodeId]:
        todo = [(start, False) for start in starts]
        seen = set(todo)
        while todo:
            node, went_down = todo.pop()
            for far, _, is_up in self.steps(node):
                if self.is_valley_free and went_down and is_up:
                    continue
                state = far, self.is_valley_free and (went_down or not is_up)
                if state not in seen:
                    seen.add(state)
                    todo.append(state)
        return {node for node, _ in seen}

    def is_connected(self, one: NodeId, other: NodeId) -> bool:
        return bool(self.reach(self.homes(one)) & self.homes(other))

    def connected(self) -> set[tuple[NodeId, NodeId]]:
        names = [node.id for node in self.fabric.endpoints]
        return {(one, other) for one in names for other in names if one != other and self.is_connected(one, other)}

    def amounts(self, start: NodeId, homes: frozenset[NodeId]) -> dict[str, int]:
        """Return how many paths the shortest permitted next hops make, and what fits over them; down wherever that leads there."""
        distance = dict.fromkeys(homes, 0)
        members: dict[NodeId, list[tuple[NodeId, int]]] = {}
        for phase in ((False,), (True,)) if self.is_valley_free else ((False, True),):
            settled = set(distance)
            for level in range(2 * len(self.fabric.nodes)):
                for node in self.fabric.switches:
                    for far, link, is_up in self.steps(node.id):
                        if node.id in settled or is_up not in phase or distance.get(far) != level:
                            continue
                        if distance.setdefault(node.id, level + 1) == level + 1:
                            members.setdefault(node.id, []).append((far, link.capacity_bps))

        @cache
        def paths(node: NodeId) -> int:
            return 1 if node in homes else sum(paths(far) for far, _ in members.get(node, ()))

        @cache
        def capacity(node: NodeId) -> int:
            return 10**18 if node in homes else sum(min(own, capacity(far)) for far, own in members.get(node, ()))

        return {PATHS: paths(start), CAPACITY: capacity(start)}


@given(fabrics(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_what_is_cut_and_the_least_share_of_paths_are_those_found_by_hand(fabric: Fabric, random: Random) -> None:
    links = sorted(fabric.links)
    unusable = frozenset(link for link in links if random.random() < 0.15)
    without = frozenset(link for link in links if random.random() < 0.25)

    found = what_remains(Topology(fabric), unusable, without)

    now, after = ByHand(fabric, unusable), ByHand(fabric, unusable | without)
    cut = now.connected() - after.connected()
    assert found.cut_demands == len(cut)
    assert bool(found.cut_endpoints) == bool(cut)
    assert set(found.cut_endpoints) <= {node for pair in cut for node in pair}
    assert {share.of: share.ppm for share in found.shares} == least_by_hand(fabric, now, after, cut)


def least_by_hand(fabric: Fabric, now: ByHand, after: ByHand, cut: set[tuple[NodeId, NodeId]]) -> dict[str, int]:
    """Return the least share of paths and of capacity that became less, of what does not hang on what was taken."""
    built = ByHand(fabric, NONE)
    found: dict[str, list[int]] = {}
    for target in fabric.endpoints:
        homes = [frozenset(state.homes(target.id)) for state in (built, now, after)]
        if homes[1] != homes[2]:
            continue
        for switch in fabric.switches:
            at_home = [node.id for node in fabric.endpoints if switch.id in after.homes(node.id)]
            if not at_home or switch.id in homes[0] or any((source, target.id) in cut for source in at_home):
                continue
            amounts = [
                state.amounts(switch.id, places) for state, places in zip((built, now, after), homes, strict=True)
            ]
            for of in (PATHS, CAPACITY):
                as_built, before, left = (amount[of] for amount in amounts)
                if as_built and left < before:
                    found.setdefault(of, []).append(left * 1_000_000 // as_built)
    return {of: min(shares) for of, shares in found.items()}


def test_taking_nothing_leaves_everything() -> None:
    fabric = generate("fat-tree", {"k": 4})

    assert what_remains(Topology(fabric), NONE, NONE) == Remainder()
    assert what_remains(Topology(fabric), of_nodes(fabric, "core0-0"), of_nodes(fabric, "core0-0")) == Remainder()


def test_shares_are_of_the_fabric_as_built() -> None:
    """A second spine of four takes a third of what is left, and leaves half of what was built."""
    fabric = generate("leaf-spine", {"leaves": 2, "spines": 4, "hosts_per_leaf": 1})
    gone, without = of_nodes(fabric, "spine0"), of_nodes(fabric, "spine1")

    assert [share.ppm for share in what_remains(Topology(fabric), NONE, without).shares] == [750_000, 750_000]
    assert [share.ppm for share in what_remains(Topology(fabric), gone, without).shares] == [500_000, 500_000]


def test_capacity_is_what_fits_and_paths_are_counted() -> None:
    """A core of a fat-tree: an edge switch keeps three of four ways out of its pod, and one core is enough for each of its two uplinks."""
    fabric = generate("fat-tree", {"k": 4})

    found = what_remains(Topology(fabric), NONE, of_nodes(fabric, "core0-0"))

    assert found.cut_demands == 0
    assert [(share.of, share.ppm) for share in found.shares] == [("paths", 750_000)]


def test_a_leaf_without_a_partner_takes_the_last_path_of_its_own_hosts_alone() -> None:
    fabric = generate("leaf-spine", {"leaves": 3, "spines": 2, "hosts_per_leaf": 2})

    found = what_remains(Topology(fabric), NONE, of_nodes(fabric, "leaf1"))

    assert found == Remainder(cut_endpoints=(NodeId("leaf1-host0"), NodeId("leaf1-host1")), cut_demands=2 * 2 * 4 + 2)


def test_who_hangs_on_what_is_taken_is_told_apart() -> None:
    fabric = generate("leaf-spine", {"leaves": 4, "spines": 4, "hosts_per_leaf": 1, "attachments": 2})

    found = what_remains(Topology(fabric), NONE, of_nodes(fabric, "leaf1"))

    assert (found.cut_demands, found.shares) == (0, ())
    assert found.own_shares == (Share("paths", NodeId("leaf2"), DestinationId("@leaf0+leaf1"), 500_000),)
