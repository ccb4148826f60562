"""Declares once where a model comes from and where it runs: for `load`, `scan` and the others, and for the commands.

Nothing here imports torch, because `armillary --help` reads it.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, TypedDict, TypeVar, get_args, get_type_hints

from armillary.errors import ArmillaryError

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Parameter:
    """A parameter's default, its help text, its smallest value, and other names of its option."""

    default: Any
    words: str = ""
    least: int | None = None
    aliases: tuple[str, ...] = ()


class SourceOptions(TypedDict, total=False):
    """Which files of a model are read."""

    revision: Annotated[str | None, Parameter(None, "Of a hub id: this branch, tag or commit.")]
    adapter: Annotated[Any, Parameter(None, "A LoRA adapter (folder or hub id), merged into the weights.")]
    trust_remote_code: Annotated[bool, Parameter(False, "Run Python code that comes with the checkpoint.")]


class ModelOptions(SourceOptions, total=False):
    """Which files of a model are read, and where and in which precision it runs."""

    device: Annotated[str, Parameter("auto", "auto, cpu, cuda, cuda:1, mps.")]
    dtype: Annotated[Any, Parameter("auto", "auto (float32 on a CPU, else as stored), float32, bfloat16, float16.")]
    attn_implementation: Annotated[
        str | None, Parameter(None, "The attention function: eager, sdpa, flash_attention_2, ...")
    ]
    device_map: Annotated[Any, Parameter(None, "auto: spread a model that is too large for one device over all.")]
    model_args: Annotated[
        dict[str, Any] | None, Parameter(None, "NAME=VALUE for from_pretrained; can be given several times.")
    ]


def parameters(declared: Any) -> dict[str, tuple[Any, Parameter]]:
    """The type and the Parameter of every key of an options TypedDict."""
    hints = get_type_hints(declared, include_extras=True)
    return {name: (get_args(hint)[0], get_args(hint)[1]) for name, hint in hints.items()}


def of(declared: Any, options: Any) -> dict[str, Any]:
    """Those of the options that this TypedDict declares."""
    known = parameters(declared)
    return {name: value for name, value in options.items() if name in known}


def complete(given: Any, declared: Any, what: str) -> Any:
    """The given options, completed with defaults; an unknown name raises an error that names it."""
    known = parameters(declared)
    unknown = [name for name in given if name not in known]
    if unknown:
        similar = get_close_matches(unknown[0], known, 1)
        raise ArmillaryError(
            f"{what} has no parameter {unknown[0]!r}",
            advice=f"did you mean {similar[0]!r}?" if similar else f"there are {', '.join(sorted(known))}",
            given=unknown[0],
            expected=sorted(known),
        )
    return {name: given.get(name, parameter.default) for name, (_, parameter) in known.items()}


def refuse_idle(given: Any, read: tuple[str, ...], why: str) -> None:
    """Raise if an option of ModelOptions was given that is not among those `read`."""
    for name, (_, facts) in parameters(ModelOptions).items():
        if name not in read and given.get(name, facts.default) != facts.default:
            raise ArmillaryError(
                f"`{name}={given[name]}` has no effect here: {why}", advice="leave it out", given=given[name]
            )


def keywords(declared: Any) -> Callable[[Function], Function]:
    """Show the keys of an options TypedDict in a function's signature, so that notebooks can complete them."""

    def with_signature(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        rest = [p for p in signature.parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=facts.default, annotation=kind)
            for name, (kind, facts) in parameters(declared).items()
        ]
        open_ended = [p for p in rest if p.annotation is Any]  # others are passed on, with names that are not declared
        function.__signature__ = signature.replace(parameters=[*own, *more, *open_ended])  # type: ignore[attr-defined]
        return function

    return with_signature
