"""`erfs-agent` as a process that drives the kernel of a namespace it does not live in."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from erfs.ids import DestinationId, LinkId, NodeId
from erfs.messages import CONTROLLER, Group, PortBinding, Program, Route, sealed
from erfs_agent.state import AgentState

from .bench import E1, E2, E3, PORTS, A, B, Bench, bench

LEAF = NodeId("leaf")
PROGRAM = sealed(
    Program(
        sender=CONTROLLER,
        node=LEAF,
        epoch=1,
        generation=1,
        digest="",
        ports=tuple(
            PortBinding(port=port, link=LinkId(f"far:{port}|leaf:{port}"), far_end=NodeId("far")) for port in PORTS
        ),
        groups=(Group(id=0, members=(E1, E2)), Group(id=1, members=(E3,))),
        routes=(Route(destination=DestinationId("@a"), group=0), Route(destination=DestinationId("@b"), group=1)),
    )
)


def configure(here: Bench, folder: Path, **driver: str) -> Path:
    """Write what an agent needs to start without a bus: its state, the addressing, its configuration."""
    (folder / "addressing.json").write_text(here.addressing.model_dump_json())
    (folder / "state.json").write_text(AgentState(program=PROGRAM).model_dump_json())
    ports = ", ".join(f'{{ port = "{port}", far_end = "far", far_port = "{port}" }}' for port in PORTS)
    lines = [
        'node = "leaf"',
        f'state_file = "{folder}/state.json"',
        f"ports = [{ports}]",
        "[bus]",
        'brokers = [{ host = "127.0.0.1", port = 9 }]',
        "[driver]",
        'kind = "linux"',
        f'addressing = "{folder}/addressing.json"',
        f'namespace = "{driver.get("namespace", here.here.path)}"',
    ]
    (folder / "agent.toml").write_text("\n".join(lines))
    return folder / "agent.toml"


def start(config: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "erfs_agent", "--config", str(config)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def heard(process: "subprocess.Popen[str]", event: str) -> dict[str, object]:
    """Return the first line of the log with *event*; the test's own limit ends a vain wait."""
    assert process.stderr is not None
    for line in process.stderr:
        found: dict[str, object] = json.loads(line)
        if found["event"] == event:
            return found
    raise AssertionError(f"the agent ended without {event}")


def test_an_agent_without_any_bus_forwards_by_its_last_program_reacts_and_leaves_it_in_place(tmp_path: Path) -> None:
    with bench() as here:
        process = start(configure(here, tmp_path))
        try:
            heard(process, "program_installed")
            assert here.served("10.1.0.0/24") == ("e1", "e2")

            here.far.set_up("e3", False)
            heard(process, "port_down_detected")
            heard(process, "change_acknowledged")
            assert here.served("fd03::/64") == ()

            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
            here.restart()
            assert here.driver.routes() == {A: (E1, E2), B: ()}
        finally:
            process.kill()
            process.communicate()


def test_a_namespace_that_is_not_there_is_told_and_nothing_starts(tmp_path: Path) -> None:
    with bench() as here:
        process = start(configure(here, tmp_path, namespace="/run/netns/nowhere"))
        _, err = process.communicate(timeout=60)

    assert process.returncode == 64
    assert "/run/netns/nowhere: cannot be driven: No such file or directory" in err
