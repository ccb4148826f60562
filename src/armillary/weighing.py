"""From weights alone to an Atlas: the spectra of every head and matrix, one layer in memory at a time, resumable."""

import datetime
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import zarr
from torch import Tensor, nn

from armillary.anatomy.checkpoint import expanded
from armillary.anatomy.description import Anatomy
from armillary.anatomy.source import describe
from armillary.atlas import FORMAT, FORMAT_VERSION, Atlas, open_atlas
from armillary.atlas_writing import Arrays, write_group
from armillary.engines import opened
from armillary.engines.driving import drive
from armillary.engines.engine import Done, Engine, Event, Task
from armillary.errors import ArmillaryError
from armillary.files import write_problem
from armillary.identity import config_hash, fingerprint, folder_identity
from armillary.lenses import products, spectral
from armillary.lenses.effective import effective_product
from armillary.manifest import write_manifest
from armillary.naming import title
from armillary.packing import Packed
from armillary.progress import Progress
from armillary.shards import ScanFolder, Shard
from armillary.temporary import temporary_folder
from armillary.verified import versions

Against = Literal["random"]
Track = Callable[[Iterable[int], str], Iterable[int]]
"""Told the layers and what is done with them; gives them back one by one, showing progress."""


def weigh(
    source: nn.Module | str | Path,
    *,
    out: str | Path | None = None,
    matrices: bool = True,
    against: Against | None = None,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    trust_remote_code: bool = False,
    engine: str | Engine = "local",
    workers: int = 1,
    threads: int | None = None,
    address: str | None = None,
    track: Track = lambda layers, what: layers,
) -> Atlas:
    """The spectra of a model's weights as an Atlas, kept in the folder `out` (without one, until the program ends).

    `source` is a folder of safetensors, a GGUF file (neither is loaded as a model) or a loaded model. `matrices` also
    compares q, k, v, o, gate, up and down with random matrices: the longer part of the work. against="random" adds the
    spectra of Gaussian weights of the same shapes and norms, in columns that end in _random. Several `workers` share
    the layers, as processes here or on the Ray cluster at `address` (engine="ray").
    """
    if against not in (None, "random"):
        raise ArmillaryError(f"against={against!r} is not known: it can be 'random'")
    anatomy = describe(source, trust_remote_code=trust_remote_code)
    if not isinstance(source, nn.Module) and not Path(expanded(source)).exists():
        raise ArmillaryError(f"the weights of {source} are read from its files: download the model and give its folder")
    anatomy.weights(0)  # says why, where there are none
    settings = {"streams": [], "matrices": matrices, "against": against, "seed": seed}
    description = {
        "model": {"name": _name(source), **_identity(source, trust_remote_code), "family": anatomy.family},
        "corpus": {"name": "none: weights alone"},
        "settings": settings,
    }
    place = temporary_folder() if out is None else Path(out)
    with ScanFolder(place) as folder:
        if not folder.begin(description, resume=resume, overwrite=overwrite):
            with opened(engine, workers, threads, address) as found:
                found.start(WeighJob(source, matrices, against, seed, trust_remote_code))
                layers = _Layers(folder, iter(track(range(len(anatomy.layers)), "layers")), len(anatomy.layers))
                drive(found, layers, Progress(), len(layers))
            _refuse_changed(folder, description, _identity(source, trust_remote_code))
            try:
                _write(folder, anatomy, description)
            except OSError as error:
                shutil.rmtree(folder.work / "atlas.zarr", ignore_errors=True)
                raise ArmillaryError(write_problem(folder.atlas, error)) from error
    return open_atlas(place)


@dataclass(frozen=True)
class WeighJob:
    """The checkpoint of which workers take a layer each, and what is computed of it."""

    source: nn.Module | str | Path
    matrices: bool
    against: Against | None
    seed: int
    trust_remote_code: bool

    @property
    def here_only(self) -> bool:
        return isinstance(self.source, nn.Module)

    def open(self, number: int, workers: int) -> "WeighBench":
        return WeighBench(self)

    def differences(self, first: dict[str, str], other: dict[str, str]) -> list[str]:
        unlike = [name for name in first if other.get(name) != first[name]]
        return [f"{name} {other.get(name)} instead of {first[name]}" for name in unlike]


class WeighBench:
    """A described checkpoint; a layer's weights are read when its task comes."""

    def __init__(self, job: WeighJob) -> None:
        self._job = job
        self._anatomy = describe(job.source, trust_remote_code=job.trust_remote_code)
        self.facts = {**({} if job.here_only else _identity(job.source, job.trust_remote_code)), **versions()}

    def share(self, data: bytes) -> None:
        """Layers have nothing in common."""

    def run(self, task: Task) -> Iterator[Event]:
        layer, job = task.shard.index, self._job
        yield Done({"layer": Packed(layer_arrays(self._anatomy, layer, job.matrices, job.against, job.seed))})


class _Layers:
    """A task for every layer; there is nothing to merge, but `told` moves on by one for each that is finished."""

    def __init__(self, folder: ScanFolder, told: Iterator[int], count: int) -> None:
        self._folder, self._told, self._count = folder, told, count
        next(told, None)  # the first layer is begun

    def __len__(self) -> int:
        return self._count

    def task(self, position: int) -> Task:
        return Task("layer", Shard(position, position, position + 1))

    def has(self, position: int) -> bool:
        return self._folder.holds(("layer",), position)

    def keep(self, position: int, done: Done) -> None:
        self._folder.keep(position, done.files)

    def merge(self, position: int) -> None:
        next(self._told, None)


def layer_arrays(
    anatomy: Anatomy, layer: int, matrices: bool = True, against: Against | None = None, seed: int = 0
) -> dict[str, Tensor]:
    """Everything that is kept of one layer; its weights are gone when this returns."""
    here, weights = anatomy.layers[layer], anatomy.weights(layer)
    bad = weights.not_finite()
    if bad:
        raise ArmillaryError(
            f"layer {layer} holds NaN or infinite numbers in {', '.join(bad[:3])}, so it has no spectrum: "
            "repair the checkpoint"
        )
    arrays = _head_arrays(products.layer_spectra(here, weights), "")
    if any(layer.qk_norm is not None for layer in anatomy.layers):
        rows = spectral.effective_rows(effective_product(here, weights))
        arrays |= {str(name): torch.tensor(column.to_numpy(np.float64)) for name, column in rows.items()}
    if against == "random":
        noise = spectral.random_like(weights, (seed * 1_000_003 + layer) % 2**63)
        arrays |= _head_arrays(products.layer_spectra(here, noise), "_random")
    del weights
    for name, matrix in anatomy.matrices(layer) if matrices else ():
        if not bool(matrix.isfinite().all()):
            raise ArmillaryError(
                f"the matrix {name!r} of layer {layer} holds NaN or infinite numbers: repair the checkpoint"
            )
        arrays[f"matrix.{name}"] = torch.from_numpy(spectral.squared_singular_values(matrix))
        arrays[f"shape.{name}"] = torch.tensor(matrix.shape)
    return arrays


def _head_arrays(found: products.LayerSpectra, suffix: str) -> dict[str, Tensor]:
    columns = spectral.head_rows(0, found).drop(columns=["layer", "head"])
    arrays = {f"{name}{suffix}": torch.tensor(column.to_numpy(np.float64)) for name, column in columns.items()}
    for name, product in (("qk", found.qk), ("ov", found.ov)):
        arrays[f"{name}_singular{suffix}"] = torch.from_numpy(product.singular)
        arrays[f"{name}_eigenvalue{suffix}"] = torch.view_as_real(torch.from_numpy(product.eigenvalues)).clone()
    return arrays


def spectral_arrays(layers: list[dict[str, Tensor]]) -> Arrays:
    """The heads' spectra of all layers: (layer, head), (layer, head, component), eigenvalues with (real, imaginary)."""
    dims = {2: ("layer", "head"), 3: ("layer", "head", "component"), 4: ("layer", "head", "component", "complex")}
    names = [name for name in layers[0] if "." not in name]
    stacked = {name: torch.stack([layer[name] for layer in layers]).numpy() for name in names}
    return {name: (dims[values.ndim], values) for name, values in stacked.items()}


def of_anatomy(anatomy: Anatomy) -> Arrays:
    """The heads' spectra of a model at hand; layers that share their weights are computed once."""
    found: dict[str, dict[str, Tensor]] = {}
    for layer in anatomy.layers:
        if layer.block not in found:
            found[layer.block] = layer_arrays(anatomy, layer.index, matrices=False)
    return spectral_arrays([found[layer.block] for layer in anatomy.layers])


def _matrix_arrays(layers: list[dict[str, Tensor]]) -> Arrays:
    """Squared singular values of every matrix, a row per layer, filled up with NaN where layers differ."""
    arrays: Arrays = {}
    for name in dict.fromkeys(
        key.removeprefix("matrix.") for one in layers for key in one if key.startswith("matrix.")
    ):
        rows = [one.get(f"matrix.{name}", torch.empty(0, dtype=torch.float64)) for one in layers]
        values = np.full((len(rows), max(map(len, rows))), np.nan)
        for row, found in zip(values, rows, strict=True):
            row[: len(found)] = found.numpy()
        arrays[name] = (("layer", f"component_{name}"), values)
    return arrays


def _write(folder: ScanFolder, anatomy: Anatomy, description: dict[str, Any]) -> None:
    from armillary.lenses.tables import write_tables

    layers = [folder.layer(layer.index) for layer in anatomy.layers]
    kept = [layer for layer in layers if layer is not None]
    if len(kept) < len(layers):
        raise ArmillaryError(f"a finished layer in {folder.work} was damaged: run again with --resume")
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
        "notes": _notes(kept, description),
    }
    zarr.create_group(part, attributes=attributes)
    write_group(part, "spectral", spectral_arrays(kept))
    if description["settings"]["matrices"]:
        shapes = [
            {key.removeprefix("shape."): one[key].tolist() for key in one if key.startswith("shape.")} for one in kept
        ]
        write_group(part, "matrices", _matrix_arrays(kept), {"shapes": shapes})
    write_tables(Atlas(part))
    write_manifest(part)
    part.replace(folder.atlas)


def _notes(layers: list[dict[str, Tensor]], description: dict[str, Any]) -> list[str]:
    if description["settings"]["matrices"] and not any("matrix.down" in layer for layer in layers):
        return ["experts and other parts that are no single matrix are left out of the matrices"]
    return []


def _refuse_changed(folder: ScanFolder, description: dict[str, Any], now: dict[str, str]) -> None:
    """Layers were read one after the other: if the checkpoint was changed meanwhile, they are of two models."""
    if any(description["model"][name] != value for name, value in now.items()):
        folder.clear()
        raise ArmillaryError(
            f"{description['model']['name']} was changed while its layers were read: run again when it is whole"
        )


def _name(source: nn.Module | str | Path) -> str:
    if isinstance(source, nn.Module):
        return getattr(getattr(source, "config", None), "name_or_path", "") or type(source).__name__
    return str(source)


def _identity(source: nn.Module | str | Path, trust_remote_code: bool) -> dict[str, str]:
    """Which model this is, whoever reads it and wherever it lies."""
    if isinstance(source, nn.Module):
        return {"weights": fingerprint(source), "config": config_hash(source)}
    return {"weights": folder_identity(source, trust_remote_code=trust_remote_code)}
