"""What every failure would do, held against a search that walks one failure and one pair of endpoints at a time."""

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from random import Random

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.fabric import Fabric, Link, LinkEnd, goes_up, is_valley_free_required
from erfs.generators import generate
from erfs.ids import LinkId, NodeId, SrlgId
from erfs.paths import Topology, compute
from erfs.paths.what_if import (
    BY_NOTHING,
    BY_REMOVAL,
    BY_RESTORATION,
    KINDS,
    LONGER,
    ONLY_VALLEY,
    Outcome,
    Sweep,
    answer,
    merged,
    pieces,
)
from erfs.paths.what_if_impact import Impact
from erfs.units import PPM
from tests.paths.fabrics import Draft, fabrics, plain_fabrics, tangle, tiered_fabrics

UNBOUNDED = 10**30


def swept(sweep: Sweep) -> tuple[Impact, dict[str, Outcome]]:
    impact = merged(sweep.failures, [answer(sweep.ground, sweep.failures, piece) for piece in pieces(sweep.ground)])
    return impact, {outcome.failure.id: outcome for outcome in sweep.outcomes(impact)}


def outcomes_of(fabric: Fabric, *, are_valleys_allowed: bool = False) -> dict[str, Outcome]:
    return swept(Sweep(fabric, KINDS, are_valleys_allowed=are_valleys_allowed))[1]


def with_risks(fabric: Fabric, random: Random) -> Fabric:
    """Return *fabric* with more endpoints like those it has, and with links of several speeds, some of them in risk groups."""
    nodes, links = list(fabric.nodes.values()), list(fabric.links.values())
    for endpoint in fabric.endpoints:
        for number in range(random.choice([0, 0, 1, 2])):
            twin = NodeId(f"{endpoint.id}-{number}")
            nodes.append(replace(endpoint, id=twin))
            for link in fabric.access_links[endpoint.id]:
                far = link.far_end(endpoint.id)
                ends = LinkEnd(twin, link.end_at(endpoint.id).port), LinkEnd(far.node, f"{far.port}-{twin}")
                links.append(Link.between(*ends, capacity_bps=1))
    return Fabric(
        nodes,
        [
            replace(
                link,
                capacity_bps=random.choice([1, 1, 2, 4]) * 10**9,
                srlgs=tuple(SrlgId(f"tray:{name}") for name in "abc" if random.random() < 0.2),
            )
            for link in links
        ],
    )


class ByHand:
    """One state of a fabric, some links and switches dead, looked at with dictionaries and searches."""

    def __init__(self, fabric: Fabric, *, is_valley_free: bool, dead: Iterable[str] = ()) -> None:
        self.fabric = fabric
        self.is_valley_free = is_valley_free
        self.dead = frozenset(dead)

    def is_alive(self, link: Link) -> bool:
        return not ({link.id, link.a.node, link.b.node} & self.dead)

    @cached_property
    def ends(self) -> list[tuple[NodeId, NodeId, Link, bool]]:
        return [
            (end.node, link.far_end(end.node).node, link, goes_up(self.fabric, link, end.node))
            for link in self.fabric.trunks
            if self.is_alive(link)
            for end in link.ends
        ]

    def homes(self, endpoint: NodeId) -> frozenset[NodeId]:
        return frozenset(
            link.far_end(endpoint).node for link in self.fabric.access_links[endpoint] if self.is_alive(link)
        )

    def reach(self, starts: Iterable[NodeId], *, is_valley_free: bool) -> set[NodeId]:
        """Return where permitted paths lead from *starts*."""
        todo = [(start, False) for start in starts]
        seen = set(todo)
        while todo:
            node, went_down = todo.pop()
            for source, target, _, is_up in self.ends:
                if source == node and not (is_valley_free and went_down and is_up):
                    state = (target, is_valley_free and (went_down or not is_up))
                    if state not in seen:
                        seen.add(state)
                        todo.append(state)
        return {node for node, _ in seen}

    def next_hops(self, homes: frozenset[NodeId]) -> dict[NodeId, list[tuple[NodeId, Link]]]:
        """Return the shortest permitted next hops towards *homes*."""
        distance = dict.fromkeys(homes, 0)
        members: dict[NodeId, list[tuple[NodeId, Link]]] = {}
        for phase in ((False,), (True,)) if self.is_valley_free else ((False, True),):
            settled = dict(distance)
            for level in range(2 * len(self.fabric.nodes)):
                for source, target, link, is_up in self.ends:
                    if is_up not in phase or distance.get(target) != level or source in settled:
                        continue
                    if distance.setdefault(source, level + 1) == level + 1:
                        members.setdefault(source, []).append((target, link))
        return members

    def connected(self, one: NodeId, other: NodeId, *, is_valley_free: bool) -> bool:
        return bool(self.reach(self.homes(one), is_valley_free=is_valley_free) & self.homes(other))


def bandwidth(
    node: NodeId,
    members: dict[NodeId, list[tuple[NodeId, Link]]],
    homes: frozenset[NodeId],
    state: ByHand,
    old: frozenset[NodeId],
) -> int:
    """Return what fits from *node* to *homes* over those of *members* that are alive in *state*; *old* never send further."""
    if node in state.dead:
        return 0
    if node in old:
        return UNBOUNDED if node in homes else 0
    return sum(
        min(link.capacity_bps, bandwidth(far, members, homes, state, old))
        for far, link in members.get(node, [])
        if state.is_alive(link)
    )


def by_hand(fabric: Fabric, dead: Iterable[str], *, is_valley_free: bool) -> tuple[int, int, int, int, int]:
    """Return detached, cut, cut by policy, waiting demands and the capacity retained, one pair at a time."""
    before = ByHand(fabric, is_valley_free=is_valley_free)
    after = ByHand(fabric, is_valley_free=is_valley_free, dead=dead)
    counts = [0, 0, 0, 0]
    retained = 1.0
    endpoints = [node.id for node in fabric.endpoints if fabric.attachments[node.id]]
    home_switches = sorted({home for endpoint in endpoints for home in before.homes(endpoint)} - after.dead)
    for target in endpoints:
        old, homes = before.homes(target), after.homes(target)
        members, anew = before.next_hops(old), after.next_hops(homes)
        for source in endpoints:
            if source == target or not before.connected(source, target, is_valley_free=is_valley_free):
                continue
            if not after.homes(source) or not homes:
                counts[0] += 1
            elif not after.connected(source, target, is_valley_free=False):
                counts[1] += 1
            elif not after.connected(source, target, is_valley_free=is_valley_free):
                counts[2] += 1
            elif not any(bandwidth(home, members, homes, after, old) for home in after.homes(source)):
                counts[3] += 1
        for switch in home_switches if homes else ():
            whole = bandwidth(switch, members, old, before, old)
            left = bandwidth(switch, members, homes, after, old) or bandwidth(switch, anew, homes, after, homes)
            if 0 < whole < UNBOUNDED and left:
                retained = min(retained, left / whole)
    return *counts, round(retained * PPM)


def as_by_hand(outcome: Outcome) -> tuple[int, int, int, int, int]:
    return outcome.detached, outcome.cut, outcome.cut_by_policy, outcome.waiting, outcome.retained_ppm


def dead_of(fabric: Fabric, outcome: Outcome) -> set[str]:
    failure = outcome.failure
    if failure.kind == "srlg":
        return {link.id for link in fabric.links.values() if failure.id in link.srlgs}
    return {failure.id}


@given(fabric=fabrics(), seed=st.integers(0, 10**6), are_valleys_allowed=st.booleans())
@settings(max_examples=80, deadline=None)
def test_every_single_failure_is_what_a_search_by_hand_finds(
    fabric: Fabric, seed: int, are_valleys_allowed: bool
) -> None:
    fabric = with_risks(fabric, Random(seed))
    is_valley_free = is_valley_free_required(fabric) and not are_valleys_allowed
    outcomes = outcomes_of(fabric, are_valleys_allowed=are_valleys_allowed)

    assert len(outcomes) == len(fabric.links) + len(fabric.switches) + len(
        {srlg for link in fabric.links.values() for srlg in link.srlgs}
    )
    for id_, outcome in outcomes.items():
        assert as_by_hand(outcome) == by_hand(fabric, dead_of(fabric, outcome), is_valley_free=is_valley_free), id_


@pytest.mark.parametrize("seed", range(30))
def test_tangles_are_judged_as_by_hand(seed: int) -> None:
    fabric = with_risks(tangle(Random(seed)), Random(seed))
    for id_, outcome in outcomes_of(fabric).items():
        assert as_by_hand(outcome) == by_hand(fabric, dead_of(fabric, outcome), is_valley_free=False), id_


@given(fabric=fabrics(), seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_every_pair_of_failures_is_what_a_search_by_hand_finds(fabric: Fabric, seed: int) -> None:
    random = Random(seed)
    fabric = with_risks(fabric, random)
    sweep = Sweep(fabric, KINDS)
    _, singles = swept(sweep)
    pairs = list(combinations(range(len(sweep.elements)), 2))
    chosen = random.sample(pairs, min(len(pairs), 25))
    one, other = (np.array(half, dtype=np.int64) for half in zip(*chosen, strict=True))
    failures = sweep.together(one, other)
    impact = merged(failures, [answer(sweep.ground, failures, piece) for piece in pieces(sweep.ground)])
    detached = sweep.detached(failures, impact)

    for index, pair in enumerate(chosen):
        dead = set().union(*(dead_of(fabric, singles[sweep.elements[half].id]) for half in pair))
        found = (
            *(int(column[index]) for column in (detached, impact.cut, impact.cut_by_policy, impact.waiting)),
            round(float(impact.retained[index]) * PPM),
        )
        assert found == by_hand(fabric, dead, is_valley_free=sweep.is_valley_free), [sweep.elements[i].id for i in pair]


@given(fabric=st.one_of(plain_fabrics(), tiered_fabrics()))
@settings(max_examples=80, deadline=None)
def test_with_valleys_single_points_of_failure_are_bridges_and_articulation_points(fabric: Fabric) -> None:
    """Of the whole graph where every endpoint is on one switch; those that part no two endpoints are left out."""
    single = {node.id for node in fabric.endpoints if len(fabric.attachments[node.id]) == 1}
    fabric = Fabric(
        [node for node in fabric.nodes.values() if node.is_switch or node.id in single],
        [
            link
            for link in fabric.links.values()
            if all(end.node in single or fabric.nodes[end.node].is_switch for end in link.ends)
        ],
    )
    graph = fabric.to_networkx()
    graph.remove_edges_from(list(nx.selfloop_edges(graph, keys=True)))
    expected = set()
    for one, other in nx.bridges(nx.Graph(graph)):
        if graph.number_of_edges(one, other) == 1:
            part = nx.node_connected_component(
                nx.restricted_view(graph, [], [(one, other, next(iter(graph[one][other])))]), one
            )
            whole = nx.node_connected_component(graph, one)
            if part & single and (whole - part) & single:
                expected.add(next(iter(graph[one][other])))
    for node in nx.articulation_points(nx.Graph(graph)):
        whole = nx.node_connected_component(graph, node)
        parts = [part & single for part in nx.connected_components(graph.subgraph(whole - {node}))]
        if sum(map(bool, parts)) > 1:
            expected.add(node)

    outcomes = outcomes_of(fabric, are_valleys_allowed=True)
    assert {id_ for id_, outcome in outcomes.items() if outcome.lost} == expected


@given(fabric=tiered_fabrics())
@settings(max_examples=40, deadline=None)
def test_a_trunk_is_repaired_by_removal_where_the_engine_protects_it(fabric: Fabric) -> None:
    """On tiered fabrics, where the engine arms removals alone; with endpoints on one switch each, it and we ask for the same sources."""
    several = {endpoint for endpoint, homes in fabric.attachments.items() if len(homes) > 1}
    fabric = Fabric(
        [node for node in fabric.nodes.values() if node.id not in several],
        [link for link in fabric.links.values() if not several & {end.node for end in link.ends}],
    )
    unprotected = {found.failure for found in compute(Topology(fabric), unusable=frozenset()).unprotected}
    outcomes = outcomes_of(fabric)

    assert {link.id for link in fabric.trunks if outcomes[link.id].repaired_by != BY_REMOVAL} == {
        link.id for link in fabric.trunks if link.id in unprotected
    }


def test_what_only_the_policy_cuts_is_told_apart() -> None:
    """Two pods of two leaves under a core: without the core, and with a cable between the spines, only a valley joins the pods' far sides."""
    draft = Draft()
    leaves = [draft.switch(f"leaf{index}", 1) for index in range(3)]
    spines = [draft.switch(f"spine{index}", 2) for index in range(2)]
    up = [draft.cable(leaf, spines[0]) for leaf in leaves[:2]]
    draft.cable(leaves[1], spines[1])
    draft.cable(leaves[2], spines[1])
    top = draft.switch("core", 3)
    for spine in spines:
        draft.cable(spine, top)
    for index, leaf in enumerate(leaves):
        draft.host(f"h{index}", leaf)
    fabric = draft.fabric()
    strict, lax = outcomes_of(fabric), outcomes_of(fabric, are_valleys_allowed=True)

    assert (strict["core"].cut, strict["core"].cut_by_policy, strict["core"].repaired_by) == (0, 2, BY_NOTHING)
    assert strict["core"].reasons == (ONLY_VALLEY,)
    # h0 and h2 are joined by leaf1 as well, a valley: that is a longer path where it is allowed.
    assert (lax["core"].cut, lax["core"].cut_by_policy, lax["core"].waiting) == (0, 0, 0)
    assert strict[up[0]].cut == lax[up[0]].cut == 4


def test_a_ring_needs_restoration() -> None:
    draft = Draft()
    switches = [draft.switch(f"s{index}") for index in range(5)]
    cables = [draft.cable(switches[index], switches[index - 1]) for index in range(5)]
    for index, switch in enumerate(switches):
        draft.host(f"h{index}", switch)
    outcome = outcomes_of(draft.fabric())[cables[0]]

    # Over one cable of a ring of five: two neighbours, and two pairs one farther, either way.
    assert (outcome.lost, outcome.waiting, outcome.repaired_by, outcome.reasons) == (0, 6, BY_RESTORATION, (LONGER,))
    assert outcome.retained_ppm == PPM


def test_a_spine_of_four_costs_a_quarter() -> None:
    fabric = generate("leaf-spine", {"leaves": 4, "spines": 4, "hosts_per_leaf": 2})
    outcomes = outcomes_of(fabric)
    spine = next(node.id for node in fabric.switches if node.tier == 2)

    assert (outcomes[spine].retained_ppm, outcomes[spine].bisection_ppm) == (750_000, 750_000)
    assert (outcomes[spine].repaired_by, outcomes[spine].lost) == (BY_REMOVAL, 0)
    trunk = fabric.trunks[0].id
    assert (outcomes[trunk].retained_ppm, outcomes[trunk].bisection_ppm) == (750_000, 937_500)


def test_the_bisection_of_a_torus_is_two_planes_of_links() -> None:
    """A 4x8 torus is cut in two across its long side, at two places, by 8 links: one of these is an eighth. Across the other it takes 16."""
    fabric = generate("torus", {"dims": (4, 8)})
    sweep = Sweep(fabric, KINDS)
    assert sweep.cuts.sum(axis=1).tolist() == [8]
    links = [outcome for outcome in swept(sweep)[1].values() if outcome.failure.kind == "link"]
    assert {outcome.bisection_ppm for outcome in links} == {PPM, 875_000}


def test_a_fabric_without_endpoints_or_without_trunks_has_nothing_to_lose() -> None:
    lone = Draft()
    lone.switch("s0")
    assert [as_by_hand(outcome) for outcome in outcomes_of(lone.fabric()).values()] == [(0, 0, 0, 0, PPM)]
    pair = Draft()
    for name in ("h0", "h1"):
        pair.host(name, pair.switch("s0"))
    assert {as_by_hand(outcome) for outcome in outcomes_of(pair.fabric()).values()} == {(2, 0, 0, 0, PPM)}


def test_how_the_classes_are_shared_out_changes_nothing() -> None:
    fabric = with_risks(generate("leaf-spine", {"leaves": 24, "spines": 3, "attachments": 2}), Random(5))
    sweep = Sweep(fabric, KINDS)
    whole = answer(sweep.ground, sweep.failures, (0, sweep.ground.class_count))
    apart = merged(
        sweep.failures, [answer(sweep.ground, sweep.failures, (at, at + 1)) for at in range(sweep.ground.class_count)]
    )
    assert sweep.outcomes(whole) == sweep.outcomes(apart)


def test_building_order_and_hash_seed_change_nothing() -> None:
    program = (
        "from random import Random\n"
        "from tests.paths.fabrics import tangle\n"
        "from tests.paths.test_what_if import outcomes_of, with_risks\n"
        "print(list(outcomes_of(with_risks(tangle(Random(3)), Random(3))).values()))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(printed) == 1


def test_a_link_that_carries_nothing_costs_nothing() -> None:
    draft = Draft()
    switch = draft.switch("s0")
    loop: LinkId = draft.cable(switch, switch)
    draft.host("h0", switch)
    draft.host("h1", switch)
    assert outcomes_of(draft.fabric())[loop].repaired_by == BY_REMOVAL
