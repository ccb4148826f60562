"""Makes an atlas from a model and text: runs sequences through the tapped model, shard by shard, resumable."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from torch import Tensor, nn

from armillary.anatomy.description import Anatomy
from armillary.anatomy.loading import tokenizer_of
from armillary.anatomy.options import ModelOptions, complete, keywords, of, parameters, refuse_idle
from armillary.atlas.atlas import Atlas, open_atlas
from armillary.engines import opened
from armillary.machine.limits import attention_seconds, refuse_beyond_memory, refuse_beyond_patience
from armillary.machine.temporary import remove_folder, temporary_folder
from armillary.progress import Progress
from armillary.scanning.driver import Run
from armillary.scanning.folder import parse_part, shard_size
from armillary.scanning.job import Facts, ScanJob
from armillary.scanning.options import ScanOptions, ScanSettings, TimelineOptions
from armillary.scanning.settings import LENGTH, scan_settings, wanted_of
from armillary.streams.resting import most_seen
from armillary.text.sequences import (
    Sequences,
    check_corpus,
    read_sequences,
    refuse_other_vocabulary,
    refuse_too_many,
    token_sequences,
)

Corpus = str | Path | Sequence[str | Path] | Tensor | np.ndarray


@keywords(ScanOptions)
def scan(
    model: nn.Module | str | Path,
    corpus: Corpus = "builtin:prose",
    *,
    out: str | Path | None = None,
    tokenizer: Any = None,
    **options: Unpack[ScanOptions],
) -> Atlas:
    """Scan a model on text and return its Atlas, kept in the folder `out` (without one, until the program ends).

    `model` is a folder, a hub id or a loaded model (then give its tokenizer, or tokens of shape (sequence, token) as
    the corpus). Several `workers` each load the model and share the work, as local processes (engine="local", with
    `threads` each) or on the Ray cluster at `address` (engine="ray"); the arrays are the same to the last bit.
    scanning/options.py describes the other parameters.
    """
    chosen: ScanOptions = complete(options, ScanOptions, "scan")
    with _run(model, corpus, tokenizer, chosen) as run:
        if out is not None:
            run.into(Path(out), resume=chosen["resume"], overwrite=chosen["overwrite"])
            return open_atlas(out)
        place = temporary_folder()
        try:
            run.into(place / "scan", resume=False, overwrite=False)
            return open_atlas(place / "scan")
        except BaseException:
            remove_folder(place)
            raise


@keywords(ScanOptions)
def scan_part(
    model: nn.Module | str | Path,
    corpus: Corpus = "builtin:prose",
    *,
    part: str,
    out: str | Path,
    tokenizer: Any = None,
    **options: Unpack[ScanOptions],
) -> Path:
    """Compute one part of a scan ("3/16": the third of sixteen) and return its folder, `out`.

    All else is as in `scan`; `merge` makes an atlas of all the parts.
    """
    chosen_part = parse_part(part)
    chosen: ScanOptions = complete(options, ScanOptions, "scan_part")
    with _run(model, corpus, tokenizer, chosen) as run:
        run.part = chosen_part
        run.into(Path(out), resume=chosen["resume"], overwrite=chosen["overwrite"])
    return Path(out)


def scan_sequences(
    model: nn.Module | str | Path, sequences: Sequences, corpus: Corpus, out: Path, tokenizer: Any, options: ScanOptions
) -> Atlas:
    """`scan` on text that is tokenized already, for scans of several models on the same text; `corpus` is its name."""
    with _run(model, corpus, tokenizer, complete(options, ScanOptions, "scan"), sequences) as run:
        run.into(out, resume=options.get("resume", False), overwrite=options.get("overwrite", False))
        return open_atlas(out)


@contextmanager
def _run(
    model: nn.Module | str | Path,
    corpus: Corpus,
    tokenizer: Any,
    options: ScanOptions,
    tokenized: Sequences | None = None,
) -> Iterator[Run]:
    """The scan, with its workers started; mistakes in settings or corpus raise an error before the model is loaded."""
    before_loading = settings_for(options, corpus, None)
    if tokenized is None and not isinstance(corpus, Tensor | np.ndarray):
        refuse_too_many(before_loading["sequences"], wanted_of(before_loading).length, corpus)
        check_corpus(corpus)
    job = ScanJob(model, ModelOptions(**of(ModelOptions, options)))  # type: ignore[typeddict-item]
    if isinstance(model, nn.Module):
        refuse_idle(job.options, ("trust_remote_code",), "the model is already loaded")
    with opened(options["engine"], options["workers"], options["threads"], options["address"]) as engine:
        facts = engine.start(job)
        if tokenizer is None and tokenized is None and isinstance(job.model, str | Path) and needs_tokenizer(corpus):
            tokenizer = tokenizer_of(job.model, job.options)
        settings = settings_for(options, corpus, facts.anatomy.max_positions)
        length = wanted_of(settings).length
        if settings["shard"] is None:
            anatomy = facts.anatomy
            settings["shard"] = shard_size(facts.parameters, anatomy.d_model, len(anatomy.layers), length)
        facts.anatomy.check_length(length)
        _refuse_too_large(settings, facts.anatomy)
        if tokenized is not None:
            refuse_other_vocabulary(tokenized.tokens, facts.anatomy.vocabulary)
        read = tokenized or sequences_of(corpus, tokenizer, settings, facts.anatomy.vocabulary)
        sequences = _with_token_names(read, tokenizer, settings, facts)
        progress = options["progress"] or Progress()
        yield Run(engine, facts, sequences, settings, model_name(job.model), corpus_name(corpus), progress)


def _refuse_too_large(settings: ScanSettings, anatomy: Anatomy) -> None:
    """Raise if a batch does not fit into memory, or if one layer of it would take too long: Ctrl-C waits for a layer.

    Memory holds about eight float32 vectors per token (the stream, its norm, q, k, v, the output), and per layer a mean
    and a variance by position in float64.
    """
    batch, length = min(settings["batch"], settings["sequences"]), wanted_of(settings).length
    what = f"{batch} sequences of {length} tokens at once"
    vectors = 32.0 * batch + (16.0 * len(anatomy.layers) if "positions" in settings["streams"] else 0.0)
    instead = "use shorter sequences" if batch == 1 else "use shorter sequences, or a smaller batch"
    refuse_beyond_memory(vectors * length * anatomy.d_model, what, instead)
    widest = max(anatomy.layers, key=lambda layer: layer.heads * layer.head_width)
    seconds = attention_seconds(widest.heads, widest.head_width, batch, length)
    refuse_beyond_patience(seconds, f"the attention of one layer on {what}", instead)


def model_name(model: nn.Module | str | Path) -> str:
    """The name of a model in records and tables."""
    if isinstance(model, nn.Module):
        return getattr(getattr(model, "config", None), "name_or_path", "") or type(model).__name__
    return str(model)


def settings_for(options: ScanOptions | TimelineOptions, corpus: Corpus, max_positions: int | None) -> ScanSettings:
    """The settings among the options; the default length is 128 tokens, or fewer if the model has fewer positions."""
    given: dict[str, Any] = {name: value for name, value in options.items() if name in parameters(ScanSettings)}
    if isinstance(corpus, Tensor | np.ndarray) and corpus.ndim == 2:
        given |= {"sequences": len(corpus), "length": corpus.shape[1]}
    elif given["length"] is None:
        given["length"] = min(LENGTH, max_positions or LENGTH)
    return scan_settings(**{**given, "streams": given["streams"] or None})


def needs_tokenizer(corpus: Corpus) -> bool:
    return not isinstance(corpus, Tensor | np.ndarray) and str(corpus) != "builtin:random"


def corpus_name(corpus: Corpus) -> str:
    """The name of a corpus in records and tables."""
    if isinstance(corpus, Tensor | np.ndarray):
        return "tokens"
    return str(corpus) if isinstance(corpus, str | Path) else " + ".join(map(str, corpus))


def sequences_of(corpus: Corpus, tokenizer: Any, settings: ScanSettings, vocabulary: int) -> Sequences:
    """The corpus as sequences of tokens."""
    if isinstance(corpus, Tensor | np.ndarray):
        return token_sequences(corpus, vocabulary)
    return read_sequences(
        corpus,
        tokenizer,
        length=wanted_of(settings).length,
        sequences=settings["sequences"],
        vocabulary=vocabulary,
        by_document=settings["by_document"],
        bos=settings["bos"],
        seed=settings["seed"],
    )


def _with_token_names(sequences: Sequences, tokenizer: Any, settings: ScanSettings, facts: Facts) -> Sequences:
    """The sequences with the text of the tokens that the scan counts one by one, if there is a tokenizer."""
    if tokenizer is None:
        return sequences
    causal = all(layer.causal for layer in facts.anatomy.layers)
    counted = most_seen(sequences.tokens[: settings["second_pass"]], causal)
    return replace(sequences, token_names={str(token): str(tokenizer.decode([token])) for token in counted})
