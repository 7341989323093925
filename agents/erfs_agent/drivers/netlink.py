"""How do our requests and the kernel's answers look in bytes?

Rule 1: bytes and values only, no sockets.
Rule 2: what cannot be read is passed over: newer kernels say more than we know.

The hot message is the replacement of a group; the usual library knows no next-hop objects at all (docs/adr/0013).
Layouts: linux/rtnetlink.h, linux/nexthop.h, linux/neighbour.h, linux/if_link.h, linux/fib_rules.h.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from erfs_agent.drivers.kernel_objects import (
    BITS,
    BLACKHOLE,
    IPV4,
    IPV6,
    RULE_PRIORITY,
    TABLE_MAIN,
    TABLES,
    AddressAdded,
    GroupMembers,
    LinkState,
    NetlinkEvent,
    NextHopObject,
    ObjectTouched,
    Place,
    Prefix,
    PutBackup,
    PutGroup,
    PutHop,
    PutRoute,
    PutRule,
    RemoveBackup,
    RemoveObject,
    RemoveRoute,
    RemoveRule,
    RouteGone,
    RouteObject,
    Rule,
    RuleGone,
    Stamp,
    Write,
)

NLM_F_REQUEST, NLM_F_ACK = 0x1, 0x4
NLM_F_DUMP_INTR = 0x10
NLM_F_DUMP = 0x300
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
_CAPPED, _ACK_TLVS = 0x100, 0x200

NLMSG_ERROR, NLMSG_DONE = 2, 3
RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR = 20
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWNEIGH, RTM_GETNEIGH = 28, 30
RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34
RTM_NEWNEXTHOP, RTM_DELNEXTHOP, RTM_GETNEXTHOP = 104, 105, 106

GROUP_LINK, GROUP_IPV4_ROUTE, GROUP_IPV6_ADDRESS, GROUP_IPV6_ROUTE, GROUP_NEXTHOP = 1, 7, 9, 11, 32
GROUP_IPV4_RULE, GROUP_IPV6_RULE = 8, 19

RT_TABLE_MAIN: Final = TABLE_MAIN
_RTN_UNICAST, _RTN_THROW = 1, 9
_FR_ACT_TO_TABLE: Final = 1
_FRA_IIFNAME, _FRA_PRIORITY, _FRA_TABLE, _FRA_PROTOCOL = 3, 6, 15, 21
_RTNH_F_ONLINK: Final = 4
_RTA_DST, _RTA_PRIORITY, _RTA_TABLE, _RTA_NH_ID = 1, 6, 15, 30
_NHA_ID, _NHA_GROUP, _NHA_BLACKHOLE, _NHA_OIF, _NHA_GATEWAY = 1, 2, 4, 5, 6
_NDA_DST, _NDA_PROTOCOL, _NDA_FLAGS_EXT = 1, 12, 15
_NTF_EXT_MANAGED: Final = 1
_IFLA_IFNAME, _IFLA_STATS64, _IFLA_EXT_MASK = 3, 23, 29
_RTEXT_FILTER_SKIP_STATS: Final = 8
_NLMSGERR_ATTR_MSG: Final = 1
_IFF_UP, _IFF_RUNNING, _IFF_LOWER_UP = 0x1, 0x40, 0x10000
_IFA_FLAGS: Final = 8
_IFA_F_TENTATIVE, _IFA_F_DADFAILED = 0x40, 0x08
NUD_NONE, NUD_REACHABLE, NUD_NOARP, NUD_PERMANENT = 0x00, 0x02, 0x40, 0x80

_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_U32: Final = struct.Struct("=I")
_NHMSG: Final = struct.Struct("=BBBBI")
_GROUP_ENTRY: Final = struct.Struct("=IBBH")
_RTMSG: Final = struct.Struct("=BBBBBBBBI")
_NDMSG: Final = struct.Struct("=BBHiHBB")
_IFINFOMSG: Final = struct.Struct("=BBHiII")
_IFADDRMSG: Final = struct.Struct("=BBBBI")
_STATS: Final = [
    "rx_packets",
    "tx_packets",
    "rx_bytes",
    "tx_bytes",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
    "multicast",
    "collisions",
    "rx_length_errors",
    "rx_over_errors",
    "rx_crc_errors",
    "rx_frame_errors",
    "rx_fifo_errors",
    "rx_missed_errors",
    "tx_aborted_errors",
    "tx_carrier_errors",
    "tx_fifo_errors",
    "tx_heartbeat_errors",
    "tx_window_errors",
]


@dataclass(frozen=True, slots=True)
class Answer:
    """The kernel's word on one request. *error* is 0 or a positive errno, *text* what it says about it."""

    seq: int
    error: int
    text: str = ""


# --- building ------------------------------------------------------------------------------------------------------------
def _message(kind: int, flags: int, seq: int, body: bytes) -> bytes:
    return _HEADER.pack(16 + len(body), kind, flags, seq, 0) + body


def _attribute(kind: int, payload: bytes) -> bytes:
    length = 4 + len(payload)
    return _ATTRIBUTE.pack(length, kind) + payload + b"\0" * (-length & 3)


def _u32(kind: int, value: int) -> bytes:
    return _attribute(kind, _U32.pack(value))


def encode(write: Write, stamp: Stamp, seq: int) -> bytes:
    """Return the request for *write*; its answer carries *seq*."""
    flags = NLM_F_REQUEST | NLM_F_ACK
    match write:
        case PutGroup():
            verb = NLM_F_CREATE | NLM_F_EXCL if write.is_new else NLM_F_REPLACE
            entries = b"".join(_GROUP_ENTRY.pack(id_, weight - 1, 0, 0) for id_, weight in write.members)
            body = _NHMSG.pack(0, 0, stamp.protocol, 0, 0) + _u32(_NHA_ID, write.id) + _attribute(_NHA_GROUP, entries)
            return _message(RTM_NEWNEXTHOP, flags | verb, seq, body)
        case PutHop():
            return _message(RTM_NEWNEXTHOP, flags | NLM_F_CREATE | NLM_F_EXCL, seq, _hop(write, stamp))
        case PutRoute():
            verb = NLM_F_CREATE | (NLM_F_EXCL if write.is_new else NLM_F_REPLACE)
            body = _route(write.prefix, stamp.protocol, stamp.metric) + _u32(_RTA_NH_ID, write.group)
            return _message(RTM_NEWROUTE, flags | verb, seq, body)
        case RemoveRoute():
            return _message(RTM_DELROUTE, flags, seq, _route(write.prefix, stamp.protocol, write.metric))
        case RemoveObject():
            return _message(RTM_DELNEXTHOP, flags, seq, _NHMSG.pack(0, 0, 0, 0, 0) + _u32(_NHA_ID, write.id))
        case PutBackup():
            verb = NLM_F_CREATE | (NLM_F_EXCL if write.is_new else NLM_F_REPLACE)
            return _message(RTM_NEWROUTE, flags | verb, seq, _at(write.place, stamp, write.group))
        case RemoveBackup():
            return _message(RTM_DELROUTE, flags, seq, _at(write.place, stamp, None))
        case PutRule():
            return _message(RTM_NEWRULE, flags | NLM_F_CREATE | NLM_F_EXCL, seq, _rule(write.rule, stamp))
        case RemoveRule():
            return _message(RTM_DELRULE, flags, seq, _rule(write.rule, stamp))


def _hop(write: PutHop, stamp: Stamp) -> bytes:
    if write.hop == BLACKHOLE:
        head = _NHMSG.pack(IPV6, 0, stamp.protocol, 0, 0)
        return head + _u32(_NHA_ID, write.id) + _attribute(_NHA_BLACKHOLE, b"")
    # An IPv4 gateway counts as reachable without an address of its subnet here: the fabric says what the cable leads to.
    head = _NHMSG.pack(write.hop.family, 0, stamp.protocol, 0, _RTNH_F_ONLINK if write.hop.family == IPV4 else 0)
    return head + _u32(_NHA_ID, write.id) + _u32(_NHA_OIF, write.ifindex) + _attribute(_NHA_GATEWAY, write.hop.gateway)


def _route(prefix: Prefix, protocol: int, metric: int) -> bytes:
    head = _RTMSG.pack(prefix.family, prefix.length, 0, 0, RT_TABLE_MAIN, protocol, 0, _RTN_UNICAST, 0)
    destination = _attribute(_RTA_DST, prefix.address) if prefix.length else b""
    return head + destination + _u32(_RTA_PRIORITY, metric)


def _at(place: Place, stamp: Stamp, group: int | None) -> bytes:
    """Return a route at *place* that uses *group*; 0: that sends to the next table, None: any."""
    kind = {None: 0, 0: _RTN_THROW}.get(group, _RTN_UNICAST)
    prefix = place.prefix
    head = _RTMSG.pack(prefix.family, prefix.length, 0, 0, 0, stamp.protocol, 0, kind, 0)
    destination = _attribute(_RTA_DST, prefix.address) if prefix.length else b""
    rest = _u32(_RTA_PRIORITY, place.metric) + _u32(_RTA_TABLE, place.table)
    return head + destination + rest + (_u32(_RTA_NH_ID, group) if group else b"")


def _rule(rule: Rule, stamp: Stamp) -> bytes:
    head = _RTMSG.pack(rule.family, 0, 0, 0, 0, 0, 0, _FR_ACT_TO_TABLE, 0)
    name = _attribute(_FRA_IIFNAME, rule.device.encode() + b"\0")
    rest = _u32(_FRA_PRIORITY, RULE_PRIORITY) + _u32(_FRA_TABLE, rule.table)
    return head + name + rest + _attribute(_FRA_PROTOCOL, bytes([stamp.protocol]))


def encode_neighbour(ifindex: int, gateway: bytes, stamp: Stamp, seq: int) -> bytes:
    """Return the request to keep *gateway* resolved; what is known of it already stays in use."""
    body = _NDMSG.pack(IPV4 if len(gateway) == 4 else IPV6, 0, 0, ifindex, NUD_NONE, 0, 0)
    body += _attribute(_NDA_DST, gateway)
    body += _u32(_NDA_FLAGS_EXT, _NTF_EXT_MANAGED) + _attribute(_NDA_PROTOCOL, bytes([stamp.protocol]))
    return _message(RTM_NEWNEIGH, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, seq, body)


def ask_neighbour(ifindex: int, gateway: bytes, seq: int) -> bytes:
    """Return the question what is known of *gateway*."""
    body = _NDMSG.pack(IPV4 if len(gateway) == 4 else IPV6, 0, 0, ifindex, 0, 0, 0) + _attribute(_NDA_DST, gateway)
    return _message(RTM_GETNEIGH, NLM_F_REQUEST, seq, body)


def ask_link(ifindex: int, seq: int) -> bytes:
    """Return the question for one interface, its counters among the answer."""
    return _message(RTM_GETLINK, NLM_F_REQUEST, seq, _IFINFOMSG.pack(0, 0, 0, ifindex, 0, 0))


def ask_links(seq: int) -> bytes:
    """Return the question for all interfaces, without their counters."""
    body = _IFINFOMSG.pack(0, 0, 0, 0, 0, 0) + _u32(_IFLA_EXT_MASK, _RTEXT_FILTER_SKIP_STATS)
    return _message(RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, seq, body)


def ask_next_hops(seq: int) -> bytes:
    """Return the question for all next-hop objects and groups."""
    return _message(RTM_GETNEXTHOP, NLM_F_REQUEST | NLM_F_DUMP, seq, _NHMSG.pack(0, 0, 0, 0, 0))


def ask_routes(family: int, stamp: Stamp, seq: int) -> bytes:
    """Return the question for our routes of one family, in all tables."""
    body = _RTMSG.pack(family, 0, 0, 0, 0, stamp.protocol, 0, 0, 0)
    return _message(RTM_GETROUTE, NLM_F_REQUEST | NLM_F_DUMP, seq, body)


def ask_rules(family: int, seq: int) -> bytes:
    """Return the question for all rules of one family."""
    return _message(RTM_GETRULE, NLM_F_REQUEST | NLM_F_DUMP, seq, _RTMSG.pack(family, 0, 0, 0, 0, 0, 0, 0, 0))


# --- reading -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Raw:
    """One message, not yet looked into."""

    kind: int
    flags: int
    seq: int
    body: bytes


def split(data: bytes) -> Iterator[Raw]:
    """Yield the messages in one datagram."""
    offset = 0
    while offset + 16 <= len(data):
        length, kind, flags, seq, _ = _HEADER.unpack_from(data, offset)
        if length < 16:
            return
        yield Raw(kind, flags, seq, data[offset + 16 : offset + length])
        offset += (length + 3) & ~3


def answer(raw: Raw) -> Answer:
    """Return what an NLMSG_ERROR message says; error 0 is the acknowledgement."""
    error = -int(struct.unpack_from("=i", raw.body)[0])
    text = ""
    if raw.flags & _ACK_TLVS:
        request_length = _U32.unpack_from(raw.body, 4)[0]
        start = 20 if raw.flags & _CAPPED else 4 + ((request_length + 3) & ~3)
        said = _attributes(raw.body, start).get(_NLMSGERR_ATTR_MSG, b"")
        text = said.rstrip(b"\0").decode(errors="replace")
    return Answer(raw.seq, error, text)


def _attributes(body: bytes, offset: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while offset + 4 <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, offset)
        if length < 4:
            break
        found[kind & 0x3FFF] = body[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return found


def _number(attributes: dict[int, bytes], kind: int) -> int:
    payload = attributes.get(kind)
    return int(_U32.unpack_from(payload)[0]) if payload is not None and len(payload) >= 4 else 0


def event(raw: Raw, stamp: Stamp) -> NetlinkEvent | None:
    """Return what a notification says, None if it does not concern us."""
    match raw.kind:
        case 16 | 17:
            return link(raw)
        case 20:
            _, _, flags, _, ifindex = _IFADDRMSG.unpack_from(raw.body)
            flags |= _number(_attributes(raw.body, _IFADDRMSG.size), _IFA_FLAGS)
            return None if flags & (_IFA_F_TENTATIVE | _IFA_F_DADFAILED) else AddressAdded(ifindex)
        case 104 | 105:
            return ObjectTouched(_number(_attributes(raw.body, _NHMSG.size), _NHA_ID))
        case 25:
            gone = route(raw, stamp)
            return RouteGone(gone.prefix, gone.metric, gone.table) if gone is not None else None
        case 33:
            found = rule(raw, stamp)
            return RuleGone(found) if found is not None else None
        case _:
            return None


def link(raw: Raw) -> LinkState:
    """Return the interface that an RTM_NEWLINK or RTM_DELLINK message shows."""
    _, _, _, ifindex, flags, _ = _IFINFOMSG.unpack_from(raw.body)
    name = _attributes(raw.body, _IFINFOMSG.size).get(_IFLA_IFNAME, b"").rstrip(b"\0").decode(errors="replace")
    if raw.kind == RTM_DELLINK:
        return LinkState(ifindex, name, is_up=False, is_flushed=True, is_gone=True)
    has_carrier = bool(flags & _IFF_LOWER_UP)
    is_flushed = not flags & _IFF_UP or not flags & (_IFF_RUNNING | _IFF_LOWER_UP)
    return LinkState(ifindex, name, is_up=bool(flags & _IFF_UP) and has_carrier, is_flushed=is_flushed)


def counters(raw: Raw) -> dict[str, int]:
    """Return the counters in an RTM_NEWLINK message, by the names of `struct rtnl_link_stats64`."""
    payload = _attributes(raw.body, _IFINFOMSG.size).get(_IFLA_STATS64, b"")
    count = min(len(_STATS), len(payload) // 8)
    return dict(zip(_STATS, struct.unpack_from(f"={count}Q", payload), strict=False))


def next_hop(raw: Raw) -> NextHopObject:
    """Return the object that an RTM_NEWNEXTHOP message shows."""
    _, _, protocol, _, _ = _NHMSG.unpack_from(raw.body)
    attributes = _attributes(raw.body, _NHMSG.size)
    return NextHopObject(
        id=_number(attributes, _NHA_ID),
        protocol=protocol,
        ifindex=_number(attributes, _NHA_OIF),
        gateway=attributes.get(_NHA_GATEWAY, b""),
        is_blackhole=_NHA_BLACKHOLE in attributes,
        members=_members(attributes.get(_NHA_GROUP, b"")),
    )


def _members(entries: bytes) -> GroupMembers:
    whole = len(entries) - len(entries) % _GROUP_ENTRY.size
    return tuple((id_, weight + 1) for id_, weight, _, _ in _GROUP_ENTRY.iter_unpack(entries[:whole]))


def route(raw: Raw, stamp: Stamp) -> RouteObject | None:
    """Return the route that a message shows, None if it is not of our protocol in the main table or a port's own."""
    family, length, _, _, table, protocol, _, _, _ = _RTMSG.unpack_from(raw.body)
    attributes = _attributes(raw.body, _RTMSG.size)
    table = _number(attributes, _RTA_TABLE) or table
    if family not in BITS or protocol != stamp.protocol or not (table == RT_TABLE_MAIN or table in TABLES):
        return None
    prefix = _prefix(family, length, attributes)
    return RouteObject(prefix, _number(attributes, _RTA_PRIORITY), _number(attributes, _RTA_NH_ID), table)


def rule(raw: Raw, stamp: Stamp) -> Rule | None:
    """Return the rule that a message shows, None if it is not one that we make."""
    family, _, _, _, _, _, _, action, _ = _RTMSG.unpack_from(raw.body)
    attributes = _attributes(raw.body, _RTMSG.size)
    table, device = _number(attributes, _FRA_TABLE), attributes.get(_FRA_IIFNAME, b"").rstrip(b"\0").decode()
    is_ours = attributes.get(_FRA_PROTOCOL) == bytes([stamp.protocol]) and action == _FR_ACT_TO_TABLE
    if family not in BITS or not is_ours or table not in TABLES or _number(attributes, _FRA_PRIORITY) != RULE_PRIORITY:
        return None
    return Rule(family, device, table)


def _prefix(family: int, length: int, attributes: dict[int, bytes]) -> Prefix:
    return Prefix(family, attributes.get(_RTA_DST, bytes(BITS[family] // 8)), length)


def neighbour_state(raw: Raw) -> int:
    """Return the state (NUD_...) of the neighbour that an RTM_NEWNEIGH message shows."""
    return int(_NDMSG.unpack_from(raw.body)[4])
