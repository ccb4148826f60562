"""For which families sources add up: every sample of a family, in float32 and float64. Writes docs/sources.md.

python bench/sources.py
"""

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers

from armillary.anatomy.other_samples import part_of
from armillary.anatomy.samples import SAMPLES, sample_model, unavailable
from armillary.anatomy.source import describe
from armillary.anatomy.sources import OTHERS, SIDES
from armillary.errors import ArmillaryError
from armillary.observe.sources import Sources
from armillary.observe.verification import _inputs

DOCS = Path(__file__).parent.parent / "docs" / "sources.md"

BEGINNING = """\
# What wrote it: for which families sources add up

<!-- Made by `python bench/sources.py`; change that file instead. -->

Every head's logits (query and key side) and output (value side) are split by what wrote the residual stream: the
embedding, each earlier head, each MLP, biases. The source `rounding` is what all others leave of 1; the table shows its
largest share in a small random model of each family. Many families compute norms or rotations in float32 even when
they are loaded in float64: there it stays near 1e-8. (In float64 experts do not run at all.)
"""


def left_over(name: str, dtype: torch.dtype) -> list[float]:
    """The largest share of rounding on each side, over layers and heads."""
    model = sample_model(name)
    model = model if dtype == torch.float32 else model.to(dtype)
    anatomy = describe(model, part=part_of(name))
    tokens = torch.randint(5, 90, (1, 12), generator=torch.Generator().manual_seed(0))
    given = _inputs(model, anatomy, tokens if anatomy.positions == "tokens" else None, {})
    given = {key: value[:1] if isinstance(value, torch.Tensor) else value for key, value in given.items()}
    with torch.no_grad():
        states = Sources(model, anatomy, skip=1).products(lambda: model(**given))
    rest = [state["products"][..., OTHERS.index("rounding")] / state["total"] for state in states.values()]
    return [max(float(share[side].abs().max()) for share in rest) for side in range(len(SIDES))]


def row(name: str) -> tuple[str, bool]:
    """A line of the table, and whether the sources of this sample add up."""
    if unavailable(name):
        return f"| {name} | | | {unavailable(name)} |", False
    try:
        single = left_over(name, torch.float32)
    except ArmillaryError as error:
        return f"| {name} | | | {error.problem} |", False
    except Exception as error:
        return f"| {name} | | | not run: {type(error).__name__} |", False
    return f"| {name} | {_written(single)} | {_in_double(name)} | |", max(single) < 1e-5


def _in_double(name: str) -> str:
    try:
        return _written(left_over(name, torch.float64))
    except Exception:  # torch has no float64 kernels for experts
        return "does not run"


def _written(numbers: list[float]) -> str:
    return ", ".join(f"{number:.0e}" for number in numbers)


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity(logging.CRITICAL)
    lines: dict[str, tuple[str, bool]] = {name: row(name) for name in SAMPLES}
    families: dict[str, Any] = {}
    for name, (_, adds_up) in lines.items():
        families[name.split("/")[0]] = families.get(name.split("/")[0], False) or adds_up
    count = sum(adds_up for _, adds_up in lines.values())
    parts = [
        BEGINNING,
        f"{sum(families.values())} of {len(families)} families, {count} of {len(lines)} models: the others are refused "
        "with the sentence in the last column.\n",
        "| family | float32: query, key, value | float64: query, key, value | why not |",
        "| --- | --- | --- | --- |",
        *(line for line, _ in lines.values()),
        "",
    ]
    DOCS.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
