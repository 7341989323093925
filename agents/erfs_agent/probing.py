"""Does the far end of each port answer? All liveness sessions of one node: RFC 5880's asynchronous mode, without I/O.

Rule 1: every change of a session's state happens in `next_state`.
Rule 2: what was received is read before anybody is judged; an observer that was itself late is no evidence.
Rule 3: only the neighbour that the cabling plan names can bring a session up: its discriminator says who it is.
Rule 4: nothing here knows sockets, clocks, programs or facts.
"""

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, assert_never

from erfs.errors import Bug, FabricError, WireError
from erfs.ids import LinkId, NodeId
from erfs.ports import Mark, TimerFired
from erfs.units import MS, SECOND, US
from erfs_agent.session_packet import ControlPacket, Diagnostic, SessionState, decode, encode

HOP_LIMIT: Final = 255
"""What every packet arrives with unless a router touched it: nobody off the link can send one (RFC 5082)."""

QUANTUM_NS: Final = 1 * MS
"""
The shell is woken no more often than this; what would be due before the next waking is sent early rather than late.

An event loop's timers have a resolution of 1 ms anyway.
"""

INTERVAL_MIN_NS: Final = 2 * MS
"""Below, a packet's jitter would be smaller than the quantum."""

LATE_SHARE: Final = 3
"""An observer that was late by more than 1/3 of the detection time abstains: at the default multiplier, one interval."""

HANDSHAKE_SLOW_INTERVALS: Final = 10
"""A neighbour that is heard for so many slow intervals and does not hear us: the link works one way only."""

_DOWN, _INIT, _UP, _ADMIN_DOWN = SessionState.DOWN, SessionState.INIT, SessionState.UP, SessionState.ADMIN_DOWN


class Chance(Protocol):
    """What is used of a `random.Random`."""

    def getrandbits(self, k: int, /) -> int:
        """Return *k* random bits."""


# --- values ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class SessionTiming:
    """How fast a session is, where the numbers come from: docs/sessions.md."""

    interval_ns: int = 10 * MS
    multiplier: int = 3
    slow_start_ns: int = 100 * MS
    """The interval while a session is not up. RFC 5880 asks for 1 s, which would make up a third of a wait-to-restore."""

    def __post_init__(self) -> None:
        assert self.interval_ns >= INTERVAL_MIN_NS, self.interval_ns
        assert 2 <= self.multiplier <= 255, self.multiplier  # 1 would take a single lost packet for a failure
        assert self.slow_start_ns >= self.interval_ns, self.slow_start_ns


class Binding(Protocol):
    """What is at the other end of a port; `erfs.messages.PortBinding` is one."""

    @property
    def port(self) -> str:
        """The port of this node."""

    @property
    def link(self) -> LinkId:
        """The link that both ends know it by."""

    @property
    def far_end(self) -> NodeId:
        """The node that should be there."""


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """This node's end of one session."""

    binding: Binding
    timing: SessionTiming = SessionTiming()


# --- events and commands ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Received:
    """A packet arrived at *port*."""

    port: str
    payload: bytes
    hop_limit: int
    heard_ns: int | None = None
    """When, for a shell that reads later than packets come; None: now. Never later than now."""


@dataclass(frozen=True, slots=True)
class Retimed:
    """From now on the session of *port* is to be as fast as *timing* says."""

    port: str
    timing: SessionTiming


@dataclass(frozen=True, slots=True)
class Send:
    """Send *payload* out of *port*, now."""

    port: str
    payload: bytes


class DownReason(StrEnum):
    """Why the far end of a port is no longer believed to answer."""

    SILENT = "silent"  # nothing was heard for the detection time
    NEIGHBOUR = "neighbour"  # the far end says that it does not hear us
    ONE_WAY = "one_way"  # heard, but it never heard us
    MISCABLED = "miscabled"  # somebody else answers


@dataclass(frozen=True, slots=True)
class SessionUp:
    """The expected far end of *port* answers, both ways."""

    port: str


@dataclass(frozen=True, slots=True)
class SessionDown:
    """The far end of *port* does not answer, whatever the carrier says."""

    port: str
    reason: DownReason


SessionEvent = Received | Retimed | TimerFired
SessionCommand = Send | SessionUp | SessionDown | Mark


# --- the table -------------------------------------------------------------------------------------------------------------
class Signal(StrEnum):
    """What can happen to a session."""

    HEARD_ADMIN_DOWN = "heard_admin_down"
    HEARD_DOWN = "heard_down"
    HEARD_INIT = "heard_init"
    HEARD_UP = "heard_up"
    SILENCE = "silence"
    ENABLED = "enabled"
    DISABLED = "disabled"


_HEARD: Final = {
    _ADMIN_DOWN: Signal.HEARD_ADMIN_DOWN,
    _DOWN: Signal.HEARD_DOWN,
    _INIT: Signal.HEARD_INIT,
    _UP: Signal.HEARD_UP,
}

# RFC 5880 sections 6.2 and 6.8.6.
TRANSITIONS: Final[Mapping[SessionState, Mapping[Signal, SessionState]]] = {
    _ADMIN_DOWN: {
        Signal.HEARD_ADMIN_DOWN: _ADMIN_DOWN,
        Signal.HEARD_DOWN: _ADMIN_DOWN,
        Signal.HEARD_INIT: _ADMIN_DOWN,
        Signal.HEARD_UP: _ADMIN_DOWN,
        Signal.ENABLED: _DOWN,
        Signal.DISABLED: _ADMIN_DOWN,
    },
    _DOWN: {
        Signal.HEARD_ADMIN_DOWN: _DOWN,
        Signal.HEARD_DOWN: _INIT,
        Signal.HEARD_INIT: _UP,
        Signal.HEARD_UP: _DOWN,
        Signal.SILENCE: _DOWN,
        Signal.DISABLED: _ADMIN_DOWN,
    },
    _INIT: {
        Signal.HEARD_ADMIN_DOWN: _DOWN,
        Signal.HEARD_DOWN: _INIT,
        Signal.HEARD_INIT: _UP,
        Signal.HEARD_UP: _UP,
        Signal.SILENCE: _DOWN,
        Signal.DISABLED: _ADMIN_DOWN,
    },
    _UP: {
        Signal.HEARD_ADMIN_DOWN: _DOWN,
        Signal.HEARD_DOWN: _DOWN,
        Signal.HEARD_INIT: _UP,
        Signal.HEARD_UP: _UP,
        Signal.SILENCE: _DOWN,
        Signal.DISABLED: _ADMIN_DOWN,
    },
}


def next_state(state: SessionState, signal: Signal) -> SessionState:
    """
    Return the state after *signal*.

    Raises:
        Bug: the table has no such cell.
    """
    found = TRANSITIONS[state].get(signal)
    if found is None:
        raise Bug(f'session state "{state.name.lower()}" cannot get the signal "{signal}"')
    return found


def discriminator(link: LinkId, node: NodeId) -> int:
    """
    Return the number by which *node*'s end of *link* is known: the same in every process and version, never 0.

    Both ends compute both numbers from the cabling plan, so a packet of another link or node is recognised as such.
    """
    digest = hashlib.blake2s(f"{link}\0{node}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") or 1


def discriminators(node: NodeId, bindings: Iterable[Binding]) -> dict[int, tuple[LinkId, NodeId]]:
    """
    Return which discriminator means whose end of which link, for both ends of all *bindings* of *node*.

    Raises:
        FabricError: two ends cannot be told apart.
    """
    names: dict[int, tuple[LinkId, NodeId]] = {}
    for binding in bindings:
        link, far_end = binding.link, binding.far_end
        if far_end == node:
            raise FabricError(f'link "{link}" has both ends on "{node}": a session cannot tell them apart')
        for owner in (node, far_end):
            number = discriminator(link, owner)
            other_link, other = names.setdefault(number, (link, owner))
            if (other_link, other) != (link, owner):
                raise FabricError(
                    f'"{owner}" on link "{link}" and "{other}" on link "{other_link}" have the same discriminator'
                    f" 0x{number:08x}: rename one of the ports"
                )
    return names


@dataclass(slots=True)
class Tally:
    """What is counted over the life of all sessions of a node."""

    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Packets that were not used, by reason."""
    down: Counter[str] = field(default_factory=Counter)
    """Sessions lost, by reason."""
    late_count: int = 0
    """Wakings so late that a judgement would have been unsafe."""
    lateness_max_ns: int = 0
    abstained: int = 0
    """Judgements put off because this process was late."""


class _Session:
    """One end: RFC 5880 section 6.8.1's variables, in nanoseconds."""

    __slots__ = (
        "abstain_until_ns",
        "abstained",
        "abstained_heard_ns",
        "binding",
        "detection_ns",
        "diagnostic",
        "expected",
        "heard_ns",
        "index",
        "init_ns",
        "is_polling",
        "is_trusted",
        "judge_ns",
        "mine",
        "remote_discriminator",
        "remote_min_rx_ns",
        "remote_min_tx_ns",
        "remote_multiplier",
        "rx_used_ns",
        "send",
        "send_ns",
        "sent_ns",
        "state",
        "stranger",
        "timing",
        "told",
        "tx_used_ns",
        "usual",
    )

    def __init__(self, index: int, node: NodeId, end: SessionEnd) -> None:
        self.index = index
        self.binding = end.binding
        self.timing = end.timing
        self.mine = discriminator(end.binding.link, node)
        self.expected = discriminator(end.binding.link, end.binding.far_end)
        self.state = _ADMIN_DOWN
        self.diagnostic = Diagnostic.NONE
        self.is_trusted = True
        """Whether the agent was last told, or may still assume, that the far end answers."""
        self.stranger = 0
        """The wrong discriminator that was last told of."""
        self.told: set[str] = set()
        """Reasons of refusal that were told."""
        # The neighbour, as last heard.
        self.remote_discriminator = 0
        self.remote_multiplier = 0
        self.remote_min_tx_ns = 0
        self.remote_min_rx_ns = 1 * US
        self.usual = b""
        """A packet that changes nothing when it comes again; nearly all do."""
        # Own intervals in use: those advertised, but for the time a poll has not yet been answered.
        self.tx_used_ns = end.timing.slow_start_ns
        self.rx_used_ns = end.timing.interval_ns
        self.is_polling = False
        # Instants.
        self.send: Send | None = None
        self.send_ns: int | None = None
        self.sent_ns = 0
        self.heard_ns = 0
        self.detection_ns = 0
        self.judge_ns: int | None = None
        self.init_ns = 0
        self.abstain_until_ns = 0
        self.abstained = 0
        self.abstained_heard_ns = -1

    @property
    def wanted_tx_ns(self) -> int:
        """What is advertised as the desired interval of sending."""
        return self.timing.interval_ns if self.state is _UP else self.timing.slow_start_ns

    @property
    def tx_interval_ns(self) -> int:
        """How often to send, before jitter; 0: never, the neighbour wants none."""
        return max(self.tx_used_ns, self.remote_min_rx_ns) if self.remote_min_rx_ns else 0

    @property
    def rx_interval_ns(self) -> int:
        """How often the neighbour sends at least."""
        return max(self.rx_used_ns, self.remote_min_tx_ns)

    def fields(self) -> dict[str, object]:
        """Return what every mark about this session says."""
        return {"port": self.binding.port, "link": self.binding.link, "far_end": self.binding.far_end}


class Sessions:
    """
    All sessions of one node.

    The shell hands over everything it has received, and only then `TimerFired`: see rule 2.

    Args:
        node: Whose.
        ends: At most one for each port.
        chance: Where the jitter comes from.

    Raises:
        FabricError: two ends cannot be told apart.

    Cost: a packet that says nothing new O(1); a packet sent O(log ends); a waking that was late O(ends).
    Source: RFC 5880, RFC 5881.
    """

    def __init__(self, node: NodeId, ends: Iterable[SessionEnd], chance: Chance) -> None:
        self.tally = Tally()
        self._chance = chance
        ordered = sorted(ends, key=lambda end: end.binding.port)
        self._sessions = tuple(_Session(index, node, end) for index, end in enumerate(ordered))
        self._by_port = {session.binding.port: session for session in self._sessions}
        assert len(self._by_port) == len(self._sessions), "one session for each port"
        self._names = discriminators(node, (end.binding for end in ordered))
        self._draw = chance.getrandbits(16)
        # Entries (instant, index of session); one whose instant is no longer the session's is stale.
        self._sends: list[tuple[int, int]] = []
        self._judgements: list[tuple[int, int]] = []
        self._woken_ns = 0
        self.watched = frozenset(self._by_port)
        """
        The ports whose packets are wanted as soon as they come; another value only when it changes.

        The others are up and agreed on their intervals: their packets say nothing new, and are read before the next one is sent.
        """
        self._late_told_ns: int | None = None

    # --- what the shell asks ---------------------------------------------------------------------------------------------
    def start(self, now_ns: int) -> list[SessionCommand]:
        """Return the first packets; sessions begin down, and ports are trusted until one says otherwise."""
        commands: list[SessionCommand] = []
        self._woken_ns = now_ns
        for session in self._sessions:
            session.state = next_state(session.state, Signal.ENABLED)
            commands.append(self._transmit(session, now_ns))
        return commands

    def handle(self, event: SessionEvent, now_ns: int) -> list[SessionCommand]:
        """Return what to do about *event*, in the order in which to do it."""
        match event:
            case Received():
                heard_ns = now_ns if event.heard_ns is None else event.heard_ns
                assert heard_ns <= now_ns, (heard_ns, now_ns)
                if self.take_usual(event.port, event.payload, event.hop_limit, heard_ns):
                    return []
                return self._on_received(self._by_port[event.port], event, heard_ns, now_ns)
            case TimerFired():
                return self._on_timer(now_ns)
            case Retimed():
                return self._on_retimed(self._by_port[event.port], event.timing, now_ns)
            case _:
                assert_never(event)

    def take_usual(self, port: str, payload: bytes, hop_limit: int, heard_ns: int) -> bool:
        """
        Note that a packet was heard and return True if it says nothing new; else it is to be handled as `Received`.

        Nearly all packets are usual ones, and an event made for each would cost as much as reading it.
        """
        session = self._by_port[port]
        if payload != session.usual or hop_limit != HOP_LIMIT:
            return False
        if heard_ns > session.heard_ns:
            session.heard_ns = heard_ns
        self.tally.accepted += 1
        return True

    def next_wakeup_ns(self) -> int | None:
        """Return when `TimerFired` is wanted next, None if never."""
        self._skip_what_is_settled()
        return self._due_ns()

    def _due_ns(self) -> int | None:
        tops = [heap[0][0] for heap in (self._sends, self._judgements) if heap]
        return max(min(tops), self._woken_ns + QUANTUM_NS) if tops else None

    def state_of(self, port: str) -> SessionState:
        """Return the state of the session at *port*."""
        return self._by_port[port].state

    def stop(self) -> list[SessionCommand]:
        """Return the goodbye of an agent that ends on purpose: the neighbours go on without a session."""
        commands: list[SessionCommand] = []
        for session in self._sessions:
            session.state = next_state(session.state, Signal.DISABLED)
            session.diagnostic = Diagnostic.ADMINISTRATIVELY_DOWN
            session.is_polling = False
            # As many as a detection takes: nobody will repeat it.
            commands += [Send(session.binding.port, self._payload(session))] * session.timing.multiplier
        self._sends.clear()
        self._judgements.clear()
        return commands

    # --- receiving -------------------------------------------------------------------------------------------------------
    def _on_received(self, session: _Session, event: Received, heard_ns: int, now_ns: int) -> list[SessionCommand]:
        if session.state is _ADMIN_DOWN:
            return []
        if event.hop_limit != HOP_LIMIT:
            return self._refuse(session, "hop_limit", f"hop limit {event.hop_limit}, expected {HOP_LIMIT}")
        try:
            packet = decode(event.payload)
        except WireError as error:
            return self._refuse(session, "malformed", str(error))
        if packet.my_discriminator != session.expected:
            return self._on_stranger(session, packet)
        if packet.your_discriminator not in (0, session.mine):
            return self._refuse(session, "not_for_us", f"meant for 0x{packet.your_discriminator:08x}")
        session.heard_ns = max(session.heard_ns, heard_ns)
        return self._on_packet(session, packet, event.payload, now_ns)

    def _on_packet(self, session: _Session, packet: ControlPacket, payload: bytes, now_ns: int) -> list[SessionCommand]:
        self.tally.accepted += 1
        if session.remote_discriminator != packet.my_discriminator:
            session.remote_discriminator = packet.my_discriminator
            session.send = None
        session.remote_multiplier = packet.multiplier
        session.remote_min_tx_ns = packet.desired_tx_us * US
        session.remote_min_rx_ns = packet.required_rx_us * US
        if packet.is_final and session.is_polling:
            self._end_poll(session)
        commands = self._signal(session, _HEARD[packet.state], now_ns)
        self._retime(session, now_ns)
        if packet.is_poll:
            commands.append(Send(session.binding.port, self._payload(session, is_final=True)))
        is_usual = session.state is _UP and packet.state is _UP and not packet.is_poll and not packet.is_final
        session.usual = payload if is_usual else b""
        return commands

    def _on_stranger(self, session: _Session, packet: ControlPacket) -> list[SessionCommand]:
        """Somebody answers who should not be there. While the right one does too, it is only counted."""
        if session.state is _UP:
            return self._refuse(session, "stranger", f"from 0x{packet.my_discriminator:08x}")
        self.tally.refused["stranger"] += 1
        if packet.my_discriminator == session.stranger:
            return []
        session.stranger = packet.my_discriminator
        heard = self._names.get(packet.my_discriminator)
        named: dict[str, object] = {"heard_discriminator": f"0x{packet.my_discriminator:08x}"}
        if heard is not None:
            named |= {"heard_node": heard[1], "heard_link": heard[0]}
        commands: list[SessionCommand] = [Mark("link_miscabled", session.fields() | named | {"alarm": True})]
        return commands + self._distrust(session, DownReason.MISCABLED)

    def _refuse(self, session: _Session, reason: str, detail: str) -> list[SessionCommand]:
        self.tally.refused[reason] += 1
        if reason in session.told:
            return []
        session.told.add(reason)
        return [Mark("session_packet_refused", session.fields() | {"reason": reason, "detail": detail})]

    # --- changes of state ------------------------------------------------------------------------------------------------
    def _signal(self, session: _Session, signal: Signal, now_ns: int) -> list[SessionCommand]:
        before = session.state
        after = session.state = next_state(before, signal)
        if after is before:
            return []
        session.usual = b""
        commands: list[SessionCommand] = []
        if after is _UP:
            session.diagnostic = Diagnostic.NONE
            session.stranger = 0
            session.is_trusted = True
            session.told.clear()
            commands.append(SessionUp(session.binding.port))
            commands.append(Mark("session_up", session.fields()))
        elif after is _INIT:
            session.init_ns = now_ns
        else:
            assert after is _DOWN, "only `start` and `stop` leave and enter administrative down"
            is_silent = signal is Signal.SILENCE
            session.diagnostic = Diagnostic.DETECTION_TIME_EXPIRED if is_silent else Diagnostic.NEIGHBOUR_SIGNALLED_DOWN
            if before is _UP and signal is Signal.HEARD_ADMIN_DOWN:
                # It says goodbye: no evidence against the link (RFC 5882 section 3.2).
                commands.append(Mark("session_paused", session.fields()))
            elif before is _UP:
                commands += self._distrust(session, DownReason.SILENT if is_silent else DownReason.NEIGHBOUR)
        if (after is _UP) != (before is _UP):
            # The interval advertised changed: RFC 5880 section 6.8.3 has it polled.
            session.tx_used_ns = session.wanted_tx_ns
            session.rx_used_ns = session.timing.interval_ns
            session.is_polling = True
        session.send = None
        if before is _UP:
            # Bad news goes at once. Good news waits for its interval: answers that cause answers at once would multiply on
            # a wire that repeats packets, and overtake each other on one that reorders them.
            commands.insert(0, self._transmit(session, now_ns))
        return commands

    def _distrust(self, session: _Session, reason: DownReason) -> list[SessionCommand]:
        if not session.is_trusted:
            return []
        session.is_trusted = False
        self.tally.down[reason] += 1
        return [
            SessionDown(session.binding.port, reason),
            Mark("session_down", session.fields() | {"reason": str(reason)}),
        ]

    # --- intervals -------------------------------------------------------------------------------------------------------
    def _on_retimed(self, session: _Session, timing: SessionTiming, now_ns: int) -> list[SessionCommand]:
        if timing == session.timing:
            return []
        session.timing = timing
        session.send = None
        session.usual = b""
        session.is_polling = session.state is not _ADMIN_DOWN
        # While up, RFC 5880 section 6.8.3: send faster and wait longer at once, the other way only once the neighbour knows.
        if session.state is not _UP or session.wanted_tx_ns < session.tx_used_ns:
            session.tx_used_ns = session.wanted_tx_ns
        if session.state is not _UP or timing.interval_ns > session.rx_used_ns:
            session.rx_used_ns = timing.interval_ns
        self._retime(session, now_ns)
        return []

    def _end_poll(self, session: _Session) -> None:
        session.is_polling = False
        session.send = None
        session.tx_used_ns = session.wanted_tx_ns
        session.rx_used_ns = session.timing.interval_ns

    def _retime(self, session: _Session, now_ns: int) -> None:
        """Bring the instants of sending and judging up to what both ends' intervals now are."""
        interval_ns = session.tx_interval_ns
        # Whoever sends less often than it hears would read too late what its neighbour has to say.
        is_settled = session.state is _UP and not session.is_polling and 0 < interval_ns <= session.rx_interval_ns
        if is_settled == (session.binding.port in self.watched):
            self.watched ^= {session.binding.port}
        if not interval_ns:
            session.send_ns = None
        elif session.send_ns is None or session.send_ns > now_ns + interval_ns:
            self._draw = self._chance.getrandbits(16)
            self._send_at(session, now_ns + self._jittered(interval_ns))
        session.detection_ns = session.remote_multiplier * session.rx_interval_ns
        if not session.detection_ns:
            return
        deadline_ns = session.heard_ns + session.detection_ns
        if session.judge_ns is None or session.judge_ns > deadline_ns:
            self._judge_at(session, deadline_ns)

    def _jittered(self, interval_ns: int) -> int:
        """Return 75 to 100 % of *interval_ns*, so that sessions do not fall into step (RFC 5880 section 6.8.7)."""
        return interval_ns - (interval_ns * self._draw >> 18)

    # --- sending ---------------------------------------------------------------------------------------------------------
    def _transmit(self, session: _Session, now_ns: int) -> Send:
        """Return the packet of now, and note when the next is due."""
        send = session.send
        if send is None:
            send = session.send = Send(session.binding.port, self._payload(session))
        session.sent_ns = now_ns
        interval_ns = session.tx_interval_ns
        if interval_ns:
            self._send_at(session, now_ns + self._jittered(interval_ns))
        else:
            session.send_ns = None
        return send

    def _payload(self, session: _Session, *, is_final: bool = False) -> bytes:
        return encode(
            ControlPacket(
                state=session.state,
                diagnostic=session.diagnostic,
                is_poll=session.is_polling and not is_final,
                is_final=is_final,
                multiplier=session.timing.multiplier,
                my_discriminator=session.mine,
                your_discriminator=session.remote_discriminator,
                desired_tx_us=session.wanted_tx_ns // US,
                required_rx_us=session.timing.interval_ns // US,
            )
        )

    def _send_at(self, session: _Session, at_ns: int) -> None:
        session.send_ns = at_ns
        heapq.heappush(self._sends, (at_ns, session.index))

    def _send_along(self, now_ns: int) -> list[SessionCommand]:
        """
        Return the packets that may be sent now since some are being sent: as early as the jitter could have had them.

        Before long the sessions of a node that send equally often share all their wakings, and their jitter; those of several nodes
        still do not fall into step.
        """
        commands: list[SessionCommand] = []
        for session in self._sessions:
            interval_ns = session.tx_interval_ns
            if session.send_ns is not None and session.sent_ns + interval_ns - (interval_ns >> 2) <= now_ns:
                commands.append(self._transmit(session, now_ns))
        return commands

    # --- time ------------------------------------------------------------------------------------------------------------
    def _on_timer(self, now_ns: int) -> list[SessionCommand]:
        # Not what would be wanted now: what was heard since may have put off the judgement that this waking was for.
        wanted_ns = self._due_ns()
        commands = self._note_lateness(now_ns - wanted_ns, now_ns) if wanted_ns is not None else []
        self._woken_ns = now_ns
        # One jitter for all packets of a waking: what is sent together is due together the next time, too.
        self._draw = self._chance.getrandbits(16)
        sends, sessions, horizon_ns = self._sends, self._sessions, now_ns + QUANTUM_NS
        is_sending = False
        while sends and sends[0][0] <= horizon_ns:
            at_ns, index = heapq.heappop(sends)
            session = sessions[index]
            if at_ns == session.send_ns:
                is_sending = True
                commands.append(self._transmit(session, now_ns))
        if is_sending:
            commands += self._send_along(now_ns)
        judgements = self._judgements
        while judgements and judgements[0][0] <= now_ns:
            at_ns, index = heapq.heappop(judgements)
            session = sessions[index]
            if at_ns == session.judge_ns:
                session.judge_ns = None
                commands += self._judge(session, now_ns)
        return commands

    def _note_lateness(self, lateness_ns: int, now_ns: int) -> list[SessionCommand]:
        if lateness_ns > self.tally.lateness_max_ns:
            self.tally.lateness_max_ns = lateness_ns
        if lateness_ns <= QUANTUM_NS:
            return []
        unsafe = [session for session in self._sessions if lateness_ns * LATE_SHARE > session.detection_ns > 0]
        if not unsafe:
            return []
        for session in unsafe:
            # Whatever the neighbour sent meanwhile may be lost with our time: hear it for one interval.
            session.abstain_until_ns = now_ns + session.rx_interval_ns + QUANTUM_NS
        self.tally.late_count += 1
        if self._late_told_ns is not None and now_ns < self._late_told_ns + SECOND:
            return []
        self._late_told_ns = now_ns
        fields: dict[str, object] = {
            "lateness_us": lateness_ns // US,
            "count": self.tally.late_count,
            "abstained": self.tally.abstained,
        }
        return [Mark("own_lateness_noticed", fields)]

    def _skip_what_is_settled(self) -> None:
        """Nobody need wake up to find that a packet has been sent along, or that a session was heard before its judgement."""
        sends, judgements = self._sends, self._judgements
        while sends and sends[0][0] != self._sessions[sends[0][1]].send_ns:
            heapq.heappop(sends)
        while judgements:
            at_ns, index = judgements[0]
            session = self._sessions[index]
            deadline_ns = session.heard_ns + session.detection_ns
            if at_ns != session.judge_ns:
                heapq.heappop(judgements)
            elif session.state is _UP and deadline_ns > at_ns:
                session.judge_ns = deadline_ns
                heapq.heapreplace(judgements, (deadline_ns, index))
            else:
                return

    def _judge(self, session: _Session, now_ns: int) -> list[SessionCommand]:
        """The time has come at which *session*'s neighbour should have been heard."""
        deadline_ns = session.heard_ns + session.detection_ns
        if now_ns >= deadline_ns:
            return self._on_silence(session, now_ns)
        self._judge_at(session, deadline_ns)
        wait_ns = HANDSHAKE_SLOW_INTERVALS * session.timing.slow_start_ns
        if session.state is _INIT and now_ns - session.init_ns >= wait_ns:
            return self._distrust(session, DownReason.ONE_WAY)
        return []

    def _on_silence(self, session: _Session, now_ns: int) -> list[SessionCommand]:
        if session.abstained_heard_ns != session.heard_ns:
            session.abstained_heard_ns = session.heard_ns
            session.abstained = 0
        # An observer that is always late must not be blind for ever: at most twice the detection time in all.
        if now_ns < session.abstain_until_ns and session.abstained < session.remote_multiplier:
            session.abstained += 1
            self.tally.abstained += 1
            self._judge_at(session, session.abstain_until_ns)
            return []
        session.remote_discriminator = 0
        session.remote_min_rx_ns = 1 * US
        session.remote_multiplier = 0
        session.detection_ns = 0
        session.send = None
        commands = self._signal(session, Signal.SILENCE, now_ns)
        self._retime(session, now_ns)
        return commands

    def _judge_at(self, session: _Session, at_ns: int) -> None:
        session.judge_ns = at_ns
        heapq.heappush(self._judgements, (at_ns, session.index))
