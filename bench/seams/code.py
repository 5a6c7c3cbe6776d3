"""A checksum of what the code of a file does: it says which training a built-in workload was in that version of bench.

The idea is that of airspeed velocity, where a benchmark's version is by default the hash of its code.
"""

import ast
import os
from typing import TypeGuard

ASIDE = ("WORKLOAD", "check", "recipe")
"""Parts of a workload's file that do not train: its declaration (a run records settings, batch and unit), which
settings it refuses, and how it is written down as a script."""

BESIDE = "bench.workloads."


def code_sha256(file: str) -> str:
    """SHA-256 (hex) of the syntax tree without comments, docstrings, layout, and :data:`ASIDE`. That of a workload
    beside it from which it imports something counts, too.

    Every Python has the same for the same code. So fields that are empty do not count, of which newer ones have more,
    nor do empty parts of f-strings, which 3.12 has.
    """
    import hashlib

    from bench.core.records import canonical_json

    with open(file, encoding="utf-8") as text:
        tree = ast.parse(text.read())
    named = [(node, [node, *getattr(node, "targets", ())]) for node in tree.body]  # a function, or what is assigned
    tree.body = [
        node
        for node, all_of in named
        if not {getattr(one, "name", getattr(one, "id", "")) for one in all_of} & {*ASIDE}
    ]
    imported = dict.fromkeys(node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom))
    names = [module.removeprefix(BESIDE) for module in imported if module.startswith(BESIDE)]
    beside = [code_sha256(os.path.join(os.path.dirname(file), f"{name}.py")) for name in names]
    return hashlib.sha256("".join((canonical_json(_plain(tree)), *beside)).encode()).hexdigest()


def _plain(node: object) -> object:
    if isinstance(node, list):
        return [_plain(one) for one in node if not (isinstance(one, ast.Expr) and _is_text(one.value))]
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.JoinedStr):
        node.values = [part for part in node.values if not (_is_text(part) and part.value == "")]
    fields = {name: _plain(value) for name, value in ast.iter_fields(node) if value is not None and value != []}
    return {"node": type(node).__name__, **fields}


def _is_text(node: object) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
