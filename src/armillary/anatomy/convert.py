"""Converts pickled weights (pytorch_model.bin) to safetensors; nothing else in Armillary reads a pickle."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from armillary.anatomy.checkpoint import INDEX, expanded
from armillary.anatomy.folder import indexed_files, refuse_special_files
from armillary.anatomy.whole import in_one_line, some
from armillary.errors import ArmillaryError
from armillary.files.atomic import write_atomically, write_problem

PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".safetensors", ".gguf", ".index.json")
"""Files that are not copied to the folder of converted weights."""
MOST_COPIES = 10


def convert(folder: str | Path, *, out: str | Path | None = None) -> Path:
    """Write the weights of a folder's pytorch_model.bin as safetensors beside it, or into the new folder `out`.

    Only tensors are read (weights_only): a pickle that would run code is refused. The written files are read back and
    compared bit for bit. Shards stay shards; tensors that share memory become copies. `out` also gets the
    configuration, the tokenizer and all other files that are not weights. Returns the folder written.
    """
    source = Path(expanded(folder))
    if not source.is_dir():
        raise ArmillaryError(f"there is no folder {source}", advice=f"give the folder that holds {PICKLE}")
    refuse_special_files(source)
    target = source if out is None else Path(expanded(out))
    present = [name for name in ("model.safetensors", INDEX) if (target / name).exists()]
    if present:
        raise ArmillaryError(f"{target} already has its weights as safetensors ({present[0]}): there is nothing to do")
    if target != source and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ArmillaryError(f"{target} already exists", advice="give a new or empty folder")
    pickles = _pickles(source)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with _work_folder(target) as work:
            _write_shards(pickles, work)
            if target != source:
                _copy_the_rest(source, work)
            for file in sorted(
                work.iterdir(), key=lambda path: path.name == INDEX
            ):  # the index last: with it the folder is complete
                file.replace(target / file.name)
    except OSError as error:
        raise ArmillaryError(write_problem(target, error)) from error
    return target


@contextmanager
def _work_folder(target: Path) -> Iterator[Path]:
    """A hidden folder inside the target, from which files are moved into place; removed at the end."""
    work = Path(mkdtemp(prefix=".armillary-convert-", dir=target))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _pickles(folder: Path) -> list[Path]:
    single, index = folder / PICKLE, folder / PICKLE_INDEX
    if single.is_file():
        return [single]
    if index.is_file():
        return indexed_files(index)
    raise ArmillaryError(f"{folder} has no {PICKLE} (nor {PICKLE_INDEX}): there is nothing to convert")


def _write_shards(pickles: list[Path], work: Path) -> None:
    shard_of: dict[str, str] = {}
    size = 0
    for number, pickle in enumerate(pickles, 1):
        shard = f"model-{number:05}-of-{len(pickles):05}.safetensors" if len(pickles) > 1 else "model.safetensors"
        tensors = _tensors(pickle)
        duplicates = [name for name in tensors if name in shard_of]
        if duplicates:
            raise ArmillaryError(f"{pickle} has tensors that another shard also has ({some(duplicates)})")
        shard_of |= dict.fromkeys(tensors, shard)
        size += sum(tensor.nbytes for tensor in tensors.values())
        save_file(tensors, work / shard, metadata={"format": "pt"})
        _compare(tensors, work / shard, pickle)
        with (work / shard).open("rb") as file:
            os.fsync(file.fileno())
    if len(pickles) > 1:
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(shard_of.items()))}
        write_atomically(work / INDEX, (json.dumps(index, indent=2) + "\n").encode())


def _tensors(pickle: Path) -> dict[str, Tensor]:
    """The tensors of a pickle by name, each with memory of its own."""
    stored = _unpickled(pickle)
    if not isinstance(stored, dict) or not stored:
        raise ArmillaryError(f"{pickle} holds a {type(stored).__name__}, not tensors by name")
    others = [str(name) for name, value in stored.items() if not isinstance(name, str) or not isinstance(value, Tensor)]
    if others:
        raise ArmillaryError(
            f"{pickle} holds other things than tensors by name ({some(others)}): it is not the state_dict "
            "of a model, which is what transformers reads"
        )
    for name, tensor in stored.items():
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex():
            raise ArmillaryError(f"{pickle} holds {name} in a format that safetensors does not have ({tensor.dtype})")
        if tensor.nbytes > tensor.untyped_storage().nbytes():
            raise ArmillaryError(f"{pickle} holds {name}, which repeats elements instead of storing them")
    size, most = sum(tensor.nbytes for tensor in stored.values()), MOST_COPIES * pickle.stat().st_size
    if size > most:
        raise ArmillaryError(
            f"{pickle} would grow to {size:,} bytes, {MOST_COPIES} times its own size: it is not a model"
        )
    seen: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        storage = tensor.untyped_storage()
        own = storage.data_ptr() not in seen and tensor.is_contiguous() and tensor.nbytes == storage.nbytes()
        seen.add(storage.data_ptr())
        tensors[name] = tensor.detach() if own else tensor.detach().clone(memory_format=torch.contiguous_format)
    return tensors


def _unpickled(pickle: Path) -> Any:
    reasons = []
    for mmap in (True, False):  # files from before PyTorch 1.6 cannot be mapped
        try:
            return torch.load(pickle, map_location="cpu", weights_only=True, mmap=mmap)
        except Exception as error:
            reasons.append(error)
    reason = in_one_line(reasons[-1], 200)
    raise ArmillaryError(
        f"{pickle} cannot be read as plain tensors ({reason}): it is damaged, or it would run code, which is refused"
    ) from reasons[-1]


def _compare(tensors: dict[str, Tensor], written: Path, pickle: Path) -> None:
    """Raise if the file differs from the tensors in any bit."""
    with safe_open(written, framework="pt") as file:
        if set(file.keys()) != set(tensors):
            raise ArmillaryError(f"{written.name} does not have all tensors of {pickle}", advice="try again")
        for name, tensor in tensors.items():
            stored = file.get_tensor(name)
            same = (
                stored.dtype == tensor.dtype
                and stored.shape == tensor.shape
                and torch.equal(_bits(stored), _bits(tensor))
            )
            if not same:
                raise ArmillaryError(f"{name} in {written.name} differs from that in {pickle}", advice="try again")


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _copy_the_rest(source: Path, work: Path) -> None:
    """Copy configuration, tokenizer, code and texts: all plain files except weights and hidden files."""
    for path in source.iterdir():
        if path.is_file() and not path.name.endswith(WEIGHTS) and not path.name.startswith("."):
            shutil.copyfile(path, work / path.name)
