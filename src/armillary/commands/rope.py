"""Rotary frequencies: who uses them, and what happens without some: frequencies, rope."""

from typing import TYPE_CHECKING, Annotated

import typer

from armillary.commands.options import (
    AsJson,
    Folder,
    Html,
    Model,
    OneLayer,
    TrustRemoteCode,
    print_json,
    say_if_too_long,
)
from armillary.errors import ArmillaryError
from armillary.naming import recorded_title, title

if TYPE_CHECKING:
    import pandas as pd

    from armillary.lenses.kinds import LayerKind


def frequencies(
    folder: Folder,
    head: Annotated[str | None, typer.Option(help="LAYER.HEAD: this head's frequencies, one by one.")] = None,
    layer: OneLayer = None,
    share: Annotated[
        float, typer.Option(help="How much of the logits' variance the recommended p keeps.", min=0, max=1)
    ] = 0.99,
    text: Annotated[str | None, typer.Option(help="With --head and --html: this text, token by token.")] = None,
    model: Annotated[str | None, typer.Option(help="The model, if it is not where the scan found it.")] = None,
    trust_remote_code: TrustRemoteCode = False,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Print which rotary frequencies the heads use, the bands they stand out with, and the p that p-RoPE could have."""
    import json

    from armillary import tables
    from armillary.atlas import open_atlas
    from armillary.dossier import head_row, parse_head
    from armillary.lenses import rotary as lens

    if head is not None and layer is not None:
        raise ArmillaryError("--head names a layer already: leave --layer out")
    if text is not None and (head is None or html is None):
        raise ArmillaryError("--text draws one head on a text: give --head and --html with it")
    atlas = open_atlas(folder)
    table = lens.frequency_table(atlas)
    recommended = lens.recommended_by_kind(atlas, share)
    found = lens.bands(atlas)
    if head is not None:
        at, number = parse_head(head)
        head_row(atlas, at, number)
        table = table[(table["layer"] == at) & (table["head"] == number)]
        found = found[(found["layer"] == at) & (found["head"] == number)]
    elif layer is not None:
        table, found = tables.select(table, layer=layer), found[found["layer"] == layer]
    if as_json:
        parts = {"frequencies": table, "bands": found}
        print_json(
            {
                "recommended_p": lens.recommended_rows(recommended),
                **{name: json.loads(tables.as_json(part)) for name, part in parts.items()},
            }
        )
    else:
        if head is not None:
            tables.show(table.drop(columns=["layer", "head"]), title=f"The frequencies of head {head}, fastest first")
        else:
            for kind in lens.rotary_kinds(atlas):
                _print_frequencies(kind, table[table["layer"].isin(kind.layers)])
        tables.show(found, title="Bands: where a head spends its norm", limit=20)
        for kind, best in recommended:
            where = "" if kind.alone else f" of the {kind.name}"
            typer.echo(
                f"Recommended p{where}: {best.p:.2f} ({best.kept} of {best.frequencies} frequencies turn); the others "
                f"standing still would change the logits by {best.cost:.2%} of their variance, at most "
                f"{best.worst_cost:.2%} (head {best.worst_head})."
            )
    if html is not None:
        from armillary.figures import rotary as figures
        from armillary.figures import write_page

        whole = lens.frequency_table(atlas)
        layers = (
            [layer] if layer is not None else [at] if head is not None else sorted(map(int, whole["layer"].unique()))
        )
        drawn = [*figures.frequencies_by_kind(whole), *(figures.frequencies_by_head(whole, at) for at in layers)]
        if text is not None and head is not None:
            from armillary.models import load_for, load_tokenizer

            source = model or atlas.attrs["model"]["name"]
            loaded = load_for(atlas.attrs["model"], source, trust_remote_code=trust_remote_code)
            tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code)
            say_if_too_long(loaded, tokenizer, text)
            used = lens.token_frequencies(loaded, tokenizer, at, number, text)
            lengths = {"lengths of q": used.q, "lengths of k": used.k}
            drawn.insert(0, figures.token_usage(lengths, list(used.tokens), f"Head {head}, token by token"))
        write_page(html, f"Rotary frequencies of {recorded_title(atlas.attrs['model'])}", drawn)
        typer.echo(f"The figures are in {html}", err=as_json)


def _print_frequencies(kind: "LayerKind", table: "pd.DataFrame") -> None:
    """The frequencies of one kind of layer, means over the heads that are asked about."""
    from armillary import tables
    from armillary.lenses.kinds import spans

    if table.empty:
        return
    measures = ["turns", "q_norm", "k_norm", "v_norm", "share", "change"]
    means = table.groupby(["radians", "frequency"], dropna=False)[measures].mean().reset_index()
    shown = means.sort_values("radians", ascending=False)[["frequency", "radians", *measures]]
    of = "" if kind.alone else f" of the {kind.name}: {spans(sorted(set(table['layer'].astype(int))))}"
    still = " (0 radians: channels that never turn)" if (shown["radians"] == 0).any() else ""
    tables.show(shown, title=f"Frequencies{of}, fastest first, means over heads{still}")


def rope(
    model: Model,
    sweep: Annotated[str, typer.Option(help="p=1,0.9,...: fractions that turn; or base=..., partial=...")] = (
        "p=1,0.9,0.75,0.5,0.25,0"
    ),
    corpus: Annotated[str, typer.Option(help="Text, as for `armillary scan`.")] = "builtin:prose",
    of_base: Annotated[
        float | None, typer.Option(help="Change only the layers that turn with this base; the others stay.")
    ] = None,
    length: Annotated[int | None, typer.Option(help="Tokens in a block.", min=2)] = None,
    sequences: Annotated[int, typer.Option(help="How many blocks.", min=1)] = 32,
    html: Html = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Run a model with other rotary frequencies and print the loss of each, beside what their shares foretold."""
    import json

    import numpy as np

    from armillary import tables, terminal
    from armillary.corpora import split_sources
    from armillary.interventions.frequencies import refuse_without_rotary
    from armillary.lenses.rotary import kind_frequencies, recommended_by_kind, recommended_rows, rotary_kinds
    from armillary.models import load, load_tokenizer
    from armillary.progress import scan_progress
    from armillary.scanning import needs_tokenizer, scan
    from armillary.sweeping import check_sweep, parse_sweep
    from armillary.sweeping import sweep as run_sweep

    what, values = parse_sweep(sweep)
    loaded = load(model, trust_remote_code=trust_remote_code)
    refuse_without_rotary(loaded)
    check_sweep(loaded, what, values, of_base=of_base)
    tokenizer = load_tokenizer(model, trust_remote_code=trust_remote_code) if needs_tokenizer(corpus) else None
    with scan_progress() as bar:
        atlas = scan(
            loaded,
            split_sources(corpus),
            tokenizer=tokenizer,
            length=length,
            sequences=sequences,
            streams=("attention", "chunks"),
            progress=bar,
        )
    found = run_sweep(loaded, atlas, what, values, of_base=of_base, track=terminal.progress)
    best = recommended_by_kind(atlas)
    if as_json:
        print_json(
            {
                "swept": what,
                "settings": json.loads(tables.as_json(found.table)),
                "of_base": of_base,
                "recommended_p": recommended_rows(best),
            }
        )
    else:
        costs = "; costs are foretold changes of the logits" if what == "p" else ""
        tables.show(found.table, title=f"Loss in nats per token{costs}")
        for kind, one in best:
            where = "" if kind.alone else f" of the {kind.name}"
            typer.echo(f"Recommended p{where}: {one.p:.2f}, for {one.cost:.2%} of the logits' variance.")
    if html is not None:
        from armillary.figures import rotary as figures
        from armillary.figures import write_page
        from armillary.theory import rotary as theory

        vectors = {
            "constant": "equal vectors",
            "gaussian": "Gaussian vectors, one draw",
            "repeated": "a repeated Gaussian",
        }
        drawn = [figures.sweep_curves(what, found.table)]
        for layers in rotary_kinds(atlas):
            turning = np.array(kind_frequencies(atlas, layers))
            curves = {
                label: theory.simulated_decay(name, turning, atlas.settings["length"])[0]  # type: ignore[arg-type]
                for name, label in vectors.items()
            }
            drawn.append(figures.decay(curves, f"q.k over distance, {layers.name}"))
        write_page(html, f"Rotary frequencies of {title(model)}", drawn)
        typer.echo(f"The figures are in {html}", err=as_json)
