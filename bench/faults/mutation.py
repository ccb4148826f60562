"""What a mutation of a model folder is: a change, and whether the folder can still be a model."""

import random
from collections.abc import Callable
from pathlib import Path

REFUSE, SAME, FREE = "refuse", "same", "free"
"""All must refuse the folder; all must give what the undamaged one gives; what is accepted must be what an independent
reading gives."""
Mutation = Callable[[Path, random.Random], tuple[str, str]]
"""Changes the folder; says what is expected of it now, and what it did."""


def sentinel(folder: Path) -> Path:
    """The file that appears if code from the folder is run."""
    return folder.parent / "code-was-run"


def some_weights(folder: Path, rng: random.Random) -> Path:
    """One of the files with weights."""
    return rng.choice(sorted(folder.glob("*.safetensors")))
