"""Weights and what changing them does: weights, gaussian, intervene, map."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.commands.options import (
    AsJson,
    Folder,
    Html,
    Model,
    TrustRemoteCode,
    numbers,
    one_of,
    print_json,
    read_text,
)
from armillary.errors import ArmillaryError


def weights(
    model: Model,
    out: Annotated[Path, typer.Option(help="The folder to write; it must be new or empty.")],
    matrices: Annotated[
        bool, typer.Option(help="Also compare whole matrices (q, k, v, o, gate, up, down) with random ones.")
    ] = True,
    against: Annotated[
        str | None, typer.Option(help="random: also the spectra of Gaussian weights of the same shapes and norms.")
    ] = None,
    seed: Annotated[int, typer.Option(help="For --against random.")] = 0,
    html: Html = None,
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace what the folder holds.")] = False,
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
        track=terminal.progress,
    )
    if as_json:
        parts = {"heads": atlas.heads, **({"matrices": atlas.matrices} if matrices else {})}
        print_json({name: json.loads(tables.as_json(table)) for name, table in parts.items()})
    else:
        tables.show(tables.columns_of(atlas.heads, "spectra", None, None), title="Heads")
        if matrices:
            tables.show(tables.columns_of(atlas.matrices, "matrices", None, None), title="Matrices against random ones")
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
        write_page(html, f"The weights of {model}", drawn)
    typer.echo(f"{out}: look with  armillary heads {out} --columns all" + (f"; {html}" if html else ""), err=as_json)


def gaussian(
    folder: Folder,
    head: Annotated[str | None, typer.Option(help="LAYER.HEAD: its logits lag by lag, predicted and observed.")] = None,
    shrinkage: Annotated[
        float, typer.Option(help="S becomes (1-a) S + a (tr S/d) I before determinants are taken; this is a.")
    ] = 0.05,
    components: Annotated[int, typer.Option(help="Mutual information of so many leading components.")] = 16,
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
        tables.show(table)
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
        write_page(html, f"The Gaussian view of {atlas.attrs['model']['name']}", drawn)
        typer.echo(f"The figures are in {html}", err=as_json)


def intervene(
    model: Model,
    scale: Annotated[float | None, typer.Option(help="Multiply the spectra of W_q and W_k by this.")] = None,
    cut: Annotated[int | None, typer.Option(help="Keep so many of the largest singular values.")] = None,
    keep: Annotated[
        str | None,
        typer.Option(help="With --cut: top or rest. With --randomise: norm, spectrum or shape."),
    ] = None,
    randomise: Annotated[bool, typer.Option("--randomise", help="Random matrices in place of the weights.")] = False,
    remove: Annotated[
        str | None, typer.Option(help="position or content: that part of what the layers read; needs --atlas.")
    ] = None,
    atlas: Annotated[Path | None, typer.Option(help="With --remove: an atlas of this model, for the means.")] = None,
    parts: Annotated[str, typer.Option(help="With --cut and --randomise: which of q,k,v,o.")] = "q,k",
    layers: Annotated[str | None, typer.Option(help="Layers as in 0-3,7 (all by default).")] = None,
    heads: Annotated[str | None, typer.Option(help="Heads of those layers as in 0,2 (all by default).")] = None,
    seed: Annotated[int, typer.Option(help="For --randomise.")] = 0,
    text: Annotated[str | None, typer.Option(help="A text to try the change on.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A file that holds the text instead.")] = None,
    generate: Annotated[int, typer.Option(help="Go on with the text for so many tokens.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Attention maps before and after, into this HTML file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the changed model to this new folder.")] = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Change a model's attention and see what it does: loss, attention entropy, generated text, maps.

    --out writes the changed model as a folder of its own, to scan and compare. The original is never touched.
    """
    from armillary import interventions
    from armillary.models import load, load_tokenizer

    wanted = [name for name, given in (("--scale", scale), ("--cut", cut), ("--remove", remove)) if given is not None]
    wanted += ["--randomise"] if randomise else []
    if len(wanted) != 1:
        raise ArmillaryError("say what to change: one of --scale, --cut, --randomise and --remove")
    if text is None and prompt_file is None and out is None:
        raise ArmillaryError("say what for: --text or --prompt-file to try the change on, or --out to write it")
    if out is not None and remove is not None:
        raise ArmillaryError("--remove acts while the model runs and changes no weights: there is nothing to write")
    if out is not None and out.exists() and any(out.iterdir()):
        raise ArmillaryError(f"{out} is not empty: choose a new folder for --out")
    if (html is not None or generate) and text is None and prompt_file is None:
        raise ArmillaryError("--html and --generate need a text: give --text or --prompt-file")
    where: dict[str, Any] = {"layers": numbers("--layers", layers)}
    if remove is None:
        where["heads"] = numbers("--heads", heads)
    elif heads is not None:
        raise ArmillaryError("--remove changes what whole layers read: --heads does not apply")

    def change(loaded: Any) -> AbstractContextManager[Any]:
        if scale is not None:
            return interventions.scaled(loaded, scale, **where)
        chosen = tuple(part.strip() for part in parts.split(","))
        if cut is not None:
            return interventions.cut(loaded, cut, keep=keep or "top", parts=chosen, **where)  # type: ignore[arg-type]
        if randomise:
            kept: Any = keep or "norm"
            return interventions.randomised(loaded, keep=kept, parts=chosen, seed=seed, **where)
        if atlas is None:
            raise ArmillaryError("--remove needs --atlas DIR, an atlas of this model that holds the means")
        from armillary.atlas import open_atlas

        return interventions.without(loaded, remove, open_atlas(atlas), **where)  # type: ignore[arg-type]

    loaded = load(model, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(model, trust_remote_code=trust_remote_code) if _needs_words(text, prompt_file) else None
    if tokenizer is not None:
        _try_out(loaded, tokenizer, read_text(text, prompt_file), change, generate, html, as_json)
    if out is not None:
        with change(loaded):
            loaded.save_pretrained(out)
        _copy_tokenizer(model, out, trust_remote_code)
        typer.echo(f"The changed model is in {out}: armillary scan {out} ..., then armillary compare", err=as_json)


def _needs_words(text: str | None, file: Path | None) -> bool:
    return text is not None or file is not None


def _try_out(
    model: Any,
    tokenizer: Any,
    text: str,
    change: Callable[[Any], AbstractContextManager[Any]],
    generate: int,
    html: Path | None,
    as_json: bool,
) -> None:
    import json

    from armillary import tables
    from armillary.interventions.trial import trial

    found = trial(model, tokenizer, text, change, generate=generate)
    layers = found.layers()
    if as_json:
        losses = {name: {"loss": run.loss, "written": run.written} for name, run in vars(found).items()}
        print_json({**losses, "entropy": json.loads(tables.as_json(layers))})
    else:
        if found.before.loss is not None and found.after.loss is not None:
            typer.echo(f"loss per token (nats): {found.before.loss:.4f} before, {found.after.loss:.4f} after")
        tables.show(layers, title="Mean attention entropy (nats)")
        for name, run in (("before", found.before), ("after", found.after)):
            if run.written is not None:
                typer.echo(f"\n--- {name}\n{run.written}")
    if html is not None:
        from armillary.attention_map import attention_map
        from armillary.figures.maps import attention_maps
        from armillary.figures.page import write_page

        before = attention_maps(attention_map(model, tokenizer, text))
        with change(model):
            after = attention_maps(attention_map(model, tokenizer, text))
        before.update_layout(title_text="Before: attention from word to word")
        after.update_layout(title_text="After: attention from word to word")
        write_page(html, "Attention before and after", [before, after], text)
        typer.echo(f"The maps are in {html}", err=as_json)


def _copy_tokenizer(model: str, out: Path, trust_remote_code: bool) -> None:
    """A model without one (tokens only) is written without."""
    from armillary.models import load_tokenizer

    try:
        load_tokenizer(model, trust_remote_code=trust_remote_code).save_pretrained(out)
    except ArmillaryError:
        return


def map_attention(
    model: Model,
    text: Annotated[str | None, typer.Option(help="The text to look at.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A file that holds the text instead.")] = None,
    level: Annotated[str, typer.Option(help="word (pieces of a word added up) or token.")] = "word",
    layers: Annotated[str | None, typer.Option(help="Layers as in 0,5,11 or 0-3 (all by default).")] = None,
    heads: Annotated[str | None, typer.Option(help="Average over these heads, as in 0,2 (all by default).")] = None,
    head_weights: Annotated[
        str,
        typer.Option("--weights", help="Heads count alike (plain), or by the norm of their output matrix (output)."),
    ] = "plain",
    spans: Annotated[
        list[str] | None,
        typer.Option(help="Show only words in this piece of the text, or START:END in characters; repeat for more."),
    ] = None,
    rows: Annotated[int, typer.Option(help="How many of the strongest pairs to print for every layer.")] = 8,
    html: Html = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Print which words of a text attend to which, layer by layer, beside the cosines of their embeddings."""
    from armillary import tables
    from armillary.attention_map import attention_map, layer_masses, parse_span, strongest
    from armillary.models import load, load_tokenizer

    one_of("--level", level, ("word", "token"))
    one_of("--weights", head_weights, ("plain", "output"))
    prompt = read_text(text, prompt_file)
    found = attention_map(
        load(model, trust_remote_code=trust_remote_code),
        load_tokenizer(model, trust_remote_code=trust_remote_code),
        prompt,
        level=level,  # type: ignore[arg-type]
        layers=numbers("--layers", layers),
        heads=numbers("--heads", heads),
        weights=head_weights,  # type: ignore[arg-type]
        spans=[parse_span(span) for span in spans] if spans else None,
    )
    if as_json:
        print_json({"model": model, **found.as_dict()})
    else:
        tables.show(layer_masses(found), title="Where attention goes, means over the words shown")
        tables.show(strongest(found, rows), title="The strongest pairs of words")
    if html is not None:
        from armillary.figures.maps import attention_maps
        from armillary.figures.page import write_page

        write_page(html, f"Attention in {model}", [attention_maps(found)], prompt)
        typer.echo(f"The maps are in {html}", err=as_json)
