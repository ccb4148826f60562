"""From a model and text to an Atlas: blocks through a tapped model into streams, shard by shard, resumable."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from armillary.anatomy.description import Anatomy
from armillary.atlas import Atlas, open_atlas
from armillary.corpus import Blocks, check_corpus, read_blocks, refuse_too_many, token_blocks
from armillary.engines import opened
from armillary.engines.engine import Engine
from armillary.engines.scan_job import Facts, ScanJob
from armillary.errors import ArmillaryError
from armillary.limits import attention_seconds, refuse_beyond_memory, refuse_beyond_patience
from armillary.models import load_tokenizer
from armillary.progress import Progress
from armillary.running import Run
from armillary.settings import ScanSettings
from armillary.shards import parse_part, shard_size
from armillary.streams.resting import most_seen
from armillary.temporary import remove_folder, temporary_folder

Corpus = str | Path | Sequence[str | Path] | Tensor | np.ndarray


def scan(
    model: nn.Module | str | Path,
    corpus: Corpus = "builtin:prose",
    *,
    out: str | Path | None = None,
    tokenizer: Any = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    dtype: str = "auto",
    device_map: Any = None,
    trust_remote_code: bool = False,
    engine: str | Engine = "local",
    workers: int = 1,
    threads: int | None = None,
    address: str | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Atlas:
    """Scan a model on text and return its Atlas, kept in the folder `out` (without one, until the program ends).

    `model` is a folder, a hub id or a loaded model (then give its tokenizer, or tokens of shape (sequence, token) as
    the corpus). `settings` are the fields of ScanSettings: length, sequences, skip, batch, seed, bos, ... Several
    `workers` each load the model and share the work, as processes here (engine="local", with `threads` each) or on the
    Ray cluster at `address` (engine="ray"); the arrays are the same to the last bit.
    """
    job = ScanJob(model, device, dtype, trust_remote_code, device_map)
    with _run(job, corpus, tokenizer, progress, (engine, workers, threads, address), settings) as run:
        if out is not None:
            run.into(Path(out), resume=resume, overwrite=overwrite)
            return open_atlas(out)
        place = temporary_folder()
        try:
            run.into(place / "scan", resume=False, overwrite=False)
            return open_atlas(place / "scan")
        except BaseException:
            remove_folder(place)
            raise


def scan_part(
    model: nn.Module | str | Path,
    corpus: Corpus = "builtin:prose",
    *,
    part: str,
    out: str | Path,
    tokenizer: Any = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    dtype: str = "auto",
    device_map: Any = None,
    trust_remote_code: bool = False,
    engine: str | Engine = "local",
    workers: int = 1,
    threads: int | None = None,
    address: str | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Path:
    """Compute one part of a scan, "3/16" being the third of sixteen, into the folder `out`, which is returned.

    Everything else is as for `scan`; `armillary.merging.merge` makes an atlas of all the parts.
    """
    chosen = parse_part(part)
    job = ScanJob(model, device, dtype, trust_remote_code, device_map)
    with _run(job, corpus, tokenizer, progress, (engine, workers, threads, address), settings) as run:
        run.part = chosen
        run.into(Path(out), resume=resume, overwrite=overwrite)
    return Path(out)


@contextmanager
def _run(
    job: ScanJob,
    corpus: Corpus,
    tokenizer: Any,
    progress: Progress | None,
    engine: tuple[str | Engine, int, int | None, str | None],
    settings: dict[str, Any],
) -> Iterator[Run]:
    """The scan, with its workers started; a mistake in settings or corpus is told before a large model is loaded."""
    asked = _settings(settings, corpus, None)
    if not isinstance(corpus, Tensor | np.ndarray):
        refuse_too_many(asked.sequences, asked.length, corpus)
        check_corpus(corpus)
    with opened(*engine) as workers:
        facts = workers.start(job)
        if tokenizer is None and isinstance(job.model, str | Path) and needs_tokenizer(corpus):
            tokenizer = load_tokenizer(job.model, trust_remote_code=job.trust_remote_code)
        chosen = _settings(settings, corpus, facts.anatomy.max_positions)
        if settings.get("shard") is None:
            anatomy = facts.anatomy
            size = shard_size(facts.parameters, anatomy.d_model, len(anatomy.layers), chosen.length)
            chosen = replace(chosen, shard=size)
        facts.anatomy.check_length(chosen.length)
        _refuse_too_large(chosen, facts.anatomy)
        blocks = _named(_blocks(corpus, tokenizer, chosen, facts), tokenizer, chosen, facts)
        yield Run(workers, facts, blocks, chosen, model_name(job.model), corpus_name(corpus), progress or Progress())


def _refuse_too_large(settings: ScanSettings, anatomy: Anatomy) -> None:
    """Raise if a batch cannot be held, or if one layer of it would not end: Ctrl-C waits for that long.

    Held at once are some eight vectors of every token (the stream, its norm, q, k, v, what comes out) in float32, and
    of every layer a mean and a spread by position in float64.
    """
    batch = min(settings.batch, settings.sequences)
    what = f"{batch} blocks of {settings.length} tokens at once"
    vectors = 32.0 * batch + (16.0 * len(anatomy.layers) if "positions" in settings.streams else 0.0)
    instead = "use shorter blocks" if batch == 1 else "use shorter blocks, or a smaller batch"
    refuse_beyond_memory(vectors * settings.length * anatomy.d_model, what, instead)
    most = max(anatomy.layers, key=lambda layer: layer.heads * layer.head_width)
    seconds = attention_seconds(most.heads, most.head_width, batch, settings.length)
    refuse_beyond_patience(seconds, f"the attention of one layer on {what}", instead)


def model_name(model: nn.Module | str | Path) -> str:
    """What to call a model in tables."""
    if isinstance(model, nn.Module):
        return getattr(getattr(model, "config", None), "name_or_path", "") or type(model).__name__
    return str(model)


def _settings(given: dict[str, Any], corpus: Corpus, max_positions: int | None) -> ScanSettings:
    """The settings that were given; without a length, blocks of 128 tokens or as many as the model has positions."""
    known = set(ScanSettings.__dataclass_fields__)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ArmillaryError(f"scan has no setting {unknown[0]!r}: there are {', '.join(sorted(known))}")
    chosen: dict[str, Any] = {
        name: tuple(value) if name == "streams" else value for name, value in given.items() if value is not None
    }
    if isinstance(corpus, Tensor | np.ndarray) and corpus.ndim == 2:
        chosen |= {"sequences": len(corpus), "length": corpus.shape[1]}
    elif "length" not in chosen:
        chosen["length"] = min(ScanSettings.length, max_positions or ScanSettings.length)
    return ScanSettings(**chosen)


def needs_tokenizer(corpus: Corpus) -> bool:
    return not isinstance(corpus, Tensor | np.ndarray) and str(corpus) != "builtin:random"


def corpus_name(corpus: Corpus) -> str:
    """What to call a corpus in tables."""
    if isinstance(corpus, Tensor | np.ndarray):
        return "tokens"
    return str(corpus) if isinstance(corpus, str | Path) else " + ".join(map(str, corpus))


def _blocks(corpus: Corpus, tokenizer: Any, settings: ScanSettings, facts: Facts) -> Blocks:
    if isinstance(corpus, Tensor | np.ndarray):
        return token_blocks(corpus, facts.anatomy.vocabulary)
    return read_blocks(
        corpus,
        tokenizer,
        length=settings.length,
        sequences=settings.sequences,
        vocabulary=facts.anatomy.vocabulary,
        by_document=settings.by_document,
        bos=settings.bos,
        seed=settings.seed,
    )


def _named(blocks: Blocks, tokenizer: Any, settings: ScanSettings, facts: Facts) -> Blocks:
    """The blocks with the text of those tokens that the scan counts one by one, where there is a tokenizer."""
    if tokenizer is None:
        return blocks
    counted = most_seen(blocks.tokens[: settings.second_pass], all(layer.causal for layer in facts.anatomy.layers))
    return replace(blocks, token_names={str(token): str(tokenizer.decode([token])) for token in counted})
