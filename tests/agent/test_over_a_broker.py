"""The daemon on a real bus: the embedded broker as a process, the agent as another, this test as the controller."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from erfs.aio.mqtt import BrokerAddress, BusSettings, MqttBus
from erfs.ids import DestinationId, NodeId, link_id
from erfs.messages import (
    CONTROLLER,
    Ack,
    Group,
    Installed,
    Member,
    Message,
    PortBinding,
    Presence,
    Program,
    Route,
    decode,
    encode,
    sealed,
)
from erfs.ports import Incoming, Priority
from erfs.topics import Address, Channel, Topics

pytestmark = pytest.mark.live

LEAF, SPINE = NodeId("leaf1"), NodeId("spine1")
PROGRAM = sealed(
    Program(
        sender=CONTROLLER,
        node=LEAF,
        epoch=3,
        generation=1,
        digest="",
        ports=(PortBinding(port="e1", link=link_id((LEAF, "e1"), (SPINE, "e1")), far_end=SPINE),),
        groups=(Group(id=0, members=(Member(port="e1"),)),),
        routes=(Route(destination=DestinationId("@leaf2"), group=0),),
    )
)
INSTALLED = Installed(epoch=3, generation=1, digest=PROGRAM.digest)
TOPICS = Topics()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[int]:
    """The port of an embedded broker."""
    config = tmp_path / "broker.toml"
    config.write_text("port = 0\n")
    ready, told = os.pipe()
    arguments = ["broker", "--config", str(config), "--ready-file", f"/dev/fd/{told}"]
    with (tmp_path / "broker.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", "from erfs.cli.main import main; main()", *arguments],
            stdout=log,
            stderr=log,
            pass_fds=[told],
        )
    os.close(told)
    with open(ready) as pipe:
        address = pipe.readline().strip()
    assert address, (tmp_path / "broker.log").read_text()
    yield int(address.rpartition(":")[2])
    process.kill()
    process.wait()


@pytest.fixture
def config(tmp_path: Path, broker: int) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(
        f'node = "leaf1"\nstate_file = "{tmp_path}/leaf1.json"\n'
        'ports = [{ port = "e1", far_end = "spine1", far_port = "e1" }]\n'
        f'[bus]\nbrokers = [{{ host = "127.0.0.1", port = {broker} }}]\n'
    )
    return path


class Controller:
    """What a controller would say and hear."""

    def __init__(self, bus: MqttBus) -> None:
        self.heard: list[Message] = []
        self._bus = bus
        self._news = asyncio.Event()
        bus.on_message = self._hear
        bus.subscribe(frozenset(TOPICS.all_of(channel) for channel in (Channel.PRESENCE, Channel.ACK, Channel.HEALTH)))

    def _hear(self, incoming: Incoming) -> None:
        self.heard.append(decode(incoming.payload))
        self._news.set()

    def push(self, program: Program) -> None:
        topic = TOPICS.topic(Address(Channel.PROGRAM, program.node))
        self._bus.publish(topic, encode(program), retain=True, priority=Priority.ROUTINE)

    async def until(self, is_it: Callable[[Message], bool]) -> Message:
        """Return the first message, heard already or to come, that is the one; the others before it are forgotten."""
        async with asyncio.timeout(40):
            while True:
                while self.heard:
                    message = self.heard.pop(0)
                    if is_it(message):
                        return message
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def controller(port: int) -> AsyncIterator[Controller]:
    bus = MqttBus(BusSettings(brokers=(BrokerAddress(port=port),)), "controller", rng=Random(1))
    found = Controller(bus)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(bus.run())
        try:
            yield found
        finally:
            running.cancel()


def start_agent(config: Path) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ERFS_")}
    with (config.parent / "agent.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "erfs_agent", "--config", str(config)], stderr=log, env=environment
        )


def presence(state: str) -> Callable[[Message], bool]:
    return lambda message: isinstance(message, Presence) and message.state == state


async def test_an_agent_installs_says_goodbye_and_comes_back_with_its_program(config: Path, broker: int) -> None:
    agent = start_agent(config)
    try:
        async with controller(broker) as here:
            await here.until(presence("online"))
            here.push(PROGRAM)
            ack = await here.until(lambda message: isinstance(message, Ack))
            assert isinstance(ack, Ack)
            assert (ack.outcome, ack.installed) == ("installed", INSTALLED)

            agent.send_signal(signal.SIGTERM)
            gone = await here.until(presence("gone"))
            assert isinstance(gone, Presence)
            assert gone.seq > 0, "a goodbye, not the last will"
            assert agent.wait(40) == 0
            assert json.loads((config.parent / "leaf1.json").read_text())["program"]["digest"] == PROGRAM.digest

            agent = start_agent(config)
            back = await here.until(presence("online"))
            assert isinstance(back, Presence)
            assert (back.installed, back.incarnation) == (INSTALLED, gone.incarnation + 1)
    finally:
        agent.kill()
        agent.wait()


async def test_the_broker_speaks_for_an_agent_that_was_killed(config: Path, broker: int) -> None:
    agent = start_agent(config)
    try:
        async with controller(broker) as here:
            online = await here.until(presence("online"))
            agent.kill()
            gone = await here.until(presence("gone"))

            assert isinstance(online, Presence)
            assert gone == Presence(sender=LEAF, state="gone", incarnation=online.incarnation)
    finally:
        agent.kill()
        agent.wait()
