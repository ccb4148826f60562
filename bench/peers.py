"""`make bench-peers`: the same work by Armillary and its peers, in one run: bench/peers.json, docs/benchmarks.md.

python bench/peers.py run [512 4096 heads matrices]   all of it, or only these parts
python bench/peers.py render                          docs/benchmarks.md from bench/peers.json

The model has GPT-2 small's shape and random weights, saved in a temporary folder; nothing comes from a hub. Times are
medians of repeats in turn, each tool once in every turn. Peaks of memory are of a process of its own for each tool,
above what it held when the model was loaded. A tool that cannot be installed or fails has a row that says so.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import peers_page
import torch
from measuring import apart, peak_of
from scaling import machine
from transformers import AutoModelForCausalLM, GPT2Config
from transformers.utils import logging

import armillary as arm
from armillary.anatomy.loading import load_tokenizer
from armillary.lenses.products import layer_spectra
from armillary.streams.attention import AttentionStatistics
from armillary.streams.stream import Stream

RESULTS = Path(__file__).with_name("peers.json")
LONGEST, VOCABULARY = 4096, 50257
REPEATS = {"512": 5, "4096": 3, "heads": 5, "matrices": 3}
PACKAGES = {
    "Armillary": "armillary",
    "TransformerLens": "transformer-lens",
    "nnsight": "nnsight",
    "transformers": "transformers",
    "weightwatcher": "weightwatcher",
}
Masses = dict[int, torch.Tensor]
"""By layer: entropy, attention to the first, previous and own token of each head; means over queries but the first."""


def save_model(folder: str) -> None:
    """A model of GPT-2 small's shape with 4,096 positions; the larger initial weights give heads that differ."""
    torch.manual_seed(0)
    config = GPT2Config(n_positions=LONGEST, use_cache=False, initializer_range=0.05)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    load_tokenizer(arm.bundled("gpt2")).save_pretrained(folder)


def model_of(folder: str, attention: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention).eval()


def text(length: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))


def masses_of(pattern: torch.Tensor) -> torch.Tensor:
    """What is asked for, from a pattern (1, head, query, key) as the peers give it."""
    rows = pattern[0, :, 1:]
    entropy = -torch.xlogy(rows, rows).sum(-1).mean(-1)
    own, previous = pattern[0].diagonal(0, 1, 2)[:, 1:], pattern[0].diagonal(-1, 1, 2)
    return torch.stack([entropy, rows[..., 0].mean(-1), previous.mean(-1), own.mean(-1)], -1)


# every head's entropy and masses on a text -------------------------------------------------------------------------


def armillary_masses(folder: str, length: int) -> Callable[[], Masses]:
    model, ids = arm.load(folder), text(length)

    def work() -> Masses:
        stream = Stream(AttentionStatistics(1, length))
        with torch.no_grad(), arm.Tap(model, lambda view: stream.update(view.layer, view)):
            model.transformer(ids)
        found = stream.finish()
        names = ("entropy", "first_mass", "prev_mass", "self_mass")
        return dict(enumerate(torch.stack([torch.as_tensor(found[name]) for name in names], -1)))

    return work


def lens_masses(folder: str, length: int) -> Callable[[], Masses]:
    bridge, ids = bridge_of(folder), text(length)

    def work() -> Masses:
        found: Masses = {}

        def keep(pattern: torch.Tensor, hook: Any) -> None:
            found[int(hook.name.split(".")[1])] = masses_of(pattern)

        with torch.no_grad():
            hooks = [(f"blocks.{layer}.attn.hook_pattern", keep) for layer in range(12)]
            bridge.run_with_hooks(ids, return_type=None, fwd_hooks=hooks)
        return found

    return work


def nnsight_masses(folder: str, length: int) -> Callable[[], Masses]:
    from nnsight import NNsight

    model, ids = NNsight(model_of(folder, "eager")), text(length)

    def work() -> Masses:
        found: Masses = {}
        with torch.no_grad(), model.trace(ids):
            for layer in range(12):
                found[layer] = masses_of(model.transformer.h[layer].attn.output[1])
        return found

    return work


def transformers_masses(folder: str, length: int) -> Callable[[], Masses]:
    model, ids = model_of(folder, "eager"), text(length)

    def work() -> Masses:
        with torch.no_grad():
            patterns = model.transformer(ids, output_attentions=True).attentions
        return {layer: masses_of(pattern) for layer, pattern in enumerate(patterns)}

    return work


# spectra -------------------------------------------------------------------------------------------------------------


def armillary_heads(folder: str, _: int) -> Callable[[], Any]:
    anatomy = arm.describe(arm.load(folder))

    def work() -> Any:
        layers = [layer_spectra(layer, anatomy.weights(layer.index)) for layer in anatomy.layers]
        return [float(value) for layer in layers for value in layer.qk.singular[:, 0]]

    return work


def atlas_heads(folder: str, _: int) -> Callable[[], Any]:
    return lambda: arm.weigh(folder, matrices=False).heads["qk_spec"].to_list()


def lens_heads(folder: str, _: int) -> Callable[[], Any]:
    bridge = bridge_of(folder)

    def work() -> Any:
        with torch.no_grad():
            spectra = {name: getattr(bridge, name).svd()[1] for name in ("QK", "OV")}
        return spectra["QK"][..., 0].flatten().tolist()

    return work


def armillary_matrices(folder: str, _: int) -> Callable[[], Any]:
    return lambda: len(arm.weigh(folder, matrices=True).heads)


def weightwatcher_matrices(folder: str, _: int) -> Callable[[], Any]:
    import weightwatcher

    model = model_of(folder, "sdpa")
    return lambda: len(weightwatcher.WeightWatcher(model=model).analyze(plot=False))


def bridge_of(folder: str) -> Any:
    from transformer_lens.model_bridge import TransformerBridge

    return TransformerBridge.boot_transformers(folder, device="cpu")


Prepare = Callable[[str, int], Callable[[], Any]]

MASSES: dict[str, Prepare] = {
    "Armillary": armillary_masses,
    "TransformerLens": lens_masses,
    "nnsight": nnsight_masses,
    "transformers": transformers_masses,
}
PARTS: dict[str, dict[str, Prepare]] = {
    "512": MASSES,
    "4096": MASSES,
    "heads": {"Armillary": armillary_heads, "TransformerLens": lens_heads, "Armillary, to an atlas": atlas_heads},
    "matrices": {"Armillary": armillary_matrices, "weightwatcher": weightwatcher_matrices},
}


def peak(part: str, tool: str, folder: str) -> float:
    """Megabytes above the loaded model that one run needs, in this process."""
    torch.set_num_threads(2)
    logging.set_verbosity_error()
    work = PARTS[part][tool](folder, int(part) if part.isdigit() else 0)
    if part == "4096":  # a short run first: what is made once, such as caches of threads, is not counted
        PARTS["512"][tool](folder, 512)()
    return peak_of(work)


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


def measure(part: str, folder: str) -> dict[str, Any]:
    """Each tool's times and peak, and how far its numbers are from Armillary's."""
    length = int(part) if part.isdigit() else 0
    works: dict[str, Callable[[], Any]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for tool, prepare in PARTS[part].items():
        try:
            works[tool] = prepare(folder, length)
            rows[tool] = {"answer": works[tool]()}  # also the run that does not count
        except Exception as error:
            works.pop(tool, None)
            rows[tool] = {"said": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    times: dict[str, list[tuple[float, float]]] = {tool: [] for tool in works}
    for _ in range(REPEATS[part]):
        for tool, work in works.items():
            times[tool].append(timed(work))
    ours: Any = rows["Armillary"]["answer"]
    for tool, taken in times.items():
        found = rows[tool].pop("answer")
        rows[tool] |= {
            "seconds": statistics.median(wall for wall, _ in taken),
            "processor_seconds": statistics.median(processor for _, processor in taken),
            "peak_mb": apart(peak, part, tool, folder),
        }
        if length:
            rows[tool]["difference"] = max(float((found[i].double() - ours[i].double()).abs().max()) for i in ours)
        elif part == "heads":
            rows[tool]["difference"] = max(abs(a - b) / b for a, b in zip(found, ours, strict=True))
    return {"repeats": REPEATS[part], "tools": rows}


def versions() -> dict[str, str]:
    found = {}
    for tool, package in PACKAGES.items():
        try:
            found[tool] = version(package)
        except PackageNotFoundError:
            found[tool] = "not installed"
    return found


def main(verb: str, *asked: str) -> None:
    torch.set_num_threads(2)
    logging.set_verbosity_error()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"parts": {}}
    if verb == "run":
        with tempfile.TemporaryDirectory() as folder:
            save_model(folder)
            for part in asked or PARTS:
                results["parts"][part] = measure(part, folder)
                results |= {"machine": machine(), "versions": versions()}
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")
                print(part, json.dumps(results["parts"][part], indent=1))
    peers_page.PAGE.write_text(peers_page.rendered(results), encoding="utf-8")


if __name__ == "__main__":
    import peers  # by its name, under which a fresh process finds `peak`

    peers.main(*sys.argv[1:])
