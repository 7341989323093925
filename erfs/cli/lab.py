"""`erfs lab`: a fabric as network namespaces on this machine, with real agents in them, to look at and to break.

Rule 1: nothing is decided here: `erfs_scenario.kernel` builds, owns and cleans; this file asks and prints.
Rule 2: no command ends or removes anything that it has not recognised as a lab's by its owner's process id and start.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from erfs.errors import ErfsError

if TYPE_CHECKING:
    from erfs.fabric import Fabric
    from erfs_scenario.kernel.owners import LabFile, Registry

Hold = Callable[[Callable[["LabFile"], None]], None]
"""Builds and holds a lab; what it is given is called once the lab is up."""
_LEFT_NS: Final = 5_000_000_000
_EXIT_INTERRUPTED: Final = 130


def lab_registry() -> "Registry":
    """Return the labs of this machine."""
    from erfs_scenario.kernel.owners import LABS, Registry

    return Registry(Path(os.environ.get("ERFS_LABS", LABS)))


def _chosen(lab: str | None) -> "LabFile":
    """Return the lab called *lab*, or the only one there is."""
    labs = lab_registry().labs()
    if lab is not None:
        labs = [found for found in labs if lab in (found.id, str(found.pid))]
    if len(labs) == 1:
        return labs[0]
    if not labs:
        raise click.UsageError(f'no lab "{lab}" is running' if lab else "no lab is running: erfs lab up")
    raise click.UsageError(f"{len(labs)} labs are running: name one with --lab {labs[0].pid}")


_LAB_OPTION = click.option("--lab", metavar="ID", help="Which one, by its id or its owner's process id.")


@click.group("lab")
def command() -> None:
    """Run a fabric as network namespaces on this machine, with real agents.

    Needs Linux and the rights of root. Everything is gone when the lab's owner ends, however it ends.

    Example: erfs lab up --make fat-tree k=4
    """


@command.command("up")
@click.argument("fabric", nargs=-1)
@click.option("--make", "kind", metavar="KIND", help="Generate the fabric: KIND, then its numbers, such as k=4.")
@click.option("--agents/--no-agents", default=True, show_default=True, help="Run broker, controller and agents.")
@click.option(
    "--bus",
    type=click.Choice(["out_of_band", "in_band"]),
    default="out_of_band",
    show_default=True,
    help="Over a management network, or over the fabric's own links.",
)
@click.option(
    "--session-interval",
    default="10 ms",
    show_default=True,
    help='Between packets of the agents\' liveness sessions; "0 ms": no sessions.',
)
@click.option("--detach", "-d", is_flag=True, help="Return once it is up; erfs lab down ends it.")
def up(fabric: tuple[str, ...], kind: str | None, agents: bool, bus: str, session_interval: str, detach: bool) -> int:
    """Build FABRIC and hold it until Ctrl-C, or `erfs lab down`.

    FABRIC is a file in any format that `erfs fabric show` reads. With --make, what follows are numbers of the generator.

    Example: erfs lab up --make leaf-spine leaves=4 spines=2 hosts_per_leaf=1 --detach
    """
    from erfs.units import parse_duration

    try:
        interval_ns = parse_duration(session_interval)
    except ValueError as error:
        raise click.UsageError(f"--session-interval: {error}") from None

    def hold(tell_up: Callable[["LabFile"], None]) -> None:
        _hold(_fabric(fabric, kind), agents, bus == "in_band", interval_ns, tell_up)

    return _detached(hold) if detach else _held(hold)


def _fabric(words: tuple[str, ...], kind: str | None) -> "Fabric":
    from pydantic import ValidationError

    from erfs.generators import GENERATORS, generate
    from erfs.importers import load_fabric

    if kind is None:
        if len(words) != 1:
            raise click.UsageError("give one fabric file, or --make KIND with its numbers")
        return load_fabric(Path(words[0])).fabric
    if kind not in GENERATORS:
        raise click.UsageError(f'no generator "{kind}": there are {", ".join(GENERATORS)}')
    params = {}
    for word in words:
        name, is_pair, value = word.partition("=")
        if not is_pair:
            raise click.UsageError(f'"{word}" is no number of a generator: expected such as k=4')
        params[name] = value
    try:
        return generate(kind, params)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or kind}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_context=False)
        )
        raise click.UsageError(f"--make {kind}: {faults}") from None


def _held(hold: Hold) -> int:
    hold(lambda lab: click.echo(f"lab {lab.id} is up: {_counts(lab)}; end it with Ctrl-C", err=True))
    return 0


def _hold(
    fabric: "Fabric",
    has_agents: bool,
    is_bus_in_band: bool,
    session_interval_ns: int,
    on_up: Callable[["LabFile"], None],
) -> None:
    from erfs.aio.logs import set_up_logs
    from erfs_scenario.kernel.lab import hold_lab
    from erfs_scenario.plan import Timers

    # The terminal is for progress; the bus of this process has nothing to add but alarms.
    set_up_logs("error")
    registry = lab_registry()
    registry.clean()
    hold_lab(
        fabric,
        registry,
        has_agents=has_agents,
        is_bus_in_band=is_bus_in_band,
        timers=replace(Timers(), session_interval_ns=session_interval_ns),
        tell=teller(),
        on_up=on_up,
    )


def teller() -> Callable[[str], None]:
    """Return what tells the terminal how a lab's start goes."""
    began = time.monotonic()

    def tell(message: str) -> None:
        click.echo(f"{time.monotonic() - began:6.1f} s  {message}", err=True)

    return tell


def _detached(hold: Hold) -> int:
    """Hold the lab in a process of its own session; return once that one says that it is up, or ends."""
    inlet, outlet = os.pipe()
    owner = os.fork()
    if not owner:
        os.close(inlet)
        _become_owner(hold, outlet)
    os.close(outlet)
    with os.fdopen(inlet, "rb") as ready:
        try:
            is_up = bool(ready.read(1))
        except KeyboardInterrupt:
            os.kill(owner, signal.SIGTERM)
            is_up = False
    if is_up:
        click.echo("end it with: erfs lab down", err=True)
        return 0
    _, result = os.waitpid(owner, 0)
    code = os.waitstatus_to_exitcode(result)
    return code if code > 0 else _EXIT_INTERRUPTED


def _become_owner(hold: Hold, outlet: int) -> None:
    """Be the owner; never returns."""
    from erfs.cli.main import reporting_errors

    os.setsid()

    def on_up(lab: "LabFile") -> None:
        click.echo(f"lab {lab.id} is up: {_counts(lab)}", err=True)
        # From here on nobody reads: the terminal is given back.
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        os.write(outlet, b"1")
        os.close(outlet)

    os._exit(reporting_errors(lambda: hold(on_up)))


def _counts(lab: "LabFile") -> str:
    return f"{lab.fabric}, {len(lab.spaces)} nodes, {lab.links} links, {len(lab.processes)} processes"


@command.command("status")
@click.option("--json", "is_json", is_flag=True, help="Print everything as JSON.")
def status(is_json: bool) -> None:
    """Show the labs that are running.

    Example: erfs lab status --json
    """
    found = [_state(lab) for lab in lab_registry().labs()]
    if is_json:
        click.echo(json.dumps({"labs": found}, indent=2))
        return
    if not found:
        click.echo("no lab is running")
    for lab in found:
        dead = [name for name, process in lab["processes"].items() if not process["is_running"]]
        click.echo(
            f"lab {lab['id']} ({lab['state']}): {lab['fabric']}, {lab['nodes']} nodes, {lab['links']} links,"
            f" {lab['ports_up']} of {lab['ports']} ports up, {len(lab['processes']) - len(dead)} processes"
        )
        for name in dead:
            click.echo(f"  not running: {name}")


def _state(lab: "LabFile") -> dict[str, Any]:
    from erfs_scenario.kernel.owners import identity, mark_of

    up = ports = 0
    for descriptor in lab.spaces.values():
        program = ("nsenter", f"--net=/proc/{lab.pid}/fd/{descriptor}", "ip", "-j", "link", "show", "type", "veth")
        done = subprocess.run(program, capture_output=True, text=True, timeout=20, check=False)  # noqa: S603 -- ours
        for device in json.loads(done.stdout or "[]"):
            if device.get("ifname") not in (None, "mgmt0"):
                ports += 1
                up += device["operstate"] == "UP"
    return {
        "id": lab.id,
        "pid": lab.pid,
        "fabric": lab.fabric,
        "state": lab.state,
        "nodes": len(lab.spaces),
        "links": lab.links,
        "ports": ports,
        "ports_up": up,
        "management": lab.management,
        "processes": {
            name: {"pid": pid, "is_running": identity(pid) is not None and mark_of(pid) == lab.id}
            for name, pid in lab.processes.items()
        },
    }


@command.command("exec", context_settings={"ignore_unknown_options": True})
@_LAB_OPTION
@click.argument("node")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(lab: str | None, node: str, program: tuple[str, ...]) -> int:
    """Run PROGRAM in the namespace of NODE; "bus" is where broker and controller are.

    The exit code is the program's. It ends when the lab does.

    Example: erfs lab exec pod0-edge0 -- ip route
    """
    from erfs_scenario.kernel.lab import run_inside

    chosen = _chosen(lab)
    spaces: dict[str, int] = {"bus": chosen.bus_space} | {str(name): number for name, number in chosen.spaces.items()}
    if node not in spaces:
        close = get_close_matches(node, spaces, 1)
        raise click.UsageError(f'no node "{node}" in this lab' + (f', did you mean "{close[0]}"?' if close else ""))
    if shutil.which(program[0]) is None:
        raise click.UsageError(f'no program "{program[0]}"')
    sys.stdout.flush()
    return run_inside(chosen, spaces[node], program)


@command.command("down")
@_LAB_OPTION
def down(lab: str | None) -> None:
    """End a lab and everything in it.

    Example: erfs lab down
    """
    from erfs_scenario.kernel.owners import end_owner, wait_until_empty

    chosen, registry = _chosen(lab), lab_registry()
    is_listening = end_owner(chosen)
    registry.clean()
    left = wait_until_empty(chosen.id, _LEFT_NS)
    if left:
        raise ErfsError(f"processes of lab {chosen.id} are still there: {', '.join(map(str, left))}")
    click.echo(f"lab {chosen.id} is gone" + ("" if is_listening else ": its owner did not listen and was killed"))


@command.command("clean")
def clean() -> None:
    """Remove what labs left behind whose owner is gone, and nothing else.

    Example: erfs lab clean
    """
    processes, folders = lab_registry().clean()
    click.echo(f"ended {processes} processes and removed the files of {folders} labs whose owner is gone")
