"""Mutations of the files of a checkpoint: what is no file, lies elsewhere, or holds code."""

import json
import os
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import torch

from faults.confining import own_device
from faults.mutation import FREE, REFUSE, SAME, sentinel, some_weights


def not_a_file(folder: Path, rng: random.Random) -> tuple[str, str]:
    file = rng.choice([some_weights(folder, rng), folder / "config.json"])
    way = rng.choice(("pipe", "folder", "dangling link", "link to a device", "socket of its own name"))
    kept = file.read_bytes()
    file.unlink()
    if way == "pipe":
        os.mkfifo(file)
    elif way == "folder":
        file.mkdir()
    elif way == "dangling link":
        file.symlink_to("nowhere")
    elif way == "link to a device":
        file.symlink_to(own_device(folder, "zero"))
    else:
        file.with_name(file.name.upper()).write_bytes(kept)
    return REFUSE, f"{file.name}: {way}"


def linked(folder: Path, rng: random.Random) -> tuple[str, str]:
    """As the hub's own cache keeps its files: links to blobs elsewhere."""
    file = some_weights(folder, rng)
    blobs = folder.parent / "blobs"
    blobs.mkdir(exist_ok=True)
    shutil.move(file, blobs / "blob")
    file.symlink_to(blobs / "blob")
    return SAME, f"{file.name} is a link to a file"


def index_entry(folder: Path, rng: random.Random) -> tuple[str, str]:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    name, files = rng.choice(sorted(index["weight_map"])), sorted(set(index["weight_map"].values()))
    outside = folder.parent / "outside"
    outside.mkdir()
    for file in files:
        shutil.copy(folder.parent / "other" / file, outside / file)
    there = index["weight_map"][name]
    way = rng.choice(
        (
            "../outside",
            "absolute",
            "another file",
            "no such file",
            "not a name",
            "missing",
            "all outside",
            "not a map",
            "config.json",
        )
    )
    if way == "all outside":
        index["weight_map"] = {key: f"../outside/{value}" for key, value in index["weight_map"].items()}
    elif way == "missing":
        del index["weight_map"][name]
    elif way == "not a map":
        index["weight_map"] = rng.choice(([], None, "x", 7))
    else:
        index["weight_map"][name] = {
            "../outside": f"../outside/{there}",
            "absolute": str(outside / there),
            "another file": rng.choice([file for file in files if file != there]),
            "no such file": "model-99.safetensors",
            "not a name": rng.choice((7, None, ["x"], "", ".", {})),
            "config.json": "config.json",
        }[way]
    path.write_text(json.dumps(index))
    return (FREE if way in ("missing", "another file") else REFUSE), f"{name}: {way}"


def stray_files(folder: Path, rng: random.Random) -> tuple[str, str]:
    """Files beside the weights that other programs would read, some with code."""
    evil = pickle.dumps(Evil(sentinel(folder)))
    adapter = json.dumps({"base_model_name_or_path": str(folder.parent / "other"), "peft_type": "LORA"}).encode()
    name, data = rng.choice(
        (
            ("pytorch_model.bin", evil),
            ("adapter_config.json", adapter),
            ("modeling_llama.py", f"open({str(sentinel(folder))!r}, 'w')".encode()),
            ("configuration_llama.py", f"open({str(sentinel(folder))!r}, 'w')".encode()),
            ("__init__.py", f"open({str(sentinel(folder))!r}, 'w')".encode()),
            ("README.md", b"\xff\xfe"),
            ("training_args.bin", evil),
            ("tf_model.h5", b"x"),
        )
    )
    (folder / name).write_bytes(data)
    return (REFUSE if name == "adapter_config.json" else SAME), f"{name} beside the weights"


class Evil:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = str(sentinel)

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.sentinel, "w")


def pickled(folder: Path, rng: random.Random) -> tuple[str, str]:
    """Weights as pickle, with code in them or none."""
    file = folder / "pytorch_model.bin"
    (folder / "model.safetensors").unlink()
    way = rng.choice(("plain", "evil", "evil in torch's own format", "cut", "evil among weights"))
    stored = torch.load(folder.parent.parent / "base" / "pickle" / "pytorch_model.bin", weights_only=True)
    if way == "evil":
        file.write_bytes(pickle.dumps(Evil(sentinel(folder))))
    elif way == "evil in torch's own format":
        torch.save(Evil(sentinel(folder)), file)
    elif way == "evil among weights":
        torch.save({**stored, "model.embed_tokens.weight": Evil(sentinel(folder))}, file)
    else:
        torch.save(stored, file)
        if way == "cut":
            file.write_bytes(file.read_bytes()[: rng.randrange(1, file.stat().st_size)])
    return (FREE if way == "plain" else REFUSE), way
