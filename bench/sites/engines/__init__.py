"""The engines that start one bench on each of several hosts, one file each: how to write and submit a job for each.

Specifications are written as people write them: block style, in order, with the command and the next steps on top.
"""

import json
import re
import shlex
from collections.abc import Mapping

from bench.seams.engine import Asked

Yaml = Mapping[str, object]

PLAIN = re.compile(r"[A-Za-z~/][\w./~-]*", re.ASCII)  # a string in YAML without quotes

NO_STRING = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", "~"}
"""Plain words that a parser of YAML 1.1, such as kubectl's, does not read as strings."""


def as_yaml(document: Yaml) -> str:
    """Mappings, lists, strings, whole numbers and None as YAML. Mappings are never empty; other lists take one line."""
    return "\n".join(_mapping(document)) + "\n"


def _mapping(document: Yaml) -> list[str]:
    lines = []
    for key, value in document.items():
        if isinstance(value, Mapping):
            lines += [f"{key}:", *(f"  {line}" for line in _mapping(value))]
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            lines += [f"{key}:"]
            for each in value:
                first, *rest = _mapping(each)
                lines += [f"  - {first}", *(f"    {line}" for line in rest)]
        elif isinstance(value, str) and "\n" in value:
            lines += [f"{key}: |", *(f"  {line}" for line in value.splitlines())]
        else:
            lines.append(f"{key}: {_scalar(value)}")
    return lines


def _scalar(value: object) -> str:
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in NO_STRING:
        return value
    return json.dumps(value, ensure_ascii=False)


def header(asked: Asked, **commands: str) -> str:
    """The command and the next steps, as comments."""
    lines = [shlex.join(("python", "-m", "bench", *asked.run)), *(f"{what}: {each}" for what, each in commands.items())]
    return "".join(f"# {line}\n" for line in lines)
