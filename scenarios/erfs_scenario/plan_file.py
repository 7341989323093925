"""How is a plan written down, so that it runs again anywhere without its scenario? And how is it read from a journal?

Rule 1: nothing is left out: reading what was written gives an equal plan, which gives the same journal, byte for byte.
Rule 2: the file's form is that of `Plan` itself, by its annotations: a field added there is in the file without a word here.
Rule 3: what is read is judged before it runs: whatever a plan may not be is told, all at once.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, Final, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from erfs.errors import ConfigError, FabricError, Problem
from erfs.fabric import Fabric, Link, Node
from erfs.faults import LINK_KINDS, NODE_KINDS, ONE_ENDED, Fault, FaultKind
from erfs.units import PPM
from erfs_scenario.demands import DemandSet
from erfs_scenario.plan import Plan

PLANNED: Final = "run_planned"
"""The journal's record with the whole plan, right after ``run_started``."""
FORMAT: Final = "erfs-plan-1"
_AGAIN: Final = "run its scenario again with this version"


class _Form(BaseModel):
    # What it forbids it forbids in the dataclasses of the fields, too.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class _FabricForm(_Form):
    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]


@cache
def _form() -> type[BaseModel]:
    """Return the model of a plan file: the fields of `Plan`, its fabric as nodes and links."""
    hints = get_type_hints(Plan) | {"fabric": _FabricForm}
    parts: dict[str, Any] = {}
    for item in fields(Plan):
        default: Any = ...
        if item.default is not MISSING:
            default = item.default
        elif item.default_factory is not MISSING:
            default = Field(default_factory=item.default_factory)
        parts[item.name] = (hints[item.name], default)
    return create_model("PlanFile", __base__=_Form, **parts)


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return *plan* as plain JSON values. Cost: O(nodes + links + listed demands + faults)."""
    fabric = plan.fabric
    values = {item.name: getattr(plan, item.name) for item in fields(Plan)}
    values["fabric"] = _FabricForm(
        name=fabric.name, nodes=tuple(fabric.nodes.values()), links=tuple(fabric.links.values())
    )
    return {"format": FORMAT} | _form()(**values).model_dump(mode="json")


def plan_of(data: Any, source: str) -> Plan:
    """
    Return the plan that `plan_json` gave *data* for.

    Raises:
        ConfigError: not such data, or a plan that cannot run; all problems at once, *source* is where it is from.
    """
    plan = _read(data, source)
    if problems := [Problem(0, message) for message in _unsound(plan)]:
        raise ConfigError(source, problems)
    return plan


def _read(data: Any, source: str) -> Plan:
    """Return the plan in *data*, sound or not. Raises ConfigError if there is none."""
    if not isinstance(data, dict) or "format" not in data:
        raise ConfigError(source, [Problem(0, f'not a plan: expected "format": "{FORMAT}"')])
    if data["format"] != FORMAT:
        message = f'format {json.dumps(data["format"])}: this version reads "{FORMAT}"'
        raise ConfigError(source, [Problem(0, message, suggestion="use the version that wrote it")])
    try:
        form = _form()(**{name: value for name, value in data.items() if name != "format"})
    except ValidationError as error:
        found = [
            Problem(0, f"{'.'.join(map(str, one['loc']))}: {one['msg'][:1].lower()}{one['msg'][1:]}")
            for one in error.errors()
        ]
        raise ConfigError(source, found) from None
    values = {item.name: getattr(form, item.name) for item in fields(Plan)}
    part = values["fabric"]
    try:
        return Plan(**values | {"fabric": Fabric(part.nodes, part.links, name=part.name)})
    except FabricError as error:
        raise ConfigError(source, [Problem(0, f"fabric: {error}")]) from None


def _unsound(plan: Plan) -> Iterator[str]:
    """Yield what no plan that a scenario compiles to would say."""
    if not 0 <= plan.measure_from_ns <= plan.duration_ns:
        yield f"measure_from_ns {plan.measure_from_ns}: expected 0 to duration_ns, {plan.duration_ns}"
    for values in (plan.timing, plan.timers):
        for item in fields(values):
            value = getattr(values, item.name)
            is_needed = item.name.startswith(("session_", "ack_", "leader_refresh"))
            if value < is_needed:
                yield f"{item.name} {value}: expected {'1' if is_needed else '0'} or more"
    for name, count in Counter(fault.id for fault in plan.faults).items():
        if count > 1:
            yield f'fault "{name}": there are {count} of that name'
    for fault in plan.faults:
        for message in _unsound_fault(plan, fault):
            yield f'fault "{fault.id}": {message}'
    for demands in plan.demands:
        for node in sorted(_named(demands) - plan.fabric.nodes.keys()):
            yield f'demands "{demands.name}": "{node}" is not in fabric "{plan.fabric.name}"'
    if not any(demands.count for demands in plan.demands):
        yield "demands: there are none"


def _unsound_fault(plan: Plan, fault: Fault) -> Iterator[str]:
    fabric = plan.fabric
    if not 0 <= fault.at_ns < fault.end_at_ns <= plan.duration_ns:
        yield f"from {fault.at_ns} to {fault.end_at_ns} ns: expected to begin, and to end by {plan.duration_ns}"
    strangers = {*fault.links} - fabric.links.keys() | {*fault.nodes} - fabric.nodes.keys()
    for name in sorted(strangers):
        yield f'"{name}" is not in fabric "{fabric.name}"'
    has_links, has_nodes = fault.kind in LINK_KINDS, fault.kind in NODE_KINDS
    if bool(fault.links) != has_links:
        yield f"{fault.kind.value} {'needs' if has_links else 'has no'} links"
    may_lack = not has_nodes or fault.kind is FaultKind.BUS_PARTITION
    if (fault.nodes and not has_nodes) or (not fault.nodes and not may_lack):
        yield f"{fault.kind.value} {'needs' if has_nodes else 'has no'} nodes"
    if fault.kind in ONE_ENDED and not strangers:
        ends = [fabric.links[link].ends for link in fault.links]
        if len(ends) != len(fault.ends) or any(one not in both for one, both in zip(fault.ends, ends, strict=True)):
            yield f"{fault.kind.value} needs one end of each of its links, in their order"
    if fault.kind is FaultKind.LINK_FLAP and fault.period_ns < 2:
        yield f"period_ns {fault.period_ns}: expected 2 or more"
    if fault.kind is FaultKind.DRAIN and fault.strength not in ("hard", "soft"):
        yield f'strength "{fault.strength}": expected "hard" or "soft"'
    if not 0 <= fault.loss_ppm <= PPM:
        yield f"loss_ppm {fault.loss_ppm}: expected 0 to {PPM}"


def _named(demands: DemandSet) -> set[str]:
    return {*demands.endpoints, *(node for pair in demands.pairs for node in pair)}


def write_plan(plan: Plan, path: Path) -> None:
    """Write *plan* to *path*, a JSON file for people and for `erfs replay`. Raises ConfigError if it cannot be written."""
    text = json.dumps(plan_json(plan), indent=1, ensure_ascii=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigError(str(path), [Problem(0, f"cannot be written: {error.strerror or error}")]) from None


def load_plan(path: Path) -> tuple[Plan, dict[str, Any] | None]:
    """
    Return the plan in *path*, a plan file or a journal, and the journal's ``run_started``, None of a plan file.

    Raises:
        ConfigError: the file is neither, is of another version, or is of a run that did not write down its plan.
    """
    try:
        with path.open("rb") as file:
            first, second = _value_of(file.readline()), file.readline()
        if not isinstance(first, dict) or first.get("event") != "run_started":
            return plan_of(_whole(path), str(path)), None
    except OSError as error:
        advice = "name journal.jsonl in it" if path.is_dir() else ""
        raise ConfigError(
            str(path), [Problem(0, f"cannot be read: {error.strerror or error}", suggestion=advice)]
        ) from None
    if not second.endswith(b"\n"):
        raise ConfigError(
            str(path), [Problem(2, "this journal breaks off before the plan of its run", suggestion=_AGAIN)]
        )
    planned = _value_of(second)
    if not isinstance(planned, dict) or planned.get("event") != PLANNED:
        raise ConfigError(str(path), [Problem(2, "expected the plan of this journal's run", suggestion=_AGAIN)])
    return plan_of(planned.get("plan"), f"{path}:2"), first


def _value_of(line: bytes) -> Any:
    """Return the JSON value in *line*, None if there is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _whole(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        message = f"neither a journal nor a plan: {error}"
        raise ConfigError(
            str(path), [Problem(0, message, suggestion="name what `erfs run` or `erfs shrink` wrote")]
        ) from None
