"""What opening an atlas costs; what starting the program costs is in startup.py."""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from measuring import Row, interleaved
from scans import tokens
from transformers import AutoConfig, AutoModelForCausalLM

import armillary as arm


def run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)


def armillary(*arguments: str) -> None:
    program = f"import sys; sys.argv = {['armillary', *arguments]!r}; from armillary.cli import main; main()"
    run("-c", program)


def open_atlas() -> list[Row]:
    """A random model of 32 layers with 32 heads, scanned on very little text: the tables are as long as of a 7B."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=1000,
        hidden_size=256,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=32,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    with tempfile.TemporaryDirectory() as folder:
        atlas = str(Path(folder) / "atlas")
        model = AutoModelForCausalLM.from_config(config).eval()
        arm.scan(model, tokens(4, 32), out=atlas, length=32, sequences=4)
        ours, imports = interleaved(lambda: armillary("heads", atlas), lambda: run("-c", "import xarray, pandas"))
    return [
        Row("opening an atlas of 32 x 32 heads, `armillary heads`", "import xarray, pandas", ours / imports, target=1.5)
    ]
