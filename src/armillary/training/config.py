"""What to train, as a TOML file says it: model, text, training, regulariser, monitor. Unknown keys are refused."""

import tomllib
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any, get_args, get_type_hints

from armillary.errors import ArmillaryError, brief
from armillary.records import mismatch, named
from armillary.training.loop import TrainSettings


@dataclass(frozen=True)
class ModelConfig:
    """The shape of the model: the layout of a family of transformers, and how it encodes position.

    position: 'learned' or 'none' (gpt2), 'rope', 'p-rope', 'reversed', 'partial' or 'none' (llama), 'alibi' (bloom).
    `base` is the rotary base; `fraction` the share of frequencies that p-rope, reversed and partial keep.
    """

    family: str = "llama"
    layers: int = 2
    heads: int = 4
    width: int = 128
    mlp: int | None = None
    position: str | None = None
    base: float = 10_000.0
    fraction: float | None = None


@dataclass(frozen=True)
class DataConfig:
    """The text: sources as `armillary scan` reads them; its last `held_out` share is never trained on."""

    corpus: str = "builtin:prose"
    tokenizer: str = "bundled"
    held_out: float = 0.1
    documents: int | None = None


@dataclass(frozen=True)
class RegulariserConfig:
    """'none', 'locater' (scale, mean, target: a number or 'localise') or 'sigma-reparam'."""

    kind: str = "none"
    scale: float = 0.0
    mean: float = 0.0
    target: float | str = "localise"


@dataclass(frozen=True)
class MonitorConfig:
    """How often to look, and at how many sequences of the held-out text."""

    every: int = 50
    sequences: int = 4


@dataclass(frozen=True)
class RunConfig:
    """Everything that a run depends on."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainSettings = field(default_factory=lambda: TrainSettings(**_usual_training({})))
    regulariser: RegulariserConfig = field(default_factory=RegulariserConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)

    def __post_init__(self) -> None:
        check(self)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


POSITIONS = {
    "gpt2": ("learned", "none"),
    "llama": ("rope", "p-rope", "reversed", "partial", "none"),
    "bloom": ("alibi",),
}
"""The position schemes of each layout, the usual one first."""
REGULARISERS = ("none", "locater", "sigma-reparam")


def check(config: RunConfig) -> None:
    """Raise on settings that make no run."""
    model, training = config.model, config.training
    if model.family not in POSITIONS:
        raise ArmillaryError(f"model.family = {model.family!r} is not known: there are {', '.join(POSITIONS)}")
    if position_of(model) not in POSITIONS[model.family]:
        raise ArmillaryError(
            f"model.position = {model.position!r} does not go with family {model.family!r}: it has "
            + ", ".join(POSITIONS[model.family])
        )
    kept = position_of(model) in ("p-rope", "reversed", "partial")
    if kept and (model.fraction is None or not 0 <= model.fraction <= 1):
        raise ArmillaryError(f"model.position = {model.position!r} needs model.fraction, a number from 0 to 1")
    if model.fraction is not None and not kept:
        raise ArmillaryError(f"model.fraction does not go with model.position = {position_of(model)!r}")
    for name in ("layers", "heads", "width"):
        if getattr(model, name) < 1:
            raise ArmillaryError(f"model.{name} = {getattr(model, name)} makes no model: it must be 1 or more")
    if model.width % model.heads or (model.family == "llama" and model.width // model.heads % 2):
        raise ArmillaryError(
            f"a width of {model.width} cannot be split into {model.heads} heads"
            + (" of an even width, which rotary pairs need" if model.width % model.heads == 0 else "")
        )
    for name in ("steps", "batch", "checkpoint_every"):
        if getattr(training, name) < 1:
            raise ArmillaryError(f"training.{name} = {getattr(training, name)}: it must be 1 or more")
    for name, least in (("learning_rate", 0.0), ("clip", 0.0), ("final_rate", -1e-300), ("weight_decay", -1e-300)):
        if not least < getattr(training, name) < inf:
            raise ArmillaryError(f"training.{name} = {getattr(training, name)}: it must be a number above 0 (or 0)")
    if training.steps >= 10**8:  # checkpoints are named by eight digits
        raise ArmillaryError(f"training.steps = {training.steps}: it must be below 10^8")
    if not 0 <= training.warmup < training.steps:
        raise ArmillaryError(f"training.warmup = {training.warmup}: it must be below the {training.steps} steps")
    if not 0 <= training.seed < 2**63:
        raise ArmillaryError(f"training.seed = {training.seed}: it must be 0 or more, below 2^63")
    for name in ("every", "sequences"):
        if getattr(config.monitor, name) < 1:
            raise ArmillaryError(f"monitor.{name} = {getattr(config.monitor, name)}: it must be 1 or more")
    if model.mlp is not None and (model.mlp < 1 or model.family == "bloom"):
        raise ArmillaryError(f"model.mlp = {model.mlp} does not go with family {model.family!r}, or is below 1")
    if not 1 < model.base < inf:
        raise ArmillaryError(f"model.base = {model.base} gives no falling frequencies: it must be above 1")
    if model.base != ModelConfig.base and (model.family != "llama" or position_of(model) == "none"):
        raise ArmillaryError(f"model.base has no effect on model.position = {position_of(model)!r}: leave it out")
    if config.regulariser.kind == "none" and config.regulariser != RegulariserConfig():
        raise ArmillaryError(
            "[regulariser] has settings but kind = 'none': say which kind, 'locater' or 'sigma-reparam'"
        )
    if training.length < 4:
        raise ArmillaryError(f"training.length = {training.length}: windows need 4 tokens or more")
    if config.regulariser.kind not in REGULARISERS:
        raise ArmillaryError(
            f"regulariser.kind = {config.regulariser.kind!r} is not known: there are {', '.join(REGULARISERS)}"
        )
    for name in ("scale", "mean"):
        if not 0 <= getattr(config.regulariser, name) < inf:
            raise ArmillaryError(f"regulariser.{name} = {getattr(config.regulariser, name)}: it must be 0 or more")
    if config.regulariser.kind == "locater" and not (config.regulariser.scale or config.regulariser.mean):
        raise ArmillaryError("regulariser.kind = 'locater' needs regulariser.scale or regulariser.mean above 0")
    if not 0 < config.data.held_out < 1:
        raise ArmillaryError(f"data.held_out = {config.data.held_out}: it must lie between 0 and 1")


def position_of(model: ModelConfig) -> str:
    """The position scheme, or the family's usual one."""
    return model.position or POSITIONS[model.family][0]


def read_config(path: Path) -> RunConfig:
    """The run that a TOML file describes."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArmillaryError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        why = "it is nested too deeply" if isinstance(error, RecursionError) else brief(error)
        raise ArmillaryError(f"{path} is not TOML: {why}") from error
    return from_dict(given)


def from_dict(given: dict[str, Any]) -> RunConfig:
    """The run that these sections describe; what they leave out has its default."""
    parts: dict[str, Any] = {
        "model": ModelConfig,
        "data": DataConfig,
        "training": TrainSettings,
        "regulariser": RegulariserConfig,
        "monitor": MonitorConfig,
    }
    unknown = [name for name in given if name not in parts]
    if unknown:
        raise ArmillaryError(
            f"there is no section [{unknown[0]}]: there are {', '.join(f'[{name}]' for name in parts)}"
        )
    made = {}
    for name, kind in parts.items():
        section = given.get(name, {})
        if not isinstance(section, dict):
            raise ArmillaryError(f"{name} must be a section, [{name}], not {section!r}")
        chosen = _checked(name, kind, section)
        made[name] = kind(**(_usual_training(chosen) if name == "training" else chosen))
    return RunConfig(**made)


def _usual_training(chosen: dict[str, Any]) -> dict[str, Any]:
    """What the section leaves out: a tenth of the steps to warm up, a checkpoint after each tenth."""
    steps = chosen.get("steps", 500)
    tenth = max(1, steps // 10) if steps > 1 else 0
    return {"steps": steps, "length": 128, "warmup": tenth, "checkpoint_every": max(1, tenth), **chosen}


def _checked(section: str, kind: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The settings of a section, each of its type (a whole number may stand for a float)."""
    types = get_type_hints(kind)
    found = {}
    for key, value in given.items():
        if key not in types:
            raise ArmillaryError(f"there is no setting {section}.{key}: there are {', '.join(types)}")
        if mismatch(value, types[key]):
            raise ArmillaryError(f"{section}.{key} = {repr(value)[:80]} is not {named(types[key])}")
        found[key] = float(value) if _is_float(types[key]) and isinstance(value, int) else value
    return found


def _is_float(kind: Any) -> bool:
    return kind is float or float in get_args(kind)
