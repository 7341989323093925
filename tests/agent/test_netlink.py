"""Are our bytes those that pyroute2 makes of the same message, and do we read what it writes?

pyroute2 knows routes, links and neighbours. It has no next-hop objects, so their message is declared here with its tools,
from linux/nexthop.h; its framing, alignment and number packing are still its own.
"""

import struct
from typing import Any

import pytest
from pyroute2.netlink import nlmsg
from pyroute2.netlink.rtnl.fibmsg import fibmsg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from erfs_agent.drivers import netlink
from erfs_agent.drivers.kernel_objects import (
    BLACKHOLE,
    IPV4,
    IPV6,
    TABLES,
    AddressAdded,
    Hop,
    LinkState,
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
    describe,
)

STAMP = Stamp(protocol=229, metric=10)
FE80_1 = b"\xfe\x80" + bytes(13) + b"\x01"
TEN_1 = Prefix(IPV4, bytes([10, 1, 0, 0]), 24)
FD01 = Prefix(IPV6, b"\xfd\x01" + bytes(14), 64)
RULE = Rule(IPV6, "swp1", TABLES[0])
RULE_ATTRIBUTES = [("FRA_IIFNAME", "swp1"), ("FRA_PRIORITY", 22900), ("FRA_TABLE", TABLES[0]), ("FRA_PROTOCOL", 229)]


class nhmsg(nlmsg):  # noqa: N801 -- pyroute2's way
    """struct nhmsg and its attributes."""

    fields = (("family", "B"), ("scope", "B"), ("protocol", "B"), ("resvd", "B"), ("flags", "I"))
    nla_map = (
        ("NHA_UNSPEC", "none"),
        ("NHA_ID", "uint32"),
        ("NHA_GROUP", "cdata"),
        ("NHA_GROUP_TYPE", "uint16"),
        ("NHA_BLACKHOLE", "flag"),
        ("NHA_OIF", "uint32"),
        ("NHA_GATEWAY", "cdata"),
    )


class routemsg(rtmsg):  # noqa: N801
    """pyroute2's route, with the attribute that it does not know yet."""

    nla_map = (
        *rtmsg.nla_map,
        *((f"RTA_{number}", "none") for number in range(len(rtmsg.nla_map), 30)),
        ("RTA_NH_ID", "uint32"),
    )


def made(kind: type[Any], number: int, header_flags: int, seq: int, /, **values: Any) -> bytes:
    """Return the bytes that pyroute2 makes of a message."""
    message = kind()
    attributes = values.pop("attrs", [])
    for name, value in values.items():
        message[name] = value
    message["attrs"] = attributes
    message["header"]["type"] = number
    message["header"]["flags"] = header_flags
    message["header"]["sequence_number"] = seq
    message["header"]["pid"] = 0
    message.encode()
    return bytes(message.data)


def raw(data: bytes) -> netlink.Raw:
    (found,) = netlink.split(data)
    return found


REPLACE, CREATE = 0x1 | 0x4 | 0x100, 0x1 | 0x4 | 0x400 | 0x200
HOP = Hop("e1", FE80_1)


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (
            PutHop(7, HOP, 1001),
            made(
                nhmsg, 104, CREATE, 5, family=IPV6, protocol=229,
                attrs=[("NHA_ID", 7), ("NHA_OIF", 1001), ("NHA_GATEWAY", FE80_1)],
            ),
        ),
        (
            PutHop(7, Hop("e1", bytes([10, 9, 0, 1])), 1001),
            made(
                nhmsg, 104, CREATE, 5, family=IPV4, protocol=229, flags=4,
                attrs=[("NHA_ID", 7), ("NHA_OIF", 1001), ("NHA_GATEWAY", bytes([10, 9, 0, 1]))],
            ),
        ),
        (
            PutHop(7, BLACKHOLE, 0),
            made(nhmsg, 104, CREATE, 5, family=IPV6, protocol=229, attrs=[("NHA_ID", 7), ("NHA_BLACKHOLE", None)]),
        ),
        (
            PutRoute(TEN_1, 9, is_new=True),
            made(
                routemsg, 24, CREATE, 5, family=IPV4, dst_len=24, table=254, proto=229, type=1,
                attrs=[("RTA_DST", "10.1.0.0"), ("RTA_PRIORITY", 10), ("RTA_NH_ID", 9)],
            ),
        ),
        (
            PutRoute(FD01, 9, is_new=False),
            made(
                routemsg, 24, REPLACE | 0x400, 5, family=IPV6, dst_len=64, table=254, proto=229, type=1,
                attrs=[("RTA_DST", "fd01::"), ("RTA_PRIORITY", 10), ("RTA_NH_ID", 9)],
            ),
        ),
        (
            PutRoute(Prefix(IPV6, bytes(16), 0), 9, is_new=True),
            made(
                routemsg, 24, CREATE, 5, family=IPV6, dst_len=0, table=254, proto=229, type=1,
                attrs=[("RTA_PRIORITY", 10), ("RTA_NH_ID", 9)],
            ),
        ),
        (
            RemoveRoute(TEN_1, 20),
            made(
                routemsg, 25, 0x5, 5, family=IPV4, dst_len=24, table=254, proto=229, type=1,
                attrs=[("RTA_DST", "10.1.0.0"), ("RTA_PRIORITY", 20)],
            ),
        ),
        (RemoveObject(7), made(nhmsg, 105, 0x5, 5, attrs=[("NHA_ID", 7)])),
        (
            PutBackup(Place(254, TEN_1, 11), 9, is_new=True),
            made(
                routemsg, 24, CREATE, 5, family=IPV4, dst_len=24, proto=229, type=1,
                attrs=[("RTA_DST", "10.1.0.0"), ("RTA_PRIORITY", 11), ("RTA_TABLE", 254), ("RTA_NH_ID", 9)],
            ),
        ),
        (
            PutBackup(Place(TABLES[0], FD01, 11), 0, is_new=False),
            made(
                routemsg, 24, REPLACE | 0x400, 5, family=IPV6, dst_len=64, proto=229, type=9,
                attrs=[("RTA_DST", "fd01::"), ("RTA_PRIORITY", 11), ("RTA_TABLE", TABLES[0])],
            ),
        ),
        (
            RemoveBackup(Place(TABLES[0], TEN_1, 11)),
            made(
                routemsg, 25, 0x5, 5, family=IPV4, dst_len=24, proto=229, type=0,
                attrs=[("RTA_DST", "10.1.0.0"), ("RTA_PRIORITY", 11), ("RTA_TABLE", TABLES[0])],
            ),
        ),
        (PutRule(RULE), made(fibmsg, 32, CREATE, 5, family=IPV6, action=1, attrs=RULE_ATTRIBUTES)),
        (RemoveRule(RULE), made(fibmsg, 33, 0x5, 5, family=IPV6, action=1, attrs=RULE_ATTRIBUTES)),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, bytes) else "",
)  # fmt: skip
def test_our_requests_are_the_bytes_that_pyroute2_makes(write: Write, expected: bytes) -> None:
    assert netlink.encode(write, STAMP, 5).hex(" ") == expected.hex(" ")


def test_the_replacement_of_a_group_is_these_bytes() -> None:
    """The hot message, held to the letter, and to pyroute2's framing; its list of entries is one attribute."""
    entries = struct.pack("=IBBHIBBH", 7, 0, 0, 0, 8, 2, 0, 0)
    framed = made(nhmsg, 104, REPLACE, 5, protocol=229, attrs=[("NHA_ID", 0xE5800001), ("NHA_GROUP", entries)])
    ours = netlink.encode(PutGroup(0xE5800001, ((7, 1), (8, 3)), is_new=False), STAMP, 5)

    assert ours == framed
    assert ours.hex() == (
        "34000000" "6800" "0501" "05000000" "00000000"  # length, RTM_NEWNEXTHOP, request ack replace, seq, port
        "0000e500" "00000000"  # family, scope, protocol, flags
        "0800" "0100" "010080e5"  # NHA_ID
        "1400" "0200" "07000000" "00" "00" "0000" "08000000" "02" "00" "0000"  # NHA_GROUP: weights minus one
    )  # fmt: skip


def test_a_neighbour_is_asked_to_be_kept() -> None:
    expected = made(
        ndmsg, 28, 0x1 | 0x4 | 0x500, 5, family=IPV6, ifindex=1001,
        attrs=[("NDA_DST", "fe80::1"), ("NDA_FLAGS_EXT", 1), ("NDA_PROTOCOL", 229)],
    )  # fmt: skip

    assert netlink.encode_neighbour(1001, FE80_1, STAMP, 5) == expected


def test_routes_are_read_back_if_they_are_ours_and_in_the_main_table() -> None:
    def shown(**values: Any) -> RouteObject | None:
        attributes = [("RTA_DST", "10.1.0.0"), ("RTA_PRIORITY", 10), ("RTA_NH_ID", 9)]
        values = {"family": IPV4, "dst_len": 24, "table": 254, "proto": 229, "type": 1} | values
        return netlink.route(raw(made(routemsg, 24, 0, 5, attrs=attributes + values.pop("more", []), **values)), STAMP)

    assert shown() == RouteObject(TEN_1, 10, 9)
    assert shown(proto=11) is None
    assert shown(table=100) is None
    assert shown(table=252, more=[("RTA_TABLE", 1000)]) is None


def test_a_route_in_a_ports_own_table_is_read_back() -> None:
    attributes = [("RTA_DST", "10.1.0.0"), ("RTA_PRIORITY", 11), ("RTA_TABLE", TABLES[0])]
    data = made(routemsg, 24, 0, 5, family=IPV4, dst_len=24, table=252, proto=229, type=9, attrs=attributes)
    assert netlink.route(raw(data), STAMP) == RouteObject(TEN_1, 11, 0, TABLES[0])


def test_rules_are_read_if_they_are_just_like_ours() -> None:
    def shown(**values: Any) -> Rule | None:
        attributes = {**dict(RULE_ATTRIBUTES), **values}
        return netlink.rule(raw(made(fibmsg, 32, 0, 5, family=IPV6, action=1, attrs=list(attributes.items()))), STAMP)

    assert shown() == RULE
    assert shown(FRA_PROTOCOL=11) is None
    assert shown(FRA_PRIORITY=100) is None
    assert shown(FRA_TABLE=77) is None
    gone = made(fibmsg, 33, 0, 0, family=IPV6, action=1, attrs=RULE_ATTRIBUTES)
    assert netlink.event(raw(gone), STAMP) == RuleGone(RULE)


def test_a_default_route_has_no_destination() -> None:
    data = made(routemsg, 24, 0, 5, family=IPV6, table=254, proto=229, attrs=[("RTA_PRIORITY", 10), ("RTA_NH_ID", 9)])
    assert netlink.route(raw(data), STAMP) == RouteObject(Prefix(IPV6, bytes(16), 0), 10, 9)


def test_objects_are_read_back() -> None:
    single = made(
        nhmsg, 104, 0, 5, family=IPV6, protocol=229, attrs=[("NHA_ID", 7), ("NHA_OIF", 3), ("NHA_GATEWAY", FE80_1)]
    )
    group = made(
        nhmsg, 104, 0, 5, protocol=229, attrs=[("NHA_ID", 9), ("NHA_GROUP", struct.pack("=IBBH", 7, 255, 0, 0))]
    )
    drop = made(nhmsg, 104, 0, 5, family=IPV6, protocol=11, attrs=[("NHA_ID", 8), ("NHA_BLACKHOLE", None)])

    assert [netlink.next_hop(found) for found in netlink.split(single + group + drop)] == [
        NextHopObject(7, 229, ifindex=3, gateway=FE80_1),
        NextHopObject(9, 229, members=((7, 256),)),
        NextHopObject(8, 11, is_blackhole=True),
    ]


UP, RUNNING, LOWER_UP = 0x1, 0x40, 0x10000


@pytest.mark.parametrize(
    ("flags", "is_up", "is_flushed"),
    [
        (UP | RUNNING | LOWER_UP, True, False),
        (UP, False, True),
        (UP | RUNNING, False, False),  # carrier gone, the kernel's batch not yet run
        (UP | LOWER_UP, True, False),  # dormant
        (LOWER_UP, False, True),
        (0, False, True),
    ],
)
def test_admin_state_and_carrier_together_make_a_port_up(flags: int, is_up: bool, is_flushed: bool) -> None:
    data = made(ifinfmsg, 16, 0, 0, index=1001, flags=flags, attrs=[("IFLA_IFNAME", "swp1")])
    assert netlink.event(raw(data), STAMP) == LinkState(1001, "swp1", is_up=is_up, is_flushed=is_flushed)


def test_an_interface_that_goes_is_down_and_gone() -> None:
    data = made(ifinfmsg, 17, 0, 0, index=1001, flags=UP | RUNNING | LOWER_UP, attrs=[("IFLA_IFNAME", "swp1")])
    assert netlink.event(raw(data), STAMP) == LinkState(1001, "swp1", is_up=False, is_flushed=True, is_gone=True)


@pytest.mark.parametrize(("flags", "expected"), [(0x80, AddressAdded(7)), (0xC0, None), (0x88, None)])
def test_an_address_counts_once_nobody_else_can_have_it(flags: int, expected: AddressAdded | None) -> None:
    data = made(ifaddrmsg, 20, 0, 0, family=IPV6, prefixlen=64, index=7, flags=flags, attrs=[("IFA_FLAGS", flags)])
    assert netlink.event(raw(data), STAMP) == expected


def test_a_route_that_goes_is_told_by_its_prefix() -> None:
    data = made(rtmsg, 25, 0, 0, family=IPV4, dst_len=24, table=254, proto=229, attrs=[("RTA_DST", "10.1.0.0")])
    assert netlink.event(raw(data), STAMP) == RouteGone(TEN_1)
    assert netlink.event(raw(made(rtmsg, 25, 0, 0, family=128)), STAMP) is None


def test_a_notification_tells_which_object_it_is_about() -> None:
    assert netlink.event(raw(made(nhmsg, 105, 0, 0, attrs=[("NHA_ID", 7)])), STAMP) == ObjectTouched(7)
    assert netlink.event(raw(made(routemsg, 24, 0, 0, family=IPV4)), STAMP) is None


def test_an_answer_tells_the_error_and_what_the_kernel_says() -> None:
    text = b"Invalid nexthop id\0\0"
    request = bytes(16)
    capped = struct.pack("=i", -22) + request + struct.pack("=HH", 4 + 19, 1) + text
    data = struct.pack("=IHHII", 16 + len(capped), 2, 0x300, 5, 0) + capped
    assert netlink.answer(raw(data)) == netlink.Answer(5, 22, "Invalid nexthop id")

    plain = struct.pack("=i", 0) + request
    assert netlink.answer(raw(struct.pack("=IHHII", 36, 2, 0x100, 6, 0) + plain)) == netlink.Answer(6, 0, "")


def test_several_messages_of_one_datagram_are_told_apart_and_rubbish_ends_them() -> None:
    one = made(nhmsg, 104, 0, 1, attrs=[("NHA_ID", 7)])
    assert [found.seq for found in netlink.split(one + one)] == [1, 1]
    assert list(netlink.split(b"\0" * 40)) == []
    assert list(netlink.split(b"\1")) == []


def test_a_dry_run_names_the_commands() -> None:
    devices = {"e1": "swp1"}
    writes: list[Write] = [
        PutHop(7, HOP, 1001),
        PutHop(8, Hop("e1", bytes([10, 9, 0, 1])), 1001),
        PutHop(9, BLACKHOLE, 0),
        PutGroup(10, ((7, 1), (8, 3)), is_new=False),
        PutRoute(TEN_1, 10, is_new=True),
        RemoveRoute(FD01, 20),
        RemoveObject(10),
        PutBackup(Place(254, TEN_1, 11), 10, is_new=True),
        PutBackup(Place(TABLES[0], TEN_1, 11), 0, is_new=True),
        RemoveBackup(Place(254, FD01, 11)),
        PutRule(RULE),
        RemoveRule(RULE),
    ]

    assert [describe(write, STAMP, devices) for write in writes] == [
        "ip nexthop add id 7 via fe80::1 dev swp1 protocol 229",
        "ip nexthop add id 8 via 10.9.0.1 dev swp1 onlink protocol 229",
        "ip -6 nexthop add id 9 blackhole protocol 229",
        "ip nexthop replace id 10 group 7,1/8,3 protocol 229",
        "ip route add 10.1.0.0/24 nhid 10 protocol 229 metric 10",
        "ip route del fd01::/64 protocol 229 metric 20",
        "ip nexthop del id 10",
        "ip route add 10.1.0.0/24 nhid 10 table 254 protocol 229 metric 11",
        "ip route add throw 10.1.0.0/24 table 3841982465 protocol 229 metric 11",
        "ip route del fd01::/64 table 254 protocol 229 metric 11",
        "ip -6 rule add iif swp1 lookup 3841982465 priority 22900 protocol 229",
        "ip -6 rule del iif swp1 lookup 3841982465 priority 22900 protocol 229",
    ]


def test_our_questions_are_the_bytes_that_pyroute2_makes() -> None:
    dump = 0x1 | 0x300
    assert netlink.ask_links(5) == made(ifinfmsg, 18, dump, 5, attrs=[("IFLA_EXT_MASK", 8)])
    assert netlink.ask_link(7, 5) == made(ifinfmsg, 18, 1, 5, index=7)
    assert netlink.ask_next_hops(5) == made(nhmsg, 106, dump, 5)
    assert netlink.ask_routes(IPV6, STAMP, 5) == made(rtmsg, 26, dump, 5, family=IPV6, proto=229)
    question = made(ndmsg, 30, 1, 5, family=IPV4, ifindex=7, attrs=[("NDA_DST", "10.9.0.1")])
    assert netlink.ask_neighbour(7, bytes([10, 9, 0, 1]), 5) == question


def test_the_state_of_a_neighbour_is_read() -> None:
    known = made(ndmsg, 28, 0, 5, family=IPV6, ifindex=7, state=2, attrs=[("NDA_DST", "fe80::1")])
    assert netlink.neighbour_state(raw(known)) == netlink.NUD_REACHABLE


def test_counters_are_read_by_name_as_many_as_the_kernel_has() -> None:
    data = made(ifinfmsg, 16, 0, 0, index=7, attrs=[("IFLA_IFNAME", "swp1")])
    values = struct.pack("=7Q", *range(7))
    more = struct.pack("=HH", 4 + len(values), 23) + values
    longer = struct.pack("=I", len(data) + len(more)) + data[4:] + more

    assert netlink.counters(raw(longer)) == {
        "rx_packets": 0, "tx_packets": 1, "rx_bytes": 2, "tx_bytes": 3, "rx_errors": 4, "tx_errors": 5, "rx_dropped": 6
    }  # fmt: skip
    assert netlink.counters(raw(data)) == {}
