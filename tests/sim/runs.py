"""Plans small enough to run by the dozen, and what became of a run."""

from dataclasses import dataclass, replace
from typing import Any

from erfs.fabric import Fabric
from erfs.faults import Fault
from erfs.ids import DestinationId, NodeId
from erfs.messages import Member
from erfs.units import MS, SECOND
from erfs_scenario.demands import DemandSet
from erfs_scenario.plan import Plan, Timers
from erfs_scenario.simulation import Simulation

Tables = dict[NodeId, dict[DestinationId, tuple[Member, ...]]]
MEASURE_FROM_NS = 1 * SECOND


@dataclass
class Ran:
    """What a run left behind."""

    records: list[tuple[int, str, dict[str, Any]]]
    tables: Tables

    def of(self, *events: str, node: str | None = None) -> list[tuple[int, dict[str, Any]]]:
        """Return (at_ns, fields) of the records of these kinds."""
        return [
            (at_ns, fields)
            for at_ns, event, fields in self.records
            if event in events and (node is None or fields.get("node") == node)
        ]

    def events(self) -> set[str]:
        """Return the kinds of records."""
        return {event for _, event, _ in self.records}

    def unserved_ns(self) -> dict[tuple[str, str], int]:
        """Return how long each flow that ever lost something was not served in full; of an open outage, to the end."""
        end_ns = self.of("measurement_finished")[0][0]
        since: dict[tuple[str, str], int] = {}
        found: dict[tuple[str, str], int] = {}
        for at_ns, fields in self.of("flow_changed"):
            flow = fields["source"], fields["destination"]
            if fields["cause"] == "served":
                found[flow] = found.get(flow, 0) + at_ns - since.pop(flow)
            else:
                since.setdefault(flow, at_ns)
        for flow, at_ns in since.items():
            found[flow] = found.get(flow, 0) + end_ns - at_ns
        return found


def plan_on(fabric: Fabric, *faults: Fault, lasts_ns: int = 10 * SECOND, seed: int = 1, **changes: Any) -> Plan:
    """Return a plan on *fabric*: everybody talks to everybody, and a repaired port is trusted after 200 ms."""
    plan = Plan(
        name="small",
        fabric=fabric,
        demands=(DemandSet("all", endpoints=tuple(node.id for node in fabric.endpoints)),),
        faults=faults,
        seed=seed,
        measure_from_ns=MEASURE_FROM_NS,
        duration_ns=lasts_ns,
        timers=Timers(wait_to_restore_ns=200 * MS, wait_to_restore_max_ns=SECOND),
    )
    return replace(plan, **changes)


def run(plan: Plan) -> Ran:
    """Run *plan* in simulated time."""
    records: list[tuple[int, str, dict[str, Any]]] = []
    simulation = Simulation(
        plan,
        lambda at_ns, event, fields: records.append((at_ns, event, fields)),
        lambda _now_ns: None,
    )
    simulation.run()
    return Ran(records, {node: simulation.plane.routes_of(node) for node in plan.fabric.nodes})
