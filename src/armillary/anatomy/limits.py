"""Limits on the sizes in a configuration: larger models are refused unless the limits are lifted."""

import re
from typing import Any

from armillary.errors import ArmillaryError
from armillary.machine.limits import lifted

LAYERS = 10_000
HEADS = 10_000
HEAD_WIDTH = 100_000
CHANNELS = 20_000_000
"""Channels of all heads of all layers; Llama 3.1 405B has 2 million."""
OTHERS = 10**12
LABELS = 10**6
LIFTED = "`no_limits=True` or ARMILLARY_LIMITS=off"

COUNTS_LAYERS = re.compile(r"layers$|^n_?layer$|depth$|num_hidden_groups|inner_group_num|num_blocks|num_stages")


def refuse_absurd_counts(settings: dict[str, Any], where: Any) -> None:
    """Raise on counts in raw settings that are so large that transformers would hang building lists."""
    if lifted():
        return
    for key, value in settings.items():
        if isinstance(value, dict):
            refuse_absurd_counts(value, where)
        elif isinstance(value, int | float) and (COUNTS_LAYERS.search(key) or key == "num_labels"):
            most = LABELS if key == "num_labels" else LAYERS
            if abs(value) > most:
                raise ArmillaryError(
                    f"{where} has {key}={_shown(value)}, more than the {most:,} that a model may have{_advice()}"
                )


def refuse_absurd_sizes(family: str, **sizes: Any) -> None:
    """Raise on sizes that are not positive whole numbers, or too large. Names: layers, heads, head_width, ..."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArmillaryError(
                f"the configuration of this {family} model has {_words(name)} {_shown(value)}: "
                "it should be a whole number of at least 1"
            )
    if lifted():
        return
    limits = {"layers": LAYERS, "heads": HEADS, "key_heads": HEADS, "head_width": HEAD_WIDTH}
    for name, value in sizes.items():
        most = limits.get(name, OTHERS)
        if value > most:
            raise ArmillaryError(
                f"the configuration of this {family} model has {_words(name)} {_shown(value)}, "
                f"more than the {most:,} that a model may have{_advice()}"
            )
    channels = sizes["layers"] * sizes["heads"] * sizes["head_width"]
    if channels > CHANNELS:
        raise ArmillaryError(
            f"the configuration of this {family} model has {sizes['layers']:,} layers of {sizes['heads']:,} heads of "
            f"{sizes['head_width']:,} channels, together more than {CHANNELS:,}{_advice()}"
        )


def _words(name: str) -> str:
    return {"layers": "number of layers", "heads": "number of heads", "key_heads": "number of key heads"}.get(
        name, name.replace("_", " ")
    )


def _advice() -> str:
    return f" ({LIFTED} lifts the limit)"


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**18:
        return f"a number of more than {len(str(10**18)) - 1} digits"
    return f"{value!r}"[:60]
