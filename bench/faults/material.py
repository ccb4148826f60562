"""The small models, texts and settings that cases start from."""

import shutil
from pathlib import Path

SCAN = [
    "--corpus",
    "builtin:random",
    "--length",
    "16",
    "--sequences",
    "12",
    "--batch",
    "1",
    "--shard",
    "1",
    "--second-pass",
    "6",
]
"""A scan that is cut into many small pieces of work."""
RUN = """
[model]
family = "llama"
layers = 1
heads = 2
width = 16
[data]
corpus = "text.txt"
[training]
steps = 24
batch = 2
length = 32
warmup = 2
learning_rate = 3e-3
checkpoint_every = 3
[monitor]
every = 4
sequences = 2
"""
TEXT = "The quick brown fox jumps over the lazy dog, and the dog looks at the fox. " * 400


def sample_folder(name: str, place: Path, seed: int = 0, **options: object) -> Path:
    """A small random model of a family, saved."""
    from armillary.anatomy.samples import sample_model

    sample_model(name, seed=seed).save_pretrained(place, **options)
    return place


def training_config(place: Path) -> Path:
    """The file that `armillary train` reads, and its text."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "text.txt").write_text(TEXT)
    config = place / "run.toml"
    config.write_text(RUN.replace("text.txt", str(place / "text.txt")))
    return config


def copied(folder: Path, place: Path) -> Path:
    """A copy that a case may damage."""
    shutil.copytree(folder, place, symlinks=True)
    return place
