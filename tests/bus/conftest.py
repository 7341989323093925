"""Brokers to test against: in memory, amqtt as a process, Mosquitto; and clients that remember what they saw."""

import asyncio
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from erfs.aio.memory import BusConditions, MemoryBroker, MemoryBus
from erfs.aio.mqtt import BusSettings, MqttBus
from erfs.ports import Incoming, Priority

DEADLINE_S = 20.0
ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


class Broker:
    """A broker in a process of its own, on a loopback port that it keeps over restarts."""

    def __init__(self, folder: Path, lines: str = "") -> None:
        self.folder = folder
        self.lines = lines
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        raise NotImplementedError

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(DEADLINE_S)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()

    def restart(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self.start()


class Amqtt(Broker):
    """`erfs broker`."""

    def start(self) -> None:
        config = self.folder / "broker.toml"
        config.write_text(f"port = {self.port}\n{self.lines}")
        ready, told = os.pipe()
        arguments = ["broker", "--config", str(config), "--ready-file", f"/dev/fd/{told}"]
        with (self.folder / "broker.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from erfs.cli.main import main; main()", *arguments],
                stdout=log,
                stderr=log,
                pass_fds=[told],
            )
        os.close(told)
        with open(ready) as pipe:  # ends when the process does, if it never gets ready
            line = pipe.readline()
        assert line == f"127.0.0.1:{self.port}\n", (self.folder / "broker.log").read_text()

    def log(self) -> str:
        return (self.folder / "broker.log").read_text()


class Mosquitto(Broker):
    """The mosquitto program; *lines* replace "allow_anonymous true"."""

    def start(self) -> None:
        program = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
        if not Path(program).exists():
            if os.environ.get("CI"):
                pytest.fail("no mosquitto: CI must install it (tests/install-programs)")
            pytest.skip("mosquitto is not installed (tests/install-programs)")
        config = self.folder / "mosquitto.conf"
        lines = self.lines or "allow_anonymous true\nset_tcp_nodelay true"
        config.write_text(f"user root\nlistener {self.port} 127.0.0.1\n{lines}\n")
        with (self.folder / "mosquitto.log").open("ab") as log:
            self.process = subprocess.Popen([program, "-v", "-c", str(config)], stdout=log, stderr=log)
        while True:
            assert self.process.poll() is None, (self.folder / "mosquitto.log").read_text()
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S).close()
            except OSError:
                continue
            return


class Relay:
    """A cable between a client and the broker that can be cut, as when a machine dies: no goodbye passes."""

    def __init__(self, to_port: int) -> None:
        self.to_port = to_port
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.to_port)
        self._writers |= {writer, far_writer}
        await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


class Client:
    """One client of the bus and all it saw, in order."""

    def __init__(self, name: str, bus: MqttBus | MemoryBus, prefix: str, changed: asyncio.Event) -> None:
        self.name = name
        self.bus = bus
        self.prefix = prefix
        self.got: list[Incoming] = []
        self.states: list[bool] = []
        self.on_back: Callable[[], None] = lambda: None
        self.changed = changed
        self.task: asyncio.Task[None] | None = None
        self.relay: Relay | None = None
        bus.on_message = self._on_message
        bus.on_state = self._on_state

    def _on_message(self, incoming: Incoming) -> None:
        self.got.append(incoming)
        self.changed.set()

    def _on_state(self, is_connected: bool) -> None:
        self.states.append(is_connected)
        if is_connected:
            self.on_back()
        self.changed.set()

    def want(self, *filters: str) -> None:
        self.bus.subscribe(frozenset(f"{self.prefix}/{pattern}" for pattern in filters))

    def say(
        self, topic: str, payload: bytes = b"x", *, retain: bool = False, priority: Priority = Priority.ROUTINE
    ) -> None:
        self.bus.publish(f"{self.prefix}/{topic}", payload, retain=retain, priority=priority)

    def heard(self, topic: str = "") -> list[bytes]:
        """The payloads that came, of *topic* or of all."""
        return [incoming.payload for incoming in self.got if not topic or incoming.topic == f"{self.prefix}/{topic}"]

    @property
    def is_connected(self) -> bool:
        return bool(self.states) and self.states[-1]


_PREFIXES = itertools.count()


class Bench:
    """What a contract test may do, whatever the broker."""

    def __init__(self) -> None:
        self.prefix = f"test/{os.getpid()}-{next(_PREFIXES)}"
        self.changed = asyncio.Event()
        self.clients: list[Client] = []

    async def client(
        self, name: str, *filters: str, will: tuple[str, bytes] | None = None, queue_length: int = 1_000
    ) -> Client:
        """Return a client that is connected."""
        client = await self.unconnected(name, will=will, queue_length=queue_length)
        client.want(*filters)
        await self.until(lambda: client.is_connected)
        return client

    async def unconnected(
        self, name: str, *, will: tuple[str, bytes] | None = None, queue_length: int = 1_000
    ) -> Client:
        raise NotImplementedError

    async def until(self, condition: Callable[[], bool]) -> None:
        raise NotImplementedError

    async def settle(self, *clients: Client) -> None:
        """Return when everything the clients said so far has been dealt with by the broker and delivered."""
        for client in clients:
            listener = await self.client(f"settle-{len(self.clients)}", "settle/#")
            # A sender's messages of one lane stay in order, so what came before is through when this is.
            for priority in Priority:
                client.say(f"settle/{priority}", client.name.encode(), priority=priority)
            await self.until(lambda listener=listener: len(listener.got) >= len(Priority))
            await self.stop(listener)

    async def stop(self, client: Client) -> None:
        raise NotImplementedError

    async def cut(self, client: Client) -> None:
        raise NotImplementedError

    async def stop_broker(self) -> None:
        raise NotImplementedError

    async def start_broker(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        pass


class MemoryBench(Bench):
    """The simulated broker."""

    def __init__(self, conditions: BusConditions | None = None) -> None:
        super().__init__()
        self.conditions = conditions or BusConditions(jitter_ns=20_000)
        self.broker: MemoryBroker[bytes] = MemoryBroker(random.Random(1), self.conditions)

    async def unconnected(
        self, name: str, *, will: tuple[str, bytes] | None = None, queue_length: int = 1_000
    ) -> Client:
        full_will = (f"{self.prefix}/{will[0]}", will[1]) if will is not None else None
        end = self.broker.connect(f"{self.prefix}-{name}", full_will, outbox_length=queue_length)
        client = Client(name, MemoryBus(end), self.prefix, self.changed)
        self.clients.append(client)
        return client

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            due_ns = self.broker.next_event_ns()
            assert due_ns is not None, "nothing is on its way any more"
            self.broker.advance(due_ns)

    async def stop(self, client: Client) -> None:
        self.broker.disconnect(f"{self.prefix}-{client.name}")

    async def cut(self, client: Client) -> None:
        self.broker.kill(f"{self.prefix}-{client.name}")

    async def stop_broker(self) -> None:
        self.broker.stop(keeps_retained=False)

    async def start_broker(self) -> None:
        self.broker.start()


class RealBench(Bench):
    """A broker process."""

    def __init__(self, broker: Broker | None) -> None:
        super().__init__()
        self.broker = broker

    def settings(self, *ports: int, **changes: object) -> BusSettings:
        return BusSettings.model_validate(
            {
                "brokers": [{"port": port} for port in ports or (self.broker.port,)],
                "prefix": self.prefix,
                "echo_interval": "100 ms",
                "echo_deadline": "2 s",
                "backoff_initial": "10 ms",
                "backoff_max": "100 ms",
            }
            | changes
        )

    async def unconnected(
        self, name: str, *, will: tuple[str, bytes] | None = None, queue_length: int = 1_000
    ) -> Client:
        relay = None
        port = self.broker.port
        if will is not None:
            relay = Relay(port)
            await relay.open()
            port = relay.port
        client = self.join(name, self.settings(port, queue_length=queue_length), will=will)
        client.relay = relay
        return client

    def join(self, name: str, settings: BusSettings, *, will: tuple[str, bytes] | None = None) -> Client:
        """Start a client with *settings*."""
        full_will = (f"{self.prefix}/{will[0]}", will[1]) if will is not None else None
        # The process's prefix keeps clients of other tests on the same broker apart.
        bus = MqttBus(
            settings, f"{self.prefix.replace('/', '-')}-{name}", will=full_will, rng=random.Random(len(self.clients))
        )
        client = Client(name, bus, self.prefix, self.changed)
        client.task = asyncio.create_task(bus.run(), name=f"client {name}")
        self.clients.append(client)
        return client

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                for client in self.clients:
                    if client.task is not None and client.task.done() and not client.task.cancelled():
                        client.task.result()
                self.changed.clear()
                try:
                    # Counters change without telling, so look again from time to time.
                    await asyncio.wait_for(self.changed.wait(), 0.02)
                except TimeoutError:
                    continue

    async def stop(self, client: Client) -> None:
        assert client.task is not None
        client.task.cancel()
        await asyncio.gather(client.task, return_exceptions=True)

    async def cut(self, client: Client) -> None:
        assert client.relay is not None, "only a client with a last will can be cut"
        client.relay.cut()

    async def stop_broker(self) -> None:
        self.broker.kill()

    async def start_broker(self) -> None:
        await asyncio.to_thread(self.broker.restart)

    async def close(self) -> None:
        for client in self.clients:
            await self.stop(client)
        if self.broker.process is None or self.broker.process.poll() is not None:
            self.broker.start()


@pytest.fixture(scope="session")
def amqtt_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Amqtt]:
    broker = Amqtt(tmp_path_factory.mktemp("amqtt"))
    broker.start()
    yield broker
    broker.close()


@pytest.fixture(scope="session")
def mosquitto_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    broker = Mosquitto(tmp_path_factory.mktemp("mosquitto"))
    broker.start()
    yield broker
    broker.close()


REAL = ("amqtt", pytest.param("mosquitto", marks=pytest.mark.mosquitto))


async def _bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    bench = (
        MemoryBench() if request.param == "memory" else RealBench(request.getfixturevalue(f"{request.param}_broker"))
    )
    yield bench
    await bench.close()


bench = pytest.fixture(params=("memory", *REAL))(_bench)
real_bench = pytest.fixture(params=REAL)(_bench)


def _factory(kind: type[Broker], tmp_path: Path) -> Iterator[Callable[[str], Broker]]:
    started: list[Broker] = []

    def make(lines: str) -> Broker:
        folder = tmp_path / f"{kind.__name__}{len(started)}"
        folder.mkdir()
        broker = kind(folder, lines)
        started.append(broker)
        broker.start()
        return broker

    yield make
    for broker in started:
        broker.close()


@pytest.fixture
def amqtt_factory(tmp_path: Path) -> Iterator[Callable[[str], Broker]]:
    """Make an `erfs broker` with the given lines of configuration."""
    yield from _factory(Amqtt, tmp_path)


@pytest.fixture
def mosquitto_factory(tmp_path: Path) -> Iterator[Callable[[str], Broker]]:
    """Make a Mosquitto with the given lines of configuration."""
    yield from _factory(Mosquitto, tmp_path)


@pytest.fixture
async def bench_of() -> AsyncIterator[Callable[[Broker | None], RealBench]]:
    """Make a bench of clients for one broker; None if each client names its own."""
    benches: list[RealBench] = []

    def make(broker: Broker | None) -> RealBench:
        bench = RealBench(broker)
        benches.append(bench)
        return bench

    yield make
    for bench in benches:
        for client in bench.clients:
            await bench.stop(client)
