"""Does the inspection find what was built into a fabric?"""

import re
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import pytest

from erfs.fabric import Fabric, Link, LinkEnd, Medium, Node, NodeKind
from erfs.generators import generate
from erfs.ids import NodeId
from erfs.importers import Imported, load_fabric
from erfs.inspect_fabric import Findings, inspect

Import = Callable[..., Imported]


def without(fabric: Fabric, *links: str) -> Fabric:
    return Fabric(fabric.nodes.values(), (link for link in fabric.links.values() if link.id not in links))


def cables(*pairs: str, hosts: str = "") -> Fabric:
    """A fabric of one-letter nodes: "ab" is a cable between a and b; the letters of *hosts* are hosts."""
    ports: dict[str, int] = {}
    links = []
    for pair in pairs:
        ends = []
        for letter in pair:
            ports[letter] = ports.get(letter, 0) + 1
            ends.append(LinkEnd(NodeId(letter), str(ports[letter])))
        links.append(Link.between(*ends, capacity_bps=10**11))
    nodes = [Node(NodeId(name), NodeKind.HOST if name in hosts else NodeKind.SWITCH) for name in ports]
    return Fabric(nodes, links).with_inferred_tiers()


def test_dgx_uplinks_are_unequal_as_the_sources_say(shared: Path) -> None:
    found = inspect(load_fabric(shared / "topologies" / "ibnetdiscover_dgx_ndr_rail_40sw.txt.gz").fabric)

    (uplinks,), (bundles,) = found.uplinks, found.bundles
    assert uplinks.switches_by_count == {18: 19, 17: 2, 16: 7, 15: 2, 14: 1}
    assert (uplinks.modal, uplinks.missing, len(uplinks.short)) == (18, 26, 12)
    assert bundles.pairs_by_count == {2: 263, 1: 6}
    assert (bundles.modal, bundles.missing) == (2, 6)
    assert found.components == (622,)
    assert (found.is_tiered, found.is_valley_free_required) == (True, True)


def test_selene_lacks_the_links_that_the_sources_say(shared: Path) -> None:
    """13 of 4,000 leaf-spine links and 16 of 4,480 spine-core links are absent; the management leaves are another matter."""
    found = inspect(load_fabric(shared / "topologies" / "ibnetdiscover_selene_compute_666sw.txt.xz").fabric)

    assert {bundle.tiers: bundle.missing for bundle in found.bundles}["1-2"] == 13
    assert {up.tier: up.missing for up in found.uplinks}[2] == 16
    leaves = found.uplinks[0]
    assert sum(leaves.modal - count for _, name, count in leaves.short if re.match(r"MF0;LG", name)) == 13
    assert [(name, count) for _, name, count in leaves.other_role] == [
        ("MF0;MLG01-02:MQM8700/U1", 2),
        ("MF0;MLG01-01:MQM8700/U1", 2),
    ]
    assert [(cut.name, len(cut.endpoints_cut_off)) for cut in found.cutting_switches if cut.switches_cut_off] == [
        ("MF0;CSPINE1-40:MQM8700/U1", 5),
        ("MF0;CSPINE1-80:MQM8700/U1", 4),
        ("MF0;MSPINE3-01:MQM8700/U1", 2),
    ]


def test_a_bridge_names_the_endpoints_on_its_smaller_side() -> None:
    found = inspect(cables("xa", "ya", "ab", "bc", "bc", "zc", "wc", "vc", hosts="vwxyz"))

    assert [(cut.id, cut.endpoints_cut_off, cut.switches_cut_off) for cut in found.bridges] == [
        ("a:3|b:1", ("x", "y"), ("a",))
    ]
    assert {cut.id: (cut.endpoints_cut_off, cut.switches_cut_off) for cut in found.cutting_switches} == {
        "a": (("x", "y"), ()),
        "b": (("x", "y"), ("a",)),
        "c": (("v", "w", "z"), ()),
    }


def test_a_dual_homed_endpoint_has_no_single_point_of_failure() -> None:
    found = inspect(generate("leaf-spine", {"attachments": 2}))

    assert (found.bridges, found.cutting_switches) == ((), ())
    assert found.endpoints_by_attachments == {2: 32}
    assert found.endpoints_on_one_link == 0


def test_a_host_never_holds_switches_together() -> None:
    """Host h joins a and b, but carries nothing for others: the switches are two islands, and neither cuts h off."""
    found = inspect(cables("ha", "hb", "xa", "yb", hosts="hxy"))

    assert found.components == (5,)
    assert {cut.id: cut.endpoints_cut_off for cut in found.cutting_switches} == {"a": ("x",), "b": ("y",)}


@pytest.mark.parametrize("kind", ["fat-tree", "leaf-spine", "dragonfly", "torus"])
def test_single_points_of_failure_agree_with_plain_removal(kind: str) -> None:
    """Remove each switch by hand and ask networkx what is left: the same endpoints are cut off."""
    whole = generate(kind, {})
    fabric = without(whole, *[link.id for link in whole.trunks][: len(whole.trunks) // 2]).with_inferred_tiers()
    graph: nx.Graph[str] = nx.Graph((link.a.node, link.b.node) for link in fabric.trunks)
    graph.add_nodes_from(node.id for node in fabric.switches)
    found = {cut.id: set(cut.switches_cut_off) for cut in inspect(fabric).cutting_switches}

    for switch in fabric.switches:
        if switch.id not in found:
            continue  # nothing is attached to it or beyond it
        island = nx.node_connected_component(graph, switch.id) - {switch.id}
        parts = list(nx.connected_components(graph.subgraph(island)))
        kept = [part for part in parts if not part & found[switch.id]]
        assert len(kept) == min(1, len(parts))
        assert found[switch.id] == island - set().union(*kept)


def test_a_missing_link_is_found_against_the_modal_count() -> None:
    whole = generate("rail", {"hosts": 8, "hosts_per_group": 8, "spines": 2, "cables": 2})
    gone = next(link for link in whole.trunks if "su0-leaf3" in link.id)
    found = inspect(without(whole, gone.id).with_inferred_tiers())

    assert [(up.missing, up.short) for up in found.uplinks] == [(1, (("su0-leaf3", "su0-leaf3", 3),))]
    assert [(bundle.missing, bundle.short) for bundle in found.bundles] == [(1, (("spine0", "su0-leaf3", 1),))]


def test_parallel_cables_self_loops_and_unlinked_nodes_are_listed() -> None:
    fabric = cables("xa", "ab", "ab", "bb", "yb", hosts="xy")
    fabric = Fabric([*fabric.nodes.values(), Node(NodeId("q"), NodeKind.SWITCH)], fabric.links.values())
    found = inspect(fabric)

    assert found.bundles[0].pairs_by_count == {2: 1}
    assert found.self_loop_links == ("b:3|b:4",)
    assert found.unlinked_nodes == ("q",)
    assert found.components == (4, 1)
    assert found.bridges == ()


def test_links_are_counted_by_tier_speed_and_medium() -> None:
    found = inspect(generate("rail", {"access_gbps": 100, "trunk_gbps": 800}))

    assert [(sort.tiers, sort.joins, sort.speed, sort.medium, sort.count) for sort in found.links_by_sort] == [
        ("0-1", "nic-switch", "100 Gb/s", "lossless", 512),
        ("1-2", "switch-switch", "800 Gb/s", "lossless", 512),
    ]
    assert found.hosts == 64


def test_an_assumed_capacity_is_marked(real: dict[str, bytes], imported: Import) -> None:
    found = inspect(imported(real["clab"]).fabric)

    assert {sort.speed for sort in found.links_by_sort} == {"100 Gb/s (assumed)"}


def test_a_lossy_clos_needs_no_valley_free_paths() -> None:
    found: Findings = inspect(generate("leaf-spine", {"medium": Medium.LOSSY}))

    assert (found.is_tiered, found.is_valley_free_required) == (True, False)


def test_an_empty_fabric_is_no_error() -> None:
    found = inspect(Fabric([], []))

    assert (found.switches, found.components, found.uplinks) == (0, (), ())


def test_findings_do_not_depend_on_the_order_of_building(real: dict[str, bytes], imported: Import) -> None:
    fabric = imported(real["small"]).fabric
    reverse = Fabric(reversed(fabric.nodes.values()), reversed(fabric.links.values()), name=fabric.name)

    assert inspect(reverse) == inspect(fabric)
