"""The verification record: each family's sample model, checked with the tap; shipped as data."""

import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

from armillary.files.atomic import write_atomically
from armillary.progress import Progress

# Imports inside functions: versions are printed without importing torch.


@dataclass(frozen=True)
class SampleCheck:
    """One small random model: whether its outputs are the same with the tap, and the largest errors of its layers."""

    identical: bool
    output_error: float | None
    logit_error: float | None
    passed: bool
    constituent_error: float | None = None
    share_error: float | None = None


@dataclass(frozen=True)
class Record:
    """The checks of all samples, and the versions they were made with."""

    versions: dict[str, str]
    samples: dict[str, SampleCheck]


def check_all(
    names: Iterable[str] | None = None,
    progress: Progress | None = None,
    device: str = "cpu",
    dtype: str = "auto",
    attn_implementation: str | None = None,
) -> Record:
    """Verify the sample model of every family and variant that the installed transformers can run, now, on a device and
    in a precision (as they are made)."""
    # for start-up: models need torch and transformers
    from armillary.anatomy.devices import pick_device, pick_dtype
    from armillary.anatomy.other_samples import part_of
    from armillary.anatomy.samples import SAMPLES, sample_model, unavailable
    from armillary.observe.verification import verify

    checks = {}
    available = [name for name in names or SAMPLES if not unavailable(name)]
    for name in (progress or Progress()).each(available, "families"):
        model = sample_model(name)
        if attn_implementation is not None:
            model.set_attn_implementation(attn_implementation)
        chosen = pick_dtype(dtype, device)
        model = model.to(device=pick_device(device), dtype=None if isinstance(chosen, str) else chosen)
        result = verify(model, part=part_of(name))
        checks[name] = SampleCheck(
            result.identical,
            result.worst("output"),
            result.worst("logits"),
            result.passed,
            result.worst("constituents"),
            result.worst("shares"),
        )
    return Record(versions(), checks)


def shipped() -> Record:
    """The record that came with this release."""
    stored = json.loads(files("armillary.observe").joinpath("verified.json").read_text(encoding="utf-8"))
    return Record(stored["versions"], {name: SampleCheck(**check) for name, check in stored["samples"].items()})


def write(record: Record, path: Path) -> None:
    """Write a record where `shipped` reads it, or elsewhere."""
    write_atomically(path, (json.dumps(asdict(record), indent=1) + "\n").encode())


def versions() -> dict[str, str]:
    """The versions of the packages that results depend on."""
    names = ("armillary", "torch", "transformers", "safetensors", "numpy")
    try:
        numba = version("numba")
    except PackageNotFoundError:
        numba = "not installed"
    return {"python": platform.python_version(), **{name: version(name) for name in names}, "numba": numba}


def devices() -> dict[str, Any]:
    """The devices that torch can use on this machine."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"threads": torch.get_num_threads(), "cuda": gpus, "mps": torch.backends.mps.is_available()}
