"""The JSON Schema of run.json: ``run.schema.json`` beside this module, which is shipped with bench.

python -m bench.runs.schema > bench/runs/run.schema.json    # after a change of the types
check-jsonschema --schemafile bench/runs/run.schema.json results/*/run.json
"""

import sys

from bench.core.json_schema import json_schema
from bench.core.records import SCHEMA_VERSION
from bench.runs.document import RunDocument


def text() -> str:
    return json_schema(RunDocument, f"run.json of bench, schema version {SCHEMA_VERSION}")


if __name__ == "__main__":
    sys.stdout.write(text())
