"""The controller: evidence in, programs out. Wires the parts; each decision is one of theirs.

Rule 1: `handle` is a pure step: no I/O, no clock, no chance; equal events give equal commands on every machine.
Rule 2: programs are pushed only while leading, and only what the guard and the verifier let pass.
Rule 3: nothing here decides: whom to believe is detection's, when to compute is routes', in which order to push is programming's.
"""

from dataclasses import dataclass
from typing import Final

from erfs.fabric import Fabric
from erfs.ids import LinkId, NodeId
from erfs.messages import (
    Ack,
    CannotReach,
    Confirm,
    DownFact,
    DrainAnswer,
    DrainRequest,
    Drains,
    Health,
    Leader,
    Presence,
    Program,
)
from erfs.ports import BusConnected, BusLost, Delivered, Mark, Publish, Subscribe, TimerFired
from erfs.topics import Address, Channel
from erfs_controller.detection import Detection
from erfs_controller.drain import DrainList, Use
from erfs_controller.election import Election, Phase
from erfs_controller.guard import Guard
from erfs_controller.orders import Orders, PersistDrains
from erfs_controller.programming import Programming
from erfs_controller.roster import Roster
from erfs_controller.routes import Routes
from erfs_controller.sequence import Sequence
from erfs_controller.timers import ControllerTimers

__all__ = [
    "Command",
    "ControllerCore",
    "ControllerTimers",
    "Event",
    "Exit",
    "FabricReloaded",
    "PersistDrains",
    "PersistEpoch",
]


@dataclass(frozen=True, slots=True)
class FabricReloaded:
    """The operator's fabric file was read again, and it was sound."""

    fabric: Fabric


@dataclass(frozen=True, slots=True)
class PersistEpoch:
    """Keep *epoch* where the next start finds it, before anything is pushed in it."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Exit:
    """Another controller leads: end the process, without a farewell that would speak for the other."""

    reason: str


Event = Delivered | BusConnected | BusLost | TimerFired | FabricReloaded
Command = Publish | Subscribe | Mark | PersistEpoch | PersistDrains | Exit

_REPORTS: Final = (Channel.PRESENCE, Channel.HEALTH, Channel.FACT, Channel.ACK)
# Topics that belong to no node.
_COMMON: Final = (
    Address(Channel.LEADER),
    Address(Channel.CONFIRM),
    Address(Channel.DRAIN),
    Address(Channel.DRAINS),
)


class ControllerCore:
    """
    One controller of one fabric.

    Args:
        fabric: As built.
        settings: Timers, and whether to arm for failures.
        controller_id: Unlike any other controller's, also unlike that of this one's last run.
        stored_epoch: The epoch last persisted, 0 if none.
        stored_drains: What was drained when that was last persisted, None if it never was.
        wall_offset_ns: The wall clock's reading less that of the clock of ``now_ns``.
    """

    def __init__(
        self,
        fabric: Fabric,
        settings: ControllerTimers,
        controller_id: str,
        stored_epoch: int = 0,
        stored_drains: Drains | None = None,
        wall_offset_ns: int = 0,
    ) -> None:
        sequence = Sequence()
        self._fabric = fabric
        self._detection = Detection(fabric)
        self._roster = Roster(fabric.nodes)
        self._routes = Routes(fabric, settings)
        self._drains = DrainList(self._routes.topology, settings.floor_ppm, stored_drains)
        self._orders = Orders(self._drains, sequence, wall_offset_ns)
        self._guard = Guard(fabric)
        self._election = Election(controller_id, stored_epoch, settings, sequence)
        self._programming = Programming(self._roster, self._detection.is_cut_off, settings, sequence)
        self._epoch_led = 0
        self._is_pushing = False
        self._has_left = False
        self._is_bus_new = False
        self._settled_for: tuple[int, frozenset[LinkId]] | None = None
        """What is drained, and down, as the programs under way or running take into account."""
        self._is_yielding = False

    # --- the interface ------------------------------------------------------------------------------------------------
    def start(self, now_ns: int) -> list[Command]:
        """Return what to do first; the rest follows when the bus is there. *now_ns* starts no timer yet."""
        # What an earlier reign left on the agents' topics is read once, to compare with what would be pushed.
        return [Subscribe(channels=(*_REPORTS, Channel.PROGRAM), addresses=_COMMON)]

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """Take in one event and do what is due. Cost: look-ups, unless a computation is due (`erfs.paths.compute`)."""
        commands: list[Command] = []
        match event:
            case Delivered():
                commands += self._hear(event, now_ns)
            case BusConnected():
                self._election.connected(now_ns)
                if self._is_pushing:
                    commands += self._republish()
                else:
                    # The first reign of this process takes over what is on the topics as it is.
                    self._is_bus_new = self._epoch_led > 0
            case BusLost():
                self._election.disconnected()
            case FabricReloaded(fabric):
                commands += self._replace_fabric(fabric, now_ns)
            case TimerFired():
                pass
        commands += self._advance(now_ns)
        return commands + self._tell_operators(commands)

    def is_computation_near(self, event: Event, now_ns: int) -> bool:
        """
        Return whether handling *event* now may compute routes, which on a large fabric takes seconds.

        For a shell that has other things to do meanwhile: nothing else of the core may be called until `handle` returns.
        """
        if isinstance(event, FabricReloaded):
            return True
        if isinstance(event, Delivered) and isinstance(event.message, Confirm | DrainRequest):
            return True
        return self._election.may_lead(now_ns) and self._routes.may_be_due(now_ns)

    def leader_repeated(self, now_ns: int) -> None:
        """The shell has said the last leader message again, at *now_ns*, while `handle` was at work: this was no freeze."""
        self._election.refreshed(now_ns)

    def next_wakeup_ns(self) -> int | None:
        """Return the instant of the next TimerFired, None if only an event can change anything."""
        instants = [self._election.next_wakeup_ns()]
        if self._election.is_leading:
            instants += [
                self._routes.next_wakeup_ns(),
                self._programming.next_wakeup_ns(),
                self._orders.next_wakeup_ns(),
            ]
        return min((instant for instant in instants if instant is not None), default=None)

    def last_will(self) -> Publish:
        """Return what the broker shall say when this controller vanishes."""
        return self._election.last_will()

    def farewell(self) -> list[Command]:
        """Return what to say before a clean end: that nobody leads now. Nothing if this controller does not lead."""
        return [self._election.farewell()] if self._election.is_leading else []

    # --- events -------------------------------------------------------------------------------------------------------
    def _hear(self, event: Delivered, now_ns: int) -> list[Command]:
        match event.message:
            case DownFact() as fact:
                self._election.saw_epoch(fact.epoch, now_ns)
                return self._judged(self._detection.hear_fact(fact), now_ns)
            case Health() as health:
                self._election.saw_epoch(health.epoch, now_ns)
                went_on = self._programming.hear_installed(health.sender, health.installed, now_ns)
                return [*went_on, *self._judged(self._detection.hear_health(health), now_ns)]
            case Presence() as presence:
                return self._hear_presence(presence, now_ns)
            case Ack() as ack:
                self._election.saw_epoch(ack.epoch, now_ns)
                return [*self._programming.hear_ack(ack, now_ns)]
            case Program() as program:
                if self._epoch_led == 0:
                    self._election.saw_epoch(program.epoch, now_ns)
                    self._roster.hear_given(program)
                return []
            case Leader() as leader:
                return [*self._election.hear(leader, now_ns, is_retained=event.is_retained)]
            case Confirm() as confirm:
                return self._confirm(confirm, now_ns)
            case DrainRequest() as request:
                return self._hear_operator(request, now_ns)
            case Drains() as drains:
                return self._told_of_drains(self._orders.hear_predecessor(drains), now_ns)
            case DrainAnswer():
                return []
            case CannotReach():
                # Between agents: which next hops to avoid until the next generation.
                return []

    def _hear_presence(self, presence: Presence, now_ns: int) -> list[Command]:
        node, is_online = presence.sender, presence.state == "online"
        if is_online:
            # A last will was written long before it is said, under whatever epoch it was then.
            self._election.saw_epoch(presence.epoch, now_ns)
        if not self._roster.hear_presence(presence):
            return [*self._programming.hear_installed(node, presence.installed, now_ns)] if is_online else []
        marks = self._detection.hear_presence(node, is_online=is_online)
        commands = [*self._judged(marks, now_ns), *self._programming.agent_moved(node, now_ns)]
        if self._programming.is_plan_stale:
            self._routes.plan_anew(now_ns)
        return commands

    def _judged(self, marks: list[Mark], now_ns: int) -> list[Command]:
        if any(mark.event in ("link_down_adjudicated", "link_up_adjudicated") for mark in marks):
            self._routes.news(now_ns)
            return [*marks, *self._programming.reconsider(now_ns)]
        return [*marks]

    def _replace_fabric(self, fabric: Fabric, now_ns: int) -> list[Command]:
        self._fabric = fabric
        self._roster.add_nodes(fabric.nodes)
        self._routes.replace_fabric(fabric)
        self._drains.replace_fabric(self._routes.topology)
        return self._judged(self._detection.replace_fabric(fabric), now_ns)

    def _confirm(self, confirm: Confirm, now_ns: int) -> list[Command]:
        if not self._election.is_leading or not self._guard.confirm(confirm.generation):
            return [Mark("confirmation_ignored", {"generation": confirm.generation, "reason": confirm.reason})]
        return [
            Mark("push_confirmed", {"generation": confirm.generation, "reason": confirm.reason}),
            *self._compute(self._drains.use(self._detection.unusable), now_ns),
        ]

    def _hear_operator(self, request: DrainRequest, now_ns: int) -> list[Command]:
        if not self._election.is_leading:
            # Whoever leads answers.
            return []
        return self._told_of_drains(self._orders.hear(request, self._detection.unusable, now_ns), now_ns)

    def _told_of_drains(self, commands: list[Publish | Mark | PersistDrains], now_ns: int) -> list[Command]:
        if any(isinstance(command, PersistDrains) for command in commands):
            self._routes.news(now_ns)
        return [*commands]

    def _tell_operators(self, commands: list[Command]) -> list[Command]:
        def is_current() -> bool:
            return self._settled_for == (self._drains.revision, self._detection.unusable)

        def users() -> tuple[NodeId, ...]:
            return self._programming.may_still_use(self._drains.carrying_nothing())

        is_idle = self._programming.is_idle
        return [*self._orders.follow(commands, is_current=is_current, is_idle=is_idle, users=users)]

    # --- what is due --------------------------------------------------------------------------------------------------
    def _advance(self, now_ns: int) -> list[Command]:
        said = self._election.advance(now_ns)
        match self._election.phase:
            case Phase.LEADING:
                resumed = [] if self._is_pushing else self._take_lead(now_ns)
                due: list[Command] = [*self._orders.end_those_over(now_ns)]
                if due:
                    self._routes.news(now_ns)
                if self._routes.may_be_due(now_ns):
                    use = self._drains.use(self._detection.unusable)
                    if self._routes.is_due(now_ns, use):
                        due += self._compute(use, now_ns)
                    self._settled_for = (self._drains.revision, self._detection.unusable)
                self._routes.settle(now_ns)
                return [*resumed, *said, *due, *self._programming.tick(now_ns)]
            case Phase.LEFT:
                if self._has_left:
                    return []
                self._stop_pushing()
                self._has_left = True
                return [self._election.departure(), Exit(self._election.reason_to_leave())]
            case Phase.OFFLINE | Phase.LISTENING:
                self._stop_pushing()
                return [*said]

    def _take_lead(self, now_ns: int) -> list[Command]:
        commands: list[Command] = []
        epoch = self._election.epoch
        if epoch != self._epoch_led:
            self._epoch_led = epoch
            self._routes.forget()
            commands += [
                PersistEpoch(epoch),
                Mark("became_leader", {"epoch": epoch}),
                Subscribe(channels=_REPORTS, addresses=_COMMON),
                *self._orders.lead(epoch),
            ]
        if self._is_bus_new:
            commands += self._republish()
        commands += self._programming.resume(epoch, now_ns)
        self._is_pushing, self._is_bus_new = True, False
        return commands

    def _republish(self) -> list[Command]:
        drained = [self._orders.announcement()] if self._drains.revision else []
        return [*self._programming.republish(), *drained]

    def _stop_pushing(self) -> None:
        self._is_pushing = False
        self._programming.pause()

    def _compute(self, use: Use, now_ns: int) -> list[Command]:
        down = self._detection.unusable
        computed = self._routes.compute(use, self._detection.facts())
        # What is drained works still: nothing that takes it may be lost while others move away.
        plan = self._programming.plan(computed.programs, self._fabric, down)
        generation = self._programming.next_generation
        mark = Mark(
            "routes_computed",
            {
                "generation": generation,
                "changed": plan.changed_count,
                "rounds": len(plan.rounds),
                "unprotected": len(computed.unprotected),
            },
        )
        marks: list[Command] = [mark]
        if use.is_yielding != self._is_yielding:
            self._is_yielding = use.is_yielding
            marks.append(Mark("drains_yielded" if use.is_yielding else "drains_resumed", {"generation": generation}))
        words, drained = self._detection.words(), use.unusable - down
        refusal = self._guard.check(plan.before, plan.after, words, self._fabric, generation, drained)
        if refusal is not None:
            self._programming.hold(refusal.generation)
            return [*marks, refusal.mark()]
        return [*marks, *self._programming.begin(plan, now_ns)]
