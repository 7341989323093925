"""What an agent does: reports its ports, applies programs and facts, and keeps forwarding whatever vanishes.

Rule 1: no I/O and no clock; events and the time come in, commands go out, and their outcomes return as events.
Rule 2: nothing is withdrawn because the bus or the controller is silent.
Rule 3: bad news is said at once; good news is said only after the own data plane is ready for it.
Rule 4: what repairs nothing waits while others repair: the second end's word about a link, and what cannot be reached
after a failure that everybody is armed for.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, assert_never

from erfs.ids import DestinationId, NodeId, is_own_end
from erfs.messages import (
    CONTROLLER,
    Ack,
    CannotReach,
    Confirm,
    DownFact,
    DrainAnswer,
    DrainRequest,
    Drains,
    Health,
    Installed,
    Leader,
    Message,
    PortBinding,
    PortHealth,
    Presence,
    Program,
    content_digest,
)
from erfs.ports import BusConnected, BusLost, Delivered, Mark, Priority, Publish, Subscribe, TimerFired
from erfs.topics import Address, Channel
from erfs.units import MS, SECOND
from erfs_agent.forwarding import (
    CompiledProgram,
    FactKey,
    FactSet,
    Forwarder,
    Forwarding,
    KnownFact,
    is_one_failure,
)
from erfs_agent.port_state import Port, PortState, Signal, Waiting
from erfs_agent.probing import SessionDown, SessionUp
from erfs_agent.rehearsal import rehearse
from erfs_agent.state import AgentState, SpokenFact
from erfs_agent.unarmed import UnarmedFacts
from erfs_agent.writes import Routes, Writes
from erfs_agent.writes import RoutesWritten as RoutesWritten
from erfs_agent.writes import WriteRoutes as WriteRoutes

Outcome = Literal["installed", "refused", "failed"]

# Each such word makes a dozen agents look, on hosts that have repairs to do. By then the facts have long been read everywhere, and mostly
# the next generation is there.
_NO_HURRY_NS: Final = 300 * MS


# --- events and commands of the agent alone ------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PortChanged:
    """The hardware says that a port lost or got its carrier."""

    port: str
    oper_up: bool


@dataclass(frozen=True, slots=True)
class Persist:
    """Keep *state* for the next start; a newer one replaces one still waiting to be written."""

    state: AgentState


AgentEvent = Delivered | BusConnected | BusLost | TimerFired | PortChanged | SessionUp | SessionDown | RoutesWritten
AgentCommand = Publish | Subscribe | Mark | WriteRoutes | Persist


@dataclass(frozen=True, slots=True)
class AgentTimers:
    """Times of an agent, where they come from: docs/adr/0007."""

    # Optics and cables that are being reseated bounce for about a second; trusting them sooner only adds outages.
    wait_to_restore_ns: int = 2 * SECOND
    wait_to_restore_max_ns: int = 300 * SECOND
    flap_window_ns: int = 60 * SECOND
    # Reports go out at once on a change; this is for a controller that lost its memory. 0: only on a change.
    health_interval_ns: int = 30 * SECOND
    is_protecting: bool = True
    """False: report, but leave every reaction to the controller."""

    @property
    def waiting(self) -> Waiting:
        """The part that concerns ports."""
        return Waiting(self.wait_to_restore_ns, self.wait_to_restore_max_ns, self.flap_window_ns)


@dataclass(slots=True)
class _OwnPort:
    """A port, and what this node has said about its link."""

    binding: PortBinding
    port: Port
    counter: int = 0
    """The highest counter used, said or about to be said."""
    spoken: SpokenFact | None = None
    has_carrier: bool = True
    has_session: bool = True
    """False: its session says that the far end does not answer. A port without a session, or whose session has said nothing yet, has nothing against it."""

    @property
    def is_working(self) -> bool:
        """Whether carrier and session both allow to use the port, once it has been held long enough."""
        return self.has_carrier and self.has_session

    @property
    def is_said_down(self) -> bool:
        return self.spoken is not None and self.spoken.down


class AgentCore:
    """
    One node's agent.

    Args:
        node: Whose agent this is.
        ports: All ports that have a link.
        settings: Times and whether to protect.
        state: From the last run, None at the first.
        ports_up: Which ports have carrier now; those not named count as down.
        routes_installed: What the data plane holds now, so that a restart changes nothing that is right already;
            None if the driver cannot tell.
        ports_watched: Those with a session. One that its session had called down stays so until the session is up.
    """

    def __init__(
        self,
        node: NodeId,
        ports: tuple[PortBinding, ...],
        settings: AgentTimers,
        state: AgentState | None = None,
        *,
        ports_up: Mapping[str, bool],
        routes_installed: Routes | None = None,
        ports_watched: frozenset[str] = frozenset(),
    ) -> None:
        state = state or AgentState()
        self.node = node
        self.settings = settings
        self._incarnation = state.incarnation + 1
        self._ports: dict[str, _OwnPort] = {}
        for binding in sorted(ports, key=lambda binding: binding.port):
            self._ports[binding.port] = _OwnPort(binding, Port(settings.waiting))
        self._far_ends = frozenset(binding.far_end for binding in ports)
        self._far_end_keys = frozenset((binding.link, binding.far_end) for binding in ports)
        self._spoken_at_start = {fact.port: fact for fact in state.facts if fact.port in self._ports}
        for name, own in self._ports.items():
            own.has_carrier = ports_up.get(name, False)
            own.has_session = not (name in ports_watched and name in state.sessions_down)

        self._program: CompiledProgram | None = None
        if state.program is not None and state.program.node == node:
            self._program = CompiledProgram(state.program)
        self._installed: Installed | None = None
        self._persisted_program = state.program
        self._leader_epoch = 0

        self._facts = FactSet()
        self._unarmed = UnarmedFacts()
        self._unreachable: dict[NodeId, tuple[int, frozenset[DestinationId]]] = {}
        self._forwarder: Forwarder | None = None
        self._forwarding = Forwarding()

        self._writes = Writes(routes_installed or {})
        # What waits for the data plane, each with the change that must be confirmed before.
        self._installing: tuple[int, Program] | None = None
        self._clearing: dict[str, int] = {}

        self._cannot_reach: frozenset[DestinationId] = frozenset(state.cannot_reach)
        self._cannot_reach_counter = state.cannot_reach_counter
        self._cannot_reach_due_ns: int | None = None
        self._facts_due_ns: dict[str, int] = {}
        """The ports whose fact the far end has told already, and when it is to be said all the same."""

        self._is_connected = False
        self._seq = 0
        self._subscription: Subscribe | None = None
        self._health_due_ns: int | None = None
        self._is_state_new = False

    # --- what the shell asks ---------------------------------------------------------------------------------------------
    def start(self, now_ns: int) -> list[AgentCommand]:
        """Return the first commands; forwarding of the last run stays, only what the present ports forbid changes."""
        commands: list[AgentCommand] = []
        self._schedule_health(now_ns)
        for name, own in self._ports.items():
            spoken = self._spoken_at_start.get(name)
            if spoken is not None:
                self._remember_spoken(own, spoken)
            is_up = own.is_working
            if not is_up or own.is_said_down:
                own.port.signal(Signal.CARRIER_LOST, now_ns)
                if not own.is_said_down:
                    self._say_down(own)
                    commands.append(_mark_down(own))
            if is_up and own.is_said_down:
                own.port.signal(Signal.CARRIER_BACK, now_ns)
        commands += self._subscribe()
        if self._program is not None:
            program = self._program.program
            commands += self._adopt(program)
        self._is_state_new = True
        return commands + self._settle(now_ns) + self._persist()

    def handle(self, event: AgentEvent, now_ns: int) -> list[AgentCommand]:
        """Return what to do about *event*, in the order in which to do it."""
        return self._react(event, now_ns) + self._settle(now_ns) + self._persist()

    def rehearse(self) -> None:
        """Work out beforehand what failures would change; nothing changes, but the first repair is no slower than the tenth."""
        if self._program is not None and self.settings.is_protecting:
            rehearse(self._program)

    def next_wakeup_ns(self) -> int | None:
        """Return when `TimerFired` is wanted next, None if never."""
        instants = [own.port.held_until_ns for own in self._ports.values()]
        instants += [self._writes.retry_at_ns, self._health_due_ns, self._cannot_reach_due_ns]
        instants += self._facts_due_ns.values()
        return min((instant for instant in instants if instant is not None), default=None)

    def last_will(self) -> Publish:
        """Return what the broker is to say if this agent vanishes."""
        return Publish(
            Address(Channel.PRESENCE, self.node),
            Presence(sender=self.node, state="gone", incarnation=self._incarnation),
        )

    def stop(self) -> list[AgentCommand]:
        """Return the last commands of an agent that ends on purpose; forwarding stays as it is."""
        self._is_state_new = True
        return self._say_presence("gone") + self._persist()

    def reload(self, settings: AgentTimers) -> None:
        """Use other times from the next event on; waits that have begun end as they were begun."""
        assert settings.is_protecting == self.settings.is_protecting, "protection is chosen at the start"
        self.settings = settings
        for own in self._ports.values():
            own.port.wait_as(settings.waiting)
        if not settings.health_interval_ns:
            self._health_due_ns = None

    @property
    def forwarding(self) -> Forwarding:
        """What the data plane was last asked to hold."""
        return self._forwarding

    @property
    def installed(self) -> Installed | None:
        """The program whose routes the data plane confirmed."""
        return self._installed

    def _react(self, event: AgentEvent, now_ns: int) -> list[AgentCommand]:
        match event:
            case Delivered():
                return self._on_delivered(event.address, event.message)
            case PortChanged():
                return self._on_port_changed(event, now_ns)
            case SessionUp() | SessionDown():
                return self._on_session_changed(event, now_ns)
            case RoutesWritten():
                return self._on_routes_written(event, now_ns)
            case TimerFired():
                return self._on_timer(now_ns)
            case BusConnected():
                self._is_connected = True
                return self._introduce(now_ns)
            case BusLost():
                self._is_connected = False
                return []
            case _:
                assert_never(event)

    # --- ports -----------------------------------------------------------------------------------------------------------
    def _on_port_changed(self, event: PortChanged, now_ns: int) -> list[AgentCommand]:
        own = self._ports.get(event.port)
        if own is None:
            return [Mark("port_unknown", {"port": event.port})]
        own.has_carrier = event.oper_up
        return self._judge_port(own, now_ns)

    def _on_session_changed(self, event: SessionUp | SessionDown, now_ns: int) -> list[AgentCommand]:
        own = self._ports[event.port]
        has_session = isinstance(event, SessionUp)
        self._is_state_new |= has_session != own.has_session
        own.has_session = has_session
        return self._judge_port(own, now_ns)

    def _judge_port(self, own: _OwnPort, now_ns: int) -> list[AgentCommand]:
        """Act on whether the port works: it does with carrier and session, and lacks one of them otherwise."""
        if not own.port.signal(Signal.CARRIER_BACK if own.is_working else Signal.CARRIER_LOST, now_ns):
            return []
        if own.is_working:
            return [_mark_port("port_up_detected", own), *self._say_health(now_ns)]
        self._clearing.pop(own.binding.port, None)
        commands: list[AgentCommand] = [_mark_down(own)]
        is_news = not own.is_said_down
        if is_news or own.spoken is None or own.spoken.counter != own.counter:
            self._say_down(own)
            is_news = True
        commands += self._apply()
        if is_news and self._is_told_by_far_end(own):
            self._facts_due_ns[own.binding.port] = now_ns + _NO_HURRY_NS
        elif is_news:
            commands += self._publish_fact(own)
        return commands + self._say_health(now_ns)

    def _is_told_by_far_end(self, own: _OwnPort) -> bool:
        """Return whether whoever is armed for the link knows of it already, and this end's word is no testimony against the far end."""
        binding = own.binding
        told = self._facts.get(binding.link, binding.far_end)
        if told is None or not told.down:
            return False
        return not any(
            link != binding.link and self._facts.far_end((link, reporter)) == binding.far_end
            for link, reporter in self._facts.down
        )

    def _say_down(self, own: _OwnPort) -> None:
        own.counter += 1
        self._remember_spoken(own, SpokenFact(port=own.binding.port, counter=own.counter, down=True))

    def _remember_spoken(self, own: _OwnPort, spoken: SpokenFact) -> None:
        own.spoken = spoken
        own.counter = spoken.counter
        self._is_state_new = True
        self._know_own(own, down=spoken.down)

    def _know_own(self, own: _OwnPort, *, down: bool) -> None:
        binding = own.binding
        self._facts = self._facts.with_fact(binding.link, self.node, own.counter, down, binding.far_end)

    def _on_timer(self, now_ns: int) -> list[AgentCommand]:
        commands: list[AgentCommand] = []
        restored = [
            own
            for own in self._ports.values()
            if own.port.held_until_ns is not None and own.port.held_until_ns <= now_ns
        ]
        for own in restored:
            own.port.signal(Signal.WAIT_OVER, now_ns)
            own.counter += 1
            self._know_own(own, down=False)
            commands.append(_mark_port("port_restored", own))
        retry_at_ns = self._writes.retry_at_ns
        if restored or (retry_at_ns is not None and retry_at_ns <= now_ns):
            commands += self._apply()
            # The far end may send here as soon as it reads the up fact, so the own data plane comes first.
            for own in restored:
                self._clearing[own.binding.port] = self._writes.change
        if self._health_due_ns is not None and self._health_due_ns <= now_ns:
            commands += self._say_health(now_ns)
        return commands

    # --- messages --------------------------------------------------------------------------------------------------------
    def _on_delivered(self, address: Address, message: Message) -> list[AgentCommand]:
        match message:
            case Program():
                return self._on_program(message)
            case DownFact():
                return self._on_fact(message)
            case CannotReach():
                return self._on_cannot_reach(message)
            case Leader():
                self._leader_epoch = max(self._leader_epoch, message.epoch)
                return []
            case Presence() | Health() | Ack() | Confirm() | DrainRequest() | DrainAnswer() | Drains():
                # Not for agents; a broker may still hand out what nobody here asked for.
                return []
            case _:
                assert_never(message)

    def _on_fact(self, fact: DownFact) -> list[AgentCommand]:
        if fact.sender == self.node:
            return self._on_own_fact(fact)
        if not is_own_end(fact.link, (fact.sender, fact.port), fact.far_end):
            return self._refuse_fact(fact, "not an end of this link")
        key = (fact.link, fact.sender)
        word = KnownFact(fact.counter, fact.down, fact.far_end)
        reason = self._why_not(key, fact.far_end)
        if reason is not None:
            self._unarmed.keep(key, word)
            return self._refuse_fact(fact, reason) if reason else []
        facts = self._facts.with_word(key, word)
        if facts is self._facts:
            return []
        self._facts = facts
        fields: dict[str, object] = {"link": fact.link, "reporter": fact.sender, "counter": fact.counter}
        return [Mark("fact_received", fields | {"down": fact.down}), *self._apply()]

    def _refuse_fact(self, fact: DownFact, reason: str) -> list[AgentCommand]:
        if not self._unarmed.count_refusal(fact.sender):
            return []
        fields: dict[str, object] = {"link": fact.link, "reporter": fact.sender, "reason": reason}
        return [Mark("fact_refused", fields | {"count": self._unarmed.refused_count})]

    def _why_not(self, key: FactKey, far_end: NodeId) -> str | None:
        """Return why a fact must not be used, None if it may be, "" if it is no offence: not armed for it now."""
        if key in self._far_end_keys:
            return None
        if self._program is None:
            return ""
        if self._program.failures_of(*key, far_end):
            return None
        if key[1] in self._program.reporters or key[1] in self._far_ends:
            return ""
        return "no witness of anything here"

    def _on_own_fact(self, fact: DownFact) -> list[AgentCommand]:
        """Our own word as the broker retains it; newer than what we remember if the last run died before it wrote."""
        name = fact.port
        own = self._ports.get(name)
        if own is None or own.binding.link != fact.link:
            return []
        retained = SpokenFact(port=name, counter=fact.counter, down=fact.down)
        if fact.counter < own.counter or retained == own.spoken:
            return []
        self._clearing.pop(name, None)
        own.counter = fact.counter
        is_down = own.port.state is not PortState.UP
        if fact.down != is_down:
            own.counter += 1
        self._remember_spoken(own, SpokenFact(port=name, counter=own.counter, down=is_down))
        said = self._publish_fact(own) if own.counter != fact.counter else []
        return [*self._apply(), *said]

    def _on_cannot_reach(self, message: CannotReach) -> list[AgentCommand]:
        destinations = frozenset(message.destinations)
        if message.sender == self.node:
            is_old = message.counter < self._cannot_reach_counter
            if is_old or (message.counter, destinations) == (self._cannot_reach_counter, self._cannot_reach):
                return []
            self._cannot_reach_counter = message.counter
            return self._say_cannot_reach(self._cannot_reach)
        if message.sender not in self._far_ends:
            return []
        known = self._unreachable.get(message.sender)
        if known is not None and known[0] >= message.counter:
            return []
        self._unreachable[message.sender] = (message.counter, destinations)
        fields: dict[str, object] = {"reporter": message.sender, "destinations": sorted(destinations)}
        return [Mark("cannot_reach_received", fields), *self._apply()]

    # --- programs --------------------------------------------------------------------------------------------------------
    def _on_program(self, program: Program) -> list[AgentCommand]:
        reason, is_alarm = self._objection(program)
        if reason:
            return self._refuse(program, reason, is_alarm=is_alarm)
        current = self._program.program if self._program is not None else None
        if current is not None and _version(program) == _version(current):
            # The broker says it again, after a reconnect or from a second broker. Pending: the answer is on its way.
            return self._acknowledge(program, "installed") if self._installing is None else []
        return self._adopt(program)

    def _objection(self, program: Program) -> tuple[str, bool]:
        """Return why *program* must not be used ("" if it may be), and whether that is an alarm."""
        if program.node != self.node:
            return f'for node "{program.node}"', True
        if program.sender != CONTROLLER:
            return f'from "{program.sender}", not from the controller', True
        current = self._program.program if self._program is not None else None
        if current is not None:
            if _version(program) < _version(current):
                return f"older than {current.epoch}.{current.generation}, which runs", False
            if _version(program) == _version(current):
                is_same = program.digest == current.digest
                return "" if is_same else f"other content than the {current.epoch}.{current.generation} that runs", True
        if program.epoch < self._leader_epoch:
            return f"of epoch {program.epoch}, but the leader has {self._leader_epoch}", False
        if content_digest(program) != program.digest:
            return f"digest {program.digest} does not match the content", True
        used = {member.port for group in program.groups for member in group.members}
        used.update(port for backup in program.backups or () for port in backup.ports)
        unknown = sorted(used - self._ports.keys())
        if unknown:
            return f"uses ports this node does not have: {', '.join(unknown)}", True
        return "", False

    def _refuse(self, program: Program, reason: str, *, is_alarm: bool) -> list[AgentCommand]:
        fields: dict[str, object] = {
            "epoch": program.epoch,
            "generation": program.generation,
            "reason": reason,
            "alarm": is_alarm,
        }
        return [Mark("program_refused", fields), *self._acknowledge(program, "refused", reason)]

    def _adopt(self, program: Program) -> list[AgentCommand]:
        if self._program is not None and self._program.program.digest == program.digest:
            self._program = self._program.restamped(program)
        else:
            self._program = CompiledProgram(program)
        self._sort_facts()
        commands = self._apply()
        self._installing = (self._writes.change, program)
        return commands + self._subscribe()

    def _sort_facts(self) -> None:
        """Take in the facts that the new program names, put aside those it no longer does; none is forgotten."""
        for key, word in self._unarmed.take(lambda key, far_end: self._why_not(key, far_end) is None):
            self._facts = self._facts.with_word(key, word)
        aside = [
            (key, word)
            for key, word in self._facts.items()
            if key[1] != self.node and self._why_not(key, word.far_end) is not None
        ]
        for key, word in aside:
            self._unarmed.keep(key, word)
        if aside:
            self._facts = self._facts.without(key for key, _ in aside)

    def _acknowledge(self, program: Program, outcome: Outcome, reason: str = "") -> list[AgentCommand]:
        return self._publish(
            Address(Channel.ACK, self.node),
            Ack(
                sender=self.node,
                program_epoch=program.epoch,
                generation=program.generation,
                digest=program.digest,
                outcome=outcome,
                reason=reason,
                installed=self._installed,
                **self._stamp(),
            ),
        )

    # --- the data plane --------------------------------------------------------------------------------------------------
    def _apply(self) -> list[AgentCommand]:
        """Work out the forwarding and request what differs."""
        if self._program is None:
            return []
        ports_down, unreachable = self._ports_down(), self._unreachable_from()
        if self._forwarder is None or self._forwarder.compiled is not self._program:
            self._forwarder = Forwarder(self._program, is_protecting=self.settings.is_protecting)
        wanted = self._forwarder.update(self._facts, ports_down, unreachable)
        self._forwarding = wanted
        return self._request(wanted, ports_down)

    def _ports_down(self) -> frozenset[str]:
        return frozenset(name for name, own in self._ports.items() if own.port.state is not PortState.UP)

    def _unreachable_from(self) -> dict[NodeId, frozenset[DestinationId]]:
        return {node: destinations for node, (_, destinations) in self._unreachable.items()}

    def _request(self, wanted: Forwarding, ports_down: Iterable[str]) -> list[AgentCommand]:
        assert self._program is not None
        failures = tuple(sorted({*wanted.active, *(self._ports[port].binding.link for port in ports_down)}))
        write = self._writes.request(wanted.routes, failures, _installed_by(self._program.program), wanted.backups)
        if write is None:
            return []
        if self._installing is not None:
            # This write holds what an earlier one of the installation could not do, or did and will be answered first.
            self._installing = (write.change, self._installing[1])
        return [Mark("change_requested", {"change": write.change, "failures": list(failures)}), write]

    def _on_routes_written(self, event: RoutesWritten, now_ns: int) -> list[AgentCommand]:
        if event.is_ok:
            request = self._writes.confirmed(event.change)
            program = request.program
            fields: dict[str, object] = {"epoch": program.epoch, "generation": program.generation}
            return [Mark("change_acknowledged", {"change": event.change, "failures": list(request.failures)} | fields)]
        request, is_tried_again = self._writes.refused(event.change, now_ns)
        commands: list[AgentCommand] = [
            Mark(
                "change_failed",
                {
                    "change": event.change,
                    "failures": list(request.failures),
                    "reason": event.reason,
                    "retry": is_tried_again,
                },
            )
        ]
        if self._installing is not None and self._installing[0] == event.change:
            commands += self._acknowledge(self._installing[1], "failed", event.reason)
        return commands

    def _settle(self, now_ns: int) -> list[AgentCommand]:
        """Say the good news that waited for the data plane, and what else can wait no longer."""
        commands = self._settle_installation()
        for name, due_ns in sorted(self._facts_due_ns.items()):
            own = self._ports[name]
            if due_ns <= now_ns or not self._is_told_by_far_end(own):
                commands += self._publish_fact(own)
        cleared = [
            self._ports[name] for name, change in sorted(self._clearing.items()) if self._writes.is_confirmed(change)
        ]
        for own in cleared:
            del self._clearing[own.binding.port]
            own.spoken = SpokenFact(port=own.binding.port, counter=own.counter, down=False)
            self._is_state_new = True
            commands += self._publish_fact(own)
        if cleared:
            commands += self._say_health(now_ns)
        return commands + self._settle_cannot_reach(now_ns)

    def _settle_cannot_reach(self, now_ns: int) -> list[AgentCommand]:
        wanted = self._forwarding.cannot_reach
        if wanted <= self._cannot_reach:
            self._cannot_reach_due_ns = None
            is_ready = wanted != self._cannot_reach and self._writes.is_confirmed(self._writes.change)
            return self._say_cannot_reach(wanted) if is_ready else []
        assert self._program is not None
        if is_one_failure(self._program, self._facts, self._ports_down(), self._unreachable_from()):
            if self._cannot_reach_due_ns is None:
                self._cannot_reach_due_ns = now_ns + _NO_HURRY_NS
            if now_ns < self._cannot_reach_due_ns:
                return []
        self._cannot_reach_due_ns = None
        return self._say_cannot_reach(wanted | self._cannot_reach)

    def _settle_installation(self) -> list[AgentCommand]:
        if self._installing is None or not self._writes.is_confirmed(self._installing[0]):
            return []
        _, program = self._installing
        self._installing = None
        before = self._installed
        self._installed = _installed_by(program)
        commands: list[AgentCommand] = [
            Mark("program_installed", {"epoch": program.epoch, "generation": program.generation}),
            *self._acknowledge(program, "installed"),
        ]
        if self._installed != before:
            # A controller that starts now must not believe that an older program runs here.
            commands += self._say_presence("online")
        if self._persisted_program is not program:
            self._persisted_program = program
            self._is_state_new = True
        return commands

    # --- speaking --------------------------------------------------------------------------------------------------------
    def _introduce(self, now_ns: int) -> list[AgentCommand]:
        """Say again everything that others must know of this node."""
        commands = self._say_presence("online")
        for own in self._ports.values():
            if own.spoken is not None:
                commands += self._publish_fact(own)
        if self._cannot_reach_counter:
            commands += self._publish_cannot_reach()
        return [*commands, *self._say_health(now_ns)]

    def _publish_fact(self, own: _OwnPort) -> list[AgentCommand]:
        binding, spoken = own.binding, own.spoken
        assert spoken is not None
        self._facts_due_ns.pop(binding.port, None)
        if not self._is_connected:
            return []
        fact = DownFact(
            sender=self.node,
            link=binding.link,
            port=binding.port,
            far_end=binding.far_end,
            counter=spoken.counter,
            down=spoken.down,
            **self._stamp(),
        )
        fields: dict[str, object] = {"link": binding.link, "counter": spoken.counter, "down": spoken.down}
        address = Address(Channel.FACT, self.node, binding.port)
        return [*self._publish(address, fact, Priority.URGENT), Mark("fact_published", fields)]

    def _say_cannot_reach(self, destinations: frozenset[DestinationId]) -> list[AgentCommand]:
        self._cannot_reach = destinations
        self._cannot_reach_counter += 1
        self._is_state_new = True
        return self._publish_cannot_reach()

    def _publish_cannot_reach(self) -> list[AgentCommand]:
        if not self._is_connected:
            return []
        ordered = tuple(sorted(self._cannot_reach))
        message = CannotReach(
            sender=self.node, counter=self._cannot_reach_counter, destinations=ordered, **self._stamp()
        )
        address = Address(Channel.CANNOT_REACH, self.node)
        return [
            *self._publish(address, message, Priority.URGENT),
            Mark("cannot_reach_published", {"destinations": list(ordered)}),
        ]

    def _say_presence(self, state: Literal["online", "gone"]) -> list[AgentCommand]:
        presence = Presence(
            sender=self.node,
            state=state,
            incarnation=self._incarnation,
            installed=self._installed,
            **self._stamp(),
        )
        return self._publish(Address(Channel.PRESENCE, self.node), presence)

    def _say_health(self, now_ns: int) -> list[AgentCommand]:
        self._schedule_health(now_ns)
        if not self._is_connected:
            return []
        health = Health(sender=self.node, ports=self._health(), installed=self._installed, **self._stamp())
        return self._publish(Address(Channel.HEALTH, self.node), health)

    def _health(self) -> tuple[PortHealth, ...]:
        return tuple(
            PortHealth(
                port=name,
                link=own.binding.link,
                far_end=own.binding.far_end,
                oper_up=own.has_carrier,
                held=own.has_carrier and own.is_said_down,
                counter=own.spoken.counter if own.spoken is not None else 0,
            )
            for name, own in self._ports.items()
        )

    def _schedule_health(self, now_ns: int) -> None:
        if self.settings.health_interval_ns:
            self._health_due_ns = now_ns + self.settings.health_interval_ns

    def _stamp(self) -> dict[str, int]:
        """Return the epoch, and the number of the message about to be published; unused numbers are given again."""
        epoch = self._leader_epoch
        if self._program is not None:
            epoch = max(epoch, self._program.program.epoch)
        return {"epoch": epoch, "seq": self._seq + 1}

    def _publish(self, address: Address, message: Message, priority: Priority = Priority.ROUTINE) -> list[AgentCommand]:
        if not self._is_connected:
            return []
        self._seq += 1
        return [Publish(address, message, priority)]

    def _subscribe(self) -> list[AgentCommand]:
        """
        Ask for what this node is armed for, and for its own retained words.

        Only far ends that lead somewhere can say that they cannot reach it: endpoints' ports are left out.
        """
        through: frozenset[NodeId] = self._program.transit_far_ends if self._program is not None else frozenset()
        reporters: frozenset[NodeId] = self._program.reporters if self._program is not None else frozenset()
        neighbours = self._far_ends
        if not self.settings.is_protecting:
            through = reporters = neighbours = frozenset()
        wanted = Subscribe(
            addresses=(
                Address(Channel.PROGRAM, self.node),
                Address(Channel.LEADER),
                *(Address(Channel.CANNOT_REACH, node) for node in sorted({*through, self.node})),
            ),
            facts_of=tuple(sorted({*reporters, *neighbours, self.node})),
        )
        if wanted == self._subscription:
            return []
        self._subscription = wanted
        return [wanted]

    def _persist(self) -> list[AgentCommand]:
        if not self._is_state_new:
            return []
        self._is_state_new = False
        spoken = (own.spoken for own in self._ports.values())
        state = AgentState(
            incarnation=self._incarnation,
            program=self._persisted_program,
            facts=tuple(fact for fact in spoken if fact is not None),
            sessions_down=tuple(name for name, own in self._ports.items() if not own.has_session),
            cannot_reach_counter=self._cannot_reach_counter,
            cannot_reach=tuple(sorted(self._cannot_reach)),
        )
        return [Persist(state)]


def _mark_port(event: str, own: _OwnPort) -> Mark:
    return Mark(event, {"port": own.binding.port, "link": own.binding.link})


def _mark_down(own: _OwnPort) -> Mark:
    mark = _mark_port("port_down_detected", own)
    return Mark(mark.event, mark.fields | {"cause": "session"}) if own.has_carrier else mark


def _version(program: Program) -> tuple[int, int]:
    return program.epoch, program.generation


def _installed_by(program: Program) -> Installed:
    return Installed(epoch=program.epoch, generation=program.generation, digest=program.digest)
