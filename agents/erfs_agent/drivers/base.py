"""What the agent needs of a data plane.

Rule 1: drivers are the only code that touches one.
Rule 2: a driver decides nothing; it answers each write with what became of it.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from erfs.ids import DestinationId
from erfs.messages import Member
from erfs_agent.core import RoutesWritten, WriteRoutes


class Driver(Protocol):
    """
    A data plane.

    ``on_port`` is called as ``on_port(port, oper_up)`` for each change of carrier, in the loop's thread.
    """

    on_port: Callable[[str, bool], None]

    def ports(self) -> dict[str, bool]:
        """Return whether each port has carrier now."""

    def routes(self) -> dict[DestinationId, tuple[Member, ...]] | None:
        """Return what the data plane holds now; None if it cannot tell."""

    def write(self, command: WriteRoutes) -> RoutesWritten:
        """Make the change as a whole and return once the data plane confirmed or refused it."""

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell changes of carrier from now on, in *loop*'s thread."""

    def close(self) -> None:
        """Let go of the data plane, which goes on forwarding."""
