"""What every bus does, told once and checked on all of them: in memory, amqtt as a process, Mosquitto."""

from typing import Any

from erfs.aio.edge import Tally, publish, receive
from erfs.ids import NodeId
from erfs.messages import Health
from erfs.ports import Priority, Publish
from erfs.topics import Address, Channel, Topics

Bench = Any  # tests/bus/conftest.py


async def test_a_message_reaches_who_wants_it_and_says_it_is_not_retained(bench: Bench) -> None:
    listener = await bench.client("listener", "fact/+", "leader")
    speaker = await bench.client("speaker")

    speaker.say("fact/a", b"one", retain=True)
    speaker.say("leader", b"two")
    await bench.until(lambda: len(listener.got) == 2)

    assert [(incoming.topic, incoming.payload, incoming.is_retained) for incoming in listener.got] == [
        (f"{bench.prefix}/fact/a", b"one", False),
        (f"{bench.prefix}/leader", b"two", False),
    ]


async def test_a_late_subscriber_gets_the_newest_retained_message_and_only_that(bench: Bench) -> None:
    speaker = await bench.client("speaker")
    speaker.say("fact/a", b"old", retain=True)
    speaker.say("fact/b", b"passing")
    await bench.settle(speaker)
    speaker.say("fact/a", b"new", retain=True)
    await bench.settle(speaker)

    listener = await bench.client("listener", "fact/#")
    await bench.until(lambda: bool(listener.got))
    await bench.settle(listener)

    assert [(incoming.payload, incoming.is_retained) for incoming in listener.got] == [(b"new", True)]


async def test_an_empty_payload_clears_a_retained_topic(bench: Bench) -> None:
    speaker = await bench.client("speaker")
    speaker.say("fact/a", b"old", retain=True)
    await bench.settle(speaker)
    speaker.say("fact/a", b"", retain=True)
    await bench.settle(speaker)

    listener = await bench.client("listener", "fact/#")
    await bench.settle(speaker, listener)

    assert listener.got == []


async def test_only_what_is_asked_for_is_delivered(bench: Bench) -> None:
    listener = await bench.client("listener", "a/b", "c/+", "d/#")
    speaker = await bench.client("speaker")

    for topic in ("a", "a/b", "a/b/c", "ab", "c", "c/1", "c/1/2", "d", "d/1", "d/1/2", "dd"):
        speaker.say(topic, topic.encode())
    await bench.settle(speaker)
    await bench.until(lambda: len(listener.got) >= 5)

    assert listener.heard() == [b"a/b", b"c/1", b"d", b"d/1", b"d/1/2"]


async def test_what_is_no_longer_wanted_is_no_longer_delivered(bench: Bench) -> None:
    listener = await bench.client("listener", "old", "both")
    speaker = await bench.client("speaker")
    listener.want("both", "new")
    speaker.say("new", b"retained, so it shows when the change has arrived", retain=True)
    await bench.until(lambda: bool(listener.heard("new")))
    await bench.settle(listener)

    speaker.say("old")
    speaker.say("both")
    await bench.until(lambda: bool(listener.heard("both")))

    assert listener.heard("old") == []


async def test_messages_of_one_sender_keep_their_order(bench: Bench) -> None:
    listener = await bench.client("listener", "count")
    speaker = await bench.client("speaker")
    numbers = [str(number).encode() for number in range(300)]

    for number in numbers:
        speaker.say("count", number)
    await bench.until(lambda: len(listener.got) >= len(numbers))

    assert listener.heard() == numbers


async def test_a_megabyte_passes(bench: Bench) -> None:
    listener = await bench.client("listener", "program")
    speaker = await bench.client("speaker")
    program = bytes(range(256)) * 4096

    speaker.say("program", program, retain=True)
    await bench.until(lambda: bool(listener.got))

    assert listener.heard() == [program]


async def test_the_last_will_of_a_client_that_vanishes_is_said_and_retained(bench: Bench) -> None:
    listener = await bench.client("listener", "presence/#")
    victim = await bench.client("victim", will=("presence/victim", b"gone"))
    victim.say("presence/victim", b"online", retain=True)
    await bench.until(lambda: listener.heard() == [b"online"])

    await bench.cut(victim)
    await bench.until(lambda: listener.heard() == [b"online", b"gone"])

    late = await bench.client("late", "presence/#")
    await bench.until(lambda: late.heard() == [b"gone"])


async def test_a_client_that_says_goodbye_leaves_no_last_will(bench: Bench) -> None:
    listener = await bench.client("listener", "presence/#")
    client = await bench.client("polite", will=("presence/polite", b"gone"))
    client.say("presence/polite", b"online", retain=True)
    await bench.until(lambda: listener.heard() == [b"online"])

    await bench.stop(client)
    await bench.settle(listener)

    assert listener.heard() == [b"online"]


async def test_subscriptions_survive_a_restart_of_the_broker(bench: Bench) -> None:
    listener = await bench.client("listener", "fact/+")
    speaker = await bench.client("speaker")

    await bench.stop_broker()
    await bench.until(lambda: not listener.is_connected and not speaker.is_connected)
    await bench.start_broker()
    await bench.until(lambda: listener.is_connected and speaker.is_connected)
    speaker.say("fact/a", b"after")
    await bench.until(lambda: bool(listener.got))

    assert listener.states == [True, False, True]
    assert listener.heard() == [b"after"]


async def test_facts_said_again_when_the_bus_is_back_are_not_lost_with_the_broker(bench: Bench) -> None:
    """The broker forgets what it retained; who said it says it again on ``on_state(True)``, including what changed meanwhile."""
    facts = {f"fact/n1/p{index}": b"down" for index in range(20)}
    speaker = await bench.client("speaker")

    def say_all() -> None:
        for topic, payload in facts.items():
            speaker.say(topic, payload, retain=True, priority=Priority.URGENT)

    say_all()
    await bench.settle(speaker)
    speaker.on_back = say_all
    await bench.stop_broker()
    await bench.until(lambda: not speaker.is_connected)
    facts["fact/n1/p3"] = b"up"
    speaker.say("fact/n1/p3", b"up", retain=True, priority=Priority.URGENT)
    await bench.start_broker()
    await bench.until(lambda: speaker.is_connected)
    await bench.settle(speaker)

    listener = await bench.client("listener", "fact/#")
    await bench.until(lambda: len(listener.got) >= len(facts))

    assert {incoming.topic.removeprefix(f"{bench.prefix}/"): incoming.payload for incoming in listener.got} == facts


async def test_what_waited_for_the_bus_leaves_urgent_first(bench: Bench) -> None:
    listener = await bench.client("listener", "m/#")
    speaker = await bench.unconnected("speaker")
    for number in range(5):
        speaker.say(f"m/report{number}", b"report")
    speaker.say("m/fact", b"fact", priority=Priority.URGENT)
    await bench.until(lambda: len(listener.got) == 6)

    assert listener.heard() == [b"fact"] + [b"report"] * 5


async def test_a_full_queue_drops_its_oldest_routine_messages_and_no_urgent_one(bench: Bench) -> None:
    listener = await bench.client("listener", "m/#")
    speaker = await bench.unconnected("speaker", queue_length=4)
    for number in range(6):
        speaker.say(f"m/{number}", str(number).encode())
    for name in ("a", "b"):
        speaker.say(f"m/{name}", name.encode(), priority=Priority.URGENT)
    await bench.until(lambda: speaker.is_connected)
    await bench.settle(speaker)
    await bench.until(lambda: len(listener.got) >= 4)

    assert listener.heard() == [b"a", b"b", b"4", b"5"]
    assert speaker.bus.dropped_count == 4


async def test_a_retained_topic_that_waits_keeps_only_its_newest_message(bench: Bench) -> None:
    listener = await bench.client("listener", "presence/#", "health/#")
    speaker = await bench.unconnected("speaker")
    for number in range(3):
        speaker.say("presence/n1", str(number).encode(), retain=True)
        speaker.say("health/n1", str(number).encode())
    await bench.until(lambda: len(listener.got) >= 4)

    assert sorted(listener.heard("presence/n1")) == [b"2"]
    assert listener.heard("health/n1") == [b"0", b"1", b"2"]
    assert speaker.bus.dropped_count == 0


async def test_the_holes_in_a_senders_numbers_are_counted(bench: Bench) -> None:
    topics = Topics(bench.prefix)
    tally = Tally()
    controller = await bench.client("controller", "health/#")
    agent = await bench.client("agent")

    for seq in (1, 2, 5, 4):
        health = Health(sender=NodeId("leaf 1"), seq=seq, ports=())
        publish(agent.bus, topics, Publish(Address(Channel.HEALTH, NodeId("leaf 1")), health))
    await bench.until(lambda: len(controller.got) == 4)
    events = [receive(topics, incoming, tally) for incoming in controller.got]

    assert [event.message.seq for event in events] == [1, 2, 5, 4]
    assert (tally.gaps.missing_count, tally.gaps.duplicate_count, tally.refused_count) == (1, 0, 0)
