"""How long after a down fact is published have all agents that are armed for it changed their data planes?

    python benchmarks/fact_fanout.py                                       20, 200 and 1,000 agents, both brokers
    python benchmarks/fact_fanout.py --agents 200 --brokers mosquitto --rounds 50
    python benchmarks/fact_fanout.py --markdown docs/benchmarks.md         the table, written between that file's markers

One reporter publishes, and every agent is armed for that failure: a real connection to a real broker, a real core with its
program, a data plane that is data. Agents are hosted some dozens to a process. All of them, the broker and the reporter share
this machine's cores, which the agents of a fabric do not: with many agents the figures are those of this machine's processor.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import multiprocessing
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, Final

sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.timing import (  # noqa: E402 -- the line above is for it
    duration,
    fail,
    load_now,
    machine_facts,
    markdown_table,
    write_between_markers,
)
from erfs.aio import edge  # noqa: E402
from erfs.aio.logs import set_up_logs  # noqa: E402
from erfs.aio.loop import loop_factory  # noqa: E402
from erfs.aio.mqtt import BusSettings, MqttBus  # noqa: E402
from erfs.ids import DestinationId, NodeId, link_id  # noqa: E402
from erfs.messages import (  # noqa: E402
    CONTROLLER,
    Armed,
    ChangeRef,
    DownFact,
    Group,
    Member,
    PortBinding,
    Program,
    Route,
    Step,
    sealed,
)
from erfs.ports import Mark, Priority, Publish  # noqa: E402
from erfs.topics import Address, Channel, Topics  # noqa: E402
from erfs_agent.aio.runtime import AgentRuntime  # noqa: E402
from erfs_agent.core import AgentCore, AgentTimers  # noqa: E402
from erfs_agent.drivers.simulated import SimulatedDriver  # noqa: E402
from erfs_agent.state import AgentState  # noqa: E402

MARKERS: Final = "fact_fanout"
MOSQUITTO: Final = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
BROKERS: Final = ("mosquitto", "embedded")
# The leaf that loses its first spine, and the two.
REPORTER, LOST, LEFT = NodeId("leaf"), NodeId("spine0"), NodeId("spine1")
FAILED: Final = link_id((REPORTER, "e0"), (LOST, "leaf"))
BEHIND: Final = DestinationId("@leaf")
TOPICS: Final = Topics()
PATIENCE_S: Final = 180.0


@dataclass(frozen=True)
class Result:
    """What came out for one broker and one number of agents; seconds after publishing, one of each for every round."""

    broker: str
    agents: int
    processes: int
    first_s: list[float]
    median_s: list[float]
    last_s: list[float]
    load: str


# --- the agents ------------------------------------------------------------------------------------------------------------
def program(node: NodeId) -> Program:
    """Return a leaf's program: the way to the reporter's destination over both spines, armed for the loss of one."""
    ports = tuple(
        PortBinding(port=f"e{index}", link=link_id((node, f"e{index}"), (spine, node)), far_end=spine)
        for index, spine in enumerate((LOST, LEFT))
    )
    return sealed(
        Program(
            sender=CONTROLLER,
            node=node,
            epoch=1,
            generation=1,
            digest="",
            ports=ports,
            groups=(Group(id=0, members=(Member(port="e0"), Member(port="e1"))),),
            routes=(Route(destination=BEHIND, group=0),),
            armed=Armed(
                reporters=(REPORTER, LOST),
                sets=((BEHIND,),),
                steps=(Step(drop=("e0",)),),
                links={FAILED: (ChangeRef(0, 0),)},
            ),
        )
    )


class AllUp:
    """A data plane with nothing behind it."""

    def write_routes(
        self, node: NodeId, routes: Mapping[DestinationId, tuple[Member, ...]], removed: tuple[DestinationId, ...]
    ) -> None:
        """Take the routes; the driver remembers them."""

    def is_port_up(self, node: NodeId, port: str) -> bool:
        """All ports have carrier."""
        return True


class Host:
    """Some agents in one event loop; says when they are ready, and for each fact when the last one had acknowledged."""

    def __init__(self, nodes: list[NodeId], settings: BusSettings, said: Connection) -> None:
        self._nodes = nodes
        self._settings = settings
        self._said = said
        self._heard: set[NodeId] = set()
        self._done: list[int] = []

    async def run(self) -> None:
        """Run them until this process is ended."""
        loop = asyncio.get_running_loop()
        buses = []
        async with asyncio.TaskGroup() as tasks:
            for node in self._nodes:
                mine = program(node)
                driver = SimulatedDriver(AllUp(), node, [binding.port for binding in mine.ports])
                core = AgentCore(
                    node, mine.ports, AgentTimers(), AgentState(program=mine, incarnation=1), ports_up=driver.ports()
                )
                will = edge.will(TOPICS, core.last_will())
                bus = MqttBus(self._settings, node, will=will, rng=Random(node))
                runtime = AgentRuntime(core, driver, bus, topics=TOPICS, on_mark=self._listener(node))
                tasks.create_task(runtime.run(), name=f"agent {node}")
                tasks.create_task(bus.run(), name=f"bus of {node}")
                buses.append(bus)
            ended = loop.time() + PATIENCE_S
            while not all(bus.is_connected for bus in buses) and loop.time() < ended:  # noqa: ASYNC110 -- nothing is timed yet
                await asyncio.sleep(0.05)
            # As the daemon does.
            gc.collect()
            gc.freeze()
            self._said.send(sum(bus.is_connected for bus in buses))

    def _listener(self, node: NodeId) -> Any:
        def on_mark(mark: Mark, at_ns: int) -> None:
            if mark.event == "fact_received":
                self._heard.add(node)
            elif mark.event == "change_acknowledged" and node in self._heard:
                self._heard.discard(node)
                self._done.append(at_ns)
                if len(self._done) == len(self._nodes):
                    self._said.send(self._done)
                    self._done = []

        return on_mark


def host(nodes: list[NodeId], settings: BusSettings, said: Connection) -> None:
    """Be a process of agents."""
    set_up_logs("warning")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(Host(nodes, settings, said).run())


# --- one run ---------------------------------------------------------------------------------------------------------------
def measure(broker: str, count: int, arguments: argparse.Namespace) -> Result:
    """Run *count* agents on a broker of their own."""
    nodes = [NodeId(f"leaf{index}") for index in range(count)]
    with started_broker(broker) as port, contextlib.ExitStack() as stack:
        settings = BusSettings.model_validate(
            {
                "brokers": [{"port": port}],
                # A host whose agents share its core must not give the broker up for its own lateness.
                "connect_deadline": "60 s",
                "echo_deadline": "30 s",
            }
        )
        hosts = []
        context = multiprocessing.get_context("spawn")
        for start in range(0, count, arguments.per_process):
            here, there = context.Pipe(duplex=False)
            batch = nodes[start : start + arguments.per_process]
            process = context.Process(target=host, args=(batch, settings, there), daemon=True)
            process.start()
            there.close()
            stack.callback(process.join)
            stack.callback(process.kill)
            hosts.append(here)
        ready = sum(_heard(one) for one in hosts)
        if ready != count:
            fail(f"{ready} of {count} agents are connected to {broker}")
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            rounds = runner.run(report(settings, hosts, arguments.rounds))
    taken = [sorted((at_ns - since_ns) / 1e9 for at_ns in done) for since_ns, done in rounds]
    return Result(
        broker,
        count,
        len(hosts),
        [one[0] for one in taken],
        [statistics.median(one) for one in taken],
        [one[-1] for one in taken],
        load_now(),
    )


async def report(settings: BusSettings, hosts: list[Connection], count: int) -> list[tuple[int, list[int]]]:
    """Say that the link is down, and up again, *count* times and once before; return each down's instant and the agents'."""
    bus = MqttBus(settings, REPORTER, rng=Random(0))
    rounds = []
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(bus.run(), name="bus")
        while not bus.is_connected:  # noqa: ASYNC110 -- nothing is timed yet
            await asyncio.sleep(0.01)
        for number in range(2 * count + 2):
            # Whatever the last one left to do is done: acknowledgements, collections, echoes.
            await asyncio.sleep(0.2)
            fact = DownFact(
                sender=REPORTER, link=FAILED, port="e0", far_end=LOST, counter=number + 1, down=number % 2 == 0
            )
            command = Publish(Address(Channel.FACT, REPORTER, "e0"), fact, Priority.URGENT)
            since_ns = time.monotonic_ns()
            edge.publish(bus, TOPICS, command)
            done = await asyncio.to_thread(lambda: [at_ns for one in hosts for at_ns in _heard(one)])
            if fact.down and number:
                rounds.append((since_ns, done))
        running.cancel()
    return rounds


def _heard(said: Connection) -> Any:
    if not said.poll(PATIENCE_S):
        fail("agents did not answer in time")
    return said.recv()


@contextmanager
def started_broker(name: str) -> Iterator[int]:
    """Run a broker on a loopback port meanwhile; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "mosquitto.conf")
        # Started by root, it would become a user who cannot read the folder.
        config.write_text(f"user root\nlistener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n")
        call = "from erfs.cli.main import main; main()"
        commands = {
            "mosquitto": [MOSQUITTO, "-c", str(config)],
            "embedded": [sys.executable, "-c", call, "broker", "--port", str(port)],
        }
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(commands[name], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 20
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > deadline:
                        fail(f"{name} does not listen: {Path(folder, 'log').read_text()}")
                    time.sleep(0.05)
            yield port
        finally:
            process.kill()
            process.wait()


# --- telling ---------------------------------------------------------------------------------------------------------------
def table(results: list[Result], rounds: int) -> str:
    """Return the results as Markdown."""
    facts = machine_facts(["aiomqtt", "paho-mqtt", "amqtt", "uvloop"])
    about = ", ".join(f"{name} {value}" for name, value in facts.items())
    rows = [
        [
            result.broker,
            f"{result.agents:,}",
            str(result.processes),
            *(duration(statistics.median(series)) for series in (result.first_s, result.median_s, result.last_s)),
            duration(max(result.last_s)),
            result.load,
        ]
        for result in results
    ]
    header = ["broker", "agents", "processes", "first", "median", "last", "slowest last", "load after"]
    return f"{about}; {rounds} rounds, medians over the rounds.\n\n{markdown_table(header, rows)}"


def main() -> None:
    """Run what was asked for."""
    set_up_logs("warning")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="*", default=[20, 200, 1_000], help="how many, one or several")
    parser.add_argument("--brokers", nargs="*", choices=BROKERS, default=list(BROKERS))
    parser.add_argument("--rounds", type=int, default=15, help="after one that warms up")
    parser.add_argument("--per-process", type=int, default=50, help="agents hosted by one process")
    parser.add_argument("--json", action="store_true", help="print all figures")
    parser.add_argument("--markdown", type=Path, help="write the table into this file, between its markers")
    arguments = parser.parse_args()
    results = []
    for broker in arguments.brokers:
        if broker == "mosquitto" and not Path(MOSQUITTO).exists():
            print("mosquitto is not installed: left out", file=sys.stderr)
            continue
        for count in arguments.agents:
            before = load_now()
            result = measure(broker, count, arguments)
            results.append(result)
            first, median, last = (
                duration(statistics.median(series)) for series in (result.first_s, result.median_s, result.last_s)
            )
            print(
                f"{broker}, {count} agents in {result.processes} processes: first {first}, median {median}, last {last}"
                f" (slowest {duration(max(result.last_s))}); load {before} before, {result.load} after",
                file=sys.stderr,
                flush=True,
            )
    if arguments.json:
        print(json.dumps([vars(result) for result in results]))
    text = table(results, arguments.rounds)
    if arguments.markdown is not None:
        write_between_markers(arguments.markdown, MARKERS, text)
    elif not arguments.json:
        print(text)


if __name__ == "__main__":
    main()
