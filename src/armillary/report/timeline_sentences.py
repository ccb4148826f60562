"""What a timeline says, in sentences: which labels appeared when, what changed most, what could not be scanned."""

from typing import TYPE_CHECKING, Any

import pandas as pd

from armillary.atlas.timelines.births import first_births
from armillary.errors import ArmillaryError

if TYPE_CHECKING:
    from armillary.atlas.timelines.timeline import Timeline


def summary(timeline: "Timeline") -> list[str]:
    """The story in a few lines, and the notes of the timeline."""
    return [*filter(None, (births_sentence(timeline), loss_sentence(timeline))), *timeline.attrs.get("notes", [])]


def births_sentence(timeline: "Timeline") -> str:
    """Of each label, when its first head is born; heads that have their label from the start are counted apart."""
    try:
        births = timeline.births
    except ArmillaryError as error:
        return str(error)
    heads = int(timeline.labels[0].size)
    if births.empty:
        return f"None of {heads} heads has a significant label at the end."
    born = births[births["before"].notna()]
    start = len(births) - len(born)
    parts = [_appears(row, timeline.unit) for row in first_births(born).to_dict("records")]
    appear = f"{len(born)} of {heads} heads are born in this time: {'; '.join(parts)}." if parts else ""
    already = (
        f"{start} {'has' if start == 1 else 'have'} the final label since the first checkpoint "
        f"({timeline.unit} {timeline.steps[0]:,})."
        if start
        else ""
    )
    return " ".join(filter(None, (appear, already)))


def _appears(row: Any, unit: str) -> str:
    heads, born, name = int(row["heads"]), int(row["birth"]), f"L{row['layer']}H{row['head']}"
    if heads == 1:
        article = "an" if str(row["label"])[0] in "aeiou" else "a"
        return f"{article} {row['label']} head ({name}) at {unit} {born:,}"
    return f"{heads} {row['label']} heads, the first ({name}) at {unit} {born:,}"


def loss_sentence(timeline: "Timeline") -> str:
    """The loss on the text at the first and the last checkpoint."""
    table = timeline.checkpoints
    if "loss" not in table or table["loss"].isna().any():
        return ""
    first, last = float(table["loss"].iloc[0]), float(table["loss"].iloc[-1])
    unit = timeline.unit
    moved = "falls" if last < first else "rises"
    return (
        f"The loss on this text {moved} from {first:.2f} nats per token at {unit} {timeline.steps[0]:,} to {last:.2f} "
        f"at {unit} {timeline.steps[-1]:,}."
    )


def change_sentence(changes: pd.DataFrame, unit: str) -> str:
    """The largest change between neighbors."""
    if changes.empty:
        return "No measure of any head changed."
    row = changes.iloc[0]
    return (
        f"The largest change between neighboring checkpoints: {row['measure'].replace('_', ' ')} of head "
        f"L{row['layer']}H{row['head']} goes from {row['a']:.3g} at {unit} {row['before']:,} to {row['b']:.3g} at "
        f"{unit} {row['after']:,}, {row['size']:.1f} standard deviations."
    )
