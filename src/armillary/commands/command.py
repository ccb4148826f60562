"""A command that looks at what it was given before it starts: nothing empty, nothing that is no number, no bytes."""

import math
from typing import Any

import typer
from typer.core import TyperCommand

LARGEST = 2**63 - 1
"""Numbers beyond 64 bits overflow wherever they go; none of them is meant."""


class Command(TyperCommand):
    """Refuses values that no option has a use for, in one place for all of them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        _refuse_unusable(ctx, given)
        try:
            rest = super().parse_args(ctx, args)
            for parameter in self.params:
                _refuse_no_number(ctx, parameter, ctx.params.get(parameter.name))
        except typer.BadParameter as error:
            option = next((name for name in getattr(error.param, "opts", ()) if name.startswith("-")), None)
            value = _value(option, given) if option else None
            if value is None:
                raise
            raise typer.BadParameter(f"{option} {value[:80]} cannot be used: {_plain(error.message)}", ctx) from error
        return rest


def _refuse_unusable(ctx: Any, args: list[str]) -> None:
    """An empty value (a shell variable that is not set) would stand for 'all' or for this folder."""
    for before, value in zip(["", *args], args, strict=False):
        name = value[:-1] if value.startswith("--") and value.endswith("=") else before
        if not value.strip() or name != before:
            what = name if name.startswith("-") and name != "--" else "an argument"
            raise typer.BadParameter(f"{what} is empty: give it a value, or leave it out", ctx)
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise typer.BadParameter(f"{value!a} is not UTF-8 text", ctx)


def _refuse_no_number(ctx: Any, parameter: Any, value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise typer.BadParameter("it should be a finite number", ctx, parameter)
    if isinstance(value, int) and abs(value) > LARGEST:
        raise typer.BadParameter("it is larger than any number that can be meant", ctx, parameter)


def _value(option: str, args: list[str]) -> str | None:
    """What was given for an option, the last time that it was given."""
    for at in range(len(args) - 1, -1, -1):
        if args[at] == option and at + 1 < len(args):
            return args[at + 1]
        if args[at].startswith(f"{option}="):
            return args[at].partition("=")[2]
    return None


PHRASES = {
    "Value error, ": "",
    "Input should be": "it should be",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "a valid integer, unable to parse string as an integer": "a whole number",
    "a valid number, unable to parse string as a number": "a number",
}
"""The parser's words, and plainer ones."""


def _plain(said: str) -> str:
    for phrase, plainer in PHRASES.items():
        said = said.replace(phrase, plainer)
    return said.rstrip(".")
