"""The results of `ablate`, stored in a file beside the store, and shown as columns of the heads table."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armillary.atlas.beside import read_beside, write_beside

if TYPE_CHECKING:
    import pandas as pd

    from armillary.atlas.atlas import Atlas

# Imports inside functions: pandas is slow to import, and most atlases have no such file.

FILE = "ablation.json"

COLUMNS = (
    *("direct_logit", "ablation_loss", "ablation_se", "gradient_loss"),
    *("repeat_ablation_loss", "repeat_ablation_se", "repeat_gradient_loss"),
)
"""What `ablate` adds to the heads table."""


def keep_effects(atlas: "Atlas", heads: "pd.DataFrame", about: dict[str, Any]) -> Path:
    """Write the effects of heads, and what they depend on; an earlier run is replaced."""
    rows = [
        {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()}
        for row in heads.to_dict("records")
    ]
    return write_beside(atlas, FILE, {"about": about, "heads": rows})


def effects_about(atlas: "Atlas") -> dict[str, Any] | None:
    """What the effects depend on: losses of the whole model, what heads were replaced by; None without effects."""
    record = read_beside(atlas, FILE, "ablate")
    return None if record is None else dict(record.get("about", {}))


def with_effects(atlas: "Atlas", heads: "pd.DataFrame") -> "pd.DataFrame":
    """The heads table with the columns of `ablate`, if it ran."""
    import pandas as pd

    record = read_beside(atlas, FILE, "ablate")
    if record is None or not record["heads"]:
        return heads
    effects = pd.DataFrame(record["heads"])
    present = [name for name in COLUMNS if name in effects and name not in heads]
    effects = effects[["layer", "head", *present]].astype(dict.fromkeys(present, float))
    return heads.merge(effects.dropna(axis=1, how="all"), on=["layer", "head"], how="left", validate="one_to_one")
