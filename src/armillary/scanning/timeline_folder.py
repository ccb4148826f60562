"""The folder of a timeline: its lock, the rows of finished checkpoints, and how it is continued.

OUT/timeline.json      text, settings and columns, with its checksum
OUT/work/rows-NAME     the rows of a finished checkpoint, with their checksum; removed once the store has them
OUT/atlases/NAME       the scan of a checkpoint; removed once its rows are saved, unless they are to be kept
OUT/timeline.zarr      the result
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from armillary.atlas.differences import differences, essential
from armillary.atlas.timelines.rows import CheckpointRows, from_bytes, to_bytes
from armillary.atlas.timelines.timeline import STORE, Timeline, open_timeline
from armillary.errors import ArmillaryError
from armillary.files.atomic import read_checked, recover, remove_leftovers, remove_with_checksum, write_with_checksum
from armillary.files.lock import FolderLock
from armillary.files.records import read_record

RECORD = "timeline.json"


class TimelineFolder:
    """The folder of a timeline; inside `with`, locked for this process."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._lock = FolderLock(out, "timeline")
        self.work = self._lock.work
        self._stored: dict[str, CheckpointRows] | None = None

    def __enter__(self) -> "TimelineFolder":
        self._lock.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.__exit__(*exception)

    def begin(self, description: dict[str, Any], *, overwrite: bool) -> None:
        """Start a timeline here, or continue the one that is here; an error if it is a different one."""
        record = self.out / RECORD
        recover(self.out / STORE)  # a kill between two renames
        if overwrite:
            self._clear()
        elif record.is_file():
            before: dict[str, Any] = read_record(record, dict[str, Any], "`overwrite=True` starts again")
            different = differences(essential(before), essential(description))
            if different:
                raise ArmillaryError(
                    f"{self.out} holds a timeline with other settings ({'; '.join(different[:3])})",
                    advice="`overwrite=True` starts again, or choose another `out`",
                )
            remove_leftovers(self.out)
            return
        elif any(path != self.work and not path.name.startswith(RECORD) for path in self.out.iterdir()):
            raise ArmillaryError(f"{self.out} holds other files", advice="choose a new or empty folder for `out`")
        write_with_checksum(record, [json.dumps(description, indent=1).encode()])

    def _clear(self) -> None:
        """Remove the timeline that is here, its record last, so that after a kill it is still known to be one."""
        for name in (STORE, "atlases"):
            shutil.rmtree(self.out / name, ignore_errors=True)
        for path in self.work.iterdir():
            if path.name != "lock":
                path.unlink()
        remove_with_checksum(self.out / RECORD)

    def atlas(self, name: str) -> Path:
        """The folder of a checkpoint's scan."""
        return self.out / "atlases" / name

    def rows(self, name: str) -> CheckpointRows | None:
        """The saved rows of a checkpoint, or those in the finished store; None if it was not measured."""
        data = read_checked(self._path(name))
        return from_bytes(data) if data is not None else self.stored().get(name)

    def stored(self) -> dict[str, CheckpointRows]:
        """The rows of the store that an earlier run wrote, by name."""
        if self._stored is None:
            self._stored = rows_in(open_timeline(self.out)) if (self.out / STORE).exists() else {}
        return self._stored

    def keep(self, rows: CheckpointRows) -> None:
        """Save the rows of a checkpoint; once this returns, a kill does not lose them."""
        write_with_checksum(self._path(rows.facts["name"]), [to_bytes(rows)])

    def done(self) -> None:
        """Remove the saved rows, which the store has now."""
        for path in self.work.glob("rows-*"):
            path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.work / f"rows-{name}"


def rows_in(timeline: Timeline) -> dict[str, CheckpointRows]:
    """The rows of every checkpoint of a store, by name: written again, they give the same bytes."""
    heads, layers = timeline.heads, timeline.layers
    columns = [str(name) for name, values in heads.data_vars.items() if "checkpoint" in values.dims]
    numbers = {name: heads[name].to_numpy() for name in columns if heads[name].dtype.kind == "f"}
    words = {name: np.asarray(heads[name].to_numpy(), object) for name in columns if name not in numbers}
    of_layers = {str(name): values.to_numpy() for name, values in layers.data_vars.items()}
    return {
        facts["name"]: CheckpointRows(
            facts,
            {name: values[at] for name, values in numbers.items()},
            {name: values[at] for name, values in words.items()},
            {name: values[at] for name, values in of_layers.items()},
        )
        for at, facts in enumerate(timeline.attrs["checkpoints"])
    }


def disk_use(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
