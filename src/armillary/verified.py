"""The record of what was verified: each family's sample model, tapped and rebuilt, shipped as data."""

import json
import platform
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from armillary.files import write_atomically

Progress = Callable[[Iterable[str], str], Iterable[str]]


@dataclass(frozen=True)
class SampleCheck:
    """One small random model: were its outputs the same with the tap, and how far off are its worst layers?"""

    identical: bool
    output_error: float | None
    logit_error: float | None
    passed: bool


@dataclass(frozen=True)
class Record:
    """The checks of all samples, and the versions they were made with."""

    versions: dict[str, str]
    samples: dict[str, SampleCheck]


def check_all(names: Iterable[str] | None = None, progress: Progress = lambda names, what: names) -> Record:
    """Verify the sample model of every family and variant, now."""
    from armillary.anatomy.samples import SAMPLES, sample_model
    from armillary.verification import verify

    checks = {}
    for name in progress(list(names or SAMPLES), "verifying"):
        found = verify(sample_model(name))
        checks[name] = SampleCheck(found.identical, found.worst("output"), found.worst("logits"), found.passed)
    return Record(versions(), checks)


def shipped() -> Record:
    """The record that came with this release."""
    stored = json.loads(files("armillary").joinpath("verified.json").read_text(encoding="utf-8"))
    return Record(stored["versions"], {name: SampleCheck(**check) for name, check in stored["samples"].items()})


def write(record: Record, path: Path) -> None:
    """Write a record where `shipped` reads it, or elsewhere."""
    write_atomically(path, (json.dumps(asdict(record), indent=1) + "\n").encode())


def versions() -> dict[str, str]:
    """The versions of what the results depend on."""
    names = ("armillary", "torch", "transformers", "safetensors", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def devices() -> dict[str, Any]:
    """What torch can compute on here."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"threads": torch.get_num_threads(), "cuda": gpus, "mps": torch.backends.mps.is_available()}
