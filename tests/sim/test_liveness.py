"""Sessions that exist only while something disturbs them say what sessions that tick all the time say, at the same instants."""

import hashlib
import heapq
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erfs.fabric import Fabric, Link, LinkEnd, Node, NodeKind
from erfs.ids import LinkId, NodeId
from erfs.messages import PortBinding
from erfs.ports import TimerFired
from erfs.units import MS, PPM, SECOND
from erfs_agent.probing import (
    HOP_LIMIT,
    Chance,
    DownReason,
    Received,
    Send,
    SessionCommand,
    SessionDown,
    SessionEnd,
    Sessions,
    SessionTiming,
    SessionUp,
)
from erfs_scenario.dataplane import DataPlane, Share
from erfs_scenario.event_queue import EventQueue
from erfs_scenario.liveness import TRIP_NS, Draws, Liveness, Phase, RandomDraws, Said
from erfs_scenario.plan import stream

TIMING = SessionTiming()
DETECTION_NS = TIMING.multiplier * TIMING.interval_ns
LEAF, SPINE = LinkEnd(NodeId("leaf"), "e1"), LinkEnd(NodeId("spine"), "e1")
FABRIC = Fabric(
    [Node(end.node, NodeKind.SWITCH, tier=tier) for tier, end in enumerate((LEAF, SPINE), start=1)],
    [Link.between(LEAF, SPINE, capacity_bps=10**9)],
    name="one link",
)
LINK = FABRIC.links[LinkId("leaf:e1|spine:e1")]
FIRST_NS = SECOND
"""Nothing happens before; by then a session has long been up."""


class Step(NamedTuple):
    """What holds from an instant on."""

    at_ns: int
    is_leaf_deaf: bool = False
    is_spine_deaf: bool = False
    loss_ppm: int = 0

    def lost_ppm(self, sender: LinkEnd) -> int:
        is_deaf = self.is_spine_deaf if sender == LEAF else self.is_leaf_deaf
        return PPM if is_deaf else self.loss_ppm


SaidAt = tuple[int, NodeId, Said]


class Fate:
    """Chance that depends on who asks when, and on nothing else."""

    def __init__(self, seed: int, now_ns: Callable[[], int]) -> None:
        self.seed = seed
        self.now_ns = now_ns

    def number(self, *what: object) -> int:
        digest = hashlib.blake2s(repr((self.seed, *what)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big")

    def bits(self, end: LinkEnd, at_ns: int) -> int:
        return self.number("jitter", end, at_ns) % 65_536

    def is_lost(self, sender: LinkEnd, lost_ppm: int) -> bool:
        return self.number("loss", sender, self.now_ns()) % PPM < lost_ppm

    def chance(self, end: LinkEnd) -> Chance:
        class Asked:
            def getrandbits(_, k: int, /) -> int:  # noqa: N805
                assert k == 16
                return self.bits(end, self.now_ns())

        return Asked()


class Ticking:
    """Both cores from the first instant on, packet by packet."""

    def __init__(self, seed: int, steps: list[Step], until_ns: int) -> None:
        self.now_ns = 0
        self.fate = Fate(seed, lambda: self.now_ns)
        self.said: list[SaidAt] = []
        self.sent: dict[LinkEnd, list[int]] = {LEAF: [], SPINE: []}
        self.step = Step(0)
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.count = 0
        self.armed: dict[LinkEnd, int | None] = {LEAF: None, SPINE: None}
        self.cores = {
            end: Sessions(
                end.node,
                [SessionEnd(PortBinding(port=end.port, link=LINK.id, far_end=far.node))],
                self.fate.chance(end),
            )
            for end, far in ((LEAF, SPINE), (SPINE, LEAF))
        }
        for step in steps:
            self.at(step.at_ns, partial(setattr, self, "step", step))
        for end, core in self.cores.items():
            self.carry_out(end, core.start(0))
        while self.queue and self.queue[0][0] <= until_ns:
            self.now_ns, _, action = heapq.heappop(self.queue)
            action()

    def at(self, at_ns: int, action: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.queue, (at_ns, self.count, action))

    def carry_out(self, end: LinkEnd, commands: list[SessionCommand]) -> None:
        far = SPINE if end == LEAF else LEAF
        for command in commands:
            if isinstance(command, Send):
                self.sent[end].append(self.now_ns)
                if not self.fate.is_lost(end, self.step.lost_ppm(end)):
                    received = Received(far.port, command.payload, HOP_LIMIT)
                    self.at(self.now_ns + TRIP_NS, partial(self.arrive, far, received))
            elif self.now_ns > FIRST_NS:
                self.said.append((self.now_ns, end.node, command))
        wanted_ns = self.cores[end].next_wakeup_ns()
        if wanted_ns is not None and wanted_ns != self.armed[end]:
            self.armed[end] = wanted_ns
            self.at(wanted_ns, partial(self.wake, end, wanted_ns))

    def arrive(self, end: LinkEnd, received: Received) -> None:
        self.carry_out(end, self.cores[end].handle(received, self.now_ns))

    def wake(self, end: LinkEnd, wanted_ns: int) -> None:
        if self.armed[end] == wanted_ns:
            self.armed[end] = None
            self.carry_out(end, self.cores[end].handle(TimerFired(), self.now_ns))


class AsTicking:
    """For the shortcut: the phases that the ticking cores had, and the same chance."""

    def __init__(self, ticking: Ticking, now_ns: Callable[[], int]) -> None:
        self.sent = ticking.sent
        self.fate = Fate(ticking.fate.seed, now_ns)

    def chance(self, end: LinkEnd) -> Chance:
        return self.fate.chance(end)

    def phase(self, end: LinkEnd, interval_ns: int) -> Phase:
        now_ns = self.fate.now_ns()
        sent_ns = max(at_ns for at_ns in self.sent[end] if at_ns <= now_ns)
        assert now_ns - sent_ns <= interval_ns
        return Phase(now_ns - sent_ns, self.fate.bits(end, sent_ns))

    def is_lost(self, sender: LinkEnd, share: Share) -> bool:
        return self.fate.is_lost(sender, int(PPM - share * PPM))

    def packets_before(self, chance: Share) -> int:
        raise AssertionError("so much loss gives nobody rest")


class Nothing:
    """No other source of events."""

    def next_event_ns(self) -> int | None:
        return None

    def advance(self, now_ns: int) -> None:
        pass


class Shortcut:
    """The same, as a simulation has it."""

    def __init__(self, draws: Callable[[Callable[[], int]], Draws], steps: list[Step], until_ns: int) -> None:
        self.said: list[SaidAt] = []
        self.instants: list[int] = []
        self.queue = EventQueue(Nothing())
        self.plane = DataPlane(FABRIC)
        self.liveness = Liveness(
            FABRIC,
            [LINK],
            TIMING,
            self.queue,
            self.plane,
            draws_of=lambda _: draws(lambda: self.queue.now_ns),
            is_running=lambda _: True,
            tell=lambda end, said: self.said.append((self.queue.now_ns, end.node, said)),
        )
        for step in steps:
            self.queue.at(step.at_ns, partial(self.take, step))
        self.queue.run(until_ns, instant_ended=self.instants.append)

    def take(self, step: Step) -> None:
        self.plane.set_deaf(LEAF, step.is_leaf_deaf)
        self.plane.set_deaf(SPINE, step.is_spine_deaf)
        self.plane.set_loss(LINK.id, Fraction(step.loss_ppm, PPM))
        self.liveness.truth_changed([LINK.id])


NOT_CLEAN = {
    "silent": (True, True, 0),
    "leaf deaf": (True, False, 0),
    "spine deaf": (False, True, 0),
    "lossy": (False, False, 300_000),
    "very lossy": (False, False, 700_000),
}
CLEAN = (False, False, 0)
# About as long as a detection, as long as it takes until nobody is judged any more, and anything.
LASTS = st.one_of(st.integers(15 * MS, 40 * MS), st.integers(20 * MS, 500 * MS), st.integers(MS, 3 * SECOND))


def both(seed: int, steps: list[Step]) -> tuple[list[SaidAt], list[SaidAt]]:
    """Return what the ticking cores said, and what the shortcut did."""
    until_ns = steps[-1].at_ns + SECOND
    ticking = Ticking(seed, steps, until_ns)
    shortcut = Shortcut(partial(AsTicking, ticking), steps, until_ns)
    return ticking.said, shortcut.said


def after(kind: str, gap_ns: int, lasts_ns: int) -> list[Step]:
    return [Step(FIRST_NS + gap_ns, *NOT_CLEAN[kind]), Step(FIRST_NS + gap_ns + lasts_ns, *CLEAN)]


def verdicts(said: list[SaidAt], kind: type[SessionUp | SessionDown]) -> list[tuple[int, NodeId, Said]]:
    return [one for one in said if isinstance(one[2], kind)]


@pytest.mark.parametrize("kind", sorted(NOT_CLEAN))
@given(seed=st.integers(0, 10_000), gap_ns=st.integers(1, 20 * MS), lasts_ns=LASTS)
@settings(max_examples=40, deadline=None)
def test_the_shortcut_says_what_ticking_sessions_say(kind: str, seed: int, gap_ns: int, lasts_ns: int) -> None:
    ticked, said = both(seed, after(kind, gap_ns, lasts_ns))

    assert said == ticked


@given(
    seed=st.integers(0, 10_000),
    parts=st.lists(
        st.tuples(
            LASTS,
            st.sampled_from([CLEAN, *NOT_CLEAN.values()]),
        ),
        min_size=2,
        max_size=6,
    ),
)
@settings(max_examples=80, deadline=None)
def test_the_shortcut_says_what_ticking_sessions_say_whatever_follows_on_what(
    seed: int, parts: list[tuple[int, tuple[bool, bool, int]]]
) -> None:
    at_ns = FIRST_NS
    steps = []
    for gap_ns, state in parts:
        at_ns += gap_ns
        steps.append(Step(at_ns, *state))
    steps.append(Step(at_ns + 10 * MS, *CLEAN))

    ticked, said = both(seed, steps)

    assert said == ticked


def test_an_end_that_waits_for_a_judgement_is_followed_until_it_has_fallen() -> None:
    """The leaf is down by its neighbour's word and has yet to judge for itself when nothing gets through any more."""
    began_ns = FIRST_NS + 1
    steps = [
        Step(began_ns, is_spine_deaf=True),
        Step(began_ns + 47_697_666, is_leaf_deaf=True, is_spine_deaf=True),
        Step(began_ns + 376_927_948),
    ]

    ticked, said = both(578_278, steps)

    assert said == ticked


@given(seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_a_silent_link_is_seen_at_both_ends_within_the_detection_time_and_up_within_two_slow_intervals_and_a_fast_one(
    seed: int,
) -> None:
    steps = after("silent", 1, 2 * SECOND)
    said = Shortcut(lambda _: RandomDraws(stream(seed, "session")), steps, 5 * SECOND).said

    downs, ups = verdicts(said, SessionDown), verdicts(said, SessionUp)
    assert {(node, down) for _, node, down in downs} == {
        (end.node, SessionDown(end.port, DownReason.SILENT)) for end in (LEAF, SPINE)
    }
    earliest_ns = DETECTION_NS - TIMING.interval_ns
    assert all(earliest_ns <= at_ns - steps[0].at_ns <= DETECTION_NS + TRIP_NS + MS for at_ns, _, _ in downs)
    bound_ns = 2 * TIMING.slow_start_ns + TIMING.interval_ns + 3 * TRIP_NS
    assert {node for _, node, _ in ups} == {LEAF.node, SPINE.node}
    assert all(0 < at_ns - steps[1].at_ns <= bound_ns for at_ns, _, _ in ups)


def test_of_a_link_that_is_deaf_at_one_end_the_other_end_learns_one_trip_later() -> None:
    said = Shortcut(lambda _: RandomDraws(stream(1, "session")), after("leaf deaf", 1, SECOND), 5 * SECOND).said

    (first_ns, first, why), (second_ns, second, because) = verdicts(said, SessionDown)
    assert (first, why) == (LEAF.node, SessionDown("e1", DownReason.SILENT))
    assert (second, because) == (SPINE.node, SessionDown("e1", DownReason.NEIGHBOUR))
    assert second_ns - first_ns == TRIP_NS


def test_neither_an_undisturbed_session_nor_a_long_silence_costs_events() -> None:
    """An hour of silence, then a day: some twenty packets around the loss, and as many around the return."""
    hour_ns = 3600 * SECOND
    shortcut = Shortcut(lambda _: RandomDraws(stream(1, "session")), after("silent", 1, hour_ns), 25 * hour_ns)

    assert len(verdicts(shortcut.said, SessionUp)) == 2
    assert len(shortcut.instants) < 100
    assert len(shortcut.queue) == 0


def test_a_little_loss_is_followed_only_where_packets_are_lost_in_a_row() -> None:
    """A day of it: 20 million packets, of which two in a row are lost some 2,000 times (10 million a way, one in ten thousand)."""
    steps = [Step(FIRST_NS, loss_ppm=10_000), Step(FIRST_NS + 86_400 * SECOND)]
    shortcut = Shortcut(lambda _: RandomDraws(stream(1, "session")), steps, 90_000 * SECOND)

    assert 4_000 < len(shortcut.instants) < 30_000
    assert len(shortcut.queue) == 0


def test_a_session_that_rests_goes_down_as_often_as_one_that_ticks() -> None:
    """Three in a row of 4 %, in ten minutes and both ways: 137 thousand packets by 64 in a million is 8.4 at a time."""
    steps = [Step(FIRST_NS, loss_ppm=40_000), Step(FIRST_NS + 600 * SECOND)]
    fallen = [
        len(
            {at_ns // SECOND for at_ns, _, _ in verdicts(Shortcut(rested(seed), steps, 610 * SECOND).said, SessionDown)}
        )
        for seed in range(40)
    ]
    ticked = [
        len({at_ns // SECOND for at_ns, _, _ in verdicts(Ticking(seed, steps, 610 * SECOND).said, SessionDown)})
        for seed in range(2)
    ]

    assert sum(fallen) / 40 == pytest.approx(8.4, rel=0.2)
    assert sum(ticked) / 2 == pytest.approx(8.4, rel=0.5)


def rested(seed: int) -> Callable[[object], Draws]:
    return lambda _: RandomDraws(stream(seed, "session"))


def test_a_session_that_rests_notices_when_nothing_gets_through_any_more() -> None:
    silent_ns = FIRST_NS + 100 * SECOND
    steps = [Step(FIRST_NS, loss_ppm=1_000), Step(silent_ns, True, True), Step(silent_ns + SECOND)]
    said = Shortcut(rested(1), steps, silent_ns + 5 * SECOND).said

    downs = verdicts(said, SessionDown)
    assert {node for _, node, _ in downs} == {LEAF.node, SPINE.node}
    assert all(
        DETECTION_NS - TIMING.interval_ns <= at_ns - silent_ns <= DETECTION_NS + TRIP_NS + MS for at_ns, _, _ in downs
    )


def test_phases_are_as_likely_as_they_are_long() -> None:
    """Drawn at a random instant, an interval of 10 ms is met more often than one of 7.5, and lasts 5 ms more on average."""
    draws = RandomDraws(stream(1, "phases"))
    ages = [draws.phase(LEAF, 10 * MS).age_ns for _ in range(20_000)]

    assert max(ages) < 10 * MS
    # E[X^2] / 2 E[X] of a uniform draw from 7.5 to 10 ms.
    assert sum(ages) / len(ages) == pytest.approx(4_404_762, rel=0.01)
