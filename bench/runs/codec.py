"""JSON values to frozen dataclasses and back, by their type hints.

Every field must be there and no other, unless the class has a field ``more``: that one takes what has no field of its
own, and is written flat among the others.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

REST = "more"


class Damaged(ValueError):
    """A value is missing, unknown or of another type; says where: ``launches[2].status is missing``."""


def decode(kind: type[T], value: Any, where: str = "") -> T:
    """``value`` as ``kind``; raises :class:`Damaged`, which names ``where``."""
    found: T = _decode(kind, value, where)
    return found


def encode(value: Any) -> Any:
    """The JSON value of a dataclass, or of what holds some."""
    if is_dataclass(value) and not isinstance(value, type):
        found: dict[str, Any] = {}
        for name in _hints(type(value)):
            part = encode(getattr(value, name))
            found |= part if name == REST else {name: part}
        return found
    if isinstance(value, Mapping):
        return {str(name): encode(one) for name, one in value.items()}
    return [encode(one) for one in value] if isinstance(value, list | tuple) else value


def _decode(kind: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any or (value is None and type(None) in inner):
        return value
    if origin in (Union, UnionType):
        if type(value) in inner:
            return value
        return _decode(_closest([one for one in inner if one is not type(None)], value), value, where)
    if origin is tuple:
        _check(isinstance(value, list | tuple), where, "a list", value)
        return tuple(_decode(inner[0], one, f"{where}[{place}]") for place, one in enumerate(value))
    if origin in (Mapping, dict) or is_dataclass(kind):
        _check(isinstance(value, dict), where, "an object", value)
        if origin in (Mapping, dict):
            return {name: _decode(inner[1], one, f"{where}[{name!r}]") for name, one in value.items()}
        return _object(kind, value, f"{where}." if where else "")
    _check(type(value) in ((int, float) if kind is float else (kind,)), where, kind.__name__, value)
    return value


def _object(kind: Any, value: dict[str, Any], prefix: str) -> Any:
    hints = _hints(kind)
    rest = {name: one for name, one in value.items() if name not in hints}
    if rest and REST not in hints:
        raise Damaged(f"{prefix}{next(iter(rest))} is unknown")
    known = {name: value[name] for name in hints if name in value} | ({REST: rest} if REST in hints else {})
    for name in hints:
        if name not in known:
            raise Damaged(f"{prefix}{name} is missing")
    return kind(**{name: _decode(hint, known[name], f"{prefix}{name}") for name, hint in hints.items()})


def _closest(kinds: list[Any], value: Any) -> Any:
    """Of several classes the one that has the fewest fields too many or too few; else the first kind."""
    keys = set(value) if isinstance(value, dict) else set()
    classes: list[Any] = [kind for kind in kinds if is_dataclass(kind)]
    return min(classes, key=lambda kind: len(keys ^ set(_hints(kind))), default=kinds[0])


def _check(good: bool, where: str, wanted: str, value: Any) -> None:
    if not good:
        raise Damaged(f"{where or 'the document'} must be {wanted}, not {type(value).__name__}")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
