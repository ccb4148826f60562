"""Declares the parameters of a scan once: for scan, scan_part, merge and weigh, the commands, and the record.

Nothing here imports torch, because `armillary --help` reads it.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from armillary.anatomy.options import ModelOptions, Parameter, SourceOptions
from armillary.progress import Progress

if TYPE_CHECKING:
    from armillary.engines.engine import Engine
else:
    Engine = Any


class ScanSettings(TypedDict, total=False):
    """Everything that the numbers of a scan depend on, besides the model and the text."""

    length: Annotated[int | None, Parameter(None, "Tokens of a sequence (128, or the model's maximum if smaller).", 2)]
    sequences: Annotated[int, Parameter(64, "Number of sequences.", 1, ("--limit",))]
    skip: Annotated[int, Parameter(1, "First positions that means leave out (attention sinks).", 0)]
    batch: Annotated[int, Parameter(8, "Sequences per forward pass.", 1, ("--batch-size",))]
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


class EngineOptions(TypedDict, total=False):
    """Where the work runs, and how progress is shown."""

    overwrite: Annotated[bool, Parameter(False, "Replace the contents of the folder.")]
    engine: Annotated["str | Engine", Parameter("local", "Where the work runs: local processes, or a ray cluster.")]
    workers: Annotated[int, Parameter(1, "Number of processes that share the work; each loads the model.", 1)]
    threads: Annotated[int | None, Parameter(None, "Threads per worker (with several workers: 1).", 1)]
    address: Annotated[str | None, Parameter(None, "The Ray cluster, as in 10.0.0.1:6379 or auto.")]
    progress: Annotated[Progress | None, Parameter(None)]


class WorkOptions(EngineOptions, total=False):
    """The same of work that continues earlier work in the folder only if it is asked to."""

    resume: Annotated[bool, Parameter(False, "Continue an interrupted run.")]


class WeighOptions(SourceOptions, WorkOptions, total=False):
    """Keywords of `weigh`, which reads files and loads no model."""


class MergeOptions(ModelOptions, WorkOptions, total=False):
    """Keywords of `merge`; the precision is that of the parts."""


class ScanOptions(ScanSettings, ModelOptions, WorkOptions, total=False):
    """Keywords of `scan` and `scan_part`."""


class TimelineOptions(ScanSettings, ModelOptions, EngineOptions, total=False):
    """Keywords of `timeline`, which always continues earlier work."""
