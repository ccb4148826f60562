"""Damaged files of a model folder: describe, weigh, load and the tokenizer succeed or say a sentence, in seconds."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import armillary as arm
from armillary.anatomy.loading import load_tokenizer
from armillary.anatomy.samples import sample_model

EXAMPLES = int(os.environ.get("ARMILLARY_FUZZ", "25"))
"""Cases of each format; a campaign sets more."""
SECONDS = 30
"""Wall-clock seconds for a case: a hundred times what it takes, since machines are busy."""

bounded = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

NUMBERS = (0, -1, 1, 2, 3, 7, 10**9, 2**63, 10**400, -(10**9), 0.5, -0.0, 1e308, float("nan"), float("inf"))
WORDS = ("", "llama", "../x", "\0", "six", "eager", "bert", "gpt2", "float16", "nothing")
NESTED: tuple[Any, ...] = (
    *([], {}, [1, 2], [[[]]], {"a": 1}, ["x"], {"rope_type": "yarn"}),
    {"rope_type": "default", "rope_theta": -5.0},
    {"rope_type": "dynamic", "factor": 0, "rope_theta": 1e4},
    {"full_attention": {"rope_theta": 1.0}},
)
HOSTILE = st.sampled_from([None, True, False, *NUMBERS, *WORDS, *NESTED])


@contextmanager
def time_limit() -> Iterator[None]:
    """A case that hangs fails instead."""

    def ring(*_: Any) -> None:
        raise TimeoutError(f"no answer within {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def answers(*uses: Callable[[], object]) -> None:
    """Each use succeeds or raises ArmillaryError with one line."""
    for use in uses:
        said = "nothing"
        with time_limit():
            try:
                use()
            except arm.ArmillaryError as error:
                said = str(error)
        assert said
        assert "\n" not in said


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value inside settings."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(path for key, item in inner for path in paths(item, (*here, key)))]


def changed(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """A copy with the value at the end of the path changed."""
    if not path:
        return change(value)
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], change)
    return copy


def replaced(value: Any, by: Any) -> Any:
    return by


def nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def mutated(draw: Callable[[Any], Any], settings: Any) -> str:
    """One to three values replaced, removed or wrapped; now and then the text itself is cut or made too deep."""
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(paths(settings)[:400]))
        way = draw(st.sampled_from(["replace", "replace", "remove", "wrap"]))
        if way == "remove" and path:
            settings = changed(settings, path[:-1], partial(without, key=path[-1]))
        elif way == "wrap":
            depth = draw(st.sampled_from([1, 3, 200]))
            settings = changed(settings, path, partial(nested, depth=depth))
        else:
            hostile = draw(HOSTILE)
            settings = changed(settings, path, partial(replaced, by=hostile))
    text = json.dumps(settings)
    ending = draw(st.sampled_from(["whole"] * 8 + ["cut", "deep"]))
    if ending == "deep":
        return '{"a":' * 100_000
    return text[: draw(st.integers(0, len(text)))] if ending == "cut" else text


def without(container: Any, key: Any) -> Any:
    if isinstance(container, dict):
        return {name: value for name, value in container.items() if name != key}
    return [value for place, value in enumerate(container) if place != key]


def damaged(draw: Callable[[Any], Any], data: bytes, header: int) -> bytes:
    """Bytes flipped, overwritten with extreme numbers, or cut off, mostly in the header."""
    content = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, min(header, len(content)) - 1))
        way = draw(st.sampled_from(["flip", "number", "cut"]))
        if way == "flip":
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif way == "number":
            number = draw(st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1]))
            content[at : at + 8] = number.to_bytes(8, "little")
        elif len(content) > 1:
            del content[draw(st.integers(1, len(content) - 1)) :]
    return bytes(content)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("originals")
    for family in ("llama", "gpt2", "gemma3_text", "bert"):
        sample_model(family).save_pretrained(place / family)
    sample_model("llama").save_pretrained(place / "sharded", max_shard_size="40KB")
    return place


def fresh(originals: Path, name: str, tmp_path: Path) -> Path:
    folder = tmp_path / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(originals / name, folder)
    return folder


@bounded
@given(data=st.data())
def test_config(originals: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = fresh(originals, data.draw(st.sampled_from(["llama", "gpt2", "gemma3_text", "bert"])), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(mutated(data.draw, config))
    answers(lambda: arm.describe(folder), lambda: arm.load(folder))


@bounded
@given(data=st.data())
def test_index(originals: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = fresh(originals, "sharded", tmp_path)
    index = folder / "model.safetensors.index.json"
    index.write_text(mutated(data.draw, json.loads(index.read_text())))
    answers(lambda: arm.describe(folder), lambda: arm.load(folder))


@bounded
@given(data=st.data())
def test_safetensors(originals: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = fresh(originals, "llama", tmp_path)
    file = folder / "model.safetensors"
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    if data.draw(st.booleans()):  # the header stays JSON, and of its length
        text = mutated(data.draw, json.loads(content[8 : 8 + size]))[:size].ljust(size).encode()
        file.write_bytes(content[:8] + text[:size] + content[8 + size :])
    else:
        file.write_bytes(damaged(data.draw, content, size + 8))
    answers(lambda: arm.describe(folder), lambda: arm.load(folder))


@bounded
@given(data=st.data())
def test_generation_config(originals: Path, tmp_path: Path, data: st.DataObject) -> None:
    folder = fresh(originals, "llama", tmp_path)
    file = folder / "generation_config.json"
    file.write_text(mutated(data.draw, json.loads(file.read_text())))
    answers(lambda: arm.load(folder))


@bounded
@given(data=st.data())
def test_tokenizer_files(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "model"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(arm.bundled("llama"), folder)
    file = folder / data.draw(st.sampled_from(["tokenizer.json", "tokenizer_config.json"]))
    file.write_text(mutated(data.draw, json.loads(file.read_text())))
    answers(lambda: load_tokenizer(folder))


@bounded
@given(data=st.data())
def test_gguf(tmp_path: Path, data: st.DataObject) -> None:
    pytest.importorskip("gguf")
    file = tmp_path / "model.gguf"
    content, header = small_gguf(tmp_path / "whole.gguf")
    file.write_bytes(damaged(data.draw, content, header))
    answers(lambda: arm.describe(file), lambda: arm.load(file))


def small_gguf(path: Path) -> tuple[bytes, int]:
    """A llama of two layers in a GGUF file, and where its numbers begin."""
    import gguf

    if not path.exists():
        writer = gguf.GGUFWriter(str(path), "llama")
        writer.add_block_count(2)
        writer.add_context_length(64)
        writer.add_embedding_length(16)
        writer.add_feed_forward_length(32)
        writer.add_head_count(2)
        writer.add_head_count_kv(2)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(10000.0)
        writer.add_vocab_size(20)
        writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(20)])
        shapes: dict[str, tuple[int, ...]] = {
            "attn_q": (16, 16),
            "attn_k": (16, 16),
            "attn_v": (16, 16),
            "attn_output": (16, 16),
        }
        shapes |= {
            "ffn_gate": (32, 16),
            "ffn_up": (32, 16),
            "ffn_down": (16, 32),
            "attn_norm": (16,),
            "ffn_norm": (16,),
        }
        rng = np.random.default_rng(0)
        for name, shape in {"token_embd": (20, 16), "output_norm": (16,), "output": (20, 16)}.items():
            writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
        for layer in range(2):
            for name, shape in shapes.items():
                writer.add_tensor(f"blk.{layer}.{name}.weight", rng.normal(size=shape).astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    content = path.read_bytes()
    return content, len(content) - 4 * sum(2 * 16 * n for n in (16 * 4 + 32 * 3, 2)) // 2 - 4 * (20 * 16 * 2 + 16)


def test_the_undamaged_gguf_file_is_read(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    small_gguf(tmp_path / "model.gguf")
    assert len(arm.describe(tmp_path / "model.gguf").layers) == 2
    assert arm.load(tmp_path / "model.gguf") is not None


@pytest.mark.parametrize("field", ["tensors", "fields", "tokens", "layers", "architecture"])
def test_a_gguf_header_with_huge_counts(tmp_path: Path, field: str) -> None:
    """The package gguf would loop over these counts."""
    pytest.importorskip("gguf")
    content = bytearray(small_gguf(tmp_path / "whole.gguf")[0])
    places = {
        "tensors": 8,
        "fields": 16,
        "tokens": content.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens") + 8,
        "layers": content.index(b"llama.block_count") + len("llama.block_count") + 4,
        "architecture": content.index(b"general.architecture") + len("general.architecture") + 4,
    }
    size = 4 if field == "layers" else 8
    content[places[field] : places[field] + size] = (2 ** (8 * size - 2)).to_bytes(size, "little")
    (tmp_path / "whole.gguf").unlink()
    file = tmp_path / "model.gguf"
    file.write_bytes(bytes(content))
    for use in (arm.describe, arm.load, load_tokenizer):
        with time_limit(), pytest.raises(arm.ArmillaryError, match=r"not a GGUF file"):
            use(file)
