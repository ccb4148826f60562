"""Where tests find real models: ../shared beside the project, and packages that carry weights."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Two test processes on two cores: more threads would only get in each other's way."""
    torch.set_num_threads(1)


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
