"""Runs in real time for the live tests: in this process, or as the command a user gives."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from erfs.fabric import Fabric
from erfs.faults import Fault, FaultKind
from erfs.ids import LinkId, NodeId
from erfs.units import MS, SECOND
from erfs_scenario.demands import DemandSet
from erfs_scenario.live import run_live
from erfs_scenario.plan import Plan, Timers
from erfs_scenario.replay import NotedPlane

DEADLINE_S = 40.0
MEASURE_FROM_NS = SECOND
PROGRAM = (sys.executable, "-c", "from erfs.cli.main import main; main()")


@dataclass
class Ran:
    """What a run recorded, in order."""

    records: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    rewritten_at_ns: list[int] = field(default_factory=list)
    """When a driver wrote a route that said something else than the one before."""

    def of(self, *events: str, after_ns: int = -1, before_ns: int | None = None) -> list[dict[str, Any]]:
        """Return the fields of the records of these kinds, between two instants."""
        return [
            fields | {"at_ns": at_ns}
            for at_ns, event, fields in self.records
            if event in events and at_ns >= after_ns and (before_ns is None or at_ns <= before_ns)
        ]

    def at(self, event: str, fault: str) -> int:
        """Return when *event* happened to *fault*."""
        (found,) = [fields["at_ns"] for fields in self.of(event) if fields["fault"] == fault]
        assert isinstance(found, int)
        return found

    def hurt(self, fault: str) -> set[tuple[str, str]]:
        """Return the flows that *fault* was known to affect before it happened."""
        (found,) = [fields["flows"] for fields in self.of("flows_affected") if fields["fault"] == fault]
        return {(source, target) for source, target, *_ in found}

    def recovery_ns(self, fault: str) -> dict[tuple[str, str], int]:
        """Return how long each flow that *fault* affected was not served in full, from the fault's effect on."""
        start_ns = self.at("fault_effective", fault)
        found = {}
        for fields in self.of("flow_changed", after_ns=start_ns):
            flow = fields["source"], fields["destination"]
            if fields["cause"] == "served" and flow in self.hurt(fault):
                found.setdefault(flow, fields["at_ns"] - start_ns)
        return found


def plan_on(fabric: Fabric, *faults: Fault, lasts_ns: int, is_protecting: bool = True) -> Plan:
    """Return a plan in which everybody talks to everybody and a repaired port is trusted after 300 ms."""
    return Plan(
        name="live",
        fabric=fabric,
        demands=(DemandSet("all", endpoints=tuple(node.id for node in fabric.endpoints)),),
        faults=faults,
        seed=1,
        measure_from_ns=MEASURE_FROM_NS,
        duration_ns=MEASURE_FROM_NS + lasts_ns,
        is_protecting=is_protecting,
        timers=Timers(wait_to_restore_ns=300 * MS, wait_to_restore_max_ns=SECOND),
    )


def fault(
    name: str, kind: FaultKind, at_ms: int, lasts_ms: int, *, link: LinkId | None = None, node: NodeId | None = None
) -> Fault:
    """Return a fault *at_ms* after the measurement begins."""
    at_ns = MEASURE_FROM_NS + at_ms * MS
    links = (link,) if link is not None else ()
    nodes = (node,) if node is not None else ()
    return Fault(name, kind, at_ns, at_ns + lasts_ms * MS, links, nodes)


def run(plan: Plan, out: Path, broker: str | None) -> Ran:
    """Run *plan* in this process."""
    ran = Ran()

    class CountingPlane(NotedPlane):
        def write_routes(self, node: NodeId, routes: Any, removed: Any = ()) -> None:
            before = self.rewritten_count
            super().write_routes(node, routes, removed)
            if self.rewritten_count != before:
                ran.rewritten_at_ns.append(self.newest_note_ns)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("erfs_scenario.live.NotedPlane", CountingPlane)
        run_live(
            plan,
            record=lambda at_ns, event, fields: ran.records.append((at_ns, event, fields)),
            on_progress=lambda _now_ns: None,
            out=out,
            broker=broker,
        )
    return ran


@contextmanager
def command(scenario: str, folder: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `erfs run` on *scenario* as a user does; whatever happens, it is gone afterwards."""
    (folder / "scenario.yaml").write_text(scenario)
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [*PROGRAM, "run", "scenario.yaml", "--backend", "live", "--out", "out", *arguments],
            cwd=folder,
            stdout=said,
            stderr=said,
            text=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def journal(folder: Path) -> list[dict[str, Any]]:
    """Return what the run in *folder* has noted so far."""
    path = folder / "out/journal.jsonl"
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()]


def until(condition: Callable[[], bool], what: str) -> None:
    """Look until *condition* holds."""
    deadline = monotonic() + DEADLINE_S
    while not condition():
        assert monotonic() < deadline, f"never came: {what}"
