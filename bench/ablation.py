"""What exact ablation of every head costs, against as many forward passes of the whole model."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from measuring import Row, interleaved
from transformers import AutoConfig, AutoModelForCausalLM

import armillary as arm
from armillary.interventions.ablation import mean_outputs
from armillary.probe.ablation import exact_effects
from armillary.probe.losses import sequence_losses
from armillary.probe.resuming import Resumable

LAYERS, HEADS = 12, 12
SEQUENCES, LENGTH = 8, 128
EVERY = 4
"""Heads 0, 4 and 8 of every layer are ablated, against a quarter as many forward passes: the ratio is the same."""


def model_of(vocabulary: int) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", use_cache=False, vocab_size=vocabulary)).eval()


def rows() -> list[Row]:
    return [
        Row(
            f"exact ablation of all heads, 12 x 12, {SEQUENCES} x {LENGTH} tokens, vocabulary {vocabulary:,}",
            "144 forward passes with the loss",
            ratio(vocabulary),
            target=target,
        )
        for vocabulary, target in ((1000, 0.5), (50257, None))
    ]


@torch.no_grad()
def ratio(vocabulary: int, repeats: int = 3) -> float:
    """Seconds of the ablations over those of the forward passes."""
    own, others = interleaved(*_both(vocabulary, EVERY), repeats)
    return own / others


def _both(vocabulary: int, every: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Ablate every so many heads of all layers; as many forward passes."""
    model = model_of(vocabulary)
    tokens = np.random.default_rng(0).integers(0, vocabulary, (SEQUENCES, LENGTH))
    means, ids = mean_outputs(model, tokens), torch.from_numpy(tokens)
    heads = [(layer, head) for layer in range(LAYERS) for head in range(0, HEADS, every)]

    resumable = Resumable(model, arm.describe(model))

    def ablations() -> None:
        exact_effects(resumable, ids, 1, "mean", means, heads)

    @torch.no_grad()
    def forwards() -> None:
        for _ in heads:
            sequence_losses(model(input_ids=ids).logits, ids, 1)

    return ablations, forwards


def processor_ratio(vocabulary: int) -> float:
    """The same in processor seconds, once, with one head of each layer: for a busy machine."""
    ablations, forwards = _both(vocabulary, HEADS)
    ablations()
    begun = time.process_time()
    ablations()
    between = time.process_time()
    forwards()
    return (between - begun) / (time.process_time() - between)


if __name__ == "__main__":  # python bench/ablation.py: processor seconds, in a few minutes
    for size in (1000, 50257):
        print(size, round(processor_ratio(size), 3), flush=True)
