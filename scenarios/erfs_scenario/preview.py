"""Whom could each fault of a plan harm? Answered without a run, on the unbroken fabric with its programs installed.

Rule 1: the routes come from the path engine, since nobody has installed any; what crosses what is the meter's own judgement.
"""

from dataclasses import dataclass

from erfs.paths import Topology, compute
from erfs_scenario.dataplane import DataPlane
from erfs_scenario.measurement import Meter
from erfs_scenario.plan import Plan


@dataclass(frozen=True, slots=True)
class Reach:
    """What crosses the target of a fault."""

    flows: int
    demands: int
    far_flows: int
    """Those for which another node than the one at the break must act."""


def reach_of_faults(plan: Plan) -> dict[str, Reach]:
    """
    Return what each fault of *plan* could harm, each taken alone on the unbroken fabric.

    Cost: one computation of all routes, and a walk of all destinations for each fault.
    """
    plane = DataPlane(plan.fabric)
    programs = compute(Topology(plan.fabric), unusable=frozenset(), is_protecting=False).programs
    for node, program in programs.items():
        members = {group.id: group.members for group in program.groups}
        plane.write_routes(node, {route.destination: members[route.group] for route in program.routes})
    found: dict[str, Reach] = {}

    def record(_at_ns: int, event: str, fields: dict[str, object]) -> None:
        if event == "flows_affected":
            rows = fields["flows"]
            assert isinstance(rows, list)
            demands = sum(sum(by_set.values()) for _, _, by_set, _, _ in rows)
            found[str(fields["fault"])] = Reach(len(rows), demands, sum(side == "far" for *_, side in rows))

    meter = Meter(plan, plane, record, has_returns=False)
    meter.settle(plan.measure_from_ns)
    for fault in plan.faults:
        meter.before_fault(fault, plan.measure_from_ns)
    return found
