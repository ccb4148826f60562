"""Frozen descriptions as plain data for JSON, and back.

A field that holds one of several dataclasses is written with the name of its class under 'kind'. Fields whose name
begins with an underscore are not written.
"""

from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, get_args, get_type_hints

from armillary.errors import ArmillaryError
from armillary.files.records import mismatch


def to_plain(value: Any, tagged: tuple[type, ...]) -> Any:
    """Lists, dictionaries, numbers and texts; dataclasses of the types `tagged` say their kind."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {f.name: to_plain(getattr(value, f.name), tagged) for f in _stored(type(value))}
        return {"kind": type(value).__name__, **named} if isinstance(value, tagged) else named
    if isinstance(value, tuple | list):
        return [to_plain(item, tagged) for item in value]
    if isinstance(value, dict):
        return {str(key): to_plain(item, tagged) for key, item in value.items()}
    if hasattr(value, "tolist"):  # a tensor or an array
        return value.tolist()
    return value


def from_plain(shape: Any, value: Any, at: str) -> Any:
    """The value that `to_plain` wrote for a field of this type; an error names the place that does not fit."""
    choices = get_args(shape) or (shape,)
    kinds = [choice for choice in choices if is_dataclass(choice)]
    if value is None and NoneType in choices:
        return None
    if Ellipsis in choices and kinds:
        _check(value, list, at)
        return tuple(from_plain(kinds[0], item, f"{at}[{i}]") for i, item in enumerate(value))
    if not kinds:
        _check(value, shape, at)
        return tuple(value) if isinstance(value, list) else value
    _check(value, dict, at)
    return _object(kinds[0] if len(kinds) == 1 else _named(kinds, value, at), value, at)


def _object(kind: Any, record: dict[str, Any], at: str) -> Any:
    types = _types(kind)
    values = {}
    for stored in _stored(kind):
        place = f"{at}.{stored.name}" if at else stored.name
        if stored.name in record:
            values[stored.name] = from_plain(types[stored.name], record[stored.name], place)
        elif stored.default is MISSING and stored.default_factory is MISSING:
            raise ArmillaryError(f"{place} is missing")
    return kind(**values)


def _named(kinds: list[Any], record: dict[str, Any], at: str) -> Any:
    names = [kind.__name__ for kind in kinds]
    name = record.get("kind")
    if name not in names:
        raise ArmillaryError(f"{at}.kind should be {' or '.join(map(repr, names))}", given=name, expected=names)
    return kinds[names.index(name)]


def _check(value: Any, shape: Any, at: str) -> None:
    wrong = mismatch(value, shape, at)
    if wrong:
        raise ArmillaryError(wrong, given=value)


@cache
def _stored(kind: type) -> tuple[Field[Any], ...]:
    return tuple(f for f in fields(kind) if not f.name.startswith("_"))


@cache
def _types(kind: type) -> dict[str, Any]:
    """The types of the fields that are written; what only type checkers import is no type of those."""
    return get_type_hints(kind, localns={"LayerWeights": Any, "Tensor": Any, "Ends": Any})
