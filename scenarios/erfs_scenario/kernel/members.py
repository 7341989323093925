"""The programs of a lab: broker and controller in the namespace of the bus, an agent in the namespace of each node.

Rule 1: whoever runs these is in the namespace of the bus itself, and so hears what everybody there says.
Rule 2: nothing outlives this process: each program has a parent-death signal, each one of theirs ends when they do.
"""

import asyncio
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from random import SystemRandom
from typing import Final

from erfs.aio.mqtt import BusSettings, MqttBus
from erfs.errors import FabricError
from erfs.exporters import write_fabric
from erfs.ids import NodeId
from erfs.messages import CONTROLLER
from erfs.topics import Topics
from erfs.units import MS, SECOND
from erfs_scenario.daemon_files import agent_toml, controller_toml, mosquitto_conf
from erfs_scenario.kernel.spaces import LabError, Spaces
from erfs_scenario.merging import Tail
from erfs_scenario.nodes import agent_nodes
from erfs_scenario.observer import Observer
from erfs_scenario.plan import Timers
from erfs_scenario.processes import Child, is_listening

BROKER: Final = NodeId("broker")
PORT: Final = 1883
# Two Python processes a node start on however few cores there are, beside whatever else runs.
START_DEADLINE_NS: Final = 60 * SECOND
START_PER_AGENT_NS: Final = 3 * SECOND
# No program for so long after the last one: the controller pushes rounds within some 10 ms of each other.
REST_NS: Final = 300 * MS
POLL_NS: Final = 20 * MS
_MOSQUITTO: Final = Path("/usr/sbin/mosquitto")
_KEPT: Final = 100_000
_OF_THE_LOG: Final = frozenset({"at_ns", "event", "level", "logger", "wall_time"})


class Members:
    """
    The programs of one lab.

    Args:
        spaces: Where they run.
        folder: For what they are told, keep and say; anything of an earlier run in it is overwritten.
        timers, is_protecting: As in a plan; a session interval of 0: no liveness sessions.

    Raises:
        FabricError: a node has the name of broker or controller.
    """

    def __init__(
        self,
        spaces: Spaces,
        folder: Path,
        *,
        timers: Timers,
        is_protecting: bool = True,
    ) -> None:
        for name in (BROKER, CONTROLLER):
            if name in spaces.fabric.nodes:
                raise FabricError(f'a node is called "{name}", which is what a lab calls its own: rename it')
        self.spaces = spaces
        self.folder = folder.absolute()
        self.topics = Topics()
        self.running: dict[NodeId, Child] = {}
        """By node; broker and controller by names that no node may have."""
        self._timers = timers
        self._is_protecting = is_protecting
        self._expected_dead: set[NodeId] = set()
        self._journal = Tail(self.folder / "controller" / "journal.jsonl")
        self._logs = {node: Tail(self.log_of(node)) for node in agent_nodes(spaces.fabric)}

    @property
    def broker_name(self) -> str:
        """What kind of broker runs here."""
        return "mosquitto" if _mosquitto() else "embedded"

    def write_files(self) -> None:
        """Write what the programs are told."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("controller", "agents", "state", "logs"):
            (self.folder / name).mkdir(parents=True)
        fabric, host = self.spaces.fabric, str(self.spaces.wiring.bus_address)
        (self.folder / "addressing.json").write_text(self.spaces.addressing.model_dump_json())
        (self.folder / "mosquitto.conf").write_text(mosquitto_conf(host, PORT))
        (self.folder / "controller" / "fabric.json").write_text(write_fabric(fabric, "node-link"))
        (self.folder / "controller" / "controller.toml").write_text(
            controller_toml(
                self._timers, is_protecting=self._is_protecting, prefix=self.topics.prefix, host=host, port=PORT
            )
        )
        for place, node in enumerate(agent_nodes(fabric)):
            # A node's name may hold what no file's name can.
            text = agent_toml(
                fabric,
                node,
                self._timers,
                is_protecting=self._is_protecting,
                prefix=self.topics.prefix,
                host=host,
                port=PORT,
                addressing=self.folder / "addressing.json",
                state_file=self.folder / "state" / f"{place}.json",
            )
            self._agent_config(node).write_text(text)

    # --- starting ---------------------------------------------------------------------------------------------------------
    async def start_broker(self) -> None:
        """Start Mosquitto if there is one, else the embedded broker; return when it listens. Raises LabError."""
        host, program = str(self.spaces.wiring.bus_address), _mosquitto()
        if program:
            command: tuple[str, ...] = (program, "-c", str(self.folder / "mosquitto.conf"))
        else:
            call = "from erfs.cli.main import main; main()"
            command = (sys.executable, "-c", call, "broker", "--host", host, "--port", str(PORT))
        child = await self._start(BROKER, command)
        try:
            async with asyncio.timeout(START_DEADLINE_NS / SECOND):
                while child.is_running and not await is_listening(host, PORT):  # noqa: ASYNC110 -- another process
                    await asyncio.sleep(POLL_NS / SECOND)
        except TimeoutError:
            raise LabError(f"the broker does not listen: {child.last_words()}") from None
        self.check()

    async def start_controller(self) -> None:
        """Start a controller; it finds the epoch of the last one."""
        config = str(self.folder / "controller" / "controller.toml")
        await self._start(CONTROLLER, (sys.executable, "-m", "erfs_controller", "--config", config))

    async def start_agent(self, node: NodeId) -> None:
        """Start the agent of *node*."""
        enter = ("nsenter", f"--net={self.spaces.path(node)}")
        await self._start(node, (*enter, sys.executable, "-m", "erfs_agent", "--config", str(self._agent_config(node))))

    async def start_all(self, tell: Callable[[str], None]) -> None:
        """Start broker, controller and agents, and wait until they are at rest. *tell* hears how far it is."""
        self.write_files()
        await self.start_broker()
        tell(f"the bus is up ({self.broker_name})")
        bus = MqttBus(self.bus_settings(), "observer", rng=SystemRandom())
        observer = Observer(bus, self.topics, agent_nodes(self.spaces.fabric))
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(bus.run(), name="observer")
            await self.start_controller()
            for node in agent_nodes(self.spaces.fabric):
                await self.start_agent(node)
            tell(f"{len(self.running) - 2} agents started")
            await self._come_to_rest(observer, tell)
            listening.cancel()

    async def _come_to_rest(self, observer: Observer, tell: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (START_DEADLINE_NS + START_PER_AGENT_NS * len(self.running)) / SECOND
        program_count, since, said, is_finished = -1, 0.0, "", False
        while True:
            await asyncio.sleep(POLL_NS / SECOND)
            self.check()
            missing = observer.missing()
            if observer.program_count != program_count:
                program_count, since = observer.program_count, loop.time()
            for line in self._journal.read():
                if line["event"] in ("generation_pushed", "restoration_finished"):
                    is_finished = line["event"] == "restoration_finished"
            if not is_finished:
                missing.append("the controller has not finished")
            if not missing and loop.time() - since >= REST_NS / SECOND:
                return
            if missing and missing[0].partition("(")[0] != said:
                said = missing[0].partition("(")[0]
                tell(missing[0])
            if loop.time() > deadline:
                raise LabError(f"no steady state in time: {'; '.join(missing) or 'programs keep coming'}")

    # --- while it runs ----------------------------------------------------------------------------------------------------
    def bus_settings(self) -> BusSettings:
        """Return how to reach the broker from the namespace of the bus."""
        return BusSettings.model_validate(
            {
                "brokers": [{"host": str(self.spaces.wiring.bus_address), "port": PORT}],
                "prefix": self.topics.prefix,
                "queue_length": _KEPT,
                "echo_deadline": "5 s",
            }
        )

    def check(self) -> None:
        """
        Notice who died without being killed by us.

        Raises:
            LabError: somebody did; with its last words.
        """
        for name, child in self.running.items():
            if not child.is_running and name not in self._expected_dead:
                who = name if name in (BROKER, CONTROLLER) else f'agent of "{name}"'
                raise LabError(f"the {who} ended with exit code {child.exit_code}: {child.last_words()}")

    def read_marks(self) -> list[tuple[int, str, dict[str, object]]]:
        """Return what controller and agents noted since the last call: (CLOCK_MONOTONIC instant, event, fields with "node")."""
        found = []
        for name, tail in ((CONTROLLER, self._journal), *self._logs.items()):
            for line in tail.read():
                # What an agent logs beside its marks has no instant of the clock that runs are measured by.
                if isinstance(at_ns := line.get("at_ns"), int):
                    fields = {key: value for key, value in line.items() if key not in _OF_THE_LOG}
                    found.append((at_ns, str(line["event"]), fields | {"node": name}))
        return found

    async def kill(self, name: NodeId) -> None:
        """End a program without a word, as a crash would."""
        self._expected_dead.add(name)
        await self.running[name].kill()

    async def revive(self, name: NodeId) -> None:
        """Start a killed program again."""
        if name == BROKER:
            await self.start_broker()
        elif name == CONTROLLER:
            await self.start_controller()
        else:
            await self.start_agent(name)

    async def stop(self) -> None:
        """Ask everybody to end: agents, then the controller, then the broker."""
        self._expected_dead.update(self.running)
        await _stopped(child for name, child in self.running.items() if name not in (BROKER, CONTROLLER))
        await _stopped(child for name, child in self.running.items() if name == CONTROLLER)
        await _stopped(child for name, child in self.running.items() if name == BROKER)

    def log_of(self, name: NodeId) -> Path:
        """Return where a program's standard error goes."""
        if name in (BROKER, CONTROLLER):
            return self.folder / "logs" / f"{name}.log"
        return self.folder / "logs" / f"{self._place(name)}.log"

    async def _start(self, name: NodeId, command: tuple[str, ...]) -> Child:
        child = await Child.start(name, command, self.log_of(name))
        self.running[name] = child
        self._expected_dead.discard(name)
        return child

    def _agent_config(self, node: NodeId) -> Path:
        return self.folder / "agents" / f"{self._place(node)}.toml"

    def _place(self, node: NodeId) -> int:
        return agent_nodes(self.spaces.fabric).index(node)


async def _stopped(children: Iterable[Child]) -> None:
    await asyncio.gather(*(child.stop() for child in children))


def _mosquitto() -> str | None:
    return shutil.which("mosquitto") or (str(_MOSQUITTO) if _MOSQUITTO.exists() else None)
