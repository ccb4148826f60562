"""Ratios measured side by side: medians of interleaved repeats. Prints a table and writes bench/results.json."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import spectra
import torch
import training
from transformers import AutoConfig, AutoModelForCausalLM

import armillary as arm

REPEATS = 7


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(a: Callable[[], object], b: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of a and of b, run in turn."""
    a(), b()
    times = [(seconds(a), seconds(b)) for _ in range(REPEATS)]
    return statistics.median(t for t, _ in times), statistics.median(t for _, t in times)


def help_page() -> dict[str, object]:
    shown = "import sys; sys.argv = ['armillary', '--help']; from armillary.cli import main; main()"
    a, b = interleaved(
        lambda: subprocess.run([sys.executable, "-c", shown], stdout=subprocess.DEVNULL, check=True),
        lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
    )
    return {"what": "armillary --help, seconds above python -c pass", "value": a - b, "target": 0.5}


def open_tap() -> dict[str, object]:
    """A tap that receives every layer and does nothing with it: what looking costs."""
    config = AutoConfig.for_model("gpt2", use_cache=False)
    model = AutoModelForCausalLM.from_config(config).eval()
    ids = torch.randint(0, config.vocab_size, (4, 512))

    def tapped() -> None:
        with arm.Tap(model, lambda view: None, on_residual=lambda layer, h: None):
            model(ids)

    with torch.no_grad():
        a, b = interleaved(tapped, lambda: model(ids))
    return {"what": "GPT-2-small shape, 4 x 512: forward with an open tap / without", "value": a / b, "target": 1.05}


def main() -> None:
    rows = [help_page(), open_tap(), spectra.one_head(), spectra.seven_billion(), *training.training_step()]
    for row in rows:
        limit = "least" if row.get("least") else "most"
        print(f"{row['what']:80s} {row['value']:7.3f}   target at {limit} {row['target']}")
    Path(__file__).with_name("results.json").write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(1 if any(missed(row) for row in rows) else 0)


def missed(row: dict[str, Any]) -> bool:
    """Whether a target is missed by more than 15 %."""
    return bool(row["value"] < row["target"] / 1.15 if row.get("least") else row["value"] > 1.15 * row["target"])


if __name__ == "__main__":
    main()
