"""`erfs-agent` as a process: its configuration, its signals, its exit codes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from erfs.units import MS
from erfs_agent.aio.sessions import Wire
from erfs_agent.probing import SessionTiming
from erfs_agent.settings import AgentSettings

CONFIG = """\
node = "leaf1"
state_file = "{folder}/leaf1.json"
ports = [
  {{ port = "e1", far_end = "spine1", far_port = "e1" }},
  {{ port = "e2", far_end = "spine2", far_port = "e1" }},
]
[bus]
brokers = [{{ host = "127.0.0.1", port = {port} }}]
[timers]
wait_to_restore = "2 s"
"""


FIRST_PORT = 'far_end = "spine1", far_port = "e1"'


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(CONFIG.format(folder=tmp_path, port=free_port()))
    return path


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ERFS_")}
    return kept | extra


def check(config: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "erfs_agent", "--config", str(config), "--check-config"],
        capture_output=True,
        text=True,
        env=environment(**extra),
        check=False,
    )


class Daemon:
    """A running agent and its log, event by event."""

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
        self.await_event("agent_stopped")
        return self.process.wait()


@contextmanager
def daemon(config: Path, **extra: str) -> Iterator[Daemon]:
    with subprocess.Popen(
        [sys.executable, "-m", "erfs_agent", "--config", str(config)],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**extra),
    ) as process:
        found = Daemon(process)
        try:
            found.await_event("agent_started")
            yield found
        finally:
            process.kill()


def test_a_good_configuration_is_said_to_be_good(config: Path) -> None:
    done = check(config)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f'{config}: good: node "leaf1", 2 ports, bus 127.0.0.1:')


def test_a_bad_configuration_is_told_with_all_its_mistakes(config: Path) -> None:
    text = config.read_text().replace('"2 s"', '"2 parsecs"\nheath_interval = "3 s"').replace("node =", "nod =")
    config.write_text(text)

    done = check(config, ERFS_AGENT__LOG__LEVEL="loud", ERFS_AGENT__TIMRS__X="1")

    assert done.returncode == 64
    levels = "'debug', 'info', 'warning' or 'error'"
    units = "ns, us, ms, s, min, h"
    told = [
        '"node" is missing',
        f"environment variable ERFS_AGENT__LOG__LEVEL: \"log.level\": input should be {levels}, not 'loud'",
        'environment variable ERFS_AGENT__TIMRS__X: unknown key "timrs" (did you mean "timers"?)',
        '1: unknown key "nod" (did you mean "node"?)',
        f'10: "timers.wait_to_restore": "2 parsecs" has the unknown unit "parsecs": expected one of {units}',
        '11: unknown key "timers.heath_interval" (did you mean "health_interval"?)',
    ]
    assert done.stderr.splitlines() == [f"{config}:{'' if problem[0].isdigit() else ' '}{problem}" for problem in told]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"node = [", "is not TOML"),
        (b"\xff\xd8\xff\xe0", "is not UTF-8 text"),
        (b"", '"node" is missing'),
    ],
)
def test_an_unreadable_configuration_is_one_message_and_no_traceback(config: Path, content: bytes, told: str) -> None:
    config.write_bytes(content)

    done = check(config)

    assert done.returncode == 64
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    done = check(tmp_path / "nowhere.toml")

    assert (done.returncode, done.stderr) == (
        64,
        f"{tmp_path}/nowhere.toml: cannot be read: No such file or directory\n",
    )


def test_a_password_file_that_is_not_there_is_told_before_the_start(config: Path) -> None:
    config.write_text(
        config.read_text().replace("[bus]", '[bus]\nusername = "leaf1"\npassword_file = "/nowhere/secret"')
    )

    done = check(config)

    assert done.returncode == 64
    assert "/nowhere/secret: cannot read the password" in done.stderr


@pytest.mark.parametrize(
    ("session", "told"),
    [
        ("{}", 'the session of port "e1" needs an interface, or local and remote addresses'),
        ('{ local = "10.0.0.1" }', "local and remote belong together"),
        ('{ local = "10.0.0.1", remote = "spine1" }', "'spine1' does not appear to be an IPv4 or IPv6 address"),
        ('{ local = "10.0.0.1:99999", remote = "10.0.0.2" }', '"99999" is no UDP port'),
        ('{ interface = "swp1", timing = "hosts" }', "no session_timing is called hosts"),
    ],
)
def test_a_session_that_cannot_run_is_told(config: Path, session: str, told: str) -> None:
    config.write_text(config.read_text().replace(FIRST_PORT, f"{FIRST_PORT}, session = {session}"))

    done = check(config)

    assert done.returncode == 64
    assert told in done.stderr


def test_ports_whose_interface_the_addressing_names_have_sessions_unless_told_otherwise() -> None:
    """All of them over link-local multicast, in the namespace of the driver; a cable looped on the node has none."""
    ports = [
        {"port": "e1", "far_end": "spine1", "far_port": "e1"},
        {"port": "e2", "far_end": "spine2", "far_port": "e1", "session": {"timing": "slow"}},
        {"port": "e3", "far_end": "leaf1", "far_port": "e4"},
        {"port": "e5", "far_end": "spine3", "far_port": "e1"},
    ]
    content = {
        "node": "leaf1",
        "ports": ports,
        "driver": {"kind": "linux", "addressing": "plan.json", "namespace": "/run/netns/leaf1"},
        "session_timing": {"slow": {"interval": "50 ms"}},
    }
    settings = AgentSettings.model_validate(content)
    devices = {"e1": "swp1", "e2": "swp2", "e3": "swp3", "e9": "swp9"}

    ends = {end.binding.port: end.timing for end in settings.session_ends(devices)}
    assert ends == {"e1": SessionTiming(), "e2": SessionTiming(interval_ns=50 * MS)}
    group = ("::", 49784), ("ff02::1", 49784)
    assert settings.session_wires(devices) == {
        "e1": Wire(*group, "swp1", Path("/run/netns/leaf1")),
        "e2": Wire(*group, "swp2", Path("/run/netns/leaf1")),
    }
    off = AgentSettings.model_validate(content | {"sessions": {"enabled": False}})
    assert (off.session_ends(devices), off.session_wires(devices)) == ((), {})


def test_a_link_with_both_ends_here_can_have_no_session(config: Path) -> None:
    looped = 'far_end = "leaf1", far_port = "e2", session = { interface = "e1" }'
    config.write_text(config.read_text().replace(FIRST_PORT, looped))

    done = check(config)

    assert done.returncode == 64
    assert "a session cannot tell them apart" in done.stderr


def test_a_killed_agent_does_not_take_its_links_with_it(config: Path) -> None:
    """Its tables still forward; its session process says goodbye for it."""
    with two_daemons(config) as (leaf, spine):
        leaf.process.kill()
        assert spine.await_event("session_paused")["far_end"] == "leaf1"


def test_two_daemons_bring_their_session_up_and_take_new_intervals(config: Path) -> None:
    began_ns = time.monotonic_ns()
    with two_daemons(config) as (leaf, spine):
        # Made in the session process, written by the agent: both on this machine's clock.
        assert began_ns < leaf.log[-1]["at_ns"] < time.monotonic_ns()
        config.write_text(config.read_text().replace('"20 ms"', '"30 ms"'))
        leaf.process.send_signal(signal.SIGHUP)
        assert leaf.await_event("config_reloaded")["applied"] == ["session_timing"]
        assert leaf.end() == 0
        assert spine.await_event("session_paused")["far_end"] == "leaf1"
        assert spine.end() == 0


@contextmanager
def two_daemons(config: Path) -> Iterator[tuple[Daemon, Daemon]]:
    """A leaf and a spine whose session is up."""
    near, far = free_port(), free_port()
    text = config.read_text() + '[session_timing.default]\ninterval = "20 ms"\n'

    def session(local: int, remote: int) -> str:
        return f', session = {{ local = "127.0.0.1:{local}", remote = "127.0.0.1:{remote}" }}'

    config.write_text(text.replace(FIRST_PORT, FIRST_PORT + session(near, far)))
    other = config.with_name("spine.toml")
    at_spine = text.replace("leaf1", "spine1").replace(
        FIRST_PORT, FIRST_PORT.replace("spine1", "leaf1") + session(far, near)
    )
    other.write_text(at_spine)
    with daemon(config) as leaf, daemon(other) as spine:
        assert leaf.await_event("session_up")["far_end"] == "spine1"
        spine.await_event("session_up")
        yield leaf, spine


def test_the_environment_overrides_the_file(config: Path) -> None:
    assert 'node "leaf9"' in check(config, ERFS_AGENT__NODE="leaf9").stdout


def test_a_terminated_agent_ends_well_and_keeps_its_incarnation(config: Path) -> None:
    with daemon(config) as agent:
        assert agent.end() == 0
    state = config.parent / "leaf1.json"
    first = json.loads(state.read_text())["incarnation"]

    with daemon(config) as agent:
        assert agent.end() == 0

    assert json.loads(state.read_text())["incarnation"] == first + 1


def test_a_bad_new_configuration_is_refused_whole_and_a_good_one_taken(config: Path) -> None:
    good = config.read_text()
    with daemon(config) as agent:
        config.write_text(good.replace('"2 s"', '"2 s"\nheath_interval = "3 s"'))
        agent.process.send_signal(signal.SIGHUP)
        refused = agent.await_event("config_refused")
        config.write_text(good.replace('"2 s"', '"5 s"').replace('"leaf1"', '"leaf2"'))
        agent.process.send_signal(signal.SIGHUP)
        reloaded = agent.await_event("config_reloaded")

        assert refused["problems"] == [
            f'{config}:11: unknown key "timers.heath_interval" (did you mean "health_interval"?)'
        ]
        assert (reloaded["applied"], reloaded["needs_restart"]) == (["timers"], ["node"])
        assert agent.end() == 0


def test_a_damaged_state_file_is_told_and_set_aside(config: Path) -> None:
    state = config.parent / "leaf1.json"
    state.write_text('{"incarnation": 4, "pro')

    with daemon(config) as agent:
        assert [line["event"] for line in agent.log] == ["state_unreadable", "agent_started"]
        assert agent.log[0]["set_aside_as"] == f"{state}.damaged"
        assert agent.end() == 0

    assert (config.parent / "leaf1.json.damaged").read_text() == '{"incarnation": 4, "pro'
