"""Which labs are there, whose are they, and what did those leave behind whose owner is gone?

Rule 1: an owner is a process id and its start: a number that the kernel has given to somebody else since is nobody's.
Rule 2: what belongs to a lab bears its mark in its environment; nothing is found, or ended, by a program's name.
Rule 3: a process is checked and ended by one and the same descriptor, so that it cannot become another in between.
"""

import contextlib
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from erfs.aio.files import replace_file
from erfs.ids import NodeId

MARK: Final = "ERFS_LAB"
"""The environment variable that every process of a lab has; its value is the lab's id."""
LABS: Final = Path("/run/erfs-lab")
_FILE: Final = "lab.json"
_END_NS: Final = 10_000_000_000


class LabFile(BaseModel):
    """What a lab's owner writes down for others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    v: Literal[1] = 1
    id: str
    pid: int
    fabric: str
    state: Literal["starting", "up"]
    links: int
    spaces: dict[NodeId, int]
    """Descriptor of each node's namespace, in the owner."""
    bus_space: int
    management: dict[NodeId, str]
    processes: dict[str, int]
    """Process ids by what they are: "broker", "controller", and nodes for their agents."""


def identity(pid: int) -> str | None:
    """Return who a process is, in a way that no later process of the same number is; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in brackets, may hold anything. Field 3 is the state, field 22 the start in clock ticks.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else f"{pid}-{int(fields[19])}"


def is_alive(lab: str) -> bool:
    """Return whether the owner of the lab with this id lives."""
    pid, _, _ = lab.partition("-")
    return pid.isdecimal() and identity(int(pid)) == lab


class Registry:
    """
    The labs of this machine.

    Args:
        folder: Where they are written down, a folder for each.
    """

    def __init__(self, folder: Path = LABS) -> None:
        self._folder = folder

    def folder_of(self, lab: str) -> Path:
        """Return the folder of a lab, for its files."""
        return self._folder / lab

    def write(self, lab: LabFile) -> None:
        """Write a lab down."""
        replace_file(self.folder_of(lab.id) / _FILE, lab.model_dump_json(indent=1).encode())

    def labs(self) -> list[LabFile]:
        """Return the labs whose owner lives, oldest first."""
        found = []
        for path in sorted(self._folder.glob(f"*/{_FILE}"), key=lambda path: path.parent.name):
            with contextlib.suppress(FileNotFoundError, ValidationError):
                lab = LabFile.model_validate_json(path.read_bytes())
                if is_alive(lab.id):
                    found.append(lab)
        return found

    def forget(self, lab: str) -> None:
        """Remove a lab's folder."""
        shutil.rmtree(self.folder_of(lab), ignore_errors=True)

    def clean(self) -> tuple[int, int]:
        """
        End the processes and remove the folders of labs whose owner is gone.

        Returns:
            How many of each.
        """
        ended = 0
        for pid in _processes():
            with _pinned(pid) as descriptor:
                if descriptor is None:
                    continue
                lab = mark_of(pid)
                if lab and not is_alive(lab):
                    ended += _ended(descriptor)
        folders = [path for path in self._folder.glob("*") if path.is_dir() and not is_alive(path.name)]
        for path in folders:
            shutil.rmtree(path, ignore_errors=True)
        return ended, len(folders)


def members(lab: str) -> list[int]:
    """Return the processes that bear the mark of a lab."""
    return [pid for pid in _processes() if mark_of(pid) == lab]


def end_owner(lab: LabFile) -> bool:
    """Ask a lab's owner to end, and end it if it does not listen. Returns whether it listened."""
    with _pinned(lab.pid) as descriptor:
        if descriptor is None or not is_alive(lab.id):
            return True
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        if _is_over(descriptor, _END_NS):
            return True
        _ended(descriptor)
        return False


def wait_until_empty(lab: str, within_ns: int) -> list[int]:
    """Return the processes of a lab that are still there after so long; at once if there are none."""
    deadline_ns = time.monotonic_ns() + within_ns
    while (left := members(lab)) and time.monotonic_ns() < deadline_ns:
        time.sleep(0.02)
    return left


def mark_of(pid: int) -> str:
    """Return the lab a process belongs to, "" if to none."""
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == MARK.encode():
                return value.decode(errors="replace")
    return ""


def _processes() -> list[int]:
    return [
        int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal() and int(path.name) != os.getpid()
    ]


@contextmanager
def _pinned(pid: int) -> Iterator[int | None]:
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _ended(descriptor: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    return _is_over(descriptor, _END_NS)


def _is_over(descriptor: int, within_ns: int) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(within_ns / 1e6))
