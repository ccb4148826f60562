"""Writes a small model as others store it: GGUF, LoRA, and quantized formats, packed number by number by definition."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

GROUP = 16
"""Inputs that share a scale in GPTQ and AWQ."""
BLOCK = 64
"""Numbers that share a scale in NF4."""
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334),
    *(-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""The sixteen values of NF4, as the paper on QLoRA prints them (its appendix E)."""

Parts = dict[str, Tensor]
Quantizer = Callable[[Tensor], tuple[Parts, float]]
"""A matrix (out, in) to its stored parts by the ends of their names, and the largest error of one of its numbers."""


def write_quantized(model: Any, folder: Path, quantize: Quantizer, settings: dict[str, Any]) -> float:
    """The model with its layers' matrices quantized; returns the largest error of one number."""
    model.save_pretrained(folder)
    stored: Parts = {}
    worst = 0.0
    for name, weight in model.state_dict().items():
        if ".layers." in name and name.endswith("proj.weight"):
            parts, error = quantize(weight.float())
            stored |= {name.removesuffix("weight") + end: part.contiguous() for end, part in parts.items()}
            worst = max(worst, error)
        else:
            stored[name] = weight.contiguous().clone()
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    return worst


def bnb8(weight: Tensor) -> tuple[Parts, float]:
    largest = weight.abs().amax(1)
    return {"weight": torch.round(weight / largest[:, None] * 127).to(torch.int8), "SCB": largest}, float(
        largest.max()
    ) / 254


def nf4(weight: Tensor) -> tuple[Parts, float]:
    """A byte at a time, the first number in its high bits."""
    flat, values, data, scales = weight.flatten(), torch.tensor(NF4), bytearray(), []
    for start in range(0, len(flat), BLOCK):
        block = flat[start : start + BLOCK]
        scales.append(float(block.abs().max()))
        nearest = [int((values - number / scales[-1]).abs().argmin()) for number in block.tolist()]
        data += bytes(16 * first + second for first, second in zip(nearest[::2], nearest[1::2], strict=True))
    state = json.dumps({"quant_type": "nf4", "blocksize": BLOCK, "dtype": "float32", "shape": list(weight.shape)})
    widest = max(b - a for a, b in itertools.pairwise(NF4)) / 2
    return {
        "weight": torch.frombuffer(data, dtype=torch.uint8).clone()[:, None],
        "weight.absmax": torch.tensor(scales),
        "weight.quant_map": values,
        "weight.quant_state.bitsandbytes__nf4": torch.frombuffer(bytearray(state.encode()), dtype=torch.uint8).clone(),
    }, widest * max(scales)


def fp8(weight: Tensor) -> tuple[Parts, float]:
    """Blocks of 16 x 16, each scaled to the largest number of e4m3, 448, whose step is 32 there."""
    rows, columns = -(-weight.shape[0] // 16), -(-weight.shape[1] // 16)
    scales, stored = torch.zeros(rows, columns), torch.zeros_like(weight)
    for i in range(rows):
        for j in range(columns):
            at = (slice(16 * i, 16 * i + 16), slice(16 * j, 16 * j + 16))
            scales[i, j] = weight[at].abs().max() / 448
            stored[at] = weight[at] / scales[i, j]
    return {"weight": stored.to(torch.float8_e4m3fn), "weight_scale_inv": scales}, 16 * float(scales.max())


def _grouped(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes 0 .. 15 (in, out), zeros and scales (group, out) of asymmetric quantization."""
    groups = weight.T.reshape(-1, GROUP, len(weight))
    low, high = groups.amin(1).clamp(max=0), groups.amax(1).clamp(min=0)
    scale = (high - low) / 15
    zero = torch.round(-low / scale).clamp(0, 15)
    codes = (torch.round(groups / scale[:, None]) + zero[:, None]).clamp(0, 15).reshape(-1, len(weight))
    return codes.int(), zero.int(), scale


def _word(numbers: list[int]) -> int:
    """Eight four-bit numbers in a signed 32-bit one, the first in the lowest bits."""
    word = sum((number & 15) << (4 * at) for at, number in enumerate(numbers))
    return word - 2**32 if word >= 2**31 else word


def gptq(weight: Tensor) -> tuple[Parts, float]:
    codes, zero, scale = _grouped(weight)
    inputs, outputs = codes.shape
    packed = [[_word(codes[i : i + 8, j].tolist()) for j in range(outputs)] for i in range(0, inputs, 8)]
    zeros = [[_word([z - 1 for z in row[j : j + 8]]) for j in range(0, outputs, 8)] for row in zero.tolist()]
    return {
        "qweight": torch.tensor(packed, dtype=torch.int32),
        "qzeros": torch.tensor(zeros, dtype=torch.int32),
        "scales": scale,
        "g_idx": torch.tensor([i // GROUP for i in range(inputs)], dtype=torch.int32),
    }, float(scale.max())


def awq(weight: Tensor) -> tuple[Parts, float]:
    """Of eight columns, AWQ's kernel keeps 0, 2, 4, 6, 1, 3, 5, 7, from the lowest bits up."""
    codes, zero, scale = _grouped(weight)
    order = (0, 2, 4, 6, 1, 3, 5, 7)

    def rows(table: Tensor) -> Tensor:
        words = [[_word([row[j + at] for at in order]) for j in range(0, len(row), 8)] for row in table.tolist()]
        return torch.tensor(words, dtype=torch.int32)

    return {"qweight": rows(codes), "qzeros": rows(zero), "scales": scale}, float(scale.max())


FORMATS: dict[str, tuple[Quantizer, dict[str, Any]]] = {
    "bitsandbytes 8-bit": (bnb8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "bitsandbytes NF4": (
        nf4,
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    ),
    "FP8": (fp8, {"quant_method": "fp8", "weight_block_size": [16, 16]}),
    "GPTQ": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP}),
    "AWQ": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}),
}


def write_adapter(folder: Path, model: Any, rank: int = 2, **settings: Any) -> dict[str, Tensor]:
    """Write a random LoRA of q and v of every layer; returns its changes by the name of the weight."""
    random = torch.Generator().manual_seed(5)
    tensors: dict[str, Tensor] = {}
    changes = {}
    for name, weight in model.state_dict().items():
        if name.endswith(("q_proj.weight", "v_proj.weight")):
            a, b = (
                torch.randn(rank, weight.shape[1], generator=random),
                torch.randn(len(weight), rank, generator=random),
            )
            module = "base_model.model." + name.removesuffix("weight")
            tensors |= {module + "lora_A.weight": a, module + "lora_B.weight": b}
            changes[name] = 8 / rank * b @ a
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "base_model_name_or_path": "someone/base", **settings}
    (folder / "adapter_config.json").write_text(json.dumps(about))
    return changes


def write_gguf(gguf: Any, model: Any, path: Path) -> None:
    """The model as llama.cpp's converter would write it: its own names, rotary pairs side by side."""
    path.parent.mkdir()
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for name, value in model.state_dict().items():
        array = value.float().numpy()
        pieces = name.split(".")
        if pieces[1] == "layers":
            ours = ".".join(pieces[3:-1])
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(parts[ours])
            if heads:
                array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
            target = f"blk.{pieces[2]}.{parts[ours]}.weight"
        else:
            target = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm"}.get(name, "output")
            target += ".weight"
        writer.add_tensor(target, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
