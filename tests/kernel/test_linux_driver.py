"""The driver on a real kernel: what the kernel does by itself, what it refuses, and what the driver makes of that."""

import asyncio
import os
import random
import re
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from erfs.aio.namespaces import inside
from erfs.ids import DestinationId
from erfs.messages import Member
from erfs_agent.core import RoutesWritten, WriteRoutes
from erfs_agent.drivers import netlink
from erfs_agent.drivers.kernel_objects import ObjectTouched, RouteGone, Stamp
from erfs_agent.forwarding import Backups

from .bench import E1, E2, E3, METRIC, NEIGHBOURS, PORTS, PROTOCOL, A, B, Bench, Ear, bench, far_mac, mac
from .namespaces import wire


@pytest.fixture
def here() -> Iterator[Bench]:
    with bench() as found:
        yield found


@pytest.fixture
def numbered() -> Iterator[Bench]:
    with bench(numbered=True) as found:
        yield found


# --- what is written ------------------------------------------------------------------------------------------------------
def test_ipv4_and_ipv6_routes_share_a_group_of_link_local_next_hops(here: Bench) -> None:
    here.write_well({A: (E1, E2)})

    assert here.served("10.1.0.0/24") == here.served("fd01::/64") == ("e1", "e2")
    ipv4, ipv6 = here.route("10.1.0.0/24"), here.route("fd01::/64")
    assert ipv4 is not None
    assert ipv6 is not None
    assert ipv4["nhid"] == ipv6["nhid"]
    assert {hop["via"]["family"] for hop in ipv4["nexthops"]} == {"inet6"}
    assert (ipv4["metric"], ipv6["metric"]) == (METRIC, METRIC)


def test_numbered_next_hops_need_no_address_of_ours(numbered: Bench) -> None:
    numbered.write_well({A: (E1, E2)})

    ipv4 = numbered.route("10.1.0.0/24")
    assert ipv4 is not None
    assert [hop["gateway"] for hop in ipv4["nexthops"]] == ["10.9.0.1", "10.9.1.1"]
    assert numbered.served("fd01::/64") == ("e1", "e2")
    numbered.cut("e1")
    numbered.write_well({A: (E2,)})
    assert numbered.served("10.1.0.0/24") == numbered.served("fd01::/64") == ("e2",)
    numbered.restart()
    assert numbered.driver.routes() == {A: (E2,)}


def test_a_flip_keeps_the_route_and_its_group(here: Bench) -> None:
    here.write_well({A: (E1, E2)})
    before = here.route("10.1.0.0/24")

    here.write_well({A: (E3,)})

    after = here.route("10.1.0.0/24")
    assert before is not None
    assert after is not None
    assert before["nhid"] == after["nhid"]
    assert here.served("10.1.0.0/24") == here.served("fd01::/64") == ("e3",)


def test_weights_reach_the_kernel_and_come_back(here: Bench) -> None:
    routes = {A: (Member(port="e1", weight=3), Member(port="e2", weight=256))}
    here.write_well(routes)

    assert here.driver.routes() == routes
    here.restart()
    assert here.driver.routes() == routes


def test_no_next_hop_means_packets_are_dropped_not_sent_by_a_wider_route(here: Bench) -> None:
    here.here("ip route add default dev lo")
    here.write_well({A: ()})

    assert here.served("10.1.0.0/24") == here.served("fd01::/64") == ()
    assert "10.1.0.1" not in here.here("ip route get 10.1.0.1", is_checked=False)
    here.write_well({A: (E1,)})
    assert here.served("10.1.0.0/24") == here.served("fd01::/64") == ("e1",)


def test_what_is_no_longer_wanted_leaves_nothing_behind(here: Bench) -> None:
    here.write_well({A: (E1, E2), B: (E3,)})
    before = len(here.objects())

    here.write_well({}, B)

    assert here.served("10.2.0.0/24") is None
    assert here.route("fd02::/64") is None
    assert len(here.objects()) == before - 1
    assert here.served("10.1.0.0/24") == ("e1", "e2")


# --- what the kernel does by itself ---------------------------------------------------------------------------------------
def test_loss_of_carrier_prunes_groups_and_the_driver_knows(here: Bench) -> None:
    """The kernel deletes the port's objects and says nothing of it; no write is needed."""
    here.write_well({A: (E1, E2), B: (E2, E3)})

    here.cut("e2")

    assert here.told == [("e2", False)]
    assert here.served("10.1.0.0/24") == ("e1",)
    assert here.served("fd02::/64") == ("e3",)
    assert here.driver.routes() == {A: (E1,), B: (E3,)}
    assert here.books_hold()


def test_admin_down_prunes_groups_and_the_driver_knows(here: Bench) -> None:
    here.write_well({A: (E1, E2)})

    here.here.set_up("e1", False)
    here.until(lambda: here.told == [("e1", False)])

    assert here.served("10.1.0.0/24") == ("e2",)
    assert here.driver.routes() == {A: (E2,)}
    assert here.books_hold()


def test_an_interface_that_is_deleted_is_a_port_down_and_its_successor_a_port_up(here: Bench) -> None:
    here.write_well({A: (E1, E2)})

    here.here("ip link del e1")
    here.until(lambda: ("e1", False) in here.told)
    assert here.served("10.1.0.0/24") == ("e2",)
    wire(here.here, "e1", mac("e1"), here.far, "e1", far_mac("e1"))
    here.until(lambda: here.driver.ports()["e1"])
    here.write_well({A: (E1, E2)})

    assert here.served("10.1.0.0/24") == ("e1", "e2")
    assert here.books_hold()


def test_a_group_that_loses_its_last_member_takes_its_routes_along(here: Bench) -> None:
    """So does the kernel; the driver makes group and routes again at once, with a member that drops."""
    here.write_well({A: (E1,)})
    here.far.set_up("e1", False)
    here.here("true")
    assert here.served("10.1.0.0/24") is None

    here.until(lambda: not here.driver.ports()["e1"])

    assert here.served("10.1.0.0/24") == here.served("fd01::/64") == ()
    assert here.books_hold()


def test_after_a_double_failure_the_routes_stay_and_drop_and_the_third_port_takes_over(here: Bench) -> None:
    here.write_well({A: (E1, E2)})
    here.cut("e1")
    here.write_well({A: (E2,)})
    here.cut("e2")
    here.write_well({A: ()})
    assert here.served("10.1.0.0/24") == here.served("fd01::/64") == ()

    here.write_well({A: (E3,)})

    assert here.served("10.1.0.0/24") == here.served("fd01::/64") == ("e3",)
    assert here.books_hold()


def test_both_ports_lost_before_the_driver_hears_of_either(here: Bench) -> None:
    """Group and routes are gone when the change for the first loss is written: it is worked out anew from what is live."""
    here.write_well({A: (E1, E2)})
    here.far.set_up("e1", False)
    here.far.set_up("e2", False)
    here.here("true")
    assert here.served("10.1.0.0/24") is None

    here.write_well({A: (E2,)})

    assert here.served("10.1.0.0/24") == ()
    assert here.told == [("e1", False), ("e2", False)]
    assert here.books_hold()


def test_nothing_returns_on_link_up_until_the_driver_makes_objects_then_the_agent_groups(here: Bench) -> None:
    here.write_well({A: (E1, E2)})
    here.cut("e1")
    here.write_well({A: (E2,)})
    object_count = len(here.objects())

    here.mend("e1")

    assert here.told == [("e1", False), ("e1", True)]
    assert len(here.objects()) == object_count + 1
    assert here.served("10.1.0.0/24") == ("e2",)
    here.write_well({A: (E1, E2)})
    assert here.served("10.1.0.0/24") == ("e1", "e2")
    assert here.books_hold()


def test_all_ports_back_after_all_were_lost_bring_objects_groups_and_routes_back(here: Bench) -> None:
    here.write_well({A: (E1, E2), B: (E3,)})
    for port in PORTS:
        here.cut(port)
    assert here.served("10.1.0.0/24") == here.served("fd03::/64") == ()
    for port in PORTS:
        here.mend(port)

    assert here.served("10.1.0.0/24") == ("e1", "e2")
    assert here.served("fd03::/64") == ("e3",)
    assert here.books_hold()


def test_the_loopback_set_down_takes_no_dropping_member_along(here: Bench) -> None:
    here.write_well({A: ()})
    here.here("ip link set lo down")
    here.driver.read_events()

    here.write_well({B: ()})

    assert here.served("10.2.0.0/24") == ()
    assert here.books_hold()


# --- what the kernel refuses ----------------------------------------------------------------------------------------------
def test_a_member_lost_a_moment_ago_costs_no_other_member(here: Bench) -> None:
    """The kernel refuses a replacement whole if one member is missing; its event still waits in our socket."""
    here.write_well({A: (E1, E2), B: (E1,)})
    here.far.set_up("e2", False)
    here.here("true")

    here.write_well({A: (E2, E3), B: (E2, E1)})

    assert here.served("10.1.0.0/24") == ("e3",)
    assert here.served("10.2.0.0/24") == ("e1",)
    assert here.told == [("e2", False)]
    assert here.books_hold()


def test_a_group_that_somebody_deleted_is_made_again_by_the_next_change(here: Bench) -> None:
    here.write_well({A: (E1, E2)})
    route = here.route("10.1.0.0/24")
    assert route is not None
    here.here(f"ip nexthop del id {route['nhid']}")

    here.write_well({A: (E3,)})

    assert here.served("10.1.0.0/24") == here.served("fd01::/64") == ("e3",)


def test_objects_that_somebody_flushed_come_back_at_once(here: Bench) -> None:
    here.write_well({A: (E1, E2), B: (E3,)})
    here.here("ip nexthop flush")

    here.until(lambda: here.driver.routes() == {A: (E1, E2), B: (E3,)})

    assert here.served("10.1.0.0/24") == ("e1", "e2")
    assert here.served("fd03::/64") == ("e3",)


async def test_routes_that_somebody_removed_come_back_and_others_routes_are_not_heard_of() -> None:
    with bench() as here, structlog.testing.capture_logs() as logs:
        here.driver.watch(asyncio.get_running_loop())
        here.write_well({A: (E1, E2), B: (E3,)})
        here.here("ip route add 10.88.0.0/24 dev e1 proto 11")
        here.here("ip route del 10.88.0.0/24 proto 11")
        here.here(f"ip route del 10.1.0.0/24 proto {PROTOCOL}")
        here.here(f"ip route del 10.2.0.0/24 proto {PROTOCOL}")
        here.here(f"ip -6 route del fd03::/64 proto {PROTOCOL}")
        async with asyncio.timeout(20):
            await turn_until(lambda: here.served("10.1.0.0/24") == ("e1", "e2"))

        assert here.served("10.2.0.0/24") == here.served("fd03::/64") == ("e3",)
        told = [entry["prefixes"] for entry in logs if entry["event"] == "kernel_routes_removed_by_others"]
        assert told == [["10.1.0.0/24", "10.2.0.0/24", "fd03::/64"]]


async def test_routes_that_go_with_their_group_are_nobody_elses_doing() -> None:
    with bench() as here, structlog.testing.capture_logs() as logs:
        here.driver.watch(asyncio.get_running_loop())
        here.write_well({A: (E1,)})
        async with asyncio.timeout(20):
            here.far.set_up("e1", False)
            await turn_until(lambda: here.told == [("e1", False)])
            assert here.served("fd01::/64") == ()
            here.far.set_up("e1", True)
            await turn_until(lambda: here.served("fd01::/64") == ("e1",))
            await turn_until(lambda: here.driver._repair is None)
        assert [entry for entry in logs if "by_others" in entry["event"]] == []


def test_without_ipv6_on_an_interface_its_port_is_left_out_and_told(here: Bench) -> None:
    here.here.sysctl("net/ipv6/conf/e1/disable_ipv6", "1")
    here.cut("e1")
    here.mend("e1")

    done = here.write({A: (E1, E2)})

    assert (done.is_ok, done.reason.startswith('port "e1": ')) == (False, True)
    assert here.served("10.1.0.0/24") == ("e2",)
    here.here.sysctl("net/ipv6/conf/e1/disable_ipv6", "0")
    here.until(lambda: here.driver.routes() == {A: (E1, E2)})
    here.write_well({A: (E2, E1)})


def test_without_the_capability_the_reason_is_told(here: Bench) -> None:
    """As a user without rights: the sockets open, every write is refused."""
    pid = os.fork()
    if pid == 0:
        try:
            driver = here.new_driver()
            os.setuid(65534)
            done = driver.write(WriteRoutes(1, {A: (E1,)}, ()))
            os._exit(0 if not done.is_ok and "not permitted" in done.reason else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# --- start ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("is_writing", [False, True])
def test_a_restart_changes_nothing_that_is_right(here: Bench, is_writing: bool) -> None:
    here.write_well({A: (E1, E2), B: (E3,)})
    ear = Ear(here.here, netlink.GROUP_NEXTHOP, netlink.GROUP_IPV4_ROUTE, netlink.GROUP_IPV6_ROUTE)

    here.restart()
    if is_writing:
        here.write_well({A: (E1, E2), B: (E3,)})

    assert ear.heard() == []
    here.write_well({A: (E3,)})
    assert ear.heard() != []
    assert here.driver.routes() == {A: (E3,), B: (E3,)}


def test_a_restart_mends_what_differs_and_removes_what_is_left_over(here: Bench) -> None:
    here.write_well({A: (E1, E2), B: (E3,)})
    here.here(f"ip route del 10.1.0.0/24 proto {PROTOCOL}")
    here.here(f"ip nexthop add id {0xE5000005} via fe80::99 dev e3 proto {PROTOCOL}")
    here.here(f"ip route add 10.77.0.0/24 nhid {0xE5000005} proto {PROTOCOL} metric {METRIC}")
    here.restart()
    assert here.driver.routes() == {B: (E3,)}

    here.write_well({A: (E1, E2)}, B)

    assert here.served("10.1.0.0/24") == here.served("fd01::/64") == ("e1", "e2")
    assert here.route("10.77.0.0/24") is None
    assert here.served("10.2.0.0/24") is None
    assert 0xE5000005 not in here.objects()
    assert here.books_hold()


def test_another_metric_replaces_the_routes_of_the_old_one(here: Bench) -> None:
    here.write_well({A: (E1, E2)})
    here.restart(metric=30)

    here.write_well({A: (E1, E2)})

    found = here.here(f"ip route show 10.1.0.0/24 proto {PROTOCOL}")
    assert re.findall(r"metric (\d+)", found) == ["30"]


# --- others ---------------------------------------------------------------------------------------------------------------
def test_nothing_of_others_is_ever_touched(here: Bench) -> None:
    others = (
        "ip nexthop add id 7 via fe80::7 dev e1 proto 11",
        "ip nexthop add id 8 group 7 proto 11",
        "ip route add 10.1.0.0/24 nhid 8 proto 11 metric 20",
        "ip -6 route add fd01::/64 nhid 8 proto 11 metric 20",
        "ip route add 10.1.0.0/24 dev e2 proto static metric 5 table 100",
        "ip route add 10.99.0.0/16 dev e3 proto static metric 10",
    )
    for command in others:
        here.here(command)
    shown = "ip nexthop show proto 11", "ip route show table all proto 11", "ip route show table all proto static"
    before = [here.here(command) for command in shown]

    here.write_well({A: (E1, E2), B: (E3,)})
    here.restart()
    here.write_well({A: (E3,)}, B)
    here.write_well({}, A)

    assert [here.here(command) for command in shown] == before


@pytest.mark.parametrize(("metric", "winner"), [(10, "e2"), (30, "e1")])
def test_the_metric_says_who_wins_against_frr(here: Bench, metric: int, winner: str) -> None:
    here.here("ip nexthop add id 7 via fe80::7 dev e1 proto 11")
    here.here("ip route add 10.1.0.0/24 nhid 7 proto 11 metric 20")
    here.here("ip -6 route add fd01::/64 nhid 7 proto 11 metric 20")
    here.restart(metric=metric)
    here.write_well({A: (E2,)})

    assert f"dev {winner} " in here.here("ip route get 10.1.0.1")
    assert f"dev {winner} " in here.here("ip route get fd01::1")


def test_somebody_elses_route_of_our_metric_is_refused_and_told(here: Bench) -> None:
    here.here(f"ip route add 10.1.0.0/24 dev e3 proto 11 metric {METRIC}")

    done = here.write({A: (E1,), B: (E2,)})

    assert done == RoutesWritten(1, is_ok=False, reason="10.1.0.0/24: somebody else has a route of metric 10")
    assert here.served("fd01::/64") == ("e1",)
    assert here.served("10.2.0.0/24") == ("e2",)
    assert "dev e3" in here.here("ip route show 10.1.0.0/24 proto 11")


def test_a_dry_run_writes_nothing_and_says_what_it_would(here: Bench) -> None:
    here.restart(is_dry_run=True)
    with structlog.testing.capture_logs() as logs:
        here.write_well({A: (E1,)})

    assert here.objects() == {}
    assert here.route("10.1.0.0/24") is None
    said = [entry["would"] for entry in logs if entry["event"] == "dry_run"]
    assert [line.split(" id ")[0].split(" 10")[0].split(" fd")[0] for line in said] == [
        "ip -6 nexthop add",
        *["ip nexthop add"] * 4,
        *["ip route add"] * 2,
    ]
    assert here.driver.routes() == {A: (E1,)}
    here.restart()
    for command in said:
        here.here(command)
    assert here.served("10.1.0.0/24") == ("e1",)


# --- neighbours, counters, requirements -----------------------------------------------------------------------------------
def neighbours(here: Bench) -> dict[str, str]:
    """Return the states of the entries that the kernel keeps resolved, by interface."""
    found = here.here("ip neigh show")
    return {
        match[1]: match[2]
        for match in re.finditer(r"dev (\S+) .*?managed.*? (REACHABLE|STALE|DELAY|PROBE|INCOMPLETE|FAILED)", found)
    }


async def test_gateways_of_all_ports_are_kept_resolved_and_again_after_a_loss() -> None:
    with bench() as here:
        here.driver.watch(asyncio.get_running_loop())
        async with asyncio.timeout(20):
            await turn_until(lambda: set(neighbours(here).values()) == {"REACHABLE"} and len(neighbours(here)) == 3)
            here.far.set_up("e1", False)
            await turn_until(lambda: here.told == [("e1", False)])
            assert set(neighbours(here)) == {"e2", "e3"}
            here.far.set_up("e1", True)
            await turn_until(lambda: neighbours(here).get("e1") == "REACHABLE")


async def test_a_restart_leaves_neighbours_that_are_kept_already_as_they_are() -> None:
    """Forgotten and asked for again, they would have packets wait until the neighbour has answered."""
    with bench() as here:
        here.driver.watch(asyncio.get_running_loop())
        async with asyncio.timeout(20):
            await turn_until(lambda: list(neighbours(here).values()) == ["REACHABLE"] * 3)
        here.restart()
        ear = Ear(here.here, NEIGHBOURS)

        here.driver.watch(asyncio.get_running_loop())

        states = {netlink.neighbour_state(raw) for raw in ear.heard() if raw.kind == netlink.RTM_NEWNEIGH}
        assert states <= {netlink.NUD_REACHABLE}
        assert list(neighbours(here).values()) == ["REACHABLE"] * 3


async def turn_until(condition: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    while not condition():
        turn = asyncio.Event()
        loop.call_later(0.01, turn.set)
        await turn.wait()


async def test_a_neighbour_that_somebody_set_by_hand_stays_as_it_is() -> None:
    with bench() as here:
        gateway = here.node.ports["e1"].next_hops[0]
        here.here(f"ip neigh add {gateway} lladdr 02:00:00:00:00:01 dev e1 nud permanent")
        here.driver.watch(asyncio.get_running_loop())

        assert "02:00:00:00:00:01 PERMANENT" in here.here(f"ip neigh show {gateway} dev e1")


async def test_carrier_is_told_in_the_loop_until_the_driver_is_closed() -> None:
    with bench() as here:
        here.driver.watch(asyncio.get_running_loop())
        async with asyncio.timeout(20):
            here.far.set_up("e2", False)
            await turn_until(lambda: here.told == [("e2", False)])
            here.far.set_up("e2", True)
            await turn_until(lambda: here.told == [("e2", False), ("e2", True)])


def test_events_that_did_not_fit_are_made_good_by_reading(here: Bench) -> None:
    here.write_well({A: (E1, E2)})
    here.driver._events._socket.setsockopt(1, 33, 1)  # SO_RCVBUFFORCE: as small as the kernel allows
    for _ in range(20):
        # Each of these is told before the call returns, so the buffer is full when e2 goes.
        here.here.set_up("e1", False)
        here.here.set_up("e1", True)
    here.far.set_up("e2", False)
    while '"operstate":"DOWN"' not in here.here("ip -j link show e2"):
        pass

    here.until(lambda: here.driver.ports() == {"e1": True, "e2": False, "e3": True})

    assert ("e2", False) in here.told
    assert here.books_hold()


def test_the_driver_does_not_hear_of_its_own_changes(here: Bench) -> None:
    def heard_of() -> list[object]:
        heard: list[object] = []
        kinds = netlink.RTM_NEWROUTE, netlink.RTM_DELROUTE, netlink.RTM_NEWNEXTHOP, netlink.RTM_DELNEXTHOP
        while raws := here.driver._events.read():
            heard += [netlink.event(raw, Stamp(PROTOCOL, METRIC)) for raw in raws if raw.kind in kinds]
        return heard

    here.write_well({A: (E1, E2)})
    here.write_well({}, A)
    assert heard_of() == []
    here.here(f"ip nexthop add id 77 via fe80::77 dev e1 proto {PROTOCOL}")
    assert heard_of() == [ObjectTouched(77)]


def test_of_routes_only_the_removal_of_ours_is_heard_of(here: Bench) -> None:
    """A table of others may change a thousand times a second; the kernel itself drops what is not ours."""
    here.until(lambda: True)
    for protocol in (11, PROTOCOL):
        for prefix in ("10.88.0.0/24", "fd88::/64"):
            here.here(f"ip route add {prefix} dev e1 proto {protocol}")
            here.here(f"ip route del {prefix} dev e1 proto {protocol}")
    heard: list[object] = []
    while raws := here.driver._events.read():
        heard += [
            netlink.event(raw, Stamp(PROTOCOL, METRIC))
            for raw in raws
            if raw.kind in (netlink.RTM_NEWROUTE, netlink.RTM_DELROUTE)
        ]

    assert [str(found.prefix) for found in heard if isinstance(found, RouteGone)] == ["10.88.0.0/24", "fd88::/64"]
    assert len(heard) == 2


def test_counters_of_interface_and_adapter(here: Bench) -> None:
    before = here.driver.counters()
    assert set(before) == set(PORTS)
    assert {"rx_errors", "rx_crc_errors", "rx_dropped", "nic.rx_queue_0_drops"} <= before["e1"].keys()
    with inside(here.here.path), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as everyone:
        for _ in range(3):
            everyone.sendto(b"", ("ff02::1", 9, 0, here.driver._core.ifindex("e1")))

    assert here.driver.counters()["e1"]["tx_packets"] >= before["e1"]["tx_packets"] + 3
    here.here("ip link del e2")
    here.driver.read_events()
    assert set(here.driver.counters()) == {"e1", "e3"}


def test_what_the_system_lacks_is_told(here: Bench) -> None:
    assert [found.setting for found in here.driver.missing()] == [
        "net.ipv4.ip_forward",
        "net.ipv6.conf.all.forwarding",
    ]
    here.here.sysctl("net/ipv4/ip_forward", "1")
    here.here.sysctl("net/ipv6/conf/all/forwarding", "1")
    assert here.driver.missing() == []


# --- everything at once ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_the_driver_knows_what_the_kernel_holds(seed: int) -> None:
    """Random losses, returns, changes and restarts; after each the books equal what a new driver reads."""
    rng = random.Random(seed)
    wanted: dict[DestinationId, tuple[Member, ...]] = {}
    with bench(numbered=bool(seed % 2)) as here:
        for _ in range(40):
            port = rng.choice(PORTS)
            match rng.choice(("far", "near", "write", "write", "remove", "restart", "hear")):
                case "far":
                    here.far.set_up(port, rng.random() < 0.5)
                case "near":
                    here.here.set_up(port, rng.random() < 0.5)
                case "write":
                    destination = rng.choice((A, B))
                    wanted[destination] = tuple(member for member in (E1, E2, E3) if rng.random() < 0.5)
                    here.write_well({destination: wanted[destination]})
                case "remove":
                    if wanted:
                        destination = rng.choice(sorted(wanted))
                        del wanted[destination]
                        here.write_well({}, destination)
                case "restart":
                    here.restart()
                    here.write_well(wanted, *sorted(here.driver.routes().keys() - wanted.keys()))
                case "hear":
                    here.until(lambda: True)
        for port in PORTS:
            here.far.set_up(port, True)
            here.here.set_up(port, True)
        here.until(lambda: all(here.driver.ports().values()))
        here.write_well(wanted)

        assert here.driver.routes() == dict(sorted(wanted.items()))
        assert here.books_hold()


def test_a_driver_of_another_namespace_leaves_its_process_at_home() -> None:
    home = os.readlink("/proc/thread-self/ns/net")
    with bench() as here:
        here.write_well({A: (E1,)})
        here.driver.missing()
        assert os.readlink("/proc/thread-self/ns/net") == home


# --- the tests' own promise -----------------------------------------------------------------------------------------------
MAKER = """
import sys
sys.path.insert(0, sys.argv[1])
from kernel.namespaces import Namespace
with Namespace() as one:
    print(one.path, flush=True)
    sys.stdin.read()
"""


def test_namespaces_go_with_the_process_that_made_them_even_if_it_is_killed() -> None:
    program = [sys.executable, "-c", MAKER, str(Path(__file__).parents[1])]
    maker = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    holder = Path(maker.stdout.readline().strip())
    assert holder.exists()
    descriptor = os.pidfd_open(int(holder.parts[2]))

    maker.kill()
    maker.communicate()

    # Readable when the holder has ended.
    assert select.select([descriptor], [], [], 20)[0] == [descriptor]
    os.close(descriptor)


# --- backups --------------------------------------------------------------------------------------------------------------
def shown(here: Bench) -> list[str]:
    """Return our rules, and what is in our tables and behind our routes."""
    asked = ("-4 rule", "-6 rule", *(f"{family} route show table all proto {PROTOCOL}" for family in ("-4", "-6")))
    lines = [line for command in asked for line in here.here(f"ip {command}").splitlines()]
    return sorted(
        line.strip() for line in lines if "22900" in line or "384198" in line or f"metric {METRIC + 1}" in line
    )


BACKUPS = Backups({A: (E3,)}, {port: (port,) for port in PORTS})


async def test_backups_rules_and_tables_taken_away_by_others_come_back() -> None:
    with bench() as here, structlog.testing.capture_logs() as logs:
        here.driver.watch(asyncio.get_running_loop())
        assert here.driver.write(WriteRoutes(1, {A: (E1,), B: (E1, E2)}, (), BACKUPS)) == RoutesWritten(1, is_ok=True)
        async with asyncio.timeout(20):
            await turn_until(lambda: len([line for line in shown(here) if line.startswith("22900")]) == 4)
            before = shown(here)
            here.here("ip rule del priority 22900")
            here.here(f"ip route del 10.1.0.0/24 metric {METRIC + 1}")
            here.here("ip -6 route del fd02::/64 table 3841982465")
            assert shown(here) != before
            await turn_until(lambda: shown(here) == before)
        assert {entry["event"] for entry in logs if "by_others" in entry["event"]} == {
            "kernel_rule_removed_by_others",
            "kernel_routes_removed_by_others",
        }


async def test_a_backup_that_acts_is_nobody_elses_doing() -> None:
    with bench() as here, structlog.testing.capture_logs() as logs:
        here.driver.watch(asyncio.get_running_loop())
        here.driver.write(WriteRoutes(1, {A: (E1,)}, (), BACKUPS))
        async with asyncio.timeout(20):
            here.far.set_up("e1", False)
            await turn_until(lambda: here.told == [("e1", False)])
            assert here.served("10.1.0.0/24") == here.served("fd01::/64") == ("e3",)
            here.far.set_up("e3", False)
            await turn_until(lambda: here.told[-1:] == [("e3", False)])
            assert here.served("10.1.0.0/24") == here.served("fd01::/64") == ()
            here.far.set_up("e3", True)
            await turn_until(lambda: here.served("fd01::/64") == ("e3",))
            here.far.set_up("e1", True)
            await turn_until(lambda: here.served("fd01::/64") == ("e1",))
            await turn_until(lambda: here.driver._repair is None)
        assert [entry for entry in logs if "by_others" in entry["event"]] == []


def test_a_backup_that_the_kernel_refuses_is_told_once_and_costs_no_route(here: Bench) -> None:
    here.here(f"ip route add 10.1.0.0/24 dev e2 proto 11 metric {METRIC + 1}")
    with structlog.testing.capture_logs() as logs:
        assert here.driver.write(WriteRoutes(1, {A: (E1,)}, (), BACKUPS)) == RoutesWritten(1, is_ok=True)
        assert here.driver.write(WriteRoutes(2, {B: (E1,)}, ())) == RoutesWritten(2, is_ok=True)

    assert (here.served("10.1.0.0/24"), here.served("10.2.0.0/24")) == (("e1",), ("e1",))
    assert len([line for line in shown(here) if line.startswith("fd01::/64 ")]) == 1
    assert [entry["reason"] for entry in logs if entry["event"] == "kernel_backup_refused"] == [
        "backup of 10.1.0.0/24 in table 254: File exists"
    ]
    assert "dev e2" in here.here("ip route show 10.1.0.0/24 proto 11")


def test_a_dry_run_writes_no_backup(here: Bench) -> None:
    here.restart(is_dry_run=True)
    with structlog.testing.capture_logs() as logs:
        here.driver.write(WriteRoutes(1, {A: (E1,), B: (E1, E2)}, (), BACKUPS))

    assert shown(here) == []
    assert any(entry.get("would", "").startswith("ip -6 rule add iif e1") for entry in logs)
