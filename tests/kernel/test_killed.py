"""A run killed at any instant leaves nothing, and harms nobody beside it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from erfs_scenario.kernel.owners import MARK, identity, mark_of, members
from erfs_scenario.kernel.prober import ProbeConfig, ProbeFlow

from .namespaces import Namespace, wire

# Alone on the machine: a busy one would show losses that nobody here has caused.
pytestmark = pytest.mark.live
LIBRARY = Path(__file__).resolve().parents[2] / "scenarios/library"
LEFT_S = 5.0
KILLS = int(os.environ.get("ERFS_KILLS", "2"))
"""Random instants for each way of killing; many are for whoever changes how labs end."""
# From the first namespace to the end of the fault, on a machine that does nothing else.
LATEST_S = 22.0
SCENARIO = """\
name: killed
fabric:
  generate: {kind: leaf-spine, leaves: 3, spines: 2, hosts_per_leaf: 1}
faults:
  - {name: quiet, kind: silent_drop, target: {kind: trunk, random: 1}, at: 500 ms, for: 30 s}
warm_up: 500 ms
"""


def root_state() -> str:
    """Return what this machine's own namespace has of interfaces, routes, rules, next-hop objects and filters."""
    commands = ("ip -o link", "ip route", "ip -6 route", "ip rule", "ip nexthop", "nft list ruleset")
    text = ""
    for command in commands:
        done = subprocess.run(command.split(), capture_output=True, text=True, timeout=20, check=True)
        # A route learnt from the network counts its seconds.
        text += "".join(line.partition(" expires ")[0] + "\n" for line in done.stdout.splitlines())
    return text


def namespaces(*pids: int) -> set[str]:
    """Return the network namespaces that some processes are in or hold open; without any, those of all processes."""
    found = set()
    folders = [Path(f"/proc/{pid}") for pid in pids] or [one for one in Path("/proc").iterdir() if one.name.isdecimal()]
    for process in folders:
        with suppress(OSError):
            for link in (process / "ns/net", *(process / "fd").iterdir()):
                with suppress(OSError):
                    found.add(os.readlink(link))
    return {name for name in found if name.startswith("net:[")}


def kill_if_of(lab: str, pid: int) -> None:
    """End a process if it still belongs to a lab; by a descriptor, for what has its number now may be somebody else."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if mark_of(pid) == lab:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


@contextmanager
def run_going_on(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    (folder / "killed.yaml").write_text(SCENARIO)
    words = ("run", str(folder / "killed.yaml"), "--backend", "kernel", "--out", str(folder / "out"))
    environment = os.environ | {"ERFS_LABS": str(folder / "labs")}
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen((sys.executable, "-m", "erfs", *words), stderr=said, stdout=said, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def bystander(folder: Path) -> Iterator[None]:
    """Two namespaces of the test's own, and datagrams between them, none of which may be lost meanwhile."""
    with Namespace() as one, Namespace() as other:
        wire(one, "e0", "02:00:00:00:01:01", other, "e0", "02:00:00:00:01:02")
        one("ip addr add 192.0.2.1/24 dev e0")
        other("ip addr add 192.0.2.2/24 dev e0")
        one("ping -c 1 -w 5 192.0.2.2", is_checked=False)
        flow = ProbeFlow(
            source_space=str(one.path),
            target_space=str(other.path),
            source_address="192.0.2.1",
            target_address="192.0.2.2",
            source_port=20_000,
        )
        config = ProbeConfig(flows=(flow,), interval_ns=5_000_000, duration_ns=10**12, output=str(folder / "notes.npz"))
        (folder / "probe.json").write_text(config.model_dump_json())
        words = (sys.executable, "-m", "erfs_scenario.kernel.prober", str(folder / "probe.json"))
        prober = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert prober.stdout is not None
        assert prober.stdout.readline() == b"ready\n"
        try:
            yield
            prober.send_signal(signal.SIGTERM)
            assert prober.wait(30) == 0
        finally:
            prober.kill()
            prober.communicate()
    import numpy as np

    with np.load(folder / "notes.npz") as notes:
        assert len(notes["number"]) == len(notes["due_at_ns"]) > 0


@pytest.mark.parametrize("seed", range(KILLS))
@pytest.mark.parametrize("who", ["the run alone", "every process"])
def test_within_five_seconds_nothing_of_a_killed_run_is_left(tmp_path: Path, who: str, seed: int) -> None:
    root_before, wait_s = root_state(), Random(f"{who} {seed}").uniform(0.0, LATEST_S)
    with bystander(tmp_path):
        with run_going_on(tmp_path) as run:
            lab = identity(run.pid)
            assert lab is not None
            with pytest.raises(subprocess.TimeoutExpired):
                run.wait(wait_s)
            belonging = members(lab)
            spaces = namespaces(run.pid, *belonging) - {os.readlink("/proc/self/ns/net")}
            run.kill()
            if who == "every process":
                for pid in belonging:
                    kill_if_of(lab, pid)
            run.wait()
            deadline = time.monotonic() + LEFT_S
            while members(lab) or spaces & namespaces():
                assert time.monotonic() < deadline, (members(lab), spaces & namespaces())
        assert root_state() == root_before
    assert MARK not in os.environ
