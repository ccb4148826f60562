"""Mutations of the tensors and bytes of the weights."""

import random
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from faults.config_mutations import put_config, read_config
from faults.mutation import FREE, REFUSE, SAME, some_weights


def tensor_dropped(folder: Path, rng: random.Random) -> tuple[str, str]:
    file = some_weights(folder, rng)
    stored = load_file(file)
    name = rng.choice(
        [name for name in sorted(stored) if "lm_head" not in name and "pooler" not in name] or sorted(stored)
    )
    del stored[name]
    save_file(stored, file, metadata={"format": "pt"})
    return REFUSE, f"no {name}"


def tensor_renamed(folder: Path, rng: random.Random) -> tuple[str, str]:
    file = some_weights(folder, rng)
    stored = load_file(file)
    name = rng.choice(
        [name for name in sorted(stored) if "lm_head" not in name and "pooler" not in name] or sorted(stored)
    )
    stored[rng.choice((name + "x", name.replace("0", "7"), "x." + name + "_", name.upper()))] = stored.pop(name)
    save_file(stored, file, metadata={"format": "pt"})
    return FREE, f"{name} renamed"


def tensor_reshaped(folder: Path, rng: random.Random) -> tuple[str, str]:
    file = some_weights(folder, rng)
    stored = load_file(file)
    name = rng.choice(sorted(stored))
    tensor = stored[name]
    ways = (tensor.flatten(), tensor[:-1], tensor[None], torch.cat([tensor, tensor]), tensor[:0], tensor.reshape(-1, 1))
    stored[name] = rng.choice(ways).contiguous().clone()
    save_file(stored, file, metadata={"format": "pt"})
    return (
        SAME if stored[name].shape == tensor.shape else REFUSE
    ), f"{name} {tuple(tensor.shape)} as {tuple(stored[name].shape)}"


def tensor_retyped(folder: Path, rng: random.Random) -> tuple[str, str]:
    file = some_weights(folder, rng)
    stored = load_file(file)
    name, dtype = (
        rng.choice(sorted(stored)),
        rng.choice((torch.int8, torch.int64, torch.bool, torch.uint8, torch.float64, torch.bfloat16)),
    )
    stored[name] = stored[name].to(dtype)
    save_file(stored, file, metadata={"format": "pt"})
    return (FREE if dtype.is_floating_point else REFUSE), f"{name} as {dtype}"


def more_layers(folder: Path, rng: random.Random) -> tuple[str, str]:
    """Weights of more layers than are configured: the configuration cut down, or a layer stored once more."""
    config = read_config(folder)
    key = "n_layer" if "n_layer" in config else "num_hidden_layers"
    if rng.random() < 0.5:
        config[key] -= 1
        if isinstance(config.get("layer_types"), list):
            config["layer_types"] = config["layer_types"][:-1]
        put_config(folder, config)
        return REFUSE, f"{key} = {config[key]}"
    file = sorted(folder.glob("*.safetensors"))[-1]
    stored = load_file(file)
    extra = {name.replace(".2.", ".3."): tensor.clone() for name, tensor in stored.items() if ".2." in name}
    save_file({**stored, **extra}, file, metadata={"format": "pt"})
    return (REFUSE if extra else SAME), f"{len(extra)} tensors of a fourth layer"


def numbers(folder: Path, rng: random.Random) -> tuple[str, str]:
    """Other numbers, also such as are none."""
    file = some_weights(folder, rng)
    stored = load_file(file)
    name = rng.choice(sorted(stored))
    stored[name].flatten()[rng.randrange(stored[name].numel())] = rng.choice((float("nan"), float("inf"), 0.25, -3.0))
    save_file(stored, file, metadata={"format": "pt"})
    return FREE, f"a number of {name}"


def header_bit(folder: Path, rng: random.Random) -> tuple[str, str]:
    file = some_weights(folder, rng)
    data = bytearray(file.read_bytes())
    length = int.from_bytes(data[:8], "little")
    bit = rng.randrange(8 * (8 + length))
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)
    return FREE, f"bit {bit} of the header of {file.name}"


def any_bit(folder: Path, rng: random.Random) -> tuple[str, str]:
    file = some_weights(folder, rng)
    data = bytearray(file.read_bytes())
    bit = rng.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)
    return FREE, f"bit {bit} of {file.name}"


def cut_file(folder: Path, rng: random.Random) -> tuple[str, str]:
    file = some_weights(folder, rng)
    data = file.read_bytes()
    keep = rng.choice((0, 4, 8, 100, len(data) // 2, len(data) - 1))
    file.write_bytes(data[:keep] if rng.random() < 0.8 else data + b"\0")
    return REFUSE, f"{file.name} cut to {keep} bytes, or a byte longer"
