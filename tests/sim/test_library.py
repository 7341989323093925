"""Every scenario of the library passes in simulation, or says what else to run it on."""

from pathlib import Path

import pytest

from erfs.errors import ConfigError
from erfs.generators import generate
from erfs.journal import Journal
from erfs_scenario.backends import kinds_of, refuse_unsupported
from erfs_scenario.judging import judge
from erfs_scenario.kernel.faults import refuse_overlaps
from erfs_scenario.plan import Plan, compile_plan
from erfs_scenario.schema import ScenarioFile, load_scenario
from erfs_scenario.simulation import simulate

LIBRARY = Path(__file__).resolve().parents[2] / "scenarios/library"


SCENARIOS = sorted(LIBRARY.glob("*.yaml"))


def is_simulated(path: Path) -> bool:
    scenario = load_scenario(path).scenario
    is_in_band = scenario.fabric.kernel is not None and scenario.fabric.kernel.bus == "in_band"
    return not is_in_band and {fault.kind for fault in scenario.faults} <= kinds_of("sim")


SIMULATED = [path for path in SCENARIOS if is_simulated(path)]


def plan_of(path: Path, backend: str) -> tuple[ScenarioFile, Plan]:
    """Return a scenario and its plan on the fabric that it names for *backend*."""
    file = load_scenario(path)
    part = file.scenario.fabric
    source = (part.kernel if backend == "kernel" else None) or part.generate
    assert source is not None
    return file, compile_plan(file, generate(source.kind, source.params))


@pytest.mark.parametrize("path", SIMULATED, ids=lambda path: path.stem)
def test_a_scenario_of_the_library_passes(path: Path, tmp_path: Path) -> None:
    _, plan = plan_of(path, "sim")
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.append(0, "run_started", **plan.header("sim"))
        simulate(
            plan,
            record=lambda at_ns, event, fields: journal.append(at_ns, event, **fields),
            on_progress=lambda _now_ns: None,
        )
        journal.append(plan.duration_ns, "run_finished")

    assert judge(tmp_path / "journal.jsonl").verdict.reasons == (f"{len(_asked(tmp_path))} expectations met",)


@pytest.mark.parametrize("path", sorted(set(SCENARIOS) - set(SIMULATED)), ids=lambda path: path.stem)
def test_what_cannot_be_simulated_is_sent_to_the_kernel(path: Path) -> None:
    file, plan = plan_of(path, "sim")
    with pytest.raises(ConfigError, match="run it with --backend kernel"):
        refuse_unsupported(plan, "sim", file)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_each_fits_the_kernel_backend_on_one_machine(path: Path) -> None:
    file, plan = plan_of(path, "kernel")
    refuse_unsupported(plan, "kernel", file)
    refuse_overlaps(plan.faults, plan.links_hit, path.name)
    assert len(plan.fabric.nodes) <= 40


def _asked(folder: Path) -> tuple[object, ...]:
    return judge(folder / "journal.jsonl").verdict.checks
