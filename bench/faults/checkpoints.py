"""Mutated checkpoints: inspect, weights and scan all refuse, or all give what an independent reading gives.

Wrong is: one accepts what another refuses, numbers from files outside the folder, code from the folder that runs, a row
that is lost.
"""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from faults import programs, reading, values
from faults.material import copied, sample_folder
from faults.mutation import REFUSE, sentinel
from faults.mutation import SAME as AS_BEFORE
from faults.mutations import MUTATIONS
from faults.outcomes import DIFFERENT, REFUSED, SAME, WRONG, Outcome
from faults.serving import Case

COUNT = 1000
BOUND = 120.0
JOBS = 2
CONFINED = True
BASES = ("llama", "gpt2", "bert", "qwen3", "sharded")
STREAMS = ("positions", "attention")


def warm() -> None:
    programs.imports()
    from transformers.models.bert import modeling_bert  # noqa: F401
    from transformers.models.qwen3 import modeling_qwen3  # noqa: F401


def prepare(place: Path) -> None:
    """A small model of each kind, one saved as pickle, another of the same shape; and what each gives undamaged."""
    import torch

    from armillary.anatomy.samples import sample_model

    for base in BASES:
        if base == "sharded":
            sample_folder("llama", place / base, max_shard_size="40KB")
        else:
            sample_folder(base, place / base)
    sample_folder("llama", place / "other", seed=5, max_shard_size="40KB")
    (place / "pickle").mkdir()
    torch.save(sample_model("llama").state_dict(), place / "pickle" / "pytorch_model.bin")
    for base in BASES:
        known = {}
        for name, use in USES.items():
            known[name] = use(place / base)
        (place / f"{base}.json").write_text(json.dumps(known))
        again = of_reference(place / base, USES)
        for name in again:
            assert not values.differences(known[name], again[name]), (
                base,
                name,
                values.differences(known[name], again[name])[:3],
            )


def tokens() -> Any:
    """A few blocks of random tokens."""
    import torch

    return torch.randint(5, 99, (2, 16), generator=torch.Generator().manual_seed(3))


def inspected(folder: Path) -> values.Values:
    """What `inspect --weights` tells, and every weight of every head."""
    from armillary.anatomy.loading import refuse_not_finite
    from armillary.anatomy.source import describe

    anatomy = describe(folder)
    refuse_not_finite(folder)
    return {"anatomy": json.dumps(anatomy.as_dict(), sort_keys=True, default=str), **_head_weights(anatomy)}


def _head_weights(anatomy: Any) -> values.Values:
    found = {}
    for layer in anatomy.layers:
        weights = anatomy.weights(layer.index)
        for part in ("q", "k", "v", "o"):
            for head, matrix in enumerate(getattr(weights, part)):
                found[f"{part} {layer.index}.{head}"] = values.digest(matrix.detach().float().numpy())
    return found


def weighed(folder: Path) -> values.Values:
    from armillary.scanning.weights import weigh

    return values.arrays(weigh(folder).path)


def scanned(folder: Path) -> values.Values:
    """Loaded and scanned on a few tokens."""
    from armillary.scanning.scan import scan

    return values.arrays(scan(folder, tokens(), streams=STREAMS).path)


USES: dict[str, Callable[[Path], values.Values]] = {"inspect": inspected, "weights": weighed, "scan": scanned}


def of_reference(folder: Path, uses: Collection[str]) -> dict[str, values.Values]:
    """What the model gives that an independent reading of the folder makes."""
    from armillary.anatomy.source import describe
    from armillary.scanning.scan import scan
    from armillary.scanning.weights import weigh

    model, found = reading.rebuilt(folder), {}
    if "inspect" in uses:
        anatomy = describe(model)
        found["inspect"] = {
            "anatomy": json.dumps(anatomy.as_dict(), sort_keys=True, default=str),
            **_head_weights(anatomy),
        }
    if "weights" in uses:
        found["weights"] = values.arrays(weigh(model).path)
    if "scan" in uses:
        found["scan"] = values.arrays(scan(model, tokens(), streams=STREAMS).path)
    return found


def run(case: Case) -> Outcome:
    mutation = list(MUTATIONS)[case.number % len(MUTATIONS)]
    case.tries(mutation.__name__.replace("_", " "))
    base = case.rng.choice(MUTATIONS[mutation])
    folder = copied(case.place / base, case.scratch / "model")
    (case.scratch / "other").symlink_to(case.place / "other")
    expects, how = mutation(folder, case.rng)
    return judged(folder, expects, f"{base}: {how}", json.loads((case.place / f"{base}.json").read_text()))


def judged(folder: Path, expects: str, how: str, undamaged: dict[str, values.Values]) -> Outcome:
    """What the three uses made of a folder, against one another and against the independent reading."""
    from armillary.errors import ArmillaryError

    given: dict[str, values.Values] = {}
    said: dict[str, str] = {}
    for name, use in USES.items():
        try:
            given[name] = use(folder)
        except ArmillaryError as error:
            said[name] = str(error)
        if sentinel(folder).exists():
            return Outcome("", WRONG, f"{how}: {name} ran code from the folder")
    if not given:
        verdict = Outcome("", REFUSED, f"{how}: {said['scan']}")
        return Outcome("", WRONG, f"{how}: refused: {said['scan']}") if expects == AS_BEFORE else verdict
    if said and not _numbers_alone(folder, said):
        first = next(iter(said))
        return Outcome("", WRONG, f"{how}: {', '.join(given)} accept what {first} refuses: {said[first][:200]}")
    if expects == REFUSE:
        return Outcome("", WRONG, f"{how}: accepted by {', '.join(given)}")
    if expects == AS_BEFORE:
        return compared(given, undamaged, how)
    return against_reading(folder, given, how)


def _numbers_alone(folder: Path, said: dict[str, str]) -> bool:
    """Whether the folder is refused for NaN or infinite numbers alone: weights may leave out what it does not use."""
    try:
        return "weights" not in said and reading.not_finite(folder)
    except reading.Unreadable:
        return False


def against_reading(folder: Path, given: dict[str, values.Values], how: str) -> Outcome:
    try:
        expected = of_reference(folder, given)
    except Exception as error:
        return Outcome(
            "", WRONG, f"{how}: accepted, but an independent reading fails: {type(error).__name__}: {error}"[:400]
        )
    return compared(given, expected, how)


def compared(given: dict[str, values.Values], expected: dict[str, values.Values], how: str) -> Outcome:
    for name, found in given.items():
        different = values.differences(expected[name], found)
        if different:
            return Outcome("", DIFFERENT, f"{how}: {name}: {len(different)} values, first {different[0]}")
    return Outcome("", SAME, how)
