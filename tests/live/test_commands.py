"""`erfs run --backend live` as a user starts it, and what others do to it meanwhile."""

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import psutil
import pytest

from erfs.aio import edge
from erfs.aio.mqtt import BusSettings, MqttBus
from erfs.messages import DownFact
from erfs.ports import Incoming
from erfs.topics import Channel, Topics
from tests.bus.conftest import Broker
from tests.live.runs import DEADLINE_S, PROGRAM, command, journal, until

pytestmark = pytest.mark.live

QUIET = """
name: quiet
fabric: {generate: {kind: leaf-spine, leaves: 2, spines: 2, hosts_per_leaf: 1}}
warm_up: 1 s
faults:
  - {name: late, kind: link_down, target: {kind: trunk, random: 1}, at: 60 s, for: 1 s}
"""
BROKEN_TWICE = """
name: broken-twice
fabric: {generate: {kind: leaf-spine, leaves: 2, spines: 3, hosts_per_leaf: 1}}
warm_up: 1 s
faults:
  - {name: before, kind: link_down, target: {name: leaf0 - spine0}, at: 300 ms, for: 60 s}
  - {name: during, kind: link_down, target: {name: leaf0 - spine1}, at: 3 s, for: 60 s}
"""


def _is_measuring(folder: Path) -> bool:
    return any(record["event"] == "measurement_started" for record in journal(folder))


def test_a_second_controller_exits_and_a_killed_run_leaves_no_process(tmp_path: Path) -> None:
    """Two facts about one run, so that its processes start once."""
    with command(QUIET, tmp_path) as process:
        until(lambda: _is_measuring(tmp_path), "the measurement's start")

        second = tmp_path / "second"
        second.mkdir()
        config = (tmp_path / "out/controller/controller.toml").read_text()
        fabric = tmp_path / "out/controller/fabric.json"
        (second / "controller.toml").write_text(config.replace('"fabric.json"', f'"{fabric}"'))
        done = subprocess.run(
            [sys.executable, "-m", "erfs_controller", "--config", str(second / "controller.toml")],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        (leader,) = re.findall(r'"controller": "([^"]+)"', (tmp_path / "out/controller/log").read_text())[:1]
        assert (done.returncode, leader in done.stderr) == (3, True), done.stderr
        assert process.poll() is None

        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 2, "a broker and a controller"
        process.kill()
        process.wait(DEADLINE_S)
        _, alive = psutil.wait_procs(children, timeout=DEADLINE_S)
        assert not alive
    judged = subprocess.run(
        [*PROGRAM, "report", "out"], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (judged.returncode, "harness died at" in judged.stdout) == (2, True), judged.stderr


def test_a_terminated_run_ends_its_processes_and_is_aborted(tmp_path: Path) -> None:
    with command(QUIET, tmp_path) as process:
        until(lambda: _is_measuring(tmp_path), "the measurement's start")
        children = psutil.Process(process.pid).children(recursive=True)

        os.kill(process.pid, signal.SIGTERM)

        assert process.wait(DEADLINE_S) == 3
        assert not psutil.wait_procs(children, timeout=DEADLINE_S)[1]
    assert journal(tmp_path)[-1]["event"] == "run_aborted"


async def test_a_broker_killed_and_restarted_loses_no_fact(broker: Broker, tmp_path: Path) -> None:
    """One link fails before the broker dies and one while it is dead; a newcomer after its return reads both."""
    with command(BROKEN_TWICE, tmp_path, "--broker", f"127.0.0.1:{broker.port}"):
        until(lambda: _adjudicated(tmp_path) == ["before"], "the first link's end")
        broker.kill()
        until(lambda: _events(tmp_path, "fault_effective") == 2, "the second link's failure")
        assert _adjudicated(tmp_path) == ["before"]
        broker.start()
        until(lambda: _adjudicated(tmp_path) == ["before", "during"], "the second link's end")

        prefix = tomllib.loads((tmp_path / "out/controller/controller.toml").read_text())["bus"]["prefix"]
        facts = await _retained_facts(broker, prefix)

    links = {"before": "leaf0 spine0", "during": "leaf0 spine1"}
    ends = {(fact.sender, fact.far_end) for fact in facts if fact.down}
    wanted = [name.split() for name in links.values()]
    assert ends == {(one, other) for one, other in wanted} | {(other, one) for one, other in wanted}


def _events(folder: Path, event: str) -> int:
    return sum(record["event"] == event for record in journal(folder))


def _adjudicated(folder: Path) -> list[str]:
    """Return the names of the faults whose links the controller knows to be down, in that order."""
    name_of = {"spine0": "before", "spine1": "during"}
    links = [record["link"] for record in journal(folder) if record["event"] == "link_down_adjudicated"]
    return [name for link in links for spine, name in name_of.items() if spine in link]


async def _retained_facts(broker: Broker, prefix: str) -> list[DownFact]:
    """Return what a new subscriber reads, once it has four facts."""
    topics = Topics(prefix)
    facts: list[DownFact] = []
    enough = asyncio.Event()

    def on_message(incoming: Incoming) -> None:
        delivered = edge.receive(topics, incoming)
        if delivered is not None and isinstance(delivered.message, DownFact):
            facts.append(delivered.message)
            if len(facts) >= 4:
                enough.set()

    settings = BusSettings.model_validate({"brokers": [{"port": broker.port}], "prefix": prefix})
    bus = MqttBus(settings, "newcomer", rng=random.Random(1))
    bus.on_message = on_message
    bus.subscribe(frozenset({topics.all_of(Channel.FACT)}))
    task = asyncio.create_task(bus.run())
    async with asyncio.timeout(DEADLINE_S):
        await enough.wait()
    task.cancel()
    return facts
