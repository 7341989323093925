"""The simulated broker: partitions, deaths, loss and reordering, and that it stays fast and repeatable."""

import random
from dataclasses import replace

import pytest

from erfs.aio.memory import BusConditions, MemoryBroker, MemoryClient
from erfs.ports import Priority
from erfs.units import MS, SECOND

CALM = BusConditions(hop_ns=1 * MS, notice_ns=2 * SECOND, session_timeout_ns=10 * SECOND, reconnect_ns=50 * MS)


class World:
    """A broker with clients that write down when they saw what."""

    def __init__(self, conditions: BusConditions = CALM, seed: int = 1) -> None:
        self.broker: MemoryBroker[str] = MemoryBroker(random.Random(seed), conditions)
        self.seen: list[tuple[int, str, str]] = []

    def join(self, name: str, *filters: str, will: tuple[str, str] | None = None) -> MemoryClient[str]:
        client = self.broker.connect(name, will)
        client.on_arrival = lambda topic, payload, is_retained: self.seen.append(
            (self.broker.now_ns, name, f"{topic}={payload}{' (retained)' if is_retained else ''}")
        )
        client.on_state = lambda is_connected: self.seen.append(
            (self.broker.now_ns, name, "connected" if is_connected else "lost")
        )
        client.subscribe(frozenset(filters))
        return client

    def run(self, until_ns: int | None = None) -> None:
        while (due_ns := self.broker.next_event_ns()) is not None and (until_ns is None or due_ns <= until_ns):
            self.broker.advance(due_ns)
        if until_ns is not None:
            self.broker.advance(until_ns)

    def of(self, name: str) -> list[str]:
        return [what for _, who, what in self.seen if who == name]


def say(client: MemoryClient[str], topic: str, payload: str, *, retain: bool = True) -> None:
    client.publish(topic, payload, retain=retain, priority=Priority.ROUTINE)


def test_a_delivery_takes_two_hops_and_a_connection_four() -> None:
    world = World()
    world.join("b", "t")
    a = world.join("a")
    world.run()
    say(a, "t", "1")
    world.run()
    assert world.seen == [(4 * MS, "b", "connected"), (4 * MS, "a", "connected"), (6 * MS, "b", "t=1")]


def test_a_short_cut_only_delays() -> None:
    world = World()
    b, a = world.join("b", "t"), world.join("a")
    world.run()
    say(a, "t", "under way")
    world.broker.partition(["a", "b"])
    say(a, "t", "meanwhile")
    assert a.is_cut
    assert b.is_cut
    world.run(1 * SECOND)
    assert world.of("b") == ["connected"]

    world.broker.heal(["a", "b"])
    world.run()
    assert world.of("b") == ["connected", "t=under way", "t=meanwhile"]
    assert world.of("a") == ["connected"]


def test_a_delivery_cut_short_on_its_last_hop_arrives_after_the_cut() -> None:
    world = World()
    world.join("b", "t")
    a = world.join("a")
    world.run()
    say(a, "t", "1", retain=False)
    world.run(world.broker.now_ns + 1 * MS)
    world.broker.partition(["b"])
    world.run(1 * SECOND)
    world.broker.heal(["b"])
    world.run()
    assert world.of("b") == ["connected", "t=1"]


def test_a_long_cut_is_noticed_by_round_trip_and_ends_with_what_is_retained() -> None:
    world = World()
    world.join("b", "t/+")
    a = world.join("a")
    world.run()
    world.broker.partition(["b"])
    cut_ns = world.broker.now_ns
    say(a, "t/kept", "1")
    say(a, "t/passing", "2", retain=False)
    world.run(cut_ns + 5 * SECOND)
    assert (cut_ns + 2 * SECOND, "b", "lost") in world.seen

    world.broker.heal(["b"])
    world.run()
    assert world.of("b") == ["connected", "lost", "connected", "t/kept=1 (retained)"]


def test_what_a_cut_off_client_says_waits_and_only_the_newest_retained_word_is_sent() -> None:
    world = World()
    world.join("b", "t")
    a = world.join("a")
    world.run()
    world.broker.partition(["a"])
    say(a, "t", "1")
    world.run(5 * SECOND)
    say(a, "t", "2")
    world.broker.heal(["a"])
    world.run()
    assert world.of("b") == ["connected", "t=2"]


def test_the_broker_gives_a_silent_client_up_and_says_its_last_will() -> None:
    world = World()
    world.join("b", "presence/a")
    a = world.join("a", will=("presence/a", "gone"))
    world.run()
    say(a, "presence/a", "online")
    world.run()
    world.broker.partition(["a"])
    cut_ns = world.broker.now_ns
    world.run(cut_ns + 20 * SECOND)
    assert world.of("b") == ["connected", "presence/a=online", "presence/a=gone"]
    assert world.seen[-1][0] == cut_ns + 10 * SECOND + 1 * MS

    world.broker.heal(["a"])
    world.run()
    assert world.of("a") == ["connected", "lost", "connected"]


def test_a_client_that_stood_still_for_too_long_finds_its_connection_closed_and_makes_a_new_one() -> None:
    world = World()
    world.join("b", "presence/a")
    world.join("a", "t", will=("presence/a", "gone"))
    world.run()
    world.broker.look_after("a")
    world.run()
    assert world.of("a") == ["connected"], "nothing was wrong"

    world.broker.give_up("a")
    world.run()
    assert world.of("b") == ["connected", "presence/a=gone"]
    assert world.of("a") == ["connected"], "it has not looked yet"

    world.broker.look_after("a")
    world.run()
    assert world.of("a") == ["connected", "lost", "connected"]


def test_a_client_that_returns_before_the_broker_gave_it_up_is_buried_first() -> None:
    """As real brokers do on a take-over; agents must contradict the last will by what they say then."""
    world = World()
    world.join("b", "presence/a")
    world.join("a", will=("presence/a", "gone"))
    world.run()
    world.broker.partition(["a"])
    world.run(5 * SECOND)
    world.broker.heal(["a"])
    world.run()
    assert world.of("b") == ["connected", "presence/a=gone"]
    assert world.of("a") == ["connected", "lost", "connected"]


def test_a_killed_client_hears_nothing_more_and_its_successor_starts_clean() -> None:
    world = World()
    world.join("b", "#")
    a = world.join("a", "t", will=("presence/a", "gone"))
    world.run()
    say(a, "t", "last words")
    world.broker.kill("a")
    world.run()
    assert world.of("a") == ["connected"]
    assert world.of("b") == ["connected", "t=last words", "presence/a=gone"]

    world.join("a", "t")
    world.run()
    assert world.of("a") == ["connected", "connected", "t=last words (retained)"]


def test_a_client_that_says_goodbye_leaves_no_last_will() -> None:
    world = World()
    world.join("b", "#")
    world.join("a", will=("presence/a", "gone"))
    world.run()
    world.broker.disconnect("a")
    world.run()
    assert world.of("b") == ["connected"]


@pytest.mark.parametrize(("keeps_retained", "expected"), [(True, ["t=1 (retained)"]), (False, [])])
def test_a_restarted_broker_keeps_what_it_is_told_to_keep(keeps_retained: bool, expected: list[str]) -> None:
    world = World()
    a = world.join("a")
    world.run()
    say(a, "t", "1")
    world.run()
    world.broker.stop(keeps_retained=keeps_retained)
    world.run()
    world.broker.start()
    world.join("b", "t")
    world.run()
    assert world.of("a") == ["connected", "lost", "connected"]
    assert world.of("b") == ["connected", *expected]


def test_what_was_on_its_way_to_a_dying_broker_is_sent_again() -> None:
    world = World()
    world.join("b", "t")
    a = world.join("a")
    world.run()
    say(a, "t", "1", retain=False)
    world.broker.stop(keeps_retained=False)
    world.run()
    world.broker.start()
    world.run()
    assert world.of("b") == ["connected", "lost", "connected", "t=1"]


def numbers_seen(conditions: BusConditions, seed: int = 1, count: int = 200) -> list[int]:
    world = World(conditions, seed)
    world.join("b", "t")
    a = world.join("a")
    world.run()
    for number in range(count):
        say(a, "t", str(number), retain=False)
        world.run(world.broker.now_ns + 1 * MS)
    world.run()
    return [int(what.removeprefix("t=")) for what in world.of("b") if what.startswith("t=")]


def test_loss_means_lateness_and_never_disorder() -> None:
    assert numbers_seen(replace(CALM, loss_ppm=200_000, jitter_ns=5 * MS)) == list(range(200))


def test_a_lost_packet_costs_a_retransmission() -> None:
    world = World(replace(CALM, loss_ppm=500_000))
    world.join("b", "t")
    a = world.join("a")
    world.run()
    started_ns = world.broker.now_ns
    say(a, "t", "1")
    world.run()
    assert (world.broker.now_ns - started_ns) % (200 * MS) == 2 * MS


def test_drops_duplicates_and_reordering_happen_only_when_asked_for() -> None:
    everything = list(range(200))
    assert numbers_seen(CALM) == everything
    dropped = numbers_seen(replace(CALM, drop_ppm=100_000))
    assert set(dropped) < set(everything)
    assert dropped == sorted(dropped)
    doubled = numbers_seen(replace(CALM, duplicate_ppm=100_000))
    assert sorted(set(doubled)) == everything
    assert 200 < len(doubled) < 240
    shuffled = numbers_seen(replace(CALM, jitter_ns=20 * MS, is_reordering=True))
    assert sorted(shuffled) == everything
    assert shuffled != everything


def test_the_same_seed_gives_the_same_history_and_another_seed_another() -> None:
    stormy = replace(CALM, jitter_ns=5 * MS, loss_ppm=50_000, drop_ppm=50_000, duplicate_ppm=50_000, is_reordering=True)
    assert numbers_seen(stormy, seed=7) == numbers_seen(stormy, seed=7)
    assert numbers_seen(stormy, seed=7) != numbers_seen(stormy, seed=8)


def test_a_message_for_all_costs_one_event_however_many_want_it() -> None:
    world = World()
    for index in range(500):
        world.join(f"n{index}", "leader")
    leader = world.join("controller")
    world.run()
    say(leader, "leader", "alive")
    before = world.broker._event_count
    world.run()
    assert world.broker._event_count - before == 1
    assert sum(what == "leader=alive" for _, _, what in world.seen) == 500


def test_old_news_for_all_reaches_nobody_and_still_keeps_its_place_and_is_retained() -> None:
    world = World()
    world.broker.is_old_news = lambda payload: payload == "alive again"
    for index in range(300):
        world.join(f"n{index}", "leader")
    leader = world.join("controller")
    world.run()
    said_ns = world.broker.now_ns
    say(leader, "leader", "alive again")
    world.run()
    world.join("late", "leader")
    world.run()
    assert [who for _, who, what in world.seen if what.startswith("leader=")] == ["late"]
    assert world.of("late") == ["connected", "leader=alive again (retained)"]
    assert world.broker._spared_ns == said_ns + 2 * MS
