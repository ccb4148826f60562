"""Checks that a checkpoint is complete: its headers against every tensor that the transformers model needs."""

import copy
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from armillary.anatomy.limits import LIFTED
from armillary.errors import ArmillaryError
from armillary.machine.limits import lifted
from armillary.machine.quiet import quiet

# Imports inside functions: transformers takes seconds to import.

TABLES = 2 * 2**30
"""A model may compute tables (cosines, masks) of this many bytes, or of the size of its weights if that is larger."""

ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)


def refuse_unquantized(source: Any, headers: dict[str, Tensor]) -> None:
    """Raise if the configuration says that the weights are quantized but none is."""
    if headers and all(header.is_floating_point() for header in headers.values()):
        raise ArmillaryError(
            f"the configuration of {source} has a quantization_config, but its weights are plain numbers: weights and "
            "config.json do not belong together; if the weights are right, remove quantization_config"
        )


def refuse_partial(source: Any, config: Any, headers: dict[str, Tensor]) -> None:
    """Raise if tensors are missing, have wrong shapes, are integers, or belong to layers beyond the last.

    transformers loads the headers as empty tensors, so that renamed and merged weights are treated as in real
    loading; no weight is read. Models whose code comes with the checkpoint are not checked. A checkpoint of the base
    model under the name of a model with a head (sentence-transformers writes those) is treated as what it is: `config`
    is changed to name the base model.
    """
    if not type(config).__module__.startswith("transformers."):
        return
    if getattr(config, "quantization_config", None):  # the headers are those of the decoded weights
        config = copy.deepcopy(config)
        del config.quantization_config
    try:
        with quiet(always=True):
            empty = empty_model(config)
            if is_without_head(empty, headers):
                config.architectures = [type(empty.base_model).__name__]
                empty = empty_model(config)
            refuse_huge_tables(source, empty, sum(header.nbytes for header in headers.values()))
            model, info = type(empty).from_pretrained(
                None,
                config=config,
                state_dict=dict(headers),
                device_map={"": "meta"},
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    except ArmillaryError:
        raise
    except Exception as error:
        raise ArmillaryError(
            f"the configuration of {source} does not give a {config.model_type} model: {in_one_line(error)}"
        ) from error
    refuse_incomplete(source, model, info)
    refuse_integers(model, headers)


def is_without_head(model: Any, headers: dict[str, Tensor]) -> bool:
    """Whether these are all weights of the model's base model, under that model's own names."""
    base = model.base_model
    needed = {name for name, _ in base.named_parameters() if "pooler" not in name}
    return base is not model and needed <= headers.keys()


def empty_model(config: Any) -> Any:
    """The model of a configuration on the meta device, without weights."""
    loader = loader_of(config)
    with torch.device("meta"):
        return loader.from_config(config) if hasattr(loader, "from_config") else loader._from_config(config)


def refuse_huge_tables(source: Any, model: nn.Module, weights: int) -> None:
    """Raise if a model on the meta device would compute tables that are far larger than its weights."""
    sizes = {name: buffer.nbytes for name, buffer in model.named_buffers()}
    if sum(sizes.values()) > max(TABLES, weights) and not lifted():
        largest = max(sizes, key=lambda name: sizes[name])
        raise ArmillaryError(
            f"{source} would compute tables of {sum(sizes.values()) / 2**30:,.0f} GiB ({largest} and others) for "
            f"weights of {weights / 2**30:.1f} GiB: the configuration asks for too many positions ({LIFTED} lifts "
            "the limit)"
        )


def refuse_incomplete(source: Any, model: nn.Module, info: dict[str, Any]) -> None:
    """Raise on problems in transformers' loading info: missing tensors, wrong shapes, layers beyond the last."""
    missing = sorted(str(key) for key in info["missing_keys"] if "pooler" not in str(key))
    if missing:
        raise ArmillaryError(
            f"{source} lacks weights that the model needs ({some(missing)}): weights and config.json do not belong "
            "together"
        )
    mismatched = [f"{name} is {tuple(a)}, not {tuple(b)}" for name, a, b in sorted(info.get("mismatched_keys", ()))]
    if mismatched:
        raise ArmillaryError(
            f"{source} has weights of other shapes than its configuration describes ({some(mismatched)}): weights and "
            "config.json do not belong together"
        )
    beyond = sorted(key for key in info.get("unexpected_keys", ()) if _of_another_layer(key, set(model.state_dict())))
    if beyond:
        raise ArmillaryError(
            f"{source} has more layers than its configuration says ({some(beyond)}): weights and config.json do not "
            "belong together"
        )


def _of_another_layer(key: str, known: set[str]) -> bool:
    """Whether this is an attention weight that the model has in layer 0 but not in this key's layer."""
    numbers = list(re.finditer(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)", key))
    first = (key[: number.start()] + "0" + key[number.end() :] for number in numbers)
    return bool(ATTENTION.search(key)) and "norm" not in key and any(name in known for name in first)


def refuse_integers(model: nn.Module, headers: dict[str, Tensor]) -> None:
    """Raise if a weight is stored as integers or quantized, but the model computes with floats."""
    integers = [name for name, header in headers.items() if not header.is_floating_point()]
    if not integers:
        return
    weights = {name for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
    ends = {name[at:] for name in weights for at in [0, *(m.end() for m in re.finditer(r"\.", name))]}
    for name in integers:
        starts = [0, *(m.end() for m in re.finditer(r"\.", name))]
        if name in ends or any(name[at:] in weights for at in starts):
            raise ArmillaryError(
                f"{name} is stored as integers or in a quantized format",
                advice="load the model in float32, float16 or bfloat16",
            )


def loader_of(config: Any) -> Any:
    """The class that the configuration names, if transformers has it, else an Auto class."""
    import transformers

    named = getattr(config, "architectures", None) or ()
    for name in named if isinstance(named, list | tuple) else ():
        cls = getattr(transformers, name, None) if isinstance(name, str) else None
        if isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel):
            return cls
    if type(config) in transformers.AutoModelForCausalLM._model_mapping and not config.is_encoder_decoder:
        return transformers.AutoModelForCausalLM
    return transformers.AutoModel


def some(names: Iterable[str]) -> str:
    """The first three names, and the number of others."""
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


def in_one_line(error: BaseException, most: int = 300) -> str:
    """An error's message without line breaks, cut to `most` characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:most]
