"""transformers' Trainer with Armillary's callbacks and mix-in: kept checkpoints, a position scheme, the penalty."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

import armillary as arm
from armillary.anatomy.placing import placer_of
from armillary.training.checkpoints import kept_checkpoints
from armillary.training.positions import set_position
from armillary.training.regularizers import LocAteR, LocAteRTrainerMixin
from armillary.training.trainer import keeping, positions

ROWS = torch.randint(0, 2000, (8, 24), generator=torch.Generator().manual_seed(0))
DATA = tuple(dict(input_ids=row, labels=row) for row in ROWS)


class PenalizedTrainer(LocAteRTrainerMixin, Trainer):  # type: ignore[misc]
    pass


def run(folder: Path, scheme: dict[str, Any], steps: int = 5) -> Any:
    model = arm.load(arm.bundled("llama"), dtype=torch.float32)
    set_position(model, **scheme, length=24)
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        dataloader_pin_memory=False,
    )
    tokenizer = AutoTokenizer.from_pretrained(arm.bundled("llama"))
    trainer = PenalizedTrainer(
        model=model,
        args=arguments,
        train_dataset=DATA,
        penalty=LocAteR(model, scale=1e-3, mean=1e-3),
        callbacks=[keeping(folder, tokenizer, keep="log"), positions()],
    )
    trainer.train()
    return model


def test_kept_checkpoints_and_p_rope(tmp_path: Path) -> None:
    model = run(tmp_path, dict(position="p-rope", fraction=0.5)).eval()
    kept = kept_checkpoints(tmp_path)
    assert list(kept) == [0, 1, 2, 4, 5]
    plain = AutoModelForCausalLM.from_pretrained(kept[5], dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(plain(ROWS).logits, model(ROWS).logits)
    source = AutoModelForCausalLM.from_pretrained(arm.bundled("llama"), dtype=torch.float32)
    first = AutoModelForCausalLM.from_pretrained(kept[0], dtype=torch.float32)
    for name, weight in source.state_dict().items():
        assert torch.equal(first.state_dict()[name], weight)


def test_random_positions_are_those_of_the_step(tmp_path: Path) -> None:
    models = [run(tmp_path / str(number), dict(position="random"), steps=2) for number in range(2)]
    placer = placer_of(models[0])
    assert placer is not None
    assert (placer.step, placer.forwards) == (1, 1)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(a, b)


def test_steps_beyond_the_run_are_refused(tmp_path: Path) -> None:
    callback = keeping(tmp_path, None, keep=[9])
    state = type("State", (), {"max_steps": 5, "global_step": 0})()
    with pytest.raises(arm.ArmillaryError, match="the steps 0 to 5"):
        callback.on_train_begin(None, state, None, model=None)
