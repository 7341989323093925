"""Write the JSON Schemas that others rely on: of a scenario file, report.json and campaign.json. Run by `make docs`.

Rule 1: the models are the source; the files are generated and never edited.
Rule 2: editors see a file before its parameters are put in: wherever a value is not just any text, "${name}" may stand instead.
"""

import json
from pathlib import Path
from typing import Any, Final

from erfs_scenario.campaign_report import CampaignReport
from erfs_scenario.report import Report
from erfs_scenario.schema import Scenario

FOLDER: Final = Path(__file__).parent
SCHEMAS: Final = {
    "scenario": "scenario.schema.json",
    "report": "report.schema.json",
    "campaign": "campaign.schema.json",
}


_PARAMETER: Final = {"type": "string", "pattern": r"\$\{[\w-]+\}", "description": "A parameter of the scenario."}
_NOT_FILLED_IN: Final = ("parameters", "includes")


def schema_of(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of *kind*, one of `SCHEMAS`."""
    if kind == "scenario":
        schema = Scenario.model_json_schema()
        apart = {name: schema["properties"][name] for name in _NOT_FILLED_IN}
        schema = _with_parameters(schema)
        schema["properties"] |= apart
        schema["$defs"]["parameter"] = _PARAMETER
    else:
        schema = (Report if kind == "report" else CampaignReport).model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


def _with_parameters(schema: dict[str, Any]) -> dict[str, Any]:
    """Return *schema* with a use of a parameter allowed for every single value in it."""
    found = dict(schema)
    for key in ("properties", "$defs"):
        if key in found:
            found[key] = {name: _with_parameters(part) for name, part in found[key].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(found.get(key), dict):
            found[key] = _with_parameters(found[key])
    for key in ("anyOf", "oneOf"):
        if key in found:
            found[key] = [_with_parameters(part) for part in found[key]]
    is_single = found.get("type") in ("string", "integer", "number", "boolean") or "enum" in found or "const" in found
    if not is_single or (found.keys() <= {"type", "title", "description", "default"} and found["type"] == "string"):
        return found
    about = {key: found.pop(key) for key in ("title", "description", "default") if key in found}
    return about | {"anyOf": [found, {"$ref": "#/$defs/parameter"}]}


def text_of(kind: str) -> str:
    """Return the schema file's text."""
    return json.dumps(schema_of(kind), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    for kind, name in SCHEMAS.items():
        (FOLDER / name).write_text(text_of(kind))
