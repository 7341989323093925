"""Sessions over real sockets on loopback: they come up, see a lost direction from both ends, and cost no false alarm."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from random import Random

import pytest

from erfs.aio.memory import MemoryBroker, MemoryBus
from erfs.errors import Bug
from erfs.ids import LinkId, NodeId
from erfs.messages import DownFact, PortBinding, decode
from erfs.ports import Incoming, Mark
from erfs.topics import Channel, Topics
from erfs.units import MS, SECOND
from erfs_agent.aio import sessions as shell
from erfs_agent.aio.runtime import AgentRuntime
from erfs_agent.aio.sessions import Arrivals, UdpSessions, Wire, open_wire
from erfs_agent.core import AgentCore, AgentTimers
from erfs_agent.drivers.simulated import SimulatedDriver
from erfs_agent.probing import (
    DownReason,
    Received,
    SessionCommand,
    SessionDown,
    SessionEnd,
    SessionEvent,
    Sessions,
    SessionTiming,
    SessionUp,
    discriminator,
)
from erfs_agent.session_packet import ControlPacket, SessionState, encode

LEAF, SPINE = NodeId("leaf1"), NodeId("spine1")
# Slower than the default: what is tested here is the way of the packets, on a machine that may be busy with other tests.
TIMING = SessionTiming(interval_ns=20 * MS, multiplier=10, slow_start_ns=20 * MS)


def binding(port: str, far_end: NodeId) -> PortBinding:
    return PortBinding(port=port, link=LinkId(f"leaf1:{port}|spine1:{port}"), far_end=far_end)


def addresses(count: int) -> list[tuple[str, int]]:
    """Return *count* free UDP ports of loopback."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname() for one in sockets]


class Node:
    """One node's sessions, and what they said."""

    def __init__(self, node: NodeId, far_end: NodeId, wires: dict[str, Wire], timing: SessionTiming = TIMING) -> None:
        ends = [SessionEnd(binding(port, far_end), timing) for port in wires]
        self.core = Sessions(node, ends, Random(1))
        self.marks: list[Mark] = []
        self.said: list[SessionUp | SessionDown] = []
        self.batch_count = 0
        self.udp = UdpSessions(self.core, wires, on_mark=lambda mark, _: self.marks.append(mark), wall_ns=self.wall_ns)
        self.udp.on_change = self.said.append

    def wall_ns(self) -> int:
        """Read at the beginning of each batch of packets."""
        self.batch_count += 1
        return time.time_ns()

    def is_up(self) -> bool:
        return all(self.core.state_of(port) is SessionState.UP for port in self.udp.ports)


class Relay:
    """The cable: passes packets on in each direction that is not cut."""

    def __init__(self, *, hop_limit: int = 255) -> None:
        self.near, self.far, self.to_near, self.to_far = addresses(4)
        self.is_cut = {self.to_near: False, self.to_far: False}
        self._sockets: list[socket.socket] = []
        loop = asyncio.get_running_loop()
        for address in (self.to_near, self.to_far):
            one = socket.socket(type=socket.SOCK_DGRAM)
            one.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, hop_limit)
            one.setblocking(False)
            one.bind(address)
            self._sockets.append(one)
        facing_near, facing_far = self._sockets
        loop.add_reader(facing_near, self._pass, facing_near, facing_far, self.far)
        loop.add_reader(facing_far, self._pass, facing_far, facing_near, self.near)

    def wires(self) -> tuple[dict[str, Wire], dict[str, Wire]]:
        return {"e1": Wire(self.near, self.to_near)}, {"e1": Wire(self.far, self.to_far)}

    def _pass(self, source: socket.socket, outlet: socket.socket, target: tuple[str, int]) -> None:
        payload = source.recv(128)
        if not self.is_cut[outlet.getsockname()]:
            outlet.sendto(payload, target)

    def close(self) -> None:
        for one in self._sockets:
            asyncio.get_running_loop().remove_reader(one)
            one.close()


async def until(condition: Callable[[], object]) -> None:
    """Let the loop go on until *condition* holds."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(20):
        while not condition():
            turn = asyncio.Event()
            loop.call_later(0.001, turn.set)
            await turn.wait()


def direct(count: int = 1) -> tuple[dict[str, Wire], dict[str, Wire]]:
    free = addresses(2 * count)
    pairs = list(zip(free[::2], free[1::2], strict=True))
    near = {f"e{index}": Wire(one, other) for index, (one, other) in enumerate(pairs)}
    far = {f"e{index}": Wire(other, one) for index, (one, other) in enumerate(pairs)}
    return near, far


@pytest.fixture
async def stack() -> AsyncIterator[ExitStack]:
    """Ends what the test began while its loop still runs."""
    with ExitStack() as found:
        yield found


def started(stack: ExitStack, *nodes: Node) -> None:
    for node in nodes:
        node.udp.start()
        stack.callback(node.udp.abandon)


async def test_a_lost_direction_is_seen_at_both_ends_and_healed_at_both(stack: ExitStack) -> None:
    relay = stack.enter_context(closing(Relay()))
    near, far = relay.wires()
    leaf, spine = Node(LEAF, SPINE, near), Node(SPINE, LEAF, far)
    started(stack, leaf, spine)
    await until(lambda: leaf.is_up() and spine.is_up())

    relay.is_cut[relay.to_near] = True
    await until(lambda: len(leaf.said) == len(spine.said) == 2)
    assert leaf.said == [SessionUp("e1"), SessionDown("e1", DownReason.SILENT)]
    assert spine.said == [SessionUp("e1"), SessionDown("e1", DownReason.NEIGHBOUR)]

    relay.is_cut[relay.to_near] = False
    await until(lambda: leaf.is_up() and spine.is_up())


async def test_a_packet_that_was_routed_here_counts_for_nothing(stack: ExitStack) -> None:
    relay = stack.enter_context(closing(Relay(hop_limit=254)))
    near, far = relay.wires()
    leaf, spine = Node(LEAF, SPINE, near), Node(SPINE, LEAF, far)
    started(stack, leaf, spine)
    await until(lambda: leaf.core.tally.refused["hop_limit"] >= 3)
    assert leaf.core.state_of("e1") is SessionState.DOWN
    assert leaf.said == []


async def test_an_end_that_stops_on_purpose_takes_nothing_down(stack: ExitStack) -> None:
    near, far = direct()
    leaf, spine = Node(LEAF, SPINE, near), Node(SPINE, LEAF, far)
    started(stack, leaf, spine)
    await until(lambda: leaf.is_up() and spine.is_up())
    spine.udp.stop()
    await until(lambda: not leaf.is_up())
    assert [mark.event for mark in leaf.marks] == ["session_up", "session_paused"]
    assert leaf.said == [SessionUp("e0")]


async def test_many_ends_are_read_at_each_waking_and_nobody_is_lost(stack: ExitStack) -> None:
    near, far = direct(32)
    timing = SessionTiming(interval_ns=10 * MS, multiplier=20, slow_start_ns=10 * MS)
    leaf, spine = Node(LEAF, SPINE, near, timing), Node(SPINE, LEAF, far, timing)
    started(stack, leaf, spine)
    await until(lambda: leaf.is_up() and spine.is_up())
    await until(lambda: leaf.core.watched == frozenset() == spine.core.watched)
    before, batches = leaf.core.tally.accepted, leaf.batch_count
    await until(lambda: leaf.core.tally.accepted > before + 32 * 100)
    # One packet of each end is read at a waking, not one waking had for each packet.
    assert (leaf.batch_count - batches) * 8 < 32 * 100
    assert [one for one in leaf.said + spine.said if isinstance(one, SessionDown)] == []


class Actor:
    """A spine's end of e0 by hand."""

    def __init__(self, stack: ExitStack) -> None:
        near, far = addresses(2)
        self.wires = {"e0": Wire(near, far)}
        self._socket = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 255)
        self._socket.bind(far)
        self._socket.connect(near)

    def say(self, state: SessionState, *, is_final: bool = False) -> None:
        link = binding("e0", SPINE).link
        packet = ControlPacket(
            state=state,
            my_discriminator=discriminator(link, SPINE),
            your_discriminator=0 if state is SessionState.DOWN else discriminator(link, LEAF),
            multiplier=3,
            desired_tx_us=100_000,
            required_rx_us=100_000,
            is_final=is_final,
        )
        self._socket.send(encode(packet))

    async def bring_up(self, leaf: Node) -> None:
        self.say(SessionState.DOWN)
        await until(lambda: leaf.core.state_of("e0") is SessionState.INIT)
        self.say(SessionState.UP)
        await until(leaf.is_up)
        self.say(SessionState.UP, is_final=True)
        await until(lambda: not leaf.core.watched)


async def test_a_session_that_leaves_up_is_watched_again(stack: ExitStack) -> None:
    """Each answer is read at once, although the leaf's own next packet, and with it its next waking, is 20 s away."""
    actor = Actor(stack)
    leaf = Node(LEAF, SPINE, actor.wires, SessionTiming(interval_ns=20 * MS, multiplier=3, slow_start_ns=40 * SECOND))
    started(stack, leaf)
    await actor.bring_up(leaf)
    await until(lambda: leaf.core.state_of("e0") is SessionState.DOWN)
    assert leaf.said == [SessionUp("e0"), SessionDown("e0", DownReason.SILENT)]
    await actor.bring_up(leaf)


async def test_packets_read_late_count_from_when_they_came_and_never_from_later_than_now(stack: ExitStack) -> None:
    actor = Actor(stack)
    leaf = Node(LEAF, SPINE, actor.wires, SessionTiming(interval_ns=100 * MS, multiplier=200))
    heard: list[tuple[int, int]] = []
    handle = leaf.core.handle

    def note(event: SessionEvent, now_ns: int) -> list[SessionCommand]:
        if isinstance(event, Received) and event.heard_ns is not None:
            heard.append((event.heard_ns, now_ns))
        return handle(event, now_ns)

    leaf.core.handle = note  # type: ignore[method-assign]
    started(stack, leaf)
    # The kernel begins to stamp a moment after the first socket asks for it, and says now instead.
    for _ in range(100):
        before = time.monotonic_ns()
        actor.say(SessionState.DOWN)
        after = time.monotonic_ns()
        while time.monotonic_ns() < after + 5 * MS:
            pass
        heard.clear()
        await until(lambda: heard)
        heard_ns, read_ns = heard[-1]
        assert before <= heard_ns + MS
        assert heard_ns <= read_ns
        if heard_ns <= after + MS:
            break
    else:
        pytest.fail("a packet always counts from when it was read")


async def test_what_waited_in_a_socket_is_all_there(stack: ExitStack) -> None:
    """A second's packets at 10 ms: a process that was not running for so long finds the last of them, too."""
    actor = Actor(stack)
    leaf = Node(LEAF, SPINE, actor.wires)
    started(stack, leaf)
    for _ in range(100):
        actor.say(SessionState.DOWN)
    await until(lambda: leaf.core.tally.accepted == 100)


def test_stamps_are_turned_into_instants_and_never_run_ahead_of_the_clock() -> None:
    arrivals = Arrivals()
    arrivals.begin(5_000, 1_000)
    assert [arrivals.instant_ns(stamp_ns) for stamp_ns in (4_900, 5_000, 5_001, 9_000)] == [900, 1_000, 1_000, 1_000]


@pytest.mark.parametrize("step_ns", [-3_000_000, -300, 300, 3_000_000])
def test_a_wall_clock_that_is_set_makes_no_packet_older_than_it_is(step_ns: int) -> None:
    arrivals = Arrivals()
    arrivals.begin(5_000_000, 1_000)
    arrivals.begin(5_000_100 + step_ns, 1_100)
    before, after = arrivals.instant_ns(5_000_050), arrivals.instant_ns(5_000_070 + step_ns)
    assert 1_050 <= before <= 1_100
    assert 1_070 <= after <= 1_100


async def test_intervals_change_while_it_runs(stack: ExitStack) -> None:
    near, far = direct()
    leaf, spine = Node(LEAF, SPINE, near), Node(SPINE, LEAF, far)
    started(stack, leaf, spine)
    await until(lambda: leaf.is_up() and spine.is_up())
    for node in (leaf, spine):
        node.udp.retime({"e0": replace(TIMING, interval_ns=10 * MS)})
    before = leaf.core.tally.accepted
    await until(lambda: leaf.core.tally.accepted > before + 20)
    assert leaf.is_up()
    assert spine.is_up()


async def test_a_socket_that_cannot_be_opened_is_tried_again(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = direct()
    leaf, spine = Node(LEAF, SPINE, near), Node(SPINE, LEAF, far)
    attempts = 0

    def not_at_first(wire: Wire, dscp: int) -> object:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise OSError(19, "No such device")
        return open_wire(wire, dscp)

    monkeypatch.setattr(shell, "open_wire", not_at_first)
    started(stack, leaf, spine)
    await until(lambda: leaf.is_up() and spine.is_up())


async def test_a_broken_invariant_reaches_whoever_runs_the_sessions(stack: ExitStack) -> None:
    near, _ = direct()
    leaf = Node(LEAF, SPINE, near)
    errors: list[Exception] = []
    leaf.udp.on_error = errors.append
    started(stack, leaf)

    def break_down(event: object, now_ns: int) -> list[object]:
        raise Bug("broken")

    leaf.core.handle = break_down  # type: ignore[method-assign,assignment]
    await until(lambda: errors)
    assert str(errors[0]) == "broken"


def test_a_group_of_receivers_is_sent_to_by_interface_and_class_of_service() -> None:
    found, group = open_wire(Wire(("::", 0), ("ff02::1", 49784), "lo"), dscp=48)
    with found:
        index = socket.if_nametoindex("lo")
        assert group == ("ff02::1", 49784, 0, index)
        assert found.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS) == 48 << 2
        assert found.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS) == 255
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == 6


def test_an_interface_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="No such device"):
        open_wire(Wire(("::", 0), ("ff02::1", 49784), "nowhere0"), dscp=48)


class Plane:
    """A data plane whose ports all have carrier."""

    def write_routes(self, node: NodeId, routes: object, removed: object) -> None:
        """Take them."""

    def is_port_up(self, node: NodeId, port: str) -> bool:
        return True


async def test_an_agent_tells_the_fabric_what_its_session_lost(stack: ExitStack) -> None:
    """From a dead neighbour process to the down fact on the bus; the carrier never changed."""
    near, far = direct()
    leaf, spine = Node(LEAF, SPINE, near), Node(SPINE, LEAF, far)
    broker: MemoryBroker[bytes] = MemoryBroker(Random(1))
    heard: list[Incoming] = []
    listener, topics = MemoryBus(broker.connect("listener")), Topics()
    listener.on_message = heard.append
    listener.subscribe(frozenset({topics.all_of(Channel.FACT)}))
    driver = SimulatedDriver(Plane(), LEAF, ["e0"])
    core = AgentCore(
        LEAF,
        (binding("e0", SPINE),),
        AgentTimers(wait_to_restore_ns=20 * MS),
        ports_up={"e0": True},
        ports_watched=leaf.udp.ports,
    )
    marks: list[Mark] = []
    runtime = AgentRuntime(
        core, driver, MemoryBus(broker.connect(LEAF)), None, leaf.udp, on_mark=lambda mark, _: marks.append(mark)
    )

    def facts() -> list[bool]:
        broker.advance(broker.now_ns + MS)
        return [fact.down for fact in map(decode, (one.payload for one in heard)) if isinstance(fact, DownFact)]

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(runtime.run())
        started(stack, spine)
        await until(lambda: facts() == [] and leaf.is_up() and spine.is_up())
        spine.udp.abandon()
        await until(lambda: facts() == [True])
        assert [mark.fields.get("cause") for mark in marks if mark.event == "port_down_detected"] == ["session"]
        again = Node(SPINE, LEAF, far)
        started(stack, again)
        await until(lambda: facts() == [True, False])
        runtime.stop()
        await until(lambda: not again.is_up())
    assert [mark.event for mark in again.marks] == ["session_up", "session_paused"]
