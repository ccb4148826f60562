"""From a loaded model, a folder, a hub id or a configuration to its Anatomy."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from armillary.anatomy.adapter import Adapter, adapter_for, known_families
from armillary.anatomy.checkpoint import Checkpoint, load_config
from armillary.anatomy.description import Anatomy, Layer
from armillary.anatomy.weights import LayerWeights
from armillary.errors import ArmillaryError


def describe(source: Any, *, trust_remote_code: bool = False) -> Anatomy:
    """The anatomy of a loaded model, a model folder, a hub id or a transformers configuration.

    From a loaded model the weights are views of its parameters; from a folder they are read from safetensors,
    one layer at a time, when `anatomy.weights(layer)` asks. A hub id or a configuration gives no weights.
    """
    if isinstance(source, nn.Module):
        return _of_model(source)
    if isinstance(source, str | Path):
        anatomy = _of_config(load_config(source, trust_remote_code=trust_remote_code))
        return _with_checkpoint(anatomy, Path(source)) if Path(source).is_dir() else anatomy
    if hasattr(source, "to_dict") and hasattr(source, "model_type"):
        return _of_config(source)
    raise ArmillaryError(
        f"cannot describe a {type(source).__name__}: give a loaded transformers model, a model folder, a hub id or a "
        "configuration"
    )


def _of_config(config: Any) -> Anatomy:
    adapter = adapter_for(config.model_type)
    return _unknown(config) if adapter is None else adapter.describe(config)


def _of_model(model: nn.Module) -> Anatomy:
    config = config_of(model)
    adapter = adapter_for(config.model_type)
    if adapter is None:
        return _unknown(config)
    anatomy = adapter.describe(config)
    root = blocks_name(model, adapter)
    parameters = dict(model.named_parameters(remove_duplicate=False))

    def read(name: str) -> Tensor | None:
        parameter = parameters.get(name)
        return None if parameter is None else parameter.detach()

    return replace(anatomy, _read_layer=_reader(adapter, anatomy, root, read))


def _with_checkpoint(anatomy: Anatomy, folder: Path) -> Anatomy:
    adapter = adapter_for(anatomy.family)
    if adapter is None:
        return anatomy
    checkpoint = Checkpoint(folder)
    first = _inside(adapter, anatomy.layers[0], adapter.blocks) + f"{adapter.q.name}.weight"
    found = [name for name in checkpoint.names() if name == first or name.endswith("." + first)]
    if not found:
        raise ArmillaryError(
            f"{folder} has no tensor named {first!r}, which a {anatomy.family} checkpoint should have: "
            "weights and config.json do not belong together"
        )
    root = min(found, key=len).removesuffix(first) + adapter.blocks
    _check_shapes(adapter, anatomy, root, checkpoint)
    return replace(anatomy, _read_layer=_reader(adapter, anatomy, root, checkpoint.read))


def _check_shapes(adapter: Adapter, anatomy: Anatomy, root: str, checkpoint: Checkpoint) -> None:
    """Every layer's attention matrices are there with the sizes the configuration asks for; reads headers only."""
    reader = _reader(adapter, anatomy, root, checkpoint.header)
    for layer in anatomy.layers:
        reader(layer.index)


def _reader(
    adapter: Adapter, anatomy: Anatomy, root: str, read: Callable[[str], Tensor | None]
) -> Callable[[int], LayerWeights]:
    """A function from layer to its weights, given how to read a tensor by its full name."""

    def read_inside(block: str, name: str) -> Tensor | None:
        return read(f"{root}.{name.removeprefix('../')}" if name.startswith("../") else f"{block}{name}")

    def read_layer(layer: int) -> LayerWeights:
        here = anatomy.layers[layer]
        return adapter.layer_weights(here, anatomy.d_model, partial(read_inside, _inside(adapter, here, root)))

    return read_layer


def _inside(adapter: Adapter, layer: Layer, root: str) -> str:
    """The prefix of names inside the layer's block."""
    return f"{root}{layer.block.removeprefix(adapter.blocks)}."


def config_of(model: nn.Module) -> Any:
    """The model's configuration; a wrapper's is that of the first transformers model inside it."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "model_type"):
            return config
    raise ArmillaryError(
        f"{type(model).__name__} has no transformers configuration: Armillary reads transformers models"
    )


def blocks_name(model: nn.Module, adapter: Adapter) -> str:
    """The full name of the list of blocks in this model, whatever it is wrapped in."""
    found = [
        name
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, nn.ModuleList) and (name == adapter.blocks or name.endswith("." + adapter.blocks))
    ]
    if not found:
        raise ArmillaryError(
            f"{type(model).__name__} has no list of blocks named {adapter.blocks!r}, where {adapter.family} models "
            "keep their layers: register an adapter for it"
        )
    return str(min(found, key=len))


def _unknown(config: Any) -> Anatomy:
    """What a configuration tells of a family that no adapter knows."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    try:
        heads, d_model = int(text.num_attention_heads), int(text.hidden_size)
        count = int(text.num_hidden_layers)
    except (AttributeError, TypeError) as error:
        raise ArmillaryError(
            f"the configuration of {config.model_type!r} does not say how many layers and heads the model has ({error})"
        ) from error
    layer = Layer(
        index=0,
        block="",
        heads=heads,
        kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_width=int(getattr(text, "head_dim", None) or d_model // heads),
        scale=None,
        causal=None,
        position=None,
    )
    return Anatomy(
        family=config.model_type,
        d_model=d_model,
        layers=tuple(replace(layer, index=i) for i in range(count)),
        vocabulary=int(getattr(text, "vocab_size", 0) or 0),
        max_positions=getattr(text, "max_position_embeddings", None),
        hard_limit=False,
        positions_added="unknown",
        norm="unknown",
        norm_place="unknown",
        missing=(
            f"no adapter knows the family {config.model_type!r}, so its weights per head, its position scheme and "
            "what is computed from them (spectra, exact constituents, rotary frequencies) are missing, while "
            "everything that needs only q, k, v and hidden states works; known families: " + ", ".join(known_families())
        ),
    )
