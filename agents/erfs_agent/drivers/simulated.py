"""A data plane that is data: the driver of simulations, and of an agent that is only being tried out.

Rule 1: what the driver is told is what the plane holds; nothing is cached here but the routes it must be able to tell.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from erfs.ids import DestinationId, NodeId
from erfs.messages import Member
from erfs_agent.core import RoutesWritten, WriteRoutes


class Plane(Protocol):
    """The simulated fabric, as seen by the agents' drivers."""

    def write_routes(
        self, node: NodeId, routes: Mapping[DestinationId, tuple[Member, ...]], removed: tuple[DestinationId, ...]
    ) -> None:
        """Put *routes* of *node* in, take *removed* out."""

    def is_port_up(self, node: NodeId, port: str) -> bool:
        """Return whether *port* of *node* has carrier."""


class SimulatedDriver:
    """
    The driver of *node* over a *plane*; it outlives restarts of the agent, as a switch's tables do.

    Whoever changes the plane's carriers calls ``on_port``.
    Backups are ignored, which is conservative: what they would save counts as lost.
    """

    def __init__(self, plane: Plane, node: NodeId, ports: Iterable[str]) -> None:
        self._plane = plane
        self._node = node
        self._ports = tuple(sorted(ports))
        self._routes: dict[DestinationId, tuple[Member, ...]] = {}
        self.on_port: Callable[[str, bool], None] = _nobody_listens

    def ports(self) -> dict[str, bool]:
        """Return whether each port has carrier now."""
        return {port: self._plane.is_port_up(self._node, port) for port in self._ports}

    def routes(self) -> dict[DestinationId, tuple[Member, ...]]:
        """Return what was written and not removed."""
        return dict(self._routes)

    def write(self, command: WriteRoutes) -> RoutesWritten:
        """Change the plane; it never refuses."""
        self._plane.write_routes(self._node, command.routes, command.removed)
        self._routes |= command.routes
        for destination in command.removed:
            self._routes.pop(destination, None)
        return RoutesWritten(command.change, is_ok=True)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do nothing: whoever changes the carriers tells."""

    def close(self) -> None:
        """Do nothing."""


def _nobody_listens(port: str, oper_up: bool) -> None:
    """Stand for the time before a runtime listens."""
