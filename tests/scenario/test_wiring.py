"""What a lab's namespaces are told, as text."""

import re
from pathlib import Path

import pytest

from erfs.addressing import plan_addresses
from erfs.errors import FabricError
from erfs.fabric import Fabric, Link, LinkEnd, Node, NodeKind
from erfs.generators import generate
from erfs.ids import NodeId
from erfs_scenario.kernel.wiring import NODES_MAX, Wiring, hash_seed, wire

FABRIC = generate("leaf-spine", {"leaves": 2, "spines": 2, "hosts_per_leaf": 1})


def path_of(node: NodeId) -> Path:
    return Path("/proc/1/fd") / node


def wired(fabric: Fabric, *, is_bus_in_band: bool = False) -> Wiring:
    return wire(fabric, plan_addresses(fabric), path_of, is_bus_in_band=is_bus_in_band)


def lines(wiring: Wiring) -> list[str]:
    return [line for setup in (*wiring.nodes.values(), wiring.bus) for line in (*setup.links, *setup.finish)]


def test_a_host_is_told_its_cable_its_addresses_and_its_way_to_the_bus() -> None:
    setup = wired(FABRIC).nodes[NodeId("leaf0-host0")]
    plan = plan_addresses(FABRIC)
    (mine,) = plan.nodes[NodeId("leaf0-host0")].ports.values()
    far = plan.nodes[NodeId("leaf0")].ports["3"]
    (line,) = setup.links
    assert line == (
        f"link add {mine.device} address {mine.mac} index 1000 type veth"
        f" peer name {far.device} address {far.mac} index 1001 netns /proc/1/fd/leaf0"
    )
    assert setup.finish == (
        "link set lo up",
        f"link set {mine.device} up",
        "addr add 198.18.1.1/16 dev mgmt0",
        "link set mgmt0 up",
        *(f"addr add {address} dev lo" for address in plan.nodes[NodeId("leaf0-host0")].addresses),
    )
    assert "net/ipv4/ip_forward" not in setup.settings
    assert setup.settings_after == {
        "net/ipv4/conf/mgmt0/forwarding": "0",
        "net/ipv6/conf/mgmt0/disable_ipv6": "1",
    }


def test_with_the_bus_in_band_a_node_has_a_management_address_behind_its_own_and_no_cable_to_a_bridge() -> None:
    beside, found = wired(FABRIC), wired(FABRIC, is_bus_in_band=True)
    host = NodeId("leaf0-host0")
    setup = found.nodes[host]
    assert setup.links == beside.nodes[host].links
    assert setup.finish == (
        "link set lo up",
        f"link set {next(iter(plan_addresses(FABRIC).nodes[host].ports.values())).device} up",
        *(f"addr add {address} dev lo" for address in plan_addresses(FABRIC).nodes[host].addresses),
        f"addr add {found.management[host]}/32 dev lo",
    )
    assert not [line for line in lines(found) if "mgmt0" in line or "bridge" in line]
    assert {node: setup.settings for node, setup in found.nodes.items()} == {
        node: setup.settings for node, setup in beside.nodes.items()
    }
    assert found.management == beside.management
    assert (found.bus_host, found.bus_address, found.bridge_ports) == (host, found.management[host], {})
    assert (beside.bus_host, str(beside.bus_address), beside.underlay) == (None, "198.18.0.1", {})
    assert {node: len(routes) for node, routes in found.underlay.items()} == dict.fromkeys(FABRIC.nodes, 5)


def test_switches_forward_and_each_spreads_flows_its_own_way() -> None:
    nodes = wired(FABRIC).nodes
    switches = [node.id for node in FABRIC.switches]
    assert all(nodes[node].settings["net/ipv4/ip_forward"] == "1" for node in switches)
    assert len({nodes[node].settings["net/ipv4/fib_multipath_hash_seed"] for node in nodes}) == len(nodes)
    assert all(0 < hash_seed(node) < 1 << 32 for node in nodes)


@pytest.mark.parametrize("kind", ["fat-tree", "leaf-spine", "torus"])
def test_every_interface_is_made_once_with_an_index_of_its_own(kind: str) -> None:
    fabric = generate(kind, {})
    if len(fabric.nodes) > NODES_MAX:
        pytest.skip("the generator's default is too large for a lab")
    found = lines(wired(fabric))
    indexes = [int(number) for line in found for number in re.findall(r"index (\d+)", line)]
    assert len(indexes) == len(set(indexes)) == 2 * (len(fabric.links) + len(fabric.nodes))
    assert sum(line.startswith("link set port") for line in found) <= 2 * len(fabric.links)


def test_a_cable_with_both_ends_on_one_node_stays_in_its_namespace() -> None:
    node = NodeId("s")
    fabric = Fabric(
        [Node(node, NodeKind.SWITCH)],
        [Link.between(LinkEnd(node, "a"), LinkEnd(node, "b"), capacity_bps=1)],
        name="loop",
    )
    (line,) = wired(fabric).nodes[node].links
    assert line.startswith("link add a address ")
    assert " peer name b " in line
    assert line.endswith("netns /proc/1/fd/s")


def test_a_fabric_too_large_for_one_machine_is_refused_with_the_way_out() -> None:
    fabric = generate("fat-tree", {"k": 8})
    with pytest.raises(FabricError, match=r"has 208 nodes, and a lab holds at most 200.*--backend sim"):
        wired(fabric)


def test_an_interface_with_the_management_networks_name_is_refused() -> None:
    one, other = NodeId("s"), NodeId("t")
    fabric = Fabric(
        [Node(one, NodeKind.SWITCH), Node(other, NodeKind.SWITCH)],
        [Link.between(LinkEnd(one, "mgmt0"), LinkEnd(other, "b"), capacity_bps=1)],
        name="clash",
    )
    with pytest.raises(FabricError, match='node "s" has a port with the interface mgmt0'):
        wired(fabric)
