"""Why heads attend and whether they matter, on trained models. Writes bench/causes.json and docs/causes.md.

python bench/causes.py [SmolLM2-135M "bundled llama" "Gemma 3 270M=PLACE" ...]   these models (default: all at hand)
python bench/causes.py --page                                          docs/causes.md from bench/causes.json

For each model: the loss without heads, exactly and to first order, on text and on repeated random tokens; the three
strongest induction heads ablated together against random triples of the same layers; what feeds them.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from causes_page import page
from labels import models

import armillary as arm
from armillary.anatomy.modes import evaluating
from armillary.atlas.atlas import Atlas
from armillary.interventions import ablated, mean_outputs
from armillary.lenses.sources import feeds
from armillary.probe.ablation import Corpus, corpora, effects_on
from armillary.probe.losses import sequence_losses
from armillary.probe.sources import edges_of

RESULTS = Path(__file__).with_name("causes.json")
SHARED = next(
    (parent / "shared" for parent in Path(__file__).resolve().parents if (parent / "shared").is_dir()), Path()
)
DOCS = Path(__file__).parent.parent / "docs" / "causes.md"

SEQUENCES = 4
HEADS = 36
"""So many heads, evenly spaced over all, are ablated exactly: none is chosen by its estimate."""

TRIPLES = 10
SEED = 0


def main(asked: list[str]) -> None:
    if asked != ["--page"]:
        places = {"stories15M": SHARED / "models/stories15M", **models()}
        places = {name: place for name, place in places.items() if name != "MiniLM" and place.exists()}
        for given in asked or places:
            name, _, place = given.partition("=")
            measured = of_model(Path(place) if place else places[name], corpus_of(name))
            RESULTS.write_text(json.dumps({**results(), name: measured}, indent=1) + "\n")
    DOCS.write_text(page(results()), encoding="utf-8")


def results() -> dict[str, Any]:
    """What was measured so far."""
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}


def corpus_of(name: str) -> str:
    """Stories for the model that was trained on stories."""
    return str(SHARED / "corpora/tinystories-sample-cs336.txt") if name.startswith("stories") else "builtin:prose"


def of_model(place: Path, corpus: str) -> dict[str, Any]:
    model = arm.load(place)
    with tempfile.TemporaryDirectory() as folder:
        streams = ("positions", "attention", "constituents", "patterns")
        atlas = arm.scan(
            str(place),
            corpus=corpus,
            out=Path(folder) / "atlas",
            sequences=16,
            length=56 if "stories" in corpus else 128,  # there are five stories
            second_pass=8,
            streams=streams,
        )
        both = corpora(atlas, arm.describe(model), SEQUENCES)
        return {
            "corpus": Path(corpus).name,
            "heads": len(atlas.heads),
            "sequences": SEQUENCES,
            "length": int(both[""].tokens.shape[1]),
            "estimates": {prefix or "text": _estimates(model, corpus) for prefix, corpus in both.items()},
            "induction": _induction(model, atlas, both["repeat_"]),
        }


def _estimates(model: Any, corpus: Corpus) -> dict[str, Any]:
    """Exact effects of evenly spaced heads against their estimates."""
    count = len([1 for layer in arm.describe(model).layers for _ in range(layer.heads)])
    numbers = np.unique(np.linspace(0, count - 1, min(count, HEADS)).round().astype(int))
    every = [(layer.index, head) for layer in arm.describe(model).layers for head in range(layer.heads)]
    chosen = [every[number] for number in numbers]
    effects = effects_on(model, corpus, heads=chosen, batch=SEQUENCES)
    table = pd.DataFrame(
        {
            "exact": [effects.exact[head].mean() for head in chosen],
            "estimate": [effects.gradient[:, layer, head].mean() for layer, head in chosen],
        }
    )
    largest = table.assign(head=[f"L{layer}H{head}" for layer, head in chosen]).sort_values("exact").tail(3)[::-1]
    return {
        "loss": float(effects.loss.mean()),
        "heads": len(chosen),
        "rank_correlation": float(table["exact"].corr(table["estimate"], method="spearman")),
        "correlation": float(table["exact"].corr(table["estimate"])),
        "largest": dict(zip(largest["head"], largest["exact"].astype(float), strict=True)),
    }


def _induction(model: Any, atlas: Atlas, corpus: Corpus) -> dict[str, Any]:
    """The three strongest induction heads: the loss of the second copy without them, and what feeds their keys."""
    heads = atlas.heads.sort_values("induction_score", ascending=False, kind="stable")
    strongest = [(int(row["layer"]), int(row["head"])) for _, row in heads.head(3).iterrows()]
    scores = [float(score) for score in heads["induction_score"].head(3)]
    generator = np.random.default_rng(SEED)
    counts = [layer.heads for layer in arm.describe(model).layers]
    triples: list[list[tuple[int, int]]] = []
    while len(triples) < TRIPLES:
        triple = [(layer, int(generator.integers(counts[layer]))) for layer, _ in strongest]
        if len(set(triple)) == 3 and not set(triple) & set(strongest):
            triples.append(triple)
    means = mean_outputs(model, corpus.mean_over, batch=4)
    ids = torch.from_numpy(corpus.tokens)

    def loss(chosen: list[tuple[int, int]]) -> float:
        with torch.no_grad(), evaluating(model), ablated(model, chosen, to="mean", means=means):
            return float(sequence_losses(model(input_ids=ids).logits, ids, corpus.first).mean())

    whole = loss([])
    table = edges_of(model, corpus.tokens[:2], skip=int(atlas.settings["skip"]))
    labels = {(int(a), int(b)): (label, mass) for a, b, label, mass in _previous(atlas)}
    return {
        "heads": [f"L{layer}H{head}" for layer, head in strongest],
        "scores": scores,
        "loss": whole,
        "without": loss(strongest) - whole,
        "random": [loss(triple) - whole for triple in triples],
        "keys": {f"L{layer}H{head}": _keys(table, layer, head, labels) for layer, head in strongest},
    }


def _previous(atlas: Atlas) -> Any:
    heads = atlas.heads
    return zip(heads["layer"], heads["head"], heads["label"], heads["prev_mass"], strict=True)


def _keys(table: pd.DataFrame, layer: int, head: int, labels: dict[tuple[int, int], Any]) -> list[dict[str, Any]]:
    """The largest sources of the key; of heads with their label and attention to the previous token."""
    fed = feeds(table, layer, head)
    rows = []
    for source, share in fed[fed["side"] == "key"][["source", "share"]].head(6).itertuples(index=False):
        row: dict[str, Any] = {"source": source, "share": float(share)}
        if source.startswith("L"):
            place = tuple(int(number) for number in source[1:].split("H"))
            row["label"], row["prev_mass"] = str(labels[place][0]), float(labels[place][1])  # type: ignore[index]
        rows.append(row)
    return rows


if __name__ == "__main__":
    main(sys.argv[1:])
