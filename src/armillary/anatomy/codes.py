"""Decodes quantized weights exactly as their formats define them: small integers or short floats, times scales.

Each function takes the stored tensors of one weight and returns its numbers, (out, in), in float32.
"""

import json
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from armillary.errors import ArmillaryError

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The values of the sixteen codes of e2m1, the element of MXFP4."""
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where AWQ keeps the columns of a group of eight, from the lowest four bits up."""


def int8_rows(weight: Int[Tensor, "out in"], scb: Float[Tensor, "out"]) -> Float[Tensor, "out in"]:
    """bitsandbytes LLM.int8: each row was divided by its largest absolute value and stored as -127 .. 127."""
    return weight.float() * (scb.float() / 127)[:, None]


def four_bit_state(state: UInt8[Tensor, "byte"]) -> dict[str, Any]:
    """What bitsandbytes records about a 4-bit weight: shape, blocksize, nested_offset, ..."""
    try:
        settings: dict[str, Any] = json.loads(bytes(state.tolist()).decode("utf-8"))
        shape, size = settings["shape"], settings["blocksize"]
        if not all(isinstance(n, int) and n > 0 for n in (*shape, size)):
            raise ValueError(f"shape {shape}, blocksize {size}")
    except (ValueError, KeyError, TypeError) as error:
        raise ArmillaryError(f"the quant_state of a 4-bit weight cannot be read ({error})") from error
    return settings


def four_bit(parts: dict[str, Tensor]) -> Float[Tensor, "*shape"]:
    """bitsandbytes NF4 and FP4: two codes a byte, the first in the high bits, times the largest value of their block.

    With double quantization those largest values are stored as codes themselves, less their mean.
    """
    state = four_bit_state(parts["state"])
    packed = parts["weight"].contiguous().view(torch.uint8).reshape(-1)
    codes = torch.stack([packed >> 4, packed & 15], 1).reshape(-1)
    scale = parts["absmax"]
    if "nested_absmax" in parts:
        coded = parts["nested_quant_map"].float()[scale.int()]
        blocks = parts["nested_absmax"].float().repeat_interleave(int(state["nested_blocksize"]))[: len(coded)]
        scale = coded * blocks + float(state["nested_offset"])
    count = int(torch.tensor(state["shape"]).prod())
    scales = scale.float().repeat_interleave(int(state["blocksize"]))[:count]
    return (parts["quant_map"].float()[codes[:count].int()] * scales).reshape(state["shape"])


def scaled(weight: Tensor, scale: Float[Tensor, "..."], block: tuple[int, int] | None = None) -> Float[Tensor, "m n"]:
    """FP8 and INT8 with scales: one, one a row, or one for every block of rows and columns."""
    numbers, scale = weight.float(), scale.float()
    if scale.numel() == 1:
        return numbers * scale.reshape(())
    if scale.dim() == 1 or scale.shape[1] == 1:
        return numbers * scale.reshape(-1, 1)
    rows, columns = block or (-(-numbers.shape[0] // scale.shape[0]), -(-numbers.shape[1] // scale.shape[1]))
    spread = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return numbers * spread[: numbers.shape[0], : numbers.shape[1]]


def gptq(parts: dict[str, Tensor], bits: int, first_version: bool) -> Float[Tensor, "out in"]:
    """GPTQ: scale of the group * (code - zero), with codes packed along the input and zeros along the output.

    The first version of the format stores zero - 1.
    """
    codes = _unpacked(parts["qweight"].T, bits).T  # (in, out)
    zeros = _unpacked(parts["qzeros"], bits)  # (group, out)
    zeros = (zeros + 1) % 2**bits if first_version else zeros
    inputs = len(codes)
    group = parts.get("g_idx", torch.arange(inputs) // -(-inputs // len(zeros))).long()
    return (parts["scales"].float()[group] * (codes - zeros[group])).T


def awq(parts: dict[str, Tensor], bits: int) -> Float[Tensor, "out in"]:
    """AWQ (its 'gemm' version): scale of the group * (code - zero), both packed along the output in AWQ's order."""
    codes, zeros = (_in_order(_unpacked(parts[name], bits)) for name in ("qweight", "qzeros"))
    group = torch.arange(len(codes)) // -(-len(codes) // len(zeros))
    return (parts["scales"].float()[group] * (codes - zeros[group])).T


def mxfp4(blocks: UInt8[Tensor, "*shape n 16"], scales: UInt8[Tensor, "*shape n"]) -> Float[Tensor, "*shape m"]:
    """MXFP4: 32 codes of e2m1 in 16 bytes, the first in the low bits, times 2^(scale - 127)."""
    values = torch.tensor(FP4)[torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).int()]
    return torch.ldexp(values, scales.int()[..., None] - 127).flatten(-2)


def _unpacked(packed: Int[Tensor, "n m"], bits: int) -> Int[Tensor, "n k"]:
    """The codes in rows of 32-bit integers, from the lowest bits up."""
    shifts = torch.arange(0, 32, bits)
    codes: Tensor = (packed.long() & 0xFFFFFFFF)[:, :, None] >> shifts & (2**bits - 1)
    return codes.flatten(1)


def _in_order(codes: Int[Tensor, "n m"]) -> Int[Tensor, "n m"]:
    return codes.reshape(len(codes), -1, 8)[:, :, list(AWQ_ORDER)].flatten(1)
