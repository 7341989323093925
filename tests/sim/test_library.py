"""Every scenario that a user can run today passes in simulation."""

from pathlib import Path

import pytest

from erfs.generators import generate
from erfs.journal import Journal
from erfs_scenario.judging import judge
from erfs_scenario.plan import compile_plan
from erfs_scenario.schema import load_scenario
from erfs_scenario.simulation import simulate

LIBRARY = Path(__file__).resolve().parents[2] / "scenarios/library"


@pytest.mark.parametrize("path", sorted(LIBRARY.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_scenario_of_the_library_passes(path: Path, tmp_path: Path) -> None:
    file = load_scenario(path)
    part = file.scenario.fabric.generate
    assert part is not None
    plan = compile_plan(file, generate(part.kind, part.params))
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.append(0, "run_started", **plan.header("sim"))
        simulate(
            plan,
            record=lambda at_ns, event, fields: journal.append(at_ns, event, **fields),
            on_progress=lambda _now_ns: None,
        )
        journal.append(plan.duration_ns, "run_finished")

    assert judge(tmp_path / "journal.jsonl").verdict.reasons == (f"{len(_asked(tmp_path))} expectations met",)


def _asked(folder: Path) -> tuple[object, ...]:
    return judge(folder / "journal.jsonl").verdict.checks
