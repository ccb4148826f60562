"""Context managers that change the state of torch or of a model and restore it at the end."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; afterward every module is back in its own mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:  # parents come first, so that a module's own mode is set last
            if module.training != training:
                module.train(training)  # not the attribute: LoRA adapters merge weights in train()


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread: small models run no faster on two, and the last bits of a loss depend on the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """Seeding and drawing inside does not change torch's random state outside."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
