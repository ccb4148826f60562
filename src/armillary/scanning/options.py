"""Declares the parameters of a scan once: for scan, scan_part, merge and weigh, the commands, and the record.

Nothing here imports torch, because `armillary --help` reads it.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, TypeVar, get_args, get_type_hints

from armillary.errors import ArmillaryError
from armillary.progress import Progress

if TYPE_CHECKING:
    from armillary.engines.engine import Engine
else:
    Engine = Any

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Parameter:
    """A parameter's default, its help text, and its smallest value."""

    default: Any
    words: str = ""
    least: int | None = None


class ScanSettings(TypedDict, total=False):
    """Everything that the numbers of a scan depend on, besides the model and the text."""

    length: Annotated[int | None, Parameter(None, "Tokens of a sequence (128, or the model's maximum if smaller).", 2)]
    sequences: Annotated[int, Parameter(64, "Number of sequences.", 1)]
    skip: Annotated[int, Parameter(1, "First positions that means leave out (attention sinks).", 0)]
    batch: Annotated[int, Parameter(8, "Sequences per forward pass.", 1)]
    shard: Annotated[
        int | None,
        Parameter(None, "Sequences per shard, the unit that is saved and merged; auto: by the model's size.", 1),
    ]
    seed: Annotated[int, Parameter(0, "Seed of builtin:random, random heads and the order of built-in documents.", 0)]
    bos: Annotated[
        Literal["auto", "always", "never"],
        Parameter("auto", "Begin sequences with special tokens: auto (as the tokenizer), always, never."),
    ]
    by_document: Annotated[
        bool, Parameter(False, "No sequence mixes two documents (needed for similarity within documents).")
    ]
    streams: Annotated[tuple[str, ...], Parameter((), "What to measure, separated by commas; list: print all names.")]
    when_nan: Annotated[
        Literal["stop", "skip"], Parameter("stop", "When a sequence gives NaN or infinity: stop, or skip it.")
    ]
    second_pass: Annotated[int, Parameter(16, "Sequences that run again for constituents and patterns.", 1)]


class WorkOptions(TypedDict, total=False):
    """Where the work runs, what happens to earlier work in the folder, and how progress is shown."""

    resume: Annotated[bool, Parameter(False, "Continue an interrupted run.")]
    overwrite: Annotated[bool, Parameter(False, "Replace the contents of the folder.")]
    trust_remote_code: Annotated[bool, Parameter(False, "Run Python code that comes with the checkpoint.")]
    engine: Annotated["str | Engine", Parameter("local", "Where the work runs: local processes, or a ray cluster.")]
    workers: Annotated[int, Parameter(1, "Number of processes that share the work; each loads the model.", 1)]
    threads: Annotated[int | None, Parameter(None, "Threads per worker (with several workers: 1).", 1)]
    address: Annotated[str | None, Parameter(None, "The Ray cluster, as in 10.0.0.1:6379 or auto.")]
    progress: Annotated[Progress | None, Parameter(None)]


class ModelOptions(TypedDict, total=False):
    """Where and in which precision a model runs."""

    device: Annotated[str, Parameter("auto", "auto, cpu, cuda, cuda:1, mps.")]
    dtype: Annotated[str, Parameter("auto", "auto, float32, bfloat16, float16.")]
    device_map: Annotated[Any, Parameter(None, "auto: spread a model that is too large for one device over all.")]


class MergeOptions(WorkOptions, total=False):
    """Keywords of `merge`; the precision is that of the parts."""

    device: Annotated[str, Parameter("auto", "auto, cpu, cuda, cuda:1, mps.")]
    device_map: Annotated[Any, Parameter(None, "auto: spread a model that is too large for one device over all.")]


class ScanOptions(ScanSettings, ModelOptions, WorkOptions, total=False):
    """Keywords of `scan` and `scan_part`."""


def parameters(declared: Any) -> dict[str, tuple[Any, Parameter]]:
    """The type and the Parameter of every key of an options TypedDict."""
    hints = get_type_hints(declared, include_extras=True)
    return {name: (get_args(hint)[0], get_args(hint)[1]) for name, hint in hints.items()}


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


def keywords(declared: Any) -> Callable[[Function], Function]:
    """Show the keys of an options TypedDict in a function's signature, so that notebooks can complete them."""

    def with_signature(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=facts.default, annotation=kind)
            for name, (kind, facts) in parameters(declared).items()
        ]
        function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return with_signature
