"""The programs a live run starts: broker and controller, each a process of its own, none of which outlives the run.

Rule 1: a child is ended by its process id, and waited for; nothing is ended by name.
Rule 2: what a child says goes to a file of the run, so that it can be read after the child is gone.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

_STOP_PATIENCE_S = 3


class Child:
    """One running program."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, output: Path) -> None:
        self.name = name
        self.output = output
        self._process = process

    @classmethod
    async def start(cls, name: str, program: Sequence[str], output: Path) -> "Child":
        """
        Start *program* bound to this process's life.

        Args:
            name: For messages.
            program: The program and its arguments.
            output: Where its standard output and error go; appended to.
        """
        launcher = (sys.executable, "-m", "erfs_scenario.child", str(os.getpid()))
        with output.open("ab") as sink:
            process = await asyncio.create_subprocess_exec(
                *launcher, *program, stdin=asyncio.subprocess.DEVNULL, stdout=sink, stderr=sink
            )
        return cls(name, process, output)

    @property
    def pid(self) -> int:
        """The process id; stays the same when the launcher becomes the program."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet, as the kernel sees it."""
        return self._process.returncode is None

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.returncode

    def last_words(self, count: int = 5) -> str:
        """Return the last *count* lines it wrote, for the message that says it died."""
        if not self.output.exists():
            return ""
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-count:])

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it has not ended."""
        if self.is_running:
            # It may have ended a moment ago.
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def kill(self) -> None:
        """End it without a word, as a crash would, and wait until it is gone."""
        self.send_signal(signal.SIGKILL)
        await self._process.wait()

    async def ended(self) -> None:
        """Wait until it has ended by itself."""
        await self._process.wait()

    async def stop(self) -> None:
        """Ask it to end, and end it if it does not listen. A stopped one goes on first, or it could not hear."""
        self.send_signal(signal.SIGTERM)
        self.send_signal(signal.SIGCONT)
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_PATIENCE_S)
        except TimeoutError:
            self.send_signal(signal.SIGKILL)
        await self._process.wait()


def free_port() -> int:
    """Return a loopback port nobody listens on now; the caller should take it soon."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def is_listening(host: str, port: int) -> bool:
    """Return whether somebody accepts connections at *host*:*port*."""
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True
