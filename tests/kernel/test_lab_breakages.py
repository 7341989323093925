"""What is broken in a lab is broken, as packets and the kernel's own words tell, only there, and ends by itself."""

import asyncio
import contextlib
import json
import select
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from erfs.addressing import plan_addresses
from erfs.aio.namespaces import inside
from erfs.fabric import LinkEnd
from erfs.faults import Fault, FaultKind
from erfs.generators import generate
from erfs.ids import NodeId
from erfs.messages import CONTROLLER
from erfs.units import PPM, SECOND
from erfs_scenario.kernel.breakages import LEASE_NS, CutOff, Frozen, Killed, PortsDown, Silence, Slow
from erfs_scenario.kernel.faults import Several, breakage_of
from erfs_scenario.kernel.members import BROKER, Members
from erfs_scenario.kernel.spaces import Spaces
from erfs_scenario.kernel.underlay import PROTOCOL
from erfs_scenario.kernel.wiring import BUS_ADDRESS
from erfs_scenario.plan import Timers

FABRIC = generate("leaf-spine", {"leaves": 2, "spines": 2, "hosts_per_leaf": 1})
LEAF0, SPINE0 = NodeId("leaf0"), NodeId("spine0")
CABLE = next(link for link in FABRIC.trunks if {link.a.node, link.b.node} == {LEAF0, SPINE0})
OTHER = next(link for link in FABRIC.trunks if {link.a.node, link.b.node} == {LEAF0, NodeId("spine1")})
UDP_PORT = 4000
SENT = 2000
RUNNING = 64
# Python has no name for it: more than the limit for ordinary users.
SO_RCVBUFFORCE = 33


@pytest.fixture(scope="module")
def spaces() -> Iterator[Spaces]:
    with contextlib.closing(Spaces(FABRIC, plan_addresses(FABRIC))) as made:
        yield made


class Wire:
    """Datagrams over one cable in one direction, to whoever is at the other end."""

    def __init__(self, spaces: Spaces, near: LinkEnd) -> None:
        far = FABRIC.link_at[near].other_end(near)
        with inside(spaces.path(near.node)):
            self._outlet = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            index = socket.if_nametoindex(spaces.device(near))
        self._outlet.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        # Else whoever listens for the other direction would hear it too.
        self._outlet.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
        self._to = ("ff02::1", UDP_PORT, 0, index)
        with inside(spaces.path(far.node)):
            self._inlet = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            self._inlet.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, spaces.device(far).encode())
        self._inlet.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        self._inlet.bind(("::", UDP_PORT))

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self._outlet.close()
        self._inlet.close()

    def send(self, count: int, size: int = 8) -> None:
        for _ in range(count):
            self._outlet.sendto(bytes(size), self._to)

    def arrived(self, count: int, within_s: float = 10) -> int:
        """Return how many have arrived, as soon as *count* have, or when nothing came for so long."""
        found = 0
        while found < count and select.select([self._inlet], [], [], within_s)[0]:
            self._inlet.recv(2048)
            found += 1
        return found

    def works(self) -> bool:
        with contextlib.suppress(OSError):
            self.send(1)
            return self.arrived(1, 1) == 1
        return False


@contextlib.asynccontextmanager
async def lasting(breakage: Silence) -> AsyncIterator[Silence]:
    await breakage.begin()
    try:
        yield breakage
    finally:
        await breakage.end()


async def until(condition: Callable[[], bool], within_s: float = 10) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            turn = asyncio.Event()
            asyncio.get_running_loop().call_later(0.01, turn.set)
            await turn.wait()


@pytest.mark.parametrize("end", CABLE.ends, ids=["a", "b"])
async def test_a_port_set_down_takes_the_carrier_of_its_far_end_alone(spaces: Spaces, end: LinkEnd) -> None:
    far = CABLE.b if end == CABLE.a else CABLE.a
    cut = PortsDown(spaces, [end])
    assert (cut.is_in_effect(), cut.is_over()) == (False, True)

    await cut.begin()

    assert (cut.is_in_effect(), cut.is_over()) == (True, False)
    # The far end is still wanted up, and has no carrier.
    assert spaces.flags(far) & (1 | RUNNING) == 1
    assert all(spaces.flags(one) & RUNNING for one in OTHER.ends)

    await cut.end()

    await until(cut.is_over)
    with Wire(spaces, end) as wire:
        await until(wire.works)


async def test_a_silent_direction_drops_everything_and_keeps_the_carrier_and_the_other_direction(
    spaces: Spaces,
) -> None:
    with Wire(spaces, CABLE.a) as there, Wire(spaces, CABLE.b) as back:
        await until(there.works)
        await until(back.works)
        async with lasting(Silence(spaces, [CABLE.b])) as silence:
            assert (silence.is_in_effect(), silence.is_over()) == (True, False)
            before = silence.dropped()
            there.send(SENT)
            # Neighbour discovery may add to them.
            await until(lambda: silence.dropped() >= before + SENT)
            assert there.arrived(1, 0) == 0
            assert back.works()
            assert all(spaces.flags(end) & RUNNING for end in CABLE.ends)
        assert silence.is_over()
        assert there.works()


async def test_both_directions_can_be_silent(spaces: Spaces) -> None:
    with Wire(spaces, CABLE.a) as there, Wire(spaces, CABLE.b) as back:
        async with lasting(Silence(spaces, CABLE.ends)) as silence:
            there.send(10)
            back.send(10)
            await until(lambda: silence.dropped() >= 20)
            assert (there.arrived(1, 0), back.arrived(1, 0)) == (0, 0)


async def test_a_drop_that_its_owner_renews_outlives_the_lease_without_a_gap_and_one_that_nobody_renews_does_not(
    spaces: Spaces,
) -> None:
    with Wire(spaces, CABLE.a) as there:
        await until(there.works)
        async with lasting(Silence(spaces, [CABLE.b])) as silence:
            began = time.monotonic()
            while time.monotonic() - began < LEASE_NS / SECOND * 1.5:
                there.send(1)
                await asyncio.wait([asyncio.ensure_future(until(lambda: True))])
            assert there.arrived(1, 0) == 0

            await silence.forget()

            forgotten = time.monotonic()
            await until(there.works, LEASE_NS / SECOND + 2)
            assert time.monotonic() - forgotten <= LEASE_NS / SECOND + 1
            assert silence.is_over()


async def test_random_loss_is_of_the_share_asked_for(spaces: Spaces) -> None:
    """Of 2,000 at 30 %, 600 are lost; five standard deviations are 102."""
    with Wire(spaces, CABLE.a) as there:
        await until(there.works)
        async with lasting(Silence(spaces, [CABLE.b], loss_ppm=300_000)) as loss:
            assert loss.is_in_effect()
            there.send(SENT)
            lost = loss.dropped()
            assert 498 <= lost <= 702
            assert there.arrived(SENT - lost) >= SENT - lost - 5
    assert PPM == 1_000_000


async def test_a_slow_direction_lets_through_what_its_rate_allows(spaces: Spaces) -> None:
    with Wire(spaces, CABLE.a) as there:
        await until(there.works)
        slow = Slow(spaces, CABLE.a, rate_bps=1_000_000)
        assert (slow.is_in_effect(), slow.is_over()) == (False, True)
        await slow.begin()
        assert (slow.is_in_effect(), slow.is_over()) == (True, False)
        began = time.monotonic()
        there.send(200, size=1000)
        arrived = there.arrived(200, 0.5)
        took = time.monotonic() - began
        await slow.end()
        assert slow.is_over()
    # 200 kB; the bucket holds 33 kB and its queue 6 kB, and 125 kB pass in a second.
    assert 20 <= arrived <= 45 + 125 * took


async def test_a_node_cut_off_the_bus_is_cut_off_alone_and_nobody_is_told(spaces: Spaces) -> None:
    listening = {}
    with inside(spaces.path(None)):
        inlet = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        inlet.bind((str(BUS_ADDRESS), UDP_PORT))
    for node in (LEAF0, SPINE0):
        with inside(spaces.path(node)):
            listening[node] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            listening[node].connect((str(BUS_ADDRESS), UDP_PORT))

    def reaches(node: NodeId) -> bool:
        listening[node].send(node.encode())
        return bool(select.select([inlet], [], [], 0.3)[0]) and inlet.recv(99) == node.encode()

    await until(lambda: reaches(LEAF0))
    cut = CutOff(spaces, [LEAF0])
    await cut.begin()
    assert (cut.is_in_effect(), cut.is_over()) == (True, False)
    assert (reaches(LEAF0), reaches(SPINE0)) == (False, True)
    assert '"operstate":"UP"' in spaces.run(LEAF0, ("ip", "-j", "link", "show", "mgmt0"))
    await cut.end()
    assert cut.is_over()
    assert reaches(LEAF0)
    for sock in (inlet, *listening.values()):
        sock.close()


async def test_a_bus_in_band_goes_with_the_last_port_that_carries_it_and_comes_back_with_it(tmp_path: Path) -> None:
    """The kernel removes a route whose last port is set down; setting it up brings back the routes as they were, and no other."""
    leaf1 = NodeId("leaf1")
    both = [end for link in FABRIC.trunks for end in link.ends if end.node == leaf1]
    with contextlib.closing(Spaces(FABRIC, plan_addresses(FABRIC), is_bus_in_band=True)) as made:
        host, address = made.wiring.bus_host, str(made.wiring.bus_address)
        assert host == "leaf0-host0"
        with inside(made.path(None)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as inlet:
            inlet.bind((address, UDP_PORT))

            def reaches() -> bool:
                with inside(made.path(leaf1)), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outlet:
                    with contextlib.suppress(OSError):
                        outlet.sendto(b"here", (address, UDP_PORT))
                    if not select.select([inlet], [], [], 0.3)[0]:
                        return False
                    assert inlet.recvfrom(99)[1][0] == str(made.wiring.management[leaf1])
                    return True

            def routes(node: NodeId) -> set[str]:
                shown = made.run(node, ("ip", "-j", "route", "show", "proto", str(PROTOCOL)))
                return {route["dst"] for route in json.loads(shown)}

            dead = Fault("dead", FaultKind.NODE_DOWN, 0, SECOND, nodes=(leaf1,))
            power = breakage_of(
                dead, [link.id for link in FABRIC.links_of[leaf1]], made, Members(made, tmp_path, timers=Timers())
            )
            assert isinstance(power, Several)
            assert [type(part) for part in power.parts] == [PortsDown, Killed]

            await until(reaches)
            before = routes(leaf1)
            one = PortsDown(made, both[:1])
            await one.begin()
            await until(one.is_in_effect)
            assert routes(leaf1) >= {str(made.wiring.management[host])}
            assert all(reaches() for _ in range(8))
            other = PortsDown(made, both[1:])
            await other.begin()
            await until(other.is_in_effect)
            assert (reaches(), str(made.wiring.management[host]) in routes(leaf1)) == (False, False)
            await other.end()
            await one.end()
            await until(one.is_over)
            await until(reaches)
            assert routes(leaf1) == before


async def test_programs_are_killed_and_frozen_and_come_back(spaces: Spaces, tmp_path: Path) -> None:
    with inside(spaces.path(None)):
        members = Members(spaces, tmp_path / "run", timers=Timers(session_interval_ns=0))
        members.write_files()
        await members.start_broker()
        await members.start_controller()
        await members.start_agent(LEAF0)
        try:
            pids = {name: child.pid for name, child in members.running.items()}
            frozen = Frozen(members, [CONTROLLER, LEAF0])
            await frozen.begin()
            await until(frozen.is_in_effect)
            assert not Frozen(members, [BROKER]).is_in_effect()
            await frozen.end()
            await until(frozen.is_over)

            killed = Killed(members, [BROKER, LEAF0])
            assert (killed.is_in_effect(), killed.is_over()) == (False, True)
            await killed.begin()
            assert (killed.is_in_effect(), killed.is_over()) == (True, False)
            members.check()
            await killed.end()
            assert killed.is_over()
            assert {name for name, child in members.running.items() if child.pid != pids[name]} == {BROKER, LEAF0}

            await frozen.begin()
        finally:
            await members.stop()
        assert not any(child.is_running for child in members.running.values())
