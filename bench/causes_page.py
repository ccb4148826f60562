"""docs/causes.md from bench/causes.json."""

from typing import Any

BEGINNING = """\
# Causes, measured on trained models

<!-- Made by `python bench/causes.py` (bench/causes.json); change bench/causes_page.py instead. -->

What `armillary ablate` and `edges` say of models with trained weights. Heads are ablated by their mean output at each
position; losses are in nats per token. SmolLM2-135M and Gemma 3 270M are quantized to 4 bits or a little more.
"""

WELL_CORRELATED = 0.7

CLEAR = 0.05
"""Below this score no head of a model is an induction head worth ablating."""


def page(results: dict[str, Any]) -> str:
    """The page as Markdown."""
    return "\n".join(
        [BEGINNING, *_estimates(results), *(line for name in results for line in _induction(name, results))]
    )


def _estimates(results: dict[str, Any]) -> list[str]:
    lines = [
        "## Estimates against exact ablation\n",
        "`gradient_loss` (first order, one backward pass) against `ablation_loss`, over evenly spaced heads.\n",
        "| model | on | heads | loss | rank correlation | largest effects |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    low = []
    for name, result in results.items():
        for prefix, row in result["estimates"].items():
            where = f"{result['corpus']}" if prefix == "text" else "the second copy of repeated random tokens"
            largest = ", ".join(f"{head} {effect:+.3f}" for head, effect in row["largest"].items())
            lines.append(
                f"| {name} | {where} | {row['heads']} | {row['loss']:.2f} | {row['rank_correlation']:.2f} | {largest} |"
            )
            if row["rank_correlation"] < WELL_CORRELATED:
                low.append(f"{name} on {where} ({row['rank_correlation']:.2f})")
    if low:
        lines += [
            "",
            f"**Below {WELL_CORRELATED}: {'; '.join(low)}.** There estimates do not order heads: an ablation is not a "
            "small step. Use `armillary ablate --exact`.",
        ]
    return [*lines, ""]


def _induction(name: str, results: dict[str, Any]) -> list[str]:
    found = results[name]["induction"]
    random = found["random"]
    if found["scores"][0] < CLEAR:
        return [f"{name} has no induction head: the largest score is {found['scores'][0]:.2f}.\n"]
    verdict = "more than any of" if found["without"] > max(random) else "not more than all of"
    lines = [
        f"## The strongest induction heads of {name}\n",
        f"{', '.join(found['heads'])} (induction scores {', '.join(f'{score:.2f}' for score in found['scores'])}). "
        f"Without the three, the loss on the second copy of repeated random tokens rises from {found['loss']:.2f} by "
        f"{found['without']:+.3f}: {verdict} {len(random)} random triples of the same layers (mean "
        f"{sum(random) / len(random):+.3f}, largest {max(random):+.3f}).\n",
        "| head | the largest sources of its key on repeated tokens: share, label, attention to the previous token |",
        "| --- | --- |",
    ]
    for head, sources in found["keys"].items():
        words = "; ".join(_source(source) for source in sources)
        lines.append(f"| {head} | {words} |")
    return [*lines, ""]


def _source(source: dict[str, Any]) -> str:
    words = f"{source['source']} {source['share']:+.2f}"
    return words if "label" not in source else f"{words} ({source['label']}, {source['prev_mass']:.2f})"
