"""Several runs of one configuration that differ in their seed: RUN/seed-0, RUN/seed-1, ..., each a run of its own."""

from pathlib import Path
from typing import Any

from armillary.errors import ArmillaryError
from armillary.progress import Progress
from armillary.training.config import RunConfig, seeds_of, with_seed
from armillary.training.run import OnStep, train_run


def train_seeds(
    config: RunConfig,
    folder: Path,
    on_step: OnStep | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> dict[int, dict[str, Any]]:
    """Train a run for each seed, one after the other; finished ones are read, a killed one is resumed.

    Seeds can be added later: the folder's other runs stay.
    """
    seeds = seeds_of(config)
    if seeds is None:
        raise ArmillaryError("this configuration has one seed", advice="train it with train_run, or set training.seeds")
    if (folder / "run.json").is_file():
        raise ArmillaryError(f"{folder} holds a run of one seed", advice="train several seeds into another folder")
    results = {}
    for seed in seeds:
        if progress is not None:
            progress.note(f"Seed {seed}, one of {len(seeds)}.")
        results[seed] = train_run(with_seed(config, seed), folder / f"seed-{seed}", on_step, progress, **options)
    return results


def runs_in(folder: Path) -> list[Path]:
    """The run of a folder, or its runs with several seeds, by seed."""
    if (folder / "run.json").is_file():
        return [folder]
    inside = [path for path in folder.glob("seed-*") if (path / "run.json").is_file()]
    return sorted(inside, key=lambda path: (len(path.name), path.name)) or [folder]
