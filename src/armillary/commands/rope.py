"""Rotary frequencies: which heads use them, and the loss with others: frequencies, rope."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from armillary.anatomy.naming import recorded_title, title
from armillary.anatomy.options import ModelOptions
from armillary.commands.options import (
    AsJson,
    Folder,
    Html,
    Model,
    OneHead,
    OneLayer,
    OtherModel,
    print_json,
    say_if_too_long,
)
from armillary.commands.parameters import with_parameters
from armillary.errors import ArmillaryError

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from armillary.atlas.atlas import Atlas
    from armillary.lenses.kinds import LayerKind
    from armillary.lenses.rotary import RecommendedP

KeptShare = Annotated[
    float, typer.Option(help="Share of the logits' variance that the recommended p must keep.", min=0, max=1)
]
Sweep = Annotated[
    str, typer.Option(help="p=1,0.9,...: fractions of the frequencies that rotate; or base=..., partial=...")
]
OfBase = Annotated[float | None, typer.Option(help="Change only the layers with this rotary base.")]

# Imports inside functions: the program starts without what this command alone needs.


@with_parameters(ModelOptions)
def frequencies(
    folder: Folder,
    head: OneHead = None,
    layer: OneLayer = None,
    share: KeptShare = 0.99,
    text: Annotated[
        str | None,
        typer.Option(help="With --head and --html: also draw the head's frequencies token by token on this text."),
    ] = None,
    model: OtherModel = None,
    html: Html = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Print which rotary frequencies the heads use, their high-norm bands, and a recommended p for p-RoPE."""
    import json

    from armillary.atlas.atlas import open_atlas
    from armillary.lenses import rotary as lens
    from armillary.probe.dossier import head_row, parse_head
    from armillary.terminal import tables

    if head is not None and layer is not None:
        raise ArmillaryError("--head already names a layer", advice="leave --layer out")
    if text is not None and (head is None or html is None):
        raise ArmillaryError("--text draws one head on a text", advice="give --head and --html with it")
    atlas = open_atlas(folder)
    table = lens.frequency_table(atlas)
    recommended = lens.recommended_by_kind(atlas, share)
    bands = lens.bands(atlas)
    if head is not None:
        layer, number = parse_head(head)
        head_row(atlas, layer, number)
        table = table[(table["layer"] == layer) & (table["head"] == number)]
        bands = bands[(bands["layer"] == layer) & (bands["head"] == number)]
    elif layer is not None:
        table, bands = tables.select(table, layer=layer), bands[bands["layer"] == layer]
    if as_json:
        parts = {"frequencies": table, "bands": bands}
        rows = {name: json.loads(tables.as_json(part)) for name, part in parts.items()}
        print_json({"recommended_p": lens.recommended_rows(recommended), **rows})
    else:
        if head is not None:
            tables.show(table.drop(columns=["layer", "head"]), title=f"Frequencies of head {head}, fastest first")
        else:
            for kind in lens.rotary_kinds(atlas):
                _print_frequencies(kind, table[table["layer"].isin(kind.layers)])
        tables.show(bands, title="Bands: frequencies with most of a head's norm", limit=20)
        _print_recommended(recommended)
    if html is not None:
        from armillary.figures import rotary as figures
        from armillary.figures import write_page

        whole = lens.frequency_table(atlas)
        layers = sorted(map(int, whole["layer"].unique())) if layer is None else [layer]
        drawn = [*figures.frequencies_by_kind(whole), *(figures.frequencies_by_head(whole, at) for at in layers)]
        if text is not None and head is not None:
            drawn.insert(0, _on_text(atlas, head, text, model, options))
        write_page(html, f"Rotary frequencies of {recorded_title(atlas.attrs['model'])}", drawn)
        typer.echo(f"The figures are in {html}", err=as_json)


def _on_text(atlas: "Atlas", head: str, text: str, model: str | None, options: dict[str, Any]) -> "go.Figure":
    """The norms of a head's q and k at each frequency, token by token of a text."""
    from armillary.anatomy.loading import as_recorded, load_for, tokenizer_of
    from armillary.figures.rotary import token_usage
    from armillary.probe.dossier import parse_head
    from armillary.probe.rotary_tokens import token_frequencies

    source = model or atlas.attrs["model"]["name"]
    loaded = load_for(atlas.attrs["model"], source, **options)
    tokenizer = tokenizer_of(source, as_recorded(atlas.attrs["model"], options))
    say_if_too_long(loaded, tokenizer, text)
    usage = token_frequencies(loaded, tokenizer, *parse_head(head), text)
    norms = {"norm of q": usage.q, "norm of k": usage.k}
    return token_usage(norms, list(usage.tokens), f"Head {head}, token by token")


def _print_recommended(recommended: "list[tuple[LayerKind, RecommendedP]]") -> None:
    """One sentence for each kind of layer."""
    for kind, best in recommended:
        where = "" if kind.alone else f" of the {kind.name}"
        typer.echo(
            f"Recommended p{where}: {best.p:.2f} ({best.kept} of {best.frequencies} frequencies rotate); freezing "
            f"the others changes the logits by {best.cost:.2%} of their variance, at most "
            f"{best.worst_cost:.2%} (head {best.worst_head})."
        )


def _print_frequencies(kind: "LayerKind", table: "pd.DataFrame") -> None:
    """The frequencies of one kind of layer, means over the heads in the table."""
    from armillary.lenses.kinds import spans
    from armillary.terminal import tables

    if table.empty:
        return
    measures = ["turns", "q_norm", "k_norm", "v_norm", "share", "change"]
    means = table.groupby(["radians", "frequency"], dropna=False)[measures].mean().reset_index()
    shown = means.sort_values("radians", ascending=False)[["frequency", "radians", *measures]]
    of = "" if kind.alone else f" of the {kind.name}: {spans(sorted(set(table['layer'].astype(int))))}"
    frozen = " (0 radians: channels that do not rotate)" if (shown["radians"] == 0).any() else ""
    tables.show(shown, title=f"Frequencies{of}, fastest first, means over heads{frozen}")


@with_parameters(ModelOptions)
def rope(
    model: Model,
    sweep: Sweep = "p=1,0.9,0.75,0.5,0.25,0",
    corpus: Annotated[str, typer.Option(help="Text, as for `armillary scan`.")] = "builtin:prose",
    of_base: OfBase = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a sequence.", min=2)] = None,
    sequences: Annotated[int, typer.Option("--sequences", "--limit", help="How many sequences.", min=1)] = 32,
    html: Html = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Run a model with other rotary frequencies and print the loss of each, with the predicted change of the logits."""
    import json

    from armillary.anatomy.loading import load, tokenizer_of
    from armillary.interventions.frequencies import refuse_without_rotary
    from armillary.lenses.rotary import recommended_by_kind, recommended_rows
    from armillary.probe.sweep import check_sweep, parse_sweep
    from armillary.probe.sweep import sweep as run_sweep
    from armillary.scanning.scan import needs_tokenizer, scan
    from armillary.terminal import tables
    from armillary.terminal.progress import shown_progress
    from armillary.text.names import split_sources

    what, values = parse_sweep(sweep)
    loaded = load(model, **options)
    refuse_without_rotary(loaded)
    check_sweep(loaded, what, values, of_base=of_base)
    tokenizer = tokenizer_of(model, options) if needs_tokenizer(corpus) else None
    with shown_progress() as bar:
        atlas = scan(
            loaded,
            split_sources(corpus),
            tokenizer=tokenizer,
            length=length,
            sequences=sequences,
            streams=("attention", "chunks"),
            progress=bar,
        )
    with shown_progress("sweeping") as progress:
        swept = run_sweep(loaded, atlas, what, values, of_base=of_base, progress=progress)
    best = recommended_by_kind(atlas)
    if as_json:
        settings = json.loads(tables.as_json(swept.table))
        printed = {"swept": what, "settings": settings, "of_base": of_base, "recommended_p": recommended_rows(best)}
        print_json(printed)
    else:
        costs = "; costs: predicted changes of the logits" if what == "p" else ""
        tables.show(swept.table, title=f"Loss in nats per token{costs}")
        for kind, advised in best:
            where = "" if kind.alone else f" of the {kind.name}"
            typer.echo(f"Recommended p{where}: {advised.p:.2f}; costs {advised.cost:.2%} of the logits' variance.")
    if html is not None:
        from armillary.figures import write_page
        from armillary.figures.rotary import sweep_curves

        drawn = [sweep_curves(what, swept.table), *_decays(atlas)]
        write_page(html, f"Rotary frequencies of {title(model)}", drawn)
        typer.echo(f"The figures are in {html}", err=as_json)


def _decays(atlas: "Atlas") -> "list[go.Figure]":
    """q.k over distance with the frequencies of each kind of layer, for three kinds of vectors."""
    import numpy as np

    from armillary.figures.rotary import decay
    from armillary.lenses.rotary import kind_frequencies, rotary_kinds
    from armillary.theory.rotary import simulated_decay

    vectors = {"constant": "equal vectors", "gaussian": "Gaussian vectors, one draw", "repeated": "a repeated Gaussian"}
    drawn = []
    for kind in rotary_kinds(atlas):
        turning = np.array(kind_frequencies(atlas, kind))
        curves = {
            label: simulated_decay(name, turning, atlas.settings["length"])[0]  # type: ignore[arg-type]
            for name, label in vectors.items()
        }
        drawn.append(decay(curves, f"q.k over distance, {kind.name}"))
    return drawn
