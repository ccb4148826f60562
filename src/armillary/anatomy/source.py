"""Builds the Anatomy of a loaded model, a folder, a hub id or a configuration."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from armillary.anatomy.adapter import Adapter
from armillary.anatomy.checkpoint import expanded, has_weights, load_config
from armillary.anatomy.description import Anatomy, Layer
from armillary.anatomy.gguf import gguf_file
from armillary.anatomy.gguf_header import check_gguf
from armillary.anatomy.hub import fetched
from armillary.anatomy.limits import refuse_absurd_sizes
from armillary.anatomy.modes import evaluating
from armillary.anatomy.opening import open_tensors
from armillary.anatomy.quantized import decoded_parameter
from armillary.anatomy.registry import adapter_for, adapter_of, described_part, known_families, known_parts
from armillary.anatomy.schemes import as_trained
from armillary.anatomy.sense import refuse_nonsense
from armillary.anatomy.tensors import Tensors
from armillary.anatomy.weights import LayerWeights
from armillary.anatomy.whole import empty_model, refuse_partial, some
from armillary.errors import ArmillaryError
from armillary.machine.float64 import measurable
from armillary.machine.limits import lifted


def describe(
    source: Any,
    *,
    trust_remote_code: bool = False,
    live: bool = False,
    revision: str | None = None,
    adapter: Any = None,
    delta: bool = False,
    part: str = "",
) -> Anatomy:
    """The anatomy of a loaded model, a model folder, a hub id or a transformers configuration.

    From a loaded model the weights are views of its parameters; from a folder they are read from safetensors,
    one layer at a time, by `anatomy.weights(layer)`, quantized ones decoded and an `adapter` (LoRA) merged, or with
    `delta` its changes alone. A configuration, or a hub id without an adapter, gives no weights (anatomy/hub.py fetches
    them). With `live` a loaded model's weights are differentiable with respect to its parameters (for regularizers). Of
    an encoder-decoder the encoder is described, or its decoder with part="decoder", or the decoder's attention to the
    encoder with part="cross".
    """
    if isinstance(source, nn.Module):
        return _of_model(source, live, own=live, part=part)
    if isinstance(source, str | Path):
        source = expanded(source) if adapter is None else fetched(source, revision=revision)
        config = load_config_of(source, trust_remote_code=trust_remote_code, revision=revision)
        return of_files(config, source, adapter, delta, part)
    if hasattr(source, "to_dict") and hasattr(source, "model_type"):
        return _of_config(source, part)
    raise ArmillaryError(
        f"cannot describe a {type(source).__name__}",
        advice="give a loaded transformers model, a model folder, a hub id or a configuration",
    )


def load_config_of(source: str | Path, *, trust_remote_code: bool = False, revision: str | None = None) -> Any:
    """The configuration of a folder, a GGUF file or a hub id."""
    packed = gguf_file(source)
    if packed is None:
        options = {} if revision is None else {"revision": revision}
        return load_config(source, trust_remote_code=trust_remote_code, **options)
    check_gguf(packed)
    try:
        return load_config(packed.parent, trust_remote_code=trust_remote_code, gguf_file=packed.name)
    except ArmillaryError as error:
        raise ArmillaryError(f"{packed} is truncated or not a GGUF file ({error})") from error


def of_files(config: Any, source: str | Path, adapter: Any = None, delta: bool = False, part: str = "") -> Anatomy:
    """The anatomy of a folder or GGUF file with this configuration, after checking all headers against it."""
    anatomy, packed, place = _of_config(config, part), gguf_file(source), Path(source)
    family = adapter_of(anatomy)
    if packed is None and (not place.is_dir() or (family is None and not has_weights(place))):
        return anatomy  # the anatomy of an unknown family needs no weights
    checkpoint = open_tensors(place, packed, config, len(anatomy.layers), adapter, delta)
    if family is None:
        names = checkpoint.names()
        if len(anatomy.layers) > max(256, len(names)) and not lifted():
            raise ArmillaryError(
                f"the configuration in {place} has {len(anatomy.layers):,} layers, but only {len(names)} tensors"
            )
    else:
        anatomy = _with_checkpoint(family, anatomy, config, packed or place, checkpoint)
    if packed is not None and (family is None or not family.mlp):
        return anatomy  # experts have other names and shapes in GGUF files
    headers = {name: checkpoint.header(name) for name in checkpoint.names()}
    refuse_partial(packed or place, config, {name: header for name, header in headers.items() if header is not None})
    return anatomy


def _of_config(config: Any, part: str = "") -> Anatomy:
    text = described_part(config)
    if text is not config:
        try:
            return _of_config(text)
        except ArmillaryError as error:  # the tap can still read the whole model
            return replace(_unknown(config), missing=f"the text part of this {config.model_type} model: {error}")
    adapter = adapter_for(config.model_type, part)
    if adapter is None and part:
        raise ArmillaryError(
            f"no adapter knows the part {part!r} of {config.model_type} models",
            advice=f"known are 'decoder' and 'cross' of {', '.join(known_parts())}",
        )
    if adapter is None:
        return _unknown(config)
    beyond = adapter.beyond(config)
    if beyond:
        return replace(_unknown(config), missing=beyond)
    try:
        anatomy = as_trained(adapter.describe(config), config)
        refuse_nonsense(anatomy)
        return anatomy
    except ArmillaryError:
        raise
    except Exception as error:
        raise ArmillaryError(
            f"the configuration of this {config.model_type} model is not valid ({type(error).__name__}: {error})"
        ) from error


def describe_own(model: nn.Module) -> Anatomy:
    """The anatomy of a loaded model with weights to write to: views of its parameters, on whatever device they are."""
    return _of_model(model, live=False, own=True)


def _of_model(model: nn.Module, live: bool, own: bool, part: str = "") -> Anatomy:
    config = transformer_of(model).config
    anatomy = _of_config(config, part)
    adapter = adapter_of(anatomy)
    if adapter is None:
        return anatomy
    root = blocks_name(model, adapter)
    parameters = dict(model.named_parameters(remove_duplicate=False))

    def read(name: str) -> Tensor | None:
        parameter: Tensor | None = parameters.get(name)
        if parameter is None:
            parameter = _computed(model, name)
        elif parameter.is_meta:
            parameter = offloaded(model, name, parameter)
        if parameter is None or live:
            return parameter
        if own:
            return parameter.detach()
        if not parameter.is_floating_point():
            parameter = decoded_parameter(transformer_of(model), name, parameter)
        return measurable(parameter.detach())

    return _readable(adapter, anatomy, root, read)


def _computed(model: nn.Module, name: str) -> Tensor | None:
    """A weight that is computed from other parameters (torch's parametrizations), as the model uses it."""
    module_name, _, attribute = name.rpartition(".")
    try:
        module = model.get_submodule(module_name)
    except AttributeError:
        return None
    if not is_parametrized(module, attribute):
        return None
    with evaluating(module.get_submodule("parametrizations")):  # in training, reading changes it (power iterations)
        computed: Tensor = getattr(module, attribute)
    return computed


def offloaded(model: nn.Module, name: str, parameter: Tensor) -> Tensor:
    """A weight that accelerate keeps in main memory or on disk until its module runs (device_map)."""
    module_name, _, attribute = name.rpartition(".")
    hook: Any = getattr(model.get_submodule(module_name), "_hf_hook", None)
    for part in getattr(hook, "hooks", (hook,)):
        weights = getattr(part, "weights_map", None)
        if weights is not None:
            weight: Tensor = weights[attribute]
            return weight.to(part.execution_device, parameter.dtype)
    return parameter


def _with_checkpoint(adapter: Adapter, anatomy: Anatomy, config: Any, place: Path, checkpoint: Tensors) -> Anatomy:
    first = _inside(adapter, anatomy.layers[0], adapter.blocks) + f"{adapter.q.name}.weight"
    candidates = of_text([name for name in checkpoint.names() if name == first or name.endswith("." + first)])
    if not candidates and adapter.in_files:
        return _with_renamed(adapter, anatomy, first, checkpoint)
    if not candidates:
        raise ArmillaryError(
            f"{place} has no tensor named {first!r}, which a {anatomy.family} checkpoint should have: "
            "weights and config.json do not belong together"
        )
    if len(candidates) > 1:  # a second tower, or the same layer twice: transformers' own name decides
        own = blocks_name(empty_model(config), adapter).removesuffix(adapter.blocks) + first
        if own not in candidates or first in candidates:
            raise ArmillaryError(
                f"{place} has the first layer's queries under several names ({some(candidates)}): it is unclear "
                "which one to read"
            )
        candidates = [own]
    root = candidates[0].removesuffix(first) + adapter.blocks
    _check_shapes(adapter, anatomy, root, checkpoint)
    return _readable(adapter, anatomy, root, checkpoint.read)


def _with_renamed(adapter: Adapter, anatomy: Anatomy, first: str, checkpoint: Tensors) -> Anatomy:
    """The same for a checkpoint with names that transformers changes when it loads it."""
    stored = adapter.name_in_files(first)
    candidates = [name for name in checkpoint.names() if name == stored or name.endswith("." + stored)]
    if len(candidates) != 1:
        raise ArmillaryError(
            f"a {anatomy.family} checkpoint should have one tensor named {first!r} or {stored!r}, and this has "
            f"{len(candidates)}: weights and config.json do not belong together"
        )
    before = candidates[0].removesuffix(stored)

    def renamed(read: Callable[[str], Tensor | None]) -> Callable[[str], Tensor | None]:
        return lambda name: read(before + adapter.name_in_files(name))

    reader = _reader(adapter, anatomy, adapter.blocks, renamed(checkpoint.header))
    for layer in anatomy.layers:
        reader(layer.index)  # raises if a matrix is missing or has another size
    return _readable(adapter, anatomy, adapter.blocks, renamed(checkpoint.read))


def _check_shapes(adapter: Adapter, anatomy: Anatomy, root: str, checkpoint: Tensors) -> None:
    """Raise if an attention matrix is missing or has another size than configured; reads headers only."""
    reader = _reader(adapter, anatomy, root, checkpoint.header)
    for layer in anatomy.layers:
        reader(layer.index)


def _reader(
    adapter: Adapter, anatomy: Anatomy, root: str, read: Callable[[str], Tensor | None]
) -> Callable[[int], LayerWeights]:
    """A function from layer to its weights, given how to read a tensor by its full name."""

    def read_layer(layer: int) -> LayerWeights:
        described = anatomy.layers[layer]
        # a fused matrix is read once for q, k and v
        once = cache(partial(_read_inside, read, root, _inside(adapter, described, root)))
        try:
            return adapter.layer_weights(described, anatomy.d_model, once)
        except ArmillaryError as error:
            raise ArmillaryError(f"in layer {layer} ({_inside(adapter, described, root)[:-1]}): {error}") from error

    return read_layer


def _readable(adapter: Adapter, anatomy: Anatomy, root: str, read: Callable[[str], Tensor | None]) -> Anatomy:
    """The anatomy with its weights, given how to read a tensor by its full name."""

    def read_matrices(layer: int) -> Iterator[tuple[str, Tensor]]:
        described = anatomy.layers[layer]
        return adapter.layer_matrices(
            described, anatomy.d_model, partial(_read_inside, read, root, _inside(adapter, described, root))
        )

    return replace(anatomy, _read_layer=_reader(adapter, anatomy, root, read), _read_matrices=read_matrices)


def _read_inside(read: Callable[[str], Tensor | None], root: str, block: str, name: str) -> Tensor | None:
    """The tensor of that name inside a block; '../' is the list of blocks, '../../' what contains the list."""
    if name.startswith("../../"):
        return read(f"{root.rpartition('.')[0]}.{name.removeprefix('../../')}".removeprefix("."))
    return read(f"{root}.{name.removeprefix('../')}" if name.startswith("../") else f"{block}{name}")


def _inside(adapter: Adapter, layer: Layer, root: str) -> str:
    """The prefix of names inside the layer's block."""
    return f"{root}{layer.block.removeprefix(adapter.blocks)}."


def transformer_of(model: Any) -> Any:
    """The transformers model inside a wrapper: the first module with a configuration."""
    if isinstance(model, nn.Module):
        for module in model.modules():
            if hasattr(getattr(module, "config", None), "model_type"):
                return module
    raise ArmillaryError(
        f"{type(model).__name__} has no transformers configuration: Armillary reads transformers models"
    )


def blocks_name(model: nn.Module, adapter: Adapter) -> str:
    """The full name of the list of blocks in this model, also inside a wrapper."""
    names = [
        name
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, nn.ModuleList)
        and (name == adapter.blocks or name.endswith("." + adapter.blocks))
        and any(part.endswith(adapter.attention) for part, _ in module.named_modules())
    ]
    if not names:
        raise ArmillaryError(
            f"{type(model).__name__} has no list of blocks named {adapter.blocks!r} with attention at "
            f"{adapter.attention!r}, as {adapter.family} models do",
            advice="register an adapter for it",
        )
    return str(min(of_text(names), key=len))


def of_text(names: list[str]) -> list[str]:
    """The names that are not inside a part for images or sound; all if there are no others."""
    return [name for name in names if not NOT_TEXT.search(name)] or names


NOT_TEXT = re.compile(r"vision|visual|image|audio|speech")
"""In the names of parts of a model that do not read text."""


def _unknown(config: Any) -> Anatomy:
    """The anatomy of a family without an adapter, as far as the configuration describes it."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config

    def setting(*names: str) -> int | None:
        """The first of these settings that is a number."""
        for name in names:
            try:
                value = getattr(text, name, None)
            except Exception:  # some configurations raise if layers differ
                value = None
            if isinstance(value, int) and value > 0:
                return value
        return None

    heads, d_model = (
        setting("num_attention_heads", "n_head", "encoder_attention_heads"),
        setting("hidden_size", "d_model"),
    )
    count = setting("num_hidden_layers", "n_layer", "encoder_layers")
    if heads is None or d_model is None or count is None:
        raise ArmillaryError(
            f"the configuration of {config.model_type!r} does not say how many layers and heads the model "
            "has, and how wide it is",
            advice="register an adapter for its family",
        )
    width, kv_heads = setting("head_dim") or max(1, d_model // heads), setting("num_key_value_heads") or heads
    refuse_absurd_sizes(
        config.model_type, layers=count, heads=heads, key_heads=kv_heads, head_width=width, model_width=d_model
    )
    layer = Layer(
        index=0,
        block="",
        heads=heads,
        kv_heads=kv_heads,
        head_width=width,
        scale=None,
        causal=None,
        position=None,
    )
    return Anatomy(
        family=config.model_type,
        d_model=d_model,
        layers=tuple(replace(layer, index=i) for i in range(count)),
        vocabulary=setting("vocab_size") or 0,
        max_positions=setting("max_position_embeddings"),
        hard_limit=False,
        positions_added="unknown",
        norm="unknown",
        norm_place="unknown",
        missing=(
            f"no adapter knows the family {config.model_type!r}, so its weights per head, its position scheme "
            "and what is computed from them (spectra, exact constituents, rotary frequencies) are missing, while "
            "everything that needs only q, k, v and hidden states works; known families: " + ", ".join(known_families())
        ),
    )
