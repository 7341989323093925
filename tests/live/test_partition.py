"""The stretch of network that a bus partition cuts."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from erfs_scenario.partition import Stretch


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """A server that sends back what it gets; its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def test_a_cut_is_silence_and_nothing_sent_meanwhile_is_lost(echo: int) -> None:
    stretch = Stretch("127.0.0.1", echo)
    await stretch.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", stretch.port)
    writer.write(b"before")
    assert await reader.readexactly(6) == b"before"

    stretch.cut()
    writer.write(b"during")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.1)

    stretch.join()
    assert await reader.readexactly(6) == b"during"
    writer.close()
    await stretch.close()


async def test_a_connection_made_during_a_cut_is_not_refused_and_is_served_after_it(echo: int) -> None:
    stretch = Stretch("127.0.0.1", echo)
    await stretch.open()
    stretch.cut()
    reader, writer = await asyncio.open_connection("127.0.0.1", stretch.port)
    writer.write(b"hello")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.1)

    stretch.join()
    assert await reader.readexactly(5) == b"hello"
    writer.close()
    await stretch.close()


async def test_the_end_of_a_connection_does_not_cross_a_cut() -> None:
    ended = asyncio.Event()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"welcome")
        await reader.read()
        ended.set()
        writer.close()

    server = await asyncio.start_server(watch, "127.0.0.1", 0)
    stretch = Stretch("127.0.0.1", server.sockets[0].getsockname()[1])
    await stretch.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", stretch.port)
    assert await reader.readexactly(7) == b"welcome"

    stretch.cut()
    writer.transport.abort()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(ended.wait(), 0.1)

    stretch.join()
    await asyncio.wait_for(ended.wait(), 5)
    await stretch.close()
    server.close()
