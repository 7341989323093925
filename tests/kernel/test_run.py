"""Library scenarios on a real forwarding plane: one lab, one plan after the other, each judged by its journal."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner

from erfs.addressing import plan_addresses
from erfs.aio.namespaces import inside
from erfs.cli.main import erfs
from erfs.errors import ConfigError
from erfs.fabric import Fabric
from erfs.faults import Fault, FaultKind
from erfs.generators import generate
from erfs.units import MS, SECOND
from erfs_scenario.demands import DemandSet
from erfs_scenario.judging import judge_records
from erfs_scenario.kernel.members import Members
from erfs_scenario.kernel.run import Measurement, refuse
from erfs_scenario.kernel.spaces import Spaces
from erfs_scenario.kernel.underlay import PROTOCOL
from erfs_scenario.plan import Plan, Timers, compile_plan
from erfs_scenario.report import Report
from erfs_scenario.schema import load_scenario

# Alone on the machine: what is measured here are milliseconds.
pytestmark = pytest.mark.live
LIBRARY = Path(__file__).resolve().parents[2] / "scenarios/library"
FABRIC = generate("fat-tree", {"k": 4})
# A link that comes back is trusted soon, however often it failed before; a controller leads soon after its start.
TIMERS = replace(
    Timers(),
    wait_to_restore_ns=1 * SECOND,
    wait_to_restore_max_ns=1 * SECOND,
    leader_refresh_ns=250 * MS,
    leader_listen_ns=500 * MS,
)
SHORTEST_NS = 3 * SECOND


class Lab:
    def __init__(self, spaces: Spaces, members: Members) -> None:
        self.spaces = spaces
        self.members = members

    async def rest(self) -> None:
        """Wait until nobody has changed anything for a while."""
        async with asyncio.timeout(60):
            while self.members.read_marks():
                turn = asyncio.Event()
                asyncio.get_running_loop().call_later(1.5, turn.set)
                await turn.wait()

    async def run(self, plan: Plan, folder: Path, *, ip_version: int = 4) -> Report:
        await self.rest()
        records: list[dict[str, Any]] = [{"at_ns": 0, "event": "run_started"} | plan.header("kernel")]

        def record(at_ns: int, event: str, fields: dict[str, object]) -> None:
            records.append(json.loads(json.dumps({"at_ns": at_ns, "event": event} | fields)))

        measurement = Measurement(
            plan,
            self.spaces,
            self.members,
            folder,
            record=record,
            on_progress=lambda _: None,
            ip_version=ip_version,
        )
        await measurement.run()
        measurement.write_down()
        return judge_records(records)


@asynccontextmanager
async def lab_of(
    fabric: Fabric, folder: Path, *, is_protecting: bool = True, is_bus_in_band: bool = False
) -> AsyncIterator[Lab]:
    made = Spaces(fabric, plan_addresses(fabric), is_bus_in_band=is_bus_in_band)
    with closing(made) as spaces, inside(spaces.path(None)):
        members = Members(spaces, folder, timers=TIMERS, is_protecting=is_protecting)
        try:
            await members.start_all(lambda _: None)
            yield Lab(spaces, members)
        finally:
            await members.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    async with lab_of(FABRIC, tmp_path_factory.mktemp("lab")) as found:
        yield found


def shortened(name: str) -> Plan:
    """Return the plan of a library scenario with all that lasts longer than it must made shorter, on the lab's fabric."""
    plan = compile_plan(load_scenario(LIBRARY / f"{name}.yaml"), FABRIC)
    faults: list[Fault] = []
    for fault in plan.faults:
        at_ns = 2 * SECOND
        for before, shorter in zip(plan.faults, faults, strict=False):
            # What began while an earlier one lasted, or after it was over, still does.
            is_after = fault.at_ns >= before.end_at_ns
            at_ns = max(
                at_ns,
                (shorter.end_at_ns + 2 * SECOND)
                if is_after
                else shorter.at_ns + min(fault.at_ns - before.at_ns, SECOND),
            )
        faults.append(replace(fault, at_ns=at_ns, end_at_ns=at_ns + min(fault.end_at_ns - fault.at_ns, SHORTEST_NS)))
    return replace(
        plan,
        faults=tuple(faults),
        measure_from_ns=1 * SECOND,
        duration_ns=max(fault.end_at_ns for fault in faults) + 3 * SECOND,
        timers=TIMERS,
    )


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("name", "ip_version"),
    [
        ("single-link", 4),
        ("single-link", 6),
        ("spine-down", 4),
        ("silent-drop", 4),
        ("one-way-drop", 4),
        ("link-flap", 4),
        ("controller-dies", 4),
        ("broker-dies", 4),
        ("agent-frozen", 4),
    ],
)
async def test_a_library_scenario_passes_on_real_packets(lab: Lab, name: str, ip_version: int, tmp_path: Path) -> None:
    """The figures of a machine that others use too are not judged here: what was measured, and what came back, is."""
    report = await lab.run(shortened(name), tmp_path, ip_version=ip_version)
    assert report.steady_state.held, report.steady_state
    assert report.probes is not None
    assert (report.probes.ip_version, report.probes.duplicates) == (ip_version, 0)
    for fault in report.faults:
        assert fault.effective_at_ns is not None
        assert fault.not_recovered.flows == 0
        assert fault.return_.flows_lost == 0
        if fault.is_physical:
            assert fault.far.flows + fault.near.flows + fault.cut.flows >= 20
            assert fault.stages.detection_ns is not None
            if all(one.is_physical for one in report.faults):
                assert fault.stages.restoration_finished_ns is not None
    assert all(part.availability_ppm > 990_000 for part in report.demand_sets)


async def test_with_the_bus_in_band_a_dead_link_takes_the_bus_from_those_it_carries_and_only_its_ends_repair(
    tmp_path: Path,
) -> None:
    """
    Whose every way to the bus crosses the link is without it for as long as the link is dead; who has the bus beside it is not.

    The agents leave the underlay alone: its routes are the same afterwards.
    """
    plan = shortened("bus-in-band")
    [silence] = plan.faults
    assert plan.is_bus_in_band
    async with lab_of(FABRIC, tmp_path / "lab", is_bus_in_band=True) as found:
        before = underlay_of(found)
        report = await found.run(plan, tmp_path)
        assert underlay_of(found) == before
        lost = {node for node in FABRIC.nodes if "bus_lost" in found.members.log_of(node).read_text()}
    assert report.steady_state.held, report.steady_state
    [seen] = report.faults
    assert report.is_bus_in_band
    assert (seen.id, seen.near.flows >= 20, seen.return_.flows_lost) == (silence.id, True, 0)
    assert seen.near.last_ns is not None
    assert seen.near.last_ns < 1 * SECOND
    cut = {"pod0-agg0", "core0-0", "core0-1", *(f"pod{pod}-agg0" for pod in (1, 2, 3))}
    assert cut <= lost
    assert not {"pod0-edge0", "pod0-edge0-host0", "pod0-edge0-host1"} & lost


def underlay_of(lab: Lab) -> dict[str, str]:
    """Return the routes to the management addresses in each namespace, as the kernel tells them."""
    program = ("ip", "route", "show", "proto", str(PROTOCOL))
    return {node: lab.spaces.run(node, program) for node in FABRIC.nodes}


@pytest.mark.parametrize("is_protecting", [True, False])
async def test_with_the_controller_dead_what_was_armed_repairs_and_without_it_nobody_does(
    tmp_path: Path, is_protecting: bool
) -> None:
    fabric = generate("leaf-spine", {"leaves": 3, "spines": 2, "hosts_per_leaf": 1})
    cable = fabric.trunks[0]
    spine_end = next(end for end in cable.ends if fabric.nodes[end.node].tier == 2)
    dead = Fault("dead", FaultKind.CONTROLLER_KILL, 2 * SECOND, 7 * SECOND)
    cut = Fault("cut", FaultKind.LINK_DOWN, 3 * SECOND, 14 * SECOND, links=(cable.id,), ends=(spine_end,))
    endpoints = tuple(node.id for node in fabric.endpoints)
    plan = Plan(
        "headless",
        fabric,
        (DemandSet("all_pairs", endpoints=endpoints),),
        (dead, cut),
        seed=1,
        measure_from_ns=1 * SECOND,
        duration_ns=17 * SECOND,
        timers=TIMERS,
        is_protecting=is_protecting,
    )
    async with lab_of(fabric, tmp_path / "lab", is_protecting=is_protecting) as small:
        report = await small.run(plan, tmp_path)
    assert report.steady_state.held, report.steady_state
    found = next(fault for fault in report.faults if fault.id == "cut")
    assert found.far.flows >= 20
    assert found.not_recovered.flows == 0
    assert found.far.first_ns is not None
    assert found.far.last_ns is not None
    if is_protecting:
        assert found.far.last_ns < 1 * SECOND
    else:
        # The controller is dead for another four seconds.
        assert found.far.first_ns > 4 * SECOND


def test_a_scenario_that_needs_what_the_kernel_lacks_is_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("erfs_scenario.kernel.run.missing_capabilities", lambda: {"expiring drops": "no such hook"})
    link = FABRIC.trunks[0].id
    plan = shortened("single-link")
    silent = Fault("quiet", FaultKind.SILENT_DROP, 2 * SECOND, 3 * SECOND, links=(link,))
    refuse(plan)
    with pytest.raises(ConfigError, match="cut the cable instead"):
        refuse(replace(plan, faults=(silent,)))


def test_two_faults_that_hold_the_same_cable_at_once_are_refused() -> None:
    plan = shortened("single-link")
    [cut] = plan.faults
    other = replace(cut, id="other", at_ns=cut.at_ns + 10 * MS)
    with pytest.raises(ConfigError, match=r'"cut" and "other" hold .* at the same time'):
        refuse(replace(plan, faults=(cut, other)))


def test_the_command_runs_a_lab_of_its_own_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ERFS_LABS", str(tmp_path / "labs"))
    text = (LIBRARY / "single-link.yaml").read_text().replace("for: 10 s", "for: 3 s")
    (tmp_path / "short.yaml").write_text(text.replace("kind: fat-tree, k: 4", "kind: leaf-spine, leaves: 3, spines: 2"))
    asked = ["run", str(tmp_path / "short.yaml"), "--backend", "kernel", "--out", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(erfs, asked, standalone_mode=False)
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["probes"]["flows"] >= 60
    assert report["faults"][0]["not_recovered"]["flows"] == 0
    assert list((tmp_path / "labs").glob("*")) == []
