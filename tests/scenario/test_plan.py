"""A plan is drawn once: equal seeds give equal plans everywhere, and a selector means the same on any fabric."""

import random
import subprocess
import sys
from dataclasses import replace

import pytest

from erfs.errors import ConfigError
from erfs.fabric import Fabric
from erfs.generators import generate
from erfs.ids import NodeId
from erfs.units import MS, SECOND
from erfs_scenario.demands import DemandSet, ring_pairs, sampled_pairs
from erfs_scenario.plan import LAB_K4, Plan, Timing, compile_plan, fabric_digest
from erfs_scenario.preview import reach_of_faults
from erfs_scenario.schema import Selector, parse_scenario
from erfs_scenario.selectors import Misfit, select_links, select_nodes

SCENARIO = """
name: demo
fabric: {generate: {kind: fat-tree, k: 4}}
demands:
  sampled: {count: 40}
  groups: {job: {select: {kind: host, random: 4}, pattern: ring}}
faults:
  - {name: one, kind: link_down, target: {kind: trunk, random: 2}, at: 1 s, for: 2 s}
  - {kind: node_down, target: {kind: switch, tier: top, random: 1}, at: 500 ms, until: 900 ms}
"""


def plan_of(text: str, fabric: Fabric, seed: int | None = None) -> Plan:
    return compile_plan(parse_scenario(text.encode(), "s.yaml"), fabric, seed=seed)


def test_times_count_from_the_end_of_the_settle_time_and_faults_stand_in_order(fat_tree: Fabric) -> None:
    plan = plan_of(SCENARIO, fat_tree)
    assert plan.measure_from_ns == 5 * SECOND
    assert [(fault.id, fault.at_ns, fault.end_at_ns) for fault in plan.faults] == [
        ("node_down-2", 6_500_000_000, 6_900_000_000),
        ("one", 7_000_000_000, 9_000_000_000),
    ]
    assert plan.duration_ns == 14 * SECOND


def test_the_bus_is_out_of_band_unless_the_kernels_fabric_says_otherwise(fat_tree: Fabric) -> None:
    found = []
    for bus in ("", ", bus: out_of_band", ", bus: in_band"):
        fabric = f"fabric: {{generate: {{kind: fat-tree, k: 4}}, kernel: {{kind: fat-tree, k: 4{bus}}}}}"
        plan = plan_of(SCENARIO.replace("fabric: {generate: {kind: fat-tree, k: 4}}", fabric), fat_tree)
        found.append((plan.is_bus_in_band, plan.header("kernel")["is_bus_in_band"]))
    assert found == [(False, False), (False, False), (True, True)]
    assert not plan_of(SCENARIO, fat_tree).is_bus_in_band


def test_delays_are_those_of_the_named_set_where_the_scenario_gives_none_itself(fat_tree: Fabric) -> None:
    found = [
        plan_of(SCENARIO + timing, fat_tree).timing
        for timing in ("", "timing: {like: lab-k4}", "timing: {like: lab-k4, write: 7 ms}", "timing: {write: 7 ms}")
    ]
    assert found == [Timing(), LAB_K4, replace(LAB_K4, write_ns=7 * MS), Timing(write_ns=7 * MS)]


def test_equal_seeds_give_equal_plans_and_other_seeds_others(fat_tree: Fabric) -> None:
    again = generate("fat-tree", {"k": 4})
    assert plan_of(SCENARIO, fat_tree, 7).header("sim") == plan_of(SCENARIO, again, 7).header("sim")
    assert plan_of(SCENARIO, fat_tree, 7).demands == plan_of(SCENARIO, again, 7).demands
    drawn = {plan_of(SCENARIO, fat_tree, seed).faults for seed in range(8)}
    assert len(drawn) == 8


def test_a_fault_draws_from_a_stream_of_its_own(fat_tree: Fabric) -> None:
    """Another fault before it, or other demands, change nothing of what it hits."""
    alone = """
name: demo
fabric: {generate: {kind: fat-tree, k: 4}}
faults:
  - {name: one, kind: link_down, target: {kind: trunk, random: 2}, at: 1 s, for: 2 s}
"""
    assert plan_of(alone, fat_tree).faults[0].links == plan_of(SCENARIO, fat_tree).faults[1].links


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_the_plan_does_not_depend_on_the_hash_seed(fat_tree: Fabric, hash_seed: str) -> None:
    program = f"""
from erfs.generators import generate
from erfs_scenario.plan import compile_plan
from erfs_scenario.schema import parse_scenario
plan = compile_plan(parse_scenario({SCENARIO!r}.encode(), "s.yaml"), generate("fat-tree", {{"k": 4}}), seed=3)
print(plan.header("sim"), plan.demands)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
    )
    plan = plan_of(SCENARIO, fat_tree, 3)
    assert done.stdout.strip() == f"{plan.header('sim')} {plan.demands}"


def test_all_pairs_are_counted_without_being_listed() -> None:
    nodes = tuple(NodeId(f"n{index}") for index in range(5))
    unit_of = dict(zip(nodes, ["x", "x", "x", "y", "y"], strict=True))
    demands = DemandSet("all", endpoints=nodes)
    assert demands.count == 20 == len(list(demands.demands()))
    assert demands.weights(unit_of, unit_of) == {("x", "x"): 6, ("x", "y"): 6, ("y", "x"): 6, ("y", "y"): 2}


@pytest.mark.parametrize("count", [1, 7, 19, 20, 1000])
def test_a_sample_holds_different_pairs_of_different_endpoints(count: int) -> None:
    nodes = [NodeId(f"n{index}") for index in range(5)]
    pairs = sampled_pairs(nodes, count, random.Random(1))
    assert len(set(pairs)) == len(pairs) == min(count, 20)
    assert all(source != target for source, target in pairs)


def test_every_pair_is_drawn_as_often_as_every_other() -> None:
    nodes = [NodeId(f"n{index}") for index in range(3)]
    drawn = [pair for seed in range(600) for pair in sampled_pairs(nodes, 1, random.Random(seed))]
    counts = {pair: drawn.count(pair) for pair in set(drawn)}
    assert len(counts) == 6
    assert min(counts.values()) > 60


def test_a_ring_joins_each_to_its_neighbours_both_ways() -> None:
    assert set(ring_pairs([NodeId(name) for name in "abc"])) == {(a, b) for a in "abc" for b in "abc" if a != b}
    assert set(ring_pairs([NodeId("a"), NodeId("b")])) == {("a", "b"), ("b", "a")}


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("fat-tree", {"k": 4}),
        ("leaf-spine", {}),
        ("rail", {"hosts": 4, "hosts_per_group": 2, "nics_per_host": 2, "spines": 2}),
        ("dragonfly", {}),
        ("torus", {"dims": [3, 3]}),
    ],
)
def test_a_trunk_an_access_link_a_switch_and_a_host_are_found_on_any_fabric(
    kind: str, params: dict[str, object]
) -> None:
    fabric = generate(kind, params)
    (trunk,) = select_links(fabric, Selector(kind="trunk", random=1), random.Random(1))
    assert fabric.is_trunk(fabric.links[trunk])
    (access,) = select_links(fabric, Selector(kind="access", random=1), random.Random(1))
    assert fabric.is_access(fabric.links[access])
    (switch,) = select_nodes(fabric, Selector(kind="switch", tier="top", random=1), random.Random(1))
    assert fabric.nodes[switch].is_switch
    (host,) = select_nodes(fabric, Selector(kind="host", random=1), random.Random(1))
    assert fabric.nodes[host].is_endpoint


def test_links_can_be_had_on_one_switch(fat_tree: Fabric) -> None:
    for seed in range(20):
        one, other = select_links(fat_tree, Selector(kind="trunk", random=2, share_switch=True), random.Random(seed))
        ends = [{end.node for end in fat_tree.links[link].ends} for link in (one, other)]
        assert ends[0] & ends[1]


def test_names_may_be_those_of_a_port_of_two_nodes_or_of_the_link(fat_tree: Fabric) -> None:
    (link,) = (link for link in fat_tree.trunks if {link.a.node, link.b.node} == {"core0-0", "pod0-agg0"})
    for name in (link.id, link.a.id, f"{link.b.id} - {link.a.id}", "core0-0 - pod0-agg0", "pod0-agg0 - core0-0"):
        assert select_links(fat_tree, Selector(name=(name,)), random.Random(1)) == (link.id,)


def test_labels_and_tiers_narrow_each_other(fat_tree: Fabric) -> None:
    found = select_links(fat_tree, Selector(kind="trunk", tier=2, label={"pod": 0}), random.Random(1))
    assert len(found) == 4, "the four cables between edge and aggregation switches of a pod"
    with pytest.raises(Misfit) as caught:
        select_links(fat_tree, Selector(kind="trunk", label={"pod": 9}), random.Random(1))
    assert caught.value.suggestion == "pod here is one of 0, 1, 2, 3"


def test_a_selector_that_fits_nothing_here_names_the_place_in_the_file(fat_tree: Fabric) -> None:
    text = SCENARIO.replace("tier: top", "tier: 5")
    with pytest.raises(ConfigError, match=r'^s\.yaml:9:52: no such node is in tier 5 in fabric "fat-tree k=4"'):
        plan_of(text, fat_tree)


def test_small_fabrics_get_all_pairs_where_a_sample_says_so(fat_tree: Fabric) -> None:
    text = SCENARIO.replace("count: 40", "count: 40, all_up_to: 240")
    assert [(part.name, part.count) for part in plan_of(text, fat_tree).demands] == [("all_pairs", 240), ("job", 8)]
    text = SCENARIO.replace("count: 40", "count: 40, all_up_to: 239")
    assert [(part.name, part.count) for part in plan_of(text, fat_tree).demands] == [("sampled", 40), ("job", 8)]


def test_the_digest_of_a_fabric_changes_with_any_link(fat_tree: Fabric) -> None:
    less = Fabric(fat_tree.nodes.values(), list(fat_tree.links.values())[1:])
    assert fabric_digest(less) != fabric_digest(fat_tree) == fabric_digest(generate("fat-tree", {"k": 4}))


def test_a_preview_counts_whom_a_fault_could_harm(fat_tree: Fabric) -> None:
    text = """
name: demo
fabric: {generate: {kind: fat-tree, k: 4}}
faults:
  - {name: cut, kind: link_down, target: {name: pod0-edge0 - pod0-agg0}, at: 1 s, for: 2 s}
  - {name: boss, kind: controller_kill, at: 1 s, for: 2 s}
"""
    reach = reach_of_faults(plan_of(text, fat_tree))
    # To and from 7 other edge switches, 2 hosts on each: 14 flows of 4 demands; inbound ones are far.
    assert (reach["cut"].flows, reach["cut"].demands, reach["cut"].far_flows) == (14, 56, 7)
    assert reach["boss"].flows == 0
