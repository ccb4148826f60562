"""Print the anatomy of a model, its verification, and the supported families (inspect, doctor)."""

from dataclasses import replace

from rich.markup import escape
from rich.table import Table

from armillary.anatomy.description import (
    Alibi,
    Anatomy,
    Disentangled,
    GridRotary,
    Layer,
    LayerPosition,
    RelativeBias,
    Rotary,
)
from armillary.anatomy.other_samples import part_of
from armillary.anatomy.samples import SAMPLES, sample_config, unavailable
from armillary.anatomy.source import describe
from armillary.observe.verification import Verification
from armillary.observe.verified import Record, devices, versions
from armillary.terminal.console import console


def print_anatomy(model: str, anatomy: Anatomy, notes: list[str]) -> None:
    """Print the model in a few lines, then one line per run of equal layers."""
    out = console()
    out.print(f"[bold]{escape(model)}[/bold]  family {escape(anatomy.family)}", soft_wrap=True)
    facts = [
        f"{len(anatomy.layers)} layers" + (" (that share one set of weights)" if anatomy.shared_layers else ""),
        f"width {anatomy.d_model}",
        f"vocabulary {anatomy.vocabulary}" if anatomy.vocabulary else "",
        what_positions_are(anatomy),
        positions_of(anatomy),
    ]
    if not anatomy.missing:
        facts.append(f"{anatomy.norm} norm {anatomy.norm_place} attention")
    out.print(" · ".join(fact for fact in facts if fact), soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="dim")
    numbered = ("layers", "blocks") if anatomy.skipped else ("layers",)
    for column in (*numbered, "heads", "key heads", "head width", "sees", "position in attention", "logits"):
        table.add_column(column, overflow="fold")
    for first, last in runs(anatomy.layers):
        layer = anatomy.layers[first]
        span = str(first) if first == last else f"{first}-{last}"
        table.add_row(
            span,
            *([block_numbers(anatomy.layers[first : last + 1])] if anatomy.skipped else []),
            str(layer.heads),
            str(layer.kv_heads),
            str(layer.head_width),
            sees(layer),
            position(layer),
            logits(layer),
        )
    out.print(table)
    if anatomy.skipped:
        names = ", ".join(f"{block} ({kind})" for block, kind in (entry.split(": ") for entry in anatomy.skipped))
        out.print(f"left out, since they have no attention heads: {escape(names)}", soft_wrap=True)
    for note in [*notes, *([anatomy.missing] if anatomy.missing else [])]:
        out.print(escape(note), soft_wrap=True)


def runs(layers: tuple[Layer, ...]) -> list[tuple[int, int]]:
    """First and last of every run of equal layers."""
    spans: list[tuple[int, int]] = []
    for layer in layers:
        before = layers[layer.index - 1]
        if spans and replace(layer, index=0, block="") == replace(before, index=0, block=""):
            spans[-1] = (spans[-1][0], layer.index)
        else:
            spans.append((layer.index, layer.index))
    return spans


def block_numbers(layers: tuple[Layer, ...]) -> str:
    """The numbers of these layers' blocks: '3, 7, 11'."""
    return ", ".join(layer.block.rpartition(".")[2] for layer in layers)


def what_positions_are(anatomy: Anatomy) -> str:
    """'' for tokens; else what the rows and columns of attention stand for."""
    if anatomy.positions == "patches" and anatomy.grid is not None:
        before = f" after {anatomy.special_first} others" if anatomy.special_first else ""
        return f"positions are patches ({anatomy.grid[0]} x {anatomy.grid[1]}{before})"
    return "" if anatomy.positions == "tokens" else f"positions are {anatomy.positions}"


def positions_of(anatomy: Anatomy) -> str:
    limit = f" (up to {anatomy.max_positions})" if anatomy.max_positions else ""
    if anatomy.positions_added == "none":
        return f"no positions added to the embeddings{limit}"
    return "" if anatomy.positions_added == "unknown" else f"{anatomy.positions_added} positions{limit}"


def sees(layer: Layer) -> str:
    if layer.crosses:
        return "the encoder's positions"
    direction = {True: "the past", False: "both sides", None: "unknown"}[layer.causal]
    if layer.chunk is not None:
        return f"{direction}, in chunks of {layer.chunk}"
    return direction if layer.window is None else f"{direction}, window {layer.window}"


def position(layer: Layer) -> str:
    kind: LayerPosition | None = layer.position
    if isinstance(kind, Rotary):
        part = "" if kind.width == layer.head_width else f" on {kind.width} of {layer.head_width} channels"
        scaled = "" if kind.scaling == "default" else f", {kind.scaling}"
        return f"rotary{part}, base {kind.base:g}{scaled}, {kind.layout} pairs"
    if isinstance(kind, Alibi):
        return f"ALiBi, slopes {max(kind.slopes):.3g} to {min(kind.slopes):.3g}"
    if isinstance(kind, RelativeBias):
        return f"learned bias, {kind.buckets} buckets up to {kind.max_distance}"
    if isinstance(kind, GridRotary):
        return f"rotary by row and column in a grid of {kind.grid[0]} x {kind.grid[1]} patches"
    if isinstance(kind, Disentangled):
        return f"keys and queries of distances ({', '.join(kind.terms) or 'no terms'}), {2 * kind.span} of them"
    return "unknown" if layer.scale is None else "none"


def logits(layer: Layer) -> str:
    parts = ["scale unknown" if layer.scale is None else f"scale {layer.scale:.4g}"]
    if layer.qk_norm is not None:
        parts.append(
            f"{layer.qk_norm.kind} norm of q, k over {'a head' if layer.qk_norm.over == 'head' else 'all heads'}"
        )
    if layer.softcap is not None:
        parts.append(f"soft-cap {layer.softcap:g}")
    if layer.sinks:
        parts.append("a sink per head")
    if layer.clip_qkv is not None:
        parts.append(f"q, k, v clipped at {layer.clip_qkv:g}")
    if layer.latent:
        parts.append("k and v from a latent vector")
    if layer.growth is not None:
        parts.append(f"growing every {layer.growth.every:g} positions")
    if layer.gated:
        parts.append("outputs gated")
    if layer.value_norm is not None:
        parts.append("v normalized")
    return ", ".join(parts)


CHECKS = {
    "output": "attention times v against the layer's own output",
    "logits": "logits rebuilt from the weights against the observed ones",
    "values": "values rebuilt from the weights against the observed ones",
    "projected": "heads through W_o against the output projection",
    "constituents": "terms of mean, position and content, summed, against the observed logits",
    "shares": "how far the shares of these terms are from adding to 1",
}


def print_verification(result: Verification) -> None:
    """Print one line per check, and the verdict."""
    out = console()
    out.print("outputs with the tap: " + ("the same, bit for bit" if result.identical else "[red]different[/red]"))
    out.print(f"layers that the tap observed: {result.seen} of {result.declared}")
    for check, what in CHECKS.items():
        error = result.worst(check)
        out.print(f"{what}: " + ("not checked" if error is None else f"largest relative error {error:.1e}"))
    wrong = [layer.layer for layer in result.layers if layer.visible is False]
    if wrong:
        out.print(f"[red]layer {wrong[0]} does not attend to the keys that the anatomy says[/red]")
    verdict = "[green]verified[/green]" if result.passed else "[red]not verified[/red]"
    out.print(f"{verdict} (tolerance {result.tolerance:g})")


def print_doctor(record: Record) -> None:
    """Print versions, devices, and a row per family and variant."""
    out = console()
    installed, hardware = versions(), devices()
    out.print("versions  " + " · ".join(f"{name} {number}" for name, number in installed.items()), soft_wrap=True)
    gpus = ", ".join(hardware["cuda"]) or ("Apple GPU" if hardware["mps"] else "none")
    out.print(f"device    {hardware['threads']} threads · GPU: {gpus}")
    if record.versions != installed:
        others = [f"{name} {number}" for name, number in record.versions.items() if installed.get(name) != number]
        note = f"The families below were verified with {' · '.join(others)}; --verify verifies them again."
        out.print(f"[yellow]{note}[/yellow]", soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("family", "position", "outputs same", "attention x v", "rebuilt logits", ""):
        table.add_column(column, no_wrap=column == "family")
    missing = {name: why for name in SAMPLES if (why := unavailable(name))}
    for name, check in record.samples.items():
        if name in missing:
            continue
        anatomy = describe(sample_config(name), part=part_of(name))
        kind = type(anatomy.layers[-1].position).__name__.lower() if anatomy.layers[-1].position else ""
        added = "" if anatomy.positions_added == "none" else anatomy.positions_added
        error = (f"{e:.0e}" if e is not None else "-" for e in (check.output_error, check.logit_error))
        verdict = "[green]verified[/green]" if check.passed else "[red]not verified[/red]"
        table.add_row(
            name,
            " ".join(p for p in (added, kind) if p) or "none",
            "yes" if check.identical else "no",
            *error,
            verdict,
        )
    out.print(table)
    out.print("Errors are the largest over layers, relative to the largest value, on small random models.")
    for name, why in missing.items():
        out.print(f"[yellow]{name}: {why}.[/yellow]", soft_wrap=True)
