"""One node on a real kernel: three ports, each wired to the same far namespace, and its driver."""

import json
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from erfs.addressing import Addressing, NodeAddressing, link_local_of, planned_mac
from erfs.aio.namespaces import inside
from erfs.ids import DestinationId
from erfs.messages import Member
from erfs_agent.core import RoutesWritten, WriteRoutes
from erfs_agent.drivers.linux import LinuxDriver
from erfs_agent.drivers.netlink import Raw, split

from .namespaces import Namespace, wire

PROTOCOL, METRIC = 229, 10
NEIGHBOURS = 3  # RTNLGRP_NEIGH
PORTS = ("e1", "e2", "e3")
E1, E2, E3 = (Member(port=port) for port in PORTS)
A, B = DestinationId("@a"), DestinationId("@b")
DESTINATIONS = {"@a": ["10.1.0.0/24", "fd01::/64"], "@b": ["10.2.0.0/24", "fd02::/64", "fd03::/64"]}


def mac(port: str) -> str:
    return planned_mac(f"leaf:{port}")


def far_mac(port: str) -> str:
    return planned_mac(f"far:{port}")


class Bench:
    """The node, what is at the other end of its cables, its driver and what that has told."""

    def __init__(self, here: Namespace, far: Namespace, *, numbered: bool) -> None:
        self.here, self.far = here, far
        ports = {
            port: {
                "device": port,
                "next_hops": [str(link_local_of(far_mac(port))), *([f"10.9.{place}.1"] if numbered else [])],
            }
            for place, port in enumerate(PORTS)
        }
        self.node = NodeAddressing.model_validate({"is_forwarding": True, "ports": ports})
        self.addressing = Addressing.model_validate({"destinations": DESTINATIONS, "nodes": {"leaf": self.node}})
        self.told: list[tuple[str, bool]] = []
        self.driver = self.new_driver()
        self._change = 0

    def new_driver(self, **options: Any) -> LinuxDriver:
        given = {"protocol": PROTOCOL, "metric": METRIC, "namespace": self.here.path} | options
        driver = LinuxDriver(self.addressing, self.node, **given)
        driver.on_port = lambda port, oper_up: self.told.append((port, oper_up))
        return driver

    def restart(self, **options: Any) -> None:
        self.driver.close()
        self.driver = self.new_driver(**options)

    def write(self, routes: dict[DestinationId, tuple[Member, ...]], *removed: DestinationId) -> RoutesWritten:
        self._change += 1
        return self.driver.write(WriteRoutes(self._change, routes, removed))

    def write_well(self, routes: dict[DestinationId, tuple[Member, ...]], *removed: DestinationId) -> None:
        assert self.write(routes, *removed) == RoutesWritten(self._change, is_ok=True)

    def until(self, condition: Callable[[], object]) -> None:
        """Serve the kernel's events until *condition* holds."""
        deadline = time.monotonic() + 20
        self.driver.read_events()
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            select.select([self.driver.event_fileno()], [], [], 0.05)
            self.driver.read_events()

    def cut(self, port: str) -> None:
        """Take the carrier of *port* away, and wait until the driver has heard."""
        self.far.set_up(port, False)
        self.until(lambda: not self.driver.ports()[port])

    def mend(self, port: str) -> None:
        self.far.set_up(port, True)
        self.until(lambda: self.driver.ports()[port])

    # --- what the kernel has, read with another program ------------------------------------------------------------------
    def objects(self) -> dict[int, dict[str, Any]]:
        found = json.loads(self.here("ip -j -d nexthop show") or "[]")
        return {entry["id"]: entry for entry in found if entry.get("protocol") == str(PROTOCOL)}

    def route(self, prefix: str) -> dict[str, Any] | None:
        """Return our route to *prefix*."""
        family = "-6" if ":" in prefix else "-4"
        found = json.loads(self.here(f"ip {family} -j -d route show {prefix} proto {PROTOCOL}") or "[]")
        return found[0] if found else None

    def served(self, prefix: str) -> tuple[str, ...] | None:
        """Return the interfaces by which *prefix* leaves, () if it is dropped, None if there is no route of ours."""
        route = self.route(prefix)
        if route is None:
            return None
        objects = self.objects()
        members = [objects[member["id"]] for member in objects[route["nhid"]]["group"]]
        return tuple(member["dev"] for member in members if "blackhole" not in member)

    def books_hold(self) -> bool:
        """Return whether the driver believes what another driver that starts now would read."""
        other = self.new_driver()
        try:
            return other.routes() == self.driver.routes() and other.ports() == self.driver.ports()
        finally:
            other.close()


class Ear:
    """Hears what the kernel of a namespace tells from now on; each change is told before the call that makes it returns."""

    def __init__(self, here: Namespace, *groups: int) -> None:
        with inside(here.path):
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
            )
        self._socket.bind((0, sum(1 << (group - 1) for group in groups)))

    def heard(self) -> list[Raw]:
        """Return the messages since the last call."""
        found: list[Raw] = []
        while True:
            try:
                found += split(self._socket.recv(1 << 16))
            except BlockingIOError:
                return found


@contextmanager
def bench(*, numbered: bool = False) -> Iterator[Bench]:
    with Namespace() as here, Namespace() as far:
        for port in PORTS:
            wire(here, port, mac(port), far, port, far_mac(port))
        found = Bench(here, far, numbered=numbered)
        try:
            # The kernel tells carriers a moment after both ends are up.
            found.until(lambda: all(found.driver.ports().values()))
            found.told.clear()
            yield found
        finally:
            found.driver.close()
