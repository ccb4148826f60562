"""docs/benchmarks.md: Armillary beside its peers, written from bench/peers.json."""

from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
PARTS = {
    "512": "Entropy and attention to the first, previous and own token of all 144 heads, a text of 512 tokens",
    "4096": "The same on a text of 4,096 tokens",
    "heads": "Singular values of W_QK and W_OV of all 144 heads",
    "matrices": "Singular values of every weight matrix of the layers",
}
WAYS = {
    ("Armillary", "masses"): "`arm.Tap` and the stream `attention`, which also gives moments of the logits by distance",
    ("TransformerLens", "masses"): "`TransformerBridge.run_with_hooks`, a function on every `hook_pattern`",
    ("nnsight", "masses"): "`NNsight(model).trace`, the pattern of every layer, eager attention",
    ("transformers", "masses"): "`output_attentions=True`, eager attention",
    ("Armillary", "heads"): "`layer_spectra` of a model that is loaded; with eigenvalues",
    ("Armillary, to an atlas", "heads"): "`arm.weigh(folder, matrices=False)`: from the file to an atlas on disk",
    ("TransformerLens", "heads"): "`bridge.QK.svd()`, `bridge.OV.svd()`, of a model that is loaded",
    (
        "Armillary",
        "matrices",
    ): "`arm.weigh(folder)`, from the file to an atlas on disk; also the row above, and Marchenko-Pastur",
    ("weightwatcher", "matrices"): "`WeightWatcher(model).analyze()`, of a model that is loaded; also fits power laws",
}
HEAD = [
    "tool",
    "how",
    "seconds",
    "x ours",
    "processor seconds",
    "peak above the model, MB",
    "x ours",
    "differs from ours by",
]


def rendered(results: dict[str, Any]) -> str:
    """The page."""
    machine, versions = results["machine"], results["versions"]
    named = ", ".join(f"{tool} {number}" for tool, number in versions.items())
    lines = [
        "# Armillary beside its peers",
        "",
        "Written by `make bench-peers` (bench/peers.py) from bench/peers.json: one run, the same model and text, each",
        "tool in turn, medians. The model has GPT-2 small's shape (12 layers of 12 heads, width 768), random weights.",
        "Every tool is used in the way that costs it least: statistics layer by layer where it can, no pattern kept.",
        "Peaks are of a process for each tool. 'Differs' is the largest absolute difference of an",
        "entropy or a share of attention, or the largest relative difference of a head's largest singular value.",
        "",
        f"{machine['cores']} cores ({machine['processor']}), load average {machine['load_average']:.1f}, torch "
        f"{machine['torch']}; {named}.",
    ]
    for part, title in PARTS.items():
        if part in results["parts"]:
            lines += ["", f"## {title}", "", *table(part, results["parts"][part])]
    return "\n".join(lines) + "\n"


def table(part: str, measured: dict[str, Any]) -> list[str]:
    tools = measured["tools"]
    kind = "masses" if part.isdigit() else part
    rows = [row(WAYS[tool, kind], tool, found, tools["Armillary"]) for tool, found in tools.items()]
    body = [f"| {' | '.join(line)} |" for line in (HEAD, ["---"] * len(HEAD), *rows)]
    return [*body, "", f"Medians of {measured['repeats']} runs."]


def row(way: str, tool: str, found: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    if "said" in found:
        return [tool, way, f"failed: {found['said']}", *[""] * (len(HEAD) - 3)]
    difference = found.get("difference")
    return [
        tool,
        way,
        f"{found['seconds']:.2f}",
        f"{found['seconds'] / ours['seconds']:.2g}",
        f"{found['processor_seconds']:.2f}",
        f"{found['peak_mb']:,.0f}",
        f"{found['peak_mb'] / ours['peak_mb']:.2g}",
        "" if difference is None or tool == "Armillary" else f"{difference:.0e}",
    ]
