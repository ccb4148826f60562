"""What spectra cost: one head against its dense product, and a checkpoint of a 7B model's shape."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

D, E = 4096, 128


def one_head() -> dict[str, object]:
    """Dense svdvals of one head's 4096 x 4096 product (run once) over the thin route for the same head."""
    from armillary.lenses.spectral import product_spectrum

    q, k = torch.randn(1, D, E), torch.randn(1, D, E)
    product_spectrum(q, k)
    thin = []
    for _ in range(5):
        start = time.perf_counter()
        product_spectrum(q, k)
        thin.append(time.perf_counter() - start)
    start = time.perf_counter()
    torch.linalg.svdvals(q[0] @ k[0].T)
    dense = time.perf_counter() - start
    ratio = dense / sorted(thin)[2]
    return {
        "what": "svdvals of a dense head (d 4096, e 128) / thin route",
        "value": ratio,
        "target": 100,
        "least": True,
    }


def seven_billion() -> dict[str, object]:
    """Peak memory of analysing a checkpoint of 4 layers of a 7B model (4096 wide, 32/8 heads), in layers' weights."""
    layer_bytes = 2 * (2 * D * D + 2 * D * 1024 + 3 * D * 14336)
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder))
        code = (
            "import sys, armillary as arm; from pathlib import Path; start = _hwm(); "
            "arm.weigh(sys.argv[1]); print(start, _hwm())"
        )
        hwm = (
            "def _hwm():\n return next(int(line.split()[1]) for line in open('/proc/self/status') "
            "if line.startswith('VmHWM'))\n"
        )
        begun = time.perf_counter()
        run = subprocess.run([sys.executable, "-c", hwm + code, folder], capture_output=True, text=True, check=True)
        took = time.perf_counter() - begun
    before, peak = map(int, run.stdout.split()[-2:])
    return {
        "what": "7B shape, 4 layers: peak memory of `weights` / one layer's weights (bfloat16)",
        "value": peak * 1024 / layer_bytes,
        "target": 3,
        "peak_mb": peak // 1024,
        "before_mb": before // 1024,
        "seconds_per_layer": took / 4,
        "threads": os.cpu_count(),
    }


def _write(folder: Path) -> None:
    """Random weights, a file per layer."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=D,
        intermediate_size=14336,
        num_hidden_layers=4,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=1000,
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    shapes = {
        "self_attn.q_proj": (D, D),
        "self_attn.k_proj": (1024, D),
        "self_attn.v_proj": (1024, D),
        "self_attn.o_proj": (D, D),
        "mlp.gate_proj": (14336, D),
        "mlp.up_proj": (14336, D),
        "mlp.down_proj": (D, 14336),
    }
    index = {}
    for layer in range(4):
        tensors = {
            f"model.layers.{layer}.{name}.weight": (torch.randn(shape) * 0.02).to(torch.bfloat16)
            for name, shape in shapes.items()
        }
        file = f"model-{layer + 1:05d}-of-00004.safetensors"
        save_file(tensors, folder / file)
        index |= dict.fromkeys(tensors, file)
    import json

    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
