"""A forward pass that goes on from a block that was reached before: what lies below is not computed again."""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from armillary.anatomy.description import Anatomy
from armillary.layout import find_stack


class Resumable:
    """One batch of texts through a model: `run` computes all of it, `from_block` goes on above the blocks before.

    Blocks below the one that is asked for give what they gave in `run`; everything else of the model computes as usual.
    Whether that gives the same numbers is tried once for every block: where blocks are unknown or shared, or tell each
    other more than they pass on (keys of earlier layers), the whole model runs.
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
        """What the model gives for these texts; what its blocks pass on is kept until the next run."""
        self._ids, self._passed = ids, []

        def keep(block: nn.Module, args: Any, passed: Any) -> None:
            self._passed.append(_copy(passed))

        with ExitStack() as undo:
            for block in self._blocks:
                undo.callback(block.register_forward_hook(keep).remove)
            return self.model(input_ids=ids, **self._options)

    def try_block(self, block: int, given: Any) -> None:
        """Compare what `from_block` gives, nothing being changed, with what `run` gave: is it the same to the bit?"""
        if block in self._same:
            return
        self._same[block] = len(self._passed) == len(self._blocks) > block > 0
        if self._same[block]:
            try:
                self._same[block] = torch.equal(self.from_block(block).logits, given.logits)
            except Exception:  # whatever a block above misses: the whole model runs instead, and tells its own errors
                self._same[block] = False

    def from_block(self, block: int) -> Any:
        """What the model gives for the texts of the last run, computed from this block on where that is the same."""
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
    if own is not None:  # somebody had replaced the method on this module before
        block.forward = own


def _copy(passed: Any) -> Any:
    """The same with tensors of its own: what comes after may write into them."""
    if isinstance(passed, Tensor):
        return passed.clone()
    return type(passed)(_copy(part) for part in passed) if type(passed) in (tuple, list) else passed
