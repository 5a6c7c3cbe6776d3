"""JSON values to frozen dataclasses and back, by their type hints.

Every field must be there and no other, unless the class has a field ``more``: that one takes what has no field of its
own, and is written flat among the others. A function is no JSON value: it is left out, and has its default when it
comes back. ``Annotated[float, Between(0, 1)]`` says which values a field may have, ``Annotated[str, ("cpu", "cuda")]``
which texts, and a class with a method ``contradiction`` what its fields may not say together.

A text that is written is valid UTF-8 and not longer than :data:`LONGEST_TEXT`, whatever a training printed; one that is
read must be.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

T = TypeVar("T")
Hint = Any  # a type, or what typing has for one
Decoder = Callable[[object], Any]

REST = "more"
MOMENT = "%Y-%m-%dT%H:%M:%SZ"
NUMBERS = {int: (int,), float: (float, int)}
LARGEST = {int: 2**63 - 1, float: 1e100}  # what is larger measures nothing, and its square would be infinite
LONGEST_TEXT = 1 << 16
CUT = " [...]"  # the end of a text that was longer


class Damaged(ValueError):
    """A value is missing, unknown or of another type; says where: ``launches[2].status is missing``."""

    def __init__(self, problem: str, where: str = "") -> None:
        super().__init__(problem)
        self.problem, self.where = problem, where

    def __str__(self) -> str:
        return f"{self.where or 'the document'} {self.problem}"

    def within(self, part: str) -> "Damaged":
        self.where = f"{part}.{self.where}" if self.where and not self.where.startswith("[") else part + self.where
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """Which values a field may have: as a function, in words, and in a JSON Schema."""

    allows: Callable[[Any], bool]
    words: str
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Between:
    """Numbers from ``least`` to ``most``, both included."""

    least: float
    most: float

    @property
    def schema(self) -> Mapping[str, object]:
        return {"minimum": self.least, "maximum": self.most}


def OneOf(names: tuple[str, ...]) -> Bound:
    return Bound(names.__contains__, f"one of {', '.join(names)}", {"enum": list(names)})


def Length(most: int) -> Bound:
    """Texts of at most this many characters."""
    return Bound(lambda text: len(text) <= most, f"at most {most:,} characters long", {"maxLength": most})


def Moment() -> Bound:
    """Times in UTC as ISO 8601 writes them, such as 2024-05-01T12:00:00Z."""

    def allows(text: str) -> bool:
        try:
            return datetime.fromisoformat(text).strftime(MOMENT) == text
        except ValueError:
            return False

    schema = {"pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"}
    return Bound(allows, "a time in UTC, such as 2024-05-01T12:00:00Z", schema)


@dataclass(frozen=True, slots=True)
class Named:
    """Objects by name, each of the type that ``types()`` has for its name."""

    types: Callable[[], Mapping[str, Hint]]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Of one of ``types()``, whichever is closest."""

    types: Callable[[], tuple[Hint, ...]]


def decode(kind: type[T], value: object, where: str = "") -> T:
    """``value`` as ``kind``; raises :class:`Damaged`, which names the place from ``where`` on."""
    try:
        decoded: T = _decoder(cast(Hint, kind))(value)
    except Damaged as error:
        raise (error.within(where) if where else error) from None
    except RecursionError:
        raise Damaged("is nested too deeply", where) from None
    return decoded


def encode(value: object) -> Any:
    """The JSON value of a dataclass, or of what holds some."""
    if value is None or type(value) in NUMBERS:
        return value
    if isinstance(value, str):
        return _printable(value)
    if isinstance(value, list | tuple):
        return [one if one is None or type(one) in NUMBERS else encode(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        parts: dict[str, object] = {}
        for name in hints(type(value)):
            part = encode(getattr(value, name))
            parts |= part if name == REST else {name: part}
        return parts
    if isinstance(value, Mapping):
        return {_printable(str(name)): encode(one) for name, one in value.items()}
    return value


def _printable(text: str) -> str:
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - len(CUT)] + CUT


@cache
def _decoder(kind: Any) -> Decoder:
    origin, inner = get_origin(kind), get_args(kind)
    if kind in (Any, object):
        return _anything
    if origin is Annotated and isinstance(inner[1], Named):
        return partial(_named, inner[1])
    if origin is Annotated and isinstance(inner[1], AnyOf):
        return partial(_either, inner[1].types())
    if origin is Annotated:
        bound = OneOf(inner[1]) if isinstance(inner[1], tuple) else inner[1]
        if isinstance(bound, Between):
            return partial(_number, NUMBERS[inner[0]], bound.least, bound.most)
        return partial(_bounded, _decoder(inner[0]), bound)
    if origin in (Union, UnionType) and len(inner) == 2 and type(None) in inner:  # as most are
        return partial(_optional, _decoder(inner[0] if inner[1] is type(None) else inner[1]))
    if origin in (Union, UnionType):
        return partial(_either, inner)
    if origin is tuple:
        each: Any = _decoder(inner[0])
        number = each.args[0] if getattr(each, "func", None) is _optional else each
        numeric = getattr(number, "func", None) is _number
        return partial(_numbers, each, number is not each, *number.args) if numeric else partial(_list, each)
    if origin in (Mapping, dict):
        return partial(_mapping, _decoder(inner[0]), _decoder(inner[1]))
    if _is_class(kind):
        return partial(_object, kind)
    if kind in NUMBERS:
        return partial(_number, NUMBERS[kind], -LARGEST[kind], LARGEST[kind])
    return _text if kind is str else partial(_exact, kind)


def _exact(kind: type, value: object) -> object:
    if type(value) is not kind:
        raise _other(kind.__name__, value)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _other("str", value)
    if len(value) > LONGEST_TEXT:
        raise Damaged(f"must be {Length(LONGEST_TEXT).words}")
    if not value.isascii() and value.encode("utf-8", "replace") != value.encode("utf-8", "surrogatepass"):
        raise Damaged("is not valid text: it has half a character")
    return value


def _number(kinds: tuple[type, ...], least: float, most: float, value: Any) -> Any:
    if type(value) not in kinds:
        raise _other(kinds[0].__name__, value)
    if not least <= value <= most:  # NaN is not, either
        if -LARGEST[kinds[0]] <= value <= LARGEST[kinds[0]]:
            raise Damaged(f"must be from {least:,} to {most:,}, not {json.dumps(value)[:40]}")
        raise Damaged("is not a number" if value != value else "is too large a number")
    return value


def _anything(value: object) -> object:
    """Any JSON value, with numbers that can be computed with."""
    if isinstance(value, dict):
        return _mapping(_text, _anything, value)
    if isinstance(value, list):
        return list(_list(_anything, value))
    kind: Any = type(value)
    return _decoder(kind)(value) if kind in (int, float, str) else value


def _bounded(plain: Decoder, bound: Bound, value: object) -> object:
    decoded = plain(value)
    if not bound.allows(decoded):
        raise Damaged(f"must be {bound.words}, not {json.dumps(decoded)[:40]}")
    return decoded


def _optional(plain: Decoder, value: object) -> object:
    return None if value is None else plain(value)


def _either(kinds: tuple[Hint, ...], value: object) -> object:
    """As the kind that ``value`` is of, of several classes the one that has the fewest fields too many or too few."""
    if value is None and type(None) in kinds:
        return None
    alike = [kind for kind in kinds if _plain(kind) is type(value)]
    if not alike and type(value) is int:
        alike = [kind for kind in kinds if _plain(kind) is float]
    if not alike:
        raise _other(" or ".join(_plain(kind).__name__ for kind in kinds), value)
    if len(alike) > 1 and isinstance(value, dict):
        alike.sort(key=lambda kind: len(set(value) ^ set(hints(kind))))
    return _decoder(alike[0])(value)


@cache
def _plain(kind: Hint) -> Any:
    """The class of JSON values that a kind of several is written as."""
    origin: Any = get_origin(kind)
    return dict if origin in (Mapping, dict) or _is_class(kind) else kind


def _list(inner: Decoder, value: object) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise _other("a list", value)
    decoded: list[object] = []
    try:
        decoded.extend(map(inner, value))  # up to the one that is damaged
    except Damaged as error:
        raise error.within(f"[{len(decoded)}]") from None
    return tuple(decoded)


def _numbers(
    each: Decoder, optional: bool, kinds: tuple[type, ...], least: float, most: float, value: object
) -> tuple[object, ...]:
    """A list of numbers, with ``optional`` also of None. They are looked at here: a history has a million of them."""
    if isinstance(value, list):
        for one in value:
            if not (least <= one <= most if type(one) in kinds else optional and one is None):
                break
        else:
            return tuple(value)
    return _list(each, value)


def _mapping(key: Decoder, inner: Decoder, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _other("an object", value)
    decoded = {}
    for name, one in value.items():
        try:
            named = key(name)
            decoded[named] = inner(one)
        except Damaged as error:
            raise error.within(f"[{name!r:.40}]") from None
    return decoded


def _named(kinds: Named, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _other("an object", value)
    types = kinds.types()
    for name in value:
        if name not in types:
            raise Damaged("is unknown", _safe(name))
    return {name: decode(types[name], one, name) for name, one in value.items()}


def _object(kind: Hint, value: object) -> object:
    if not isinstance(value, dict):
        raise _other("an object", value)
    decoders = _fields(kind)
    rest = {} if value.keys() == decoders.keys() else {name: value[name] for name in value if name not in decoders}
    if rest and REST not in decoders:
        raise Damaged("is unknown", _safe(next(iter(rest))))
    parts = {}
    for name, decoder in decoders.items():
        if name == REST:
            parts[name] = decoder(rest)
            continue
        if name not in value:
            raise Damaged("is missing", name)
        try:
            parts[name] = decoder(value[name])
        except Damaged as error:
            raise error.within(name) from None
    made = kind(**parts)
    problem = made.contradiction() if hasattr(kind, "contradiction") else None
    if problem:
        raise Damaged(problem)
    return made


def _other(wanted: str, value: object) -> Damaged:
    return Damaged(f"must be {wanted}, not {type(value).__name__}")


def _safe(name: str) -> str:
    return name if name.isidentifier() and name.isascii() else json.dumps(name)[:40]


@cache
def _fields(kind: Hint) -> dict[str, Decoder]:
    return {name: _decoder(hint) for name, hint in hints(kind).items()}


def _is_class(kind: Hint) -> bool:
    return is_dataclass(kind) or is_typeddict(kind)


@cache
def hints(kind: Hint) -> dict[str, Hint]:
    """The type of each field that is written, by its name."""
    types = get_type_hints(kind, include_extras=True)
    names = types if is_typeddict(kind) else [field.name for field in fields(kind)]
    return {name: types[name] for name in names if get_origin(types[name]) is not Callable}
