"""Does the plan give every endpoint an address that leads to it, and every port the right far end?"""

import itertools
import json
from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from erfs.addressing import (
    IPV4_POOL,
    IPV6_POOL,
    Addressing,
    NodeAddressing,
    PortAddressing,
    link_local_of,
    plan_addresses,
    planned_mac,
    read_addressing,
)
from erfs.errors import ConfigError, FabricError
from erfs.exporters import write_fabric
from erfs.fabric import Fabric, Link, LinkEnd, Node, NodeKind
from erfs.generators import generate
from erfs.ids import EVERYTHING, DestinationId, NodeId, class_of, endpoint_destination, is_endpoint

FABRICS = [
    ("fat-tree", {"k": 4}),
    ("rail", {"hosts": 8}),
    ("leaf-spine", {"leaves": 3, "spines": 2, "hosts_per_leaf": 5}),
]


@pytest.mark.parametrize(("kind", "params"), FABRICS)
def test_every_destination_has_its_own_prefixes_inside_its_class_and_the_pools(
    kind: str, params: dict[str, int]
) -> None:
    fabric = generate(kind, params)
    plan = plan_addresses(fabric)

    assert set(plan.destinations) == {EVERYTHING, *fabric.class_members, *fabric.destination_of.values()}
    assert plan.destinations[EVERYTHING] == (IPV4_POOL, IPV6_POOL)
    for name, prefixes in plan.destinations.items():
        assert len(prefixes) == 2
        if is_endpoint(name):
            assert [prefix.prefixlen for prefix in prefixes] == [32, 128]
            wider = plan.destinations[class_of(name)]
            assert all(prefix.subnet_of(outer) for prefix, outer in zip(prefixes, wider, strict=True))  # type: ignore[arg-type]
    for level in (False, True):
        at_level = [prefixes[0] for name, prefixes in plan.destinations.items() if is_endpoint(name) is level]
        others = [prefix for prefix in at_level if prefix != IPV4_POOL]
        assert not any(one.overlaps(other) for one in others for other in others if one is not other)


@pytest.mark.parametrize(("kind", "params"), FABRICS)
def test_the_next_hop_of_a_port_is_the_far_ends_own_link_local_address(kind: str, params: dict[str, int]) -> None:
    fabric = generate(kind, params)
    plan = plan_addresses(fabric)

    for link in fabric.links.values():
        for end, far in ((link.a, link.b), (link.b, link.a)):
            mine, theirs = (plan.nodes[side.node].ports[side.port] for side in (end, far))
            assert theirs.mac is not None
            assert mine.next_hops == (link_local_of(theirs.mac),)
            assert mine.next_hops != theirs.next_hops
    assert {node for node, found in plan.nodes.items() if found.is_forwarding} == {node.id for node in fabric.switches}


def test_an_endpoint_bears_the_addresses_of_its_destination() -> None:
    fabric = generate("leaf-spine", {"leaves": 2, "spines": 2, "hosts_per_leaf": 3})
    plan = plan_addresses(fabric)

    for endpoint, name in fabric.destination_of.items():
        assert plan.nodes[endpoint].addresses == plan.destinations[name]


def test_the_link_local_address_is_the_one_linux_makes_of_the_mac() -> None:
    assert link_local_of("02:9e:4b:cf:cc:a4") == IPv6Address("fe80::9e:4bff:fecf:cca4")
    assert link_local_of("52:54:00:12:34:56") == IPv6Address("fe80::5054:ff:fe12:3456")


def test_the_plan_is_the_same_whatever_the_order_of_the_fabric() -> None:
    fabric = generate("fat-tree", {"k": 4})
    shuffled = Fabric(reversed(fabric.nodes.values()), reversed(fabric.links.values()))

    assert plan_addresses(shuffled) == plan_addresses(fabric)
    assert planned_mac("leaf1:e1") == "02:" + planned_mac("leaf1:e1")[3:]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8))
@settings(deadline=None)
def test_blocks_of_any_sizes_hold_their_endpoints_and_do_not_overlap(sizes: list[int]) -> None:
    nodes = [Node(NodeId(f"leaf{index}"), NodeKind.SWITCH) for index in range(len(sizes))]
    links = []
    for index, size in enumerate(sizes):
        for place in range(size):
            host = Node(NodeId(f"h{index}-{place}"), NodeKind.HOST)
            nodes.append(host)
            ends = LinkEnd(host.id, "e1"), LinkEnd(NodeId(f"leaf{index}"), f"e{place}")
            links.append(Link.between(*ends, capacity_bps=1))
    fabric = Fabric(nodes, links)
    plan = plan_addresses(fabric)
    blocks = {name: plan.destinations[name][0] for name in fabric.class_members}

    ordered = list(blocks.values())
    assert all(one.broadcast_address < other.network_address for one, other in itertools.pairwise(ordered))  # type: ignore[operator]
    for name, members in fabric.class_members.items():
        assert blocks[name].num_addresses >= len(members) > blocks[name].num_addresses // 2


def labelled(prefixes: str) -> Fabric:
    fabric = generate("leaf-spine", {"leaves": 2, "spines": 1, "hosts_per_leaf": 2})
    host = fabric.class_members[next(iter(fabric.class_members))][0]
    return fabric.with_nodes([Node(host, NodeKind.HOST, tier=0, labels={"prefixes": prefixes})])


def test_an_endpoint_with_prefixes_of_its_own_keeps_them() -> None:
    fabric = labelled("192.0.2.7/32, 2001:db8::7/128")
    name, (host, other) = next(iter(fabric.class_members.items()))
    plan = plan_addresses(fabric)

    own = (ip_network("192.0.2.7/32"), ip_network("2001:db8::7/128"))
    assert plan.destinations[endpoint_destination(name, host)] == own
    assert plan.destinations[endpoint_destination(name, other)] == (
        ip_network("10.64.0.0/32"),
        ip_network("fd5e:7f3a:91c4::1/128"),
    )
    assert set(plan.destinations[name]) == {*own, ip_network("10.64.0.0/32"), ip_network("fd5e:7f3a:91c4::/64")}
    assert set(own) <= set(plan.destinations[EVERYTHING])


def test_a_prefix_nobody_can_read_names_the_node() -> None:
    with pytest.raises(FabricError, match=r'label "prefixes": .*host bits set'):
        plan_addresses(labelled("10.0.0.1/24"))


def test_pools_that_are_too_small_are_told() -> None:
    fabric = generate("leaf-spine", {"leaves": 3, "spines": 1, "hosts_per_leaf": 2})

    with pytest.raises(FabricError, match=r"IPv4 pool 10\.0\.0\.0/30 is too small"):
        plan_addresses(fabric, ipv4_pool=IPv4Network("10.0.0.0/30"))
    with pytest.raises(FabricError, match="IPv6 pool fd00::/63 is too small"):
        plan_addresses(fabric, ipv6_pool=IPv6Network("fd00::/63"))
    assert plan_addresses(fabric, ipv4_pool=IPv4Network("10.0.0.0/29")).destinations != {}


def test_ports_whose_names_no_interface_may_bear_get_one_that_it_may() -> None:
    far = Node(NodeId("far"), NodeKind.SWITCH)
    near = Node(NodeId("near"), NodeKind.SWITCH)
    names = ["1", "Ethernet1/1/1", "swp3", "a-name-that-is-too-long", "lo", "port1"]
    links = [
        Link.between(LinkEnd(near.id, name), LinkEnd(far.id, f"e{index}"), capacity_bps=1)
        for index, name in enumerate(names)
    ]
    ports = plan_addresses(Fabric([near, far], links)).nodes[near.id].ports

    devices = {name: ports[name].device for name in names}
    assert (devices["swp3"], devices["port1"]) == ("swp3", "port1")
    assert sorted(devices.values()) == ["port1", "port2", "port3", "port4", "port5", "swp3"]


def test_the_file_comes_back_as_one_node_needs_it() -> None:
    plan = plan_addresses(generate("leaf-spine", {"leaves": 2, "spines": 1, "hosts_per_leaf": 1}))
    node = next(iter(plan.nodes))

    found = read_addressing(plan.model_dump_json(), "addressing.json", node)

    assert found == Addressing(destinations=plan.destinations, nodes={node: plan.nodes[node]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "addressing.json:1:2: is no JSON"),
        ("[]", 'is no addressing file: it has no "nodes"'),
        ('{"nodes": {}}', 'has no node "leaf1"'),
        ('{"nodes": {"leaf1": {"is_forwarding": true, "ports": {}}}}', "destinations: Field required"),
        (
            '{"nodes": {"leaf1": {"is_forwarding": true, "ports": {}}}, "destinations": {"@a": ["10.0.0.1/8"]}}',
            "has host bits set",
        ),
    ],
)
def test_a_file_that_is_none_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as failure:
        read_addressing(text, "addressing.json", NodeId("leaf1"))
    assert message in str(failure.value)


@pytest.mark.parametrize(
    ("device", "next_hops", "message"),
    [
        ("a/b", ["fe80::1"], "device"),
        ("..", ["fe80::1"], "device"),
        ("swp1", ["fe80::1", "fe80::2"], "two next hops of one address family"),
        ("swp1", ["10.0.0.1"], "no IPv6 next hop"),
        ("swp1", [], "next_hops"),
    ],
)
def test_a_port_that_cannot_work_is_refused(device: str, next_hops: list[str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PortAddressing.model_validate({"device": device, "next_hops": next_hops})


def test_a_numbered_port_has_a_next_hop_of_each_family() -> None:
    port = PortAddressing.model_validate({"device": "swp1", "next_hops": ["10.0.0.1", "fe80::1"]})
    node = NodeAddressing(is_forwarding=True, ports={"e1": port})
    assert Addressing(destinations={DestinationId("*"): ()}, nodes={NodeId("leaf1"): node}).nodes["leaf1"] == node  # type: ignore[index]


def test_the_command_writes_a_file_that_an_agent_reads(
    run_erfs: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    fabric = generate("leaf-spine", {"leaves": 2, "spines": 2, "hosts_per_leaf": 2})
    (tmp_path / "fabric.json").write_text(write_fabric(fabric, "node-link"))
    path = tmp_path / "addressing.json"

    code, _, err = run_erfs("fabric", "addresses", tmp_path / "fabric.json", "-o", path)

    assert (code, err.splitlines()[-1]) == (0, f"wrote {path}: 7 destinations, 8 nodes")
    assert read_addressing(path.read_text(), "a", NodeId("leaf0")).destinations == plan_addresses(fabric).destinations
    code, out, _ = run_erfs(
        "fabric", "addresses", tmp_path / "fabric.json", "--node", "leaf0", "--ipv4-pool", "10.0.0.0/29"
    )
    assert code == 0
    assert list(json.loads(out)["nodes"]) == ["leaf0"]
    code, _, err = run_erfs("fabric", "addresses", tmp_path / "fabric.json", "--node", "leaf9")
    assert (code, "no such node: leaf9" in err) == (64, True)
    code, _, err = run_erfs("fabric", "addresses", tmp_path / "fabric.json", "--ipv4-pool", "10.0.0.1/8")
    assert (code, "has host bits set" in err) == (64, True)
