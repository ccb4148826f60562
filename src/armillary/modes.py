"""States of torch and of a model that our work changes, put back as they were when it ends, however it ends."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and every module of it in its own mode again afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:  # parents come first, so that a module's own mode is set last
            if module.training != training:
                module.train(training)  # not the attribute: adapters that merge their weights do it here


@contextmanager
def one_thread() -> Iterator[None]:
    """Small models run no faster on two threads, and the last bits of a loss depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """What is seeded or drawn inside leaves torch's random numbers where the caller had them."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
