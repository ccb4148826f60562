"""Reads JSON that Armillary wrote and checks it against a type, so that an error names the file and the field."""

import json
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from armillary.errors import ArmillaryError, brief

NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    NoneType: "nothing",
}


def read_record(path: Path, shape: Any, remedy: str) -> Any:
    """The JSON of a file, checked against a shape; `remedy` says what to do if it does not fit."""
    return parse_record(read_bytes(path, remedy), shape, str(path), remedy)


def read_bytes(path: Path, remedy: str) -> bytes:
    """The content of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArmillaryError(f"{path} cannot be read ({error.strerror or error}): {remedy}") from error


def parse_record(data: bytes, shape: Any, name: str, remedy: str) -> Any:
    """The same for bytes; `name` is what to call them in errors."""
    value = _parsed(data, name, remedy)
    wrong = mismatch(value, shape)
    if wrong:
        raise ArmillaryError(f"{name} is not what Armillary writes, {wrong}: {remedy}")
    return value


def read_lines(path: Path, shape: Any, remedy: str) -> Iterator[Any]:
    """The JSON of each line of a file; an unfinished last line (still being written, or cut by a kill) is skipped."""
    lines = read_bytes(path, remedy).split(b"\n")
    for number, line in enumerate(lines[:-1], 1):
        yield parse_record(line, shape, f"line {number} of {path}", remedy)


def _parsed(data: bytes, name: str, remedy: str) -> Any:
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else brief(error)
        raise ArmillaryError(f"{name} is not JSON ({why}): {remedy}") from error


def mismatch(value: Any, shape: Any, at: str = "") -> str | None:
    """Where and how a value differs from a shape, 'settings.length should be a whole number, not "x"'; None if it fits.

    A shape is a type as in an annotation: int, float (whole numbers count), str, bool, None, list[...],
    tuple[..., ...], dict[str, ...], a union, a Literal, a TypedDict or a dataclass (objects that have those keys), Any.
    """
    origin, inside = get_origin(shape), get_args(shape)
    if shape is Any:
        return None
    if origin is Annotated or origin in (Required, NotRequired):
        return mismatch(value, inside[0], at)
    if origin in (Union, UnionType):
        return None if any(mismatch(value, option, at) is None for option in inside) else _wrong(value, shape, at)
    if origin is Literal:
        return (
            None
            if any(value is option or (isinstance(value, str) and value == option) for option in inside)
            else (_wrong(value, shape, at))
        )
    if origin in (list, tuple) or shape is list:
        if not isinstance(value, list):
            return _wrong(value, shape, at)
        item_shape = inside[0] if inside else Any
        return _first(mismatch(item, item_shape, f"{at}[{i}]") for i, item in enumerate(value))
    if origin is dict or shape is dict:
        if not isinstance(value, dict):
            return _wrong(value, shape, at)
        item_shape = inside[1] if inside else Any
        return _first(mismatch(item, item_shape, _inside(at, key)) for key, item in value.items())
    if is_typeddict(shape) or is_dataclass(shape):
        return _object_mismatch(value, shape, at)
    return None if _is_plain(value, shape) else _wrong(value, shape, at)


def _object_mismatch(value: Any, shape: Any, at: str) -> str | None:
    if not isinstance(value, dict):
        return _wrong(value, shape, at)
    shapes = get_type_hints(shape, include_extras=True)
    if is_dataclass(shape):
        required = {f.name for f in fields(shape) if f.default is MISSING and f.default_factory is MISSING}
        unknown = [key for key in value if key not in shapes]
        if unknown:
            return f"{_inside(at, unknown[0])} is not known"
    else:
        required = set(shape.__required_keys__)
    missing = sorted(required - set(value))
    if missing:
        return f"{_inside(at, missing[0])} is missing"
    return _first(mismatch(value[key], kind, _inside(at, key)) for key, kind in shapes.items() if key in value)


def _is_plain(value: Any, kind: Any) -> bool:
    """Whether the value has this type; integers must fit into 64 bits, and booleans are not numbers."""
    if kind in (None, NoneType):
        return value is None
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if kind is float:
        return isinstance(value, float) or _is_plain(value, int)
    assert kind is str, f"no shape of JSON: {kind}"
    return isinstance(value, str)


def _inside(at: str, key: object) -> str:
    return f"{at}.{key}" if at else str(key)[:60]


def _first(wrongs: Iterator[str | None]) -> str | None:
    return next((wrong for wrong in wrongs if wrong), None)


def _wrong(value: Any, shape: Any, at: str) -> str:
    given = json.dumps(value, default=str)
    for kind, name in ((dict, "an object"), (list, "a list")):
        given = name if isinstance(value, kind) else given
    return f"{at or 'all of it'} should be {named(shape)}, not {given if len(given) < 60 else given[:57] + '...'}"


def named(shape: Any) -> str:
    """A shape in words."""
    origin, inside = get_origin(shape), get_args(shape)
    if origin in (Union, UnionType):
        return " or ".join(named(option) for option in inside if option is not NoneType)
    if origin is Literal:
        return " or ".join(map(repr, inside))
    if origin in (list, tuple) or shape is list:
        return "a list"
    return NAMES.get(shape, "an object")
