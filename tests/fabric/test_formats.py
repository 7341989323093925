"""Does each importer know its format's corners?"""

import json
from collections.abc import Callable

import pytest

from erfs.errors import Problem
from erfs.fabric import Fabric, NodeKind
from erfs.importers import Imported
from erfs.importers.building import ASSUMED_CAPACITY_BPS
from erfs.importers.infiniband import capacity_of, speed_of
from erfs.importers.slurm import expand_hostlist

Import = Callable[..., Imported]
Problems = Callable[[bytes | str], tuple[Problem, ...]]


def kinds(fabric: Fabric) -> dict[str, str]:
    return {str(node.id): node.kind.value for node in fabric.nodes.values()}


def ends(fabric: Fabric) -> set[str]:
    return set(map(str, fabric.links))


# -- InfiniBand ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speed", "gbps"),
    [
        ("4xSDR", 10),
        ("1xSDR", 2.5),
        ("4xDDR", 20),
        ("4xQDR", 40),
        ("4xFDR10", 40),
        ("4xFDR", 56),
        ("4xEDR", 100),
        ("4xHDR", 200),
        ("2xHDR", 100),
        ("4xNDR", 400),
        ("2xNDR", 200),
        ("4xXDR", 800),
        ("12xEDR", 300),
        ("4x SDR", 10),
        ("4x 2.5 Gbps", 10),
        ("4x 5.0 Gbps", 20),
        ("4X 14.0625 Gbps", 56),
        ("4x 25.78125 Gbps", 100),
        ("4x 53.125 Gbps", 200),
        ("4x 106.25 Gbps", 400),
    ],
)
def test_a_speed_is_the_nominal_rate_of_its_lanes(speed: str, gbps: float) -> None:
    assert capacity_of(speed) == round(gbps * 10**9)


@pytest.mark.parametrize("speed", ["4x???", "??NDR", "3xNDR", "4xABC", "4x 7 Gbps", "", "NDR"])
def test_an_unknown_speed_is_not_guessed(speed: str) -> None:
    assert capacity_of(speed) is None


def test_a_capacity_is_written_with_four_lanes_where_it_can_be() -> None:
    assert [speed_of(gbps * 10**9) for gbps in (400, 100, 40, 25, 50, 56)] == [
        "4xNDR",
        "4xEDR",
        "4xFDR10",
        "1xEDR",
        "1xHDR",
        "4xFDR",
    ]
    assert speed_of(10**9) is None


# Every corner of the plain form at once: grouping (-g), full information (-f), external ports, two-port adapters with port GUIDs
# of their own, quotes in names, a router, an adapter cabled to an adapter, Windows line ends.
CORNERS = """\
#
# Topology file: generated on Sun Feb 21 16:30:17 2021
#
# Reported max hops discovered: 3
# Total MADs used: 42
# Initiated from node 0c42a103008b40d0 port 0c42a103008b40d0

Chassis 1 (guid 0x2c902010050d0)
Hostname: box

# Spine Nodes
vendid=0x2c9
devid=0xbd36
sysimgguid=0x2c902010050d0\t\t# Chassis 1 (box)
switchguid=0x2c90200000001(2c90200000001)\t# Spine 1 Chip 1
Switch\t36 "S-0002c90200000001"\t\t# "the "best" switch" base port 0 lid 7 lmc 0
[1][ext 17]\t"H-0002c90300000010"[2][ext 3](2c90300000012) \t\t# "box mlx5_0" lid 21 4xQDR s=4 w=2 v=4
[2]\t"R-0002c90300000020"[1](2c90300000021) \t\t# "to the other subnet" lid 9 4xFDR10 slot 2

Non-Chassis Nodes

vendid=0x2c9
devid=0x1003
caguid=0x2c90300000010
Ca\t2 "H-0002c90300000010"\t\t# "box mlx5_0" (scp)
[1](2c90300000011) \t"H-0002c90300000030"[1] (2c90300000030) \t\t# lid 20 lmc 0 "direct " lid 30 4xEDR
[2](2c90300000012) \t"S-0002c90200000001"[1][ext 17]\t\t# lid 21 lmc 0 "the "best" switch" lid 7 4xQDR s=4 w=2 v=4

caguid=0x2c90300000030
Ca\t1 "H-0002c90300000030"\t\t# "direct "
[1](2c90300000030) \t"H-0002c90300000010"[1] (2c90300000011) \t\t# lid 30 lmc 0 "box mlx5_0" lid 20 4xEDR

rtguid=0x2c90300000020
Rt\t1 "R-0002c90300000020"\t\t# "to the other subnet"
[1](2c90300000021) \t"S-0002c90200000001"[2]\t\t# lid 9 lmc 0 "the "best" switch" lid 7 4xFDR10
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_corner_of_the_plain_form_is_known(imported: Import, newline: str) -> None:
    fabric = imported(CORNERS.replace("\n", newline)).fabric

    assert {str(node.id): (node.kind.value, node.name) for node in fabric.nodes.values()} == {
        "S-0002c90200000001": ("switch", 'the "best" switch'),
        "H-0002c90300000010": ("nic", "box mlx5_0"),
        "H-0002c90300000030": ("nic", "direct"),
        "R-0002c90300000020": ("host", "to the other subnet"),
    }
    assert {link.id: link.labels["speed"] for link in fabric.links.values()} == {
        "H-0002c90300000010:1|H-0002c90300000030:1": "4xEDR",
        "H-0002c90300000010:2|S-0002c90200000001:1": "4xQDR",
        "R-0002c90300000020:1|S-0002c90200000001:2": "4xFDR10",
    }
    adapter = next(node for node in fabric.nodes.values() if node.name == "box mlx5_0")
    assert adapter.labels == {
        "vendid": "2c9",
        "devid": "1003",
        "ports": "2",
        "lid_1": "20",
        "lid_2": "21",
        "port_guid_1": "0002c90300000011",
        "port_guid_2": "0002c90300000012",
        "host": "box",
        "hca": "mlx5_0",
    }


def test_a_host_name_that_two_adapters_share_labels_neither(imported: Import) -> None:
    """Two cluster images that were never renamed: "gpu mlx5_0" on two machines says nothing about which NIC is whose."""
    fabric = imported(CORNERS.replace('"direct "', '"box mlx5_0"')).fabric

    assert not any("host" in node.labels for node in fabric.nodes.values())


def test_an_unknown_speed_is_a_problem_that_names_it(problems_of: Problems) -> None:
    (problem,) = problems_of(CORNERS.replace("4xQDR", "4x???"))

    assert (problem.line, 'the speed "4x???"' in problem.message) == (27, True)


PORTS = """\
SW     7  3 0x0002c90200000001 4x SDR                                    'a 'quoted' name'
SW     7  2 0x0002c90200000001 ?? ???                                    'a 'quoted' name'
SW     7  1 0x0002c90200000001 4x NDR - CA    21  1 0x0002c90300000010 ( 'a 'quoted' name' - 'b' - 'c' )
CA    21  1 0x0002c90300000010 4x NDR - SW     7  1 0x0002c90200000001 ( 'b' - 'c' - 'a 'quoted' name' )
CA    22  1 0x0002c90300000011 4x NDR                                    'alone'
"""


def test_the_port_form_takes_names_with_quotes_and_ports_without_a_cable(imported: Import) -> None:
    fabric = imported(PORTS).fabric

    assert {str(node.id): node.name for node in fabric.nodes.values()} == {
        "S-0002c90200000001": "a 'quoted' name",
        "H-0002c90300000010": "b' - 'c",
        "H-0002c90300000011": "alone",
    }
    assert ends(fabric) == {"H-0002c90300000010:1|S-0002c90200000001:1"}


# -- Slurm -----------------------------------------------------------------------------------------------------------------


def test_slurm_trees_get_numbered_ports(imported: Import) -> None:
    fabric = imported(
        "# comment\n"
        "SwitchName=s[0] Nodes=tux[08-10],login1 LinkSpeed=900\n"
        "switchname=s1 nodes=tux[11,12] # more\n"
        "SwitchName=top \\\n  Switches=s[0-1]\n"
    ).fabric

    assert kinds(fabric) == {
        **dict.fromkeys(("s0", "s1", "top"), "switch"),
        **dict.fromkeys(("login1", "tux08", "tux09", "tux10", "tux11", "tux12"), "host"),
    }
    assert ends(fabric) == {
        "s0:1|tux08:1",
        "s0:2|tux09:1",
        "s0:3|tux10:1",
        "login1:1|s0:4",
        "s1:1|tux11:1",
        "s1:2|tux12:1",
        "s0:5|top:1",
        "s1:3|top:2",
    }
    assert [node.tier for node in fabric.nodes.values() if node.id in ("s0", "top")] == [1, 2]
    assert {link.capacity_bps for link in fabric.links.values()} == {ASSUMED_CAPACITY_BPS}
    assert {link.labels.get("link_speed") for link in fabric.links.values() if link.a.node == "s0"} == {"900", None}


def test_a_slurm_host_under_two_switches_is_attached_to_both(imported: Import) -> None:
    fabric = imported("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1\n").fabric

    assert list(fabric.class_members) == ["@a+b"]


def test_every_problem_of_a_slurm_file_is_named(problems_of: Problems) -> None:
    problems = problems_of(
        "SwitchName=a Nodes=n[1-\n"
        "SwitchName=b Switches=nobody,b\n"
        "SwitchName=b Nodes=n2\n"
        "BlockName=x Nodes=n3\n"
        "SwitchName=c Nodes=n[9-1]\n"
        "SwitchName=d Nodes=n[0-999999999]\n"
        "SwitchName=e[1-2] Nodes=n9\n"
        "what is this\n"
    )

    assert [(problem.line, problem.message) for problem in problems] == [
        (1, "'[1-' is no list of numbers: expected such as [0-3,7]"),
        (2, 'switch "b" names "nobody", which has no line of its own'),
        (2, 'switch "b" names itself'),
        (3, 'node "b" is there twice, first in line 2'),
        (4, 'this line has the unknown setting "blockname"'),
        (5, 'the range "9-1" runs backwards'),
        (6, "'[0-999999999]' takes the file over 1,000,000 names, the most that is read"),
        (7, "SwitchName should name one switch, not 'e[1-2]'"),
        (8, "this line cannot be read: 'what is this'"),
    ]


def test_hostlists_multiply_and_keep_their_zeros() -> None:
    assert expand_hostlist("r[0-1]n[08-10],x,y2", 100) == [
        "r0n08",
        "r0n09",
        "r0n10",
        "r1n08",
        "r1n09",
        "r1n10",
        "x",
        "y2",
    ]
    with pytest.raises(ValueError, match="most that is read"):
        expand_hostlist("a[0-9]b[0-9]c[0-9]", 999)


# -- containerlab ----------------------------------------------------------------------------------------------------------

CLAB = """\
name: lab
topology:
  defaults: {kind: nokia_srlinux}
  groups:
    servers: {kind: linux}
  kinds:
    linux: {image: alpine}
  nodes:
    leaf1:
    leaf2:
    srv:
      group: servers
    frr: {kind: linux}
    box: {kind: linux}
  links:
    - endpoints: ["leaf1:e1-1", "leaf2:e1-1"]
    - type: veth
      endpoints:
        - node: srv
          interface: eth1
        - {node: leaf1, interface: e1-2}
    - endpoints: ["srv:eth2", "leaf2:e1-2"]
    - endpoints: ["frr:eth1", "leaf1:e1-3"]
    - endpoints: ["frr:eth2", "box:eth1"]
    - endpoints: ["leaf1:mgmt", "mgmt-net:x"]
    - {type: host, endpoint: {node: leaf1, interface: e1-9}, host-interface: v}
"""


def test_containerlab_kinds_come_from_node_group_and_defaults(imported: Import) -> None:
    """A container between two others forwards (frr); one with two uplinks to switches is a dual-homed server (srv)."""
    found = imported(CLAB)

    assert kinds(found.fabric) == {"leaf1": "switch", "leaf2": "switch", "srv": "host", "frr": "switch", "box": "host"}
    assert ends(found.fabric) == {
        "leaf1:e1-1|leaf2:e1-1",
        "leaf1:e1-2|srv:eth1",
        "leaf2:e1-2|srv:eth2",
        "frr:eth1|leaf1:e1-3",
        "box:eth1|frr:eth2",
    }
    assert [(problem.line, problem.message) for problem in found.unparsed] == [
        (25, 'a link to "mgmt-net" leads out of the lab'),
        (26, 'a link of type "host" leads out of the lab'),
    ]


def test_every_problem_of_a_containerlab_file_is_named(problems_of: Problems) -> None:
    problems = problems_of(
        "topology:\n  nodes:\n    a:\n    b:\n  links:\n"
        '    - endpoints: ["a:1", "b"]\n'
        '    - endpoints: ["a:1", "b:1"]\n'
        '    - endpoints: ["a:1", "b:2"]\n'
        '    - endpoints: ["c:1", "b:3"]\n'
        '    - endpoints: ["a:4", "a:4"]\n'
        "    - endpoints: [{node: a}, b:5]\n"
        "    - nothing\n"
    )

    assert [(problem.line, problem.message) for problem in problems] == [
        (6, "a link's end should be \"node:interface\", not 'b'"),
        (8, 'port "a:1" carries a second link, its first is in line 7'),
        (9, 'a link ends at "c", which is not among the nodes'),
        (10, 'a link has both ends on port "a:4"'),
        (11, "a link's end: interface: field required"),
        (12, 'a link needs "endpoints" with two entries, not None'),
    ]


# -- NetQ ------------------------------------------------------------------------------------------------------------------


def test_netq_kinds_come_from_the_device_type(real: dict[str, bytes], imported: Import) -> None:
    fabric = imported(real["netq"]).fabric

    assert {node.name: node.kind for node in fabric.nodes.values() if node.is_switch} == dict.fromkeys(
        ("net-unit-l1", "net-unit-l2", "net-unit-s1"), NodeKind.SWITCH
    )
    assert {link.labels["capacity"] for link in fabric.links.values()} == {"assumed"}


def test_a_netq_fault_names_the_line_of_its_object(real: dict[str, bytes], problems_of: Problems) -> None:
    lines = real["netq"].decode().split("\n")
    number = next(number for number, line in enumerate(lines) if '"interface": "swp20s0"' in line)
    lines[number] = lines[number].replace("interface", "xinterface")

    (problem,) = problems_of("\n".join(lines))
    assert (problem.line, problem.message) == (number, "a link: interfaces.0.interface: field required")


# -- graphs ----------------------------------------------------------------------------------------------------------------


def test_a_foreign_node_link_graph_is_taken_as_far_as_it_goes(imported: Import) -> None:
    """Nodes without a kind: one neighbour makes a host, more make a switch. Parallel links without keys stay apart."""
    graph = {
        "nodes": [{"id": 1}, {"id": "b"}, {"id": "c", "kind": "SWITCH"}],
        "edges": [{"source": 1, "target": "b"}, {"source": "b", "target": 1}, {"source": "b", "target": "c"}],
    }

    for text in (json.dumps(graph), json.dumps(graph, indent=2)):
        fabric = imported(text).fabric
        assert kinds(fabric) == {"1": "host", "b": "switch", "c": "switch"}
        assert ends(fabric) == {"1:1|b:1", "1:2|b:2", "b:3|c:1"}


def test_every_problem_of_a_node_link_file_is_named(problems_of: Problems) -> None:
    graph = """{"nodes": [
{"id": "a"},
{"id": "a"},
{"id": ""},
{"id": null},
{"id": "b", "kind": "swich"},
{"id": "d", "labels": {"x": "\\u0000"}}
], "links": [
{"source": "a", "target": "nobody"},
{"source": "a"},
{"source": "a", "target": "d", "a_port": "1", "b_port": "1", "capacity_bps": -1}
]}"""

    assert [(problem.line, problem.message.partition(", not")[0]) for problem in problems_of(graph)] == [
        (3, 'node "a" is there twice, first in line 2'),
        (4, "a node's name is empty"),
        (5, "a node: id: should be text or a whole number"),
        (6, "node \"b\": kind: input should be 'switch', 'host', 'nic' or 'aggregation'"),
        (7, 'node "d": labels.x: should hold printable characters only'),
        (9, 'a link ends at "nobody", which is not among the nodes'),
        (10, "a link: target: field required"),
        (11, 'the link "a" to "d": capacity_bps: input should be greater than 0'),
    ]


GRAPHML = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="k" for="node" attr.name="kind" attr.type="string"/>
  <graph edgedefault="undirected">
    <node id="s1"><data key="k">switch</data></node>
    <node id="s2"/>
    <node id="h"/>
    <edge source="s1" target="s2"/>
    <edge source="s1" target="s2"/>
    <edge id="e" source="h" target="s2"/>
  </graph>
</graphml>
"""


def test_a_foreign_graphml_graph_is_taken_as_far_as_it_goes(imported: Import) -> None:
    fabric = imported(GRAPHML).fabric

    assert kinds(fabric) == {"s1": "switch", "s2": "switch", "h": "host"}
    assert ends(fabric) == {"h:1|s2:1", "s1:1|s2:2", "s1:2|s2:3"}


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ('<node id="s2"/>', '<node id="h"/>', 7, 'node "h" is there twice, first in line 6'),
        ('source="h"', 'source="x"', 10, 'a link ends at "x", which is not among the nodes'),
        (">switch<", ">spine<", 5, "kind: input should be 'switch'"),
        ("undirected", "directed", 0, "a cable has no direction"),
        ('<node id="h"/>', '<node id="h"><port name="p"/></node>', 0, "hyperedges or ports"),
        ("</graph>", "</grph>", 11, "is no well-formed XML: mismatched tag"),
        ('attr.type="string"', 'attr.type="nonsense"', 0, "networkx cannot read"),
    ],
)
def test_a_graphml_fault_is_named(problems_of: Problems, old: str, new: str, line: int, expected: str) -> None:
    problems = problems_of(GRAPHML.replace(old, new))

    assert [problem.line for problem in problems if expected in problem.message] == [line], problems


@pytest.mark.filterwarnings("error")
def test_a_graphml_attribute_without_a_type_is_text_and_no_warning(imported: Import) -> None:
    assert imported(GRAPHML.replace(' attr.type="string"', "")).fabric == imported(GRAPHML).fabric


def test_order_of_nodes_and_links_in_a_graph_does_not_matter(imported: Import) -> None:
    lines = GRAPHML.split("\n")
    shuffled = "\n".join([*lines[:4], lines[6], lines[4], lines[5], lines[9], *lines[7:9], *lines[10:]])

    assert imported(shuffled).fabric == imported(GRAPHML).fabric
