"""From a fault of a plan to what is done to a lab.

Rule 1: a table: each kind of fault is one kind of breakage, or several at once.
Rule 2: what a kind needs of the kernel stands beside it, and is asked for before anything is started.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from erfs.errors import ConfigError, Problem
from erfs.fabric import Fabric, LinkEnd
from erfs.faults import NAMELESS_TARGETS, Fault, FaultKind
from erfs.ids import LinkId
from erfs.messages import CONTROLLER
from erfs.units import SECOND
from erfs_scenario.kernel.breakages import Breakage, CutOff, Frozen, Killed, PortsDown, Silence, Slow
from erfs_scenario.kernel.members import BROKER, Members
from erfs_scenario.kernel.spaces import Spaces
from erfs_scenario.nodes import agent_nodes
from erfs_scenario.operator import Operator

NEEDS: Final = {
    FaultKind.SILENT_DROP: {"expiring drops"},
    FaultKind.ONE_WAY_DROP: {"expiring drops"},
    FaultKind.NODE_ISOLATED: {"expiring drops"},
    FaultKind.PACKET_LOSS: {"expiring drops", "random drops"},
    FaultKind.RATE_LIMIT: {"tbf"},
}
"""Names of `capabilities.CAPABILITIES`; what is not here needs nothing special."""


class Several:
    """Breakages that belong together, begun in this order and ended in the opposite one."""

    def __init__(self, parts: Iterable[Breakage]) -> None:
        self.parts = tuple(parts)

    async def begin(self) -> None:
        """Break all."""
        for part in self.parts:
            await part.begin()

    async def end(self) -> None:
        """Mend all."""
        for part in reversed(self.parts):
            await part.end()

    def is_in_effect(self) -> bool:
        """Return whether all are."""
        return all(part.is_in_effect() for part in self.parts)

    def is_over(self) -> bool:
        """Return whether all are."""
        return all(part.is_over() for part in self.parts)


class Flapping:
    """
    Ports that go down and up again, over and over: down for the first half of each period.

    Args:
        down: The ports.
        period_ns: Of one going down and coming up.
    """

    def __init__(self, down: PortsDown, period_ns: int) -> None:
        self._down = down
        self._half_s = period_ns / 2 / SECOND
        self._flapping: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Go down, and on from there."""
        await self._down.begin()
        self._flapping = asyncio.ensure_future(self._flap())

    async def end(self) -> None:
        """Stay up."""
        if self._flapping is not None:
            self._flapping.cancel()
            with suppress(asyncio.CancelledError):
                await self._flapping
            self._flapping = None
        await self._down.end()

    def is_in_effect(self) -> bool:
        """Return whether the ports are down: true in the first half of a period."""
        return self._down.is_in_effect()

    def is_over(self) -> bool:
        """Return whether the ports are up, and nobody takes them down any more."""
        return self._flapping is None and self._down.is_over()

    async def _flap(self) -> None:
        while True:
            await asyncio.sleep(self._half_s)
            await self._down.end()
            await asyncio.sleep(self._half_s)
            await self._down.begin()


class Drained:
    """
    Nodes that an operator has asked the controller to drain.

    Args:
        operator: Of the run.
        fault: Names them.
    """

    def __init__(self, operator: Operator, fault: Fault) -> None:
        self._operator = operator
        self._fault = fault

    async def begin(self) -> None:
        """Ask for it."""
        self._operator.begin(self._fault)

    async def end(self) -> None:
        """Ask for the end of it."""
        self._operator.end(self._fault)

    def is_in_effect(self) -> bool:
        """Return whether the controller has accepted all of it."""
        return self._operator.outcomes.get(self._fault.id) == "fault_effective"

    def is_over(self) -> bool:
        """Return whether the controller has accepted the end of all of it."""
        return self._operator.outcomes.get(self._fault.id) == "fault_ended"


def breakage_of(
    fault: Fault, links_hit: Sequence[LinkId], spaces: Spaces, members: Members, operator: Operator | None = None
) -> Breakage:
    """
    Return what to break.

    Args:
        fault: Of a plan.
        links_hit: The links it hits, as the plan says.
        spaces, members: The lab.
        operator: Who drains; None: nobody needs to.
    """
    fabric = spaces.fabric
    both_ends = _ends(fabric, links_hit)
    everybody = agent_nodes(fabric)
    make: dict[FaultKind, Callable[[], Breakage]] = {
        FaultKind.LINK_DOWN: lambda: PortsDown(spaces, fault.ends),
        FaultKind.LINK_FLAP: lambda: Flapping(PortsDown(spaces, fault.ends), fault.period_ns),
        FaultKind.SILENT_DROP: lambda: Silence(spaces, both_ends),
        FaultKind.ONE_WAY_DROP: lambda: Silence(spaces, fault.ends),
        FaultKind.PACKET_LOSS: lambda: Silence(spaces, both_ends, loss_ppm=fault.loss_ppm),
        FaultKind.RATE_LIMIT: lambda: Several(Slow(spaces, end, rate_bps=fault.rate_bps) for end in both_ends),
        FaultKind.NODE_ISOLATED: lambda: Silence(spaces, both_ends),
        # The ports first: what comes after them takes its time, and the fabric must not see a slow death.
        FaultKind.NODE_DOWN: lambda: Several(
            (
                PortsDown(spaces, [end for end in both_ends if end.node in fault.nodes]),
                # A bus in band is cut off with the ports.
                *(() if spaces.wiring.bus_host is not None else (CutOff(spaces, fault.nodes),)),
                Killed(members, fault.nodes),
            )
        ),
        FaultKind.AGENT_KILL: lambda: Killed(members, fault.nodes),
        FaultKind.AGENT_FREEZE: lambda: Frozen(members, fault.nodes),
        FaultKind.CONTROLLER_KILL: lambda: Killed(members, (CONTROLLER,)),
        FaultKind.CONTROLLER_FREEZE: lambda: Frozen(members, (CONTROLLER,)),
        FaultKind.BROKER_KILL: lambda: Killed(members, (BROKER,)),
        FaultKind.BROKER_FREEZE: lambda: Frozen(members, (BROKER,)),
        FaultKind.BUS_PARTITION: lambda: CutOff(spaces, fault.nodes or everybody),
        FaultKind.DRAIN: lambda: Drained(_there(operator), fault),
    }
    return make[fault.kind]()


def _there(operator: Operator | None) -> Operator:
    assert operator is not None, "a plan with drains has an operator"
    return operator


def refuse_overlaps(faults: Sequence[Fault], links_hit: Callable[[Fault], Sequence[LinkId]], source: str) -> None:
    """
    Refuse faults that would hold the same thing at the same time: whoever lets go first would mend it for both.

    Raises:
        ConfigError: names all pairs.
    """
    problems = []
    for place, one in enumerate(faults):
        for other in faults[place + 1 :]:
            if other.at_ns >= one.end_at_ns or one.at_ns >= other.end_at_ns:
                continue
            shared = _held(one, links_hit(one)) & _held(other, links_hit(other))
            if not shared:
                continue
            problems.append(
                Problem(
                    0,
                    f'faults "{one.id}" and "{other.id}" hold {", ".join(sorted(shared))} at the same time',
                    suggestion="let one end before the other begins, or run it with --backend sim",
                )
            )
    if problems:
        raise ConfigError(source, problems)


def _held(fault: Fault, links_hit: Sequence[LinkId]) -> set[str]:
    """Return what nobody else may break or mend while *fault* lasts."""
    nameless = NAMELESS_TARGETS.get(fault.kind)
    everybody = fault.kind is FaultKind.BUS_PARTITION and not fault.nodes
    return {*links_hit, *fault.nodes, *([nameless] if nameless else []), *(["everybody's bus"] if everybody else [])}


def _ends(fabric: Fabric, links: Iterable[LinkId]) -> list[LinkEnd]:
    return [end for link in links for end in fabric.links[link].ends]
