"""Spectra of the weights, the attention input as a Gaussian process, regimes: weights, gaussian, localization."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from armillary.anatomy.naming import recorded_title, title
from armillary.commands.options import (
    AsJson,
    Columns,
    Folder,
    Html,
    Model,
    NewFolder,
    print_json,
)
from armillary.commands.parameters import with_parameters
from armillary.errors import ArmillaryError
from armillary.scanning.options import WeighOptions

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from armillary.atlas.atlas import Atlas

# Imports inside functions: the program starts without what this command alone needs.

SHOWN = 70
"""Rows of a table on the terminal; --json has them all."""
CHANGES_SHOWN = 150
"""Rows of the table of changes, which has two for every head and one for every matrix."""


@with_parameters(WeighOptions)
def weights(
    model: Model,
    out: NewFolder,
    matrices: Annotated[
        bool, typer.Option(help="Also compare whole matrices (q, k, v, o, gate, up, down) with random ones.")
    ] = True,
    against: Annotated[
        str | None,
        typer.Option(
            help="A model of the same shape (a base model, an earlier checkpoint): also print how the weights changed "
            "since. random: also write the spectra of Gaussian weights of the same shapes and norms."
        ),
    ] = None,
    power_law: Annotated[
        bool,
        typer.Option("--power-law", help="Also fit power laws to the spectra of whole matrices (package powerlaw)."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of random weights.", min=0)] = 0,
    delta: Annotated[bool, typer.Option("--delta", help="With --adapter: the adapter's changes alone.")] = False,
    vocabulary: Annotated[
        bool, typer.Option(help="Also say what heads write, in tokens (the embeddings are read once a layer).")
    ] = True,
    html: Html = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Compute the spectra of every head and matrix from the weights, a layer at a time, without loading the model."""
    from armillary.scanning.weights import weigh
    from armillary.terminal.progress import shown_progress

    with shown_progress("reading weights") as progress:
        atlas = weigh(
            model,
            out=out,
            matrices=matrices,
            against=against,
            seed=seed,
            delta=delta,
            vocabulary=vocabulary,
            power_law=power_law,
            progress=progress,
            **options,
        )
    _print(atlas, matrices, as_json)
    if html is not None:
        from armillary.figures import write_page

        write_page(html, f"The weights of {title(model)}", _weight_figures(atlas, matrices))
    typer.echo(f"{out}: see  armillary heads {out} --columns all" + (f"; {html}" if html else ""), err=as_json)


def _print(atlas: "Atlas", matrices: bool, as_json: bool) -> None:
    """The tables, on the terminal or as JSON."""
    import json

    from armillary.terminal import tables

    if as_json:
        parts = {"heads": atlas.heads, **({"matrices": atlas.matrices} if matrices else {})}
        parts |= {"weight_changes": atlas.weight_changes} if "against" in atlas.attrs else {}
        print_json({name: json.loads(tables.as_json(table)) for name, table in parts.items()})
    else:
        tables.show(tables.columns_of(atlas.heads, "heads", usual="weights"), title="Heads", limit=SHOWN)
        if matrices:
            shown = tables.columns_of(atlas.matrices, "matrices")
            tables.show(shown, title="Matrices against random ones", limit=SHOWN)
        if "against" in atlas.attrs:
            shown = tables.columns_of(atlas.weight_changes, "weight_changes")
            since = recorded_title(atlas.attrs["against"])
            tables.show(shown, title=f"Change from {since}: heads (qk, ov) and matrices", limit=CHANGES_SHOWN)
        for note in atlas.attrs["notes"]:
            typer.echo(note)


def _weight_figures(atlas: "Atlas", matrices: bool) -> "list[go.Figure]":
    """Maps and spectra of the heads; with `matrices` also the first, middle and last layer against random ones."""
    from armillary.figures import spectral

    spectra = atlas.group("spectral")
    drawn = [spectral.head_maps(atlas.heads)]
    drawn += [spectral.head_singular_values(spectra, product) for product in ("qk", "ov")]
    if matrices:
        drawn.append(spectral.outliers_by_layer(atlas.matrices))
        layers = sorted({0, len(spectra["layer"]) // 2, len(spectra["layer"]) - 1})
        singular_values = atlas.group("matrices")
        drawn += [spectral.matrices_against_random(singular_values, atlas.matrices, layer) for layer in layers]
    if "against" in atlas.attrs:
        drawn.append(spectral.change_maps(atlas.weight_changes))
    return drawn


def gaussian(
    folder: Folder,
    head: Annotated[
        str | None, typer.Option(help="This head's logits by lag (L3H5 or 3.5), predicted and observed.")
    ] = None,
    shrinkage: Annotated[
        float,
        typer.Option(help="S becomes (1-a) S + a (tr S/d) I before determinants are taken; this is a.", min=0, max=1),
    ] = 0.05,
    components: Annotated[int, typer.Option(help="Mutual information of this many leading components.", min=1)] = 16,
    columns: Columns = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Print the attention input as a Gaussian process: spectrum, mutual information, predicted and observed logits.

    Needs an atlas with covariances; for the logits, scan with --streams positions,attention,covariance,lags.
    """
    from armillary.atlas.atlas import open_atlas
    from armillary.lenses import gaussian as lens
    from armillary.probe.dossier import head_row, parse_head
    from armillary.terminal import tables

    atlas = open_atlas(folder)
    if head is not None:
        layer, number = parse_head(head)
        head_row(atlas, layer, number)
        table = lens.logit_predictions(atlas).query(f"layer == {layer} and head == {number}")
    else:
        table = lens.layer_table(atlas, shrinkage, components)
    if as_json:
        typer.echo(tables.as_json(table))
    else:
        tables.show(table if head is not None else tables.columns_of(table, "gaussian", columns))
        if head is None and not atlas.has("pairs"):
            typer.echo("Predicting logits needs a scan with the stream 'lags'.", err=True)
    if html is not None:
        from armillary.figures import gaussian as figures
        from armillary.figures import write_page

        layers = lens.layer_table(atlas, shrinkage, components)
        drawn = [figures.information_by_lag(layers)] if "mi_1" in layers else []
        drawn += [figures.predicted_variances(lens.logit_predictions(atlas))] if atlas.has("pairs") else []
        if not drawn:
            raise ArmillaryError(
                "there is nothing to draw without the stream 'lags'", advice="scan with --streams ...,lags"
            )
        write_page(html, f"The Gaussian view of {recorded_title(atlas.attrs['model'])}", drawn)
        typer.echo(f"The figures are in {html}", err=as_json)


def localization(
    folder: Folder,
    head: Annotated[
        str | None, typer.Option(help="This head's rho by position (L3H5 or 3.5), predicted and observed.")
    ] = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Print where attention can propagate a signal: by layer, regimes, entropy and its minimum, rank-one distances."""
    from armillary.atlas.atlas import open_atlas
    from armillary.lenses import localization as lens
    from armillary.probe.dossier import head_row, parse_head
    from armillary.terminal import tables

    atlas = open_atlas(folder)
    if head is not None:
        layer, number = parse_head(head)
        head_row(atlas, layer, number)
        table = lens.propagation_table(atlas).query(f"layer == {layer} and head == {number}")
    else:
        table = lens.layer_table(atlas)
    if as_json:
        typer.echo(tables.as_json(table))
    else:
        tables.show(table)
        if head is None:
            for line in (lens.fit_sentence(atlas), lens.EFFECTIVE if lens.is_effective(atlas) else ""):
                typer.echo(line) if line else None
    if html is not None:
        from armillary.figures import write_page
        from armillary.figures.localization import propagation_curves, regime_map

        drawn = [regime_map(atlas.heads), propagation_curves(lens.propagation_table(atlas))]
        write_page(html, f"Localization in {recorded_title(atlas.attrs['model'])}", drawn)
        typer.echo(f"The figures are in {html}", err=as_json)
