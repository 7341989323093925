"""What do the liveness sessions of disturbed links tell the agents? Sessions that nothing disturbs cost no event.

Rule 1: the agent's own session core decides (`erfs_agent.probing`); here is only when it has to be asked.
Rule 2: a session is asked from the instant at which a silent fault first touches its link until it has settled again; nor is it
asked while nothing gets through and both ends know it.
Rule 3: nor is it asked while a little is lost at random and both ends are up, until packets enough in a row are lost to matter.
Rule 4: before and after, only the phases of the packets matter: they are drawn, as they would be at a random instant.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from random import Random
from typing import Final, Protocol

from erfs.fabric import Fabric, Link, LinkEnd
from erfs.ids import LinkId, NodeId
from erfs.messages import PortBinding
from erfs.ports import Mark, TimerFired
from erfs.units import US
from erfs_agent.probing import (
    HOP_LIMIT,
    QUANTUM_NS,
    Chance,
    Received,
    Send,
    SessionCommand,
    SessionDown,
    SessionEnd,
    Sessions,
    SessionTiming,
    SessionUp,
    discriminator,
)
from erfs_agent.session_packet import ControlPacket, SessionState, decode, encode
from erfs_scenario.dataplane import DataPlane, Share
from erfs_scenario.event_queue import Alarm, EventQueue

_JITTER_BITS: Final = 16
# Beyond one packet in twenty, losses in a row come too often for it to pay.
_REST_LOSS_MAX: Final = Fraction(1, 20)
TRIP_NS: Final = 500 * US
"""
From one end's sending to the other's judgement: what separates the medians of both ends in docs/sessions.md, 27.7 and 28.2 ms.

It must be shorter than the shortest time between two packets: no more than one is taken to be under way on an undisturbed lane.
"""
Said = SessionUp | SessionDown | Mark


@dataclass(frozen=True, slots=True)
class Phase:
    """Where an undisturbed end stands between two of its packets."""

    age_ns: int
    """Since the last one was sent."""
    jitter_bits: int
    """What was drawn then for the time until the next."""


class Draws(Protocol):
    """All chance of one session."""

    def chance(self, end: LinkEnd) -> Chance:
        """Return where *end*'s core takes its jitter from."""

    def phase(self, end: LinkEnd, interval_ns: int) -> Phase:
        """Return where *end* stands now, which has long been sending every *interval_ns*."""

    def is_lost(self, sender: LinkEnd, share: Share) -> bool:
        """Return whether a packet is lost on a lane of which only *share* gets through."""

    def packets_before(self, chance: Share) -> int:
        """Return how many packets pass before the first of which each has this *chance*, below 1."""


class RandomDraws:
    """Chance from one generator."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def chance(self, end: LinkEnd) -> Chance:
        """Return the generator."""
        return self._rng

    def phase(self, end: LinkEnd, interval_ns: int) -> Phase:
        """Return the phase at a random instant: the longer an interval, the likelier it is the one."""
        while True:
            bits, age_ns = self._rng.getrandbits(_JITTER_BITS), self._rng.randrange(interval_ns)
            if age_ns < jittered(interval_ns, bits):
                return Phase(age_ns, bits)

    def is_lost(self, sender: LinkEnd, share: Share) -> bool:
        """Return whether a packet is lost."""
        return self._rng.randrange(share.denominator) >= share.numerator

    def packets_before(self, chance: Share) -> int:
        """Return a geometric draw."""
        return int(math.log(1 - self._rng.random()) / math.log1p(-float(chance)))


def jittered(interval_ns: int, bits: int) -> int:
    """Return the time between two packets of a core that drew *bits*."""
    return interval_ns - (interval_ns * bits >> _JITTER_BITS + 2)


class _Chance:
    """A core's chance, which answers with what has been drawn already while the core is brought up to the present."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self.fixed: int | None = None

    def getrandbits(self, k: int, /) -> int:
        return self._chance.getrandbits(k) if self.fixed is None else self.fixed


class _End:
    """One end of a disturbed session. Without a core, as when its agent is dead, it sends and hears nothing."""

    def __init__(self, at: LinkEnd, far: LinkEnd, link: LinkId, alarm: Alarm) -> None:
        self.at = at
        self.far = far
        self.link = link
        self.alarm = alarm
        self.core: Sessions | None = None
        self.chance: _Chance | None = None
        self.heard = b""
        """The last packet that arrived."""
        self.heard_ns = 0
        self.is_missed = False
        """Whether the last packet sent was lost."""
        self.doomed = 0
        """So many of the next packets will be lost, as has been drawn before."""

    @property
    def state(self) -> SessionState:
        return SessionState.ADMIN_DOWN if self.core is None else self.core.state_of(self.at.port)


class LinkSession:
    """
    The session over one disturbed link, both ends.

    Args:
        link: Which.
        timing: Of both ends.
        queue: Simulated time.
        share_from: What gets through now of what an end sends.
        draws: All chance.
        tell: Called with what an end says, at the instant it says it.
        settled: Called when nothing is left to watch; then it tells nothing more.

    Cost: one event a packet, and only while packets can change something.
    """

    def __init__(
        self,
        link: Link,
        timing: SessionTiming,
        queue: EventQueue,
        share_from: Callable[[LinkEnd], Share],
        draws: Draws,
        tell: Callable[[LinkEnd, Said], None],
        settled: Callable[[], None],
    ) -> None:
        self._timing = timing
        self._settled = settled
        self._queue = queue
        self._share_from = share_from
        self._draws = draws
        self._tell = tell
        self._is_paused = False
        self._rest_count = 0
        self._resting: int | None = None
        """Which rest this is, while there is one."""
        self._under_way = 0
        self._ends = {
            at: _End(at, far, link.id, Alarm(queue, partial(self._wake, at)))
            for at, far in ((link.a, link.b), (link.b, link.a))
        }

    # --- beginnings and ends ---------------------------------------------------------------------------------------------
    def begin_up(self) -> None:
        """Take over, at this instant, a session that has long been up."""
        phases = {at: self._draws.phase(at, self._timing.interval_ns) for at in self._ends}
        for end in self._ends.values():
            self._bring_up(end, phases[end.at], phases[end.far])
        for end in self._ends.values():
            self._arm(end)

    def start(self, at: LinkEnd) -> None:
        """Start the core of the end *at*: its agent begins."""
        end = self._ends[at]
        end.core, _ = self._new_core(end)
        end.heard = b""
        self._resume()
        self._carry_out(end, end.core.start(self._queue.now_ns))

    def stop(self, at: LinkEnd, *, is_told: bool) -> None:
        """End the core of the end *at*: its agent is gone; unless its node is too, the far end *is_told*."""
        self._end_rest()
        end = self._ends[at]
        if end.core is None:
            return
        goodbye = end.core.stop() if is_told else []
        end.core = None
        for command in goodbye:
            assert isinstance(command, Send), command
            self._send(end, command)

    def truth_changed(self) -> None:
        """Take notice that something else gets through now."""
        self._end_rest()
        for end in self._ends.values():
            end.heard = b""  # what was heard before proves nothing any more
        self._resume()

    @property
    def _is_settled(self) -> bool:
        """Whether both ends are up for good: everything gets through, and all that is under way says nothing new."""
        return all(
            end.state is SessionState.UP and self._share_from(end.at) == 1 and _is_usual(end.heard)
            for end in self._ends.values()
        )

    # --- inside ------------------------------------------------------------------------------------------------------------
    def _new_core(self, end: _End) -> tuple[Sessions, _Chance]:
        binding = PortBinding(port=end.at.port, link=end.link, far_end=end.far.node)
        end.chance = _Chance(self._draws.chance(end.at))
        return Sessions(end.at.node, [SessionEnd(binding, self._timing)], end.chance), end.chance

    def _bring_up(self, end: _End, own: Phase, far: Phase) -> None:
        """Give *end* a core that is up and last sent when *own* says; what the far end sent last may be still under way."""
        now_ns = self._queue.now_ns
        core, chance = self._new_core(end)
        end.core = core
        sent_ns = now_ns - own.age_ns
        up_ns = sent_ns - self._timing.interval_ns
        chance.fixed = 0
        core.start(up_ns - QUANTUM_NS)
        for state, is_final in ((SessionState.INIT, False), (SessionState.UP, True)):
            core.handle(self._heard(end, state, is_final=is_final), up_ns)
        usual = self._heard(end, SessionState.UP)
        core.handle(usual, up_ns)
        arrives_ns = now_ns - far.age_ns + TRIP_NS
        if arrives_ns <= sent_ns:
            core.handle(usual, arrives_ns)
        chance.fixed = own.jitter_bits
        core.handle(TimerFired(), sent_ns)
        if sent_ns < arrives_ns <= now_ns:
            core.handle(usual, arrives_ns)
        end.heard, end.heard_ns = usual.payload, min(arrives_ns, now_ns)
        if arrives_ns > now_ns:
            self._under_way += 1
            self._queue.at(arrives_ns, partial(self._arrive, end, usual.payload))
        chance.fixed = None

    def _heard(self, end: _End, state: SessionState, *, is_final: bool = False) -> Received:
        """Return a packet of *end*'s far end."""
        is_up = state is SessionState.UP
        packet = ControlPacket(
            state=state,
            is_final=is_final,
            multiplier=self._timing.multiplier,
            my_discriminator=discriminator(end.link, end.far.node),
            your_discriminator=discriminator(end.link, end.at.node),
            desired_tx_us=(self._timing.interval_ns if is_up else self._timing.slow_start_ns) // 1_000,
            required_rx_us=self._timing.interval_ns // 1_000,
        )
        return Received(end.at.port, encode(packet), HOP_LIMIT)

    def _carry_out(self, end: _End, commands: Iterable[SessionCommand]) -> None:
        for command in commands:
            match command:
                case Send():
                    self._send(end, command)
                case SessionUp() | SessionDown() | Mark():
                    self._tell(end.at, command)
        self._arm(end)

    def _send(self, end: _End, command: Send) -> None:
        share = self._share_from(end.at)
        if end.doomed and share != 1:
            end.doomed -= 1
            end.is_missed = True
            return
        end.is_missed = share != 1 and (not share or self._draws.is_lost(end.at, share))
        if not end.is_missed:
            self._under_way += 1
            self._queue.after(TRIP_NS, partial(self._arrive, self._ends[end.far], command.payload))

    def _arrive(self, end: _End, payload: bytes) -> None:
        self._under_way -= 1
        end.heard, end.heard_ns = payload, self._queue.now_ns
        if end.core is not None:
            self._carry_out(end, end.core.handle(Received(end.at.port, payload, HOP_LIMIT), self._queue.now_ns))
            if self._is_settled:
                for one in self._ends.values():
                    one.core = None
                self._settled()
            elif self._may_rest:
                self._rest()

    # --- a little loss -----------------------------------------------------------------------------------------------------
    @property
    def _may_rest(self) -> bool:
        """Whether both ends are up, have missed nothing since they heard each other last, and will seldom miss something."""
        return all(
            end.state is SessionState.UP
            and not end.is_missed
            and not end.doomed
            and 1 - self._share_from(end.at) <= _REST_LOSS_MAX
            and _is_usual(end.heard)
            for end in self._ends.values()
        )

    def _rest(self) -> None:
        """
        Ask nobody anything until packets of one end are lost in a row, all but one of as many as a detection takes.

        Fewer tell no end anything. How long that takes is drawn: each packet begins such a row with the same chance, and packets are
        seven eighths of an interval apart on average.
        """
        row = max(1, self._timing.multiplier - 1)
        waits = [
            (self._draws.packets_before((1 - share) ** row), end.at)
            for end in self._ends.values()
            if (share := self._share_from(end.at)) != 1
        ]
        packets, doomed = min(waits)
        for end in self._ends.values():
            end.core = None
        self._rest_count += 1
        self._resting = self._rest_count
        wait_ns = (packets + 1) * self._timing.interval_ns * 7 // 8
        self._queue.after(wait_ns, partial(self._stir, self._rest_count, self._ends[doomed], row))

    def _stir(self, rest: int, end: _End, row: int) -> None:
        """Go on with a row of losses, unless that rest is over already."""
        if self._resting == rest:
            end.doomed = row
            self._end_rest()

    def _end_rest(self) -> None:
        if self._resting is not None:
            self._resting = None
            self.begin_up()

    def _arm(self, end: _End) -> None:
        if end.core is not None and not self._is_paused:
            end.alarm.set(end.core.next_wakeup_ns())

    def _wake(self, at: LinkEnd) -> None:
        end = self._ends[at]
        if end.core is None or self._is_paused:
            return
        now_ns = self._queue.now_ns
        wakeup_ns = end.core.next_wakeup_ns()
        if wakeup_ns is not None and wakeup_ns <= now_ns:
            self._carry_out(end, end.core.handle(TimerFired(), now_ns))
            self._is_paused = self._is_hopeless
        else:
            self._arm(end)

    @property
    def _is_hopeless(self) -> bool:
        """Whether nothing gets through or is under way, and both ends have long judged so: they only send, and in vain."""
        # A judgement under way is over after the multiple of the slower interval; then nobody is heard, nobody is judged.
        judged_ns = self._queue.now_ns - self._timing.multiplier * self._timing.slow_start_ns - QUANTUM_NS
        return not self._under_way and all(
            end.state in (SessionState.DOWN, SessionState.ADMIN_DOWN)
            and end.heard_ns < judged_ns
            and not self._share_from(end.at)
            for end in self._ends.values()
        )

    def _resume(self) -> None:
        if self._is_paused and any(self._share_from(at) for at in self._ends):
            self._is_paused = False
            for end in self._ends.values():
                self._catch_up(end)
                self._arm(end)

    def _catch_up(self, end: _End) -> None:
        """Let *end* have sent its last packet in vain; it does not know of any that should have been sent meanwhile."""
        now_ns = self._queue.now_ns
        due_ns = None if end.core is None else end.core.next_wakeup_ns()
        if end.core is None or end.chance is None or due_ns is None or due_ns >= now_ns:
            return
        phase = self._draws.phase(end.at, self._timing.slow_start_ns)
        end.chance.fixed = phase.jitter_bits
        end.core.handle(TimerFired(), max(now_ns - phase.age_ns, due_ns))
        end.chance.fixed = None


def _is_usual(payload: bytes) -> bool:
    if not payload:
        return False
    packet = decode(payload)
    return packet.state is SessionState.UP and not packet.is_poll and not packet.is_final


class Liveness:
    """
    The sessions of a fabric, of which only the disturbed ones exist.

    A link that lost its carrier has said so itself: its session is followed only if something silent befalls the link too.

    Args:
        fabric: All nodes.
        links: Those with an agent at either end.
        timing: Of all sessions.
        queue: Simulated time.
        plane: What gets through, and which port has carrier.
        draws_of: All chance of a link's session.
        is_running: Whether a node's agent is.
        tell: Called with what an end says, at the instant it says it.
    """

    def __init__(
        self,
        fabric: Fabric,
        links: Iterable[Link],
        timing: SessionTiming,
        queue: EventQueue,
        plane: DataPlane,
        *,
        draws_of: Callable[[LinkId], Draws],
        is_running: Callable[[NodeId], bool],
        tell: Callable[[LinkEnd, Said], None],
    ) -> None:
        self._fabric = fabric
        self._links = {link.id: link for link in links}
        self._timing = timing
        self._queue = queue
        self._plane = plane
        self._draws_of = draws_of
        self._draws: dict[LinkId, Draws] = {}
        self._is_running = is_running
        self._tell = tell
        self._sessions: dict[LinkId, LinkSession] = {}

    def truth_changed(self, links: Iterable[LinkId]) -> None:
        """Take notice that something else may get through *links* now."""
        for name in links:
            session = self._sessions.get(name)
            if session is not None:
                session.truth_changed()
            elif name in self._links and self._is_silent(self._links[name]):
                self._begin(self._links[name], is_up=True)

    def agent_started(self, node: NodeId, ports_down: Iterable[str]) -> None:
        """Start the sessions of *node* that are being watched, and of its *ports_down*, which need to hear that they are up."""
        for link in self._fabric.links_of[node]:
            end = link.end_at(node)
            session = self._sessions.get(link.id)
            if session is not None:
                session.start(end)
            elif link.id in self._links and end.port in ports_down:
                self._begin(link, is_up=False)

    def agent_stopped(self, node: NodeId) -> None:
        """End the sessions of *node*; if it has power, the neighbours are told."""
        for link in self._fabric.links_of[node]:
            session = self._sessions.get(link.id)
            if session is not None:
                session.stop(link.end_at(node), is_told=self._plane.is_node_up(node))

    def _forget(self, link: LinkId) -> None:
        del self._sessions[link]

    def _is_silent(self, link: Link) -> bool:
        """Whether *link* carries less than its carriers promise."""
        return all(self._plane.is_port_up(*end) for end in link.ends) and any(
            self._plane.share_from(end) != 1 for end in link.ends
        )

    def _begin(self, link: Link, *, is_up: bool) -> None:
        draws = self._draws.get(link.id)
        if draws is None:
            draws = self._draws[link.id] = self._draws_of(link.id)
        session = self._sessions[link.id] = LinkSession(
            link,
            self._timing,
            self._queue,
            self._plane.share_from,
            draws,
            self._tell,
            partial(self._forget, link.id),
        )
        running = [end for end in link.ends if self._is_running(end.node)]
        if is_up and len(running) == 2:
            session.begin_up()
        else:
            for end in running:
                session.start(end)
