"""Spectra of the weights, and the attention input as a Gaussian process: weights, gaussian."""

from pathlib import Path
from typing import Annotated

import typer

from armillary.commands.engines import Address, EngineOption, Threads, Workers
from armillary.commands.options import AsJson, Columns, Folder, Html, Model, TrustRemoteCode, one_of, print_json
from armillary.errors import ArmillaryError
from armillary.naming import recorded_title, title

SHOWN = 70
"""Rows of a table on the terminal; --json has them all."""


def weights(
    model: Model,
    out: Annotated[Path, typer.Option(help="The folder to write; it must be new or empty.")],
    matrices: Annotated[
        bool, typer.Option(help="Also compare whole matrices (q, k, v, o, gate, up, down) with random ones.")
    ] = True,
    against: Annotated[
        str | None, typer.Option(help="random: also the spectra of Gaussian weights of the same shapes and norms.")
    ] = None,
    seed: Annotated[int, typer.Option(help="For --against random.", min=0)] = 0,
    html: Html = None,
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace what the folder holds.")] = False,
    engine: EngineOption = "local",
    workers: Workers = 1,
    threads: Threads = None,
    address: Address = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Spectra of every head and matrix from the weights alone, read a layer at a time; no model is loaded."""
    import json

    from armillary import tables, terminal
    from armillary.weighing import weigh

    if against is not None:
        one_of("--against", against, ("random",))
    atlas = weigh(
        model,
        out=out,
        matrices=matrices,
        against="random" if against else None,
        seed=seed,
        resume=resume,
        overwrite=overwrite,
        trust_remote_code=trust_remote_code,
        engine=engine,
        workers=workers,
        threads=threads,
        address=address,
        track=terminal.progress,
    )
    if as_json:
        parts = {"heads": atlas.heads, **({"matrices": atlas.matrices} if matrices else {})}
        print_json({name: json.loads(tables.as_json(table)) for name, table in parts.items()})
    else:
        tables.show(tables.columns_of(atlas.heads, "spectra", None, None), title="Heads", limit=SHOWN)
        if matrices:
            shown = tables.columns_of(atlas.matrices, "matrices", None, None)
            tables.show(shown, title="Matrices against random ones", limit=SHOWN)
    if html is not None:
        from armillary.figures import spectral, write_page

        spectra = atlas.group("spectral")
        drawn = [spectral.head_maps(atlas.heads)]
        drawn += [spectral.head_singular_values(spectra, product) for product in ("qk", "ov")]
        if matrices:
            drawn.append(spectral.outliers_by_layer(atlas.matrices))
            layers = sorted({0, len(spectra["layer"]) // 2, len(spectra["layer"]) - 1})
            found = atlas.group("matrices")
            drawn += [spectral.matrices_against_random(found, atlas.matrices, layer) for layer in layers]
        write_page(html, f"The weights of {title(model)}", drawn)
    typer.echo(f"{out}: look with  armillary heads {out} --columns all" + (f"; {html}" if html else ""), err=as_json)


def gaussian(
    folder: Folder,
    head: Annotated[str | None, typer.Option(help="LAYER.HEAD: its logits lag by lag, predicted and observed.")] = None,
    shrinkage: Annotated[
        float,
        typer.Option(help="S becomes (1-a) S + a (tr S/d) I before determinants are taken; this is a.", min=0, max=1),
    ] = 0.05,
    components: Annotated[int, typer.Option(help="Mutual information of so many leading components.", min=1)] = 16,
    columns: Columns = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Print the attention input as a Gaussian process: its shape, mutual information, logits predicted and observed.

    Needs an atlas with covariances; for the logits scan with --streams positions,attention,covariance,lags.
    """
    from armillary import tables
    from armillary.atlas import open_atlas
    from armillary.dossier import head_row, parse_head
    from armillary.lenses import gaussian as lens

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
        tables.show(table if head is not None else tables.columns_of(table, "gaussian", columns, None))
        if head is None and not atlas.has("pairs"):
            typer.echo("Logits are not predicted: that needs a scan with the stream 'lags'.", err=True)
    if html is not None:
        from armillary.figures import gaussian as figures
        from armillary.figures import write_page

        layers = lens.layer_table(atlas, shrinkage, components)
        drawn = [figures.information_by_lag(layers)] if "mi_1" in layers else []
        drawn += [figures.predicted_variances(lens.logit_predictions(atlas))] if atlas.has("pairs") else []
        if not drawn:
            raise ArmillaryError("there is nothing to draw without the stream 'lags': scan with --streams ...,lags")
        write_page(html, f"The Gaussian view of {recorded_title(atlas.attrs['model'])}", drawn)
        typer.echo(f"The figures are in {html}", err=as_json)


def localization(
    folder: Folder,
    head: Annotated[str | None, typer.Option(help="LAYER.HEAD: rho by place, predicted and observed.")] = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Print where attention can pass a signal: regimes, entropy and its least, rank-one distances, by layer."""
    from armillary import tables
    from armillary.atlas import open_atlas
    from armillary.dossier import head_row, parse_head
    from armillary.lenses import localization as lens

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
