"""The adapters by family: those that ship with Armillary, and registered ones."""

from typing import Any

from armillary.anatomy.adapter import Adapter, Config
from armillary.anatomy.description import Anatomy
from armillary.anatomy.families import (
    bert,
    encoders,
    gpt,
    hybrid,
    latent,
    llama,
    llama_like,
    seq2seq,
    t5,
    vision,
)
from armillary.anatomy.versions import below, installed
from armillary.errors import ArmillaryError

_ADAPTERS: dict[str, Adapter] = {
    adapter.family: adapter
    for module in (bert, encoders, gpt, llama, llama_like, hybrid, latent, t5, seq2seq, vision)
    for adapter in module.ADAPTERS
}


_PARTS: dict[tuple[str, str], Adapter] = {(adapter.family, adapter.part): adapter for adapter in seq2seq.PARTS}


def register(adapter: Adapter) -> None:
    """Use an adapter for models whose config.model_type is `adapter.family`; it replaces an earlier one."""
    if not isinstance(adapter, Adapter):
        raise ArmillaryError(f"register takes an Adapter, not a {type(adapter).__name__}")
    if adapter.part:
        _PARTS[adapter.family, adapter.part] = adapter
    else:
        _ADAPTERS[adapter.family] = adapter


def adapter_for(family: str, part: str = "") -> Adapter | None:
    """The adapter of that family, or of a part of an encoder-decoder of that family; or None."""
    adapter = _PARTS.get((family, part)) if part else _ADAPTERS.get(family)
    if adapter is not None and adapter.renamed_since and below(installed(), adapter.renamed_since):
        return adapter.as_in_files()
    return adapter


def known_parts() -> tuple[str, ...]:
    """The families whose decoders are known, in alphabetical order."""
    return tuple(sorted({family for family, _ in _PARTS}))


def adapter_of(anatomy: Anatomy) -> Adapter | None:
    """The adapter that described this model, or None if something about it is missing."""
    return None if anatomy.missing else adapter_for(anatomy.family, anatomy.part)


def described_part(config: Config) -> Config:
    """The configuration that an adapter describes: the model's own, or that of the text part of a model for several
    kinds of input; the given one if there is no adapter for either."""
    if adapter_for(config.model_type) is not None or not hasattr(config, "get_text_config"):
        return config
    text: Any = config.get_text_config()
    return text if adapter_for(getattr(text, "model_type", "")) is not None else config


def known_families() -> tuple[str, ...]:
    """Every family that has an adapter, in alphabetical order."""
    return tuple(sorted(_ADAPTERS))
