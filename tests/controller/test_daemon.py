"""`erfs-controller` as a process: its configuration, its signals, its exit codes, over the real embedded broker."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from erfs.cli import confirm
from erfs.cli.main import main as erfs_main
from erfs.exporters import write_fabric
from erfs.fabric import Fabric
from erfs.generators import generate
from erfs.journal import read
from erfs.units import SECOND
from erfs_controller.__main__ import main as controller_main
from erfs_controller.aio.store import ControllerStore

CONFIG = """\
fabric = "fabric.json"
state_dir = "{state}"
[bus]
brokers = [{{ host = "127.0.0.1", port = {port} }}]
[timers]
discovery = "200 ms"
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def config(tmp_path: Path) -> Path:
    fabric = generate("leaf-spine", {"leaves": 3, "spines": 2, "hosts_per_leaf": 1})
    (tmp_path / "fabric.json").write_text(write_fabric(fabric, "node-link"))
    path = tmp_path / "controller.toml"
    path.write_text(CONFIG.format(state="state", port=free_port()))
    return path


@pytest.fixture
def broker() -> Iterator[list[int]]:
    """Process ids of embedded brokers; they outlive the controllers, not the test."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ERFS_")}
    return kept | extra


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run a program's main function here: a process costs seconds, and what is told is the same."""

    def run(main: Callable[[], None], *arguments: str, **variables: str) -> Done:
        for name in [name for name in os.environ if name.startswith("ERFS_")]:
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["program", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


@pytest.fixture
def check(call: Callable[..., Done]) -> Callable[..., Done]:
    """Run ``erfs-controller --check-config``."""

    def run(config: Path, **variables: str) -> Done:
        return call(controller_main, "--config", str(config), "--check-config", **variables)

    return run


def start(config: Path) -> subprocess.CompletedProcess[str]:
    """Run a controller that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "erfs_controller", "--config", str(config)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )


class Daemon:
    """A running controller and its log, event by event."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log: list[dict[str, Any]] = []

    def await_event(self, event: str) -> dict[str, Any]:
        """Read the log until *event*; it ends with the process."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(json.loads(line))
            if self.log[-1]["event"] == event:
                return self.log[-1]
        raise AssertionError(f"no {event} in {self.log}")

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        self.await_event("controller_stopped")
        return self.process.wait()


@contextmanager
def daemon(config: Path, brokers: list[int], **extra: str) -> Iterator[Daemon]:
    with subprocess.Popen(
        [sys.executable, "-m", "erfs_controller", "--config", str(config)],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**extra),
    ) as process:
        found = Daemon(process)
        try:
            yield found
        finally:
            process.kill()
            brokers += [line["pid"] for line in found.log if line["event"] == "broker_started"]


def port_of(config: Path) -> str:
    return config.read_text().partition("port = ")[2].partition(" ")[0]


# --- the configuration ---------------------------------------------------------------------------------------------------
def test_a_good_configuration_is_said_to_be_good(check: Callable[..., Done], config: Path) -> None:
    done = check(config)

    assert (done.code, done.err) == (0, "")
    assert done.out == (
        f"{config}: good: {config.parent}/fabric.json (5 switches, 3 endpoints, 9 links), bus 127.0.0.1:{port_of(config)}\n"
    )


def test_a_bad_configuration_is_told_with_all_its_mistakes(check: Callable[..., Done], config: Path) -> None:
    text = config.read_text().replace('"200 ms"', '"2 parsecs"\ndebounce_mim = "3 s"').replace("fabric =", "fabrik =")
    config.write_text(text)

    done = check(config, ERFS_CONTROLLER__BROKER="mine", ERFS_CONTROLLER__TIMRS__X="1")

    assert done.code == 64
    assert done.err.splitlines() == [
        f'{config}: "fabric" is missing',
        (
            f"{config}: environment variable ERFS_CONTROLLER__BROKER: \"broker\": input should be 'embedded' or 'external', "
            "not 'mine'"
        ),
        f'{config}: environment variable ERFS_CONTROLLER__TIMRS__X: unknown key "timrs" (did you mean "timers"?)',
        f'{config}:1: unknown key "fabrik" (did you mean "fabric"?)',
        (
            f'{config}:6: "timers.discovery": "2 parsecs" has the unknown unit "parsecs": '
            "expected one of ns, us, ms, s, min, h"
        ),
        f'{config}:7: unknown key "timers.debounce_mim" (did you mean "debounce_min"?)',
    ]


@pytest.mark.parametrize(
    ("timers", "told"),
    [
        ('debounce_min = "60 ms"', "debounce_max is shorter than debounce_min"),
        ('leader_refresh = "2 s"', "leader_listen must be at least twice leader_refresh"),
    ],
)
def test_timers_that_contradict_each_other_are_told(
    check: Callable[..., Done], config: Path, timers: str, told: str
) -> None:
    config.write_text(config.read_text() + timers + "\n")

    done = check(config)

    assert done.code == 64
    assert told in done.err


def test_an_embedded_broker_cannot_be_elsewhere(check: Callable[..., Done], config: Path) -> None:
    config.write_text(config.read_text().replace("127.0.0.1", "bus.example.net"))

    assert check(config).code == 64
    assert check(config, ERFS_CONTROLLER__BROKER="external").code == 0


@pytest.mark.parametrize("content", [b"", b"\xff\xd8\xff\xe0 a picture", b'{"nodes": [', b"vendid=0x2c9\n\0"])
def test_a_bad_fabric_file_is_one_message_and_no_traceback(
    check: Callable[..., Done], config: Path, content: bytes
) -> None:
    (config.parent / "fabric.json").write_bytes(content)

    done = check(config)

    assert done.code == 64
    assert f"{config.parent}/fabric.json" in done.err
    assert "Traceback" not in done.err


def test_the_environment_overrides_the_file(check: Callable[..., Done], config: Path, tmp_path: Path) -> None:
    other = generate("leaf-spine", {"leaves": 7, "spines": 2, "hosts_per_leaf": 1})
    (tmp_path / "other.json").write_text(write_fabric(other, "node-link"))

    assert "9 switches" in check(config, ERFS_CONTROLLER__FABRIC=str(tmp_path / "other.json")).out


def test_a_damaged_state_file_is_told_and_nothing_starts(config: Path) -> None:
    (config.parent / "state").mkdir()
    (config.parent / "state/controller.sqlite3").write_text("no database, but more than a hundred letters" * 4)

    done = start(config)

    assert done.returncode == 64
    assert done.stderr.splitlines()[-1] == (
        f"{config.parent}/state/controller.sqlite3: cannot be used: file is not a database "
        "(move it away to take the epoch and the drains from the agents and the broker)"
    )


# --- the process ----------------------------------------------------------------------------------------------------------
def truncated(fabric: Fabric) -> str:
    """Return the file of *fabric* without its last leaf and what hangs on it."""
    gone = {"leaf2", "leaf2-host0"}
    return write_fabric(
        Fabric(
            [node for node in fabric.nodes.values() if node.id not in gone],
            [link for link in fabric.links.values() if not {link.a.node, link.b.node} & gone],
        ),
        "node-link",
    )


@pytest.mark.live
def test_the_broker_outlives_the_controller_and_each_start_is_a_new_epoch(config: Path, broker: list[int]) -> None:
    with daemon(config, broker) as first:
        assert first.await_event("became_leader")["epoch"] == 1
        first.await_event("restoration_finished")
        assert first.end() == 0
    assert [line["event"] for line in first.log].count("broker_started") == 1

    with daemon(config, broker) as second:
        assert second.await_event("became_leader")["epoch"] == 2
        computed = second.await_event("routes_computed")
        assert (computed["changed"], computed["rounds"]) == (0, 0), "the retained programs are right already"
        assert second.end() == 0
    assert [line["event"] for line in second.log].count("broker_started") == 0

    journal = list(read(config.parent / "state/journal.jsonl"))
    assert [line["epoch"] for line in journal if line["event"] == "became_leader"] == [1, 2]
    assert all(type(line["at_ns"]) is int and line["wall_time"].endswith("+00:00") for line in journal)


@pytest.mark.live
def test_a_second_controller_beside_a_live_one_ends_with_a_message_that_names_it(
    config: Path, broker: list[int], tmp_path: Path
) -> None:
    other = tmp_path / "other.toml"
    other.write_text(config.read_text().replace('"state"', '"other-state"'))
    with daemon(config, broker) as first:
        first.await_event("restoration_finished")
        leader = first.log[[line["event"] for line in first.log].index("controller_started")]["controller"]

        done = start(other)

        assert done.returncode == 3
        assert done.stderr.splitlines()[-1] == (
            f'erfs-controller: controller "{leader}" leads in epoch 1: only one may; stop it first to lead with this one'
        )
        assert ControllerStore(tmp_path / "other-state/controller.sqlite3").load().epoch == 0
        assert first.end() == 0, "the leader noticed nothing"
    assert "another_leads" not in [line["event"] for line in first.log]


@pytest.mark.live
def test_a_killed_leader_is_succeeded_at_once(config: Path, broker: list[int]) -> None:
    """Its last will says that nobody leads."""
    with daemon(config, broker) as first:
        first.await_event("restoration_finished")
        first.process.kill()
        first.process.wait()
        with daemon(config, broker) as second:
            assert second.await_event("became_leader")["epoch"] == 2
            assert second.end() == 0


@pytest.mark.live
def test_a_reload_is_refused_whole_or_guarded_until_it_is_confirmed(
    config: Path, broker: list[int], call: Callable[..., Done]
) -> None:
    fabric = generate("leaf-spine", {"leaves": 3, "spines": 2, "hosts_per_leaf": 1})
    file, at = config.parent / "fabric.json", ("--broker", f"127.0.0.1:{port_of(config)}")
    good = file.read_text()
    with daemon(config, broker) as controller:
        controller.await_event("restoration_finished")
        file.write_text(good[: len(good) // 2])
        controller.process.send_signal(signal.SIGHUP)
        refused = controller.await_event("config_refused")
        assert str(file) in refused["problems"][0]

        file.write_text(truncated(fabric))
        controller.process.send_signal(signal.SIGHUP)
        assert controller.await_event("push_refused")["destinations"] == ["@leaf2"]
        generation = str(controller.log[-1]["generation"])

        done = call(erfs_main, "confirm", "999", "--reason", "a slip of the pen", *at)
        assert (done.code, done.err) == (0, "")
        assert controller.await_event("confirmation_ignored")["generation"] == 999
        assert call(erfs_main, "confirm", generation, "--reason", "rack 2 was sold", *at).code == 0
        assert controller.await_event("push_confirmed")["reason"] == "rack 2 was sold"
        controller.await_event("restoration_finished")
        assert controller.end() == 0


# --- erfs confirm ---------------------------------------------------------------------------------------------------------
def test_a_confirmation_without_a_broker_is_told(call: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirm, "DEADLINE_NS", 1 * SECOND)

    done = call(erfs_main, "confirm", "4", "--reason", "why not", "--broker", f"127.0.0.1:{free_port()}")

    assert done.code == 70
    assert "took the confirmation within 1 s" in done.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("0", "--reason", "x"), "0 is not in the range"),
        (("4",), "Missing option '--reason'"),
        (("4", "--reason", "  "), "say why"),
        (("4", "--reason", "x", "--broker", "nowhere"), '"nowhere" is not HOST:PORT'),
        (("4", "--reason", "x", "--prefix", "a/#"), "is not a prefix"),
    ],
)
def test_a_bad_confirmation_is_a_usage_error(arguments: tuple[str, ...], told: str, call: Callable[..., Done]) -> None:
    done = call(erfs_main, "confirm", *arguments)

    assert done.code == 64
    assert told in done.err
