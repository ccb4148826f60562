"""A forward pass that resumes at a block: the outputs of the blocks below are reused from an earlier run."""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from armillary.anatomy.description import Anatomy
from armillary.anatomy.layout import find_stack


class Resumable:
    """One batch of sequences: `run` runs the whole model, `from_block` only from a block on.

    Blocks below return their outputs of `run`; the rest of the model computes as usual. `try_block` tests once per
    block whether this gives the same numbers; if it does not, or if blocks are unknown, shared, or exchange more than
    their outputs (keys of earlier layers), the whole model runs.
    """

    def __init__(self, model: nn.Module, anatomy: Anatomy) -> None:
        self.model: Any = model
        blocks = find_stack(model, anatomy).blocks
        self._blocks = blocks if len({id(block) for block in blocks}) == len(blocks) else []
        self._passed: list[Any] = []
        self._ids: Int[Tensor, "batch token"] | None = None
        self._same: dict[int, bool] = {}
        forward = inspect.signature(model.forward).parameters
        self._options = {"use_cache": False} if "use_cache" in forward else {}

    def run(self, ids: Int[Tensor, "batch token"]) -> Any:
        """The model's output; the outputs of its blocks are stored until the next run."""
        self._ids, self._passed = ids, []

        def keep(block: nn.Module, args: Any, passed: Any) -> None:
            self._passed.append(_copy(passed))

        with ExitStack() as undo:
            for block in self._blocks:
                undo.callback(block.register_forward_hook(keep).remove)
            return self.model(input_ids=ids, **self._options)

    def try_block(self, block: int, given: Any) -> None:
        """Test once whether `from_block`, with nothing changed, gives the same bits as `run`."""
        if block in self._same:
            return
        self._same[block] = len(self._passed) == len(self._blocks) > block > 0
        if self._same[block]:
            try:
                self._same[block] = torch.equal(self.from_block(block).logits, given.logits)
            except Exception:  # a block above needs more: run the whole model instead, which raises its own errors
                self._same[block] = False

    def from_block(self, block: int) -> Any:
        """The model's output for the last run's sequences, computed from this block on if that gives the same bits."""
        assert self._ids is not None
        with self._skipped(block if self._same.get(block, False) else 0):
            return self.model(input_ids=self._ids, **self._options)

    @contextmanager
    def _skipped(self, count: int) -> Iterator[None]:
        with ExitStack() as undo:
            for block, passed in zip(self._blocks[:count], self._passed, strict=False):
                own = vars(block).get("forward")
                undo.callback(_restore, block, own)
                block.forward = lambda *args, passed=passed, **kwargs: _copy(passed)
            yield


def _restore(block: nn.Module, own: Any) -> None:
    del block.forward
    if own is not None:  # the module had its own forward before
        block.forward = own


def _copy(passed: Any) -> Any:
    """A copy with its own tensors: later blocks may write into them."""
    if isinstance(passed, Tensor):
        return passed.clone()
    return type(passed)(_copy(part) for part in passed) if type(passed) in (tuple, list) else passed
