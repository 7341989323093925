"""Run a plan in real time: a broker and a controller as processes of their own, one agent per node with its own connection.

Rule 1: the data plane is the simulated fabric, everything that controls it is what an operator would run.
Rule 2: one clock, CLOCK_MONOTONIC, for every process; instants count from the start of the run.
Rule 3: nothing outlives the run: children die with this process, and what was retained on a foreign broker is cleared.

Agents that a fault kills or cuts off reach the broker through a `Stretch` of loopback network, which costs each of their
messages some 0.1 ms; all others connect straight.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Final

from erfs.aio import edge
from erfs.aio.mqtt import BusSettings, MqttBus
from erfs.errors import ErfsError
from erfs.exporters import write_fabric
from erfs.fabric import LinkEnd
from erfs.faults import PHYSICAL, Fault, FaultKind
from erfs.ids import NodeId
from erfs.messages import CONTROLLER
from erfs.ports import Mark, Priority
from erfs.topics import Address, Channel, Topics
from erfs.units import MS, SECOND
from erfs_agent.aio.runtime import AgentRuntime
from erfs_agent.aio.store import MemoryStore
from erfs_agent.core import AgentCore, AgentTimers
from erfs_agent.drivers.simulated import SimulatedDriver
from erfs_scenario.daemon_files import controller_toml
from erfs_scenario.injection import PhysicalFaults
from erfs_scenario.measurement import Meter, Record
from erfs_scenario.merging import Merger, Tail
from erfs_scenario.nodes import agent_nodes, port_bindings
from erfs_scenario.observer import Observer
from erfs_scenario.operator import OPERATOR, Operator, operator_on
from erfs_scenario.partition import Stretch
from erfs_scenario.plan import Plan, stream
from erfs_scenario.processes import Child, free_port, is_listening
from erfs_scenario.realtime import call_after, delayed, logs_in, occasions, run_to_the_end
from erfs_scenario.replay import NotedPlane
from erfs_scenario.witness import Witness

# Start of three Python processes on a busy machine, and 50 ms for each agent's connection and program.
START_DEADLINE_NS: Final = 30 * SECOND
START_PER_AGENT_NS: Final = 50 * MS
# No program for so long after the last one: the controller pushes rounds within some 10 ms of each other.
REST_NS: Final = 300 * MS
# How late the controller's journal may be read.
WINDOW_NS: Final = 250 * MS
POLL_NS: Final = 20 * MS
# The data plane is measured once it has been at rest for so long, or this much later at the latest.
QUIET_NS: Final = 100 * MS
QUIET_MAX_NS: Final = 2 * SECOND
# A controller that was killed is a process again within so long after its fault.
RESTART_NS: Final = 1 * SECOND
GOODBYE_NS: Final = 500 * MS
# All agents share one loop and the machine with the broker: a late echo is the harness' lateness sooner than a dead broker.
ECHO_DEADLINE: Final = "3 s"
# The clean-up clears every topic that may be retained, at once.
QUEUE_LENGTH: Final = 100_000


class HarnessError(ErfsError):
    """What the run needs did not start, or died."""


def run_live(
    plan: Plan, *, record: Record, on_progress: Callable[[int], None], out: Path, broker: str | None = None
) -> None:
    """
    Run *plan* in real time, as long as its duration and the start of everything take.

    Args:
        plan: What to run.
        record: Called with (at_ns, event, fields) for everything that happens, in order of time.
        on_progress: Called with the instant, some times a second.
        out: A folder for what the processes need and say.
        broker: HOST:PORT of a broker to use; None starts the embedded one.

    Raises:
        HarnessError: something did not start or died; says what, and its last words.
    """
    live = _Live(plan, record, on_progress, out.absolute(), broker)
    out.mkdir(parents=True, exist_ok=True)
    with logs_in(out / "agents.log"):
        run_to_the_end(live.run())


class _Agent:
    """One node's agent and its connection; the node's tables and disk outlive it."""

    def __init__(self, node: NodeId, live: "_Live", stretch: Stretch | None) -> None:
        self.node = node
        self.stretch = stretch
        self._live = live
        self._bindings = port_bindings(live.plan.fabric, node)
        self._store = MemoryStore()
        self._driver = self._new_driver()
        self._runtime: AgentRuntime | None = None
        self._bus: MqttBus | None = None
        self._bus_task: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is an agent."""
        return self._runtime is not None

    def boot(self) -> None:
        """Start an agent from what the last one kept and what the data plane holds."""
        assert self._runtime is None
        live, plan = self._live, self._live.plan
        core = AgentCore(
            self.node,
            self._bindings,
            live.agent_timers,
            self._store.state,
            ports_up=self._driver.ports(),
            routes_installed=self._driver.routes(),
        )
        settings = live.bus_settings(self.stretch)
        will = edge.will(live.topics, core.last_will())
        self._bus = MqttBus(settings, self.node, will=will, rng=stream(plan.seed, f"bus {self.node}"))
        self._runtime = AgentRuntime(
            core, self._driver, self._bus, self._store, topics=live.topics, on_mark=self._on_mark
        )
        self._task = live.group.create_task(self._runtime.run(), name=f"agent {self.node}")
        self._bus_task = live.group.create_task(self._bus.run(), name=f"bus of {self.node}")

    def die(self) -> None:
        """End as if killed: the connection breaks, the tables stay."""
        assert self.stretch is not None
        self.stretch.sever()
        self._vanish()

    def lose_power(self) -> None:
        """End without anybody being told: the network has been cut before; the tables are gone."""
        self._vanish()
        self._driver = self._new_driver()

    def see_carrier(self, port: str) -> None:
        """Tell the agent, if there is one, what the carrier of *port* is now."""
        if self._runtime is not None:
            self._driver.on_port(port, self._live.plane.is_port_up(self.node, port))

    async def stop(self) -> None:
        """End with a goodbye."""
        if self._runtime is None:
            return
        assert self._bus is not None
        assert self._bus_task is not None
        self._runtime.stop()
        if self._bus.is_connected:
            await self._bus.drain(GOODBYE_NS)
        self._bus_task.cancel()
        self._runtime = None

    def _vanish(self) -> None:
        if self._runtime is None:
            return
        assert self._bus_task is not None
        self._runtime.abandon()
        self._bus_task.cancel()
        self._runtime = None

    def _new_driver(self) -> SimulatedDriver:
        return SimulatedDriver(self._live.plane, self.node, [binding.port for binding in self._bindings])

    def _on_mark(self, mark: Mark, _at_ns: int) -> None:
        self._live.note(mark.event, mark.fields | {"node": self.node})


class _Controller:
    """The controller's processes, one after the other, and what they leave on disk."""

    def __init__(self, live: "_Live", stretch: Stretch | None) -> None:
        self.stretch = stretch
        self._live = live
        self._child: Child | None = None
        self._boot_count = 0
        self._is_killed = False
        self._tail = Tail(live.out / "controller" / "journal.jsonl")

    @property
    def is_running(self) -> bool:
        """Whether the process lives, as the kernel sees it."""
        return self._child is not None and self._child.is_running

    @property
    def trouble(self) -> str:
        """What is wrong if it ended without being killed by us; empty if nothing is."""
        if self._child is None or self._child.is_running or self._is_killed:
            return ""
        return f"the controller ended with exit code {self._child.exit_code}: {self._child.last_words()}"

    async def boot(self) -> None:
        """Start a controller; it finds the epoch of the last one."""
        self._boot_count += 1
        self._is_killed = False
        config = self._live.out / "controller" / "controller.toml"
        self._child = await Child.start(
            "controller",
            (sys.executable, "-m", "erfs_controller", "--config", str(config)),
            self._live.out / "controller" / "log",
        )

    async def kill(self) -> None:
        """End it without a word."""
        self._is_killed = True
        if self._child is not None:
            await self._child.kill()

    async def stop(self) -> None:
        """Ask it to end."""
        self._is_killed = True
        if self._child is not None:
            await self._child.stop()

    def read_journal(self) -> list[dict[str, object]]:
        """Return what it noted since the last call."""
        return self._tail.read()


class _Live:
    def __init__(
        self, plan: Plan, record: Record, on_progress: Callable[[int], None], out: Path, broker: str | None
    ) -> None:
        self.plan = plan
        self.out = out
        self.plane = NotedPlane(plan.fabric, self.now_ns)
        self.group: asyncio.TaskGroup
        timers = plan.timers
        self.agent_timers = AgentTimers(
            wait_to_restore_ns=timers.wait_to_restore_ns,
            wait_to_restore_max_ns=timers.wait_to_restore_max_ns,
            flap_window_ns=timers.flap_window_ns,
            health_interval_ns=timers.health_interval_ns,
            is_protecting=plan.is_protecting,
        )
        # A prefix of its own: a production controller on the same broker must neither hear nor steer this fabric.
        self.topics = Topics(f"erfs-run/{os.getpid()}-{time.monotonic_ns()}")
        self._start_ns = time.monotonic_ns()
        self._merger = Merger(record, WINDOW_NS)
        self._on_progress = on_progress
        self._foreign_broker = broker
        self._broker: tuple[str, int] = ("", 0)
        self._broker_child: Child | None = None
        self._meter: Meter | None = None
        self._witness: Witness | None = None
        self._physical = PhysicalFaults(plan.fabric, self.plane)
        self._agents: dict[NodeId, _Agent] = {}
        self._controller: _Controller
        self._operator: Operator
        self._is_finished = False
        self._killers: Counter[NodeId] = Counter()
        self._cutters: Counter[NodeId] = Counter()

    # --- what members ask -------------------------------------------------------------------------------------------------
    def now_ns(self) -> int:
        """Return the instant, counted from the start of the run."""
        return time.monotonic_ns() - self._start_ns

    def note(self, event: str, fields: dict[str, object]) -> None:
        """Record what happened now."""
        self._merger.put(self.now_ns(), event, fields)

    def bus_settings(self, stretch: Stretch | None) -> BusSettings:
        """Return how to reach the broker, through *stretch* if there is one."""
        host, port = self._broker if stretch is None else ("127.0.0.1", stretch.port)
        return BusSettings.model_validate(
            {
                "brokers": [{"host": host, "port": port}],
                "prefix": self.topics.prefix,
                "queue_length": QUEUE_LENGTH,
                "echo_deadline": ECHO_DEADLINE,
            }
        )

    def _measure_changes(self) -> None:
        """Let the meter see every change of the data plane noted so far, each at its own instant."""
        self.plane.replay(self._meter.settle if self._meter is not None else _ignore)

    # --- the run ----------------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Start everything, wait for rest, inject the faults, stop everything."""
        async with self._broker_running(), self._stretches_open() as stretches:
            self._controller = _Controller(self, stretches.get(CONTROLLER))
            self._write_controller_files()
            async with asyncio.TaskGroup() as self.group:
                observer_bus = MqttBus(self.bus_settings(None), "observer", rng=stream(self.plan.seed, "bus observer"))
                observer = Observer(observer_bus, self.topics, agent_nodes(self.plan.fabric))
                observer_task = self.group.create_task(observer_bus.run(), name="observer")
                operator_bus = MqttBus(self.bus_settings(None), OPERATOR, rng=stream(self.plan.seed, "bus operator"))
                self._operator = operator_on(operator_bus, self.topics, self.note, call_after)
                operator_task = self.group.create_task(operator_bus.run(), name="operator")
                try:
                    await self._controller.boot()
                    for node in agent_nodes(self.plan.fabric):
                        self._agents[node] = _Agent(node, self, stretches.get(node))
                        self._agents[node].boot()
                    await self._come_to_rest(observer)
                    await self._measure()
                    await asyncio.gather(*(agent.stop() for agent in self._agents.values()))
                finally:
                    try:
                        await self._controller.stop()
                        self._take_controller_marks()
                        if self._foreign_broker is not None:
                            await self._clear(observer_bus)
                    finally:
                        self._merger.pass_on_all()
                observer_task.cancel()
                operator_task.cancel()

    async def _come_to_rest(self, observer: Observer) -> None:
        deadline_ns = self.now_ns() + START_DEADLINE_NS + START_PER_AGENT_NS * len(self._agents)
        program_count, since_ns = -1, 0
        while True:
            await self._tick()
            missing = observer.missing()
            if observer.program_count != program_count:
                program_count, since_ns = observer.program_count, self.now_ns()
            if not self._is_finished:
                missing.append("the controller did not say that it finished")
            if not missing and self.now_ns() - since_ns >= REST_NS:
                return
            if self.now_ns() > deadline_ns:
                raise HarnessError(
                    f"no steady state after {deadline_ns // SECOND} s: {'; '.join(missing) or 'programs keep coming'}"
                )

    async def _measure(self) -> None:
        # The start took what it took: the plan's instants move behind it, as a whole.
        late_ns = max(0, self.now_ns() - self.plan.measure_from_ns)
        plan = delayed(self.plan, late_ns)
        self._measure_changes()
        self._meter = Meter(plan, self.plane.shadow, self._merger.put)
        self._witness = Witness(plan, self.plane, self, self._merger.put, restart_ns=RESTART_NS)
        if late_ns:
            self.note("run_delayed", {"by_ns": late_ns})
        await self._wait_until(plan.measure_from_ns)
        self._measure_changes()
        self._meter.settle(self.now_ns())
        for at_ns, is_begin, fault in occasions(plan):
            await self._wait_until(at_ns)
            await (self._begin(fault) if is_begin else self._end(fault))
        await self._wait_until(plan.duration_ns)
        self._measure_changes()
        self._witness.finish(self.now_ns())
        self._meter.finish(self.now_ns())

    async def _wait_until(self, at_ns: int) -> None:
        while (left_ns := at_ns - self.now_ns()) > 0:
            await self._tick(min(left_ns, POLL_NS))

    async def _tick(self, for_ns: int = POLL_NS) -> None:
        """Let *for_ns* pass; read the controller's journal, pass records on, notice who died."""
        await asyncio.sleep(for_ns / SECOND)
        self._take_controller_marks()
        if self._witness is not None:
            self._witness.look(self.now_ns())
        now_ns, oldest_ns = self.now_ns(), self.plane.oldest_note_ns
        # Measuring takes milliseconds that the agents would miss: not while they are at work, unless they are so for long.
        if oldest_ns is not None and (
            now_ns - self.plane.newest_note_ns > QUIET_NS or now_ns - oldest_ns > QUIET_MAX_NS
        ):
            self._measure_changes()
        self._merger.pass_on(now_ns, unmeasured_ns=self.plane.oldest_note_ns)
        self._on_progress(self.now_ns())
        if self._controller.trouble:
            raise HarnessError(self._controller.trouble)
        child = self._broker_child
        if child is not None and not child.is_running:
            raise HarnessError(f"the broker ended with exit code {child.exit_code}: {child.last_words()}")

    def _take_controller_marks(self) -> None:
        for line in self._controller.read_journal():
            at_ns, event = line.pop("at_ns"), line.pop("event")
            assert isinstance(at_ns, int)
            assert isinstance(event, str)
            if event in ("generation_pushed", "restoration_finished"):
                self._is_finished = event == "restoration_finished"
            self._merger.put(at_ns - self._start_ns, event, line | {"node": CONTROLLER})

    # --- faults -----------------------------------------------------------------------------------------------------------
    async def _begin(self, fault: Fault) -> None:
        assert self._meter is not None
        assert self._witness is not None
        self._measure_changes()
        self._meter.before_fault(fault, self.now_ns())
        self.note("fault_injected", {"fault": fault.id, "kind": fault.kind.value})
        if fault.kind is FaultKind.DRAIN:
            self._operator.begin(fault)
            return  # the controller's answer says whether it takes effect
        self._witness.begin(fault)
        if fault.kind in PHYSICAL:
            for node in fault.nodes:
                self._cut_off(node)
            ends = self._physical.inject(fault)
            self._witness.look(self.plane.newest_note_ns)
            for node in fault.nodes:
                await self._kill(node)
            self._tell_carriers(ends)
            return
        if fault.kind is FaultKind.BUS_PARTITION:
            for name in self.hit_by(fault):
                self._cut_off(name)
        else:
            for name in self.hit_by(fault):
                await self._kill(name)
        self._witness.look(self.now_ns())

    async def _end(self, fault: Fault) -> None:
        assert self._meter is not None
        assert self._witness is not None
        self._measure_changes()
        self._meter.before_return(fault, self.now_ns())
        if fault.kind is FaultKind.DRAIN:
            self._operator.end(fault)
            return
        self._witness.end(fault, self.now_ns())
        if fault.kind in PHYSICAL:
            ends = self._physical.heal(fault)
            self._witness.look(self.plane.newest_note_ns)
            self._tell_carriers(ends)
            for node in fault.nodes:
                stretch = self._agents[node].stretch
                assert stretch is not None
                # Of what the dead node had sent nothing may arrive now, its goodbye least of all.
                stretch.sever()
                self._join(node)
                await self._revive(node)
            return
        if fault.kind is FaultKind.BUS_PARTITION:
            for name in self.hit_by(fault):
                self._join(name)
        else:
            for name in self.hit_by(fault):
                await self._revive(name)
        self._witness.look(self.now_ns())

    def hit_by(self, fault: Fault) -> tuple[NodeId, ...]:
        """Return whom a fault of what controls the fabric hits."""
        if fault.kind is FaultKind.BUS_PARTITION:
            return fault.nodes or (*agent_nodes(self.plan.fabric), CONTROLLER)
        return (CONTROLLER,) if fault.kind is FaultKind.CONTROLLER_KILL else fault.nodes

    def is_stopped(self, kind: FaultKind, name: NodeId) -> bool:
        """Return whether *name* is as a fault of *kind* leaves it."""
        if kind is FaultKind.BUS_PARTITION:
            stretch = self._member(name).stretch
            return stretch is not None and stretch.is_cut
        return not self._member(name).is_running

    def is_free(self, kind: FaultKind, name: NodeId) -> bool:
        """Return whether *name* is as it should be once a fault of *kind* is over."""
        return not self.is_stopped(kind, name)

    def _member(self, name: NodeId) -> _Agent | _Controller:
        return self._controller if name == CONTROLLER else self._agents[name]

    def _tell_carriers(self, ends: Iterable[LinkEnd]) -> None:
        for end in ends:
            agent = self._agents.get(end.node)
            if agent is not None:
                agent.see_carrier(end.port)

    async def _kill(self, name: NodeId) -> None:
        self._killers[name] += 1
        member = self._member(name)
        if isinstance(member, _Controller):
            await member.kill()
        elif not self.plane.is_node_up(name):
            member.lose_power()
        else:
            member.die()

    async def _revive(self, name: NodeId) -> None:
        self._killers[name] -= 1
        member = self._member(name)
        if self._killers[name] or member.is_running:
            return
        if isinstance(member, _Controller):
            await member.boot()
        else:
            member.boot()

    def _cut_off(self, name: NodeId) -> None:
        self._cutters[name] += 1
        stretch = self._member(name).stretch
        assert stretch is not None
        stretch.cut()

    def _join(self, name: NodeId) -> None:
        self._cutters[name] -= 1
        stretch = self._member(name).stretch
        assert stretch is not None
        if not self._cutters[name]:
            stretch.join()

    # --- what has to be there before and gone after -------------------------------------------------------------------------
    @contextlib.asynccontextmanager
    async def _broker_running(self) -> AsyncIterator[None]:
        if self._foreign_broker is not None:
            host, _, port = self._foreign_broker.rpartition(":")
            self._broker = (host, int(port))
            if not await is_listening(*self._broker):
                raise HarnessError(f"nobody listens at {self._foreign_broker}: start the broker, or leave out --broker")
            yield
            return
        self._broker = ("127.0.0.1", free_port())
        program = ("-c", "from erfs.cli.main import main; main()", "broker", "--port", str(self._broker[1]))
        self._broker_child = child = await Child.start("broker", (sys.executable, *program), self.out / "broker.log")
        try:
            async with asyncio.timeout(START_DEADLINE_NS / SECOND):
                while child.is_running and not await is_listening(*self._broker):  # noqa: ASYNC110 -- another process
                    await asyncio.sleep(POLL_NS / SECOND)
            if not child.is_running:
                raise HarnessError(f"the broker did not start (exit code {child.exit_code}): {child.last_words()}")
            yield
        except TimeoutError:
            raise HarnessError(f"the broker does not listen: {child.last_words()}") from None
        finally:
            self._broker_child = None
            await child.stop()

    @contextlib.asynccontextmanager
    async def _stretches_open(self) -> AsyncIterator[dict[NodeId, Stretch]]:
        """Open a stretch of network for everyone whom some fault kills, leaves without power, or cuts off."""
        named = {
            name
            for fault in self.plan.faults
            for name in (self.hit_by(fault) if fault.kind is FaultKind.BUS_PARTITION else fault.nodes)
        }
        stretches = {name: Stretch(*self._broker) for name in sorted(named)}
        try:
            for stretch in stretches.values():
                await stretch.open()
            yield stretches
        finally:
            for stretch in stretches.values():
                await stretch.close()

    def _write_controller_files(self) -> None:
        folder = self.out / "controller"
        folder.mkdir(parents=True, exist_ok=True)
        for left in ("journal.jsonl", "log", *(f"controller.sqlite3{part}" for part in ("", "-wal", "-shm"))):
            (folder / left).unlink(missing_ok=True)
        (folder / "fabric.json").write_text(write_fabric(self.plan.fabric, "node-link"))
        host, port = self._broker if self._controller.stretch is None else ("127.0.0.1", self._controller.stretch.port)
        (folder / "controller.toml").write_text(
            controller_toml(
                self.plan.timers,
                is_protecting=self.plan.is_protecting,
                prefix=self.topics.prefix,
                host=host,
                port=port,
            )
        )

    async def _clear(self, bus: MqttBus) -> None:
        """Take what is retained off a broker that lives on."""
        addresses = [Address(Channel.LEADER), Address(Channel.DRAINS)]
        for node in agent_nodes(self.plan.fabric):
            addresses += [
                Address(channel, node) for channel in (Channel.PRESENCE, Channel.PROGRAM, Channel.CANNOT_REACH)
            ]
            addresses += [
                Address(Channel.FACT, node, binding.port) for binding in port_bindings(self.plan.fabric, node)
            ]
        for address in addresses:
            bus.publish(self.topics.topic(address), b"", retain=True, priority=Priority.ROUTINE)
        if not await bus.drain(START_DEADLINE_NS):
            self.note("cleanup_failed", {"what": f'retained messages below "{self.topics.prefix}"'})


def _ignore(now_ns: int) -> None:
    """Nobody measures yet."""
