"""A fabric as `ip` commands and kernel settings: what each namespace of a lab is told.

Rule 1: pure: a fabric and its addressing in, text out; who runs it where is `erfs_scenario.kernel.spaces`' business.
Rule 2: no two interfaces of a lab share an index: veth ends with equal ones get their carrier events up to a second late.
Rule 3: the management network is no part of the fabric: a bridge of its own, addresses that no fabric has, nothing forwarded.
A bus in band has none: then the same addresses are reached over the fabric's links (`erfs_scenario.kernel.underlay`).
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final

from erfs.addressing import Addressing
from erfs.errors import FabricError
from erfs.fabric import Fabric, LinkEnd
from erfs.ids import NodeId
from erfs_scenario.kernel.underlay import bootstrap_routes, bus_host_of

NODES_MAX: Final = 200
"""Namespaces are cheap; two Python processes for each node and packets through all of them are not."""
MANAGEMENT_DEVICE: Final = "mgmt0"
# Set aside for measurements between networks (RFC 2544): no fabric and no site uses it.
MANAGEMENT_NET: Final = IPv4Network("198.18.0.0/16")
BRIDGE: Final = "bridge0"
BUS_ADDRESS: Final = IPv4Address("198.18.0.1")
_FIRST_NODE: Final = IPv4Address("198.18.1.0")
_FIRST_INDEX: Final = 1000

BEFORE_INTERFACES: Final = {
    # A link-local address must be usable at once, not after a second or two of duplicate detection.
    "net/ipv6/conf/all/accept_dad": "0",
    "net/ipv6/conf/default/accept_dad": "0",
    "net/ipv6/conf/default/router_solicitations": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv4/conf/all/rp_filter": "0",
    # A port without carrier is not to be chosen from a group, whatever else lags behind.
    "net/ipv4/conf/all/ignore_routes_with_linkdown": "1",
    "net/ipv4/conf/default/ignore_routes_with_linkdown": "1",
    "net/ipv6/conf/all/ignore_routes_with_linkdown": "1",
    "net/ipv6/conf/default/ignore_routes_with_linkdown": "1",
    # Addresses, protocol and ports choose among equal paths, hashed anew at every hop: policy 1 reuses the sender's hash
    # across veth, so that all switches would choose alike.
    "net/ipv4/fib_multipath_hash_fields": "55",
    "net/ipv4/fib_multipath_hash_policy": "3",
    # IPv6 by addresses alone, its default: with ports (policy 3) flows go other ways than a route lookup says (Linux 6.18), as
    # interfaces count them. A label drawn for each flow would come into it, too.
    "net/ipv6/fib_multipath_hash_policy": "0",
    "net/ipv6/auto_flowlabels": "0",
    "net/ipv4/nexthop_compat_mode": "0",
}
HASH_SEED: Final = "net/ipv4/fib_multipath_hash_seed"
_FORWARDING: Final = {"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"}


@dataclass(frozen=True, slots=True)
class SpaceSetup:
    """
    What one namespace is told, in this order.

    Args:
        settings: Below /proc/sys, before there is any interface.
        links: `ip -batch` lines that make cables; of each cable only one end has a line.
        finish: `ip -batch` lines for when all cables are laid: addresses, everything up.
        settings_after: Below /proc/sys, of interfaces that now exist.
    """

    settings: dict[str, str]
    links: tuple[str, ...]
    finish: tuple[str, ...]
    settings_after: dict[str, str]


@dataclass(frozen=True, slots=True)
class Wiring:
    """A lab as text."""

    nodes: dict[NodeId, SpaceSetup]
    bus: SpaceSetup
    management: dict[NodeId, IPv4Address]
    bridge_ports: dict[NodeId, str]
    """The end of each node's management cable in the bus namespace; nothing where the bus is in band."""
    bus_address: IPv4Address
    """Where the broker listens."""
    bus_host: NodeId | None
    """In whose namespace broker and controller are; None where they have one of their own."""
    underlay: dict[NodeId, tuple[str, ...]]
    """`ip -batch` lines for when everything is up: the ways to the management addresses over the fabric's links."""


def wire(
    fabric: Fabric, addressing: Addressing, path_of: Callable[[NodeId], Path], *, is_bus_in_band: bool = False
) -> Wiring:
    """
    Return what to do for *fabric*.

    Args:
        fabric: Any; a node without a cable gets a namespace too.
        addressing: Its plan.
        path_of: Where a node's namespace can be opened by the process that runs the commands.
        is_bus_in_band: Whether agents reach the bus over the fabric's links, instead of a management network.

    Raises:
        FabricError: too large for one machine, a node has an interface with the management network's name, or the bus in band
            would not reach everybody.

    Cost: O(nodes + links); in band O(nodes * links).
    """
    check_size(fabric)
    for node, found in addressing.nodes.items():
        if any(port.device == MANAGEMENT_DEVICE for port in found.ports.values()):
            raise FabricError(
                f'node "{node}" has a port with the interface {MANAGEMENT_DEVICE}, which is the lab\'s own: rename it'
            )
    links: dict[NodeId, list[str]] = {node: [] for node in fabric.nodes}
    finish: dict[NodeId, list[str]] = {node: ["link set lo up"] for node in fabric.nodes}
    index = _FIRST_INDEX

    def cable(near: LinkEnd, far: LinkEnd) -> str:
        nonlocal index
        one, other = (addressing.nodes[end.node].ports[end.port] for end in (near, far))
        index += 2
        return (
            f"link add {one.device} address {one.mac} index {index - 2} type veth"
            f" peer name {other.device} address {other.mac} index {index - 1} netns {path_of(far.node)}"
        )

    for link in fabric.links.values():
        links[link.a.node].append(cable(link.a, link.b))
        for end in link.ends:
            finish[end.node].append(f"link set {addressing.nodes[end.node].ports[end.port].device} up")
    if is_bus_in_band:
        return _wire_in_band(fabric, addressing, links, finish)
    bus_links = [f"link add {BRIDGE} type bridge stp_state 0 mcast_snooping 0 forward_delay 0"]
    bus_finish = ["link set lo up", f"addr add {BUS_ADDRESS}/{MANAGEMENT_NET.prefixlen} dev {BRIDGE}"]
    management = _management_of(fabric)
    bridge_ports: dict[NodeId, str] = {}
    for place, node in enumerate(fabric.nodes):
        port = bridge_ports[node] = f"m{place}"
        bus_links.append(
            f"link add {port} index {index} type veth"
            f" peer name {MANAGEMENT_DEVICE} index {index + 1} netns {path_of(node)}"
        )
        index += 2
        bus_finish.append(f"link set {port} master {BRIDGE} up")
        finish[node] += [
            f"addr add {management[node]}/{MANAGEMENT_NET.prefixlen} dev {MANAGEMENT_DEVICE}",
            f"link set {MANAGEMENT_DEVICE} up",
            *(f"addr add {address} dev lo" for address in addressing.nodes[node].addresses),
        ]
    bus_finish.append(f"link set {BRIDGE} up")
    nodes = {
        node: SpaceSetup(
            settings=_settings(node, addressing),
            links=tuple(links[node]),
            finish=tuple(finish[node]),
            settings_after={
                f"net/ipv4/conf/{MANAGEMENT_DEVICE}/forwarding": "0",
                f"net/ipv6/conf/{MANAGEMENT_DEVICE}/disable_ipv6": "1",
            },
        )
        for node in fabric.nodes
    }
    quiet = {"net/ipv6/conf/all/disable_ipv6": "1", "net/ipv6/conf/default/disable_ipv6": "1"}
    bus = SpaceSetup(settings=quiet, links=tuple(bus_links), finish=tuple(bus_finish), settings_after={})
    return Wiring(nodes, bus, management, bridge_ports, BUS_ADDRESS, None, {})


def _wire_in_band(
    fabric: Fabric, addressing: Addressing, links: dict[NodeId, list[str]], finish: dict[NodeId, list[str]]
) -> Wiring:
    """Return the wiring without a management network: an address on each loopback, and the operator's routes to all of them."""
    management, host = _management_of(fabric), bus_host_of(fabric)
    nodes = {}
    for node in fabric.nodes:
        # Behind the fabric's own addresses: the first one is what the kernel takes for a socket that names none.
        own = (*addressing.nodes[node].addresses, f"{management[node]}/32")
        ends = (*finish[node], *(f"addr add {address} dev lo" for address in own))
        nodes[node] = SpaceSetup(_settings(node, addressing), tuple(links[node]), ends, {})
    return Wiring(
        nodes,
        bus=SpaceSetup({}, (), (), {}),
        management=management,
        bridge_ports={},
        bus_address=management[host],
        bus_host=host,
        underlay=bootstrap_routes(fabric, addressing, management),
    )


def _management_of(fabric: Fabric) -> dict[NodeId, IPv4Address]:
    return {node: _FIRST_NODE + place for place, node in enumerate(fabric.nodes)}


def _settings(node: NodeId, addressing: Addressing) -> dict[str, str]:
    forwarding = _FORWARDING if addressing.nodes[node].is_forwarding else {}
    return BEFORE_INTERFACES | {HASH_SEED: str(hash_seed(node))} | forwarding


def check_size(fabric: Fabric) -> None:
    """Raise FabricError if *fabric* is too large for a lab on one machine."""
    if len(fabric.nodes) > NODES_MAX:
        raise FabricError(
            f'fabric "{fabric.name}" has {len(fabric.nodes):,} nodes, and a lab holds at most {NODES_MAX}, each with processes'
            " of its own on this one machine: take a smaller one, or run the scenario with --backend sim or live"
        )


def hash_seed(node: NodeId) -> int:
    """Return the seed with which *node* spreads flows over equal paths: not 0, which means a random one."""
    return int.from_bytes(hashlib.sha256(node.encode()).digest()[:4], "big") | 1
