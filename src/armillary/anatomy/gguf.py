"""Reads weights from GGUF files: tensors by their transformers names, dequantized on demand (extra 'gguf')."""

import re
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from armillary.anatomy.folder import refuse_special_files
from armillary.anatomy.whole import empty_model
from armillary.errors import ArmillaryError

# Imports inside functions: gguf is an optional package, and transformers takes seconds to import.

BLOCK = re.compile(r"blk\.(\d{1,9})\.", re.ASCII)
"""How the names of a layer's tensors begin in a GGUF file."""
TRANSPOSED = ("attn_qkv.weight", "ffn_down.weight", "ffn_up.weight", "attn_output.weight")
"""GPT-2's matrices, which GGUF files store transposed."""


def gguf_file(source: str | Path) -> Path | None:
    """The GGUF file that a path refers to: itself, or the only one in a folder without config.json."""
    path = Path(source)
    if path.suffix == ".gguf" and path.is_file():
        return path
    if path.is_dir() and not (path / "config.json").is_file():
        refuse_special_files(path)
        files = sorted(file for file in path.glob("*.gguf") if file.is_file())
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise ArmillaryError(f"{source} has several GGUF files ({names})", advice="give the file, not the folder")
        return files[0] if files else None
    return None


def tokenizer_fields(file: Path) -> dict[str, Any]:
    """The plain settings of a GGUF file's tokenizer, by their names after 'tokenizer.ggml.'."""
    prefix = "tokenizer.ggml."
    fields = _reader(file).fields
    single = {name: field for name, field in fields.items() if name.startswith(prefix) and len(field.types) == 1}
    return {name.removeprefix(prefix): field.contents() for name, field in single.items()}


def _reader(file: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ArmillaryError(f"{file} needs the package gguf: pip install 'armillary[gguf]'") from error
    try:
        return GGUFReader(str(file))
    except Exception as error:
        raise ArmillaryError(f"{file} is truncated or not a GGUF file ({error})") from error


class GgufCheckpoint:
    """The tensors of a GGUF file by their transformers names; nothing is kept in memory.

    transformers' own tables convert names and the order of rows (llama.cpp stores rotary pairs interleaved).
    """

    def __init__(self, file: Path, config: Any, layers: int) -> None:
        self.file = file
        self._config = config
        self._reader = _reader(file)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        blocks = {int(block[1]) for name in self._tensors if (block := BLOCK.match(name))}
        if blocks and max(blocks) + 1 != layers:
            raise ArmillaryError(
                f"the header of {file} has {layers} layers, but there are tensors of {max(blocks) + 1} "
                f"(up to blk.{max(blocks)}): its header and its weights do not belong together"
            )

    @cached_property
    def _processor(self) -> Any:
        from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, read_field

        architecture = read_field(self._reader, "general.architecture")[0]
        kind = TENSOR_PROCESSORS.get(architecture, TensorProcessor)
        return kind(config=self._config.to_dict())

    @cached_property
    def _stored_names(self) -> dict[str, str]:
        """transformers' name -> the file's name."""
        from transformers.modeling_gguf_pytorch_utils import get_gguf_hf_weights_map

        names = get_gguf_hf_weights_map(empty_model(self._config), self._processor)
        return {ours: stored for stored, ours in names.items() if stored in self._tensors}

    def names(self) -> list[str]:
        """The names of all tensors that transformers knows."""
        return list(self._stored_names)

    def read(self, name: str) -> Tensor | None:
        """The tensor of that name in float32, or None."""
        from gguf import dequantize

        stored = self._stored_names.get(name)
        if stored is None:
            return None
        tensor = self._tensors[stored]
        weights = dequantize(tensor.data, tensor.tensor_type)
        result = self._processor.process(
            weights=weights, name=stored, tensor_key_mapping={}, parsed_parameters={"tensors": {}}
        )
        return torch.from_numpy(result.weights.copy())

    def read_rows(self, name: str, start: int, stop: int) -> Tensor | None:
        """Rows start .. stop - 1 of an embedding or unembedding, which are stored as they are; or None."""
        from gguf import dequantize

        stored = self._stored_names.get(name)
        if stored is None:
            return None
        tensor = self._tensors[stored]
        return torch.from_numpy(dequantize(tensor.data[start:stop], tensor.tensor_type).copy())

    def header(self, name: str) -> Tensor | None:
        """An empty (meta) tensor of that name's shape, or None."""
        stored = self._stored_names.get(name)
        if stored is None:
            return None
        tensor = self._tensors[stored]
        shape = [int(n) for n in reversed(tensor.shape)]
        if type(self._processor).__name__ == "GPT2TensorProcessor" and stored.endswith(TRANSPOSED):
            shape.reverse()
        is_integer = tensor.tensor_type.name in ("I8", "I16", "I32", "I64")
        return torch.empty(shape, device="meta", dtype=torch.uint8 if is_integer else torch.float32)
