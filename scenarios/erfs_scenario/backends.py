"""Which faults can each backend make happen, and what to do about those it cannot?

Rule 1: a table. What is not in it is done as its kind says; what is in it is refused, with the nearest thing that can be done.
Rule 2: all refusals of a plan are told at once, before anything is started.
"""

from collections.abc import Mapping
from typing import Final

from erfs.errors import ConfigError
from erfs.faults import FaultKind
from erfs_scenario.plan import Plan
from erfs_scenario.schema import ScenarioFile

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


def kinds_of(backend: str) -> frozenset[FaultKind]:
    """Return the kinds of fault that *backend* can make happen."""
    return frozenset(FaultKind) - _CANNOT[backend].keys()


def refuse_unsupported(plan: Plan, backend: str, file: ScenarioFile) -> None:
    """
    Refuse a plan whose faults *backend* cannot make happen.

    Args:
        plan: Compiled from *file*.
        backend: One of `BACKENDS`.
        file: Where each fault stands.

    Raises:
        ConfigError: names each such fault, with its line and what can be done instead.
    """
    places = {name: index for index, name in enumerate(file.fault_names())}
    problems = []
    for fault in sorted(plan.faults, key=lambda fault: places[fault.id]):
        if fault.kind in _CANNOT[backend]:
            reason, substitute = _CANNOT[backend][fault.kind]
            message = f'fault "{fault.id}": {backend} cannot do {fault.kind.value}: {reason}'
            problems.append(file.document.problem(("faults", places[fault.id], "kind"), message, substitute))
    if problems:
        raise ConfigError(file.source, problems)
