"""Does the driver say what the system must still be told?"""

from erfs.addressing import NodeAddressing
from erfs_agent.drivers.requirements import Missing, missing

GOOD = {
    "net/ipv4/ip_forward": "1",
    "net/ipv6/conf/all/forwarding": "1",
    "net/ipv6/conf/swp1/disable_ipv6": "0",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/swp1/rp_filter": "0",
}


def node(*, is_forwarding: bool = True) -> NodeAddressing:
    ports = {"e1": {"device": "swp1", "next_hops": ["fe80::1"]}}
    return NodeAddressing.model_validate({"is_forwarding": is_forwarding, "ports": ports})


def test_a_router_that_is_set_up_lacks_nothing() -> None:
    assert missing(node(), GOOD.get) == []


def test_a_switch_must_forward_and_a_host_need_not() -> None:
    settings = GOOD | {"net/ipv4/ip_forward": "0"}

    assert missing(node(), settings.get) == [Missing("net.ipv4.ip_forward", "0", "1")]
    assert missing(node(is_forwarding=False), settings.get) == []


def test_strict_filtering_is_told_wherever_it_is_set() -> None:
    own = Missing("net.ipv4.conf.swp1.rp_filter", "1", "0 or 2")
    assert missing(node(), (GOOD | {"net/ipv4/conf/swp1/rp_filter": "1"}).get) == [own]
    assert missing(node(), (GOOD | {"net/ipv4/conf/all/rp_filter": "1"}).get) == [own]
    assert missing(node(), (GOOD | {"net/ipv4/conf/all/rp_filter": "1", "net/ipv4/conf/swp1/rp_filter": "2"}).get) == []


def test_an_interface_that_is_not_there_is_told() -> None:
    settings = {name: value for name, value in GOOD.items() if "swp1" not in name}
    assert missing(node(), settings.get) == [
        Missing("net.ipv6.conf.swp1.disable_ipv6", "no such setting", "0"),
        Missing("net.ipv4.conf.swp1.rp_filter", "no such setting", "0 or 2"),
    ]
