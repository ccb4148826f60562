"""ALiBi or learned positions for a model that was built with others: hooks that its configuration records."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from armillary.anatomy.bias import alibi_bias, alibi_slopes
from armillary.anatomy.checkpoint import expanded
from armillary.anatomy.description import Alibi, Anatomy
from armillary.anatomy.opening import open_tensors
from armillary.anatomy.registry import adapter_for
from armillary.anatomy.schemes import ALIBI, TABLE
from armillary.anatomy.source import blocks_name, transformer_of
from armillary.errors import ArmillaryError

MODULE = "armillary_table"
"""The name of the module with learned positions, inside the module that runs the blocks."""


def stem(model: Any) -> tuple[str, Any]:
    """The module that runs the blocks, to which positions and a mask are given, and its name."""
    inner = transformer_of(model)
    adapter = adapter_for(inner.config.model_type)
    if adapter is None:
        raise ArmillaryError(f"it is unknown where this {inner.config.model_type} model takes its positions")
    name = blocks_name(inner, adapter).rpartition(".")[0]
    return name, inner.get_submodule(name)


def lengths(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, int]:
    """What that module is called with (tokens or embeddings), and how many tokens its cache holds."""
    given = args[0] if args else kwargs.get("input_ids")
    given = kwargs["inputs_embeds"] if given is None else given
    cache = kwargs.get("past_key_values")
    return given, 0 if cache is None else int(cache.get_seq_length())


def add_alibi(model: Any) -> None:
    """Add -slope (i - j) to the logits of a causal model, permanently; its configuration then says so."""
    stem(model)[1].register_forward_pre_hook(_alibi_mask, with_kwargs=True)
    setattr(transformer_of(model).config, ALIBI, True)


def _alibi_mask(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments with a mask that has the bias."""
    mask = kwargs.get("attention_mask")
    if mask is not None and mask.dim() == 4:
        raise ArmillaryError("this model has ALiBi in its mask", advice="give a mask of (sequence, token), or none")
    given, before = lengths(args, kwargs)
    parameter = next(module.parameters())
    bias = causal_alibi(module.config.num_attention_heads, before, given.shape[1], parameter.dtype)
    bias = bias.to(given.device).expand(given.shape[0], -1, -1, -1)
    if mask is not None:
        bias = bias.masked_fill(mask[:, None, None, :] == 0, torch.finfo(parameter.dtype).min)
    return args, {**kwargs, "attention_mask": bias}


def causal_alibi(heads: int, before: int, count: int, dtype: torch.dtype) -> Float[Tensor, "1 head query key"]:
    """ALiBi's bias of `count` queries after `before` other tokens; keys that come later have the lowest number."""
    key = torch.arange(before + count)
    query = key[before:]
    bias = alibi_bias(Alibi(alibi_slopes(heads)), query, key).to(dtype)
    return bias.masked_fill(key[None, :] > query[:, None], torch.finfo(dtype).min)[None]


class PositionTable(nn.Module):
    """Learned positions; `before` is how many tokens the cache holds."""

    def __init__(self, weight: Float[Tensor, "position d"]) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.before = 0

    def note_cache(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given, self.before = lengths(args, kwargs)
        if self.before + given.shape[1] > len(self.weight):
            raise ArmillaryError(
                f"the text has {self.before + given.shape[1]} tokens, but this model has {len(self.weight)} positions",
                advice=f"cut the text to {len(self.weight)} tokens",
            )

    def add(self, module: Any, args: Any, embedded: Float[Tensor, "batch token d"]) -> Float[Tensor, "batch token d"]:
        return embedded + self.weight[self.before : self.before + embedded.shape[1]]


def add_table(model: Any, weight: Float[Tensor, "position d"]) -> None:
    """Add learned positions to the embeddings, permanently; the configuration then says how many there are."""
    inner, (_, module) = transformer_of(model), stem(model)
    table = PositionTable(weight)
    module.add_module(MODULE, table)
    module.register_forward_pre_hook(table.note_cache, with_kwargs=True)
    inner.get_input_embeddings().register_forward_hook(table.add)
    setattr(inner.config, TABLE, len(weight))


def restore_table(model: Any, source: Any, anatomy: Anatomy) -> None:
    """Add the learned positions of a folder, which transformers does not load."""
    inner = transformer_of(model)
    folder = Path(expanded(source))
    tensors = open_tensors(folder, None, inner.config, len(anatomy.layers)) if folder.is_dir() else None
    weight = None if tensors is None else tensors.read(f"{stem(model)[0]}.{MODULE}.weight")
    if weight is None:
        raise ArmillaryError(f"{source} lacks the learned positions that its configuration names ({TABLE})")
    add_table(model, weight.to(next(model.parameters())))
