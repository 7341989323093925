"""What users read is true: every setting is documented, and the examples are accepted."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from erfs.exporters import write_fabric
from erfs.faults import FaultKind
from erfs.generators import generate
from erfs_agent.settings import AgentSettings
from erfs_controller.settings import ControllerSettings
from erfs_scenario.backends import BACKENDS, kinds_of
from erfs_scenario.plan import compile_plan
from erfs_scenario.schema import parse_scenario

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = ROOT / "docs/configuration.md"
SCENARIOS = ROOT / "docs/scenarios.md"


def leaves(model: type[BaseModel], prefix: str = "") -> set[str]:
    """Return the dotted names of all settings of *model*; list items are marked with []."""
    found: set[str] = set()
    for name, field in model.model_fields.items():
        kinds = re.findall(r"\w+", str(field.annotation))
        inner = next((kind for kind in _models(field.annotation)), None)
        if inner is None:
            found.add(prefix + name)
        else:
            found |= leaves(inner, f"{prefix}{name}{'[]' if 'tuple' in kinds else ''}.")
    return found


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in getattr(annotation, "__args__", ()) for model in _models(inner)]


@pytest.mark.parametrize("settings", [ControllerSettings, AgentSettings])
def test_every_setting_is_documented_and_nothing_else_is(settings: type[BaseModel]) -> None:
    text = CONFIGURATION.read_text()
    bus = text[text.index("## Bus") :]
    own = text[text.index("## Agent") :] if settings is AgentSettings else text[: text.index("## Agent")]
    documented = set(re.findall(r"`([a-z_.\[\]]+)`", _first_cells(own) + _first_cells(bus)))
    assert leaves(settings) - documented == set()


def _first_cells(text: str) -> str:
    return "\n".join(line.split("|")[1] + " " for line in text.splitlines() if line.startswith("| `"))


@pytest.mark.parametrize(("heading", "program"), [("## Controller", "erfs_controller"), ("## Agent", "erfs_agent")])
def test_the_documented_example_is_accepted(heading: str, program: str, tmp_path: Path) -> None:
    text = CONFIGURATION.read_text()
    example = re.search(r"```toml\n(.*?)```", text[text.index(heading) :], re.DOTALL)
    assert example is not None
    (tmp_path / "fabric.json").write_text(write_fabric(generate("fat-tree", {"k": 4}), "node-link"))
    config = tmp_path / "daemon.toml"
    config.write_text(example[1].replace("/var/lib/erfs", str(tmp_path)))
    done = subprocess.run(
        [sys.executable, "-m", program, "--config", str(config), "--check-config"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_shows_what_the_demo_prints(tmp_path: Path) -> None:
    """Simulated time is the same everywhere, so the sample output can be held to the letter."""
    block = re.search(r"\$ make demo\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "erfs",
            "run",
            "scenarios/library/single-link.yaml",
            "--seed",
            "1",
            "--out",
            str(tmp_path / "demo"),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    printed = [line.rstrip() for line in done.stdout.splitlines() if line.strip()]
    assert printed[:-1] == block[1].splitlines()[:-1]


def test_the_documented_faults_are_those_that_there_are_on_the_backends_that_can_do_them() -> None:
    text = SCENARIOS.read_text()
    section = text[text.index("## Kinds of fault") : text.index("What the backends are")]
    told = {
        FaultKind(cells[1].strip(" `")): {
            backend for backend, said in zip(BACKENDS, cells[4:7], strict=True) if said.strip() != "no"
        }
        for cells in (line.split("|") for line in section.splitlines() if line.startswith("| `"))
    }
    assert told == {kind: {backend for backend in BACKENDS if kind in kinds_of(backend)} for kind in FaultKind}


def test_the_documented_scenario_is_accepted_and_fits_both_its_fabrics() -> None:
    example = re.search(r"```yaml\n(.*?)```", SCENARIOS.read_text(), re.DOTALL)
    assert example is not None
    file = parse_scenario(example[1].encode(), SCENARIOS.name)
    for part in (file.scenario.fabric.generate, file.scenario.fabric.kernel):
        assert part is not None
        assert compile_plan(file, generate(part.kind, part.params)).faults
