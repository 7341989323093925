"""The shell around the core: events in, commands out, over the bus port and the driver port."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from random import Random

import pytest

from erfs.aio.memory import MemoryBroker, MemoryBus
from erfs.errors import Bug
from erfs.ids import DestinationId, LinkId, NodeId
from erfs.messages import (
    CONTROLLER,
    Ack,
    DownFact,
    Group,
    Member,
    Message,
    PortBinding,
    Presence,
    Program,
    Route,
    decode,
    encode,
    sealed,
)
from erfs.ports import Incoming, Mark, Priority
from erfs.topics import Address, Channel, Topics
from erfs.units import MS
from erfs_agent import core
from erfs_agent.aio import runtime
from erfs_agent.aio.runtime import AgentRuntime
from erfs_agent.aio.store import MemoryStore, Store
from erfs_agent.core import AgentCore, AgentTimers, RoutesWritten, WriteRoutes
from erfs_agent.drivers.simulated import SimulatedDriver
from erfs_agent.state import AgentState

LEAF = NodeId("leafA")
LEAF_B = DestinationId("@leafB")
E1, E2 = Member(port="e1"), Member(port="e2")
PORTS = tuple(
    PortBinding(port=port, link=LinkId(f"leafA:{port}|spine{port}:1"), far_end=NodeId(f"spine{port}"))
    for port in ("e1", "e2")
)
PROGRAM = sealed(
    Program(
        sender=CONTROLLER,
        node=LEAF,
        epoch=1,
        generation=1,
        digest="",
        ports=PORTS,
        groups=(Group(id=0, members=(E1, E2)),),
        routes=(Route(destination=LEAF_B, group=0),),
    )
)
TOPICS = Topics()


class Plane:
    """Carriers and routes of one node."""

    def __init__(self) -> None:
        self.carriers = {"e1": True, "e2": True}
        self.routes: dict[DestinationId, tuple[Member, ...]] = {}

    def write_routes(
        self, node: NodeId, routes: dict[DestinationId, tuple[Member, ...]], removed: tuple[DestinationId, ...]
    ) -> None:
        self.routes |= routes
        for destination in removed:
            del self.routes[destination]

    def is_port_up(self, node: NodeId, port: str) -> bool:
        return self.carriers[port]


@dataclass
class Bench:
    """One agent on an in-memory bus, and a listener that hears everything."""

    broker: MemoryBroker[bytes]
    runtime: AgentRuntime
    driver: SimulatedDriver
    plane: Plane
    listener: MemoryBus
    heard: list[Message] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def say(self, address: Address, message: Message) -> None:
        self.listener.publish(TOPICS.topic(address), encode(message), retain=True, priority=Priority.ROUTINE)

    def change_carrier(self, port: str, is_up: bool) -> None:
        self.plane.carriers[port] = is_up
        self.driver.on_port(port, is_up)

    async def until(self, condition: Callable[[], object]) -> None:
        """Let bus time and the event loop go on until *condition* holds; the test's own limit ends a vain wait."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(20):
            while not condition():
                self.broker.advance(self.broker.now_ns + MS)
                turn = asyncio.Event()
                loop.call_later(0.001, turn.set)
                await turn.wait()

    def acks(self) -> list[str]:
        return [message.outcome for message in self.heard if isinstance(message, Ack)]


@asynccontextmanager
async def bench(
    store: Store | None = None, state: AgentState | None = None, *, wait_to_restore_ns: int = 20 * MS
) -> AsyncIterator[Bench]:
    broker: MemoryBroker[bytes] = MemoryBroker(Random(1))
    plane = Plane()
    driver = SimulatedDriver(plane, LEAF, ["e1", "e2"])
    timers = AgentTimers(wait_to_restore_ns=wait_to_restore_ns)
    core = AgentCore(LEAF, PORTS, timers, state, ports_up=driver.ports(), routes_installed=driver.routes())
    listener = MemoryBus(broker.connect("listener"))
    agent_bus = MemoryBus(broker.connect(LEAF))
    marks: list[Mark] = []
    runtime = AgentRuntime(core, driver, agent_bus, store, on_mark=lambda mark, _: marks.append(mark))
    found = Bench(broker, runtime, driver, plane, listener, marks=marks)

    def hear(incoming: Incoming) -> None:
        found.heard.append(decode(incoming.payload))

    listener.on_message = hear
    listener.subscribe(frozenset(TOPICS.all_of(channel) for channel in Channel if channel is not Channel.PROGRAM))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(runtime.run())
        await found.until(lambda: any(isinstance(message, Presence) for message in found.heard))
        try:
            yield found
        finally:
            runtime.abandon()


async def test_a_program_goes_from_the_bus_to_the_data_plane_and_its_acknowledgement_back() -> None:
    async with bench() as here:
        here.say(Address(Channel.PROGRAM, LEAF), PROGRAM)
        await here.until(here.acks)

        assert here.acks() == ["installed"]
        assert here.plane.routes == here.driver.routes() == {LEAF_B: (E1, E2)}


async def test_a_lost_carrier_has_changed_the_data_plane_before_the_driver_goes_on() -> None:
    async with bench() as here:
        here.say(Address(Channel.PROGRAM, LEAF), PROGRAM)
        await here.until(here.acks)

        here.change_carrier("e1", False)

        assert here.plane.routes == {LEAF_B: (E2,)}
        await here.until(lambda: [message for message in here.heard if isinstance(message, DownFact)])


async def test_the_one_timer_brings_a_repaired_port_back() -> None:
    async with bench() as here:
        here.say(Address(Channel.PROGRAM, LEAF), PROGRAM)
        await here.until(here.acks)
        here.change_carrier("e1", False)
        here.change_carrier("e1", True)
        assert here.plane.routes == {LEAF_B: (E2,)}

        await here.until(lambda: here.plane.routes == {LEAF_B: (E1, E2)})
        await here.until(lambda: any(isinstance(message, DownFact) and not message.down for message in here.heard))

        events = [mark.event for mark in here.marks]
        assert events.index("port_restored") > events.index("port_up_detected") > events.index("port_down_detected")


async def test_unreadable_and_forged_messages_are_counted_and_harm_nothing() -> None:
    async with bench() as here:
        topic = TOPICS.topic(Address(Channel.PROGRAM, LEAF))
        here.listener.publish(topic, b"\xff\x00", retain=False, priority=Priority.ROUTINE)
        here.say(Address(Channel.PROGRAM, LEAF), PROGRAM.model_copy(update={"sender": NodeId("evil")}))
        await here.until(lambda: here.runtime.tally.refused_count == 2)
        here.say(Address(Channel.PROGRAM, LEAF), PROGRAM)
        await here.until(here.acks)

        assert here.acks() == ["installed"]


async def test_an_agent_told_to_stop_says_goodbye_and_saves() -> None:
    store = MemoryStore()
    async with bench(store, AgentState(incarnation=7)) as here:
        here.say(Address(Channel.PROGRAM, LEAF), PROGRAM)
        await here.until(here.acks)

        here.runtime.stop()
        await here.until(
            lambda: any(isinstance(message, Presence) and message.state == "gone" for message in here.heard)
        )
        await here.until(lambda: store.state is not None and store.state.program == PROGRAM)

        assert here.plane.routes == {LEAF_B: (E1, E2)}
    assert store.state is not None
    assert store.state.incarnation == 8


async def test_an_abandoned_agent_says_writes_and_saves_nothing_more() -> None:
    store = MemoryStore()
    async with bench(store) as here:
        here.say(Address(Channel.PROGRAM, LEAF), PROGRAM)
        await here.until(lambda: store.state is not None and store.state.program is not None)
        before, heard = store.state, len(here.heard)

        here.runtime.abandon()
        here.change_carrier("e1", False)
        here.broker.advance(here.broker.now_ns + 100 * MS)

        assert here.plane.routes == {LEAF_B: (E1, E2)}
        assert len(here.heard) == heard
    # Only now has its last task ended.
    assert store.state == before


async def test_a_carrier_lost_while_the_agent_was_being_made_is_heard() -> None:
    plane = Plane()
    driver = SimulatedDriver(plane, LEAF, ["e1", "e2"])
    core = AgentCore(LEAF, PORTS, AgentTimers(), ports_up=driver.ports())
    plane.carriers["e1"] = False
    marks: list[Mark] = []
    runtime = AgentRuntime(
        core,
        driver,
        MemoryBus(MemoryBroker[bytes](Random(1)).connect(LEAF)),
        on_mark=lambda mark, _: marks.append(mark),
    )

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(runtime.run())
        asyncio.get_running_loop().call_soon(runtime.stop)
        await task

    assert [mark.event for mark in marks] == ["port_down_detected"]


class Clock:
    """Goes on by one at each look."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 1
        return self.now_ns


async def test_what_is_said_first_of_an_event_carries_the_instant_it_came_in() -> None:
    """The rest carries the instant it was said at; a data plane's answer came in before what was to be done meanwhile."""
    plane, clock = Plane(), Clock()
    driver = SimulatedDriver(plane, LEAF, ["e1", "e2"])
    core = AgentCore(LEAF, PORTS, AgentTimers(), AgentState(program=PROGRAM), ports_up=driver.ports())
    made: list[tuple[str, int]] = []

    def on_mark(mark: Mark, at_ns: int) -> None:
        made.append((mark.event, at_ns))

    bus = MemoryBus(MemoryBroker[bytes](Random(1)).connect(LEAF))
    runtime = AgentRuntime(core, driver, bus, on_mark=on_mark, clock_ns=clock)

    def lose_a_carrier_and_stop() -> None:
        made.clear()
        clock.now_ns = 1_000
        driver.on_port("e1", False)
        runtime.stop()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(runtime.run())
        asyncio.get_running_loop().call_soon(lose_a_carrier_and_stop)

    # 1,003: the answer of the data plane.
    assert made == [("port_down_detected", 1_001), ("change_requested", 1_002), ("change_acknowledged", 1_003)]


async def test_a_large_program_is_taken_in_as_an_ordinary_process_and_a_fact_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever repairs at once may keep others from their cores, but not for as long as a program takes."""
    taken_in_leisure: list[str] = []

    async with bench() as here:

        @contextmanager
        def note() -> Iterator[None]:
            before = len(here.marks)
            yield
            taken_in_leisure.extend(mark.event for mark in here.marks[before:] if mark.event == "program_installed")

        monkeypatch.setattr(runtime, "ordinary", note)
        here.say(Address(Channel.PROGRAM, LEAF), PROGRAM)
        await here.until(here.acks)
        assert taken_in_leisure == []

        routes = tuple(Route(destination=DestinationId(f"@leaf{n}"), group=0) for n in range(400))
        large = sealed(PROGRAM.model_copy(update={"generation": 2, "routes": routes}))
        here.say(Address(Channel.PROGRAM, LEAF), large)
        await here.until(lambda: len(here.acks()) == 2)
        assert taken_in_leisure == ["program_installed"]


async def test_a_program_that_arrived_is_rehearsed_as_an_ordinary_process(monkeypatch: pytest.MonkeyPatch) -> None:
    is_ordinary = False
    rehearsed: list[tuple[bool, str]] = []

    @contextmanager
    def note() -> Iterator[None]:
        nonlocal is_ordinary
        is_ordinary = True
        yield
        is_ordinary = False

    monkeypatch.setattr(runtime, "ordinary", note)
    monkeypatch.setattr(
        core, "rehearse", lambda compiled: rehearsed.append((is_ordinary, compiled.program.digest)), raising=True
    )
    async with bench() as here:
        here.say(Address(Channel.PROGRAM, LEAF), PROGRAM)
        await here.until(here.acks)
        await here.until(lambda: rehearsed)

    assert rehearsed == [(True, PROGRAM.digest)]


class FullDisk:
    """A store that can save nothing."""

    def save(self, state: AgentState) -> None:
        raise OSError("disk full")


async def test_a_full_disk_stops_no_forwarding() -> None:
    async with bench(FullDisk()) as here:
        here.say(Address(Channel.PROGRAM, LEAF), PROGRAM)
        await here.until(here.acks)
        here.change_carrier("e1", False)

        assert here.plane.routes == {LEAF_B: (E2,)}


class ConfusedDriver(SimulatedDriver):
    """Answers questions nobody asked."""

    def write(self, command: WriteRoutes) -> RoutesWritten:
        return RoutesWritten(command.change + 40, is_ok=True)


async def test_a_broken_invariant_ends_the_agent_where_it_is_awaited() -> None:
    plane = Plane()
    driver = ConfusedDriver(plane, LEAF, ["e1", "e2"])
    core = AgentCore(LEAF, PORTS, AgentTimers(), AgentState(program=PROGRAM), ports_up=driver.ports())
    runtime = AgentRuntime(core, driver, MemoryBus(MemoryBroker[bytes](Random(1)).connect(LEAF)))

    with pytest.raises(ExceptionGroup) as failure:
        await runtime.run()

    assert failure.group_contains(Bug, match="change 41 was answered")
