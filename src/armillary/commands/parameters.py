"""Turn the declared parameters of a scan (scanning/options.py) into command-line options."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from armillary.commands.engines import Address, DeviceMap, EngineOption, Threads, Workers
from armillary.commands.options import check_shard, one_of
from armillary.scanning.options import Parameter, parameters

SPELLED: dict[str, tuple[Any, Any]] = {
    "engine": (EngineOption, "local"),
    "workers": (Workers, 1),
    "threads": (Threads, None),
    "address": (Address, None),
    "device_map": (DeviceMap, None),
}
"""Options whose type on the command line differs from Python's."""


def option(name: str, kind: Any, facts: Parameter) -> inspect.Parameter:
    """The option of a parameter, as Typer reads it."""
    if name in SPELLED:
        annotation, default = SPELLED[name]
    elif name == "shard":
        annotation, default = Annotated[str, typer.Option(help=facts.words, callback=check_shard)], "auto"
    elif name == "streams":
        annotation, default = Annotated[str | None, typer.Option(help=facts.words)], None
    elif get_origin(kind) is Literal:
        annotation, default = Annotated[str, typer.Option(help=facts.words)], facts.default
    else:
        annotation, default = Annotated[kind, typer.Option(help=facts.words, min=facts.least)], facts.default
        if kind in (bool, str):
            annotation = Annotated[kind, typer.Option(help=facts.words)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def value(name: str, kind: Any, given: Any) -> Any:
    """A value of the command line as the Python argument."""
    if name == "shard":
        return None if given == "auto" else int(given)
    if name == "streams":
        return () if given is None else tuple(part.strip() for part in given.split(","))
    if get_origin(kind) is Literal:
        one_of(f"--{name.replace('_', '-')}", given, get_args(kind))
    return given


def with_parameters(declared: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add an option for each of these parameters to a command, which gets their Python values in `**options`."""
    known = {name: facts for name, facts in parameters(declared).items() if name != "progress"}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            values = {name: value(name, kind, given.pop(name)) for name, (kind, _) in known.items()}
            function(**given, **values)

        own = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
        hints = get_type_hints(function, include_extras=True)
        added = [option(name, kind, facts) for name, (kind, facts) in known.items()]
        shown = [p.replace(kind=p.KEYWORD_ONLY, annotation=hints[p.name]) for p in own] + added
        command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in shown}
        command.__name__, command.__doc__, command.__module__ = function.__name__, function.__doc__, function.__module__
        return command

    return decorate
