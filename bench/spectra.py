"""What spectra cost: all heads of a layer of a 7B model against one dense head, against reading it, and in memory."""

import json
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import Row, apart, resident, seconds

D, E, HEADS, KV, MLP, LAYERS = 4096, 128, 32, 32, 11008, 4
"""Llama 2 7B."""
VOCABULARY, NORMS = 1000, ("input", "post_attention")


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        found: dict[str, Any] = apart(layer, folder)
        peak = apart(peak_of_weights, folder)
    layer_mb = 2 * (4 * D * D + 3 * D * MLP) / 2**20
    what = "spectra (QK, OV, eigenvalues) of all 32 heads of a layer, 7B shape"
    return [
        Row("dense svdvals of one head, 7B shape", what, found["dense"] / found["layer"], target=30, least=True),
        Row("the same svdvals in float64, as our spectra are", what, found["dense64"] / found["layer"], note="float64"),
        Row(what, "reading that layer from disk (warm)", found["layer"] / found["read"], target=3),
        Row(
            "`armillary weights`, 4 layers of that shape: peak memory", "one layer's bfloat16 weights", peak / layer_mb
        ),
    ]


def layer(folder: str) -> dict[str, float]:
    """Seconds of the spectra of a layer's heads, of reading its weights, and of one dense head's singular values."""
    from armillary.anatomy.source import describe
    from armillary.lenses.products import layer_spectra

    torch.set_num_threads(os.cpu_count() or 1)
    anatomy = describe(folder)
    times: dict[str, list[float]] = {"read": [], "layer": [], "dense": [], "dense64": []}
    for index in range(LAYERS):  # in turn
        start = time.perf_counter()
        weights = anatomy.weights(index)
        _ = [part.clone() for parts in (weights.q, weights.k, weights.v, weights.o) for part in parts]
        times["read"].append(time.perf_counter() - start)
        times["layer"].append(seconds(partial(layer_spectra, anatomy.layers[index], weights)))
        product = weights.q[0].float() @ weights.k[0].float().T
        times["dense"].append(seconds(partial(torch.linalg.svdvals, product)))
        times["dense64"].append(seconds(partial(torch.linalg.svdvals, product.double())) if index < 2 else 0.0)
    return {name: statistics.median(value for value in values if value) for name, values in times.items()}


def peak_of_weights(folder: str) -> float:
    import armillary as arm

    arm.weigh(folder)
    return resident()


def write(folder: Path) -> None:
    """Random weights, a file per layer."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=D,
        intermediate_size=MLP,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV,
        vocab_size=VOCABULARY,
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    shapes = {
        **{f"self_attn.{name}_proj": (D, D) for name in "qkvo"},
        "mlp.gate_proj": (MLP, D),
        "mlp.up_proj": (MLP, D),
        "mlp.down_proj": (D, MLP),
    }
    index: dict[str, str] = {}
    for number in range(LAYERS):
        tensors = {
            f"model.layers.{number}.{name}.weight": (torch.randn(shape) * 0.02).to(torch.bfloat16)
            for name, shape in shapes.items()
        }
        tensors |= {f"model.layers.{number}.{name}_layernorm.weight": torch.ones(D) for name in NORMS}
        if number == 0:  # what belongs to no layer: a checkpoint that lacks a weight is refused
            tensors |= {name: torch.zeros(VOCABULARY, D) for name in ("model.embed_tokens.weight", "lm_head.weight")}
            tensors["model.norm.weight"] = torch.ones(D)
        file = f"model-{number + 1:05d}-of-{LAYERS:05d}.safetensors"
        save_file(tensors, folder / file)
        index |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
