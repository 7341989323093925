"""Do the importers find in real files what an independent parser counted there?"""

import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from erfs.fabric import Fabric, Medium, NodeKind, is_valley_free_required
from erfs.importers import load_fabric

# shared/topologies/SOURCES.md: switches, endpoints, aggregation nodes, links, self-loops.
COUNTS = {
    "ibnetdiscover_dgx_ndr_rail_40sw.txt.gz": (40, 542, 40, 1_114, 0),
    "ibnetdiscover_selene_compute_666sw.txt.xz": (666, 3_675, 666, 12_852, 0),
    "ibnetdiscover_small_2sw_mixed_speed.txt": (2, 12, 1, 16, 2),
    "netq_topologyGraph.json": (3, 8, 0, 79, 0),
    "containerlab_clos02.clab.yml": (10, 4, 0, 16, 0),
}


def counts(fabric: Fabric) -> tuple[int, int, int, int, int]:
    aggregation = sum(node.kind is NodeKind.AGGREGATION for node in fabric.nodes.values())
    loops = sum(link.is_self_loop for link in fabric.links.values())
    return len(fabric.switches), len(fabric.endpoints), aggregation, len(fabric.links), loops


@pytest.mark.parametrize("name", COUNTS)
def test_counts_agree_with_the_independent_ones(shared: Path, name: str) -> None:
    imported = load_fabric(shared / "topologies" / name)

    assert counts(imported.fabric) == COUNTS[name]
    assert (imported.problems, imported.unparsed) == ((), ())
    assert imported.fabric.name in (name, "clos02")


SAMPLES = {"fattree-k4": (20, 16, 0, 48, 0), "clos-8x4": (12, 32, 0, 64, 0), "torus-4x4x4": (64, 64, 0, 256, 0)}


@pytest.mark.parametrize("name", SAMPLES)
def test_plain_and_port_form_give_the_same_graph(shared: Path, name: str) -> None:
    """The port form knows an adapter by its port GUID, the plain form by its node GUID; the plain form's label joins them."""
    plain = load_fabric(shared / "ib-samples" / f"{name}.ibnetdiscover.txt").fabric
    ports = load_fabric(shared / "ib-samples" / f"{name}.ibnetdiscover-p.txt").fabric
    known_as = {
        node.id: node.id if node.is_switch else f"H-{node.labels.get('port_guid', node.id[2:])}"
        for node in plain.nodes.values()
    }

    assert counts(plain) == counts(ports) == SAMPLES[name]
    assert {
        known_as[node]: (plain.nodes[node].name, plain.nodes[node].kind, plain.nodes[node].tier) for node in plain.nodes
    } == {node.id: (node.name, node.kind, node.tier) for node in ports.nodes.values()}
    assert {
        (frozenset((known_as[end.node], end.port) for end in link.ends), link.capacity_bps)
        for link in plain.links.values()
    } == {(frozenset(link.ends), link.capacity_bps) for link in ports.links.values()}


@pytest.mark.parametrize("name", ["fattree-k4", "clos-8x4"])
def test_a_cut_cable_is_the_only_difference_afterwards(shared: Path, name: str) -> None:
    before = load_fabric(shared / "ib-samples" / f"{name}.ibnetdiscover.txt").fabric
    after = load_fabric(shared / "ib-samples" / f"{name}.after.ibnetdiscover.txt").fabric

    assert before.nodes.keys() == after.nodes.keys()
    assert len(before.links.keys() - after.links.keys()) == 1
    assert after.links.keys() < before.links.keys()


def test_a_switch_with_every_cable_cut_is_gone_afterwards(shared: Path) -> None:
    before = load_fabric(shared / "ib-samples" / "torus-4x4x4.ibnetdiscover.txt").fabric
    after = load_fabric(shared / "ib-samples" / "torus-4x4x4.after.ibnetdiscover.txt").fabric

    assert sorted(before.nodes[node].name for node in before.nodes.keys() - after.nodes.keys()) == ["HT2_2_2", "T2_2_2"]
    assert len(before.links) - len(after.links) == 7 + 1  # all of T2_2_2, and one of T1_1_1


def test_tiers_of_the_dgx_dump_follow_from_the_graph(shared: Path) -> None:
    fabric = load_fabric(shared / "topologies" / "ibnetdiscover_dgx_ndr_rail_40sw.txt.gz").fabric

    for switch in fabric.switches:
        assert switch.tier == (1 if "IBLEAF" in switch.name else 2)
    assert is_valley_free_required(fabric)
    assert Counter(node.tier for node in fabric.switches) == {1: 31, 2: 9}


def test_every_nominal_tier_of_selene_is_found(shared: Path) -> None:
    fabric = load_fabric(shared / "topologies" / "ibnetdiscover_selene_compute_666sw.txt.xz").fabric
    tier = {"LG": {1}, "CSPINE": {2}, "CCORE": {3}}

    for role, tiers in tier.items():
        found = {switch.tier for switch in fabric.switches if re.match(rf"MF0;{role}\d", switch.name)}
        assert found == tiers


def test_hosts_of_the_dgx_dump_have_their_adapters(shared: Path) -> None:
    """SOURCES.md: 109 hosts have 4 fabric adapters, 11 have 3; generic descriptions and "localhost" name no host."""
    fabric = load_fabric(shared / "topologies" / "ibnetdiscover_dgx_ndr_rail_40sw.txt.gz").fabric
    adapters = Counter(node.labels["host"] for node in fabric.endpoints if "host" in node.labels)

    dgx = Counter(count for host, count in adapters.items() if "dgx" in host)
    assert "localhost" not in adapters
    assert sum(count * hosts for count, hosts in dgx.items()) == 252 + 146 + 68
    generic = [node for node in fabric.endpoints if "ConnectX" in node.name]
    assert len(generic) == 69
    assert not any("host" in node.labels for node in generic)


def test_speeds_and_medium_come_from_the_dump(shared: Path) -> None:
    fabric = load_fabric(shared / "topologies" / "ibnetdiscover_small_2sw_mixed_speed.txt").fabric

    assert Counter((link.labels["speed"], link.capacity_bps // 10**9) for link in fabric.links.values()) == {
        ("4xFDR", 56): 12,
        ("4xEDR", 100): 2,
        ("4xHDR", 200): 1,
        ("4xFDR10", 40): 1,
    }
    assert {link.medium for link in fabric.links.values()} == {Medium.LOSSLESS}


def test_lids_and_hosts_become_labels(shared: Path) -> None:
    fabric = load_fabric(shared / "topologies" / "ibnetdiscover_small_2sw_mixed_speed.txt").fabric
    by_name = {node.name: node.labels for node in fabric.nodes.values()}

    assert by_name["MF0;r-ufm-sw95:MQM8700/U1"]["lid"] == "13"
    assert by_name["r-dcs96 HCA-3"]["lid"] == "26"
    assert (by_name["r-dcs96 HCA-3"]["host"], by_name["r-dcs96 HCA-3"]["hca"]) == ("r-dcs96", "HCA-3")


def test_order_of_records_does_not_matter(shared: Path, tmp_path: Path) -> None:
    """A dump with its records shuffled is the same fabric, byte for byte in iteration order."""
    path = shared / "topologies" / "ibnetdiscover_small_2sw_mixed_speed.txt"
    head, *records = re.split(r"\n(?=\nvendid)", path.read_text().rstrip("\n"))
    random.Random(7).shuffle(records)
    shuffled = tmp_path / "shuffled"
    shuffled.write_text("\n".join([head, *records]) + "\n")

    one, other = load_fabric(path).fabric, load_fabric(shuffled).fabric
    assert one == other
    assert (list(one.nodes), list(one.links)) == (list(other.nodes), list(other.links))


def test_nccl_topology_is_recognised_and_refused(shared: Path, run_erfs: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = run_erfs("fabric", "show", shared / "topologies" / "nccl_topo_ndv5.xml")

    assert (code, out) == (64, "")
    assert "NCCL topology file" in err
    assert "ibnetdiscover" in err
