"""Write the JSON Schemas that others rely on: of a scenario file and of report.json. Run by `make docs`.

Rule 1: the models are the source; the files are generated and never edited.
"""

import json
from pathlib import Path
from typing import Any, Final

from erfs_scenario.report import Report
from erfs_scenario.schema import Scenario

FOLDER: Final = Path(__file__).parent
SCHEMAS: Final = {"scenario": "scenario.schema.json", "report": "report.schema.json"}


def schema_of(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of *kind*, "scenario" or "report"."""
    schema = Scenario.model_json_schema() if kind == "scenario" else Report.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


def text_of(kind: str) -> str:
    """Return the schema file's text."""
    return json.dumps(schema_of(kind), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    for kind, name in SCHEMAS.items():
        (FOLDER / name).write_text(text_of(kind))
