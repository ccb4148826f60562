"""Fine-tune stories15M to p-RoPE: loss before, right after the change, after training. Writes bench/fine_tuning.json.

python bench/fine_tuning.py MODEL FOLDER [TEXT]: 20 minutes on one core; what is finished in FOLDER is not repeated.

The text is sampled from the model itself (no download: a user can repeat it), so the loss of the unchanged model is
near the entropy of its own samples, and training cannot teach it anything but the change. p is what `armillary
frequencies` recommends from a scan of that text. A control trains as long without the change, and a smaller p shows a
change that hurts. TEXT is text that the model did not write; all models are also measured on it.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import armillary as arm
from armillary.anatomy.loading import load, load_tokenizer
from armillary.files.atomic import write_atomically
from armillary.lenses.rotary import recommended_p
from armillary.training.config import from_dict
from armillary.training.loop import mean_loss
from armillary.training.run import train_run

STORIES, ROWS, TOKENS = 256, 64, 256
TRAINING = dict(
    steps=200,
    batch=2,
    length=128,
    warmup=10,
    learning_rate=5e-5,
    final_rate=1e-6,
    checkpoint_every=25,
    weight_decay=0.0,
)
SMALLER = 0.25


def sampled(model: str, folder: Path) -> Path:
    """Stories that the model writes, at temperature 1, a file each; what is there is not written again."""
    folder.mkdir(parents=True, exist_ok=True)
    loaded: Any = None
    tokenizer: Any = None
    for begin in range(0, STORIES, ROWS):
        if (folder / f"{begin + ROWS - 1:04d}.txt").is_file():
            continue
        if loaded is None:
            loaded, tokenizer = load(model, dtype=torch.float32), load_tokenizer(model)
        torch.manual_seed(begin)
        first = torch.full((ROWS, 1), tokenizer.bos_token_id)
        written = loaded.generate(
            first,
            attention_mask=torch.ones_like(first),
            max_new_tokens=TOKENS - 1,
            do_sample=True,
            top_k=0,
            use_cache=True,
            pad_token_id=tokenizer.eos_token_id,
        )
        for number, row in enumerate(written, begin):
            write_atomically(folder / f"{number:04d}.txt", tokenizer.decode(row, skip_special_tokens=True).encode())
    return folder


def recommended(model: str, corpus: Path, place: Path) -> dict[str, Any]:
    """What a scan of the text recommends."""
    atlas = (
        arm.open_atlas(place)
        if place.exists()
        else arm.scan(model, corpus=str(corpus), out=place, streams=("attention", "chunks"), sequences=32, length=256)
    )
    return dict(vars(recommended_p(atlas)))


def loss_on(model: Path | str, text: Path | None) -> float | None:
    """The loss on text that the model did not write, in windows of the trained length."""
    if text is None:
        return None
    tokens = np.array(load_tokenizer(model)(text.read_text(encoding="utf-8"))["input_ids"])
    return round(mean_loss(load(model, dtype=torch.float32), tokens, int(TRAINING["length"])), 4)


def main(model: str, folder: Path, text: Path | None) -> None:
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    corpus = sampled(model, folder / "stories")
    best = recommended(model, corpus, folder / "atlas")
    changes = {
        f"p-RoPE, p = {best['p']:.3f} (recommended)": dict(position="p-rope", fraction=best["p"]),
        "no change (control)": {},
        f"p-RoPE, p = {SMALLER}": dict(position="p-rope", fraction=SMALLER),
    }
    rows = []
    for number, (name, change) in enumerate(changes.items()):
        config = from_dict(
            {
                "model": {"from": model, **change},
                "data": dict(corpus=str(corpus), held_out=0.05),
                "training": TRAINING,
                "monitor": dict(every=100, sequences=2),
            }
        )
        result = train_run(config, folder / f"run-{number}")
        rows.append(
            {
                "change": name,
                "before": round(result["start"]["held_out_before"], 4),
                "right_after": round(result["start"]["held_out_changed"], 4),
                "after_training": round(result["held_out_loss"], 4),
                "on_other_text": loss_on(folder / f"run-{number}" / "model", text),
                "steps": result["steps"],
            }
        )
        print(rows[-1], flush=True)
        write_record(model, text, best, rows)


def write_record(model: str, text: Path | None, best: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the results so far."""
    record = {
        "model": Path(model).name,
        "recommended": best,
        "training": TRAINING,
        "sampled_stories": STORIES,
        "other_text": None if text is None else {"name": text.name, "before": loss_on(model, text)},
        "runs": rows,
    }
    place = Path(__file__).with_name("fine_tuning.json")
    write_atomically(place, (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
