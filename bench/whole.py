"""What a user waits for: the whole scan, everything on by default, against the model's own forward pass.

A model of SmolLM2-135M's shape with random weights. The scan is `arm.scan` of a loaded model to an atlas on disk: all
passes, spectra, tables, checksums. The forward is that of the layers over the same tokens, without the LM head, in the
same batches of 8; both need the imports and the loading of the model, which are not counted. Each runs in turn in one
process; processor time and wall time are of the same runs.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from measuring import Row, apart, peak_of
from scans import tokens
from transformers import AutoConfig, AutoModelForCausalLM

import armillary as arm

SIZES = ((64, 128, 2.5, 3), (64, 512, 2.5, 1), (1024, 128, 1.6, 1))
"""Sequences, tokens of each, the ratio to reach, repeats."""


def model_135m() -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return AutoModelForCausalLM.from_config(config).eval()


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Processor and wall seconds."""
    processor, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - processor, time.perf_counter() - wall


def works(count: int, length: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """The scan and the forward of so many sequences."""
    model, blocks = model_135m(), tokens(count, length)

    def scan() -> None:
        with tempfile.TemporaryDirectory() as folder:
            arm.scan(model, blocks, out=f"{folder}/atlas")

    @torch.no_grad()
    def forward() -> None:
        for start in range(0, count, 8):
            model.model(torch.from_numpy(blocks[start : start + 8]), use_cache=False)

    return scan, forward


def ratios(count: int, length: int, repeats: int) -> dict[str, float]:
    """Of one size, in a process of its own: the scan over the forward, in processor and in wall time."""
    scan, forward = works(count, length)
    arm.scan(model_135m_small(), tokens(2, 16))  # imports, and loops that are compiled
    forward_times, scan_times = [timed(forward)], []
    for _ in range(repeats):
        scan_times.append(timed(scan))
        forward_times.append(timed(forward))
    both = [
        [statistics.median(times) for times in zip(*measured, strict=True)] for measured in (scan_times, forward_times)
    ]
    return {"processor": both[0][0] / both[1][0], "wall": both[0][1] / both[1][1]}


def model_135m_small() -> Any:
    config = AutoConfig.for_model(
        "llama", vocab_size=1000, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    return AutoModelForCausalLM.from_config(config).eval()


def memory() -> float:
    """Megabytes of a scan of 64 x 128 tokens at most, above the loaded model."""
    torch.set_num_threads(2)
    scan, _ = works(64, 128)
    arm.scan(model_135m_small(), tokens(2, 16))
    return peak_of(scan)


def rows() -> list[Row]:
    what, against = "the whole scan, 135M shape", "its forward without the LM head, same tokens"
    measured = []
    for count, length, target, repeats in SIZES:
        ratio = apart(ratios, count, length, repeats)
        size = f"{count:,} x {length} tokens"
        measured.append(Row(f"{what}, {size}: processor time", against, ratio["processor"], target=target))
        measured.append(Row(f"{what}, {size}: wall time", against, ratio["wall"]))
    peak = statistics.median(apart(memory) for _ in range(3))
    measured.append(Row(f"{what}, 64 x 128 tokens: peak memory above", "the loaded model", peak, "MB", 600))
    return measured
