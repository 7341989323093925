"""Are generated fabrics what their formulas and networkx say?"""

import itertools
import math
from collections import Counter

import networkx as nx
import pytest
from pydantic import ValidationError

from erfs.errors import FabricError
from erfs.fabric import Fabric, Medium, NodeKind, is_tiered, is_valley_free_required
from erfs.generators import GENERATORS, LINK_COUNT_MAX, generate


def switch_graph(fabric: Fabric) -> "nx.Graph[str]":
    graph: nx.Graph[str] = nx.Graph((link.a.node, link.b.node) for link in fabric.trunks)
    graph.add_nodes_from(node.id for node in fabric.switches)
    return graph


def degrees(fabric: Fabric) -> dict[str, set[int]]:
    """The numbers of links per node, by kind and tier."""
    found: dict[str, set[int]] = {}
    for node in fabric.nodes.values():
        found.setdefault(f"{node.kind} {node.tier}", set()).add(len(fabric.links_of[node.id]))
    return found


@pytest.mark.parametrize("k", [2, 4, 6, 8])
def test_fat_tree_has_the_counts_of_its_formula(k: int) -> None:
    """Al-Fares et al.: 5k²/4 switches of k ports, k³/4 hosts, and as many links on each of the three levels."""
    fabric = generate("fat-tree", {"k": k})

    assert (len(fabric.switches), len(fabric.endpoints), len(fabric.links)) == (
        5 * k * k // 4,
        k**3 // 4,
        3 * k**3 // 4,
    )
    assert {len(fabric.links_of[node.id]) for node in fabric.switches} == {k}
    assert Counter(node.tier for node in fabric.switches) == {1: k * k // 2, 2: k * k // 2, 3: k * k // 4}
    assert is_valley_free_required(fabric)


def test_fat_tree_pairs_of_pods_have_every_path() -> None:
    """Between edge switches of different pods there are k²/4 disjoint shortest paths as far as edges allow: k/2 by max-flow."""
    graph = switch_graph(generate("fat-tree", {"k": 4}))

    assert nx.diameter(graph) == 4
    assert len(list(nx.all_shortest_paths(graph, "pod0-edge0", "pod3-edge1"))) == 4
    assert nx.edge_connectivity(graph, "pod0-edge0", "pod3-edge1") == 2


def test_leaf_spine_joins_every_leaf_to_every_spine() -> None:
    fabric = generate("leaf-spine", {"leaves": 6, "spines": 3, "hosts_per_leaf": 5, "cables": 2})

    assert (len(fabric.switches), len(fabric.endpoints), len(fabric.links)) == (9, 30, 6 * 3 * 2 + 30)
    assert degrees(fabric) == {"host 0": {1}, "switch 1": {3 * 2 + 5}, "switch 2": {6 * 2}}
    assert nx.is_isomorphic(switch_graph(fabric), nx.complete_bipartite_graph(6, 3))


def test_two_attachments_put_each_host_on_a_pair_of_leaves() -> None:
    fabric = generate("leaf-spine", {"leaves": 4, "spines": 2, "hosts_per_leaf": 3, "attachments": 2})

    assert {name: len(members) for name, members in fabric.class_members.items()} == {
        "@leaf0+leaf1": 6,
        "@leaf2+leaf3": 6,
    }
    assert degrees(fabric)["host 0"] == {2}


def test_rail_puts_adapter_r_of_every_host_on_leaf_r_of_its_group() -> None:
    fabric = generate("rail", {"hosts": 10, "hosts_per_group": 4, "nics_per_host": 3, "spines": 2, "cables": 2})

    assert len(fabric.endpoints) == 30
    assert len(fabric.switches) == 3 * 3 + 2  # three groups, the last of two hosts
    for nic in fabric.endpoints:
        assert nic.kind is NodeKind.NIC
        assert nic.id == f"{nic.labels['host']}-nic{nic.labels['rail']}"
        group = int(nic.labels["host"].removeprefix("h")) // 4
        assert fabric.attachments[nic.id] == (f"su{group}-leaf{nic.labels['rail']}",)
    assert fabric.nodes["h07-nic2"].labels == {"host": "h07", "rail": "2", "rack": "rack01", "pod": "su1"}  # type: ignore[index]


def test_rail_defaults_are_the_superpod_reference() -> None:
    """64 eight-GPU hosts: 16 leaves, 8 spines, 512 adapters, 512 trunk cables, no oversubscription."""
    fabric = generate("rail", {})

    assert (len(fabric.switches), len(fabric.endpoints), len(fabric.trunks)) == (24, 512, 512)
    assert degrees(fabric) == {"nic 0": {1}, "switch 1": {64}, "switch 2": {64}}
    assert len({node.labels["host"] for node in fabric.endpoints}) == 64


@pytest.mark.parametrize(("a", "p", "h"), [(4, 2, 2), (2, 1, 1), (6, 3, 3), (3, 1, 2)])
def test_a_full_dragonfly_has_one_link_between_any_two_groups(a: int, p: int, h: int) -> None:
    """Kim et al.: g = ah+1 groups, a(p)g hosts, every switch with p + (a-1) + h links, at most local-global-local."""
    fabric = generate("dragonfly", {"switches_per_group": a, "hosts_per_switch": p, "global_links_per_switch": h})
    groups = a * h + 1

    assert (len(fabric.switches), len(fabric.endpoints)) == (a * groups, a * p * groups)
    assert len(fabric.trunks) == groups * a * (a - 1) // 2 + groups * (groups - 1) // 2
    assert {len(fabric.links_of[node.id]) for node in fabric.switches} == {p + a - 1 + h}
    assert nx.diameter(switch_graph(fabric)) <= 3
    between = Counter(
        frozenset((fabric.nodes[link.a.node].labels["pod"], fabric.nodes[link.b.node].labels["pod"]))
        for link in fabric.trunks
    )
    assert {count for pods, count in between.items() if len(pods) == 2} == {1}
    assert not is_tiered(fabric)


def test_fewer_dragonfly_groups_share_the_global_links_evenly() -> None:
    fabric = generate("dragonfly", {"switches_per_group": 4, "global_links_per_switch": 2, "groups": 3})
    between = Counter(
        frozenset((fabric.nodes[link.a.node].labels["pod"], fabric.nodes[link.b.node].labels["pod"]))
        for link in fabric.trunks
    )

    assert {count for pods, count in between.items() if len(pods) == 2} == {4}
    assert {len(fabric.links_of[node.id]) for node in fabric.switches} == {2 + 3 + 2}


@pytest.mark.parametrize("dims", [(4, 4, 4), (3, 5), (2, 2), (2, 3, 4), (7,)])
def test_torus_is_the_periodic_grid(dims: tuple[int, ...]) -> None:
    """networkx's periodic grid, where a dimension of two has one cable as well; diameter: half of each dimension, summed."""
    fabric = generate("torus", {"dims": dims})
    graph = switch_graph(fabric)

    assert nx.is_isomorphic(graph, nx.grid_graph(dims, periodic=True))
    assert nx.diameter(graph) == sum(dim // 2 for dim in dims)
    assert (
        len(fabric.trunks) == graph.number_of_edges() == sum(math.prod(dims) // (2 if dim == 2 else 1) for dim in dims)
    )
    assert not is_tiered(fabric)


def test_torus_takes_its_size_as_people_write_it() -> None:
    assert generate("torus", {"dims": "3x4"}) == generate("torus", {"dims": [3, 4]})


@pytest.mark.parametrize("kind", GENERATORS)
def test_every_generated_fabric_is_whole(kind: str) -> None:
    fabric = generate(kind, {"access_gbps": 200, "trunk_gbps": 800, "medium": "lossy"})

    assert nx.is_connected(fabric.to_networkx())
    assert {link.medium for link in fabric.links.values()} == {Medium.LOSSY}
    assert {link.capacity_bps for link in fabric.trunks} == {800 * 10**9}
    assert {link.capacity_bps for links in fabric.access_links.values() for link in links} == {200 * 10**9}
    assert all(link.srlgs for link in fabric.links.values())
    assert all(node.tier is not None for node in fabric.nodes.values())
    assert fabric == generate(kind, {"access_gbps": 200, "trunk_gbps": 800, "medium": "lossy"})


@pytest.mark.parametrize("kind", GENERATORS)
def test_link_count_is_known_before_anything_is_built(kind: str) -> None:
    params = GENERATORS[kind].params()

    assert params.link_count() == len(generate(kind, {}).links)


def test_parallel_cables_share_a_risk_that_single_ones_do_not() -> None:
    bundled, single = (generate("rail", {"hosts": 4, "cables": cables}) for cables in (2, 1))

    by_bundle = Counter(srlg for link in bundled.trunks for srlg in link.srlgs if srlg.startswith("bundle:"))
    assert set(by_bundle.values()) == {2}
    assert not any(srlg.startswith("bundle:") for link in single.trunks for srlg in link.srlgs)


@pytest.mark.parametrize(
    ("kind", "params", "expected"),
    [
        ("fat-tree", {"k": 5}, "multiple of 2"),
        ("fat-tree", {"k": 4, "hosts": 3}, "Extra inputs"),
        ("leaf-spine", {"leaves": 3, "attachments": 2}, "needs an even number of leaves, not 3"),
        ("rail", {"hosts": 0}, "greater than or equal to 1"),
        ("dragonfly", {"groups": 10}, "a\\*h\\+1 = 9 at most"),
        ("torus", {"dims": "1x4"}, "greater than or equal to 2"),
        ("torus", {"dims": "axb"}, "valid integer"),
        ("torus", {"dims": [1024, 1024, 1024]}, f"at most {LINK_COUNT_MAX:,} are built"),
    ],
)
def test_wrong_parameters_are_refused_with_the_reason(kind: str, params: dict[str, object], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        generate(kind, params)


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(FabricError, match="expected one of fat-tree, leaf-spine, rail, dragonfly, torus"):
        generate("clos", {})


def test_every_parameter_is_described_with_its_unit() -> None:
    for generator, (name, field) in itertools.chain.from_iterable(
        zip(itertools.repeat(generator), generator.params.model_fields.items(), strict=False)
        for generator in GENERATORS.values()
    ):
        assert field.description, (generator.kind, name)
        assert not name.endswith("_gbps") or "Gbit/s" in field.description
