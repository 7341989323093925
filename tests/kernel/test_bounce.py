"""A pod on a real kernel whose agents are dead: the kernels alone send around a lost link, once, and leave others' things alone.

Two edge and two aggregation switches, a host on each edge, and programs of the path engine written by drivers that are then closed.
"""

import json
import re
import select
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from erfs.addressing import Addressing, link_local_of, planned_mac
from erfs.aio.namespaces import inside
from erfs.fabric import Fabric, Medium
from erfs.ids import NodeId
from erfs.messages import Program
from erfs.paths import Topology, compute
from erfs_agent.core import RoutesWritten, WriteRoutes
from erfs_agent.drivers.linux import LinuxDriver
from erfs_agent.forwarding import NO_BACKUPS, Backups, CompiledProgram
from tests.paths.fabrics import Draft

from .bench import METRIC, PROTOCOL
from .namespaces import Namespace, wire

SWITCHES = ("edge0", "edge1", "agg0", "agg1")
HOSTS = ("h0", "h1")
ADDRESS = {"h0": ("10.64.0.1", "fd5e::1"), "h1": ("10.64.1.1", "fd5e:0:0:1::1")}
FLOWS = 24


def pod() -> Fabric:
    draft = Draft(Medium.LOSSY)
    edges = [draft.switch("edge0", 1), draft.switch("edge1", 1)]
    aggs = [draft.switch("agg0", 2), draft.switch("agg1", 2)]
    for edge in edges:
        for agg in aggs:
            draft.cable(edge, agg)
    for host, edge in zip(HOSTS, edges, strict=True):
        draft.host(host, edge)
    return draft.fabric()


class Pod:
    """The namespaces, their wires, and one driver for each switch and host."""

    def __init__(self, spaces: dict[str, Namespace]) -> None:
        self.spaces = spaces
        self.fabric = pod()
        nodes: dict[str, dict[str, object]] = {name: {} for name in spaces}
        for link in self.fabric.links.values():
            for end in link.ends:
                far = link.far_end(end.node)
                peer = link_local_of(planned_mac(f"{far.node}:{far.port}"))
                nodes[end.node][end.port] = {"device": end.port, "next_hops": [str(peer)]}
            a, b = link.a, link.b
            macs = [planned_mac(f"{end.node}:{end.port}") for end in (a, b)]
            wire(spaces[a.node], a.port, macs[0], spaces[b.node], b.port, macs[1])
        self.addressing = Addressing.model_validate(
            {
                "destinations": {
                    "*": ["10.64.0.0/16", "fd5e::/32"],
                    "@edge0": ["10.64.0.0/24", "fd5e::/64"],
                    "@edge1": ["10.64.1.0/24", "fd5e:0:0:1::/64"],
                    "@edge0/h0": ["10.64.0.1/32", "fd5e::1/128"],
                    "@edge1/h1": ["10.64.1.1/32", "fd5e:0:0:1::1/128"],
                },
                "nodes": {name: {"is_forwarding": name in SWITCHES, "ports": ports} for name, ports in nodes.items()},
            }
        )
        self.programs = compute(Topology(self.fabric), unusable=frozenset()).programs
        for host, (four, six) in ADDRESS.items():
            spaces[host](f"ip addr add {four}/32 dev lo")
            spaces[host](f"ip -6 addr add {six}/128 dev lo nodad")

    def driver(self, node: str) -> LinuxDriver:
        space = self.spaces[node]
        options = {"protocol": PROTOCOL, "metric": METRIC, "namespace": space.path}
        return LinuxDriver(self.addressing, self.addressing.nodes[NodeId(node)], **options)  # type: ignore[arg-type]

    def write(self, node: str, backups: Backups | None = None) -> None:
        """Write the program of *node* with its backups or with *backups*, as an agent that then dies."""
        program: Program = self.programs[NodeId(node)]
        compiled = CompiledProgram(program)
        driver = self.driver(node)
        try:
            deadline = time.monotonic() + 20
            while not all(driver.ports().values()):
                assert time.monotonic() < deadline
                select.select([driver.event_fileno()], [], [], 0.05)
                driver.read_events()
            wanted = compiled.backups if backups is None else backups
            assert driver.write(WriteRoutes(1, compiled.plain, (), wanted)) == RoutesWritten(1, is_ok=True)
            driver.watch(_Loop())  # type: ignore[arg-type]  # hands the neighbours to the kernel
            assert driver.missing() == []
        finally:
            driver.close()

    def port(self, node: str, far: str) -> str:
        return next(
            end.port
            for link in self.fabric.links.values()
            for end in link.ends
            if end.node == node and link.far_end(end.node).node == far
        )

    def received(self, node: str, port: str) -> int:
        with inside(self.spaces[node].path):
            found = json.loads(subprocess.check_output(["ip", "-j", "-s", "link", "show", port], timeout=20))
        return int(found[0]["stats64"]["rx"]["packets"])


class _Loop:
    """Enough of a loop for a driver that is closed at once."""

    def add_reader(self, *_: object) -> None: ...
    def remove_reader(self, *_: object) -> None: ...

    def call_later(self, *_: object) -> "_Loop":
        return self

    def cancel(self) -> None: ...


@contextmanager
def a_pod(*, has_backups: bool = True) -> Iterator[Pod]:
    with ExitStack() as stack:
        spaces = {name: stack.enter_context(Namespace()) for name in (*SWITCHES, *HOSTS)}
        for name, space in spaces.items():
            space.sysctl("net/ipv4/conf/all/rp_filter", "0")
            space.sysctl("net/ipv4/conf/default/rp_filter", "0")
            space.sysctl("net/ipv4/fib_multipath_hash_policy", "1")
            space.sysctl("net/ipv6/fib_multipath_hash_policy", "1")
            if name in SWITCHES:
                space.sysctl("net/ipv4/ip_forward", "1")
                space.sysctl("net/ipv6/conf/all/forwarding", "1")
        found = Pod(spaces)
        for name in spaces:
            found.write(name, None if has_backups else NO_BACKUPS)
        yield found


def exchange(here: Pod, family: int, *, hop_limit: int = 64, rounds: int = 1) -> set[int]:
    """Send one datagram of each of `FLOWS` flows from h0 to h1, *rounds* times; return the flows that arrived."""
    place = 0 if family == socket.AF_INET else 1
    with inside(here.spaces["h1"].path):
        ear = socket.socket(family, socket.SOCK_DGRAM)
    with inside(here.spaces["h0"].path):
        mouths = [socket.socket(family, socket.SOCK_DGRAM) for _ in range(FLOWS)]
    with ear:
        ear.bind((ADDRESS["h1"][place], 7000))
        ear.setblocking(False)
        for _ in range(rounds):
            for flow, mouth in enumerate(mouths):
                mouth.bind((ADDRESS["h0"][place], 0)) if mouth.getsockname()[1] == 0 else None
                level, option = (
                    (socket.IPPROTO_IP, socket.IP_TTL)
                    if family == socket.AF_INET
                    else (socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS)
                )
                mouth.setsockopt(level, option, hop_limit)
                mouth.sendto(struct.pack("=I", flow), (ADDRESS["h1"][place], 7000))
        found: set[int] = set()
        while select.select([ear], [], [], 0.5)[0] and len(found) < FLOWS:
            found.add(struct.unpack("=I", ear.recv(64))[0])
        for mouth in mouths:
            mouth.close()
    return found


def everything(space: Namespace) -> str:
    """Return all rules, routes and objects of a namespace, without counts and ages."""
    shown = [space(f"ip {family} {what}") for family in ("-4", "-6") for what in ("rule", "route show table all")]
    return re.sub(r"expires \S+", "", "\n".join([*shown, space("ip nexthop show")]))


FAMILIES = [socket.AF_INET, socket.AF_INET6]
ALL = set(range(FLOWS))


@pytest.mark.parametrize("family", FAMILIES, ids=["ipv4", "ipv6"])
def test_with_every_agent_dead_a_lost_link_loses_no_flow_and_no_packet_passes_a_link_twice(family: int) -> None:
    with a_pod() as here:
        assert exchange(here, family) == ALL
        here.spaces["edge1"].set_up(here.port("edge1", "agg0"), False)
        before = here.received("agg0", here.port("agg0", "edge0")), here.received("agg1", here.port("agg1", "edge0"))

        assert exchange(here, family) == ALL

        # Up to agg0, back, up to agg1, down, out: a hop limit of six is the fifth router's last.
        assert exchange(here, family, hop_limit=6) == ALL
        by_agg0 = here.received("agg0", here.port("agg0", "edge0")) - before[0]
        by_agg1 = here.received("agg1", here.port("agg1", "edge0")) - before[1]
        # Some neighbour discovery and nothing else beside the datagrams: each comes to agg0 once at most, and to agg1 just once.
        assert 2 <= by_agg0 < 2 * FLOWS + 20
        assert 2 * FLOWS <= by_agg1 < 2 * FLOWS + 20


@pytest.mark.parametrize("family", FAMILIES, ids=["ipv4", "ipv6"])
def test_without_backups_the_flows_by_the_lost_link_are_lost(family: int) -> None:
    with a_pod(has_backups=False) as here:
        assert exchange(here, family) == ALL
        here.spaces["edge1"].set_up(here.port("edge1", "agg0"), False)

        assert set() < exchange(here, family) < ALL


def test_without_its_rule_the_neighbour_sends_packets_back(tmp_path: Path) -> None:
    """What the rules are for: the same backups without them circle."""
    with a_pod() as here:
        compiled = CompiledProgram(here.programs[NodeId("edge0")])
        here.write("edge0", Backups(compiled.backups.routes, {}))
        here.spaces["edge1"].set_up(here.port("edge1", "agg0"), False)

        assert set() < exchange(here, socket.AF_INET) < ALL


def test_everything_goes_when_nobody_wants_it_and_what_is_others_stays() -> None:
    with a_pod(has_backups=False) as here:
        space = here.spaces["edge0"]
        port = here.port("edge0", "agg0")
        for command in (
            f"ip rule add iif {port} lookup 77 priority 22900",
            f"ip -6 rule add iif {port} lookup 77 priority 22901 protocol {PROTOCOL}",
            f"ip rule add iif {port} lookup 3841982470 priority 22900 protocol 11",
            f"ip route add 10.64.1.0/24 dev lo metric {METRIC + 1} table 77",
            f"ip route add 10.64.1.0/24 dev lo metric {METRIC + 1}",
            "ip route add 10.99.0.0/24 dev lo table 3841982465",
        ):
            space(command)
        before = everything(space)

        here.write("edge0")
        assert everything(space) != before
        assert space("ip rule").count("22900:") == 4
        here.write("edge0", NO_BACKUPS)

        assert everything(space) == before


def test_a_second_start_writes_nothing() -> None:
    with a_pod() as here:
        before = {name: everything(here.spaces[name]) for name in SWITCHES}
        for name in SWITCHES:
            here.write(name)

        assert {name: everything(here.spaces[name]) for name in SWITCHES} == before
        assert "lookup 3841982465" in before["edge0"] or "lookup 3841982466" in before["edge0"]


def test_an_agent_that_empties_its_route_leaves_it_to_the_backup_and_one_without_backup_drops() -> None:
    with a_pod() as here:
        compiled = CompiledProgram(here.programs[NodeId("agg0")])
        name = next(destination for destination in compiled.plain if destination == "@edge1")
        here.spaces["edge1"].set_up(here.port("edge1", "agg0"), False)
        driver = here.driver("agg0")
        try:
            driver.write(WriteRoutes(1, {**compiled.plain, name: ()}, (), compiled.backups))
            assert exchange(here, socket.AF_INET) == ALL
            assert here.spaces["agg0"](f"ip route show 10.64.1.0/24 metric {METRIC}") == ""

            without = {key: ports for key, ports in compiled.backups.routes.items() if key != name}
            driver.write(WriteRoutes(2, {}, (), Backups(without, compiled.backups.no_return)))
            assert "10.64.1.0/24" in here.spaces["agg0"](f"ip route show 10.64.1.0/24 metric {METRIC}")
            assert set() < exchange(here, socket.AF_INET) < ALL

            driver.write(WriteRoutes(3, {}, (), compiled.backups))
            assert exchange(here, socket.AF_INET) == ALL
        finally:
            driver.close()
