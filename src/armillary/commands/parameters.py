"""Turn declared parameters (anatomy/options.py, scanning/options.py) into command-line options."""

import inspect
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from armillary.anatomy.options import ModelOptions, Parameter, parameters
from armillary.commands.engines import Address, EngineOption, Threads, Workers
from armillary.commands.options import check_shard, one_of

SPELLED: dict[str, tuple[Any, Any]] = {
    "engine": (EngineOption, "local"),
    "workers": (Workers, 1),
    "threads": (Threads, None),
    "address": (Address, None),
}
"""Options that are described in other words than the Python parameter."""

TEXTS = {"device_map": None, "adapter": None, "streams": None, "dtype": "auto", "shard": "auto"}
"""Parameters that are a text on the command line, and its default."""

PANEL = "The model"
"""The part of --help where every command lists the options of ModelOptions."""


def option(name: str, kind: Any, facts: Parameter) -> inspect.Parameter:
    """The option of a parameter, as Typer reads it."""
    said: dict[str, Any] = {"help": facts.words}
    if name in parameters(ModelOptions):
        said["rich_help_panel"] = PANEL
    names = [f"--{name.replace('_', '-')}", *facts.aliases] if facts.aliases else []
    annotation: Any
    default = facts.default
    if name in SPELLED:
        annotation, default = SPELLED[name]
    elif name == "model_args":
        annotation = Annotated[list[str] | None, typer.Option("--model-arg", metavar="NAME=VALUE", **said)]
    elif name in TEXTS:
        default = TEXTS[name]
        text: Any = str if default else str | None
        annotation = Annotated[text, typer.Option(callback=check_shard if name == "shard" else None, **said)]
    elif get_origin(kind) is Literal:
        annotation = Annotated[str, typer.Option(**said)]
    elif name == "trust_remote_code":
        annotation = Annotated[bool, typer.Option("--trust-remote-code", show_default=False, **said)]
    elif kind in (bool, str, str | None):
        annotation = Annotated[kind, typer.Option(*names, **said)]
    else:
        annotation = Annotated[kind, typer.Option(*names, min=facts.least, **said)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def value(name: str, kind: Any, given: Any) -> Any:
    """A value of the command line as the Python argument."""
    if name == "shard":
        return None if given == "auto" else int(given)
    if name == "streams":
        return () if given is None else tuple(part.strip() for part in given.split(","))
    if name == "model_args":
        return model_args(given or [])
    if get_origin(kind) is Literal:
        one_of(f"--{name.replace('_', '-')}", given, get_args(kind))
    return given


def model_args(given: list[str]) -> dict[str, Any] | None:
    """NAME=VALUE pairs as a dictionary: values are JSON (numbers, true, null, lists), and anything else is a text."""
    arguments: dict[str, Any] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise typer.BadParameter(f"--model-arg {pair[:80]} is not NAME=VALUE, as in max_position_embeddings=4096")
        try:
            arguments[name] = json.loads(text)
        except ValueError:
            arguments[name] = {"True": True, "False": False, "None": None}.get(text, text)
    return arguments or None


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
