"""Weights of next hops: against the definition in plain Python and fractions, and what they are to mean for a fabric that is hurt."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import gcd
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.fabric import Fabric, LinkEnd, goes_up, is_valley_free_required
from erfs.generators import generate
from erfs.ids import EVERYTHING, DestinationId, LinkId, NodeId, class_id, class_of, is_endpoint
from erfs.messages import Program
from erfs.paths import Sharing, Topology, compute, plan_rounds
from erfs.paths.bits import unpacked
from erfs.paths.situation import Situation
from erfs_agent.forwarding import FactSet, forwarding
from erfs_scenario.dataplane import DataPlane
from erfs_scenario.walker import Walk
from tests.paths.fabrics import FAMILIES, GBPS, Draft, fabrics, family, family_name, tables_of, tangle

Group = dict[int, int]
"""The weight of each member, by link-end."""
ALL_UP: frozenset[LinkId] = frozenset()


# --- the definition, slowly ----------------------------------------------------------------------------------------------
def arriving(fabric: Fabric, node: NodeId, *, is_sent_up: bool) -> int:
    """Return how much can arrive of what *node* sends up, or down."""
    up = down = access = 0
    for link in fabric.links_of[node]:
        if link.is_self_loop:
            continue
        if fabric.is_access(link):
            access += link.capacity_bps
        elif fabric.is_trunk(link):
            if goes_up(fabric, link, node):
                up += link.capacity_bps
            else:
                down += link.capacity_bps
    if not is_valley_free_required(fabric):
        return up + down + access
    if is_sent_up:
        return down + access
    return up or down


def ideal_share(value: Fraction, best: Fraction) -> Fraction:
    return 16 * value / best


def group_weights(values: dict[int, Fraction], previous: Group) -> Group:
    """Return the weights of a group, given what each member is worth and the weights before."""
    if previous.keys() != values.keys():
        previous = dict.fromkeys(values, 1)
    best = max(values.values())
    ideal = {end: ideal_share(value, best) for end, value in values.items()}
    top = max(previous.values())
    if all(abs(ideal[end] - Fraction(16 * previous[end], top)) <= Fraction(3, 2) for end in values):
        return previous
    rounded = {end: max(1, int(share + Fraction(1, 2))) for end, share in ideal.items()}
    divisor = gcd(*rounded.values())
    return {end: weight // divisor for end, weight in rounded.items()}


def expected_groups(situation: Situation, previous: dict[tuple[int, int], Group]) -> dict[tuple[int, int], Group]:
    """Return the weights of all groups, by (node, column)."""
    topology, mesh, hops = situation.topology, situation.mesh, situation.hops
    fabric = topology.fabric
    marks = unpacked(hops.members, hops.column_count)
    capacity = [
        int(topology.end_capacity_bps[end]) if end < len(topology.end_capacity_bps) else 1 for end in range(len(mesh))
    ]
    arrivals = [
        {is_up: arriving(fabric, node, is_sent_up=is_up) for is_up in (False, True)} for node in topology.switches
    ]
    found: dict[tuple[int, int], Group] = {}
    for column, target in enumerate(situation.targets):
        members: dict[int, list[int]] = {}
        for end in np.flatnonzero(marks[:, column]).tolist():
            members.setdefault(int(mesh.source[end]), []).append(end)

        def share(node: int, target_nodes: tuple[int, ...], members: dict[int, list[int]]) -> Fraction:
            if node in target_nodes:
                return Fraction(1)
            behind = sum(capacity[end] for end in members[node])
            is_sent_up = any(bool(mesh.is_up[end]) for end in members[node])
            return min(Fraction(1), Fraction(behind, arrivals[node][is_sent_up]))

        for node, ends in members.items():
            values = {end: capacity[end] * share(int(mesh.target[end]), target.attachments, members) for end in ends}
            found[node, column] = group_weights(values, previous.get((node, column), {}))
    return found


def groups_of(situation: Situation) -> dict[tuple[int, int], Group]:
    """Return the engine's weights of all groups, by (node, column)."""
    mesh, hops = situation.mesh, situation.hops
    marks = unpacked(hops.members, hops.column_count)
    found: dict[tuple[int, int], Group] = {}
    for end, column in np.argwhere(marks).tolist():
        found.setdefault((int(mesh.source[end]), column), {})[end] = 1
    weights = situation.sharing.weights
    for node in range(mesh.node_count):
        for column, row in zip(*weights.of_node(node), strict=True):
            group = found[node, int(column)]
            known = {
                int(mesh.source_start[node]) + local: weight for local, weight in enumerate(row.tolist()) if weight
            }
            assert known.keys() == group.keys()
            assert len(set(known.values())) > 1  # equal ones are not told
            group.update(known)
    return found


# --- fabrics and what happens to them ------------------------------------------------------------------------------------
def with_speeds(fabric: Fabric, rng: Random, speeds: list[int]) -> Fabric:
    links = [replace(link, capacity_bps=rng.choice(speeds)) for link in fabric.links.values()]
    return Fabric(fabric.nodes.values(), links)


def without(fabric: Fabric, count: int, rng: Random) -> frozenset[LinkId]:
    return frozenset(rng.sample([trunk.id for trunk in fabric.trunks], min(count, len(fabric.trunks))))


def states(topology: Topology, rng: Random, steps: int, *, is_access_too: bool) -> Iterator[frozenset[LinkId]]:
    """Yield what is unusable, step by step; some of it returns now and then."""
    links = [trunk.id for trunk in topology.trunks] + (sorted(topology.endpoint_of_access) if is_access_too else [])
    unusable = frozenset(link for link in links if rng.random() < rng.choice([0.0, 0.1, 0.3]))
    for _ in range(steps):
        yield unusable
        unusable ^= frozenset(rng.sample(links, min(len(links), rng.choice([1, 1, 1, 2, 5]))))


def follow(topology: Topology, rng: Random, steps: int) -> None:
    """Hold the engine to the definition: from nothing, from given weights, and brought up to date."""
    situation: Situation | None = None
    sharing: Sharing | None = None
    known: dict[tuple[int, int], Group] = {}
    cost = {trunk.id: rng.choice([1, 1, 1, 2]) for trunk in topology.trunks} if rng.random() < 0.3 else {}
    for unusable in states(topology, rng, steps, is_access_too=False):
        situation = Situation(topology, unusable, cost, previous=situation, shared=sharing)
        known = expected_groups(situation, known)
        assert groups_of(situation) == known
        fresh = Situation(topology, unusable, cost, shared=sharing)
        assert fresh.sharing == situation.sharing
        sharing = situation.sharing
        again = Situation(topology, unusable, cost, shared=sharing)
        assert again.sharing == sharing
        if rng.random() < 0.2:  # as whoever has just been started
            sharing, known = None, {}


SPEEDS = [[GBPS], [GBPS, GBPS, 2 * GBPS], [25 * GBPS, 40 * GBPS, 100 * GBPS], [GBPS, 100 * GBPS]]


@pytest.mark.parametrize("speeds", SPEEDS, ids=["one-speed", "two-speeds", "three-speeds", "far-apart"])
@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=family_name)
def test_weights_are_the_defined_ones_after_every_change(number: int, speeds: list[int]) -> None:
    rng = Random(1000 * number + len(speeds))
    follow(Topology(with_speeds(family(number), rng, speeds)), rng, 8)


@given(fabrics(), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_weights_of_tangled_fabrics_are_the_defined_ones(fabric: Fabric, seed: int) -> None:
    if fabric.trunks:
        rng = Random(seed)
        follow(Topology(with_speeds(fabric, rng, rng.choice(SPEEDS))), rng, 5)


@pytest.mark.parametrize("seed", range(40))
def test_weights_of_larger_tangles_are_the_defined_ones(seed: int) -> None:
    rng = Random(seed)
    follow(Topology(with_speeds(tangle(rng), rng, rng.choice(SPEEDS))), rng, 8)


@pytest.mark.parametrize("capacity_bps", [1000, 400_000_000_003])
def test_speeds_without_a_common_unit_are_told_apart_as_far_as_integers_allow(capacity_bps: int) -> None:
    """A speed that nothing divides makes the unit coarse; what is half as fast is given half all the same."""
    fabric = generate("fat-tree", {"k": 4})
    slow = next(trunk.id for trunk in fabric.trunks if {end.node for end in trunk.ends} == {"pod0-edge0", "pod0-agg0"})
    links = [
        replace(link, capacity_bps=capacity_bps if link.id == slow else 2 * capacity_bps + 1)
        for link in fabric.links.values()
    ]
    programs = compute(Topology(Fabric(fabric.nodes.values(), links)), unusable=ALL_UP, is_protecting=False).programs
    assert shares_of(programs["pod0-edge0"], fabric) == {
        "pod0-edge1": {"pod0-agg0": 1, "pod0-agg1": 2},
        **{f"pod{pod}-edge{index}": {"pod0-agg0": 1, "pod0-agg1": 2} for pod in (1, 2, 3) for index in range(2)},
    }


# --- what it is for ----------------------------------------------------------------------------------------------------


def between(fabric: Fabric, one: str, other: str) -> list[LinkId]:
    return [link.id for link in fabric.links_of[NodeId(one)] if link.far_end(NodeId(one)).node == other]


def shares_of(program: Program, fabric: Fabric) -> dict[str, dict[NodeId, int]]:
    """Return the weight of each neighbour, for each class with several next hops, by the first switch of the class."""
    found = {}
    for route in program.routes:
        members = program.groups[route.group].members
        if len(members) > 1 and not is_endpoint(route.destination):
            far = [fabric.link_at[LinkEnd(program.node, member.port)].far_end(program.node).node for member in members]
            host = fabric.class_members[route.destination][0]
            found[fabric.attachments[host][0]] = {
                node: member.weight for node, member in zip(far, members, strict=True)
            }
    return found


def carried(
    programs: Mapping[NodeId, Program], fabric: Fabric, source: NodeId, destination: DestinationId
) -> dict[NodeId, Fraction]:
    """Return what part of what goes from *source* to *destination* comes through each node."""
    tables = {
        node: {route.destination: program.groups[route.group].members for route in program.routes}
        for node, program in programs.items()
    }
    found = {source: Fraction(1)}
    waiting = [source]
    while waiting:
        node = min(waiting, key=lambda one: (-fabric.nodes[one].is_switch, one))
        waiting.remove(node)
        table = tables[node]
        members = table.get(destination, table.get(EVERYTHING, ()))
        total = sum(member.weight for member in members)
        for member in members:
            far = fabric.link_at[LinkEnd(node, member.port)].far_end(node).node
            if far not in found:
                waiting.append(far)
            found[far] = found.get(far, Fraction(0)) + found[node] * member.weight / total
    return found


def test_an_aggregation_switch_that_lost_half_its_uplinks_gets_half_the_traffic() -> None:
    fabric = generate("fat-tree", {"k": 8})
    cut = frozenset(between(fabric, "pod0-agg1", "core1-0") + between(fabric, "pod0-agg1", "core1-1"))
    assert len(cut) == 2
    computed = compute(Topology(fabric), unusable=cut)
    halved = {"pod0-agg0": 2, "pod0-agg1": 1, "pod0-agg2": 2, "pod0-agg3": 2}
    even = dict.fromkeys(halved, 1)
    for index in range(4):
        name = f"pod0-edge{index}"
        assert shares_of(computed.programs[NodeId(name)], fabric) == {
            f"pod{pod}-edge{other}": even if pod == 0 else halved
            for pod in range(8)
            for other in range(4)
            if f"pod{pod}-edge{other}" != name
        }
    there = class_id(["pod5-edge2"])
    through = carried(computed.programs, fabric, NodeId("pod0-edge0"), there)
    assert [through[NodeId(f"pod0-agg{index}")] for index in range(4)] == [
        Fraction(2, 7), Fraction(1, 7), Fraction(2, 7), Fraction(2, 7)
    ]  # fmt: skip
    # What comes to the pod is shared in the same way, for its senders see what is left behind their own aggregation switches.
    back = carried(computed.programs, fabric, NodeId("pod5-edge2"), class_id(["pod0-edge0"]))
    assert back[NodeId("pod0-agg1")] == Fraction(1, 7)


def test_a_leaf_that_lost_half_its_uplinks_gets_half_the_traffic() -> None:
    """Hosts attached to two leaves send twice as much by the whole one, and are sent twice as much by it."""
    fabric = generate("leaf-spine", {"leaves": 4, "spines": 4, "attachments": 2, "hosts_per_leaf": 2, "cables": 1})
    cut = frozenset(between(fabric, "leaf0", "spine0") + between(fabric, "leaf0", "spine1"))
    assert len(cut) == 2
    host = next(node for node, homes in fabric.attachments.items() if set(homes) == {"leaf0", "leaf1"})
    far = next(node for node, homes in fabric.attachments.items() if not {"leaf0", "leaf1"} & set(homes))
    programs = compute(Topology(fabric), unusable=cut).programs
    away = carried(programs, fabric, host, class_of(fabric.destination_of[far]))
    assert (away[NodeId("leaf0")], away[NodeId("leaf1")]) == (Fraction(1, 3), Fraction(2, 3))
    back = carried(programs, fabric, fabric.attachments[far][0], class_of(fabric.destination_of[host]))
    assert (back[NodeId("leaf0")], back[NodeId("leaf1")]) == (Fraction(1, 3), Fraction(2, 3))


def test_a_neighbour_that_delivers_is_not_weighed_by_what_is_behind_it() -> None:
    """By costs, one next hop delivers and the other one sends on: the destination's own uplinks do not count, the other's do."""
    draft = Draft()
    one, home, middle = (draft.switch(name) for name in ("one", "home", "middle"))
    direct = draft.cable(one, home)
    draft.cable(one, middle)
    draft.cable(middle, home)
    for index in range(3):
        draft.host(f"here{index}", home)
        draft.host(f"there{index}", middle)
    topology = Topology(draft.fabric())
    situation = Situation(topology, ALL_UP, {direct: 2})
    assert groups_of(situation) == expected_groups(situation, {})
    # middle may be given the traffic of 5 cables, and has 1 to home: 16 to 3.2.
    columns, weights = situation.sharing.weights.of_node(topology.switch_index[one])
    assert (columns.tolist(), weights.tolist()) == (
        [list(topology.class_attachments).index(class_id([home]))],
        [[16, 3]],
    )


def weights_through(
    fabric: Fabric, states: Sequence[frozenset[LinkId]], node: str
) -> list[dict[str, dict[NodeId, int]]]:
    """Return how *node* shares in each of *states*, one after the other."""
    topology = Topology(fabric)
    shared = None
    found = []
    for unusable in states:
        computed = compute(topology, unusable=unusable, shared=shared, is_protecting=False)
        shared = computed.sharing
        found.append(shares_of(computed.programs[NodeId(node)], fabric))
    return found


def two_planes(uplinks: int) -> Fabric:
    """Return a fabric of two leaves below two aggregation switches, each with so many uplinks to its core, and a far leaf."""
    draft = Draft()
    leaves = [draft.switch(f"leaf{index}", 1) for index in range(2)]
    far = draft.switch("far", 1)
    for plane in range(2):
        near, away = draft.switch(f"agg{plane}", 2), draft.switch(f"away{plane}", 2)
        core = draft.switch(f"core{plane}", 3)
        for leaf in leaves:
            for _ in range(uplinks // 2):
                draft.cable(leaf, near)
        for _ in range(uplinks):
            draft.cable(near, core)
            draft.cable(core, away)
            draft.cable(away, far)
    for leaf in (*leaves, far):
        draft.host(f"host-{leaf}", leaf)
    return draft.fabric()


def test_a_link_that_flaps_within_the_tolerance_changes_no_weight() -> None:
    """One uplink of sixteen: the ideal is 15 to 16, which equal weights are near enough to."""
    fabric = two_planes(16)
    one = frozenset(between(fabric, "agg0", "core0")[:1])
    states = weights_through(fabric, [ALL_UP, one, ALL_UP, one, ALL_UP], "leaf0")
    assert {weight for state in states for shares in state.values() for weight in shares.values()} == {1}


def test_a_link_that_flaps_outside_the_tolerance_changes_the_weights_and_changes_them_back() -> None:
    """Four uplinks of sixteen: 12 to 16."""
    fabric = two_planes(16)
    cut = frozenset(between(fabric, "agg0", "core0")[:4])
    states = weights_through(fabric, [ALL_UP, cut, cut, ALL_UP, ALL_UP], "leaf0")
    assert [state["far"] for state in states] == [
        {"agg0": 1, "agg1": 1}, {"agg0": 3, "agg1": 4}, {"agg0": 3, "agg1": 4}, {"agg0": 1, "agg1": 1},
        {"agg0": 1, "agg1": 1},
    ]  # fmt: skip


def test_weights_stay_while_they_are_good_enough() -> None:
    """Cables go one by one, 16 to 12, and return: the weights move when the ideal is more than 1.5 away, and not where they moved before."""
    fabric = two_planes(16)
    cables = between(fabric, "agg0", "core0")
    states = [frozenset(cables[:count]) for count in (0, 1, 2, 3, 4, 3, 2, 1, 0)]
    found = weights_through(fabric, states, "leaf0")
    assert [Fraction(state["far"][NodeId("agg0")], state["far"][NodeId("agg1")]) * 16 for state in found] == [
        16, 16, 14, 14, 12, 12, 14, 14, 16
    ]  # fmt: skip


def test_whoever_has_just_been_started_may_share_otherwise_but_within_the_tolerance() -> None:
    fabric = two_planes(16)
    cables = between(fabric, "agg0", "core0")
    *_, known = weights_through(fabric, [frozenset(cables[:count]) for count in (4, 2, 1)], "leaf0")
    (fresh,) = weights_through(fabric, [frozenset(cables[:1])], "leaf0")
    assert known["far"] == {"agg0": 7, "agg1": 8}
    assert fresh["far"] == {"agg0": 1, "agg1": 1}


@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=family_name)
def test_the_same_situation_after_itself_has_the_same_programs(number: int) -> None:
    fabric = family(number)
    topology = Topology(fabric)
    for unusable in (ALL_UP, without(fabric, 3, Random(number))):
        once = compute(topology, unusable=unusable)
        again = compute(topology, unusable=unusable, shared=once.sharing)
        anew = compute(Topology(fabric), unusable=unusable)
        assert again.programs == once.programs == anew.programs
        assert again.sharing == once.sharing == anew.sharing


def test_what_one_host_loses_moves_no_weight_of_others() -> None:
    """A lost attachment makes a destination and a source more; everybody else's weights are remembered under their new numbers."""
    fabric = generate("leaf-spine", {"leaves": 4, "spines": 16, "attachments": 2, "hosts_per_leaf": 8, "cables": 1})
    topology = Topology(fabric)
    host, *others = [node for node, homes in fabric.attachments.items() if set(homes) == {"leaf0", "leaf1"}]
    cables = [link for spine in range(4) for link in between(fabric, "leaf0", f"spine{spine:02}")]
    shared = compute(topology, unusable=frozenset(cables)).sharing
    kept = compute(topology, unusable=frozenset(cables[:3]), shared=shared)
    lost = frozenset({*cables[:3], *between(fabric, host, "leaf1")})
    after = compute(topology, unusable=lost, shared=kept.sharing)
    for other in others:
        assert shares_of(kept.programs[other], fabric)["leaf2"] == {"leaf0": 3, "leaf1": 4}
        assert shares_of(after.programs[other], fabric)["leaf2"] == {"leaf0": 3, "leaf1": 4}
    back = compute(topology, unusable=frozenset(cables[:3]), shared=after.sharing)
    assert shares_of(back.programs[others[0]], fabric)["leaf2"] == {"leaf0": 3, "leaf1": 4}


def test_a_change_of_weights_alone_is_safe_at_once() -> None:
    fabric = two_planes(16)
    topology = Topology(fabric)
    cables = between(fabric, "agg0", "core0")
    equal = compute(topology, unusable=frozenset(cables[:1]))
    far_off = compute(topology, unusable=frozenset(cables[:4]))
    unequal = compute(topology, unusable=frozenset(cables[:1]), shared=far_off.sharing)
    changed = {node for node in equal.programs if equal.programs[node].digest != unequal.programs[node].digest}
    (only,) = plan_rounds(equal.programs, unequal.programs, fabric)
    assert set(only) == changed == {"leaf0", "leaf1"}
    assert all(only[node] == unequal.programs[node] for node in changed)


def test_agents_keep_weights_when_a_member_goes() -> None:
    fabric = generate("fat-tree", {"k": 8})
    cut = frozenset(between(fabric, "pod0-agg1", "core1-0") + between(fabric, "pod0-agg1", "core1-1"))
    program = compute(Topology(fabric), unusable=cut).programs[NodeId("pod0-edge0")]
    there = class_id(["pod5-edge2"])
    down = next(port for port in program.ports if port.far_end == "pod0-agg0")  # the port of a member that has weight 2
    routes = forwarding(program, FactSet(), frozenset({down.port}), {}).routes
    far = {port.port: port.far_end for port in program.ports}
    assert {far[member.port]: member.weight for member in routes[there]} == {
        "pod0-agg1": 1, "pod0-agg2": 2, "pod0-agg3": 2
    }  # fmt: skip


def test_the_referee_shares_by_weight() -> None:
    """All but what agg1 is given arrives when agg1 drops everything: a seventh is lost, not a quarter."""
    fabric = generate("fat-tree", {"k": 8})
    cut = frozenset(between(fabric, "pod0-agg1", "core1-0") + between(fabric, "pod0-agg1", "core1-1"))
    programs = compute(Topology(fabric), unusable=cut).programs
    plane = DataPlane(fabric)
    for node in programs:
        plane.write_routes(node, tables_of(programs)[node])
    there, host = class_id(["pod5-edge2"]), fabric.class_members[class_id(["pod5-edge2"])][0]
    plane.write_routes(NodeId("pod0-agg1"), {there: (), fabric.destination_of[host]: ()})
    index = plane.node_index
    source = index[NodeId("pod0-edge0")]
    walk = Walk(plane, there, [(index[host], fabric.destination_of[host])], [index[NodeId("pod5-edge2")]], [source])
    walk.walk()
    assert walk.value[source] == Fraction(6, 7)
