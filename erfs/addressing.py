"""Which IP prefixes does a destination mean, and which address is at the other end of each port?

Rule 1: programs name destinations and ports only; whoever forwards IP looks both up here.
Rule 2: pure and deterministic: equal fabrics give equal plans, and nothing depends on what works at the moment.
Rule 3: an agent reads this file without networkx, so the fabric is only a type here.

A plan needs no addresses on links: next hops are IPv6 link-local ones, for IPv4 routes too (RFC 8950, RFC 5549).
They follow from the MAC address of the far end (RFC 4291, appendix A), so the kernel makes them again by itself whenever
a port comes up, and a cable in the wrong port resolves to nobody instead of to the wrong switch.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    collapse_addresses,
    ip_address,
    ip_network,
)
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from erfs.errors import ConfigError, FabricError, Problem
from erfs.ids import EVERYTHING, DestinationId, NodeId, port_id

if TYPE_CHECKING:
    from erfs.fabric import Fabric, LinkEnd, Node

Address = Annotated[IPv4Address | IPv6Address, BeforeValidator(ip_address)]
Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(ip_network)]

IPV4_POOL: Final = IPv4Network("10.64.0.0/10")
IPV6_POOL: Final = IPv6Network("fd5e:7f3a:91c4::/48")
# A node's label with prefixes of its own, separated by commas; they replace the plan's.
PREFIXES_LABEL: Final = "prefixes"
# Linux: at most 15 bytes, no slash, colon or blank, neither "." nor "..".
DEVICE_PATTERN: Final = r"^[^\s/:.][^\s/:]{0,14}$"
_CLASS_PREFIX_LENGTH: Final = 64


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PortAddressing(_Value):
    """One port of a node."""

    device: Annotated[str, StringConstraints(pattern=DEVICE_PATTERN)]
    """The operating system's name of the interface."""
    next_hops: tuple[Address, ...] = Field(min_length=1, max_length=2)
    """The far end's addresses, at most one of each family. An IPv6 one serves IPv4 routes where no IPv4 one is given."""
    mac: str | None = None
    """What the plan gives this end; for whoever makes the interface. The agent never sets it."""

    @field_validator("next_hops")
    @classmethod
    def _one_of_a_family(cls, next_hops: tuple[Address, ...]) -> tuple[Address, ...]:
        if len({address.version for address in next_hops}) != len(next_hops):
            raise ValueError("two next hops of one address family")
        if all(address.version == 4 for address in next_hops):
            raise ValueError("no IPv6 next hop: without one the IPv6 routes lead nowhere")
        return next_hops


class NodeAddressing(_Value):
    """One node."""

    is_forwarding: bool
    """Whether it forwards for others: switches do."""
    addresses: tuple[Network, ...] = ()
    """Its own, for the loopback interface; whoever sets up the node puts them there."""
    ports: dict[str, PortAddressing]


class Addressing(_Value):
    """The whole file. A file for one node needs all destinations but only that node."""

    v: Literal[1] = 1
    destinations: dict[DestinationId, tuple[Network, ...]]
    nodes: dict[NodeId, NodeAddressing]


def read_addressing(text: str, source: str, node: NodeId) -> Addressing:
    """
    Return what *node* needs of an addressing file: all destinations, and this node alone.

    Args:
        text: JSON.
        source: The file's name, for messages.
        node: Whose part of the file is read and checked; the others' are not looked at.

    Raises:
        ConfigError: no JSON, not an addressing file, or one without *node*.
    """
    try:
        content: Any = json.loads(text)
        nodes = content["nodes"]
        if node not in nodes:
            raise ConfigError(source, [Problem(0, f'has no node "{node}"')])
        return Addressing.model_validate(content | {"nodes": {node: nodes[node]}})
    except json.JSONDecodeError as error:
        raise ConfigError(source, [Problem(error.lineno, f"is no JSON: {error.msg}", error.colno)]) from None
    except (KeyError, TypeError):
        raise ConfigError(source, [Problem(0, 'is no addressing file: it has no "nodes"')]) from None
    except ValidationError as error:
        problems = [
            Problem(0, f"{'.'.join(str(part) for part in found['loc'])}: {found['msg']}")
            for found in error.errors(include_url=False, include_input=False)
        ]
        raise ConfigError(source, problems) from None


def plan_addresses(
    fabric: "Fabric", *, ipv4_pool: IPv4Network = IPV4_POOL, ipv6_pool: IPv6Network = IPV6_POOL
) -> Addressing:
    """
    Return addresses for everything in *fabric*.

    Each destination class gets a block of each pool, so that it is one route: the smallest block that holds its endpoints
    of IPv4, a /64 of IPv6. An endpoint has one address of each family on its loopback, reachable over all its ports.
    Endpoints with the label ``prefixes`` keep those instead. ``*`` means the pools and all prefixes kept, not the
    default route: a host's management network is left alone.

    Raises:
        FabricError: a pool is too small, or a ``prefixes`` label holds something else.

    Cost: O(nodes + links).
    """
    endpoints = _own_prefixes(fabric)
    kept = [prefix for prefixes in endpoints.values() for prefix in prefixes]
    destinations: dict[DestinationId, tuple[Network, ...]] = {EVERYTHING: _collapsed([ipv4_pool, ipv6_pool, *kept])}
    next_ipv4 = int(ipv4_pool.network_address)
    for index, (name, members) in enumerate(fabric.class_members.items()):
        planned = [member for member in members if member not in endpoints]
        size = 1 << max(0, len(planned) - 1).bit_length()
        start = -(-next_ipv4 // size) * size
        next_ipv4 = start + size
        if next_ipv4 > int(ipv4_pool.broadcast_address) + 1:
            raise FabricError(f"the IPv4 pool {ipv4_pool} is too small for this fabric: give a larger one")
        block = IPv4Network((start, 33 - size.bit_length()))
        subnet = _ipv6_block(ipv6_pool, index)
        for place, member in enumerate(planned):
            # An all-zero interface identifier means "any router" (RFC 4291, 2.6.1), so counting begins at one.
            interface = int(subnet.network_address) + place + 1
            endpoints[member] = (IPv4Network((start + place, 32)), IPv6Network((interface, 128)))
        own = [prefix for member in members if member not in planned for prefix in endpoints[member]]
        blocks: list[Network] = [block, subnet] if planned else []
        destinations[name] = _collapsed([*blocks, *own])
    destinations |= {fabric.destination_of[endpoint]: prefixes for endpoint, prefixes in endpoints.items()}
    return Addressing(
        destinations=dict(sorted(destinations.items())),
        nodes={node.id: _plan_node(fabric, node, endpoints.get(node.id, ())) for node in fabric.nodes.values()},
    )


def planned_mac(port: str) -> str:
    """Return the MAC address of the *port* with this fabric-wide name: locally administered, the rest a digest."""
    digest = hashlib.sha256(port.encode()).digest()
    return ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5]))


def link_local_of(mac: str) -> IPv6Address:
    """Return the link-local address that an interface with this MAC address gives itself (modified EUI-64)."""
    first, *rest = (int(part, 16) for part in mac.split(":"))
    identifier = bytes([first ^ 0x02, *rest[:2], 0xFF, 0xFE, *rest[2:]])
    return IPv6Address(b"\xfe\x80" + bytes(6) + identifier)


def _own_prefixes(fabric: "Fabric") -> dict[NodeId, tuple[Network, ...]]:
    found: dict[NodeId, tuple[Network, ...]] = {}
    for endpoint in fabric.destination_of:
        label = fabric.nodes[endpoint].labels.get(PREFIXES_LABEL, "")
        if label:
            try:
                found[endpoint] = tuple(ip_network(part.strip()) for part in label.split(","))
            except ValueError as error:
                raise FabricError(f'node "{endpoint}": label "{PREFIXES_LABEL}": {error}') from None
    return found


def _collapsed(prefixes: Iterable[Network]) -> tuple[Network, ...]:
    prefixes = list(prefixes)
    return (
        *collapse_addresses(prefix for prefix in prefixes if isinstance(prefix, IPv4Network)),
        *collapse_addresses(prefix for prefix in prefixes if isinstance(prefix, IPv6Network)),
    )


def _ipv6_block(pool: IPv6Network, index: int) -> IPv6Network:
    if pool.prefixlen > _CLASS_PREFIX_LENGTH or index >> (_CLASS_PREFIX_LENGTH - pool.prefixlen):
        raise FabricError(f"the IPv6 pool {pool} is too small for this fabric: give a larger one")
    return IPv6Network((int(pool.network_address) + (index << (128 - _CLASS_PREFIX_LENGTH)), _CLASS_PREFIX_LENGTH))


def _plan_node(fabric: "Fabric", node: "Node", addresses: tuple[Network, ...]) -> NodeAddressing:
    far_ends = dict(sorted(_far_ends(fabric, node.id)))
    devices = _devices(far_ends)
    return NodeAddressing(
        is_forwarding=node.is_switch,
        addresses=addresses,
        ports={
            port: PortAddressing(
                device=devices[port],
                next_hops=(link_local_of(planned_mac(far.id)),),
                mac=planned_mac(port_id(node.id, port)),
            )
            for port, far in far_ends.items()
        },
    )


def _far_ends(fabric: "Fabric", node: NodeId) -> Iterator[tuple[str, "LinkEnd"]]:
    for link in fabric.links_of[node]:
        for end, far in ((link.a, link.b), (link.b, link.a)):
            if end.node == node:
                yield end.port, far


def _devices(ports: Mapping[str, object]) -> dict[str, str]:
    """Return a device name for each port: its own name if an interface may bear it, a number otherwise."""
    own = {port for port in ports if re.match(DEVICE_PATTERN, port) and port != "lo" and not port.isdigit()}
    free = (name for index in range(1, len(ports) * 2 + 1) if (name := f"port{index}") not in own)
    return {port: port if port in own else next(free) for port in ports}
