"""Timelines that were put together by hand, so that it is known when each head is born."""

from pathlib import Path
from typing import Any

import numpy as np

from armillary.atlas.timelines.rows import CheckpointRows
from armillary.atlas.timelines.store import write_timeline
from armillary.atlas.timelines.timeline import Timeline, open_timeline

STEPS = (0, 10, 20, 40, 80)

STORY = {
    (0, 0): ("broad", "previous", "previous", "previous", "previous"),
    (0, 1): ("broad", "broad", "broad", "broad", "broad"),
    (1, 0): ("broad", "broad", "mixed", "induction", "induction"),
    (1, 1): ("first-token", "first-token", "local", "first-token", "first-token"),
}
"""Labels of two layers of two heads; broad and mixed are never significant, nor is previous at step 10."""


def significant(head: tuple[int, int], at: int) -> float:
    label = STORY[head][at]
    return float(label not in ("broad", "mixed") and not (label == "previous" and STEPS[at] == 10))


def story_rows(steps: tuple[int, ...] = STEPS, later: int = 0, **columns: Any) -> list[CheckpointRows]:
    """The rows of the story; with `later`, every head changes so many checkpoints later. columns: by checkpoint."""
    rows = []
    for number, step in enumerate(steps):
        at = max(0, number - later)
        label, sure = np.full((2, 2), "", object), np.zeros((2, 2), np.float32)
        for layer, head in STORY:
            label[layer, head] = STORY[layer, head][at]
            sure[layer, head] = significant((layer, head), at)
        score = np.full((2, 2), 0.01 + 0.001 * at, np.float32)
        score[1, 0] = 0.8 if label[1, 0] == "induction" else 0.02
        facts: Any = {
            "name": f"step-{step:08d}",
            "step": step,
            "source": f"checkpoints/step-{step:08d}",
            "identity": f"files {step}",
            "weights": f"weights {step}",
            "config": "config",
            "dtype": "float32",
            "text": "text",
            "loss": 7.0 - at,
            "tokens": 100 * step,
        }
        heads: dict[str, Any] = {"significant": sure, "induction_score": score, "prev_mass": score / 2}
        heads |= {name: np.asarray(values[number], np.float32) for name, values in columns.items()}
        rows.append(
            CheckpointRows(facts, heads, {"label": label}, {"pos_share": np.array([0.1, 0.2, 0.3], np.float32)})
        )
    return rows


ABOUT: dict[str, Any] = {
    "model": {"title": "handmade", "family": "llama", "layers": 2, "heads": 2},
    "corpus": {"name": "tokens", "sha256": "text"},
    "settings": {"length": 24},
    "failed": [],
    "notes": [],
    "versions": {"armillary": "0"},
}


def story(folder: Path, later: int = 0, about: dict[str, Any] | None = None, **columns: Any) -> Timeline:
    """The timeline of the story, with a log."""
    folder.mkdir(parents=True, exist_ok=True)
    log: dict[str, Any] = {"step": np.arange(80), "loss": np.linspace(7, 2, 80).astype(np.float32)}
    write_timeline(folder, story_rows(later=later, **columns), {**ABOUT, **(about or {})}, log)
    return open_timeline(folder)
