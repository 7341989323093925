"""One connection's inside, where real brokers would show it only by luck."""

import asyncio
import contextlib
import random
import time

import pytest

from erfs.aio.mqtt import BusSettings, MqttBus, _EchoLost
from erfs.units import MS


def bus() -> MqttBus:
    return MqttBus(BusSettings(), "a", rng=random.Random(1))


async def test_a_broker_that_closes_before_it_answers_is_asked_again_long_before_the_deadline() -> None:
    """Such is a broker that is dying, or not yet ready: it must not cost everybody the whole time set for an answer."""
    again = asyncio.Event()
    count = 0

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        if count == 2:
            again.set()
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        settings = BusSettings.model_validate(
            {"brokers": [{"host": "127.0.0.1", "port": port}], "connect_deadline": "1 min"}
        )
        running = asyncio.create_task(MqttBus(settings, "a", rng=random.Random(1)).run())
        async with asyncio.timeout(20):
            await again.wait()
        running.cancel()
        await asyncio.wait([running])


class SwallowsCancellation:
    """A client whose call ends with a result at the very moment it is cancelled."""

    def __init__(self) -> None:
        self.called = asyncio.Event()

    async def subscribe(self, topics: list[tuple[str, int]]) -> tuple[int, ...]:
        self.called.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return (1,) * len(topics)


async def test_a_cancellation_that_meets_an_acknowledgement_is_not_lost() -> None:
    """Python 3.11's wait_for swallows it, and then the whole process would not end."""
    one = bus()
    client = SwallowsCancellation()
    one.subscribe(frozenset({"t"}))
    subscriber = asyncio.create_task(one._connections[0]._keep_subscribed(client))
    await client.called.wait()

    subscriber.cancel()
    done, _ = await asyncio.wait([subscriber], timeout=5)

    assert done == {subscriber}
    assert subscriber.cancelled()


async def test_a_missing_echo_condemns_the_broker() -> None:
    with pytest.raises(_EchoLost, match="no echo within 20 ms"):
        await bus()._connections[0]._await_echo(20 * MS)


async def test_our_own_lateness_does_not_condemn_the_broker() -> None:
    """A long computation in the same process makes the deadline pass before the echo could be read."""
    connection = bus()._connections[0]
    loop = asyncio.get_running_loop()

    def compute() -> None:
        until_ns = time.monotonic_ns() + 400 * MS
        while time.monotonic_ns() < until_ns:
            pass

    waiting = asyncio.create_task(connection._await_echo(100 * MS))
    loop.call_soon(compute)
    loop.call_later(0.42, connection._echo_returned.set)

    await waiting


class Recorder:
    """A client that writes down what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str]]] = []

    async def subscribe(self, topics: list[tuple[str, int]]) -> tuple[int, ...]:
        self.asked.append(("subscribe", [topic for topic, _ in topics]))
        return (1,) * len(topics)

    async def unsubscribe(self, topics: list[str]) -> None:
        self.asked.append(("unsubscribe", topics))


async def test_a_changed_set_costs_only_its_difference_new_before_old() -> None:
    one, client = bus(), Recorder()
    for filters in ({"a", "b"}, {"b", "c", "d"}):
        one.subscribe(frozenset(filters))
        await one._connections[0]._keep_subscribed(client, once=True)
    assert client.asked == [
        ("subscribe", ["a", "b"]),
        ("subscribe", ["c", "d"]),
        ("unsubscribe", ["a"]),
    ]


async def test_many_filters_go_in_several_packets() -> None:
    one, client = bus(), Recorder()
    wanted = frozenset(f"t/{number}" for number in range(250))
    one.subscribe(wanted)
    await one._connections[0]._keep_subscribed(client, once=True)
    assert [len(filters) for _, filters in client.asked] == [100, 100, 50]
    assert {pattern for _, filters in client.asked for pattern in filters} == wanted
