"""What is wrong with a scenario file is told all at once, each with line, column and advice, and never as a traceback."""

import os
from pathlib import Path

import jsonschema
import pytest
import yaml

from erfs.errors import ConfigError
from erfs.generators import generate
from erfs_scenario import yaml_marks
from erfs_scenario.plan import Plan, compile_plan
from erfs_scenario.schema import load_scenario, parse_scenario
from erfs_scenario.schema_files import FOLDER, SCHEMAS, schema_of, text_of

HERE = Path(__file__).parent
BROKEN = sorted((HERE / "broken").glob("*.yaml"))
GOLDEN = HERE / "broken" / "messages.txt"
LIBRARY = sorted((HERE.parents[1] / "scenarios/library").glob("*.yaml"))


def complaint_about(path: Path) -> str:
    """Return what a user is told about a broken file, its path shortened to its name."""
    with pytest.raises(ConfigError) as caught:
        compile_whole(path)
    return str(caught.value)


def compile_whole(path: Path) -> Plan:
    """Read a file and make its plan."""
    file = parse_scenario(path.read_bytes(), path.name, path.parent)
    part = file.scenario.fabric.generate
    assert part is not None
    return compile_plan(file, generate(part.kind, part.params))


def test_every_broken_file_is_answered_as_agreed() -> None:
    """The golden file shows what users read; UPDATE_GOLDEN=1 rewrites it, and the difference is reviewed like code."""
    told = "".join(f"{complaint_about(path)}\n" for path in BROKEN)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(told)
    assert told == GOLDEN.read_text()


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.stem)
def test_every_complaint_names_the_file_and_mostly_the_line(path: Path) -> None:
    for line in complaint_about(path).splitlines():
        assert line.startswith((f"{path.name}:", "parts/"))
        if path.stem not in ("empty", "deep", "alias-of-itself"):
            assert line.split(":")[1].isdigit(), line


def test_a_file_over_a_megabyte_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_bytes(b"# " + b"x" * yaml_marks.SIZE_MAX)
    with pytest.raises(ConfigError, match="1,048,577 bytes"):
        load_scenario(path)


def test_an_endless_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 1,048,576"):
        load_scenario(Path("/dev/zero"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read: No such file"):
        load_scenario(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: path.stem)
def test_the_library_is_right_and_so_says_the_published_schema(path: Path) -> None:
    load_scenario(path)
    jsonschema.validate(yaml.safe_load(path.read_text()), schema_of("scenario"))


@pytest.mark.parametrize("kind", sorted(SCHEMAS))
def test_the_published_schemas_are_those_of_the_models(kind: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema_of(kind))
    assert (FOLDER / SCHEMAS[kind]).read_text() == text_of(kind), "run make docs"
