"""The report's sections on causes: which heads matter, whether labels do, and the circuit of what feeds what."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from armillary.anatomy.sources import SIDES
from armillary.atlas.effects import effects_about
from armillary.errors import ArmillaryError
from armillary.lenses.causes import WELL_CORRELATED, estimate_agreement, label_causes, measured_effect
from armillary.lenses.sources import edges
from armillary.report.page import Block, Circuit, Grid, Words
from armillary.report.sentences import Sentence, Writer, listed, plural

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

LEAST = 0.05
"""Edges with smaller shares are not in the page."""

MOST_EDGES = 20_000
"""Of more edges the largest are in the page."""

WHERE = {"": "on text", "repeat_": "on the second copy of repeated random tokens"}


def matters(atlas: "Atlas") -> Sentence | None:
    """Which heads matter most, and what the loss is without the first two; None if heads were not ablated."""
    about = effects_about(atlas)
    if about is None:
        return None
    measured = {prefix: about[f"{prefix}together"] for prefix in WHERE if _clear(about.get(f"{prefix}together"))}
    if not measured:
        return None
    prefix = max(measured, key=lambda prefix: float(measured[prefix]["loss"]))
    together, write = measured[prefix], Writer()
    names = listed([write.word(f"head {i}", f"L{a}H{b}") for i, (a, b) in enumerate(together["heads"])])
    count, of = together["half"], together["ablated"]
    rises = write.number("loss", together["loss"])
    start = f"{write.count('half', count)} of {write.count('ablated', of)} ablated heads"
    carry = f"{start} {plural(count, 'carries', 'carry')} half of what single heads are worth {WHERE[prefix]}"
    return write.sentence(f"{carry}: without {names} the loss rises by {rises} nats per token.")


def _clear(together: dict[str, Any] | None) -> bool:
    """Whether the loss without the first heads rises by more than two standard errors."""
    return bool(together and together["heads"] and together["loss"] > 2 * (together["se"] or 0.0) and together["half"])


def causes(atlas: "Atlas") -> list[Block]:
    """Which effects were measured, how well estimates order heads, and whether labels tell heads that matter."""
    about = effects_about(atlas)
    if about is None:
        raise ArmillaryError("heads were not ablated", advice="run `armillary ablate MODEL DIR` first")
    blocks: list[Block] = [Words(_how(about))]
    for prefix, where in WHERE.items():
        correlation, count = estimate_agreement(atlas.heads, prefix)
        if count > 2:
            low = correlation < WELL_CORRELATED
            more = " Estimates do not order heads here: ablate all of them exactly (`ablate --exact`)." if low else ""
            blocks.append(
                Words(
                    f"Estimates (gradient_loss) against exact ablation {where}: rank correlation {correlation:.2f} "
                    f"over {count} heads.{more}"
                )
            )
    table = label_causes(atlas)
    return [
        *blocks,
        Words(_labels(table)),
        Grid("label_causes", table, "label_causes", "Heads with each label against other heads of the same layers."),
    ]


def _how(about: dict[str, Any]) -> str:
    instead = {"mean": "its mean at each position", "zero": "zero", "resampled": "its output on another sequence"}
    losses = [f"{about[f'{prefix}loss']:.2f} {where}" for prefix, where in WHERE.items() if f"{prefix}loss" in about]
    return (
        f"Each head's output was replaced by {instead[about['to']]}; the model's loss is {' and '.join(losses)} (nats "
        f"per token, {about['sequences']} sequences each)."
    )


def _labels(table: pd.DataFrame) -> str:
    clauses = []
    for row in table.to_dict("records"):
        if row["verdict"] in ("more", "less"):
            where = "repeated tokens" if str(row["effect"]).startswith("repeat_") else "text"
            clauses.append(
                f"{row['label']} heads matter {row['verdict']} than others of their layers on {where} "
                f"({row['mean']:+.3f} against {row['others']:+.3f})"
            )
    start = "Labels are permuted within layers 10,000 times: "
    return start + ("; ".join(clauses) if clauses else "no label makes a difference that chance would not") + "."


def circuit(atlas: "Atlas") -> list[Block]:
    """The circuit view."""
    table = edges(atlas, LEAST)
    if table.empty:
        raise ArmillaryError("no source has a share of 5 % in any head")
    return [
        Circuit(
            "Heads by layer; lines are shares of what feeds them (query, key or value side). Choose a head to see what "
            "feeds it and what it feeds."
        )
    ]


def circuit_data(atlas: "Atlas") -> dict[str, Any] | None:
    """Nodes and edges for the page's script; None without sources."""
    if not atlas.has("sources"):
        return None
    table = edges(atlas, LEAST)
    table = table[~table["source"].isin(["biases", "position bias", "rounding"])]
    table = table.sort_values("share", key=abs, ascending=False, kind="stable").head(MOST_EDGES)
    heads, effect = atlas.heads, measured_effect(atlas.heads, "repeat_") or measured_effect(atlas.heads)
    labels = heads["label"].fillna("") if "label" in heads else pd.Series([""] * len(heads))
    values = heads[effect] if effect else pd.Series(np.full(len(heads), np.nan))
    names = [f"L{a}H{b}" for a, b in zip(heads["layer"], heads["head"], strict=True)]
    nodes: list[list[Any]] = [
        [name, int(layer), int(head), str(label), None if pd.isna(value) else float(f"{value:.4g}")]
        for name, layer, head, label, value in zip(names, heads["layer"], heads["head"], labels, values, strict=True)
    ]
    widest = int(heads["head"].max()) + 1
    for source in dict.fromkeys(table["source"]):
        if source == "embedding":
            nodes.append([source, -1, (widest - 1) / 2, "embedding", None])
        elif not source.startswith("L"):
            number = int("".join(letter for letter in source if letter.isdigit()))
            nodes.append([source, number + 0.5, widest + (0 if source.startswith("MLP") else 1), "MLP", None])
    place = {node[0]: number for number, node in enumerate(nodes)}
    rows = [
        [place[source], place[f"L{layer}H{head}"], SIDES.index(side), float(f"{share:.4g}")]
        for layer, head, side, source, share in table.itertuples(index=False)
    ]
    return {"nodes": nodes, "edges": rows, "sides": list(SIDES), "effect": effect}
