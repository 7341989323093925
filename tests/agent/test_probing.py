"""Sessions: each pair of state and signal, and conversations of two cores over a wire that loses, delays and repeats."""

import heapq
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.errors import Bug, FabricError
from erfs.ids import LinkId, NodeId
from erfs.messages import PortBinding
from erfs.ports import Mark, TimerFired
from erfs.units import MS, SECOND, US
from erfs_agent import probing
from erfs_agent.probing import (
    HOP_LIMIT,
    QUANTUM_NS,
    TRANSITIONS,
    DownReason,
    Received,
    Retimed,
    Send,
    SessionDown,
    SessionEnd,
    Sessions,
    SessionTiming,
    SessionUp,
    Signal,
    discriminator,
    next_state,
)
from erfs_agent.session_packet import ControlPacket, Diagnostic, SessionState, decode, encode

ADMIN_DOWN, DOWN, INIT, UP = SessionState.ADMIN_DOWN, SessionState.DOWN, SessionState.INIT, SessionState.UP
LINK = LinkId("leaf1:e1|spine1:e1")
LEAF, SPINE = NodeId("leaf1"), NodeId("spine1")
AT_LEAF = PortBinding(port="e1", link=LINK, far_end=SPINE)
AT_SPINE = PortBinding(port="e1", link=LINK, far_end=LEAF)
TIMING = SessionTiming(interval_ns=10 * MS, multiplier=3, slow_start_ns=100 * MS)
DETECTION_NS = 30 * MS
DELAY_NS = 50 * US


# --- the table -------------------------------------------------------------------------------------------------------------
# RFC 5880 section 6.8.6, and the two orders of an operator.
EXPECTED = {
    (ADMIN_DOWN, Signal.HEARD_ADMIN_DOWN): ADMIN_DOWN,
    (ADMIN_DOWN, Signal.HEARD_DOWN): ADMIN_DOWN,
    (ADMIN_DOWN, Signal.HEARD_INIT): ADMIN_DOWN,
    (ADMIN_DOWN, Signal.HEARD_UP): ADMIN_DOWN,
    (ADMIN_DOWN, Signal.ENABLED): DOWN,
    (ADMIN_DOWN, Signal.DISABLED): ADMIN_DOWN,
    (DOWN, Signal.HEARD_ADMIN_DOWN): DOWN,
    (DOWN, Signal.HEARD_DOWN): INIT,
    (DOWN, Signal.HEARD_INIT): UP,
    (DOWN, Signal.HEARD_UP): DOWN,
    (DOWN, Signal.SILENCE): DOWN,
    (DOWN, Signal.DISABLED): ADMIN_DOWN,
    (INIT, Signal.HEARD_ADMIN_DOWN): DOWN,
    (INIT, Signal.HEARD_DOWN): INIT,
    (INIT, Signal.HEARD_INIT): UP,
    (INIT, Signal.HEARD_UP): UP,
    (INIT, Signal.SILENCE): DOWN,
    (INIT, Signal.DISABLED): ADMIN_DOWN,
    (UP, Signal.HEARD_ADMIN_DOWN): DOWN,
    (UP, Signal.HEARD_DOWN): DOWN,
    (UP, Signal.HEARD_INIT): UP,
    (UP, Signal.HEARD_UP): UP,
    (UP, Signal.SILENCE): DOWN,
    (UP, Signal.DISABLED): ADMIN_DOWN,
}


@pytest.mark.parametrize("state", SessionState)
@pytest.mark.parametrize("signal", Signal)
def test_every_pair_is_in_the_table_or_refused(state: SessionState, signal: Signal) -> None:
    if (state, signal) in EXPECTED:
        assert next_state(state, signal) is EXPECTED[state, signal]
    else:
        with pytest.raises(Bug, match=f'"{state.name.lower()}" cannot get the signal "{signal}"'):
            next_state(state, signal)


def test_the_table_has_a_row_for_each_state() -> None:
    assert set(TRANSITIONS) == set(SessionState)


# --- one core and a script -------------------------------------------------------------------------------------------------
def packet(state: SessionState, **changes: Any) -> ControlPacket:
    """A packet of the spine's end, as it is while both are well."""
    usual = ControlPacket(
        state=state,
        my_discriminator=discriminator(LINK, SPINE),
        your_discriminator=0 if state is DOWN else discriminator(LINK, LEAF),
        multiplier=3,
        desired_tx_us=10_000 if state is UP else 100_000,
        required_rx_us=10_000,
    )
    return replace(usual, **changes)


def from_spine(state: SessionState, **changes: Any) -> Received:
    return Received("e1", encode(packet(state, **changes)), HOP_LIMIT)


def at_leaf(*, timing: SessionTiming = TIMING) -> Sessions:
    return Sessions(LEAF, [SessionEnd(AT_LEAF, timing)], Random(1))


def up_at_leaf(now_ns: int = 0) -> Sessions:
    """A leaf's core whose session is up and whose poll has been answered."""
    core = at_leaf()
    core.start(now_ns)
    core.handle(from_spine(INIT), now_ns)
    core.handle(from_spine(UP, is_final=True), now_ns)
    core.handle(from_spine(UP), now_ns)
    assert core.state_of("e1") is UP
    return core


def sent(commands: Iterable[object]) -> list[ControlPacket]:
    return [decode(command.payload) for command in commands if isinstance(command, Send)]


def verdicts(commands: Iterable[object]) -> list[object]:
    return [command for command in commands if isinstance(command, SessionUp | SessionDown)]


def run_timer(core: Sessions, until_ns: int, *, late_ns: int = 0) -> list[tuple[int, object]]:
    """Fire the timer whenever it is wanted, *late_ns* late, until *until_ns*; return what was said when."""
    said: list[tuple[int, object]] = []
    while (at_ns := core.next_wakeup_ns()) is not None and at_ns + late_ns <= until_ns:
        said += [(at_ns + late_ns, command) for command in core.handle(TimerFired(), at_ns + late_ns)]
    return said


def fields(**extra: object) -> dict[str, object]:
    return {"port": "e1", "link": LINK, "far_end": SPINE} | extra


def test_a_handshake_is_down_init_up_and_each_waits_for_its_interval() -> None:
    core = at_leaf()
    mine, theirs = discriminator(LINK, LEAF), discriminator(LINK, SPINE)

    assert sent(core.start(0)) == [ControlPacket(DOWN, mine, 0, 3, desired_tx_us=100_000, required_rx_us=10_000)]

    assert core.handle(from_spine(DOWN), 1 * MS) == []
    ((at_ns, answer),) = run_timer(core, 101 * MS)
    assert at_ns >= 74 * MS
    assert sent([answer]) == [ControlPacket(INIT, mine, theirs, 3, 100_000, 10_000)]

    assert core.handle(from_spine(UP), 102 * MS) == [SessionUp("e1"), Mark("session_up", fields())]
    ((at_ns, answer),) = run_timer(core, 113 * MS)
    assert at_ns <= 112 * MS
    assert sent([answer]) == [ControlPacket(UP, mine, theirs, 3, 10_000, 10_000, is_poll=True)]


def test_silence_is_judged_at_the_multiple_of_the_slower_interval() -> None:
    core = up_at_leaf()
    core.handle(from_spine(UP, multiplier=4, desired_tx_us=20_000), 5 * MS)

    said = [(at_ns, command) for at_ns, command in run_timer(core, SECOND) if not isinstance(command, Send)]

    assert said == [
        (pytest.approx(85 * MS, abs=QUANTUM_NS), SessionDown("e1", DownReason.SILENT)),
        (said[0][0], Mark("session_down", fields(reason="silent"))),
    ]
    assert said[0][0] >= 85 * MS
    assert core.state_of("e1") is DOWN


def test_what_is_sent_after_a_silence_says_so_and_forgets_the_neighbour() -> None:
    core = up_at_leaf()
    last = sent(command for _, command in run_timer(core, 5 * SECOND))[-1]
    assert (last.state, last.diagnostic, last.your_discriminator) == (DOWN, Diagnostic.DETECTION_TIME_EXPIRED, 0)
    assert last.desired_tx_us == 100_000


def test_a_neighbour_that_is_heard_again_as_before_is_remembered_again() -> None:
    core = up_at_leaf()
    run_timer(core, SECOND)
    core.handle(from_spine(UP), SECOND)
    last = sent(command for _, command in run_timer(core, SECOND + 100 * MS))[-1]
    assert (last.state, last.your_discriminator) == (DOWN, discriminator(LINK, SPINE))


def test_a_neighbour_that_does_not_hear_us_ends_the_session_at_once() -> None:
    core = up_at_leaf()
    lost = core.handle(from_spine(DOWN, diagnostic=1), 7 * MS)
    assert verdicts(lost) == [SessionDown("e1", DownReason.NEIGHBOUR)]
    assert sent(lost)[0].diagnostic == Diagnostic.NEIGHBOUR_SIGNALLED_DOWN


def test_a_goodbye_is_no_evidence_against_the_link() -> None:
    core = up_at_leaf()
    paused = core.handle(from_spine(ADMIN_DOWN, diagnostic=7), 7 * MS)
    assert paused[1:] == [Mark("session_paused", fields())]
    assert verdicts(command for _, command in run_timer(core, 10 * SECOND)) == []

    core.handle(from_spine(DOWN), 10 * SECOND)
    assert verdicts(core.handle(from_spine(UP), 10 * SECOND)) == [SessionUp("e1")]


def test_an_end_that_stops_says_goodbye_as_often_as_a_detection_takes() -> None:
    core = up_at_leaf()
    goodbye = core.stop()
    assert [(one.state, one.diagnostic) for one in sent(goodbye)] == [(ADMIN_DOWN, 7)] * 3
    assert core.next_wakeup_ns() is None
    assert core.handle(from_spine(UP), MS) == []


def test_intervals_keep_within_three_quarters_and_the_whole_of_what_was_agreed() -> None:
    core = up_at_leaf()
    instants = []
    for _ in range(400):
        at_ns = core.next_wakeup_ns()
        assert at_ns is not None
        core.handle(from_spine(UP), at_ns)
        if sent(core.handle(TimerFired(), at_ns)):
            instants.append(at_ns)
    gaps = [after - before for before, after in pairwise(instants)]
    assert len(gaps) > 300
    # What would be due before the next waking goes out with this one.
    assert min(gaps) >= 7.5 * MS - QUANTUM_NS
    assert max(gaps) <= 10 * MS
    assert max(gaps) - min(gaps) > 2 * MS


def test_the_slower_of_what_one_sends_and_the_other_takes_is_used() -> None:
    core = up_at_leaf()
    core.handle(from_spine(UP, required_rx_us=40_000), 0)
    run_timer(core, 20 * MS)
    core.handle(from_spine(UP, required_rx_us=40_000), 20 * MS)
    instants = [at_ns for at_ns, command in run_timer(core, 49 * MS) if isinstance(command, Send)]
    assert len(instants) <= 2


def test_a_neighbour_that_wants_nothing_gets_nothing() -> None:
    core = up_at_leaf()
    core.handle(from_spine(UP, required_rx_us=0), 0)
    assert sent(command for _, command in run_timer(core, 29 * MS)) == []
    # But the change of state.
    assert [one.state for one in sent(core.handle(from_spine(DOWN, required_rx_us=0), 29 * MS))] == [DOWN]
    assert sent(command for _, command in run_timer(core, 200 * MS)) == []


def test_a_poll_is_answered_at_once_and_without_a_poll_of_ones_own() -> None:
    core = at_leaf()
    core.start(0)
    core.handle(from_spine(INIT), 0)
    answers = sent(core.handle(from_spine(UP, is_poll=True), MS))
    assert [(one.is_final, one.is_poll) for one in answers] == [(True, False)]


def test_each_poll_is_answered_although_it_says_nothing_new() -> None:
    core = up_at_leaf()
    poll = from_spine(UP, is_poll=True)
    assert [len(sent(core.handle(poll, at_ns))) for at_ns in (MS, 2 * MS, 3 * MS)] == [1, 1, 1]


def test_a_slower_interval_is_used_only_once_the_neighbour_knows() -> None:
    core = up_at_leaf()
    core.handle(Retimed("e1", replace(TIMING, interval_ns=50 * MS)), 0)

    polled = [
        (at_ns, decode(command.payload)) for at_ns, command in run_timer(core, 29 * MS) if isinstance(command, Send)
    ]
    assert len(polled) >= 2
    assert all(one.is_poll and one.desired_tx_us == 50_000 for _, one in polled)

    core.handle(from_spine(UP, is_final=True), 29 * MS)
    core.handle(from_spine(UP), 29 * MS)
    after = [
        (at_ns, decode(command.payload)) for at_ns, command in run_timer(core, 120 * MS) if isinstance(command, Send)
    ]
    assert not any(one.is_poll for _, one in after)
    assert all(gap > 36 * MS for gap in (b[0] - a[0] for a, b in pairwise(after)))


def test_a_faster_detection_waits_for_the_neighbours_word() -> None:
    core = at_leaf(timing=replace(TIMING, interval_ns=50 * MS))
    core.start(0)
    core.handle(from_spine(INIT), 0)
    core.handle(from_spine(UP, is_final=True), 0)
    core.handle(Retimed("e1", TIMING), 0)
    assert verdicts(command for _, command in run_timer(core, 149 * MS)) == []

    core.handle(from_spine(UP, is_final=True), 149 * MS)
    said = verdicts(command for _, command in run_timer(core, 181 * MS))
    assert said == [SessionDown("e1", DownReason.SILENT)]


def test_the_same_timing_again_changes_nothing() -> None:
    core = up_at_leaf()
    before_ns = core.next_wakeup_ns()
    assert core.handle(Retimed("e1", TIMING), MS) == []
    assert core.next_wakeup_ns() == before_ns


# --- who is there ----------------------------------------------------------------------------------------------------------
def test_the_numbers_of_the_ends_are_the_same_everywhere() -> None:
    assert (discriminator(LINK, LEAF), discriminator(LINK, SPINE)) == (0x1657318E, 0x1EE4CD34)


def test_ends_that_cannot_be_told_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FabricError, match="both ends"):
        Sessions(LEAF, [SessionEnd(AT_LEAF.model_copy(update={"far_end": LEAF}))], Random(1))
    monkeypatch.setattr(probing, "discriminator", lambda link, node: 7)
    with pytest.raises(FabricError, match="the same discriminator 0x00000007"):
        Sessions(LEAF, [SessionEnd(AT_LEAF)], Random(1))


def test_a_stranger_brings_no_session_up_and_is_named() -> None:
    """The cables of two ports are swapped: each hears the other's far end."""
    other = PortBinding(port="e2", link=LinkId("leaf1:e2|spine2:e1"), far_end=NodeId("spine2"))
    core = Sessions(LEAF, [SessionEnd(AT_LEAF), SessionEnd(other)], Random(1))
    core.start(0)
    theirs = discriminator(other.link, other.far_end)

    heard = core.handle(from_spine(DOWN, my_discriminator=theirs), MS)

    named = {"heard_discriminator": f"0x{theirs:08x}", "heard_node": "spine2", "heard_link": other.link}
    assert heard == [
        Mark("link_miscabled", fields(alarm=True, **named)),
        SessionDown("e1", DownReason.MISCABLED),
        Mark("session_down", fields(reason="miscabled")),
    ]
    assert core.state_of("e1") is DOWN
    assert core.handle(from_spine(DOWN, my_discriminator=theirs), 2 * MS) == []
    assert core.tally.refused == {"stranger": 2}
    unknown = core.handle(from_spine(DOWN, my_discriminator=0xABC), 3 * MS)
    assert unknown == [Mark("link_miscabled", fields(alarm=True, heard_discriminator="0x00000abc"))]

    core.handle(from_spine(DOWN), 4 * MS)
    assert verdicts(core.handle(from_spine(INIT), 5 * MS)) == [SessionUp("e1")]


@pytest.mark.parametrize(
    ("event", "reason", "detail"),
    [
        (from_spine(UP, my_discriminator=0xABC), "stranger", "from 0x00000abc"),
        (from_spine(DOWN, your_discriminator=0xABC), "not_for_us", "meant for 0x00000abc"),
        (Received("e1", encode(packet(DOWN)), 254), "hop_limit", "hop limit 254, expected 255"),
        (Received("e1", encode(packet(UP)), 64), "hop_limit", "hop limit 64, expected 255"),
        (Received("e1", b"hello", HOP_LIMIT), "malformed", "5 bytes, a control packet has 24"),
    ],
)
def test_a_packet_that_proves_nothing_changes_nothing_and_is_told_once(
    event: Received, reason: str, detail: str
) -> None:
    core = up_at_leaf()
    assert core.handle(event, MS) == [Mark("session_packet_refused", fields(reason=reason, detail=detail))]
    assert core.handle(event, MS) == []
    assert core.tally.refused == {reason: 2}
    # It did not count as heard.
    assert verdicts(command for _, command in run_timer(core, 32 * MS)) == [SessionDown("e1", DownReason.SILENT)]


def test_a_far_end_that_never_hears_us_is_noticed_although_the_session_was_never_up() -> None:
    core = at_leaf()
    core.start(0)
    said: list[object] = []
    for at_ns in range(0, 2 * SECOND, 80 * MS):
        said += core.handle(from_spine(DOWN), at_ns)
        said += [command for _, command in run_timer(core, at_ns + 79 * MS)]
        assert at_ns >= 10 * TIMING.slow_start_ns - 80 * MS or verdicts(said) == []
    assert verdicts(said) == [SessionDown("e1", DownReason.ONE_WAY)]


def test_a_port_whose_far_end_was_never_heard_is_left_to_its_carrier() -> None:
    core = at_leaf()
    core.start(0)
    assert verdicts(command for _, command in run_timer(core, 10 * SECOND)) == []


# --- own lateness ----------------------------------------------------------------------------------------------------------
def test_an_observer_that_was_late_listens_for_an_interval_before_it_judges() -> None:
    """Its time stood still, packets of that time are lost: the first one after it decides."""
    core = up_at_leaf()
    said = core.handle(TimerFired(), 200 * MS)
    assert verdicts(said) == []
    lateness_us = (200 * MS - 7_624_000) // US
    assert [command for command in said if isinstance(command, Mark)] == [
        Mark("own_lateness_noticed", {"lateness_us": pytest.approx(lateness_us, abs=3_000), "count": 1, "abstained": 0})
    ]
    core.handle(from_spine(UP), 207 * MS)
    assert verdicts(command for _, command in run_timer(core, 236 * MS)) == []
    assert (core.tally.abstained, core.tally.late_count) == (1, 1)


def test_lateness_counts_from_the_waking_that_was_wanted_whatever_was_read_before_it() -> None:
    """What was heard puts a judgement off, not the instant at which this process should have run."""
    core = up_at_leaf()
    # Nothing is to be sent for long, so the judgement at 35 ms is what the timer is for.
    core.handle(from_spine(UP, required_rx_us=1_000_000), 5 * MS)
    run_timer(core, 30 * MS)
    assert core.next_wakeup_ns() == 35 * MS

    core.handle(from_spine(UP, required_rx_us=1_000_000), 55 * MS)
    core.handle(TimerFired(), 55 * MS)

    assert core.tally.lateness_max_ns == 20 * MS


def test_silence_after_lateness_is_a_failure_after_all() -> None:
    core = up_at_leaf()
    core.handle(TimerFired(), 200 * MS)
    said = [(at_ns, command) for at_ns, command in run_timer(core, 300 * MS) if verdicts([command])]
    assert said == [(pytest.approx(212 * MS, abs=QUANTUM_NS), SessionDown("e1", DownReason.SILENT))]


def test_an_observer_that_is_always_late_is_not_blind_for_ever() -> None:
    core = up_at_leaf()
    said = [at_ns for at_ns, command in run_timer(core, SECOND, late_ns=12 * MS) if verdicts([command])]
    assert len(said) == 1
    assert core.tally.abstained == 3
    # The detection time, three intervals of abstaining, and each of the four judgements 12 ms late.
    assert said[0] <= DETECTION_NS + 3 * (10 * MS + QUANTUM_NS) + 4 * (12 * MS + QUANTUM_NS)


def test_each_time_the_neighbour_was_heard_it_is_given_as_much_patience_again() -> None:
    core = up_at_leaf()
    said: list[object] = []
    for turn in range(1, 11):
        said += core.handle(TimerFired(), turn * 100 * MS)
        said += core.handle(from_spine(UP), turn * 100 * MS + 9 * MS)
    assert core.tally.abstained == 10
    assert verdicts(said) == []


def test_lateness_within_the_bound_delays_no_judgement() -> None:
    core = up_at_leaf()
    said = [at_ns for at_ns, command in run_timer(core, SECOND, late_ns=9 * MS) if verdicts([command])]
    assert core.tally.abstained == 0
    assert DETECTION_NS <= said[0] <= DETECTION_NS + 9 * MS + QUANTUM_NS


def test_lateness_is_told_at_most_once_a_second_and_counted_always() -> None:
    core = up_at_leaf()
    told = []
    for turn in range(1, 31):
        core.handle(from_spine(UP), turn * 100 * MS)
        told += [
            command
            for command in core.handle(TimerFired(), turn * 100 * MS)
            if isinstance(command, Mark) and command.event == "own_lateness_noticed"
        ]
    assert (len(told), core.tally.late_count) == (3, 30)


# --- two cores and a wire --------------------------------------------------------------------------------------------------
@dataclass
class Wire:
    """One direction."""

    loss_ppm: int = 0
    delay_ns: int = DELAY_NS
    spread_ns: int = 0
    """Up to so much is added to the delay of each packet; more than the gap between two reorders them."""
    duplicates_ppm: int = 0

    def arrivals(self, rng: Random) -> list[int]:
        """Return the delays of the copies of one packet that arrive."""
        if rng.randrange(1_000_000) < self.loss_ppm:
            return []
        copies = 2 if rng.randrange(1_000_000) < self.duplicates_ppm else 1
        return [self.delay_ns + rng.randrange(self.spread_ns + 1) for _ in range(copies)]


class End:
    """One node: its core and a shell in virtual time. What arrives waits in the socket until the process runs."""

    def __init__(self, name: str, core: Sessions) -> None:
        self.name = name
        self.core = core
        self.socket: list[Received] = []
        self.frozen_until_ns = 0
        self.late_ns: Callable[[], int] = lambda: 0
        self.armed_ns: int | None = None
        self.is_dead = False


@dataclass
class Pair:
    """Two nodes, one link, one queue of events ordered by (instant, sequence)."""

    seed: int
    timing: SessionTiming = TIMING
    to_spine: Wire = field(default_factory=Wire)
    to_leaf: Wire = field(default_factory=Wire)
    said: list[tuple[int, str, object]] = field(default_factory=list)
    now_ns: int = 0

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.sequence = 0
        self.leaf = End("leaf", Sessions(LEAF, [SessionEnd(AT_LEAF, self.timing)], Random(self.seed + 1)))
        self.spine = End("spine", Sessions(SPINE, [SessionEnd(AT_SPINE, self.timing)], Random(self.seed + 2)))
        for end in (self.leaf, self.spine):
            self.carry_out(end, end.core.start(0))

    def at(self, at_ns: int, action: Callable[[], None]) -> None:
        self.sequence += 1
        heapq.heappush(self.queue, (at_ns, self.sequence, action))

    def run(self, until_ns: int) -> None:
        while self.queue and self.queue[0][0] <= until_ns:
            self.now_ns, _, action = heapq.heappop(self.queue)
            action()
        self.now_ns = until_ns

    def carry_out(self, end: End, commands: Iterable[object]) -> None:
        wire, far = (self.to_spine, self.spine) if end is self.leaf else (self.to_leaf, self.leaf)
        for command in commands:
            if isinstance(command, Send):
                received = Received("e1", command.payload, HOP_LIMIT)
                for delay_ns in wire.arrivals(self.rng):
                    self.at(self.now_ns + delay_ns, partial(self.arrive, far, received))
            elif isinstance(command, SessionUp | SessionDown):
                self.said.append((self.now_ns, end.name, command))
        self.arm(end)

    def arm(self, end: End) -> None:
        wanted_ns = end.core.next_wakeup_ns()
        if wanted_ns is not None and (end.armed_ns is None or wanted_ns < end.armed_ns):
            end.armed_ns = wanted_ns
            at_ns = max(self.now_ns, wanted_ns + end.late_ns())
            self.at(at_ns, lambda: self.wake(end, wanted_ns))

    def arrive(self, end: End, received: Received) -> None:
        if end.is_dead:
            return
        end.socket.append(replace(received, heard_ns=self.now_ns))
        if self.now_ns >= end.frozen_until_ns and end.core.watched:
            self.read(end)

    def read(self, end: End) -> None:
        while end.socket:
            self.carry_out(end, end.core.handle(end.socket.pop(0), self.now_ns))

    def wake(self, end: End, wanted_ns: int) -> None:
        if end.is_dead or end.armed_ns != wanted_ns:
            return
        if self.now_ns < end.frozen_until_ns:
            self.at(end.frozen_until_ns, lambda: self.wake(end, wanted_ns))
            return
        self.read(end)
        end.armed_ns = None
        self.carry_out(end, end.core.handle(TimerFired(), self.now_ns))

    def downs(self) -> list[tuple[int, str, DownReason]]:
        return [(at_ns, name, command.reason) for at_ns, name, command in self.said if isinstance(command, SessionDown)]

    def ups(self, since_ns: int = 0) -> list[str]:
        return [name for at_ns, name, command in self.said if isinstance(command, SessionUp) and at_ns >= since_ns]

    @property
    def states(self) -> tuple[SessionState, SessionState]:
        return self.leaf.core.state_of("e1"), self.spine.core.state_of("e1")


def settled(seed: int = 1, **options: Any) -> Pair:
    """A pair that is up and has long been so."""
    pair = Pair(seed, **options)
    pair.run(SECOND)
    assert pair.states == (UP, UP)
    assert not pair.downs()
    return pair


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_two_ends_are_up_within_two_slow_intervals(seed: int) -> None:
    pair = Pair(seed)
    pair.run(213 * MS)
    assert (pair.states, sorted(pair.ups())) == ((UP, UP), ["leaf", "spine"])


@given(st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_both_ends_see_a_cut_within_the_detection_time(seed: int) -> None:
    pair = settled(seed)
    pair.to_leaf.loss_ppm = pair.to_spine.loss_ppm = 1_000_000
    pair.run(3 * SECOND)
    assert sorted((name, reason) for _, name, reason in pair.downs()) == [
        ("leaf", DownReason.SILENT),
        ("spine", DownReason.SILENT),
    ]
    # From the last packet before the cut, which came up to an interval earlier.
    assert all(20 * MS <= at_ns - SECOND <= DETECTION_NS + DELAY_NS + QUANTUM_NS for at_ns, _, _ in pair.downs())


@given(st.integers(0, 10_000), st.booleans())
@settings(max_examples=20, deadline=None)
def test_both_ends_see_a_loss_of_one_direction(seed: int, is_leaf_deaf: bool) -> None:
    """The deaf end by silence, the other by what the deaf end says: read before its own next packet, so within an interval."""
    pair = settled(seed)
    (pair.to_leaf if is_leaf_deaf else pair.to_spine).loss_ppm = 1_000_000
    pair.run(5 * SECOND)
    (first_ns, first, why), (second_ns, second, because) = pair.downs()
    deaf, other = ("leaf", "spine") if is_leaf_deaf else ("spine", "leaf")
    assert ((first, why), (second, because)) == ((deaf, DownReason.SILENT), (other, DownReason.NEIGHBOUR))
    assert first_ns - SECOND <= DETECTION_NS + DELAY_NS + QUANTUM_NS
    assert DELAY_NS <= second_ns - first_ns <= DELAY_NS + 10 * MS
    assert UP not in pair.states


def test_a_healed_link_is_up_again_at_both_ends_within_slow_intervals() -> None:
    pair = settled()
    pair.to_leaf.loss_ppm = 1_000_000
    pair.run(3 * SECOND)
    pair.to_leaf.loss_ppm = 0
    pair.run(3 * SECOND + 213 * MS)
    assert pair.states == (UP, UP)
    assert sorted(pair.ups(3 * SECOND)) == ["leaf", "spine"]


@given(st.integers(0, 10_000), st.integers(0, 2 * MS), st.integers(0, 1_000_000), st.integers(0, 15 * MS))
@settings(max_examples=30, deadline=None)
def test_delay_duplicates_and_reordering_alone_take_nothing_down(
    seed: int, delay_ns: int, duplicates_ppm: int, spread_ns: int
) -> None:
    """With less than two intervals of spread one packet is always in time."""
    wire = Wire(delay_ns=delay_ns, spread_ns=spread_ns, duplicates_ppm=duplicates_ppm)
    pair = Pair(seed, to_leaf=wire, to_spine=replace(wire))
    pair.run(4 * SECOND)
    assert (pair.downs(), pair.states) == ([], (UP, UP))


@given(st.integers(0, 10_000), st.lists(st.integers(0, 19 * MS), min_size=1, max_size=50))
@settings(max_examples=40, deadline=None)
def test_no_false_alarm_whatever_the_lateness_within_the_bound(seed: int, lateness: list[int]) -> None:
    """
    The bound: sender's lateness plus its interval stay below the detection time, whatever the receiver's is.

    Late packets wait in the socket and are read before anybody is judged.
    """
    pair = settled(seed)
    turns = Random(seed)
    pair.leaf.late_ns = lambda: turns.choice(lateness)
    pair.spine.late_ns = lambda: turns.choice(lateness)
    pair.run(6 * SECOND)
    assert (pair.downs(), pair.states) == ([], (UP, UP))


def test_a_freeze_of_the_observer_is_no_failure_of_a_neighbour_that_keeps_sending() -> None:
    """The neighbour tolerates the freeze here; it waits 300 ms."""
    pair = Pair(1, timing=TIMING)
    patient = replace(TIMING, interval_ns=100 * MS)
    pair.spine.core.handle(Retimed("e1", patient), 0)
    pair.run(2 * SECOND)
    assert pair.states == (UP, UP)
    pair.leaf.frozen_until_ns = pair.now_ns + 200 * MS
    pair.run(4 * SECOND)
    assert (pair.downs(), pair.states) == ([], (UP, UP))
    assert pair.leaf.core.tally.late_count == 1


def test_a_freeze_longer_than_the_neighbour_waits_is_the_neighbours_judgement() -> None:
    pair = settled()
    pair.leaf.frozen_until_ns = pair.now_ns + 200 * MS
    pair.run(3 * SECOND)
    (first_ns, first, why), (second_ns, second, because) = pair.downs()
    assert ((first, why), (second, because)) == (("spine", DownReason.SILENT), ("leaf", DownReason.NEIGHBOUR))
    assert first_ns <= SECOND + DETECTION_NS + DELAY_NS + QUANTUM_NS
    assert SECOND + 200 * MS <= second_ns <= SECOND + 205 * MS
    assert pair.states == (UP, UP)


def test_a_time_that_stands_still_for_both_ends_and_loses_packets_is_no_failure() -> None:
    """A virtual machine that holds both is paused: nothing is queued, both are late, both abstain."""
    pair = settled()
    for end in (pair.leaf, pair.spine):
        end.frozen_until_ns = pair.now_ns + 200 * MS
    pair.to_leaf.loss_ppm = pair.to_spine.loss_ppm = 1_000_000
    pair.run(SECOND + 199 * MS)
    pair.to_leaf.loss_ppm = pair.to_spine.loss_ppm = 0
    pair.run(3 * SECOND)
    assert (pair.downs(), pair.states) == ([], (UP, UP))
    assert pair.leaf.core.tally.late_count + pair.spine.core.tally.late_count == 2


def test_a_frozen_peer_is_found_and_comes_back() -> None:
    pair = settled()
    pair.spine.frozen_until_ns = 3 * SECOND
    pair.run(2 * SECOND)
    assert [(name, reason) for _, name, reason in pair.downs()] == [("leaf", DownReason.SILENT)]
    pair.run(4 * SECOND)
    assert pair.states == (UP, UP)


def restarted(pair: Pair) -> End:
    return End("spine", Sessions(SPINE, [SessionEnd(AT_SPINE, pair.timing)], Random(99)))


def test_a_restart_without_a_goodbye_is_seen_and_with_one_it_is_not() -> None:
    pair = settled()
    pair.spine.is_dead = True
    pair.spine = restarted(pair)
    pair.carry_out(pair.spine, pair.spine.core.start(pair.now_ns))
    pair.run(2 * SECOND)
    assert [(name, reason) for _, name, reason in pair.downs()] == [("leaf", DownReason.NEIGHBOUR)]
    assert pair.states == (UP, UP)

    pair.said.clear()
    pair.carry_out(pair.spine, pair.spine.core.stop())
    pair.run(3 * SECOND)
    pair.spine.is_dead = True
    pair.spine = restarted(pair)
    pair.carry_out(pair.spine, pair.spine.core.start(pair.now_ns))
    pair.run(4 * SECOND)
    assert (pair.downs(), pair.states, sorted(pair.ups())) == ([], (UP, UP), ["leaf", "spine"])


def test_intervals_change_without_an_alarm_in_either_direction() -> None:
    pair = settled()
    for interval_ns in (50 * MS, 3 * MS, 10 * MS):
        for end in (pair.leaf, pair.spine):
            faster = replace(TIMING, interval_ns=interval_ns)
            pair.carry_out(end, end.core.handle(Retimed("e1", faster), pair.now_ns))
            pair.run(pair.now_ns + SECOND)
    assert (pair.downs(), pair.states) == ([], (UP, UP))
    pair.to_leaf.loss_ppm = 1_000_000
    cut_ns = pair.now_ns
    pair.run(cut_ns + DETECTION_NS + 2 * QUANTUM_NS)
    assert [name for _, name, _ in pair.downs()] == ["leaf", "spine"]


def test_random_loss_of_one_in_a_hundred_is_no_failure_and_of_nine_in_ten_is() -> None:
    pair = settled(7)
    pair.to_leaf.loss_ppm = pair.to_spine.loss_ppm = 10_000
    pair.run(21 * SECOND)
    assert pair.downs() == []
    pair.to_leaf.loss_ppm = pair.to_spine.loss_ppm = 900_000
    pair.run(25 * SECOND)
    assert pair.downs()


def star(count: int) -> list[PortBinding]:
    """A leaf's ends towards as many spines."""
    return [
        PortBinding(port=f"e{n}", link=LinkId(f"leaf1:e{n}|s{n}:e1"), far_end=NodeId(f"s{n}")) for n in range(count)
    ]


def from_far_end(end: PortBinding, state: SessionState, **changes: Any) -> Received:
    theirs, mine = discriminator(end.link, end.far_end), discriminator(end.link, LEAF)
    heard = packet(state, my_discriminator=theirs, your_discriminator=mine, **changes)
    return Received(end.port, encode(heard), HOP_LIMIT)


def started(count: int) -> Sessions:
    core = Sessions(LEAF, [SessionEnd(end) for end in star(count)], Random(1))
    core.start(0)
    for end in star(count):
        core.handle(from_far_end(end, INIT), 0)
    return core


def settled_star(count: int) -> Sessions:
    """A leaf's core whose sessions are up and whose polls have been answered."""
    core = started(count)
    for end in star(count):
        core.handle(from_far_end(end, UP, is_final=True), 0)
        core.handle(from_far_end(end, UP), 0)
    return core


def test_a_port_is_watched_until_its_session_is_up_and_its_poll_answered_and_again_when_it_leaves_up() -> None:
    core = started(3)
    assert core.watched == {"e0", "e1", "e2"}
    core.handle(from_far_end(star(3)[1], UP, is_final=True), 0)
    assert core.watched == {"e0", "e2"}

    core = settled_star(3)
    assert core.watched == frozenset()
    core.handle(from_far_end(star(3)[0], DOWN, desired_tx_us=100_000), 1 * MS)
    assert core.watched == {"e0"}
    core.handle(from_far_end(star(3)[1], ADMIN_DOWN, desired_tx_us=100_000), 1 * MS)
    assert core.watched == {"e0", "e1"}
    run_timer(core, 31 * MS)
    assert core.state_of("e2") is DOWN
    assert core.watched == {"e0", "e1", "e2"}


def test_a_port_is_watched_while_other_intervals_are_agreed_on() -> None:
    core, (end,) = settled_star(1), star(1)
    core.handle(Retimed("e0", replace(TIMING, interval_ns=5 * MS)), 1 * MS)
    assert core.watched == {"e0"}
    core.handle(from_far_end(end, UP, is_final=True), 2 * MS)
    assert core.watched == frozenset()


@pytest.mark.parametrize("required_rx_us", [0, 50_000])
def test_a_port_that_is_sent_to_less_often_than_it_is_heard_from_stays_watched(required_rx_us: int) -> None:
    """What comes is read when something is sent: that would be too late here."""
    core = settled_star(1)
    core.handle(from_far_end(star(1)[0], UP, required_rx_us=required_rx_us), 1 * MS)
    assert core.watched == {"e0"}


def test_a_packet_read_late_counts_from_when_it_came() -> None:
    core = up_at_leaf()
    run_timer(core, 29 * MS)
    # Read at 30 ms, as the judgement is due; it came at 20.
    heard = replace(from_spine(UP), heard_ns=20 * MS)
    assert core.handle(heard, 30 * MS) == []
    assert verdicts(core.handle(TimerFired(), 30 * MS)) == []
    said = run_timer(core, 100 * MS)
    assert [(at_ns, one) for at_ns, one in said if isinstance(one, SessionDown)] == [
        (50 * MS, SessionDown("e1", DownReason.SILENT))
    ]


def test_what_was_heard_is_never_earlier_than_what_was_heard_before() -> None:
    core = up_at_leaf()
    core.handle(from_spine(UP), 20 * MS)
    core.handle(replace(from_spine(UP), heard_ns=5 * MS), 21 * MS)
    core.handle(replace(from_spine(UP, required_rx_us=9_000), heard_ns=6 * MS), 21 * MS)
    said = run_timer(core, 100 * MS)
    assert [at_ns for at_ns, one in said if isinstance(one, SessionDown)] == [50 * MS]


def test_a_stamp_ahead_of_the_clock_is_refused() -> None:
    core = up_at_leaf()
    with pytest.raises(AssertionError):
        core.handle(replace(from_spine(UP), heard_ns=2), 1)


@pytest.mark.parametrize("count", [4, 64])
def test_sessions_that_work_cost_one_waking_an_interval(count: int) -> None:
    """They are sent together, with one jitter for all, and no waking finds out that all is well."""
    core, ends = started(count), star(count)
    for end in ends:
        core.handle(from_far_end(end, UP, is_final=True), 0)
    sent_at: dict[str, list[int]] = {end.port: [] for end in ends}
    wakings = 0
    while (at_ns := core.next_wakeup_ns()) is not None and at_ns < 10 * SECOND:
        for end in ends:
            core.handle(from_far_end(end, UP), at_ns)
        wakings += 1
        for command in core.handle(TimerFired(), at_ns):
            assert isinstance(command, Send)
            sent_at[command.port].append(at_ns)

    # 8.75 ms on average, and some at the beginning.
    assert wakings < 10_000 / 8.5 + 30
    for instants in sent_at.values():
        gaps = [after - before for before, after in pairwise(instants)]
        assert min(gaps) >= 7.5 * MS - QUANTUM_NS
        assert max(gaps) <= 10 * MS


def test_a_wire_that_repeats_every_packet_is_not_flooded() -> None:
    """Not even while sessions come and go: no answer causes another at once."""
    bad = Wire(duplicates_ppm=1_000_000, spread_ns=15 * MS, loss_ppm=500_000)
    pair = Pair(3, to_leaf=bad, to_spine=replace(bad))
    pair.run(20 * SECOND)
    assert len(pair.downs()) > 20
    # Two ends, each packet at least 6.5 ms after the one before, half of them lost, each twice.
    assert sum(end.core.tally.accepted for end in (pair.leaf, pair.spine)) < 2 * 20_000 // 6.5


STORY = """
import hashlib
from tests_agent_test_probing import settled, MS, SECOND
pair = settled(3)
pair.to_leaf.loss_ppm = 400_000
pair.run(20 * SECOND)
print(hashlib.sha256(repr(pair.said).encode()).hexdigest(), len(pair.said))
"""


def test_the_same_seed_tells_the_same_story_under_every_hash_seed() -> None:
    loader = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('tests_agent_test_probing', {__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "sys.modules['tests_agent_test_probing'] = module\n"
        "spec.loader.exec_module(module)\n"
    )
    stories = {
        subprocess.run(
            [sys.executable, "-c", loader + STORY],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1")
    }
    assert len(stories) == 1
    assert int(stories.pop().split()[1]) > 4
