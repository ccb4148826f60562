"""From a model and text to an Atlas: blocks through a tapped model into streams, shard by shard, resumable."""

import atexit
import inspect
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from armillary.anatomy.description import Anatomy
from armillary.anatomy.source import describe
from armillary.atlas import Atlas, open_atlas, write_atlas
from armillary.collector import (
    DEFAULT_STREAMS,
    SAMPLED_SEQUENCES,
    Collector,
    NotFinite,
    Wanted,
    new_streams,
)
from armillary.corpus import Blocks, Bos, read_blocks, token_blocks
from armillary.errors import ArmillaryError
from armillary.files import write_problem
from armillary.layout import entry, find_stack
from armillary.models import fingerprint, load, load_tokenizer
from armillary.passes import Pass, further_passes
from armillary.shards import MERGE_EVERY, ScanFolder, Shard, plan
from armillary.streams import Stream
from armillary.tap import Tap
from armillary.verified import versions
from armillary.view import AttentionView

Corpus = str | Path | Sequence[str | Path] | Tensor | np.ndarray
WhenNaN = Literal["stop", "skip"]
FEW = 16
"""With fewer sequences a note says that positional shares cannot be trusted."""


@dataclass(frozen=True)
class ScanSettings:
    """Everything that the numbers of a scan depend on, besides the model and the text."""

    length: int = 128
    sequences: int = 64
    skip: int = 1
    batch: int = 8
    shard: int = 32
    seed: int = 0
    bos: Bos = "auto"
    by_document: bool = False
    streams: tuple[str, ...] = DEFAULT_STREAMS
    when_nan: WhenNaN = "stop"
    second_pass: int = 64

    def __post_init__(self) -> None:
        for name in ("sequences", "batch", "shard", "second_pass"):
            if getattr(self, name) < 1:
                raise ArmillaryError(f"--{name} {getattr(self, name)} makes no scan: it must be 1 or more")
        self.wanted()

    def wanted(self) -> Wanted:
        return Wanted(self.streams, self.skip, self.length)


class Progress:
    """Told what happens while a scan runs; this one says nothing."""

    def begin(self, shards: int, finished: int, tokens: int) -> None:
        """A scan of so many shards and tokens starts; `finished` shards were there already."""

    def batch_done(self, tokens: int) -> None:
        """A batch of so many tokens went through the model."""

    def shard_done(self, shard: Shard) -> None:
        """A shard is finished and on disk."""

    def note(self, sentence: str) -> None:
        """Something that a person should know."""


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
    trust_remote_code: bool = False,
    progress: Progress | None = None,
    **settings: Any,
) -> Atlas:
    """Scan a model on text and return its Atlas, kept in the folder `out` (without one, until the program ends).

    `model` is a folder, a hub id or a loaded model (then give its tokenizer, or tokens of shape (sequence, token) as
    the corpus). `settings` are the fields of ScanSettings: length, sequences, skip, batch, seed, bos, ...
    """
    _settings(settings, corpus, None)  # a mistake here is told before a large model is loaded
    loaded, name = _load(model, device, dtype, trust_remote_code)
    if tokenizer is None and isinstance(model, str | Path) and needs_tokenizer(corpus):
        tokenizer = load_tokenizer(model, trust_remote_code=trust_remote_code)
    anatomy = describe(loaded)
    chosen = _settings(settings, corpus, anatomy.max_positions)
    anatomy.check_length(chosen.length)
    blocks = _blocks(corpus, tokenizer, chosen, anatomy)
    run = Run(loaded, anatomy, blocks, chosen, name, corpus_name(corpus), progress or Progress())
    if out is not None:
        run.into(Path(out), resume=resume, overwrite=overwrite)
        return open_atlas(out)
    place = Path(mkdtemp(prefix="armillary-"))
    try:
        run.into(place / "scan", resume=False, overwrite=False)
        atlas = open_atlas(place / "scan")
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return atlas


@dataclass
class Run:
    """One scan: what is scanned, how, and who is told."""

    model: nn.Module
    anatomy: Anatomy
    blocks: Blocks
    settings: ScanSettings
    model_name: str
    corpus_name: str
    progress: Progress

    def into(self, folder: Path, *, resume: bool, overwrite: bool) -> None:
        """Run what is not finished yet, merge the shards in their order, write the atlas."""
        description = self.description()
        shards = plan(len(self.blocks.tokens), self.settings.shard)
        with ScanFolder(folder) as place:
            if place.begin(description, resume=resume, overwrite=overwrite):
                return
            merged = new_streams(self.settings.wanted(), self.anatomy)
            done = place.merged(merged)
            self.progress.begin(len(shards), done, self.blocks.tokens.size)
            for note in (*self.blocks.notes, *self._notes(), *([self.anatomy.missing] if self.anatomy.missing else [])):
                self.progress.note(note)
            for shard in shards[done:]:
                streams = self._shard(place, shard)
                for name, stream in streams.items():
                    merged[name].merge(stream)
                self.progress.shard_done(shard)
                if (shard.index + 1) % MERGE_EVERY == 0:
                    place.write_merged(shard.index + 1, merged)
            if not any(stream.states for stream in merged.values()):
                raise ArmillaryError(
                    "every block of this corpus gives NaN or infinite numbers: there is nothing to keep"
                )
            further = self._further(place, shards, merged)
            if further:
                place.write_merged(len(shards), merged)
            for one in further:
                merged |= self._pass(place, one)
            try:
                write_atlas(place, shards, merged, self.anatomy, self.blocks, description, versions())
            except OSError as error:
                shutil.rmtree(place.work / "atlas.zarr", ignore_errors=True)
                raise ArmillaryError(write_problem(place.atlas, error)) from error

    def _notes(self) -> list[str]:
        count = len(self.blocks.tokens)
        if count >= FEW:
            return []
        return [
            f"{count} sequences are few: means by position then hold content too, and positional shares are too large"
        ]

    def _further(self, place: ScanFolder, shards: list[Shard], first: dict[str, Stream]) -> list[Pass]:
        """The rounds after the first, on blocks that gave numbers."""
        skipped = [int(block) for series in place.series(shards) for block in series["skipped"]]
        return further_passes(
            self.settings.wanted(),
            self.anatomy,
            np.delete(self.blocks.tokens, skipped, axis=0),
            first,
            sample=self.settings.second_pass,
            seed=self.settings.seed,
        )

    def _pass(self, place: ScanFolder, one: Pass) -> dict[str, Stream]:
        """The merged streams of a further round, shard by shard; finished shards are read."""
        parts = plan(len(one.tokens), self.settings.shard)
        self.progress.begin(len(parts), 0, one.tokens.size)
        whole = one.streams()
        for part in parts:
            streams = one.streams()
            if not place.has_part(one.name, part, streams):
                self._compute_pass(one, part, streams)
                place.write_part(one.name, part, streams)
            for name, stream in streams.items():
                whole[name].merge(stream)
        return whole

    def _compute_pass(self, one: Pass, part: Shard, streams: dict[str, Stream]) -> None:
        def receive(view: AttentionView) -> None:
            for stream in streams.values():
                stream.update(view.layer, view)

        with Tap(self.model, receive):
            self._run(one.tokens, list(range(part.first, part.last)))
        for stream in streams.values():
            stream.to_cpu()

    def _shard(self, place: ScanFolder, shard: Shard) -> Any:
        """The shard's streams: read where they are finished, computed and kept where not."""
        streams = new_streams(self.settings.wanted(), self.anatomy)
        if place.has_shard(shard, streams):
            return streams
        skipped: list[int] = []
        while True:
            try:
                collector = self._compute(shard, skipped)
                break
            except BadBlocks as bad:
                if self.settings.when_nan == "stop":
                    raise ArmillaryError(
                        f"{bad.place} of block {bad.blocks[0]} gives NaN or infinite numbers: look at that block, "
                        "or leave such blocks out with --when-nan skip"
                    ) from bad
                skipped += bad.blocks
                for block in bad.blocks:
                    self.progress.note(f"block {block} was left out: {bad.place} gives NaN or infinite numbers")
        for stream in collector.streams.values():
            stream.to_cpu()
        place.write_shard(shard, collector.streams, collector.series(), sorted(skipped))
        return collector.streams

    def _compute(self, shard: Shard, skipped: list[int]) -> Collector:
        sampled = max(0, SAMPLED_SEQUENCES - shard.first)
        collector = Collector(self.settings.wanted(), self.anatomy, sampled)
        kept = [block for block in range(shard.first, shard.last) if block not in skipped]
        follows = bool(find_stack(self.model, self.anatomy).blocks)
        with Tap(self.model, collector.on_attention, collector.on_residual if follows else None):
            self._run(self.blocks.tokens, kept)
        return collector

    @torch.no_grad()
    def _run(self, tokens: Int[np.ndarray, "block token"], blocks: list[int]) -> None:
        """Blocks through the model, a batch at a time."""
        part = entry(self.model)
        options = {"use_cache": False} if "use_cache" in inspect.signature(part.forward).parameters else {}
        device = next(self.model.parameters()).device
        for start in range(0, len(blocks), self.settings.batch):
            batch = blocks[start : start + self.settings.batch]
            ids = torch.from_numpy(tokens[batch]).to(device)
            try:
                part(input_ids=ids, **options)
            except NotFinite as found:
                raise BadBlocks(found.place, [batch[row] for row in found.rows]) from found
            self.progress.batch_done(ids.numel())

    def description(self) -> dict[str, Any]:
        """What the numbers depend on; a resumed scan must agree with it."""
        settings = {**asdict(self.settings), "streams": list(self.settings.streams)}
        parameter = next(self.model.parameters())
        return {
            "model": {
                "name": self.model_name,
                "weights": fingerprint(self.model),
                "dtype": str(parameter.dtype).removeprefix("torch."),
                "family": self.anatomy.family,
            },
            "corpus": {"name": self.corpus_name, "sha256": self.blocks.sha256},
            "settings": settings,
        }


class BadBlocks(Exception):
    """Blocks of the corpus on which the model computes numbers that are not finite."""

    def __init__(self, place: str, blocks: list[int]) -> None:
        super().__init__(place, blocks)
        self.place = place
        self.blocks = blocks


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


def _blocks(corpus: Corpus, tokenizer: Any, settings: ScanSettings, anatomy: Anatomy) -> Blocks:
    if isinstance(corpus, Tensor | np.ndarray):
        return token_blocks(corpus, anatomy.vocabulary)
    return read_blocks(
        corpus,
        tokenizer,
        length=settings.length,
        sequences=settings.sequences,
        vocabulary=anatomy.vocabulary,
        by_document=settings.by_document,
        bos=settings.bos,
        seed=settings.seed,
    )


def _load(model: nn.Module | str | Path, device: str, dtype: str, trust_remote_code: bool) -> tuple[nn.Module, str]:
    if isinstance(model, nn.Module):
        model.eval()
        return model, getattr(getattr(model, "config", None), "name_or_path", "") or type(model).__name__
    place = pick_device(device)
    chosen = pick_dtype(dtype, place)
    loaded = load(model, trust_remote_code=trust_remote_code, dtype=chosen)
    return loaded.to(place), str(model)


def pick_device(device: str) -> str:
    """The device that 'auto' means here, or the one that was asked for, if it is there."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ArmillaryError(f"there is no device {device!r} here: {str(error).splitlines()[0]}") from error
    return device


def pick_dtype(dtype: str, device: str) -> torch.dtype | str:
    """'auto' is float32 on a CPU and as stored elsewhere."""
    if dtype == "auto":
        return torch.float32 if device == "cpu" else "auto"
    named = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
    if dtype not in named:
        raise ArmillaryError(f"there is no dtype {dtype!r}: there are auto, {', '.join(named)}")
    return named[dtype]
