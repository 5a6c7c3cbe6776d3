"""The JSON Schema of run.json: ``run.schema.json`` beside this module, which is shipped with bench.

python -m bench.runs.schema > bench/runs/run.schema.json    # after a change of the types
check-jsonschema --schemafile bench/runs/run.schema.json results/*/run.json
python -m bench.runs.schema --dictionary > docs/data.md     # the same for people, with the columns of all tables
"""

import ast
import inspect
import json
import re
import sys
from itertools import pairwise
from typing import Any

from bench.core import job, records
from bench.core.json_schema import Schema, json_schema
from bench.core.records import SCHEMA_VERSION
from bench.runs import document, experiments, launches
from bench.runs.document import RunDocument
from bench.runs.tables import COLUMNS

UNITS = {
    "ms": "milliseconds",
    "s": "seconds",
    "ns": "nanoseconds",
    "mib": "MiB",
    "kib": "KiB",
    "gib": "GiB",
    "w": "watts",
    "mj": "millijoules",
    "mhz": "MHz",
    "c": "degrees Celsius",
    "percent": "percent",
    "percents": "percent",
}
"""Of what a name ends in."""
CLOCKS = {"start_ns": "CLOCK_MONOTONIC of `host`", "t_ns": "CLOCK_MONOTONIC of `host`"}
HEAD = """# Data dictionary

Every file of a run folder, with its columns and fields. This page is generated
(`python -m bench.runs.schema --dictionary`) from the types and tables by which bench reads and writes them. What is
unknown is null, never 0. Names end in their units. `bench.load` gives the tables as pandas frames.

"""


def text() -> str:
    return json_schema(RunDocument, f"run.json of bench, schema version {SCHEMA_VERSION}")


def dictionary() -> str:
    """The data dictionary as Markdown."""
    parts = [HEAD]
    docs = _strings_below(inspect.getsource(records))
    for table, columns in COLUMNS.items():
        constant = next(name for name, value in vars(records).items() if value is columns)
        parts += [f"## {table}.parquet\n\n{_markdown(docs[constant])}\n\n"]
        parts += ["| column | type | unit | clock | null |\n|---|---|---|---|---|\n"]
        for name, kind in columns.items():
            null = "never" if name in records.ALWAYS_KNOWN[table] else "if unknown"
            parts.append(f"| `{name}` | {kind} | {_unit(name)} | {CLOCKS.get(name, '')} | {null} |\n")
        parts.append("\n")
    parts.append(
        "## run.json\n\nOne section for each kind of object; `utc` is the host's clock. A run is a `RunDocument`.\n\n"
    )
    for name, kind in sorted(json.loads(text())["$defs"].items(), key=lambda item: item[0] != "RunDocument"):
        sources: list[Any] = [getattr(module, name, None) for module in (document, launches, experiments, records, job)]
        docstrings = [one.__doc__ for one in sources if one is not None][:1]
        text_of = "".join(_markdown(one) + "\n\n" for one in docstrings if one and not one.startswith((name, "dict(")))
        parts += [f"### {name}\n\n{text_of}", "| field | type | unit | null |\n|---|---|---|---|\n"]
        for field, of in kind["properties"].items():
            types = _type(of)
            null = "if unknown" if "null" in types else "never"
            kinds = " or ".join(one for one in types if one != "null")
            parts.append(f"| `{field}` | {kinds} | {_unit(field)} | {null} |\n")
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


def _strings_below(source: str) -> dict[str, str]:
    """By constant of a module the string below it."""
    body = ast.parse(source).body
    return {
        before.targets[0].id: inspect.cleandoc(below.value.value)
        for before, below in pairwise(body)
        if isinstance(before, ast.Assign) and isinstance(before.targets[0], ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


def _markdown(docstring: str) -> str:
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", inspect.cleandoc(docstring)).replace("``", "`")
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _unit(name: str) -> str:
    return UNITS.get(name.rpartition("_")[2], "") if "_" in name else ""


def _type(of: Schema) -> list[str]:
    """The types that a value may have, as people read them."""
    if "anyOf" in of:
        return list(dict.fromkeys(name for one in of["anyOf"] for name in _type(one)))
    if "$ref" in of:
        return [of["$ref"].rpartition("/")[2]]
    kinds = of.get("type", "any value")
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    if "array" in names:
        names[names.index("array")] = f"list of {' or '.join(_type(of.get('items', {})))}"
    if "object" in names and isinstance(of.get("additionalProperties"), dict):
        names[names.index("object")] = f"{' or '.join(_type(of['additionalProperties']))} by name"
    return [f"one of {', '.join(of['enum'])}"] if "enum" in of and "null" not in names else names


if __name__ == "__main__":
    sys.stdout.write(dictionary() if sys.argv[1:] == ["--dictionary"] else text())
