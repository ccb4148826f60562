"""The settings of a training run, one class per section of the TOML file, each key with its meaning in words."""

from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from types import NoneType
from typing import Any, get_args, get_type_hints

POSITIONS = {
    "gpt2": ("learned", "none", "sinusoidal", "random"),
    "llama": ("rope", "p-rope", "reversed", "partial", "none", "random"),
    "bloom": ("alibi",),
    "opt": ("learned", "none", "sinusoidal", "random"),
}
"""The position schemes of each family, the default first."""

CHANGES = ("rope", "p-rope", "reversed", "partial", "none", "random", "alibi", "learned")
"""The position schemes that a model that exists can be changed to (`from`)."""

REGULARIZERS = ("none", "locater", "sigma-reparam")


def setting(words: str, default: Any = MISSING) -> Any:
    """A key of the TOML file with its default and its meaning."""
    return field(metadata={"words": words}) if default is MISSING else field(default=default, metadata={"words": words})


@dataclass(frozen=True)
class ModelConfig:
    """A new model, or `from` a model that exists."""

    family: str = setting("llama (rotary), gpt2 or opt (learned positions), bloom (ALiBi).", "llama")
    from_: str | None = setting(
        "A folder or hub id to continue from; size, norms and tokenizer are then that model's.", None
    )
    layers: int = setting("Number of blocks.", 2)
    heads: int = setting("Number of query heads of a block.", 4)
    kv_heads: int | None = setting(
        "Number of key and value heads, which query heads share in groups (llama); default: `heads`.", None
    )
    width: int = setting("Width d of the residual stream.", 128)
    mlp: int | None = setting("Width of the MLP; default: 4 d, for llama 8/3 d.", None)
    norm: str = setting(
        "pre: before attention and MLP. post: after each sum. (gpt2 with post is built as opt, which has that layout.)",
        "pre",
    )
    position: str | None = setting(
        "rope, p-rope, reversed, partial, none, random (llama); learned, none, sinusoidal, random (gpt2, opt); alibi "
        "(bloom). With `from`: rope, p-rope, reversed, partial, none, random, alibi or learned; default: unchanged.",
        None,
    )
    base: float | None = setting("Base of the rotary frequencies; default 10000, or the model's.", None)
    fraction: float | None = setting("Share of the frequencies that p-rope, reversed and partial keep.", None)
    range: int | None = setting("random: positions are drawn below this number; default 4 times the length.", None)
    sorted: bool = setting("random: whether tokens keep their order.", True)


@dataclass(frozen=True)
class DataConfig:
    """The text."""

    corpus: str = setting(
        "As in `armillary scan`: a file, a folder, JSON lines, builtin:prose, hf:..., or a+b.", "builtin:prose"
    )
    tokenizer: str = setting("A folder or hub id, or bundled; with `from` it is the model's.", "bundled")
    held_out: float = setting("The last share of the text, which is not trained on.", 0.1)
    documents: int | None = setting("Read at most so many documents.", None)


@dataclass(frozen=True)
class RegularizerConfig:
    """What is added to the loss, or changed in the weights."""

    kind: str = setting("none, locater (Bao's penalty) or sigma-reparam.", "none")
    preset: str | None = setting(
        "paper: locater as Bao et al. trained it (scale 100, mean 1, target 1), unless keys say otherwise.", None
    )
    scale: float = setting("locater: kappa1, the weight of tr(W'W).", 0.0)
    mean: float = setting("locater: kappa2, the weight of (tr W - target)^2.", 0.0)
    target: float | str = setting("locater: a number, or localize (5 lambda, where attention localizes).", "localize")


PRESETS: dict[str, dict[str, Any]] = {"paper": {"kind": "locater", "scale": 100.0, "mean": 1.0, "target": 1.0}}
"""regularizer.preset: Bao et al., Section 7, with the strongest of their kappa2 (0, 0.001, 0.01, 0.1, 1)."""


@dataclass(frozen=True)
class MonitorConfig:
    """Snapshots of attention."""

    every: int = setting("Steps between two snapshots.", 50)
    sequences: int = setting("Held-out sequences that each snapshot runs on.", 4)


@dataclass(frozen=True)
class TrainSettings:
    """How to train. A batch depends only on (seed, step), so a resumed run draws the same batches."""

    steps: int = setting("Optimizer steps.")
    batch: int = setting("Sequences of a forward pass.", 16)
    length: int = setting("Tokens of a sequence.", 256)
    learning_rate: float = setting("The highest learning rate.", 1e-3)
    final_rate: float = setting("The learning rate at the end (cosine, linear, wsd).", 1e-4)
    warmup: int = setting("Steps of linear increase at the beginning.", 200)
    weight_decay: float = setting("AdamW's weight decay, on matrices only.", 0.1)
    clip: float = setting("The gradient is scaled down to this norm.", 1.0)
    seed: int = setting("Seed of the initial weights and of the batches.", 0)
    checkpoint_every: int = setting("Steps between two states to resume from.", 500)
    schedule: str = setting(
        "After the warm-up: cosine, linear, constant, or wsd (constant, then linear over the last `decay`).", "cosine"
    )
    decay: float = setting("wsd: the share of the steps at the end that decay.", 0.2)
    beta2: float = setting("AdamW's second beta (the first is 0.9).", 0.95)
    accumulate: int = setting("Forward passes of a step: a step trains on batch x accumulate sequences.", 1)
    autocast: str = setting("none, or bf16: matrix products of the forward pass in bfloat16.", "none")
    evaluate_every: int | None = setting("Steps between two held-out losses; default: at every snapshot.", None)
    train: str = setting("all weights, or only those of attention (W_q, W_k, W_v, W_o).", "all")
    seeds: int | list[int] | None = setting(  # noqa: RUF009
        "A run for each seed in RUN/seed-0, RUN/seed-1, ...: how many, or a list.", None
    )


def key_of(name: str) -> str:
    """The key in the TOML file: `from` cannot be the name of an attribute."""
    return name.rstrip("_")


def position_of(model: ModelConfig) -> str:
    """The position scheme, or the family's default."""
    return model.position or POSITIONS[model.family][0]


def described(section: Any, defaults: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """(key, type, default, meaning) of every key of a section."""
    hints = get_type_hints(section)
    names = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    for entry in fields(section):
        kinds = [kind for kind in (get_args(hints[entry.name]) or (hints[entry.name],)) if kind is not NoneType]
        kind = " or ".join(names.get(kind, "list of whole numbers") for kind in kinds)
        default = defaults.get(entry.name, entry.default)
        yield key_of(entry.name), kind, _shown(default), _words(entry)


def _shown(default: Any) -> str:
    if default is None or default is MISSING:
        return ""
    return (
        str(default).lower()
        if isinstance(default, bool)
        else f"{default:g}"
        if isinstance(default, float)
        else str(default)
    )


def _words(entry: "Field[Any]") -> str:
    return str(entry.metadata["words"])
