"""The vocabulary lens on 150,000 tokens of width 4,096: memory stays far below the embedding's own size."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

TOKENS, WIDTH, HEADS, KEY_HEADS, E = 150_000, 4096, 32, 8, 128

PROGRAM = """
import sys
from armillary.anatomy.source import describe
from armillary.lenses.vocabulary import VocabularyLens

def memory(name):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024

anatomy = describe(sys.argv[1])
lens = VocabularyLens(anatomy.ends())
before = memory("VmRSS")
lens.layer(anatomy.layers[0], anatomy.weights(0))
print(memory("VmHWM") - before)
"""


def write_zeros(folder: Path) -> int:
    """A checkpoint of zeros as a sparse file, which takes no disk; returns the bytes of a layer's attention weights."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": TOKENS,
        "hidden_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": E,
        "intermediate_size": 64,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    layer = "model.layers.0"
    attention = {
        "q": (HEADS * E, WIDTH),
        "k": (KEY_HEADS * E, WIDTH),
        "v": (KEY_HEADS * E, WIDTH),
        "o": (WIDTH, HEADS * E),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (TOKENS, WIDTH),
        "model.norm.weight": (WIDTH,),
        **{f"{layer}.self_attn.{name}_proj.weight": shape for name, shape in attention.items()},
        **{f"{layer}.{name}.weight": (WIDTH,) for name in ("input_layernorm", "post_attention_layernorm")},
        **{f"{layer}.mlp.{name}_proj.weight": (64, WIDTH) for name in ("gate", "up")},
        f"{layer}.mlp.down_proj.weight": (WIDTH, 64),
    }
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    return sum(2 * rows * columns for rows, columns in attention.values())


@pytest.mark.slow
def test_memory_stays_below_a_gigabyte_above_one_layer(tmp_path: Path) -> None:
    layer = write_zeros(tmp_path)
    ran = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, check=True)
    above = int(ran.stdout.split()[-1]) - layer
    assert above < 1e9
