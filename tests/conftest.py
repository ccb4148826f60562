"""What tests share: real models from ../shared and from packages, and atlases that are read and never written."""

import gc
import json
import os
import re
from collections.abc import Iterator
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import torch
from filelock import FileLock

if TYPE_CHECKING:  # at run time armillary must be imported after jaxtyping's hook, so not here
    from armillary.atlas.atlas import Atlas

# Hypothesis would fail an example that takes 0.2 seconds, or takes long to make, which on a busy machine any may.
hypothesis.settings.register_profile(
    "armillary", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("armillary")

os.environ.setdefault("ARMILLARY_CACHE", "")  # tests leave nothing in the user's cache, nor trust what is there
SHARED = Path(__file__).resolve().parents[2] / "shared"
FAMILY_TOKENS = torch.randint(5, 99, (10, 24), generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Two test processes on two cores: more threads would only get in each other's way."""
    torch.set_num_threads(1)


LONGEST = (
    *("ray", "scan", "constituents", "engines", "browser_pages", "damage", "report", "viewer"),
    *("spectral", "tap", "faults", "merge", "columns", "labels", "pages", "damaged_files"),
    *("ending", "effective", "bad_input", "rotary_intervention", "sequences", "training", "experiments_song"),
)
"""Files that take long, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: two processes take a file each, and none should begin a long one when the other is done."""
    ranks = {f"test_{name}": rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


NEWEST_FAMILIES = "5.22"
"""The version of transformers that has all families of the samples."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test that needs a newer transformers than `make test-floor` installs is skipped, in the program's own words."""
    from armillary.anatomy.versions import below, installed
    from armillary.errors import ArmillaryError

    try:
        yield
    except ArmillaryError as error:
        if re.search(r"install (transformers>=|a newer version of transformers)", str(error)):  # anatomy/versions.py
            pytest.skip(str(error))
        raise
    except ValueError as error:
        if "Unrecognized model identifier" in str(error) and below(installed(), NEWEST_FAMILIES):
            pytest.skip(f"transformers has these models since a later version: {str(error)[:60]}")
        raise


def pytest_collection_finish() -> None:
    """What was imported by now stays until the end: the garbage collector need not look through it again."""
    gc.collect()
    gc.freeze()


def shared(path: str) -> Path:
    """A file or folder of ../shared; the test is skipped where it is absent."""
    found = SHARED / path
    if not found.exists():
        pytest.skip(f"{path} is not in ../shared on this machine")
    return found


def inside_package(package: str, path: str) -> Path:
    """A folder inside an installed package; the test is skipped where the package is absent."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the package {package} is not installed (make real-models)")
    return Path(next(iter(spec.submodule_search_locations))) / path


class Atlases:
    """Scans that several tests read: each is computed once, by whichever test process asks for it first."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def folder(self, model: str | Path, corpus: torch.Tensor | str | Path = "builtin:prose", **settings: Any) -> Path:
        """The folder of a scan of a sample (by its name) or of a model's folder. Do not write into it."""
        import armillary as arm
        from armillary.anatomy.samples import sample_model

        text = corpus.tolist() if isinstance(corpus, torch.Tensor) else str(corpus)
        asked = json.dumps([str(model), text, settings], sort_keys=True)
        out = self.place / sha256(asked.encode()).hexdigest()[:16]
        with FileLock(f"{out}.lock"):
            if not (out / "atlas.zarr").exists():
                scanned = sample_model(model) if isinstance(model, str) else model
                arm.scan(scanned, corpus, out=out, overwrite=True, **settings)
        return out

    def __call__(
        self, model: str | Path, corpus: torch.Tensor | str | Path = "builtin:prose", **settings: Any
    ) -> "Atlas":
        """The atlas in that folder."""
        import armillary as arm

        return arm.open_atlas(self.folder(model, corpus, **settings))

    def family(self, name: str) -> "Atlas":
        """A sample scanned on FAMILY_TOKENS with every stream, in several batches and shards."""
        from armillary.streams.registry import OPTIONS

        return self(name, FAMILY_TOKENS, streams=tuple(OPTIONS), batch=4, shard=6)

    def trained(self, name: str) -> "Atlas":
        """stories15M on tinyshakespeare, or a bundled model on the built-in prose, with every stream."""
        import armillary as arm
        from armillary.streams.registry import OPTIONS

        story = name == "stories15M"
        model = shared("models/stories15M") if story else arm.bundled(name)
        corpus = shared("corpora/tinyshakespeare.txt") if story else "builtin:prose"
        return self(model, corpus, streams=tuple(OPTIONS), length=64, sequences=48)


@pytest.fixture(scope="session")
def atlases(tmp_path_factory: pytest.TempPathFactory) -> Atlases:
    base = tmp_path_factory.getbasetemp()
    whole = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # one folder for all processes of this run
    place = whole / "atlases"
    place.mkdir(exist_ok=True)
    return Atlases(place)
