"""What the kernel holds for us, and what it can be asked to change.

Rule 1: values only; which of them are wanted is decided in `kernel_routes`, how they look on the wire in `netlink`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple

IPV4: Final = 2
IPV6: Final = 10
BITS: Final[Mapping[int, int]] = {IPV4: 32, IPV6: 128}

TABLE_MAIN: Final = 254
# Of what came by a port: a table for each port, looked into before the main one. Others count tables from 1 or name them by small numbers.
TABLES: Final = range(0xE5000001, 0xE5010000)
# After the local table (0) and whatever is given thousands, before the main table (32766).
RULE_PRIORITY: Final = 22900


class Prefix(NamedTuple):
    """What a route matches. *family* is IPV4 or IPV6, *address* its 4 or 16 bytes."""

    family: int
    address: bytes
    length: int

    def __str__(self) -> str:
        return str(ip_network((self.address, self.length)))


def prefix_of(network: IPv4Network | IPv6Network) -> Prefix:
    """Return *network* as the kernel wants it."""
    return Prefix(IPV4 if network.version == 4 else IPV6, network.network_address.packed, network.prefixlen)


class Place(NamedTuple):
    """Where a route is, besides those to members: behind them in the main table, or in a port's own table."""

    table: int
    prefix: Prefix
    metric: int


class Rule(NamedTuple):
    """Look for what came by *device* in *table* first."""

    family: int
    device: str
    table: int


class Hop(NamedTuple):
    """A single next hop: a gateway of 4 or 16 bytes behind a port."""

    port: str
    gateway: bytes

    @property
    def family(self) -> int:
        """The gateway's address family."""
        return IPV4 if len(self.gateway) == 4 else IPV6


# Takes packets and drops them. As an IPv6 object, because the kernel lets IPv4 routes use those, but not the reverse.
BLACKHOLE: Final = Hop("", b"")

GroupMembers = tuple[tuple[int, int], ...]
"""(id of the single next hop, weight) of each member."""


# --- what is asked -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PutHop:
    """Make the next-hop object *id*, which nobody has."""

    id: int
    hop: Hop
    ifindex: int


@dataclass(frozen=True, slots=True)
class PutGroup:
    """Give group *id* these members, at once for all routes that use it."""

    id: int
    members: GroupMembers
    is_new: bool


@dataclass(frozen=True, slots=True)
class PutRoute:
    """Send *prefix* by *group*. *is_new*: refuse if anybody has a route of this prefix and metric."""

    prefix: Prefix
    group: int
    is_new: bool


@dataclass(frozen=True, slots=True)
class RemoveRoute:
    """Take our route out."""

    prefix: Prefix
    metric: int


@dataclass(frozen=True, slots=True)
class RemoveObject:
    """Take a next-hop object or group of ours out."""

    id: int


@dataclass(frozen=True, slots=True)
class PutBackup:
    """Send by *group* what finds nothing before *place*; 0: look on in the tables after this one."""

    place: Place
    group: int
    is_new: bool


@dataclass(frozen=True, slots=True)
class RemoveBackup:
    """Take our route at *place* out."""

    place: Place


@dataclass(frozen=True, slots=True)
class PutRule:
    """Make a rule that nobody has."""

    rule: Rule


@dataclass(frozen=True, slots=True)
class RemoveRule:
    """Take our rule out."""

    rule: Rule


BackupWrite = PutBackup | RemoveBackup | PutRule | RemoveRule
Write = PutHop | PutGroup | PutRoute | RemoveRoute | RemoveObject | BackupWrite


@dataclass(frozen=True, slots=True)
class Stamp:
    """What marks routes and objects as ours."""

    protocol: int
    metric: int


# --- what is read --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class LinkState:
    """An interface, as one message of the kernel shows it."""

    ifindex: int
    device: str
    is_up: bool
    """Admin up and carrier."""
    is_flushed: bool
    """The kernel has deleted the next-hop objects over it, and this message says so."""
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class NextHopObject:
    """A next-hop object or group, anybody's."""

    id: int
    protocol: int
    ifindex: int = 0
    gateway: bytes = b""
    is_blackhole: bool = False
    members: GroupMembers = ()


@dataclass(frozen=True, slots=True)
class RouteObject:
    """A route of our protocol in the main table or one of `TABLES`. *group* is 0 if it uses no next-hop object."""

    prefix: Prefix
    metric: int
    group: int
    table: int = TABLE_MAIN


@dataclass(frozen=True, slots=True)
class AddressAdded:
    """An interface got a usable address."""

    ifindex: int


@dataclass(frozen=True, slots=True)
class ObjectTouched:
    """Somebody else made, changed or removed the next-hop object *id*."""

    id: int


@dataclass(frozen=True, slots=True)
class RouteGone:
    """A route of our protocol was removed, by somebody else or along with its group."""

    prefix: Prefix
    metric: int = 0
    table: int = TABLE_MAIN


@dataclass(frozen=True, slots=True)
class RuleGone:
    """Somebody else removed a rule of ours."""

    rule: Rule


NetlinkEvent = LinkState | AddressAdded | ObjectTouched | RouteGone | RuleGone


@dataclass(frozen=True, slots=True)
class KernelState:
    """All that matters, read at one time."""

    links: tuple[LinkState, ...] = ()
    objects: tuple[NextHopObject, ...] = ()
    routes: tuple[RouteObject, ...] = field(default=())
    rules: tuple[Rule, ...] = ()


def describe(write: Write, stamp: Stamp, devices: Mapping[str, str]) -> str:
    """Return *write* as the iproute2 command that does the same; for logs and dry runs."""
    match write:
        case PutHop() if write.hop == BLACKHOLE:
            return f"ip -6 nexthop add id {write.id} blackhole protocol {stamp.protocol}"
        case PutHop():
            gateway = _address(write.hop.gateway)
            onlink = " onlink" if write.hop.family == IPV4 else ""
            device = devices[write.hop.port]
            return f"ip nexthop add id {write.id} via {gateway} dev {device}{onlink} protocol {stamp.protocol}"
        case PutGroup():
            members = "/".join(f"{id_},{weight}" for id_, weight in write.members)
            verb = "add" if write.is_new else "replace"
            return f"ip nexthop {verb} id {write.id} group {members} protocol {stamp.protocol}"
        case PutRoute():
            verb = "add" if write.is_new else "replace"
            return f"ip route {verb} {write.prefix} nhid {write.group} protocol {stamp.protocol} metric {stamp.metric}"
        case RemoveRoute():
            return f"ip route del {write.prefix} protocol {stamp.protocol} metric {write.metric}"
        case RemoveObject():
            return f"ip nexthop del id {write.id}"
        case PutBackup():
            verb = "add" if write.is_new else "replace"
            what, how = ("throw ", "") if not write.group else ("", f" nhid {write.group}")
            where = f"{write.place.prefix}{how} table {write.place.table}"
            return f"ip route {verb} {what}{where} protocol {stamp.protocol} metric {write.place.metric}"
        case RemoveBackup():
            where = f"{write.place.prefix} table {write.place.table}"
            return f"ip route del {where} protocol {stamp.protocol} metric {write.place.metric}"
        case PutRule():
            return f"{_rule('add', write.rule)} protocol {stamp.protocol}"
        case RemoveRule():
            return f"{_rule('del', write.rule)} protocol {stamp.protocol}"


def _rule(verb: str, rule: Rule) -> str:
    family = "-4" if rule.family == IPV4 else "-6"
    return f"ip {family} rule {verb} iif {rule.device} lookup {rule.table} priority {RULE_PRIORITY}"


def _address(packed: bytes) -> IPv4Address | IPv6Address:
    return ip_address(packed)
