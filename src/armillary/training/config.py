"""Read the TOML file that describes a training run: model, data, training, regularizer, monitor.

Unknown sections and keys raise an error that names them."""

import tomllib
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any, get_args, get_type_hints

from armillary.errors import ArmillaryError, brief
from armillary.files.records import mismatch, named
from armillary.training.checkpoints import CheckpointConfig, check_checkpoints
from armillary.training.loop import TrainSettings


@dataclass(frozen=True)
class ModelConfig:
    """The architecture: family, size and position encoding.

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
    """The text: `corpus` as in `armillary scan`; its last `held_out` share is not trained on."""

    corpus: str = "builtin:prose"
    tokenizer: str = "bundled"
    held_out: float = 0.1
    documents: int | None = None


@dataclass(frozen=True)
class RegularizerConfig:
    """'none', 'locater' (scale, mean, target: a number or 'localize') or 'sigma-reparam'."""

    kind: str = "none"
    scale: float = 0.0
    mean: float = 0.0
    target: float | str = "localize"


@dataclass(frozen=True)
class MonitorConfig:
    """How many steps between two snapshots, and how many held-out sequences each one runs on."""

    every: int = 50
    sequences: int = 4


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainSettings = field(default_factory=lambda: TrainSettings(**_with_defaults({})))
    regularizer: RegularizerConfig = field(default_factory=RegularizerConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        check(self)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


POSITIONS = {
    "gpt2": ("learned", "none"),
    "llama": ("rope", "p-rope", "reversed", "partial", "none"),
    "bloom": ("alibi",),
}
"""The position schemes of each family, the default first."""
REGULARIZERS = ("none", "locater", "sigma-reparam")


def check(config: RunConfig) -> None:
    """Raise an error for settings that cannot be trained."""
    _check_shape(config.model)
    _check_position(config.model)
    _check_training(config.training)
    for name in ("every", "sequences"):
        if getattr(config.monitor, name) < 1:
            raise ArmillaryError(f"monitor.{name} = {getattr(config.monitor, name)}", advice="it must be 1 or more")
    _check_regularizer(config.regularizer)
    check_checkpoints(config.checkpoints, config.training.steps)
    if not 0 < config.data.held_out < 1:
        raise ArmillaryError(f"data.held_out = {config.data.held_out}", advice="it must be between 0 and 1")


def _check_shape(model: ModelConfig) -> None:
    if model.family not in POSITIONS:
        raise ArmillaryError(
            f"model.family = {model.family!r} is not known", advice=f"there are {', '.join(POSITIONS)}"
        )
    for name in ("layers", "heads", "width"):
        if getattr(model, name) < 1:
            raise ArmillaryError(f"model.{name} = {getattr(model, name)}", advice="it must be 1 or more")
    if model.width % model.heads or (model.family == "llama" and model.width // model.heads % 2):
        raise ArmillaryError(
            f"a width of {model.width} cannot be split into {model.heads} heads"
            + (" of an even width, which rotary pairs need" if model.width % model.heads == 0 else "")
        )
    if model.mlp is not None and (model.mlp < 1 or model.family == "bloom"):
        raise ArmillaryError(f"model.mlp = {model.mlp} does not go with family {model.family!r}, or is below 1")


def _check_position(model: ModelConfig) -> None:
    position = position_of(model)
    if position not in POSITIONS[model.family]:
        raise ArmillaryError(
            f"model.position = {model.position!r} does not go with family {model.family!r}: it has "
            + ", ".join(POSITIONS[model.family])
        )
    takes_fraction = position in ("p-rope", "reversed", "partial")
    if takes_fraction and (model.fraction is None or not 0 <= model.fraction <= 1):
        raise ArmillaryError(f"model.position = {model.position!r} needs model.fraction, a number from 0 to 1")
    if model.fraction is not None and not takes_fraction:
        raise ArmillaryError(f"model.fraction does not go with model.position = {position!r}")
    if not 1 < model.base < inf:
        raise ArmillaryError(
            f"model.base = {model.base} does not give decreasing frequencies", advice="it must be above 1"
        )
    if model.base != ModelConfig.base and (model.family != "llama" or position == "none"):
        raise ArmillaryError(f"model.base has no effect on model.position = {position!r}", advice="leave it out")


def _check_training(training: TrainSettings) -> None:
    for name in ("steps", "batch", "checkpoint_every"):
        if getattr(training, name) < 1:
            raise ArmillaryError(f"training.{name} = {getattr(training, name)}", advice="it must be 1 or more")
    for name, least in (("learning_rate", 0.0), ("clip", 0.0), ("final_rate", -1e-300), ("weight_decay", -1e-300)):
        if not least < getattr(training, name) < inf:
            raise ArmillaryError(
                f"training.{name} = {getattr(training, name)}", advice="it must be a number above 0 (or 0)"
            )
    if training.steps >= 10**8:  # the names of checkpoints have eight digits
        raise ArmillaryError(f"training.steps = {training.steps}", advice="it must be below 10^8")
    if not 0 <= training.warmup < training.steps:
        raise ArmillaryError(
            f"training.warmup = {training.warmup}", advice=f"it must be below the {training.steps} steps"
        )
    if not 0 <= training.seed < 2**63:
        raise ArmillaryError(f"training.seed = {training.seed}", advice="it must be 0 or more, below 2^63")
    if training.length < 4:
        raise ArmillaryError(f"training.length = {training.length}", advice="windows need 4 tokens or more")


def _check_regularizer(regularizer: RegularizerConfig) -> None:
    if regularizer.kind not in REGULARIZERS:
        raise ArmillaryError(
            f"regularizer.kind = {regularizer.kind!r} is not known", advice=f"there are {', '.join(REGULARIZERS)}"
        )
    if regularizer.kind == "none" and regularizer != RegularizerConfig():
        raise ArmillaryError(
            "[regularizer] has settings but kind = 'none'", advice="set the kind, 'locater' or 'sigma-reparam'"
        )
    for name in ("scale", "mean"):
        if not 0 <= getattr(regularizer, name) < inf:
            raise ArmillaryError(f"regularizer.{name} = {getattr(regularizer, name)}", advice="it must be 0 or more")
    if regularizer.kind == "locater" and not (regularizer.scale or regularizer.mean):
        raise ArmillaryError("regularizer.kind = 'locater' needs regularizer.scale or regularizer.mean above 0")


def position_of(model: ModelConfig) -> str:
    """The position scheme, or the family's default."""
    return model.position or POSITIONS[model.family][0]


def read_config(path: Path) -> RunConfig:
    """The run that a TOML file describes."""
    try:
        sections = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArmillaryError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else brief(error)
        raise ArmillaryError(f"{path} is not TOML: {reason}") from error
    return from_dict(sections)


def from_dict(sections: dict[str, Any]) -> RunConfig:
    """The run that these sections describe, with defaults for missing settings."""
    section_classes: dict[str, Any] = {
        "model": ModelConfig,
        "data": DataConfig,
        "training": TrainSettings,
        "regularizer": RegularizerConfig,
        "monitor": MonitorConfig,
        "checkpoints": CheckpointConfig,
    }
    unknown = [name for name in sections if name not in section_classes]
    if unknown:
        raise ArmillaryError(
            f"there is no section [{unknown[0]}]",
            advice=f"there are {', '.join(f'[{name}]' for name in section_classes)}",
        )
    configs = {}
    for name, section_class in section_classes.items():
        section = sections.get(name, {})
        if not isinstance(section, dict):
            raise ArmillaryError(f"{name} must be a section, [{name}], not {section!r}")
        settings = _checked(name, section_class, section)
        configs[name] = section_class(**(_with_defaults(settings) if name == "training" else settings))
    return RunConfig(**configs)


def _with_defaults(settings: dict[str, Any]) -> dict[str, Any]:
    """The section with its defaults: warm up for a tenth of the steps, write a checkpoint after every tenth."""
    steps = settings.get("steps", 500)
    tenth = max(1, steps // 10) if steps > 1 else 0
    return {"steps": steps, "length": 128, "warmup": tenth, "checkpoint_every": max(1, tenth), **settings}


def _checked(section: str, section_class: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The settings of a section with their types checked; an integer given for a float is converted."""
    types = get_type_hints(section_class)
    settings = {}
    for key, value in given.items():
        if key not in types:
            raise ArmillaryError(
                f"there is no setting {section}.{key}",
                advice=f"there are {', '.join(types)}",
                given=key,
                expected=list(types),
            )
        if mismatch(value, types[key]):
            raise ArmillaryError(
                f"{section}.{key} = {repr(value)[:80]} is not {named(types[key])}",
                given=value,
                expected=named(types[key]),
            )
        settings[key] = float(value) if _is_float(types[key]) and isinstance(value, int) else value
    return settings


def _is_float(kind: Any) -> bool:
    return kind is float or float in get_args(kind)
