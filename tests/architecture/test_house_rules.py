"""Rules of the house that no type checker sees. Each message says what to do instead."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from erfs.faults import FaultKind

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    ROOT / "erfs",
    ROOT / "controller/erfs_controller",
    ROOT / "agents/erfs_agent",
    ROOT / "scenarios/erfs_scenario",
)
MODULES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
CORES = (
    "controller/erfs_controller/core.py",
    "controller/erfs_controller/adjacency.py",
    "controller/erfs_controller/programming.py",
    "agents/erfs_agent/core.py",
    "agents/erfs_agent/forwarding.py",
)


def calls_in(path: Path) -> set[str]:
    """Return the dotted names of all calls in a file."""
    tree = ast.parse(path.read_text())
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda path: path.name)
def test_no_test_sleeps(path: Path) -> None:
    """Wait for the condition (poll with a deadline), never for time."""
    assert not {name for name in calls_in(path) if name in ("time.sleep", "asyncio.sleep", "sleep")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "open with the question the file answers and its rules"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_outgrows_one_subject(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= 900, "split the file: a giant centre grows one feature at a time"


@pytest.mark.parametrize("core", CORES)
def test_cores_state_their_rules(core: str) -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / core).read_text())) or ""
    assert "Rule 1" in docstring, "say what must always hold, and what the file must never know"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_draws_from_the_global_random(path: Path) -> None:
    """Chance comes as a `random.Random` argument, split from the seed."""
    drawn = {name for name in calls_in(path) if re.fullmatch(r"random\.(?!Random$|SystemRandom$)\w+", name)}
    assert not drawn


def test_every_fault_kind_has_a_scenario_in_the_library() -> None:
    kinds: set[str] = set()
    for path in sorted((ROOT / "scenarios/library").glob("*.yaml")):
        kinds |= {fault["kind"] for fault in yaml.safe_load(path.read_text()).get("faults", ())}
    assert kinds >= {kind.value for kind in FaultKind}


def imported_with(blocked: tuple[str, ...], module: str) -> subprocess.CompletedProcess[str]:
    """Import *module* in a fresh interpreter in which the *blocked* packages are not to be had."""
    program = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import {module}
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


def test_an_agent_on_a_switch_needs_only_the_base_packages() -> None:
    done = imported_with(
        ("numpy", "networkx", "click", "rich", "amqtt", "jinja2", "yaml", "uvloop"), "erfs_agent.__main__"
    )
    assert done.returncode == 0, done.stderr


def test_a_controller_needs_neither_the_scenarios_nor_the_broker_extra() -> None:
    done = imported_with(("amqtt", "jinja2", "scipy", "uvloop"), "erfs_controller.__main__")
    assert done.returncode == 0, done.stderr


def test_the_command_line_starts_without_loading_what_it_does_not_use() -> None:
    done = imported_with(("numpy", "scipy", "networkx", "amqtt", "jinja2", "yaml", "aiomqtt"), "erfs.cli.main")
    assert done.returncode == 0, done.stderr


def test_every_decision_record_is_numbered_once_and_has_its_sections() -> None:
    records = sorted((ROOT / "docs/adr").glob("*.md"))
    numbers = [path.name[:4] for path in records]
    assert numbers == [f"{index:04}" for index in range(1, len(records) + 1)]
    for path in records:
        text = path.read_text()
        for section in (
            "**Context.**",
            "**Decision.**",
            "**Alternatives.**",
            "**Consequences.**",
            "**How we would know",
        ):
            assert section in text, f"{path.name} lacks {section}"


def test_no_file_names_a_registry_host_or_a_machine_path() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    pattern = re.compile(r"pypi\.org|pythonhosted|/(?:root|work|home/\w+)/")
    for name in filter(None, listed):
        path = ROOT / name
        if path.name == Path(__file__).name or not path.is_file():
            continue
        found = pattern.search(path.read_bytes().decode(errors="replace"))
        assert found is None, f"{name}: {found and found[0]}"
