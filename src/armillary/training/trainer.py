"""For users of transformers' Trainer: kept checkpoints and random positions as callbacks.

model = armillary.load(folder)
set_position(model, "p-rope", fraction=0.75, length=256)          # training/positions.py
class MyTrainer(LocAteRTrainerMixin, Trainer): ...                # training/regularizers.py
MyTrainer(model=model, args=args, train_dataset=data, penalty=LocAteR(model, scale=1e-3, mean=1e-3),
          callbacks=[keeping(RUN, tokenizer, keep="log"), positions(), callback(monitor)])
"""

from pathlib import Path
from typing import Any

from armillary.anatomy.placing import placer_of
from armillary.training.checkpoints import CheckpointConfig, Keeper, check_checkpoints

# Imports inside functions: transformers takes seconds to import.


def keeping(run: Path, tokenizer: Any, *, keep: str | list[int] = "last", every: int | None = None) -> Any:
    """A callback that keeps models in RUN/checkpoints/step-00000100 and so on, as `armillary train` does.

    `keep` and `every` are those of [checkpoints] in docs/training.md. It raises before the first step if the disk is
    too small.
    """
    from transformers import TrainerCallback

    class KeepCheckpoints(TrainerCallback):  # type: ignore[misc]
        """Keeps the chosen steps."""

        keeper: Keeper | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            config = CheckpointConfig(keep=keep, every=every)
            check_checkpoints(config, int(state.max_steps))
            self.keeper = Keeper(model, tokenizer, config, int(state.max_steps), run)
            self.keeper.check_disk()
            if state.global_step == 0:
                self.keeper(0)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            assert self.keeper is not None
            self.keeper(int(state.global_step))

    return KeepCheckpoints()


def positions() -> Any:
    """A callback for a model with random positions: the draws of a step depend on the seed and the step alone."""
    from transformers import TrainerCallback

    class StepPositions(TrainerCallback):  # type: ignore[misc]
        """Tells the model's random positions which step begins."""

        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            placer = placer_of(model)
            if placer is not None:
                placer.begin(int(state.global_step))

    return StepPositions()
