"""Which faults can each backend make happen, and what to do about those it cannot?

Rule 1: a table. What is not in it is done as its kind says; what is in it is refused, with the nearest thing that can be done.
Rule 2: all refusals of a plan are told at once, before anything is started.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from erfs.errors import ConfigError, Problem
from erfs.faults import Fault, FaultKind
from erfs_scenario.kernel.underlay import bus_host_of
from erfs_scenario.plan import Plan
from erfs_scenario.schema import ScenarioFile, in_order

BACKENDS: Final = ("sim", "live", "kernel")

_ELSEWHERE: Final = "run it with --backend sim or kernel"
_CUT_INSTEAD: Final = f"{_ELSEWHERE}, or cut the cable instead: link_down"
_CANNOT: Final[Mapping[str, Mapping[FaultKind, tuple[str, str]]]] = {
    "sim": {
        FaultKind.RATE_LIMIT: ("no rates are simulated", "run it with --backend kernel"),
    },
    # Its data plane is simulated within one process, and no liveness session runs over it.
    "live": {
        FaultKind.SILENT_DROP: ("no liveness session would notice it", _CUT_INSTEAD),
        FaultKind.ONE_WAY_DROP: ("no liveness session would notice it", _CUT_INSTEAD),
        FaultKind.PACKET_LOSS: ("no packets are sent", _CUT_INSTEAD),
        FaultKind.LINK_FLAP: ("a link is cut once", f"{_ELSEWHERE}, or say several link_down"),
        FaultKind.RATE_LIMIT: ("no packets are sent", "run it with --backend kernel"),
        FaultKind.NODE_ISOLATED: (
            "no liveness session would notice it",
            f"{_ELSEWHERE}, or take its power instead: node_down",
        ),
        FaultKind.AGENT_FREEZE: (
            "all agents share one process",
            f"{_ELSEWHERE}, or kill the agent instead: agent_kill",
        ),
        FaultKind.CONTROLLER_FREEZE: (
            "processes are killed, not stopped",
            f"{_ELSEWHERE}, or kill the controller instead: controller_kill",
        ),
        FaultKind.BROKER_KILL: (
            "the broker is the run's own means",
            f"{_ELSEWHERE}, or cut everybody off it instead: bus_partition without a target",
        ),
        FaultKind.BROKER_FREEZE: (
            "the broker is the run's own means",
            f"{_ELSEWHERE}, or cut everybody off it instead: bus_partition without a target",
        ),
    },
    "kernel": {},
}
_NO_BUS_IN_BAND: Final[Mapping[str, str]] = {
    "sim": "the delays of its bus are drawn, whatever breaks",
    "live": "its links carry no packets",
}
# Of a bus in band, on the backend that has one; the second, where it hits the host at which the bus is.
_NO_PARTITION: Final = (
    "the bus is in band, and there is no management network to be cut off from",
    "break links that carry it instead: silent_drop or node_isolated",
)
_NO_DEATH_OF_THE_BUS: Final = (
    "the bus is in band there, and broker and controller would live on",
    "cut it off instead: node_isolated",
)


def kinds_of(backend: str) -> frozenset[FaultKind]:
    """Return the kinds of fault that *backend* can make happen."""
    return frozenset(FaultKind) - _CANNOT[backend].keys()


def refuse_unsupported(plan: Plan, backend: str, file: ScenarioFile) -> None:
    """
    Refuse a plan whose faults *backend* cannot make happen, or whose bus it cannot run.

    Args:
        plan: Compiled from *file*.
        backend: One of `BACKENDS`.
        file: Where each fault stands.

    Raises:
        ConfigError: names each such fault, and the bus, with its line and what can be done instead.
    """
    problems = []
    told: set[tuple[str | int, ...]] = set()
    for fault, message, substitute in _refusals(plan, backend):
        place = ("fabric", "kernel", "bus") if fault is None else file.place_of(fault)
        if place not in told:
            told.add(place)
            problems.append(file.document.problem(place, message, substitute))
    problems.sort(key=in_order)
    if problems:
        raise ConfigError(file.source, problems)


def refuse_plan(plan: Plan, backend: str, source: str) -> None:
    """
    Refuse a plan that was read from *source*, with no scenario at hand, as `refuse_unsupported` does.

    Raises:
        ConfigError: names the first fault of each kind that *backend* cannot make happen, and the bus.
    """
    told: dict[FaultKind | None, Problem] = {}
    for fault, message, substitute in _refusals(plan, backend):
        told.setdefault(None if fault is None else fault.kind, Problem(0, message, suggestion=substitute))
    if told:
        raise ConfigError(source, list(told.values()))


def _refusals(plan: Plan, backend: str) -> Iterator[tuple[Fault | None, str, str]]:
    """Yield each fault that *backend* cannot make happen, None for the bus; what to tell of it; and what can be done instead."""
    if plan.is_bus_in_band and backend in _NO_BUS_IN_BAND:
        message = f"{backend} cannot run the bus in band: {_NO_BUS_IN_BAND[backend]}"
        yield None, message, "run it with --backend kernel, or take the bus from some nodes instead: bus_partition"
    for fault in plan.faults:
        refusal = _CANNOT[backend].get(fault.kind) or _in_band_refusal(plan, fault)
        if refusal is not None:
            reason, substitute = refusal
            yield fault, f'fault "{fault.id}": {backend} cannot do {fault.kind.value}: {reason}', substitute


def _in_band_refusal(plan: Plan, fault: Fault) -> tuple[str, str] | None:
    """Return why a bus in band keeps *fault* from being made, and what to do instead; None if it does not."""
    if not plan.is_bus_in_band:
        return None
    if fault.kind is FaultKind.BUS_PARTITION:
        return _NO_PARTITION
    if fault.kind is FaultKind.NODE_DOWN and bus_host_of(plan.fabric) in fault.nodes:
        return _NO_DEATH_OF_THE_BUS
    return None
