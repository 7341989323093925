"""A stretch of network between bus clients and their broker that can be cut, as a switch port between them could be.

Rule 1: a cut is silence: nothing arrives, nothing is refused, no connection is closed, and what was sent waits (as TCP
would have it wait), so that both ends have to notice by themselves.
Rule 2: it never looks into what it carries.
"""

import asyncio
import contextlib

_CHUNK = 65_536


class Stretch:
    """A TCP relay on a loopback port of its own."""

    def __init__(self, broker_host: str, broker_port: int) -> None:
        self._broker = (broker_host, broker_port)
        self._is_whole = asyncio.Event()
        self._is_whole.set()
        self._relays: set[asyncio.Task[None]] = set()
        self._sides: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        """Listen; *port* says where."""
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Let nothing through any more."""
        self._is_whole.clear()

    def join(self) -> None:
        """Let everything through again, what waited first."""
        self._is_whole.set()

    @property
    def is_cut(self) -> bool:
        """Whether nothing gets through."""
        return not self._is_whole.is_set()

    def sever(self) -> None:
        """Break every connection at once, as the end of a client's process would; both ends see it, nobody says goodbye."""
        for side in list(self._sides):
            side.transport.abort()
        for relay in list(self._relays):
            relay.cancel()

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is not None:
            self._server.close()
        relays = list(self._relays)
        self.sever()
        await asyncio.gather(*relays, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        self._sides.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            await self._is_whole.wait()
            far_reader, far = await asyncio.open_connection(*self._broker)
            self._sides.add(far)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, far))
                group.create_task(self._pump(far_reader, writer))
        except (OSError, asyncio.CancelledError, ExceptionGroup):
            # Either side is gone, or we are: both cases end with both sides closed.
            pass
        finally:
            self._relays.discard(task)
            for side in (writer, far):
                if side is not None:
                    self._sides.discard(side)
                    side.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await _read(source):
            await self._is_whole.wait()
            sink.write(data)
            await sink.drain()
        # The end of a connection is news too, and must not cross a cut.
        await self._is_whole.wait()
        with contextlib.suppress(OSError):
            sink.write_eof()


async def _read(source: asyncio.StreamReader) -> bytes:
    """Return what arrived; nothing at the end of the connection, orderly or not."""
    try:
        return await source.read(_CHUNK)
    except OSError:
        return b""
