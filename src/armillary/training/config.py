"""Read the TOML file that describes a training run: model, data, training, regularizer, monitor, checkpoints.

Unknown sections and keys raise an error that names them. docs/training.md lists all keys (training/reference.py).
"""

import tomllib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from armillary.errors import ArmillaryError, brief
from armillary.files.records import mismatch, named
from armillary.training.checkpoints import CheckpointConfig
from armillary.training.checks import check
from armillary.training.settings import (
    POSITIONS,
    PRESETS,
    DataConfig,
    ModelConfig,
    MonitorConfig,
    RegularizerConfig,
    TrainSettings,
    key_of,
    position_of,
)

__all__ = [
    "POSITIONS",
    "SECTIONS",
    "DataConfig",
    "ModelConfig",
    "MonitorConfig",
    "RegularizerConfig",
    "RunConfig",
    "from_dict",
    "position_of",
    "read_config",
    "seeds_of",
    "with_seed",
]

SECTIONS: dict[str, Any] = {
    "model": ModelConfig,
    "data": DataConfig,
    "training": TrainSettings,
    "regularizer": RegularizerConfig,
    "monitor": MonitorConfig,
    "checkpoints": CheckpointConfig,
}


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainSettings = field(default_factory=lambda: TrainSettings(**with_defaults({})))
    regularizer: RegularizerConfig = field(default_factory=RegularizerConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        check(self)

    def as_dict(self) -> dict[str, Any]:
        """The settings with the names that they have in the TOML file."""
        return {name: {key_of(key): value for key, value in section.items()} for name, section in asdict(self).items()}


def seeds_of(config: RunConfig) -> list[int] | None:
    """The seeds of a configuration of several runs, or None if it is of one."""
    seeds = config.training.seeds
    return list(range(seeds)) if isinstance(seeds, int) else seeds


def with_seed(config: RunConfig, seed: int) -> RunConfig:
    """The configuration of the run with one seed."""
    return replace(config, training=replace(config.training, seed=seed, seeds=None))


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
    unknown = [name for name in sections if name not in SECTIONS]
    if unknown:
        raise ArmillaryError(
            f"there is no section [{unknown[0]}]",
            advice=f"there are {', '.join(f'[{name}]' for name in SECTIONS)}",
        )
    configs = {}
    for name, section_class in SECTIONS.items():
        section = sections.get(name, {})
        if not isinstance(section, dict):
            raise ArmillaryError(f"{name} must be a section, [{name}], not {section!r}")
        settings = _checked(name, section_class, section)
        if name == "training":
            settings = with_defaults(settings)
        if name == "regularizer":
            settings = {**_preset(settings), **settings}
        configs[name] = section_class(**settings)
    return RunConfig(**configs)


def with_defaults(settings: dict[str, Any]) -> dict[str, Any]:
    """The section with its defaults: warm up for a tenth of the steps, write a checkpoint after every tenth."""
    steps = settings.get("steps", 500)
    tenth = max(1, steps // 10) if steps > 1 else 0
    return {"steps": steps, "length": 128, "warmup": tenth, "checkpoint_every": max(1, tenth), **settings}


def _preset(settings: dict[str, Any]) -> dict[str, Any]:
    preset = settings.get("preset")
    if preset is not None and preset not in PRESETS:
        raise ArmillaryError(f"regularizer.preset = {preset!r} is not known", advice=f"there is {', '.join(PRESETS)}")
    return {} if preset is None else PRESETS[preset]


def _checked(section: str, section_class: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The settings of a section with their types checked; an integer given for a float is converted."""
    types = {key_of(name): kind for name, kind in get_type_hints(section_class).items()}
    names = {key_of(name): name for name in get_type_hints(section_class)}
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
        settings[names[key]] = float(value) if _is_float(types[key]) and isinstance(value, int) else value
    return settings


def _is_float(kind: Any) -> bool:
    return kind is float or float in get_args(kind)
