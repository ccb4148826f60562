"""Quantized checkpoints: which stored tensors make up a weight, and the weight decoded when it is read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from armillary.anatomy import codes
from armillary.anatomy.checkpoint import Checkpoint
from armillary.anatomy.whole import refuse_unquantized
from armillary.errors import ArmillaryError

Parts = dict[str, Tensor]


@dataclass(frozen=True)
class Format:
    """How a weight is stored: the names of its parts after the module's, its shape from their headers, its numbers.

    The weight is recognized by its `anchor`; parts after a question mark may be missing.
    """

    name: str
    weight: str
    anchor: str
    parts: Mapping[str, str]
    shape: Callable[[Parts], tuple[int, ...]]
    decode: Callable[[Parts], Tensor]


class QuantizedTensors:
    """The tensors of a quantized checkpoint with every weight decoded, by the names of the unquantized one."""

    def __init__(self, checkpoint: Checkpoint, form: Format, transposed: bool = False) -> None:
        self._checkpoint, self._format, self._transposed = checkpoint, form, transposed
        stored = set(checkpoint.names())
        self._parts: dict[str, dict[str, str]] = {}
        for name in stored:
            if name.endswith(form.anchor):
                module = name.removesuffix(form.anchor)
                named = {part: module + end.removeprefix("?") for part, end in form.parts.items()}
                found = {part: full for part, full in named.items() if full in stored}
                needed = [part for part, end in form.parts.items() if not end.startswith("?")]
                missing = [named[part] for part in needed if part not in found]
                if missing:
                    raise ArmillaryError(f"{checkpoint.folder} has {name} without {missing[0]}, which decodes it")
                self._parts[module + form.weight] = found
        taken = {part for parts in self._parts.values() for part in parts.values()}
        self._plain = [name for name in checkpoint.names() if name not in taken]

    def names(self) -> list[str]:
        return [*self._parts, *self._plain]

    def header(self, name: str) -> Tensor | None:
        """An empty (meta) tensor of the decoded weight's shape, or None."""
        if name not in self._parts:
            return self._checkpoint.header(name) if name in self._plain else None
        headers = {part: self._header(part, full) for part, full in self._parts[name].items()}
        shape = self._format.shape(headers)
        return torch.empty(shape[::-1] if self._transposed else shape, device="meta", dtype=torch.float32)

    def _header(self, part: str, full: str) -> Tensor:
        """A part's header; the few bytes that say a 4-bit weight's shape are read."""
        header = self._checkpoint.read(full) if part == "state" else self._checkpoint.header(full)
        assert header is not None
        return header

    def read(self, name: str) -> Tensor | None:
        """The decoded weight of that name in float32, a plain tensor as it is stored, or None."""
        if name not in self._parts:
            return self._checkpoint.read(name) if name in self._plain else None
        stored = {part: self._checkpoint.read(full) for part, full in self._parts[name].items()}
        try:
            weight = self._format.decode({part: tensor for part, tensor in stored.items() if tensor is not None})
            return weight.T if self._transposed else weight
        except ArmillaryError as error:
            raise ArmillaryError(f"{name} of {self._checkpoint.folder} cannot be decoded: {error}") from error
        except (RuntimeError, IndexError, ValueError, KeyError) as error:
            raise ArmillaryError(
                f"{name} of {self._checkpoint.folder} cannot be decoded as {self._format.name}: its parts do not fit "
                f"together ({str(error).splitlines()[0][:120]})"
            ) from error


CONV1D = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")
"""Families whose matrices are stored as (in, out), but as (out, in) when they are quantized."""


def decoded(checkpoint: Checkpoint, settings: Any, family: str) -> QuantizedTensors:
    """The checkpoint with its weights decoded, by the settings in config.json (`quantization_config`)."""
    headers = {name: checkpoint.header(name) for name in checkpoint.names()}
    refuse_unquantized(checkpoint.folder, {name: header for name, header in headers.items() if header is not None})
    form = _format(settings if isinstance(settings, dict) else settings.to_dict())
    return QuantizedTensors(checkpoint, form, family in CONV1D)


def decoded_parameter(model: nn.Module, name: str, parameter: Tensor) -> Tensor:
    """A loaded model's parameter; one that bitsandbytes keeps quantized is decoded."""
    module: Any = model.get_submodule(name.rpartition(".")[0])
    state, family = getattr(parameter, "quant_state", None), str(getattr(model.config, "model_type", ""))
    rows = getattr(parameter, "SCB", None)
    rows = getattr(getattr(module, "state", None), "SCB", None) if rows is None else rows  # there after its first run
    if getattr(state, "packing_format_for_cpu", False):
        raise ArmillaryError(
            f"bitsandbytes has repacked {name} for this processor, so it cannot be read",
            advice="load the model unquantized, or read its files with `armillary weights`",
        )
    if state is not None:
        stored = {part.removeprefix("weight."): tensor for part, tensor in state.as_dict(packed=True).items()}
        coded = next(part for part in stored if part.startswith("quant_state."))
        weight = codes.four_bit({"weight": parameter.data, "state": stored.pop(coded), **stored})
    elif parameter.dtype == torch.int8 and rows is not None:
        weight = codes.int8_rows(parameter.data, rows.reshape(-1))
    else:
        return parameter
    return weight.T if family in CONV1D else weight


def _format(settings: dict[str, Any]) -> Format:
    method = str(settings.get("quant_method", "")).rpartition(".")[2].lower()
    if method in ("bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit", ""):
        if settings.get("load_in_8bit") or settings.get("_load_in_8bit"):
            return INT8
        if settings.get("load_in_4bit") or settings.get("_load_in_4bit"):
            return _four_bit(str(settings.get("bnb_4bit_quant_type", "nf4")))
    if method == "fp8":
        return _fp8(settings)
    if method == "fbgemm_fp8":
        return _scaled("FBGEMM FP8", "weight_scale", None)
    if method == "compressed-tensors" and settings.get("format") in COMPRESSED:
        return _scaled(f"compressed-tensors ({settings['format']})", "weight_scale", None)
    if method in ("gptq", "awq"):
        return _packed(method, settings)
    if method == "mxfp4":
        return MXFP4
    kind = method + (f" ({settings['format']})" if settings.get("format") else "")
    raise ArmillaryError(
        f"the weights are quantized as {kind or 'an unnamed format'}, which is not decoded here (bitsandbytes, FP8, "
        "GPTQ, AWQ and MXFP4 are)",
        advice="load the model with its own package, dequantize it (model.dequantize()) and save it",
        given=settings.get("quant_method"),
    )


COMPRESSED = ("float-quantized", "int-quantized", "naive-quantized")
"""The formats of compressed-tensors that store a number a weight."""

INT8 = Format(
    "bitsandbytes 8-bit",
    "weight",
    "SCB",
    {"weight": "weight", "SCB": "SCB", "format": "?weight_format"},
    lambda parts: tuple(parts["weight"].shape),
    lambda parts: codes.int8_rows(parts["weight"], parts["SCB"]),
)

MXFP4 = Format(
    "MXFP4",
    "",
    "_blocks",
    {"blocks": "_blocks", "scales": "_scales"},
    lambda parts: _experts((*parts["blocks"].shape[:-2], parts["blocks"].shape[-2] * 32)),
    lambda parts: codes.mxfp4(parts["blocks"], parts["scales"]).transpose(-1, -2),
)


def _experts(shape: tuple[int, ...]) -> tuple[int, ...]:
    """(..., out, in) as transformers keeps experts: (..., in, out)."""
    return (*shape[:-2], shape[-1], shape[-2])


def _four_bit(kind: str) -> Format:
    state = f"weight.quant_state.bitsandbytes__{kind}"
    nested = {name: f"?weight.{name}" for name in ("nested_absmax", "nested_quant_map")}
    return Format(
        f"bitsandbytes {kind}",
        "weight",
        state,
        {"weight": "weight", "absmax": "weight.absmax", "quant_map": "weight.quant_map", "state": state, **nested},
        lambda parts: tuple(codes.four_bit_state(parts["state"])["shape"]),
        codes.four_bit,
    )


def _fp8(settings: dict[str, Any]) -> Format:
    size = settings.get("weight_block_size")
    if size is not None and not (isinstance(size, list | tuple) and len(size) == 2 and min(size) >= 1):
        raise ArmillaryError(f"the quantization_config has weight_block_size {size!r}, which is not two numbers")
    return _scaled("FP8", "weight_scale_inv", None if size is None else (int(size[0]), int(size[1])))


def _scaled(name: str, scale: str, block: tuple[int, int] | None) -> Format:
    others = {"input": "?input_scale", "activation": "?activation_scale", "input_ub": "?input_scale_ub"}
    return Format(
        name,
        "weight",
        scale,
        {"weight": "weight", "scale": scale, **others},
        lambda parts: tuple(parts["weight"].shape),
        lambda parts: codes.scaled(_numbers(parts["weight"]), parts["scale"], block),
    )


def _numbers(weight: Tensor) -> Tensor:
    """Eight-bit numbers; raises on bytes that may hold two four-bit ones."""
    if weight.dtype == torch.uint8 or weight.dtype.itemsize > 1:
        raise ArmillaryError(f"a scaled weight is stored as {weight.dtype}", advice="FP8 and int8 are decoded here")
    return weight


def _packed(method: str, settings: dict[str, Any]) -> Format:
    """GPTQ and AWQ, which pack several codes into a 32-bit integer."""
    bits, version, name = int(settings.get("bits") or 0), str(settings.get("version", "gemm")).lower(), method.upper()
    if bits not in ((4,) if method == "awq" else (2, 4, 8)) or (method == "awq" and version != "gemm"):
        raise ArmillaryError(
            f"the weights are quantized as {name} with {bits} bits"
            + (f", version {version}" if method == "awq" else ""),
            advice="GPTQ with 2, 4 or 8 bits and AWQ gemm with 4 are decoded here; dequantize others and save them",
        )
    parts = {part: part for part in ("qweight", "qzeros", "scales")}
    if method == "awq":
        return Format(
            name,
            "weight",
            "qweight",
            parts,
            lambda p: (p["qweight"].shape[1] * 8, p["qweight"].shape[0]),
            lambda p: codes.awq(p, bits),
        )
    first = str(settings.get("checkpoint_format", "gptq")) != "gptq_v2"
    return Format(
        name,
        "weight",
        "qweight",
        {**parts, "g_idx": "?g_idx"},
        lambda p: (p["qweight"].shape[1], p["qweight"].shape[0] * 32 // bits),
        lambda p: codes.gptq(p, bits, first),
    )
