"""The Timeline: heads and layers of many checkpoints as labeled arrays that xarray alone can open."""

import json
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from armillary.atlas.columns import is_measure
from armillary.atlas.manifest import PLACE, Manifest, damage_sentence, read_manifest
from armillary.atlas.record import read_attributes
from armillary.atlas.timelines.rows import CheckpointFacts
from armillary.errors import ArmillaryError, brief
from armillary.files.records import mismatch
from armillary.text.numerals import head_name

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import xarray as xr
    from jaxtyping import Int, Shaped

# Imports inside functions: xarray and zarr take half a second to import.

STORE = "timeline.zarr"
FORMAT = "armillary-timeline"
FORMAT_VERSION = 1
REMEDY = "make the timeline again"


class FailedCheckpoint(TypedDict):
    """A checkpoint that could not be scanned, and why."""

    name: str
    step: int | None
    why: str


class TimelineRecord(TypedDict):
    """The attributes of timeline.zarr."""

    unit: str
    checkpoints: list[CheckpointFacts]
    failed: list[FailedCheckpoint]
    notes: NotRequired[list[str]]
    model: NotRequired[dict[str, Any]]
    corpus: NotRequired[dict[str, Any]]
    settings: NotRequired[dict[str, Any]]


@dataclass
class Timeline:
    """The tables of all checkpoints: `timeline.heads` has the dims checkpoint, layer and head."""

    path: Path

    @cached_property
    def manifest(self) -> Manifest:
        """The store's files and their checksums."""
        manifest = read_manifest(self.path)
        if manifest is None:
            raise ArmillaryError(damage_sentence(self.path, PLACE, "missing"))
        return manifest

    @cached_property
    def attrs(self) -> dict[str, Any]:
        """Where the numbers come from: model, text, settings, versions, checkpoints; which ones failed."""
        data = self.manifest.read("zarr.json")
        if data is None:
            raise ArmillaryError(damage_sentence(self.path, "zarr.json", "not a file of this timeline"))
        return read_attributes(data, self.path, dict[str, Any])

    def group(self, name: str) -> "xr.Dataset":
        """The arrays of a group: heads, layers, checkpoints or log."""
        import xarray as xr

        # for start-up: the store imports zarr
        from armillary.atlas.store import CheckedStore

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # before 3.1, Zarr warned about strings
                store: Any = CheckedStore(self.manifest)
                return xr.open_dataset(store, group=name, engine="zarr", consolidated=False).load()
        except ArmillaryError:
            raise
        except Exception as error:  # Zarr and xarray raise many kinds of errors on wrong metadata
            raise ArmillaryError(
                f"{self.path / name} cannot be read ({type(error).__name__}: {brief(error)})", advice=REMEDY
            ) from error

    @cached_property
    def heads(self) -> "xr.Dataset":
        """Every column of the heads table: dims checkpoint, layer, head. `birth` has no checkpoint."""
        return self.group("heads")

    @cached_property
    def layers(self) -> "xr.Dataset":
        """Every column of the layers table: dims checkpoint, point (0: after the embeddings)."""
        return self.group("layers")

    @property
    def unit(self) -> str:
        """What the coordinate `checkpoint` counts: 'step', or 'checkpoint' where steps are not known."""
        return str(self.attrs["unit"])

    @cached_property
    def steps(self) -> "Int[np.ndarray, 'checkpoint']":
        """The coordinate `checkpoint`."""
        steps: Int[np.ndarray, "checkpoint"] = self.heads["checkpoint"].to_numpy().astype(int)
        return steps

    @cached_property
    def labels(self) -> "Shaped[np.ndarray, 'checkpoint layer head']":
        """The label of every head at every checkpoint; an error if the scans measured none."""
        import numpy as np

        if "label" not in self.heads or "significant" not in self.heads:
            raise ArmillaryError("this timeline has no labels", advice="scan with the stream patterns")
        labels: Shaped[np.ndarray, "checkpoint layer head"] = np.asarray(self.heads["label"].to_numpy(), dtype=object)
        return labels

    @cached_property
    def checkpoints(self) -> "pd.DataFrame":
        """A row for every checkpoint: name, tokens, losses, heads with a significant label, same_as."""
        import pandas as pd

        facts = self.attrs["checkpoints"]
        table = pd.DataFrame({"checkpoint": self.steps, "name": [fact["name"] for fact in facts]})
        series = self.group("checkpoints")
        for name in ("tokens", "loss", "logged_loss", "held_out_loss"):
            if name in series:
                table[name] = series[name].to_numpy()
        if "tokens" in table:
            table["tokens"] = table["tokens"].astype("Int64")
        if "significant" in self.heads:
            table["significant_heads"] = (self.heads["significant"] == 1).sum(("layer", "head")).to_numpy()
        table["same_as"] = pd.Series([fact.get("same_as") for fact in facts], dtype="str")
        return table

    @cached_property
    def log(self) -> "pd.DataFrame | None":
        """The run's training log (step, loss, held_out), thinned if it is long; None if there is none."""
        if "log/zarr.json" not in self.manifest.files:
            return None
        log: pd.DataFrame = self.group("log").to_dataframe().reset_index(drop=True)
        return log[["step", *(name for name in log.columns if name != "step")]]

    @cached_property
    def births(self) -> "pd.DataFrame":
        """A row for every head that is born: the first checkpoint from which on its label is final and significant."""
        # for start-up: it imports pandas
        from armillary.atlas.timelines.births import births_table

        return births_table(self.labels, self.heads["significant"].to_numpy(), self.steps)

    def changes(self, most: int = 1000) -> "pd.DataFrame":
        """The largest changes of a column of a head between neighboring checkpoints, the largest first."""
        # for start-up: it imports pandas
        from armillary.atlas.timelines.births import largest_changes

        columns = {name: self.heads[name].to_numpy() for name in self.measures}
        return largest_changes(columns, self.steps, most)

    @property
    def measures(self) -> list[str]:
        """The columns of heads that are numbers and measures."""
        return [
            str(name)
            for name, values in self.heads.data_vars.items()
            if values.dims == ("checkpoint", "layer", "head")
            and values.dtype.kind == "f"
            and is_measure("heads", str(name))
        ]

    def curve(self, column: str, *, head: str | None = None, layer: int | None = None) -> "pd.DataFrame":
        """A column over the checkpoints: a row per checkpoint, a column per head (L1H2), or per layer of the stream.

        `head` ('L1H2' or '1.2') or `layer` choose among them; 'loss' and the other losses have one column.
        """
        import pandas as pd

        index = pd.Index(self.steps, name=self.unit)
        if column in self.heads and self.heads[column].dims == ("checkpoint", "layer", "head"):
            values = self.heads[column].to_numpy()
            chosen = self._chosen(head, layer, values.shape[1:])
            return pd.DataFrame({f"L{a}H{b}": values[:, a, b] for a, b in chosen}, index=index)
        if column in self.layers:
            values = self.layers[column].to_numpy()
            if head is not None:
                raise ArmillaryError(f"{column} is a column of layers, not of heads", advice="leave `head` out")
            points = range(values.shape[1]) if layer is None else [self._point(layer, values.shape[1])]
            return pd.DataFrame({f"layer {point}": values[:, point] for point in points}, index=index)
        series = self.group("checkpoints")
        if column in series:
            return pd.DataFrame({column: series[column].to_numpy()}, index=index)
        raise ArmillaryError(
            f"this timeline has no column {column!r}",
            advice=f"it has {', '.join(self.columns)}",
            given=column,
            expected=self.columns,
        )

    @property
    def columns(self) -> list[str]:
        """All names that `curve` takes."""
        heads = [str(name) for name in self.heads.data_vars if name != "birth"]
        return [*heads, *map(str, self.layers.data_vars), *map(str, self.group("checkpoints").data_vars)]

    def _chosen(self, head: str | None, layer: int | None, shape: tuple[int, ...]) -> list[tuple[int, int]]:
        every = [(a, b) for a in range(shape[0]) for b in range(shape[1])]
        if head is not None:
            named = head_name(head)
            if named not in every:
                raise ArmillaryError(
                    f"there is no head {head}",
                    advice=f"there are L0H0 to L{shape[0] - 1}H{shape[1] - 1}",
                    given=head,
                )
            return [named]
        if layer is not None:
            return [pair for pair in every if pair[0] == self._point(layer, shape[0])]
        return every

    def _point(self, layer: int, count: int) -> int:
        if not 0 <= layer < count:
            raise ArmillaryError(f"there is no layer {layer}", advice=f"there are 0 to {count - 1}", given=layer)
        return layer

    def at(self, checkpoint: int) -> "pd.DataFrame":
        """The heads table of one checkpoint, by its step."""
        if checkpoint not in self.steps:
            raise ArmillaryError(
                f"there is no {self.unit} {checkpoint}",
                advice=f"there are {', '.join(map(str, self.steps))}",
                given=checkpoint,
            )
        columns = [name for name, values in self.heads.data_vars.items() if "checkpoint" in values.dims]
        table: pd.DataFrame = self.heads[columns].sel(checkpoint=checkpoint).drop_vars("checkpoint").to_dataframe()
        return table.reset_index()


def open_timeline(path: str | Path) -> Timeline:
    """Open the timeline in a folder that `timeline` wrote (or the store itself)."""
    folder = Path(path)
    if not folder.exists():
        raise ArmillaryError(f"there is no folder {path}", advice="a timeline is what `armillary timeline` writes")
    store = store_in(folder)
    if store is None:
        if (folder / "timeline.json").is_file():
            raise ArmillaryError(
                f"the timeline in {path} is not finished", advice="run the same `armillary timeline` again"
            )
        raise ArmillaryError(f"{path} is not a timeline", advice="a timeline is what `armillary timeline` writes")
    timeline = Timeline(store)
    kind, version = timeline.attrs.get("format"), timeline.attrs.get("format_version")
    if kind != FORMAT:
        raise ArmillaryError(f"{store} is a Zarr store, but not a timeline")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ArmillaryError(
            f"{store} has format version {version}; this Armillary reads up to {FORMAT_VERSION}",
            advice="update Armillary",
        )
    wrong = mismatch(timeline.attrs, TimelineRecord)
    if wrong:
        raise ArmillaryError(f"{store / 'zarr.json'} is not what Armillary writes, {wrong}", advice=REMEDY)
    return timeline


def store_in(folder: Path) -> Path | None:
    """The store of a timeline: the folder itself, or inside it, or in a run's folder; None if there is none."""
    for place in (folder, folder / STORE, folder / "timeline" / STORE):
        if _format(place) == FORMAT or (place.name == STORE and (place / PLACE).is_file()):
            return place
    return None


def _format(place: Path) -> Any:
    """The format that a Zarr store names; None if this is none, or if its zarr.json is damaged."""
    try:
        return json.loads((place / "zarr.json").read_bytes())["attributes"]["format"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
