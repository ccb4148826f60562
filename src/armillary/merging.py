"""Parts of a scan, computed anywhere, become one atlas: the same, to the last bit, as from a single scan."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from armillary.atlas import Atlas, open_atlas
from armillary.engines import opened
from armillary.engines.engine import Engine
from armillary.engines.scan_job import ScanJob
from armillary.errors import ArmillaryError
from armillary.progress import Progress
from armillary.running import FIRST_FILES, Run, read_blocks_of
from armillary.settings import settings_of
from armillary.shards import Part, ScanFolder, Shard, disagreements, essential, plan


@dataclass(frozen=True)
class ScanPart:
    """A folder that `scan --part` wrote: which shards of which scan it holds."""

    folder: ScanFolder
    description: dict[str, Any]
    part: Part
    shards: list[Shard]

    @property
    def path(self) -> Path:
        return self.folder.out


def merge(
    parts: Sequence[str | Path],
    *,
    out: str | Path,
    model: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    device_map: Any = None,
    trust_remote_code: bool = False,
    engine: str | Engine = "local",
    workers: int = 1,
    threads: int | None = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> Atlas:
    """The atlas of a scan whose parts were computed apart, in the folder `out`; the parts stay as they are.

    The shards are merged in their order. What a scan does when it knows the means (constituents, patterns) is done
    here, on a few blocks, and needs the model: from where the parts found it, or from `model`.
    """
    found = read_parts([Path(part) for part in parts])
    if Path(out).resolve() in {one.path.resolve() for one in found}:
        raise ArmillaryError(f"{out} is one of the parts: choose another --out")
    recorded = found[0].description
    job = ScanJob(model or recorded["model"]["name"], device, recorded["model"]["dtype"], trust_remote_code, device_map)
    with opened(engine, workers, threads, address) as started:
        try:
            facts = started.start(job)
        except ArmillaryError as error:
            raise ArmillaryError(
                f"the parts' model is needed to finish their scan, but {error}; name it with --model"
            ) from error
        if (facts.weights, facts.config) != (recorded["model"]["weights"], recorded["model"].get("config")):
            raise ArmillaryError(f"{job.model} has other weights, or another config.json, than the parts' model")
        run = Run(
            started,
            facts,
            read_blocks_of([one.folder for one in found]),
            settings_of(recorded["settings"]),
            recorded["model"]["name"],
            recorded["corpus"]["name"],
            progress or Progress(),
        )
        if run.description()["corpus"] != recorded["corpus"]:
            raise ArmillaryError("the blocks that the parts have kept are not those of their corpus: scan them again")
        adopted = {shard.index: one.folder for one in found for shard in one.shards}
        run.into(Path(out), resume=resume, overwrite=overwrite, adopted=adopted)
    return open_atlas(out)


def read_parts(folders: list[Path]) -> list[ScanPart]:
    """The parts in the order of their shards: of one scan, all of it, none twice, each finished; or an error."""
    if not folders:
        raise ArmillaryError("no parts were given: merge takes folders that `armillary scan --part` wrote")
    found = [_read_part(folder) for folder in folders]
    first = found[0]
    for other in found[1:]:
        unlike = disagreements(_whole(first.description), _whole(other.description))
        if unlike:
            told = "; ".join(f"{what}: {a} and {b}" for what, a, b in unlike)
            raise ArmillaryError(f"{first.path} and {other.path} are parts of different scans ({told})")
    found.sort(key=lambda one: one.shards[0].index)
    _refuse_gaps(found, _all_shards(first.description))
    for one in found:
        _refuse_unfinished(one)
    return found


def _read_part(folder: Path) -> ScanPart:
    place = ScanFolder(folder)
    if place.atlas.exists():
        raise ArmillaryError(
            f"{folder} holds a finished atlas, which has no shards left to merge: merge takes what "
            "`armillary scan --part` wrote"
        )
    try:
        description = json.loads((folder / "scan.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArmillaryError(
            f"{folder} is no part of a scan: merge takes folders that `armillary scan --part` wrote"
        ) from error
    if not isinstance(description, dict) or "part" not in description:
        raise ArmillaryError(f"{folder} holds a scan that is no part of one: finish it with --resume")
    part = Part(description["part"]["number"], description["part"]["of"])
    return ScanPart(place, description, part, part.shards(_all_shards(description)))


def _all_shards(description: dict[str, Any]) -> list[Shard]:
    return plan(description["settings"]["sequences"], description["settings"]["shard"])


def _whole(description: dict[str, Any]) -> dict[str, Any]:
    """What the parts of one scan agree on."""
    return {key: value for key, value in essential(description).items() if key != "part"}


def _refuse_gaps(parts: list[ScanPart], every: list[Shard]) -> None:
    """Raise if shards are in two parts or in none, with which."""
    owner: dict[int, ScanPart] = {}
    for one in parts:
        twice = [shard.index for shard in one.shards if shard.index in owner]
        if twice:
            other = owner[twice[0]]
            raise ArmillaryError(
                f"{other.path} (part {other.part}) and {one.path} (part {one.part}) both hold {_shards(twice)}: "
                "every shard must be in one part only"
            )
        owner |= {shard.index: one for shard in one.shards}
    missing = [shard.index for shard in every if shard.index not in owner]
    if missing:
        of = {one.part.of for one in parts}
        lacking = ""
        if len(of) == 1:
            count = of.pop()
            absent = sorted(set(range(1, count + 1)) - {one.part.number for one in parts})
            lacking = f": part {', '.join(f'{number}/{count}' for number in absent)}"
        raise ArmillaryError(f"{_shards(missing)} of {len(every)} are in none of these folders{lacking}")


def _refuse_unfinished(one: ScanPart) -> None:
    missing = [shard.index for shard in one.shards if not one.folder.holds(FIRST_FILES, shard.index)]
    if missing:
        raise ArmillaryError(
            f"{one.path} (part {one.part}) is not finished, or was damaged: {_shards(missing)} of its "
            f"{len(one.shards)} are missing; go on with  armillary scan ... --part {one.part} --out {one.path} --resume"
        )


def _shards(indices: list[int]) -> str:
    """'shard 3' or 'shards 3 to 5, 9'."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    told = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
    return f"shard{'' if len(indices) == 1 else 's'} {told}"
