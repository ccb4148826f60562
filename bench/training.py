"""What LocAteR and the monitor cost while training: width 512, 8 heads, 4 layers, 8 x 256 tokens."""

import statistics
import time

import torch
from measuring import Row
from transformers import AutoConfig, AutoModelForCausalLM

from armillary.training.monitor import snapshot
from armillary.training.regularizers import LocAteR

ROUNDS = 15


def training_step() -> list[Row]:
    """A step with the penalty over one without, in turn, by processor time on one thread; and a look of the monitor."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=1000,
        hidden_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        intermediate_size=1376,
        max_position_embeddings=256,
        use_cache=False,
    )
    model = AutoModelForCausalLM.from_config(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    penalty = LocAteR(model, scale=1e-3, mean=1e-3)
    ids = torch.randint(0, 1000, (8, 256))

    def step(penalized: bool) -> float:
        begun = time.process_time()
        loss = model(input_ids=ids, labels=ids).loss
        (loss + penalty() if penalized else loss).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.process_time() - begun

    step(True), step(False)
    pairs = [
        (step(True), step(False)) if number % 2 else tuple(reversed((step(False), step(True))))
        for number in range(ROUNDS)
    ]
    without = statistics.median(b for _, b in pairs)
    begun = time.process_time()
    snapshot(model, ids[:4])
    look = time.process_time() - begun
    torch.set_num_threads(threads)
    shape = "512 wide, 8 heads, 4 layers"
    return [
        Row(
            f"training step with LocAteR; {shape}",
            "without",
            statistics.median(a / b for a, b in pairs),  # of neighbors in time: the machine's pace drifts
            target=1.03,
        ),
        Row(f"the monitor's look (4 x 256 tokens) every 100 steps; {shape}", "the steps", look / without / 100),
    ]
