"""Does a fabric that was written down come back as it was?"""

import gzip
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from erfs.errors import FabricError
from erfs.exporters import WRITERS, write_fabric
from erfs.fabric import Fabric, Link, LinkEnd, Medium, Node, NodeKind
from erfs.generators import GENERATORS, generate
from erfs.ids import NodeId, SrlgId
from erfs.importers import Imported, load_fabric

Import = Callable[..., Imported]

REAL = (
    "topologies/ibnetdiscover_dgx_ndr_rail_40sw.txt.gz",
    "topologies/ibnetdiscover_small_2sw_mixed_speed.txt",
    "topologies/netq_topologyGraph.json",
    "topologies/containerlab_clos02.clab.yml",
    "ib-samples/torus-4x4x4.ibnetdiscover-p.txt",
)


@pytest.mark.parametrize("format_", ["node-link", "graphml"])
@pytest.mark.parametrize("name", REAL)
def test_real_fabrics_come_back_exactly(shared: Path, imported: Import, name: str, format_: str) -> None:
    fabric = load_fabric(shared / name).fabric

    back = imported(write_fabric(fabric, format_)).fabric
    assert back == fabric
    assert (list(back.nodes), list(back.links), back.name) == (list(fabric.nodes), list(fabric.links), fabric.name)


@pytest.mark.parametrize("format_", ["node-link", "graphml"])
@pytest.mark.parametrize("kind", GENERATORS)
def test_generated_fabrics_come_back_exactly(imported: Import, kind: str, format_: str) -> None:
    fabric = generate(kind, {})

    assert imported(write_fabric(fabric, format_)).fabric == fabric


@pytest.mark.parametrize(
    "name",
    [
        "topologies/ibnetdiscover_dgx_ndr_rail_40sw.txt.gz",
        "topologies/ibnetdiscover_selene_compute_666sw.txt.xz",
        "topologies/ibnetdiscover_small_2sw_mixed_speed.txt",
        "ib-samples/clos-8x4.ibnetdiscover.txt",
        "ib-samples/torus-4x4x4.after.ibnetdiscover.txt",
    ],
)
def test_real_dumps_come_back_from_the_ibnetdiscover_form(shared: Path, imported: Import, name: str) -> None:
    fabric = load_fabric(shared / name).fabric

    found = imported(write_fabric(fabric, "ibnetdiscover"))
    assert found.format == "ibnetdiscover"
    assert found.fabric == fabric


@pytest.mark.parametrize("kind", GENERATORS)
def test_the_ibnetdiscover_form_keeps_the_graph_of_any_fabric(imported: Import, kind: str) -> None:
    """Ids become GUIDs; what people know a node by becomes its description."""
    fabric = generate(kind, {"access_gbps": 100, "trunk_gbps": 200})
    text = write_fabric(fabric, "ibnetdiscover")
    back = imported(text).fabric

    assert text.rindex("\nSwitch\t") < text.index("\nCa\t")  # as in a real dump

    def named(fabric: Fabric, name: Callable[[Node], str]) -> set[tuple[frozenset[tuple[str, str]], int]]:
        nodes = fabric.nodes
        return {
            (frozenset((name(nodes[end.node]), end.port) for end in link.ends), link.capacity_bps)
            for link in fabric.links.values()
        }

    known = {f"{node.labels.get('host')} mlx5_{node.labels.get('rail')}": node.id for node in fabric.nodes.values()}
    assert named(back, lambda node: known.get(node.name, NodeId(node.name))) == named(fabric, lambda node: node.id)
    assert len(back.switches) == len(fabric.switches)


@pytest.mark.parametrize("format_", WRITERS)
def test_equal_fabrics_give_equal_bytes_whatever_order_they_were_built_in(format_: str) -> None:
    fabric = generate("rail", {"hosts": 4, "nics_per_host": 2})
    nodes, links = list(fabric.nodes.values()), list(fabric.links.values())
    random.Random(3).shuffle(nodes)
    random.Random(4).shuffle(links)
    nodes = [replace(node, labels=dict(reversed(list(node.labels.items())))) for node in nodes]

    shuffled = Fabric(nodes, links, name=fabric.name)
    assert write_fabric(shuffled, format_) == write_fabric(fabric, format_)


def odd_fabric() -> Fabric:
    """Self-loops, parallel cables, unlinked nodes, names with blanks, quotes and letters of other scripts."""
    switch, other, host = NodeId("s/1 'a'"), NodeId("Σ<&>"), NodeId("h:1|x")
    nodes = [
        Node(switch, NodeKind.SWITCH, name='a "name"', labels={"plane": "0", "é": "] ]>"}),
        Node(other, NodeKind.SWITCH),
        Node(host, NodeKind.HOST),
        Node(NodeId("agg"), NodeKind.AGGREGATION),
        Node(NodeId("alone"), NodeKind.NIC, name=" outer blanks "),
    ]

    def link(one: tuple[NodeId, str], two: tuple[NodeId, str], **options: object) -> Link:
        return Link.between(LinkEnd(*one), LinkEnd(*two), capacity_bps=10**11, **options)  # type: ignore[arg-type]

    links = [
        link((switch, "1"), (other, "10"), medium=Medium.LOSSY, srlgs=[SrlgId("tray b"), SrlgId("tray a")]),
        link((switch, "2"), (other, "9"), labels={"length": "3 m"}),
        link((switch, "3"), (switch, "4")),
        link((host, "eth0"), (other, "p 1")),
        link((NodeId("agg"), "1"), (switch, "5")),
    ]
    return Fabric(nodes, links, name="odd one").with_inferred_tiers()


@pytest.mark.parametrize("format_", ["node-link", "graphml"])
def test_odd_names_come_back_exactly(imported: Import, format_: str) -> None:
    fabric = odd_fabric()

    back = imported(write_fabric(fabric, format_)).fabric
    assert back == fabric


def test_a_capacity_that_is_no_infiniband_speed_is_refused_in_that_form() -> None:
    with pytest.raises(FabricError, match="has 1 Gb/s, which no InfiniBand speed is"):
        write_fabric(generate("fat-tree", {"access_gbps": 1}), "ibnetdiscover")


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(
        FabricError, match='cannot be written as "dot": expected one of node-link, graphml, ibnetdiscover'
    ):
        write_fabric(odd_fabric(), "dot")


def test_a_packed_file_is_read_whatever_its_name(tmp_path: Path) -> None:
    fabric = generate("fat-tree", {})
    path = tmp_path / "fabric.jpeg"
    path.write_bytes(gzip.compress(write_fabric(fabric, "graphml").encode()))

    assert load_fabric(path).fabric == fabric
