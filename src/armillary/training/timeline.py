"""A timeline that is written while a model trains: a scan on fixed tokens at every look, in the store of `timeline`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor, nn

from armillary.anatomy.modes import own_random_numbers
from armillary.atlas.timelines.rows import CheckpointRows, rows_of
from armillary.atlas.timelines.store import write_timeline
from armillary.machine.temporary import remove_folder, temporary_folder
from armillary.observe.verified import versions
from armillary.scanning.options import ScanOptions
from armillary.scanning.scan import scan
from armillary.scanning.timeline_folder import TimelineFolder
from armillary.text.loss import chosen_loss


class TimelineWriter:
    """Adds the heads and layers tables of a model, as it is at a step, to the timeline in `folder`.

    Every look is a scan of `tokens` with the settings of `scan`, so the numbers are those that `timeline` gives for a
    checkpoint of that step. The first look removes what an earlier run measured at this step and later: a run that is
    resumed measures it again. The store is complete after every look.
    """

    def __init__(
        self,
        folder: str | Path,
        tokens: Int[Tensor, "sequence token"],
        columns: Sequence[str] | None = None,
        **settings: Any,
    ) -> None:
        self.folder = Path(folder)
        self.tokens = tokens
        self.columns = columns
        self.settings = settings
        self._rows: dict[int, CheckpointRows] | None = None

    def look(self, model: nn.Module, step: int) -> None:
        """Scan the model and write the timeline with its row."""
        place = temporary_folder()
        options: ScanOptions = {**self.settings}  # type: ignore[typeddict-item]
        try:
            with own_random_numbers():
                atlas = scan(model, self.tokens, out=place / "scan", **options)
            identity, text = atlas.attrs["model"], atlas.attrs["corpus"]
            facts: Any = {
                "name": f"step-{step:08d}",
                "step": step,
                "source": "written while training",
                "identity": identity["weights"],
                **{name: identity[name] for name in ("weights", "config", "dtype")},
                "text": text["sha256"],
                "loss": chosen_loss(atlas.attrs.get("loss")),
                "same_as": None,
            }
            rows = rows_of(atlas, facts, self.columns)
            self._write(rows, atlas.attrs, step)
        finally:
            remove_folder(place)

    def _write(self, rows: CheckpointRows, attributes: dict[str, Any], step: int) -> None:
        layers, heads = rows.shape
        model = attributes["model"]
        columns = None if self.columns is None else list(self.columns)
        description = {"corpus": attributes["corpus"], "settings": attributes["settings"], "columns": columns}
        about = {
            "model": {"title": model["title"], "family": model["family"], "layers": layers, "heads": heads},
            **description,
            "failed": [],
            "notes": [],
            "versions": versions(),
        }
        with TimelineFolder(self.folder) as place:
            place.begin({**description, "dtype": model["dtype"], "adapter": None}, overwrite=False)
            if self._rows is None:
                known = place.stored()
                self._rows = {at: old for old in known.values() if (at := old.facts["step"]) is not None and at < step}
            self._rows[step] = rows
            write_timeline(self.folder, [self._rows[at] for at in sorted(self._rows)], about)
