"""Makes an atlas from weights alone: spectra of every head and matrix, one layer in memory at a time, resumable."""

import datetime
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
import zarr
from torch import Tensor, nn

from armillary.anatomy.description import Anatomy
from armillary.anatomy.hub import commit_of, fetched
from armillary.anatomy.identity import config_hash, fingerprint, folder_identity
from armillary.anatomy.loading import tokenizer_of
from armillary.anatomy.naming import title
from armillary.anatomy.options import complete, keywords, refuse_idle
from armillary.anatomy.source import describe
from armillary.atlas.arrays import Arrays, write_group
from armillary.atlas.atlas import FORMAT, FORMAT_VERSION, Atlas, open_atlas
from armillary.atlas.manifest import write_manifest
from armillary.atlas.tables import write_tables
from armillary.engines import opened
from armillary.engines.driving import drive
from armillary.engines.engine import Done, Event, Task
from armillary.engines.packing import Packed
from armillary.errors import ArmillaryError
from armillary.files.atomic import write_problem
from armillary.lenses.power_law import FITTED, SPECTRA, require_powerlaw
from armillary.lenses.spectral import MATRICES
from armillary.lenses.tables import tables
from armillary.lenses.vocabulary import VocabularyLens
from armillary.machine.temporary import temporary_folder
from armillary.observe.verified import versions
from armillary.progress import Progress
from armillary.scanning.folder import FileKind, ScanFolder
from armillary.scanning.options import WeighOptions
from armillary.scanning.spectra import Against, layer_arrays, spectral_arrays
from armillary.scanning.tasks import LayerSpectra
from armillary.scanning.vocabulary import vocabulary_arrays
from armillary.scanning.weight_changes import change_arrays, change_group, refuse_other_shape
from armillary.text.vocabulary import Vocabulary, vocabulary_of


@keywords(WeighOptions)
def weigh(
    source: nn.Module | str | Path,
    *,
    out: str | Path | None = None,
    matrices: bool = True,
    against: nn.Module | str | Path | None = None,
    seed: int = 0,
    delta: bool = False,
    vocabulary: bool = True,
    power_law: bool = False,
    **options: Unpack[WeighOptions],
) -> Atlas:
    """The spectra of a model's weights as an Atlas, kept in the folder `out` (without one, until the program ends).

    `source` is a folder of safetensors, a hub id, a GGUF file (none is loaded as a model) or a loaded model. Quantized
    weights are decoded; an `adapter` is merged, or with `delta` its changes are weighed alone. `matrices` also
    compares q, k, v, o, gate, up and down with random matrices, which takes most of the time; `power_law` also fits
    the tail of their spectra. against="random" adds the spectra of Gaussian weights of the same shapes and norms, in
    columns that end in _random. against=MODEL, another model of the same shape (the one that this one was fine-tuned
    from, or an earlier checkpoint), adds the table `weight_changes`, and so does `delta`. `vocabulary` adds what heads
    write, in tokens (lenses/vocabulary.py): embeddings are read once, and once a layer. Several `workers` share the
    layers, as local processes or on the Ray cluster at `address` (engine="ray").
    """
    chosen: WeighOptions = complete(options, WeighOptions, "weigh")
    if power_law and not matrices:
        raise ArmillaryError("`power_law=True` fits the spectra of whole matrices", advice="leave `matrices=True`")
    if power_law:
        require_powerlaw()
    files = Files.of(source, chosen, delta)
    base = _base(files, against, chosen)
    anatomy = files.describe()
    anatomy.weights(0)  # raises an error with the reason if the weights cannot be read
    if base is not None:
        refuse_other_shape(anatomy, base.describe())
    kind: Against | None = "random" if _is_random(against) else None if base is None or delta else "model"
    settings: dict[str, Any] = {"streams": [], "matrices": matrices, "against": kind, "seed": seed}
    asked = (("delta", delta, False), ("vocabulary", vocabulary, True), ("power_law", power_law, False))
    settings |= {name: value for name, value, usual in asked if value != usual}
    description = {
        "model": {"name": _name(source), **files.identity(), **files.record(), "family": anatomy.family},
        "corpus": {"name": "none: weights alone"},
        "settings": settings,
    }
    if base is not None:
        description["against"] = {"name": _name(base.source), **base.identity(), **base.record()}
    place = temporary_folder() if out is None else Path(out)
    with ScanFolder(place) as folder:
        if not folder.begin(description, resume=chosen["resume"], overwrite=chosen["overwrite"]):
            job = WeighJob(files, base, matrices, kind == "random", seed, power_law, vocabulary and not delta)
            _read_layers(job, folder, len(anatomy.layers), chosen)
            _refuse_changed(folder, description["model"], files.identity())
            if base is not None:
                _refuse_changed(folder, description["against"], base.identity())
            try:
                _write(folder, anatomy, description, files.vocabulary(anatomy) if vocabulary and not delta else None)
            except OSError as error:
                shutil.rmtree(folder.work / "atlas.zarr", ignore_errors=True)
                raise ArmillaryError(write_problem(folder.atlas, error)) from error
    return open_atlas(place)


def _read_layers(job: "WeighJob", folder: ScanFolder, count: int, options: WeighOptions) -> None:
    """Let the workers compute what is missing of every layer, into the folder."""
    with opened(options["engine"], options["workers"], options["threads"], options["address"]) as engine:
        engine.start(job)
        layers, progress = _Layers(folder, count), options["progress"] or Progress()
        progress.begin("reading weights", len(layers), "layers")
        drive(engine, layers, progress, len(layers))


@dataclass(frozen=True)
class Files:
    """Where weights are read from: a loaded model, or a folder, GGUF file or hub id, of one commit, with an adapter."""

    source: nn.Module | str | Path
    revision: str | None
    adapter: str | None
    delta: bool
    trust_remote_code: bool

    @classmethod
    def of(cls, source: nn.Module | str | Path, options: WeighOptions, delta: bool) -> "Files":
        """The files; those of a hub id are fetched, so that all workers read the same commit."""
        revision, adapter = options["revision"], options["adapter"]
        if isinstance(source, nn.Module):
            refuse_idle(options, ("trust_remote_code",), "the model is already loaded")
        else:
            revision = commit_of(fetched(source, revision=revision)) or revision
        return cls(source, revision, None if adapter is None else str(adapter), delta, options["trust_remote_code"])

    def describe(self) -> Anatomy:
        """The anatomy, with weights that are read a layer at a time."""
        if isinstance(self.source, nn.Module):
            return describe(self.source)
        place, trusted = fetched(self.source, revision=self.revision), self.trust_remote_code
        return describe(place, trust_remote_code=trusted, adapter=self.adapter, delta=self.delta)

    def identity(self) -> dict[str, str]:
        """Hashes that identify the model, independent of its path."""
        if isinstance(self.source, nn.Module):
            return {"weights": fingerprint(self.source), "config": config_hash(self.source)}
        place = fetched(self.source, revision=self.revision)
        return {"weights": folder_identity(place, trust_remote_code=self.trust_remote_code, adapter=self.adapter)}

    def vocabulary(self, anatomy: Anatomy) -> Vocabulary | None:
        """The texts of tokens, where a tokenizer lies beside the weights."""
        if isinstance(self.source, nn.Module):
            return None
        try:
            return vocabulary_of(tokenizer_of(self.source, {"revision": self.revision}), anatomy.vocabulary)
        except ArmillaryError:
            return None  # tokens are then named by their numbers

    def record(self) -> dict[str, str]:
        """The commit and the adapter, where there are any."""
        return {name: value for name, value in (("revision", self.revision), ("adapter", self.adapter)) if value}


def _is_random(against: nn.Module | str | Path | None) -> bool:
    return isinstance(against, str) and against == "random"


def _base(files: Files, against: nn.Module | str | Path | None, options: WeighOptions) -> Files | None:
    """The model that changes are measured from: the one given, or with `delta` the model without its adapter."""
    if files.delta:
        if against is not None and not _is_random(against):
            raise ArmillaryError(
                "`delta=True` is the adapter's change of its own model",
                advice="leave out `delta` to compare the adapted model with another one",
            )
        return replace(files, adapter=None, delta=False)
    if against is None or _is_random(against):
        return None
    plain: WeighOptions = {**options, "revision": None, "adapter": None}
    return Files.of(against, plain, delta=False)


@dataclass(frozen=True)
class WeighJob:
    """The checkpoint whose layers the workers read, the one that it is compared with, and what they compute."""

    files: Files
    base: Files | None
    matrices: bool
    random: bool
    seed: int
    power_law: bool
    vocabulary: bool

    @property
    def here_only(self) -> bool:
        return any(isinstance(files.source, nn.Module) for files in (self.files, self.base) if files is not None)

    def open(self, number: int, workers: int) -> "WeighBench":
        return WeighBench(self)

    def differences(self, first: dict[str, str], other: dict[str, str]) -> list[str]:
        unlike = [name for name in first if other.get(name) != first[name]]
        return [f"{name} {other.get(name)} instead of {first[name]}" for name in unlike]


class WeighBench:
    """A worker's checkpoint; a layer's weights are read when its task arrives."""

    def __init__(self, job: WeighJob) -> None:
        self._job = job
        self._anatomy = job.files.describe()
        self._base = None if job.base is None else job.base.describe()
        self.facts = {**({} if job.here_only else self._identity()), **versions()}
        self._lens: VocabularyLens | None = None
        if job.vocabulary:
            with suppress(ArmillaryError):  # a model without an unembedding
                self._lens = VocabularyLens(self._anatomy.ends(), job.seed)

    def _identity(self) -> dict[str, str]:
        base = {} if self._job.base is None else self._job.base.identity()
        return {**self._job.files.identity(), **{f"{name} compared with": value for name, value in base.items()}}

    def share(self, data: bytes) -> None:
        """Layers share no data."""

    def run(self, task: Task) -> Iterator[Event]:
        layer, job = task.work.layer, self._job
        arrays = layer_arrays(self._anatomy, layer, job.matrices, job.random, job.seed, job.power_law)
        if self._base is not None:
            arrays |= change_arrays(
                self._anatomy, self._base, layer, matrices=job.matrices, seed=job.seed, delta=job.files.delta
            )
        if self._lens is not None:
            tokens = self._lens.layer(self._anatomy.layers[layer], self._anatomy.weights(layer))
            arrays |= {f"vocabulary.{name}": tensor.contiguous() for name, tensor in tokens.items()}
        yield Done({FileKind.LAYER: Packed(arrays)})


class _Layers:
    """A task for every layer; there is nothing to merge."""

    def __init__(self, folder: ScanFolder, count: int) -> None:
        self._folder, self._count = folder, count

    def __len__(self) -> int:
        return self._count

    def task(self, position: int) -> Task:
        return Task(LayerSpectra(position))

    def units(self, position: int) -> int:
        return 1

    def has(self, position: int) -> bool:
        return self._folder.holds((FileKind.LAYER,), position)

    def keep(self, position: int, done: Done) -> None:
        self._folder.keep(position, done.files)

    def merge(self, position: int) -> None:
        """Layers are not merged."""

    def failure(self, position: int, step: int | None, why: str, tries: int) -> ArmillaryError:
        return ArmillaryError(f"layer {position} failed: {why}; `resume=True` continues with the others")


def _matrix_arrays(layers: list[dict[str, Tensor]]) -> Arrays:
    """Squared singular values of every matrix, a row per layer, padded with NaN where layers have fewer."""
    arrays: Arrays = {}
    for name in dict.fromkeys(
        key.removeprefix("matrix.") for layer in layers for key in layer if key.startswith("matrix.")
    ):
        spectra = [layer.get(f"matrix.{name}", torch.empty(0, dtype=torch.float64)) for layer in layers]
        values = np.full((len(spectra), max(map(len, spectra))), np.nan)
        for row, spectrum in zip(values, spectra, strict=True):
            row[: len(spectrum)] = spectrum.numpy()
        arrays[name] = (("layer", f"component_{name}"), values)
    return arrays


def _power_law_arrays(layers: list[dict[str, Tensor]]) -> Arrays:
    """The fits of every matrix: (layer, spectrum, fitted), NaN for a layer without that matrix."""
    none = torch.full((len(SPECTRA), len(FITTED)), torch.nan, dtype=torch.float64)
    return {
        name: (
            ("layer", "spectrum", "fitted"),
            torch.stack([layer.get(f"power_law.{name}", none) for layer in layers]).numpy(),
        )
        for name in MATRICES
        if any(f"power_law.{name}" in layer for layer in layers)
    }


def _write(folder: ScanFolder, anatomy: Anatomy, description: dict[str, Any], vocabulary: Vocabulary | None) -> None:
    layers = [folder.layer(layer.index) for layer in anatomy.layers]
    finished = [layer for layer in layers if layer is not None]
    if len(finished) < len(layers):
        raise ArmillaryError(f"a finished layer in {folder.work} was damaged", advice="run again with `resume=True`")
    part = folder.work / "atlas.zarr"
    shutil.rmtree(part, ignore_errors=True)
    attributes = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **description,
        "model": {**description["model"], "title": title(description["model"]["name"])},
        "anatomy": anatomy.as_dict(),
        "versions": versions(),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "notes": _notes(finished, description),
    }
    zarr.create_group(part, attributes=attributes)
    spectra = [{key: layer[key] for key in layer if not key.startswith("vocabulary.")} for layer in finished]
    write_group(part, "spectral", spectral_arrays(spectra))
    if description["settings"]["matrices"]:
        shapes = [
            {key.removeprefix("shape."): layer[key].tolist() for key in layer if key.startswith("shape.")}
            for layer in finished
        ]
        write_group(part, "matrices", _matrix_arrays(finished), {"shapes": shapes})
    tokens = [
        {key.removeprefix("vocabulary."): layer[key] for key in layer if key.startswith("vocabulary.")}
        for layer in finished
    ]
    if any(tokens):
        write_group(part, "vocabulary", vocabulary_arrays(tokens, vocabulary))
    if description["settings"].get("power_law"):
        write_group(part, "power_law", _power_law_arrays(finished), {"spectrum": SPECTRA, "fitted": FITTED})
    if "against" in description:
        write_group(part, "weight_changes", *change_group(finished))
    write_tables(part, tables(Atlas(part)))
    write_manifest(part)
    part.replace(folder.atlas)


def _notes(layers: list[dict[str, Tensor]], description: dict[str, Any]) -> list[str]:
    notes = []
    if description["settings"]["matrices"] and not any("matrix.down" in layer for layer in layers):
        notes.append("experts and other parts that are not a single matrix are left out of the matrices")
    if description.get("against", {}).get("weights") == description["model"]["weights"]:
        notes.append("the two models have the same weights: nothing changed")
    return notes


def _refuse_changed(folder: ScanFolder, model: dict[str, Any], now: dict[str, str]) -> None:
    """Raise if the checkpoint was changed while its layers were read: the spectra would be of two models."""
    if any(model[name] != value for name, value in now.items()):
        folder.clear()
        raise ArmillaryError(
            f"{model['name']} was changed while its layers were read",
            advice="run again when it is whole",
        )


def _name(source: nn.Module | str | Path) -> str:
    if isinstance(source, nn.Module):
        return getattr(getattr(source, "config", None), "name_or_path", "") or type(source).__name__
    return str(source)
