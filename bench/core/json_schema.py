"""The JSON Schema (draft 2020-12) of a dataclass, from the same type hints by which :mod:`bench.core.codec` reads it.

Every field is required, and no other is allowed, unless the class has a field ``more``. What holds for every number
and text (:data:`bench.core.codec.LARGEST`, :data:`bench.core.codec.LONGEST_TEXT`) is not repeated.
"""

import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, is_typeddict

from bench.core.codec import REST, AnyOf, Hint, Named, hints

Schema = dict[str, Any]

PLAIN: dict[Hint, Schema] = {
    Any: {},
    NoneType: {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
}


def json_schema(kind: type, title: str) -> str:
    """The schema of ``kind`` as text: a definition for each class that it is made of, and a line for each field."""
    definitions: dict[str, Schema] = {}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **_schema(kind, definitions)}
    classes = []
    for name, one in sorted(definitions.items()):
        lines = ",\n".join(f"  {json.dumps(field)}: {json.dumps(of)}" for field, of in one.pop("properties").items())
        classes.append(f' "{name}": {json.dumps(one)[:-1]}, "properties": {{\n{lines}\n }}}}')
    return json.dumps(head)[:-1] + ', "$defs": {\n' + ",\n".join(classes) + "\n}}\n"


def _schema(kind: Any, definitions: dict[str, Schema]) -> Schema:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated and isinstance(inner[1], Named):
        named = {name: _schema(one, definitions) for name, one in inner[1].types().items()}
        return {"type": "object", "properties": named, "additionalProperties": False}
    if origin is Annotated and isinstance(inner[1], AnyOf):
        return {"anyOf": [_schema(one, definitions) for one in inner[1].types()]}
    if origin is Annotated:
        return _schema(inner[0], definitions) | dict(inner[1].schema)
    if origin in (Union, UnionType):
        kinds = [_schema(one, definitions) for one in inner]
        names = [one.get("type") for one in kinds if len(one) == 1]
        return {"type": names} if len(names) == len(kinds) and None not in names else {"anyOf": kinds}
    if origin is tuple:
        return {"type": "array", "items": _schema(inner[0], definitions)}
    if origin in (Mapping, dict):
        return {"type": "object", "additionalProperties": _schema(inner[1], definitions)}
    if not is_dataclass(kind) and not is_typeddict(kind):
        return dict(PLAIN[kind])
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # first: a class may have a field of its own kind
        properties = {name: _schema(hint, definitions) for name, hint in hints(kind).items() if name != REST}
        definitions[kind.__name__] = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": REST in hints(kind),
        }
    return {"$ref": f"#/$defs/{kind.__name__}"}
