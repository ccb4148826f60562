"""The base class of commands: refuses empty values, values that are not UTF-8, NaN, infinity and huge integers."""

import math
from typing import Any

import typer
from typer.core import TyperCommand

LARGEST = 2**63 - 1
"""The largest accepted integer: larger ones overflow in torch and numpy."""


class Command(TyperCommand):
    """Checks the values of all options before the command runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        _refuse_unusable(ctx, given)
        try:
            rest = super().parse_args(ctx, args)
            for parameter in self.params:
                _refuse_bad_number(ctx, parameter, ctx.params.get(parameter.name))
        except typer.BadParameter as error:
            names = [name for name in getattr(error.param, "opts", ()) if name.startswith("-")]
            option, value = next(((name, v) for name in names if (v := _value(name, given)) is not None), ("", None))
            if value is None:
                raise
            raise typer.BadParameter(f"{option} {value[:80]} cannot be used: {_plain(error.message)}", ctx) from error
        return rest


def _refuse_unusable(ctx: Any, args: list[str]) -> None:
    """Raise on an empty value (an unset shell variable), which would mean 'all' or the current folder."""
    for before, value in zip(["", *args], args, strict=False):
        name = value[:-1] if value.startswith("--") and value.endswith("=") else before
        if not value.strip() or name != before:
            what = name if name.startswith("-") and name != "--" else "an argument"
            raise typer.BadParameter(f"{what} is empty: give it a value, or leave it out", ctx)
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise typer.BadParameter(f"{value!a} is not UTF-8 text", ctx)


def _refuse_bad_number(ctx: Any, parameter: Any, value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise typer.BadParameter("it should be a finite number", ctx, parameter)
    if isinstance(value, int) and abs(value) > LARGEST:
        raise typer.BadParameter("it is too large", ctx, parameter)


def _value(option: str, args: list[str]) -> str | None:
    """The value of an option; if it was given several times, the last one."""
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
"""The parser's phrases, and plainer ones."""


def _plain(message: str) -> str:
    for phrase, plainer in PHRASES.items():
        message = message.replace(phrase, plainer)
    return message.rstrip(".")
