"""A plan that was written down and read again is the same plan, whatever `Plan` has; what is no plan is told of with all that is wrong."""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

import pytest

from erfs.cli.run import fabric_for
from erfs.errors import ConfigError
from erfs.fabric import Fabric
from erfs.journal import line_of
from erfs_scenario import plan_file
from erfs_scenario.plan import Plan, compile_plan
from erfs_scenario.plan_file import PLANNED, load_plan, plan_json, plan_of, write_plan
from erfs_scenario.schema import load_scenario

LIBRARY = Path(__file__).parents[2] / "scenarios" / "library"
SMALL = LIBRARY / "rate-limit.yaml"


def plan_from(path: Path) -> Plan:
    file = load_scenario(path)
    return compile_plan(file, fabric_for(file, None, "kernel"))


@pytest.mark.parametrize("path", sorted(LIBRARY.glob("*.yaml")), ids=lambda path: str(path.stem))
def test_every_plan_of_the_library_is_the_same_after_reading(path: Path) -> None:
    plan = plan_from(path)
    again = plan_of(json.loads(json.dumps(plan_json(plan))), "again")

    assert again == plan
    assert list(again.fabric.links) == list(plan.fabric.links)
    assert plan_json(again) == plan_json(plan)


def unlike_the_default(hint: Any, default: Any = None) -> Any:
    """Return a value of the type *hint* that is not *default*, with every field of every dataclass in it filled likewise."""
    plain: dict[Any, Any] = {bool: default is not True, int: 7, float: 7.5, str: "seven"}
    if hint in plain:
        return plain[hint]
    if isinstance(hint, NewType):
        return unlike_the_default(hint.__supertype__)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return list(hint)[-1]
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        hints = get_type_hints(hint)
        defaults = {item.name: item.default for item in fields(hint)} if is_dataclass(hint) else hint._field_defaults
        names = defaults if is_dataclass(hint) else hint._fields
        return hint(**{name: unlike_the_default(hints[name], defaults.get(name)) for name in names})
    origin, parts = get_origin(hint), [part for part in get_args(hint) if part is not type(None)]
    if origin is Literal:
        return parts[-1]
    if origin in (UnionType, Union):
        return unlike_the_default(parts[0])
    if origin is tuple:
        return tuple(unlike_the_default(part) for part in parts if part is not Ellipsis)
    if origin is Mapping:
        return {unlike_the_default(parts[0]): unlike_the_default(parts[1])}
    raise AssertionError(f"say here what a {hint} is that nobody has by default")


def test_no_field_is_forgotten_whatever_is_added_to_a_plan_and_to_what_it_is_made_of(fat_tree: Fabric) -> None:
    """Values are made from the annotations, so whoever adds a field need not come here. Sevens everywhere are no plan to run."""
    hints = get_type_hints(Plan)
    values = {
        item.name: unlike_the_default(hints[item.name], item.default) for item in fields(Plan) if item.name != "fabric"
    }
    plan = Plan(fabric=fat_tree, **values)

    for item in fields(Plan):
        assert item.default != getattr(plan, item.name), item.name
    assert plan_file._read(json.loads(json.dumps(plan_json(plan))), "again") == plan


def test_what_cannot_be_known_is_refused_all_at_once_wherever_it_is() -> None:
    data = plan_json(plan_from(SMALL))
    data["faults"][0]["kind"] = "meteor"
    data["faults"][0]["colour"] = "red"
    data["timers"]["patience_ns"] = 7
    data["seed"] = "one"
    data["weather"] = "fine"
    with pytest.raises(ConfigError) as told:
        plan_of(data, "p.json")

    places = sorted(problem.message.split(":")[0] for problem in told.value.problems)
    assert places == ["faults.0.colour", "faults.0.kind", "seed", "timers.patience_ns", "weather"]


def change_ends(data: dict[str, Any]) -> None:
    data["faults"][0] |= {"kind": "link_down", "ends": [["elsewhere", "1"]]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data["faults"][0].update(links=["a:1|b:1"]), '"a:1|b:1" is not in fabric "fat-tree k=4"'),
        (lambda data: data["faults"][0].update(links=[]), "rate_limit needs links"),
        (lambda data: data["faults"][0].update(nodes=["pod0-edge0"]), "rate_limit has no nodes"),
        (lambda data: data["faults"][0].update(end_at_ns=1), "expected to begin, and to end by"),
        (lambda data: data["faults"][0].update(loss_ppm=1_000_001), "loss_ppm 1000001: expected 0 to 1000000"),
        (lambda data: data["faults"][0].update(kind="node_down", links=[]), "node_down needs nodes"),
        (
            lambda data: data["faults"][0].update(kind="drain", links=[], nodes=["pod0-edge0"]),
            'strength "": expected "hard" or "soft"',
        ),
        (change_ends, "link_down needs one end of each of its links, in their order"),
        (lambda data: data["faults"].append(data["faults"][0]), "there are 2 of that name"),
        (lambda data: data.update(measure_from_ns=-1), "measure_from_ns -1: expected 0 to duration_ns"),
        (lambda data: data["timing"].update(bus_ns=-1), "bus_ns -1: expected 0 or more"),
        (lambda data: data["timers"].update(session_interval_ns=0), "session_interval_ns 0: expected 1 or more"),
        (lambda data: data["demands"][0].update(endpoints=["nobody"]), '"nobody" is not in fabric "fat-tree k=4"'),
        (lambda data: data.update(demands=[]), "demands: there are none"),
        (lambda data: data["fabric"]["nodes"].pop(), "fabric: "),
    ],
)
def test_a_plan_that_cannot_run_is_refused_before_it_does(
    change: Callable[[dict[str, Any]], None], message: str
) -> None:
    data = plan_json(plan_from(SMALL))
    change(data)
    with pytest.raises(ConfigError) as told:
        plan_of(data, "p.json")
    assert any(message in problem.message for problem in told.value.problems), str(told.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "neither a journal nor a plan"),
        ("name: yaml", r"neither a journal nor a plan: .* \(name what `erfs run` or `erfs shrink` wrote\)"),
        ("[" * 100_000, "neither a journal nor a plan"),
        ("[1, 2]", 'not a plan: expected "format": "erfs-plan-1"'),
        (
            '{"format": "erfs-plan-9"}',
            r'"erfs-plan-9": this version reads "erfs-plan-1" \(use the version that wrote it',
        ),
        ('{"format": "erfs-plan-1"}', "name: field required"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_plan(path)


def test_a_folder_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"name journal\.jsonl in it"):
        load_plan(tmp_path)


def test_a_journal_has_its_plan_in_its_second_line(tmp_path: Path) -> None:
    plan = plan_from(SMALL)
    path = tmp_path / "journal.jsonl"
    started = line_of(0, "run_started", plan.header("kernel"))
    planned = line_of(0, PLANNED, {"plan": plan_json(plan)})
    path.write_bytes(started + planned)
    again, header = load_plan(path)

    assert again == plan
    assert header == json.loads(started)

    path.write_bytes(started + planned[:-100])
    with pytest.raises(ConfigError, match=r"journal.jsonl:2: this journal breaks off before the plan of its run \(run"):
        load_plan(path)
    path.write_bytes(started + line_of(1, "measurement_started", {}))
    with pytest.raises(
        ConfigError, match=r"journal.jsonl:2: expected the plan of this journal's run \(run its scenario"
    ):
        load_plan(path)


def test_a_file_is_written_where_there_is_no_folder_yet_and_where_none_can_be_it_is_told(tmp_path: Path) -> None:
    plan = plan_from(SMALL)
    path = tmp_path / "new" / "plan.json"
    write_plan(plan, path)

    assert load_plan(path) == (plan, None)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_plan(plan, path / "below")
