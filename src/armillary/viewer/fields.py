"""Read the fields of a request: every value is checked for type and range, and unknown fields are refused."""

import math
from typing import Any

from armillary.viewer.guard import Refused

MOST_CHARACTERS = 60_000


class Fields:
    """The fields of one request. Each is read once; `done` raises if fields are left."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = dict(fields)

    def _take(self, name: str, default: Any = None) -> Any:
        if name not in self._fields and default is None:
            raise Refused(400, f"{name} is missing")
        return self._fields.pop(name, default)

    def whole(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """A whole number from `least` to `most`."""
        value = self._take(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise Refused(400, f"{name} is a whole number from {least} to {most}")
        return value

    def number(self, name: str, least: float, most: float) -> float:
        """A finite number from `least` to `most`."""
        value = self._take(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise Refused(400, f"{name} is a number from {least:g} to {most:g}")
        assert math.isfinite(value)
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._fields.pop(name, default)
        if not isinstance(value, bool):
            raise Refused(400, f"{name} is true or false")
        return value

    def choice(self, name: str, among: tuple[str, ...], default: str | None = None) -> str:
        """One of these words."""
        value = self._take(name, default)
        if not isinstance(value, str) or value not in among:
            raise Refused(400, f"{name} is one of {', '.join(among)}")
        return value

    def choices(self, name: str, among: tuple[str, ...]) -> tuple[str, ...]:
        """Some of these words, each once, in their order; all of them where the field is left out."""
        value = self._fields.pop(name, list(among))
        if not isinstance(value, list) or not all(isinstance(word, str) and word in among for word in value):
            raise Refused(400, f"{name} is a list of {', '.join(among)}")
        return tuple(word for word in among if word in value)

    def text(self, name: str) -> str:
        """A text, of any characters."""
        value = self._take(name)
        if not isinstance(value, str):
            raise Refused(400, f"{name} is a text")
        if len(value) > MOST_CHARACTERS:
            raise Refused(413, f"{name} may have {MOST_CHARACTERS} characters at most")
        return value

    def part(self, name: str) -> "Fields":
        """An object inside the request."""
        value = self._take(name)
        if not isinstance(value, dict):
            raise Refused(400, f"{name} is an object")
        return Fields(value)

    def done(self) -> None:
        """Raise on fields that were not read: they are unknown."""
        if self._fields:
            raise Refused(400, f"unknown: {', '.join(sorted(map(repr, self._fields)))[:200]}")
