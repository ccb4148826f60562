"""Raises an error for settings of a run that cannot be trained, before anything is built."""

from dataclasses import fields
from math import inf
from typing import Any

from armillary.errors import ArmillaryError
from armillary.training.checkpoints import check_checkpoints
from armillary.training.settings import (
    CHANGES,
    POSITIONS,
    REGULARIZERS,
    DataConfig,
    ModelConfig,
    RegularizerConfig,
    TrainSettings,
    key_of,
    position_of,
)


def check(config: Any) -> None:
    """Raise an error for a RunConfig that cannot be trained."""
    if config.model.from_ is None:
        _check_shape(config.model)
    else:
        _check_from(config.model, config.data, config.regularizer)
    check_position(config.model, config.training.length)
    _check_training(config.training)
    _check_seeds(config.training)
    for name in ("every", "sequences"):
        if getattr(config.monitor, name) < 1:
            raise ArmillaryError(f"monitor.{name} = {getattr(config.monitor, name)}", advice="it must be 1 or more")
    _check_regularizer(config.regularizer)
    check_checkpoints(config.checkpoints, config.training.steps)
    if not 0 < config.data.held_out < 1:
        raise ArmillaryError(f"data.held_out = {config.data.held_out}", advice="it must be between 0 and 1")


def _check_shape(model: ModelConfig) -> None:
    _refuse_unknown("model.family", model.family, tuple(POSITIONS))
    _refuse_unknown("model.norm", model.norm, ("pre", "post"))
    for name in ("layers", "heads", "width"):
        if getattr(model, name) < 1:
            raise ArmillaryError(f"model.{name} = {getattr(model, name)}", advice="it must be 1 or more")
    if model.width % model.heads or (model.family == "llama" and model.width // model.heads % 2):
        raise ArmillaryError(
            f"a width of {model.width} cannot be split into {model.heads} heads"
            + (" of an even width, which rotary pairs need" if model.width % model.heads == 0 else "")
        )
    if model.kv_heads is not None:
        if model.family != "llama":
            raise ArmillaryError(
                f"model.kv_heads does not go with family {model.family!r}, which has as many keys as queries",
                advice="heads of llama can share keys",
            )
        if model.kv_heads < 1 or model.heads % model.kv_heads:
            raise ArmillaryError(
                f"{model.heads} heads cannot share model.kv_heads = {model.kv_heads} keys in equal groups"
            )
    if model.mlp is not None and (model.mlp < 1 or model.family == "bloom"):
        raise ArmillaryError(f"model.mlp = {model.mlp} does not go with family {model.family!r}, or is below 1")


def _check_from(model: ModelConfig, data: DataConfig, regularizer: RegularizerConfig) -> None:
    """What a model that exists already has cannot be set."""
    own = ("family", "layers", "heads", "kv_heads", "width", "mlp", "norm")
    given = [entry.name for entry in fields(model) if entry.name in own and getattr(model, entry.name) != entry.default]
    if given:
        raise ArmillaryError(f"model.{given[0]} is that of model.from = {model.from_!r}", advice="leave it out")
    if data.tokenizer != "bundled":
        raise ArmillaryError(f"data.tokenizer is that of model.from = {model.from_!r}", advice="leave it out")
    if regularizer.kind == "sigma-reparam":
        raise ArmillaryError(
            "sigma-reparam sets every largest singular value to 1, which undoes what a model has learned",
            advice="use it for a new model, without model.from",
        )


def check_position(model: ModelConfig, length: int) -> None:
    """Raise an error for a position scheme that the model cannot have, or that lacks a setting."""
    known = POSITIONS[model.family] if model.from_ is None else CHANGES
    position = position_of(model) if model.from_ is None else model.position
    if position is not None and position not in known:
        whose = f"family {model.family!r}" if model.from_ is None else "model.from"
        raise ArmillaryError(
            f"model.position = {model.position!r} does not go with {whose}: it has " + ", ".join(known)
        )
    takes_fraction = position in ("p-rope", "reversed", "partial")
    if takes_fraction and (model.fraction is None or not 0 <= model.fraction <= 1):
        raise ArmillaryError(f"model.position = {model.position!r} needs model.fraction, a number from 0 to 1")
    if model.fraction is not None and not takes_fraction:
        raise ArmillaryError(f"model.fraction does not go with model.position = {position!r}")
    if model.base is not None and not 1 < model.base < inf:
        raise ArmillaryError(
            f"model.base = {model.base} does not give decreasing frequencies", advice="it must be above 1"
        )
    rotates = position in ("rope", "p-rope", "reversed", "partial", "random") and model.family == "llama"
    if model.base not in (None, 10_000.0) and not rotates:
        raise ArmillaryError(f"model.base has no effect on model.position = {position!r}", advice="leave it out")
    if position != "random" and (model.range is not None or not model.sorted):
        raise ArmillaryError(f"model.range and model.sorted have no effect on model.position = {position!r}")
    if model.range is not None and model.range < length:
        raise ArmillaryError(
            f"model.range = {model.range}", advice=f"it must be the {length} tokens of a sequence or more"
        )


def _check_training(training: TrainSettings) -> None:
    for name in ("steps", "batch", "checkpoint_every", "accumulate", "evaluate_every"):
        value = getattr(training, name)
        if value is not None and value < 1:
            raise ArmillaryError(f"training.{name} = {value}", advice="it must be 1 or more")
    for name, least in (("learning_rate", 0.0), ("clip", 0.0), ("final_rate", -1e-300), ("weight_decay", -1e-300)):
        if not least < getattr(training, name) < inf:
            raise ArmillaryError(
                f"training.{name} = {getattr(training, name)}", advice="it must be a number above 0 (or 0)"
            )
    for name in ("decay", "beta2"):
        if not 0 < getattr(training, name) < 1:
            raise ArmillaryError(f"training.{name} = {getattr(training, name)}", advice="it must be between 0 and 1")
    if training.steps >= 10**8:  # the names of checkpoints have eight digits
        raise ArmillaryError(f"training.steps = {training.steps}", advice="it must be below 10^8")
    if not 0 <= training.warmup < training.steps:
        raise ArmillaryError(
            f"training.warmup = {training.warmup}", advice=f"it must be below the {training.steps} steps"
        )
    if training.length < 4:
        raise ArmillaryError(f"training.length = {training.length}", advice="windows need 4 tokens or more")
    _refuse_unknown("training.schedule", training.schedule, ("cosine", "linear", "constant", "wsd"))
    _refuse_unknown("training.autocast", training.autocast, ("none", "bf16"))
    _refuse_unknown("training.train", training.train, ("all", "attention"))


def _check_seeds(training: TrainSettings) -> None:
    given = training.seeds
    if isinstance(given, int) and given < 1:
        raise ArmillaryError(f"training.seeds = {given}", advice="it must be 1 or more, or a list")
    if isinstance(given, list) and (not given or len(set(given)) < len(given)):
        raise ArmillaryError(f"training.seeds = {given}", advice="it must be a list of different seeds")
    for seed in [training.seed, *(given if isinstance(given, list) else [])]:
        if not 0 <= seed < 2**63:
            raise ArmillaryError(f"training.seed = {seed}", advice="it must be 0 or more, below 2^63")


def _check_regularizer(regularizer: RegularizerConfig) -> None:
    _refuse_unknown("regularizer.kind", regularizer.kind, REGULARIZERS)
    if regularizer.kind == "none" and regularizer != RegularizerConfig():
        raise ArmillaryError(
            "[regularizer] has settings but kind = 'none'", advice="set the kind, 'locater' or 'sigma-reparam'"
        )
    for name in ("scale", "mean"):
        if not 0 <= getattr(regularizer, name) < inf:
            raise ArmillaryError(f"regularizer.{name} = {getattr(regularizer, name)}", advice="it must be 0 or more")
    if regularizer.kind == "locater" and not (regularizer.scale or regularizer.mean):
        raise ArmillaryError("regularizer.kind = 'locater' needs regularizer.scale or regularizer.mean above 0")


def _refuse_unknown(key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ArmillaryError(f"{key_of(key)} = {value!r} is not known", advice=f"there are {', '.join(known)}")
