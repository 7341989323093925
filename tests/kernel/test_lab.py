"""`erfs lab` with real processes and namespaces: up, used, down, and killed at any instant."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from erfs_scenario.kernel.owners import MARK, Registry, identity, is_alive, members

SMALL = ("--make", "leaf-spine", "leaves=2", "spines=2", "hosts_per_leaf=1")
FAST = ("--session-interval", "0 ms")
LEFT_S = 5.0


def erfs(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=60, check=False, env=env(folder))


def command(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "erfs", "lab", *words)


def env(folder: Path) -> dict[str, str]:
    return {**os.environ, "ERFS_LABS": str(folder)}


@contextmanager
def running(folder: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(command("up", *words), stderr=subprocess.PIPE, text=True, env=env(folder))
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def heard(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if text in line:
            return
    raise AssertionError("".join(said))


def spaces_of(pid: int) -> set[str]:
    """Return the network namespaces that a process holds open, but for the one the machine lives in."""
    own = os.readlink("/proc/self/ns/net")
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.add(os.readlink(path))
        except OSError:
            continue
    return {name for name in found if name.startswith("net:[") and name != own}


def holders(spaces: set[str]) -> list[int]:
    """Return the processes in any of *spaces*, or that hold one of them open."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                links = [os.readlink(path / "ns/net"), *(os.readlink(one) for one in (path / "fd").iterdir())]
            except OSError:
                continue
            if spaces & set(links):
                found.append(int(path.name))
    return found


def assert_nothing_is_left(lab: str, spaces: set[str]) -> None:
    deadline = time.monotonic() + LEFT_S
    while members(lab) or holders(spaces):
        assert time.monotonic() < deadline, (members(lab), holders(spaces))


def test_a_lab_comes_up_is_looked_at_and_goes_down(tmp_path: Path) -> None:
    with running(tmp_path, *SMALL, *FAST) as owner:
        heard(owner, " is up: leaf-spine 2x2, 6 nodes, 6 links, 8 processes")
        (lab,) = json.loads(erfs(tmp_path, "status", "--json").stdout)["labs"]
        spaces = spaces_of(owner.pid)
        assert len(spaces) == 7
        assert (lab["pid"], lab["state"], lab["ports_up"], lab["ports"]) == (owner.pid, "up", 12, 12)
        assert [name for name, process in lab["processes"].items() if not process["is_running"]] == []

        routes = erfs(tmp_path, "exec", "leaf0-host0", "--", "ip", "-json", "route", "show", "proto", "229").stdout
        assert [route["dst"] for route in json.loads(routes)] == ["10.64.0.0/10"]
        assert erfs(tmp_path, "exec", "bus", "--", "sh", "-c", "exit 7").returncode == 7
        unknown = erfs(tmp_path, "exec", "leaf9", "--", "true")
        assert (unknown.returncode, "did you mean" in unknown.stderr) == (64, True)

        assert erfs(tmp_path, "down").stdout == f"lab {lab['id']} is gone\n"
        assert owner.wait(timeout=20) == 0
        assert_nothing_is_left(lab["id"], spaces)
        assert list(tmp_path.iterdir()) == []


def test_a_lab_with_the_bus_in_band_has_it_at_a_host_and_reaches_it_over_the_fabric(tmp_path: Path) -> None:
    with running(tmp_path, *SMALL, *FAST, "--bus", "in_band") as owner:
        heard(owner, " is up: leaf-spine 2x2, 6 nodes, 6 links, 8 processes")
        spaces = spaces_of(owner.pid)
        assert len(spaces) == 6
        (lab,) = json.loads(erfs(tmp_path, "status", "--json").stdout)["labs"]
        assert (lab["ports_up"], lab["ports"]) == (12, 12)
        where = [
            erfs(tmp_path, "exec", node, "--", "readlink", "/proc/self/ns/net").stdout
            for node in ("bus", "leaf0-host0")
        ]
        assert where[0] == where[1] != ""
        asked = ("ip", "-json", "route", "get", lab["management"]["leaf0-host0"])
        (way,) = json.loads(erfs(tmp_path, "exec", "leaf1", "--", *asked).stdout)
        assert (way["dev"] in ("port1", "port2"), way["prefsrc"]) == (True, lab["management"]["leaf1"])
        assert erfs(tmp_path, "down").stdout == f"lab {lab['id']} is gone\n"
        assert owner.wait(timeout=20) == 0
        assert_nothing_is_left(lab["id"], spaces)


def test_packets_cross_the_fabric_of_a_lab_and_not_its_management_network(tmp_path: Path) -> None:
    with running(tmp_path, *SMALL, *FAST) as owner:
        heard(owner, " is up")
        target = json.loads(erfs(tmp_path, "exec", "leaf1-host0", "--", "ip", "-json", "addr", "show", "lo").stdout)
        address = next(
            one["local"] for one in target[0]["addr_info"] if one["family"] == "inet" and one["scope"] == "global"
        )
        listening = subprocess.Popen(
            command("exec", "leaf1-host0", "--", sys.executable, "-c", _LISTEN, address),
            stdout=subprocess.PIPE,
            text=True,
            env=env(tmp_path),
        )
        assert listening.stdout is not None
        assert listening.stdout.readline() == "listening\n"
        erfs(tmp_path, "exec", "leaf0-host0", "--", sys.executable, "-c", _SEND, address)
        heard_it, _ = listening.communicate(timeout=30)
        source = json.loads(erfs(tmp_path, "exec", "leaf0-host0", "--", "ip", "-json", "route", "get", address).stdout)
        assert heard_it.startswith("hello from 10.64.")
        assert source[0]["dev"] != "mgmt0"


_LISTEN = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind((sys.argv[1], 4000))
print("listening", flush=True)
payload, sender = sock.recvfrom(99)
print(payload.decode(), "from", sender[0])
"""
_SEND = """
import socket, sys, json, subprocess
lo = json.loads(subprocess.run(["ip", "-json", "addr", "show", "lo"], capture_output=True, check=True).stdout)
own = next(a["local"] for a in lo[0]["addr_info"] if a["family"] == "inet" and a["scope"] == "global")
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind((own, 0))
sock.sendto(b"hello", (sys.argv[1], 4000))
"""


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_instant_nothing_is_left(tmp_path: Path, seed: int) -> None:
    """SIGKILL between the first namespace and some time after everything is up: processes and namespaces go with the owner."""
    wait_s = Random(seed).uniform(0.2, 6.0)
    with running(tmp_path, *SMALL) as owner:
        heard(owner, "namespaces")
        lab, spaces = identity(owner.pid), spaces_of(owner.pid)
        assert lab is not None
        assert len(spaces) == 7
        pinned = os.pidfd_open(owner.pid)
        waiting = select.poll()
        waiting.register(pinned, select.POLLIN)
        assert waiting.poll(wait_s * 1000) == []
        owner.kill()
        assert waiting.poll(10_000)
        os.close(pinned)
        assert_nothing_is_left(lab, spaces)
    assert erfs(tmp_path, "status").stdout == "no lab is running\n"
    assert "the files of 1 labs" in erfs(tmp_path, "clean").stdout
    assert list(tmp_path.iterdir()) == []


def test_a_program_run_inside_ends_with_the_lab(tmp_path: Path) -> None:
    with running(tmp_path, *SMALL, "--no-agents") as owner:
        heard(owner, " is up")
        spaces = spaces_of(owner.pid)
        inside = subprocess.Popen(
            command("exec", "leaf0", "--", "sh", "-c", "echo there; exec cat"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env(tmp_path),
        )
        assert inside.stdout is not None
        assert inside.stdout.readline() == "there\n"
        lab = identity(owner.pid)
        assert lab is not None
        owner.kill()
        assert inside.wait(timeout=20) == 128 + signal.SIGKILL
        inside.communicate()
        assert_nothing_is_left(lab, spaces)


def test_cleaning_ends_what_belongs_to_an_owner_that_is_gone_and_nothing_else(tmp_path: Path) -> None:
    gone = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    dead_lab, own_lab = identity(gone.pid), identity(os.getpid())
    gone.communicate()
    assert dead_lab is not None
    assert own_lab is not None
    assert not is_alive(dead_lab)
    marks = [{MARK: dead_lab}, {MARK: own_lab}, {}]
    children = [
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **mark})
        for mark in marks
    ]
    try:
        for child in children:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(b"x")
            child.stdin.flush()
            assert child.stdout.read(1) == b"x"
        for lab in (dead_lab, own_lab):
            (tmp_path / lab).mkdir()
        # Others' dead labs may be on this machine, too.
        ended, folders = Registry(tmp_path).clean()
        assert (ended >= 1, folders) == (True, 1)
        assert children[0].wait(timeout=10) == -signal.SIGKILL
        assert [child.poll() for child in children[1:]] == [None, None]
        assert [path.name for path in tmp_path.iterdir()] == [own_lab]
    finally:
        for child in children:
            child.kill()
            child.communicate()


def test_a_process_id_given_to_somebody_else_is_no_owner() -> None:
    own = identity(os.getpid())
    assert own is not None
    assert is_alive(own)
    assert not is_alive(own + "0")
    assert not is_alive("not-a-lab")


def test_without_rights_it_says_so_and_ends_with_64(tmp_path: Path) -> None:
    drop = (
        "import os, sys; os.setgid(65534); os.setuid(65534); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    words = (sys.executable, "-c", drop, *command("up", *SMALL)[1:])
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=env(tmp_path))
    if "Permission denied" in done.stderr and "erfs" not in done.stderr:
        pytest.skip("another user may not read this installation")
    assert done.returncode == 64
    assert done.stderr == (
        "erfs: lab: labs are network namespaces, made with the rights of root: Operation not permitted"
        " (run it as root: sudo erfs lab up ...)\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("up",), "give one fabric file, or --make KIND"),
        (("up", "--make", "fat-tre", "k=4"), 'no generator "fat-tre"'),
        (("up", "--make", "fat-tree", "k"), '"k" is no number of a generator'),
        (("up", "--make", "fat-tree", "k=3"), "k: "),
        (("up", "--make", "fat-tree", "k=8"), "a lab holds at most 200"),
        (("up", "nowhere.json"), "nowhere.json"),
        (("down",), "no lab is running"),
        (("exec", "leaf0", "--", "true"), "no lab is running"),
    ],
)
def test_what_cannot_be_is_refused_without_a_traceback(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    done = erfs(tmp_path, *words)
    assert done.returncode == 64
    assert message in done.stderr
    assert "Traceback" not in done.stderr
