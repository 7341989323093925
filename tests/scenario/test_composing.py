"""Parameters and includes: several files become one, values are put in, and nothing loses its place."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml

from erfs.errors import ConfigError
from erfs.journal import read
from erfs_scenario.composing import text_of
from erfs_scenario.exhibits import replay_command
from erfs_scenario.schema import load_scenario
from erfs_scenario.schema_files import schema_of
from erfs_scenario.timeline import read_timeline
from erfs_scenario.yaml_marks import scalar_of
from tests.scenario.command import erfs

MAIN = """
name: main-${site}
fabric: {generate: {kind: fat-tree, k: "${k}"}}
parameters: {hold: 3 s, k: 4, site: lab, quiet: true}
includes: parts/faults.yaml
faults:
  - {name: own, kind: link_down, target: {kind: trunk, random: "${k}"}, at: 8 s, for: "${hold}"}
expect:
  recovery: {max: 40 ms}
  no_loop: ${quiet}
"""
FAULTS = """
includes: [timers.yaml]
parameters: {hold: 9 s, start: 1 s}
faults:
  - name: included
    kind: link_down
    target: {kind: trunk, tier: top, random: 1}
    at: ${start}
    for: ${hold}
expect:
  recovery: {max: 90 ms, p95: 50 ms}
  availability: {min: 99.9 %}
"""
TIMERS = "timers: {session_interval: 20 ms}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A scenario that includes a file that includes another."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "main.yaml").write_text(MAIN)
    (tmp_path / "parts/faults.yaml").write_text(FAULTS)
    (tmp_path / "parts/timers.yaml").write_text(TIMERS)
    return tmp_path


def complaint(path: Path, settings: dict[str, str] | None = None) -> list[str]:
    """Return what a user is told, without the folder."""
    with pytest.raises(ConfigError) as caught:
        load_scenario(path, settings)
    return str(caught.value).replace(f"{path.parent}/", "").splitlines()


def test_lists_are_joined_mappings_merged_and_the_including_file_counts(folder: Path) -> None:
    file = load_scenario(folder / "main.yaml")
    scenario = file.scenario
    assert scenario.name == "main-lab"
    assert [(fault.name, fault.at, fault.for_) for fault in scenario.faults] == [
        ("included", 1_000_000_000, 3_000_000_000),
        ("own", 8_000_000_000, 3_000_000_000),
    ]
    target = scenario.faults[1].target
    assert target is not None
    assert target.random == 4
    assert scenario.expect.recovery.max == 40_000_000
    assert scenario.expect.recovery.p95 == 50_000_000
    assert scenario.expect.availability is not None
    assert scenario.expect.no_loop is True
    assert scenario.timers.session_interval == 20_000_000
    assert file.parameters == {"hold": "3 s", "k": "4", "quiet": "true", "site": "lab", "start": "1 s"}


def test_what_is_set_counts_over_every_file(folder: Path) -> None:
    file = load_scenario(folder / "main.yaml", {"hold": "500 ms", "start": "2 s", "site": '"7"', "k": "6"})
    assert [(fault.at, fault.for_) for fault in file.scenario.faults] == [
        (2_000_000_000, 500_000_000),
        (8_000_000_000, 500_000_000),
    ]
    assert file.scenario.name == "main-7"
    assert file.parameters == {"hold": "500 ms", "k": "6", "quiet": "true", "site": '"7"', "start": "2 s"}


def test_an_error_in_an_included_file_names_that_file_its_line_and_its_column(folder: Path) -> None:
    (folder / "parts/faults.yaml").write_text(FAULTS.replace("at: ${start}", "at: 1").replace("tier: top", "tier: 9"))
    (folder / "main.yaml").write_text(MAIN.replace("max: 40 ms", "max: 40"))
    assert complaint(folder / "main.yaml") == [
        'main.yaml:9:19: 40 has no unit (write "40 ms" or "40 s")',
        'parts/faults.yaml:8:9: 1 has no unit (write "1 ms" or "1 s")',
    ]


def test_a_wrong_value_that_was_set_is_told_where_it_is_used_with_its_value(folder: Path) -> None:
    assert complaint(folder / "main.yaml", {"hold": "5", "hodl": "3 s"}) == [
        'main.yaml:4:1: --set hodl: there is no parameter "hodl" (did you mean "hold"?)',
        'main.yaml:7:87: 5 has no unit (write "5 ms" or "5 s"; ${hold} is 5)',
        'parts/faults.yaml:9:10: 5 has no unit (write "5 ms" or "5 s"; ${hold} is 5)',
    ]


def test_a_file_included_by_two_counts_once(folder: Path) -> None:
    (folder / "main.yaml").write_text(MAIN.replace("parts/faults.yaml", "[parts/timers.yaml, parts/faults.yaml]"))
    assert len(load_scenario(folder / "main.yaml").scenario.faults) == 2


def test_editors_accept_parameters_wherever_a_value_stands() -> None:
    schema = schema_of("scenario")
    jsonschema.validate(yaml.safe_load(MAIN), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(MAIN.replace('"${k}"}, at', '"k"}, at')), schema)


@pytest.mark.parametrize("value", ["3 s", "", "7", "true", "a: b", "null", "2026-12-02", 7, -1, 0.5, True, 'ü "x"'])
def test_the_recorded_text_of_a_value_gives_that_value_again(value: str | int | float | bool) -> None:
    again = scalar_of(text_of(value))
    assert (again, type(again)) == (value, type(value))


def test_a_run_records_its_parameters_and_how_to_set_them_again(folder: Path) -> None:
    done = erfs("run", "main.yaml", "--set", "hold=500 ms", "--set", "quiet=false", "--out", "out", folder=folder)
    assert done.returncode in (0, 1), done.stderr
    timeline = read_timeline(read(folder / "out/journal.jsonl"))
    assert timeline.header["parameters"]["hold"] == "500 ms"
    assert timeline.header["expectations"]["is_loop_free"] is False
    # A journal with the whole plan needs no command line.
    assert replay_command(replace(timeline, has_plan=False)).endswith(
        "--seed 1 --set 'hold=500 ms' --set k=4 --set quiet=false --set site=lab --set 'start=1 s'"
    )


def test_plan_and_check_take_them_too(folder: Path) -> None:
    planned = erfs("plan", "main.yaml", "--set", "start=2 s", "--json", folder=folder)
    assert json.loads(planned.stdout)["faults"][0]["at_ns"] == 8_000_000_000
    refused = erfs("check", "main.yaml", "--set", "start=soon", folder=folder)
    assert refused.returncode == 64
    assert '${start} is "soon"' in refused.stderr
    misspelt = erfs("check", "main.yaml", "--set", "start", folder=folder)
    assert misspelt.returncode == 64
    assert '"start" is not NAME=VALUE' in misspelt.stderr
