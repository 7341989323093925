"""Run a plan in simulated time: an event queue drives the real cores over an in-memory bus and a simulated fabric.

Rule 1: no clock, thread, socket or asyncio; all chance comes from named streams of the plan's seed, so the same plan gives the
same journal, byte for byte.
Rule 2: it decides nothing: what an agent or the controller would do is asked of their own cores.
Rule 3: time moves on only after the meter has seen the data plane of the instant that ends.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from erfs.aio.edge import filters
from erfs.aio.memory import BusConditions, MemoryBroker, MemoryClient
from erfs.errors import Bug
from erfs.fabric import Fabric, LinkEnd
from erfs.faults import PHYSICAL, Fault, FaultKind
from erfs.ids import NodeId
from erfs.messages import CONTROLLER, DrainAnswer, Drains, Installed, Leader, Program
from erfs.ports import BusConnected, BusLost, Delivered, Mark, Publish, Subscribe, TimerFired
from erfs.topics import RETAINED, Channel, Topics
from erfs_agent.core import AgentCommand, AgentCore, AgentTimers, Persist, PortChanged, RoutesWritten, WriteRoutes
from erfs_agent.drivers.simulated import SimulatedDriver
from erfs_agent.probing import SessionDown, SessionTiming, SessionUp
from erfs_agent.state import AgentState
from erfs_controller.core import Command as ControllerCommand
from erfs_controller.core import ControllerCore, Exit, PersistDrains, PersistEpoch
from erfs_controller.timers import ControllerTimers
from erfs_scenario.dataplane import DataPlane
from erfs_scenario.event_queue import Alarm, EventQueue
from erfs_scenario.injection import PhysicalFaults
from erfs_scenario.liveness import Liveness, RandomDraws, Said
from erfs_scenario.measurement import Meter, Record
from erfs_scenario.nodes import agent_nodes, port_bindings
from erfs_scenario.operator import OPERATOR, Operator
from erfs_scenario.plan import Plan, stream
from erfs_scenario.witness import Witness

BROKER: Final = NodeId("broker")

# A progress bar has no use for more; each call may cost a redraw.
PROGRESS_STEPS: Final = 200


MakeController = Callable[[Fabric, ControllerTimers, str, int, Drains | None], ControllerCore]


def simulate(
    plan: Plan,
    *,
    record: Record,
    on_progress: Callable[[int], None],
    make_controller: MakeController = ControllerCore,
) -> None:
    """
    Run *plan* from its first instant to its last.

    Args:
        plan: What to run.
        record: Called with (at_ns, event, fields) for everything that happens, in order of time.
        on_progress: Called with the simulated instant, some hundred times at most.
        make_controller: Called with a controller's arguments each time one starts; what checks the referee puts a faulty one here.

    Cost: proportional to what happens, not to the time that passes; an undisturbed fabric costs one event a second (the
    leader's refresh).
    """
    with _rare_collections():
        Simulation(plan, record, on_progress, make_controller).run()


@contextmanager
def _rare_collections() -> Iterator[None]:
    """
    Let Python look for unreachable cycles less often meanwhile.

    A fabric of thousands of nodes is millions of objects that live to the end, and each full collection visits all of them: with the
    interpreter's defaults that was 12 of 41 s for 666 switches and 3,675 endpoints. Memory stayed the same.
    """
    before = gc.get_threshold()
    gc.set_threshold(200_000, 50, 1_000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


_Event = Delivered | BusConnected | BusLost | TimerFired
Command = TypeVar("Command")
_CommandOut = TypeVar("_CommandOut", covariant=True)


class _Core(Protocol[_CommandOut]):
    """What both kinds of core have in common."""

    def handle(self, event: _Event, now_ns: int) -> Sequence[_CommandOut]: ...

    def next_wakeup_ns(self) -> int | None: ...


class _Member(Generic[Command]):
    """A process on the bus: a core that may be killed and started again, its client, its timer."""

    def __init__(self, name: NodeId, simulation: "Simulation") -> None:
        self.name = name
        self.client: MemoryClient[Publish] | None = None
        self._simulation = simulation
        self._queue = simulation.queue
        self._alarm = Alarm(self._queue, partial(self._when_awake, self._wake))
        self._running: _Core[Command] | None = None
        self._backlog: list[Callable[[], None]] | None = None
        """What waits while the process is frozen, in order; None while it is not."""

    @property
    def is_running(self) -> bool:
        """Whether there is a core to give events to."""
        return self._running is not None

    @property
    def is_frozen(self) -> bool:
        """Whether the process stands still: what comes to it waits."""
        return self._backlog is not None

    def die(self) -> None:
        """Stop at once, without a word."""
        self._running = None
        self._backlog = None

    def freeze(self) -> None:
        """Let the process stand still, if there is one."""
        if self.is_running and self._backlog is None:
            self._backlog = []

    def thaw(self) -> None:
        """Let the process go on with what has come meanwhile, unless it has been killed."""
        backlog, self._backlog = self._backlog or [], None
        for action in backlog:
            action()

    def _when_awake(self, action: Callable[[], None]) -> None:
        if self._backlog is None:
            action()
        else:
            self._backlog.append(action)

    def _begin(self, core: _Core[Command], commands: Sequence[Command], will: Publish) -> None:
        """Run *core*, whose first *commands* these are."""
        self._running = core
        topics = self._simulation.topics
        client = self._simulation.broker.connect(self.name, (topics.topic(will.address), will))
        client.on_arrival = self._arrived
        client.on_state = self._bus_changed
        self.client = client
        self._obey(commands, core)

    def _obey(self, commands: Sequence[Command], core: _Core[Command]) -> None:
        """Carry out what *core* asked for, then set its timer."""
        raise NotImplementedError

    def _tell(self, event: _Event) -> None:
        core = self._running
        if core is not None:
            self._obey(core.handle(event, self._queue.now_ns), core)

    def _arrived(self, topic: str, sent: Publish, is_retained: bool) -> None:
        self._when_awake(partial(self._tell, Delivered(sent.address, sent.message, is_retained)))

    def _bus_changed(self, is_connected: bool) -> None:
        self._when_awake(partial(self._tell, BusConnected() if is_connected else BusLost()))

    def _wake(self) -> None:
        core = self._running
        if core is None:
            return
        now_ns = self._queue.now_ns
        wakeup_ns = core.next_wakeup_ns()
        if wakeup_ns is not None and wakeup_ns <= now_ns:
            self._obey(core.handle(TimerFired(), now_ns), core)
            wakeup_ns = core.next_wakeup_ns()
            if wakeup_ns is not None and wakeup_ns <= now_ns:
                raise Bug(f'"{self.name}" was woken at {now_ns} and wants to be woken at {wakeup_ns} again')
        else:
            self._alarm.set(wakeup_ns)

    def _send(self, command: Publish | Subscribe | Mark) -> None:
        client = self.client
        assert client is not None
        match command:
            case Mark():
                self._simulation.mark(self.name, command)
            case Publish():
                channel = command.address.channel
                topic = self._simulation.topic(command)
                client.publish(topic, command, retain=channel in RETAINED, priority=command.priority)
            case Subscribe():
                client.subscribe(filters(self._simulation.topics, command))


class _Agent(_Member[AgentCommand]):
    """The agent of one node, beside the node's data plane, which lives on when the agent does not."""

    def __init__(self, name: NodeId, simulation: "Simulation") -> None:
        super().__init__(name, simulation)
        self._bindings = port_bindings(simulation.plan.fabric, name)
        self._core: AgentCore | None = None
        """The one that runs or ran last."""
        self._state: AgentState | None = None
        self._told: dict[str, bool] = {}
        self._driver = self._new_driver()

    @property
    def installed(self) -> Installed | None:
        """The program that runs here."""
        return self._core.installed if self._core is not None and self.is_running else None

    def boot(self) -> None:
        """Start an agent from what the last one persisted and what the data plane holds."""
        self._told = self._driver.ports()
        core = AgentCore(
            self.name,
            self._bindings,
            self._simulation.agent_timers,
            self._state,
            ports_up=dict(self._told),
            routes_installed=self._driver.routes(),
            ports_watched=frozenset(self._told),
        )
        self._core = core
        lost = self._state.sessions_down if self._state is not None else ()
        self._simulation.unaware.add(self.name)
        self._begin(core, core.start(self._queue.now_ns), core.last_will())
        self._simulation.liveness.agent_started(self.name, lost)

    def die(self) -> None:
        """Stop at once, without a word on the bus; its session process outlives it by the goodbye to its neighbours."""
        was_running = self.is_running
        super().die()
        self._simulation.unaware.discard(self.name)
        if was_running:
            self._simulation.liveness.agent_stopped(self.name)

    def lose_power(self) -> None:
        """Stop at once; the data plane has forgotten its tables, the disk keeps what was persisted."""
        self.die()
        self._driver = self._new_driver()

    def see_carrier(self, port: str) -> None:
        """Notice what the carrier of *port* is now, unless that is what was noticed last."""
        is_up = self._simulation.plane.is_port_up(self.name, port)
        if self.is_running and self._told[port] != is_up:
            self._told[port] = is_up
            self.hear(PortChanged(port, is_up))

    def hear(self, event: PortChanged | SessionUp | SessionDown | RoutesWritten) -> None:
        """Take what comes from the node itself, as soon as the agent is not frozen; a dead one hears nothing."""
        self._when_awake(partial(self._hear, event))

    def _tell(self, event: _Event) -> None:
        if isinstance(event, Delivered) and isinstance(event.message, Leader):
            self._simulation.leader_heard(self.name, event.message)
        super()._tell(event)

    def _hear(self, event: PortChanged | SessionUp | SessionDown | RoutesWritten) -> None:
        core = self._core
        if core is not None and self.is_running:
            self._obey(core.handle(event, self._queue.now_ns), core)

    def _new_driver(self) -> SimulatedDriver:
        return SimulatedDriver(self._simulation.plane, self.name, [binding.port for binding in self._bindings])

    def _obey(self, commands: Sequence[AgentCommand], core: _Core[AgentCommand]) -> None:
        for command in commands:
            match command:
                case WriteRoutes():
                    self._queue.after(
                        self._simulation.plan.timing.write_ns, partial(self._write, command, core, self._driver)
                    )
                case Persist():
                    self._state = command.state
                case Publish() | Subscribe() | Mark():
                    self._send(command)
        self._alarm.set(core.next_wakeup_ns())

    def _write(self, command: WriteRoutes, asker: _Core[AgentCommand], driver: SimulatedDriver) -> None:
        if driver is not self._driver:
            return  # the node lost its power meanwhile
        # A request outlives the agent that made it, but its answer then finds nobody.
        written = driver.write(command)
        if asker is self._running:
            self.hear(written)


class _Controller(_Member[ControllerCommand]):
    """The controller, and the disk that its epoch and the drains are on."""

    def __init__(self, simulation: "Simulation") -> None:
        super().__init__(CONTROLLER, simulation)
        self._epoch = 0
        self._drains: Drains | None = None
        self._boot_count = 0
        self.given: dict[NodeId, Program] = {}
        """The newest program sent to each node."""
        self._core: ControllerCore | None = None
        self._is_computing = False
        self._waiting: list[_Event] = []
        self._leader: Publish | None = None
        self._repeated_at_ns: int | None = None

    def boot(self) -> None:
        """Start a controller that remembers the last epoch."""
        plan = self._simulation.plan
        self._boot_count += 1
        self._core = self._simulation.make_controller(
            plan.fabric, _controller_timers(plan), f"controller-{self._boot_count}", self._epoch, self._drains
        )
        self._begin(self._core, self._core.start(self._queue.now_ns), self._core.last_will())

    def die(self) -> None:
        """Stop at once; what was computed and not said yet is lost."""
        super().die()
        self._is_computing = False
        self._waiting = []
        self._leader = self._repeated_at_ns = None

    def _tell(self, event: _Event) -> None:
        if self._is_computing:
            self._waiting.append(event)
        else:
            super()._tell(event)

    def _wake(self) -> None:
        if not self._is_computing:
            super()._wake()

    def _obey(self, commands: Sequence[ControllerCommand], core: _Core[ControllerCommand]) -> None:
        """
        Carry out *commands*, after the time that a computation among them takes.

        As in the daemon's shell, the core does nothing else meanwhile, events wait, and the last leader message is repeated.
        """
        if not any(isinstance(command, Mark) and command.event == "routes_computed" for command in commands):
            self._carry_out(commands, core)
            self._alarm.set(core.next_wakeup_ns())
            return
        self._is_computing = True
        plan = self._simulation.plan
        done_at_ns = self._queue.now_ns + plan.timing.computation_ns
        computed = partial(self._computed, commands, core)
        self._queue.at(done_at_ns, partial(self._when_awake, computed))
        for at_ns in range(self._queue.now_ns, done_at_ns, plan.timers.leader_refresh_ns)[1:]:
            self._queue.at(at_ns, partial(self._repeat_leader, core))

    def _repeat_leader(self, core: _Core[ControllerCommand]) -> None:
        if core is self._running and self._leader is not None and not self.is_frozen:
            self._send(self._leader)
            self._repeated_at_ns = self._queue.now_ns

    def _computed(self, commands: Sequence[ControllerCommand], core: _Core[ControllerCommand]) -> None:
        if core is not self._running:
            return
        assert self._core is core
        if self._repeated_at_ns is not None:
            self._core.leader_repeated(self._repeated_at_ns)
            self._repeated_at_ns = None
        self._is_computing = False
        self._carry_out(commands, core)
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._tell(event)  # waits again if one before it has started a computation
        if not self._is_computing and core is self._running:
            self._alarm.set(core.next_wakeup_ns())

    def _carry_out(self, commands: Sequence[ControllerCommand], core: _Core[ControllerCommand]) -> None:
        for command in commands:
            if core is not self._running:
                return  # it died meanwhile, and what it had not said yet with it
            match command:
                case PersistEpoch():
                    self._epoch = command.epoch
                case PersistDrains():
                    self._drains = command.drains
                case Exit():
                    self._simulation.record_now("controller_exited", reason=command.reason)
                    self._simulation.broker.disconnect(self.name)
                    self.die()
                case Publish():
                    if isinstance(command.message, Program):
                        self.given[command.message.node] = command.message
                    if isinstance(command.message, Leader):
                        self._leader = command
                        self._simulation.leader_speaks(command.message)
                    self._send(command)
                case Subscribe() | Mark():
                    self._send(command)


class Simulation:
    def __init__(
        self,
        plan: Plan,
        record: Record,
        on_progress: Callable[[int], None],
        make_controller: MakeController = ControllerCore,
    ) -> None:
        self.plan = plan
        self.make_controller = make_controller
        timing, timers = plan.timing, plan.timers
        self.broker: MemoryBroker[Publish] = MemoryBroker(
            stream(plan.seed, "bus"),
            # A delivery is two hops: publisher to broker, broker to reader.
            BusConditions(
                hop_ns=timing.bus_ns // 2,
                jitter_ns=timing.bus_jitter_ns // 2,
                reconnect_ns=timing.reconnect_ns,
                session_timeout_ns=timing.will_ns,
            ),
        )
        self.queue = EventQueue(self.broker)
        self.broker.is_old_news = self._is_old_news
        self.unaware: set[NodeId] = set()
        """Agents that run and have not heard of the leader's epoch yet."""
        self._leader_epoch = 0
        self.topics = Topics()
        self.plane = DataPlane(plan.fabric)
        self.agent_timers = AgentTimers(
            wait_to_restore_ns=timers.wait_to_restore_ns,
            wait_to_restore_max_ns=timers.wait_to_restore_max_ns,
            flap_window_ns=timers.flap_window_ns,
            health_interval_ns=timers.health_interval_ns,
            is_protecting=plan.is_protecting,
        )
        self._record = record
        self._on_progress = on_progress
        self._progress_at_ns = 0
        self._meter = Meter(plan, self.plane, record)
        self._physical = PhysicalFaults(plan.fabric, self.plane)
        self._carrier_rng = stream(plan.seed, "carrier")
        self._topic_of: dict[object, str] = {}
        self._agents = {node: _Agent(node, self) for node in agent_nodes(plan.fabric)}
        self._controller = _Controller(self)
        self._is_finished = False
        self.liveness = Liveness(
            plan.fabric,
            [
                link
                for link in plan.fabric.links.values()
                if not link.is_self_loop and all(end.node in self._agents for end in link.ends)
            ],
            SessionTiming(
                timers.session_interval_ns,
                timers.session_multiplier,
                max(SessionTiming().slow_start_ns, timers.session_interval_ns),
            ),
            self.queue,
            self.plane,
            draws_of=lambda link: RandomDraws(stream(plan.seed, f"session/{link}")),
            is_running=lambda node: self._agents[node].is_running,
            tell=self._session_said,
        )
        self._witness = Witness(plan, self.plane, self, record, restart_ns=timing.start_ns)
        # Faults overlap: how many hold each process down or frozen, and how many cut each client off.
        self._killers: Counter[NodeId] = Counter()
        self._freezers: Counter[NodeId] = Counter()
        self._cutters: Counter[NodeId] = Counter()
        self._broker_killers = 0
        self._operator = self._new_operator() if any(fault.kind is FaultKind.DRAIN for fault in plan.faults) else None

    def run(self) -> None:
        queue, plan = self.queue, self.plan
        queue.at(0, self._boot_everything)
        queue.at(plan.measure_from_ns, self._check_steady_state)
        for fault in plan.faults:
            queue.at(fault.at_ns, partial(self._begin, fault))
            queue.at(fault.end_at_ns, partial(self._end, fault))
        queue.run(plan.duration_ns, instant_ended=self._instant_ended)
        self._witness.finish(plan.duration_ns)
        self._meter.finish(plan.duration_ns)

    # --- what members ask -----------------------------------------------------------------------------------------------
    def mark(self, member: NodeId, mark: Mark) -> None:
        """Record what a core said happened."""
        if member == CONTROLLER and mark.event in ("generation_pushed", "restoration_finished"):
            self._is_finished = mark.event == "restoration_finished"
        self._record(self.queue.now_ns, mark.event, mark.fields | {"node": member})

    def record_now(self, event: str, **fields: object) -> None:
        """Record what the simulation itself did."""
        self._record(self.queue.now_ns, event, fields)

    def topic(self, command: Publish) -> str:
        """Return the topic of *command*; spelling one is dear enough to do it once."""
        topic = self._topic_of.get(command.address)
        if topic is None:
            topic = self._topic_of[command.address] = self.topics.topic(command.address)
        return topic

    def leader_speaks(self, leader: Leader) -> None:
        """Take notice of the epoch that the controller now speaks of."""
        if leader.epoch != self._leader_epoch:
            self._leader_epoch = leader.epoch
            self.unaware = {name for name, agent in self._agents.items() if agent.is_running}

    def leader_heard(self, agent: NodeId, leader: Leader) -> None:
        """Take notice that *agent* knows of the epoch of *leader*."""
        if leader.epoch == self._leader_epoch:
            self.unaware.discard(agent)

    def _is_old_news(self, sent: Publish) -> bool:
        """
        Return whether *sent* is the living leader's refresh while every agent knows of its epoch, which is all they take from it.

        Another controller would learn from it that a leader lives, but here there is only one at a time.
        """
        message = sent.message
        return (
            isinstance(message, Leader)
            and message.state == "alive"
            and message.epoch == self._leader_epoch
            and not self.unaware
        )

    # --- time ------------------------------------------------------------------------------------------------------------
    def _boot_everything(self) -> None:
        self._controller.boot()
        for agent in self._agents.values():
            agent.boot()

    def _instant_ended(self, now_ns: int) -> None:
        self._witness.look(now_ns)
        self._meter.settle(now_ns)
        if now_ns >= self._progress_at_ns:
            self._on_progress(now_ns)
            self._progress_at_ns = now_ns + self.plan.duration_ns // PROGRESS_STEPS

    def _check_steady_state(self) -> None:
        """Say so if the system has not come to rest when the measurement begins."""
        given = self._controller.given
        waiting = [
            node
            for node, agent in self._agents.items()
            if node not in given or agent.installed is None or agent.installed.digest != given[node].digest
        ]
        if waiting or not self._is_finished:
            self.record_now("steady_state_missed", missing=waiting[:20], missing_count=len(waiting))

    # --- faults ----------------------------------------------------------------------------------------------------------
    def _begin(self, fault: Fault) -> None:
        self._meter.before_fault(fault, self.queue.now_ns)
        self.record_now("fault_injected", fault=fault.id, kind=fault.kind.value)
        if fault.kind is FaultKind.DRAIN:
            assert self._operator is not None
            self._operator.begin(fault)
            return  # the controller's answer says whether it takes effect
        self._witness.begin(fault)
        self.inject(fault)

    def _end(self, fault: Fault) -> None:
        self._meter.before_return(fault, self.queue.now_ns)
        if fault.kind is FaultKind.DRAIN:
            assert self._operator is not None
            self._operator.end(fault)
            return
        self._witness.end(fault, self.queue.now_ns)
        self.heal(fault)

    def inject(self, fault: Fault) -> None:
        """Make *fault* happen. Whether it did is the witness' to say."""
        match fault.kind:
            case _ if fault.kind in PHYSICAL:
                self._break(fault)
            case FaultKind.BUS_PARTITION | FaultKind.BROKER_FREEZE:
                for name in self.hit_by(fault):
                    self._cut_off(name)
            case FaultKind.BROKER_KILL:
                self._broker_killers += 1
                if self._broker_killers == 1:
                    # As Mosquitto without persistence: what it retained is lost.
                    self.broker.stop(keeps_retained=False)
            case FaultKind.AGENT_FREEZE | FaultKind.CONTROLLER_FREEZE:
                for name in self.hit_by(fault):
                    self._freeze(name)
            case _:
                for name in self.hit_by(fault):
                    self._kill(name)

    def heal(self, fault: Fault) -> None:
        """Undo *fault*."""
        match fault.kind:
            case _ if fault.kind in PHYSICAL:
                self._mend(fault)
            case FaultKind.BUS_PARTITION | FaultKind.BROKER_FREEZE:
                for name in self.hit_by(fault):
                    self._join(name)
            case FaultKind.BROKER_KILL:
                self._broker_killers -= 1
                if not self._broker_killers:
                    self.broker.start()
            case FaultKind.AGENT_FREEZE | FaultKind.CONTROLLER_FREEZE:
                for name in self.hit_by(fault):
                    self._thaw(name)
            case _:
                for name in self.hit_by(fault):
                    self._revive(name)

    def _new_operator(self) -> Operator:
        """Return somebody who asks the controller over the same bus; a plan without drains has nobody there, so its bus is as it was."""
        client = self.broker.connect(OPERATOR)
        operator = Operator(
            lambda sent: client.publish(self.topic(sent), sent, retain=False, priority=sent.priority),
            lambda event, fields: self.record_now(event, **fields),
            self.queue.after,
        )

        def arrived(topic: str, sent: Publish, is_retained: bool) -> None:
            if isinstance(sent.message, DrainAnswer):
                operator.hear(sent.message)

        client.on_arrival = arrived
        client.subscribe(filters(self.topics, Subscribe(channels=(Channel.DRAIN_ANSWER,))))
        return operator

    # --- what the witness asks -------------------------------------------------------------------------------------------
    def is_stopped(self, kind: FaultKind, name: NodeId) -> bool:
        """Return whether *name* is as a fault of *kind* leaves it."""
        match kind:
            case FaultKind.BUS_PARTITION | FaultKind.BROKER_FREEZE:
                return self._is_cut(name)
            case FaultKind.BROKER_KILL:
                return not self.broker.is_up
            case FaultKind.AGENT_FREEZE | FaultKind.CONTROLLER_FREEZE:
                # A process that is dead already stands still as well, and is not started again before the end.
                member = self._member(name)
                return member.is_frozen or not member.is_running
            case _:
                return not self._member(name).is_running

    def is_free(self, kind: FaultKind, name: NodeId) -> bool:
        """Return whether *name* is as it should be once a fault of *kind* is over."""
        if kind in (FaultKind.AGENT_FREEZE, FaultKind.CONTROLLER_FREEZE):
            return not self._member(name).is_frozen
        return not self.is_stopped(kind, name)

    def hit_by(self, fault: Fault) -> tuple[NodeId, ...]:
        """Return whom a fault of what controls the fabric hits."""
        match fault.kind:
            case FaultKind.CONTROLLER_KILL | FaultKind.CONTROLLER_FREEZE:
                return (CONTROLLER,)
            case FaultKind.BROKER_KILL:
                return (BROKER,)
            case FaultKind.BUS_PARTITION | FaultKind.BROKER_FREEZE:
                return fault.nodes or (*self._agents, CONTROLLER)
            case _:
                return fault.nodes

    def _break(self, fault: Fault) -> None:
        ends = self._physical.inject(fault)
        for node in fault.nodes if fault.kind is FaultKind.NODE_DOWN else ():
            self._cut_off(node)
            self._kill(node)
        self._tell_physical(fault, ends)
        if fault.kind is FaultKind.LINK_FLAP:
            self._turn_over_later(fault)

    def _mend(self, fault: Fault) -> None:
        ends = self._physical.heal(fault)
        for node in fault.nodes if fault.kind is FaultKind.NODE_DOWN else ():
            self._join(node)
            self._revive(node)
        self._tell_physical(fault, ends)

    def _turn_over_later(self, fault: Fault) -> None:
        at_ns = self.queue.now_ns + fault.period_ns // 2
        if at_ns < fault.end_at_ns:
            self.queue.at(at_ns, partial(self._turn_over, fault))

    def _turn_over(self, fault: Fault) -> None:
        self._tell_physical(fault, self._physical.flap(fault))
        self._turn_over_later(fault)

    def _tell_physical(self, fault: Fault, ends: Iterable[LinkEnd]) -> None:
        self._tell_carriers(ends)
        self.liveness.truth_changed(self.plan.links_hit(fault))

    def _session_said(self, end: LinkEnd, said: Said) -> None:
        if isinstance(said, Mark):
            self.mark(end.node, said)
        else:
            self._agents[end.node].hear(said)

    def _member(self, name: NodeId) -> _Agent | _Controller:
        return self._controller if name == CONTROLLER else self._agents[name]

    def _is_cut(self, name: NodeId) -> bool:
        client = self._member(name).client
        return client is not None and client.is_cut

    def _tell_carriers(self, ends: Iterable[LinkEnd]) -> None:
        timing = self.plan.timing
        for end in ends:
            agent = self._agents.get(end.node)
            delay_ns = timing.carrier_ns + self._carrier_rng.randrange(timing.carrier_jitter_ns + 1)
            if agent is not None:
                self.queue.after(delay_ns, partial(agent.see_carrier, end.port))

    def _kill(self, name: NodeId) -> None:
        self._killers[name] += 1
        member = self._member(name)
        was_running = member.is_running
        if isinstance(member, _Agent) and not self.plane.is_node_up(name):
            member.lose_power()
        else:
            member.die()
        if was_running:
            self.broker.kill(name)

    def _revive(self, name: NodeId) -> None:
        self._killers[name] -= 1
        self.queue.after(self.plan.timing.start_ns, partial(self._boot, name))

    def _boot(self, name: NodeId) -> None:
        member = self._member(name)
        if not self._killers[name] and not self._freezers[name] and not member.is_running:
            member.boot()

    def _freeze(self, name: NodeId) -> None:
        self._freezers[name] += 1
        member = self._member(name)
        if self._freezers[name] == 1 and member.is_running:
            member.freeze()
            self.queue.after(self.plan.timing.will_ns, partial(self._give_up, name, member.client))

    def _give_up(self, name: NodeId, client: MemoryClient[Publish] | None) -> None:
        member = self._member(name)
        if member.is_frozen and member.client is client:
            self.broker.give_up(name)

    def _thaw(self, name: NodeId) -> None:
        self._freezers[name] -= 1
        member = self._member(name)
        if self._freezers[name]:
            return
        if member.is_running:
            member.thaw()
            self.broker.look_after(name)
        else:
            self.queue.after(self.plan.timing.start_ns, partial(self._boot, name))

    def _cut_off(self, name: NodeId) -> None:
        self._cutters[name] += 1
        if self._cutters[name] == 1:
            self.broker.partition([name])

    def _join(self, name: NodeId) -> None:
        self._cutters[name] -= 1
        if not self._cutters[name]:
            self.broker.heal([name])


def _controller_timers(plan: Plan) -> ControllerTimers:
    timers = plan.timers
    return ControllerTimers(
        discovery_ns=timers.discovery_ns,
        debounce_min_ns=timers.debounce_min_ns,
        debounce_max_ns=timers.debounce_max_ns,
        ack_wait_ns=timers.ack_wait_ns,
        ack_attempts=timers.ack_attempts,
        leader_refresh_ns=timers.leader_refresh_ns,
        leader_listen_ns=timers.leader_listen_ns,
        is_protecting=plan.is_protecting,
    )
