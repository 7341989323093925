"""A lab from its first namespace to its last process: built, run until somebody ends it, taken down.

Rule 1: this process owns the lab; what the lab is made of cannot outlive it, so no way of ending it leaves anything running.
Rule 2: others learn what there is from the file that the owner writes, and act only through the kernel.
"""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from erfs.addressing import plan_addresses
from erfs.aio.loop import loop_factory
from erfs.aio.namespaces import inside, new_namespace
from erfs.errors import ConfigError, Problem, first_error
from erfs.fabric import Fabric
from erfs_scenario.kernel.capabilities import missing_capabilities, require
from erfs_scenario.kernel.members import Members
from erfs_scenario.kernel.owners import MARK, LabFile, Registry, identity, is_alive
from erfs_scenario.kernel.spaces import LabError, Spaces
from erfs_scenario.kernel.wiring import check_size
from erfs_scenario.plan import Timers

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_S: Final = 0.2


def why_not() -> str:
    """Return why there can be no lab here, "" if there can."""
    if sys.platform != "linux":
        return "labs are network namespaces, which only Linux has"
    try:
        os.close(new_namespace())
    except OSError as error:
        return f"labs are network namespaces, made with the rights of root: {error.strerror}"
    return ""


def hold_lab(
    fabric: Fabric,
    registry: Registry,
    *,
    has_agents: bool,
    is_bus_in_band: bool = False,
    timers: Timers,
    tell: Callable[[str], None],
    on_up: Callable[[LabFile], None],
) -> None:
    """
    Build *fabric* and hold it until SIGTERM, SIGINT or SIGHUP comes.

    Args:
        fabric: What to build.
        registry: Where to write it down.
        has_agents: Whether broker, controller and agents run; without, the namespaces are wired and no more.
        is_bus_in_band: Whether the bus runs over the fabric's links.
        timers: Of agents and controller.
        tell: Hears how far it is, and who died.
        on_up: Called once all is there and at rest.

    Raises:
        FabricError: too large, or not to be built.
        ConfigError: no rights, or the kernel lacks something.
        LabError: something did not start.
    """
    check_size(fabric)
    reason = why_not()
    if reason:
        raise ConfigError("lab", [Problem(0, reason, suggestion="run it as root: sudo erfs lab up ...")])
    require({"next-hop objects"} if has_agents else set(), missing_capabilities(), "lab")
    with marked() as lab:
        try:
            with contextlib.closing(Spaces(fabric, plan_addresses(fabric), is_bus_in_band=is_bus_in_band)) as spaces:
                tell(f"{len(fabric.nodes)} namespaces, {len(fabric.links)} cables")
                members = Members(spaces, registry.folder_of(lab) / "run", timers=timers)
                holder = _Holder(spaces, members, registry, lab, tell, on_up)
                with inside(spaces.path(None)), asyncio.Runner(loop_factory=loop_factory()) as runner:
                    runner.run(holder.run(has_agents))
        finally:
            registry.forget(lab)


@contextmanager
def marked() -> Iterator[str]:
    """Be the owner of a lab meanwhile: what is started now bears its mark. Yields its id."""
    lab = identity(os.getpid())
    assert lab is not None, "this process is there"
    before = os.environ.get(MARK)
    os.environ[MARK] = lab
    try:
        yield lab
    finally:
        if before is None:
            del os.environ[MARK]
        else:
            os.environ[MARK] = before


class _Holder:
    def __init__(
        self,
        spaces: Spaces,
        members: Members,
        registry: Registry,
        lab: str,
        tell: Callable[[str], None],
        on_up: Callable[[LabFile], None],
    ) -> None:
        self._spaces = spaces
        self._members = members
        self._registry = registry
        self._lab = lab
        self._tell = tell
        self._on_up = on_up

    async def run(self, has_agents: bool) -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in _ENDING:
            loop.add_signal_handler(number, ended.set)
        try:
            self._write("starting")
            if has_agents:
                starting = asyncio.ensure_future(self._members.start_all(self._tell))
                ending = asyncio.ensure_future(ended.wait())
                await asyncio.wait((starting, ending), return_when=asyncio.FIRST_COMPLETED)
                ending.cancel()
                if not starting.done():
                    starting.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await starting
                    return
                await _first_error(starting)
            self._on_up(self._write("up"))
            await self._watch(ended)
        finally:
            await self._members.stop()
            for number in _ENDING:
                loop.remove_signal_handler(number)

    async def _watch(self, ended: asyncio.Event) -> None:
        told: set[str] = set()
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _LOOK_S)
            for name, child in self._members.running.items():
                if not ended.is_set() and not child.is_running and name not in told:
                    told.add(name)
                    self._tell(f'"{name}" ended with exit code {child.exit_code}: {child.last_words(1)}')

    def _write(self, state: str) -> LabFile:
        found = lab_file(self._spaces, self._members, self._lab, state)
        self._registry.write(found)
        return found


def lab_file(spaces: Spaces, members: Members, lab: str, state: str) -> LabFile:
    """Return what others are told of a lab whose owner is this process."""
    descriptors = spaces.descriptors()
    return LabFile.model_validate(
        {
            "id": lab,
            "pid": os.getpid(),
            "fabric": spaces.fabric.name,
            "state": state,
            "links": len(spaces.fabric.links),
            "spaces": {node: descriptors[node] for node in spaces.fabric.nodes},
            "bus_space": descriptors[None],
            "management": {node: str(address) for node, address in spaces.wiring.management.items()},
            "processes": {name: child.pid for name, child in members.running.items()},
        }
    )


async def _first_error(task: "asyncio.Future[None]") -> None:
    """Await *task*; of a group of errors raise the one that went wrong first."""
    try:
        await task
    except BaseExceptionGroup as group:
        raise first_error(group) from group


def run_inside(lab: LabFile, descriptor: int, command: Sequence[str]) -> int:
    """
    Run a program in a namespace of a lab, with this terminal; it ends when the lab does.

    Args:
        lab: Whose.
        descriptor: The namespace, of those that the lab's file names.
        command: The program and its arguments.

    Returns:
        Its exit code; 128 and the signal's number if a signal ended it.

    Raises:
        LabError: the lab is gone.
    """
    try:
        owner = os.pidfd_open(lab.pid)
    except ProcessLookupError:
        raise LabError(f"lab {lab.id} is gone") from None
    try:
        if not is_alive(lab.id):
            raise LabError(f"lab {lab.id} is gone")
        launcher = (sys.executable, "-m", "erfs_scenario.child", str(os.getpid()))
        with inside(Path(f"/proc/{lab.pid}/fd/{descriptor}")):
            child = subprocess.Popen((*launcher, *command), env=os.environ | {MARK: lab.id})  # noqa: S603 -- the user's
        # Ctrl-C is for the program; it has it from the terminal, too.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            _wait_for_either(owner, child)
        finally:
            signal.signal(signal.SIGINT, before)
        return 128 - child.returncode if child.returncode < 0 else child.returncode
    finally:
        os.close(owner)


def _wait_for_either(owner: int, child: "subprocess.Popen[bytes]") -> None:
    own = os.pidfd_open(child.pid)
    try:
        waiting = select.poll()
        waiting.register(owner, select.POLLIN)
        waiting.register(own, select.POLLIN)
        ready = {descriptor for descriptor, _ in waiting.poll()}
        if own not in ready:
            child.kill()
        child.wait()
    finally:
        os.close(own)
