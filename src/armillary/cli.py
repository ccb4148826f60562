"""The commands. Each reads its arguments, calls the library and prints; torch is imported only when needed."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from armillary import __version__
from armillary.errors import ArmillaryError

app = typer.Typer(
    name="armillary",
    help="What every attention head of a transformer does, and why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Model = Annotated[
    str, typer.Argument(help="A model folder (config.json and safetensors) or a hub id.", metavar="MODEL")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
TrustRemoteCode = Annotated[bool, typer.Option(help="Run Python code that comes with the checkpoint.")]
AllowNotFinite = Annotated[bool, typer.Option(help="Go on when weights hold NaN or infinite numbers.")]


@app.callback(invoke_without_command=True)
def armillary(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def inspect(
    model: Model,
    weights: Annotated[bool, typer.Option(help="Also read the weights, a layer at a time: are all finite?")] = False,
    verify: Annotated[bool, typer.Option(help="Also load the model and check what Armillary sees against it.")] = False,
    allow_not_finite: AllowNotFinite = False,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Print what a model's attention is made of: layers, heads, positions, norms, windows.

    A folder is read without loading its weights: only the headers of its safetensors files.
    """
    from armillary import terminal
    from armillary.anatomy import describe
    from armillary.models import WhenNotFinite, load, not_finite_weights, refuse_not_finite

    anatomy = describe(model, trust_remote_code=trust_remote_code)
    notes: list[str] = []
    if weights:
        if allow_not_finite:
            notes += [f"not finite: {what}" for what in not_finite_weights(model)]
        else:
            refuse_not_finite(model)
        notes = notes or ["all weights are finite"]
    checked = None
    if verify:
        from armillary.verification import verify as run_verification

        allowed: WhenNotFinite = "allow" if allow_not_finite else "refuse"
        checked = run_verification(load(model, trust_remote_code=trust_remote_code, not_finite=allowed))
    if as_json:
        _print_json(
            {
                "model": model,
                **anatomy.as_dict(),
                "notes": notes,
                **({"verified": checked.as_dict()} if checked else {}),
            }
        )
    else:
        terminal.print_anatomy(model, anatomy, notes)
        if checked:
            terminal.print_verification(checked)
    if checked and not checked.passed:
        raise typer.Exit(1)


@app.command()
def doctor(
    verify: Annotated[bool, typer.Option(help="Check every family here and now, on small random models.")] = False,
    record: Annotated[Path | None, typer.Option(help="With --verify: write the results to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print versions, devices, and the supported families with what was verified for each."""
    from armillary import terminal, verified

    checks = verified.check_all(progress=terminal.progress) if verify else verified.shipped()
    if record is not None:
        if not verify:
            raise ArmillaryError("--record writes the results of --verify: give both")
        verified.write(checks, record)
    if as_json:
        _print_json({"versions": verified.versions(), "device": verified.devices(), "families": checks})
    else:
        terminal.print_doctor(checks)
    if verify and not all(check.passed for check in checks.samples.values()):
        raise typer.Exit(1)


Folder = Annotated[Path, typer.Argument(help="A folder that `armillary scan` wrote.", metavar="DIR")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")]
Sort = Annotated[str | None, typer.Option(help="Sort by this column, largest first (-column: smallest first).")]
Columns = Annotated[str | None, typer.Option(help="The columns to print, separated by commas, or 'all'.")]
OneLayer = Annotated[int | None, typer.Option("--layer", help="Only this layer.")]


@app.command()
def scan(
    model: Model,
    out: Annotated[Path, typer.Option(help="The folder to write; it must be new or empty.")],
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            help="Text: a file, a folder, a .jsonl, builtin:prose, builtin:code, builtin:random or "
            "hf:NAME[:config]:SPLIT:FIELD; join several with + . Given twice or more: an atlas for each, in OUT/NAME."
        ),
    ] = None,
    length: Annotated[int | None, typer.Option(help="Tokens in a block (128, or what the model has room for).")] = None,
    sequences: Annotated[int, typer.Option(help="How many blocks.")] = 64,
    skip: Annotated[int, typer.Option(help="First positions left out of means (attention sinks).")] = 1,
    batch: Annotated[int, typer.Option(help="Blocks that go through the model together.")] = 8,
    seed: Annotated[int, typer.Option(help="For builtin:random and the order of built-in documents.")] = 0,
    bos: Annotated[
        str, typer.Option(help="Begin blocks with special tokens: auto (as the tokenizer), always, never.")
    ] = "auto",
    by_document: Annotated[
        bool, typer.Option(help="No block mixes two documents (needed for cluster measures).")
    ] = False,
    streams: Annotated[
        str | None,
        typer.Option(
            help="What to keep, separated by commas: positions, attention, chunks, covariance, constituents, lags "
            "(all but the last by default)."
        ),
    ] = None,
    second_pass: Annotated[int, typer.Option(help="Blocks that run again for the constituents.")] = 64,
    when_nan: Annotated[str, typer.Option(help="When a block gives NaN: stop or skip it.")] = "stop",
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted scan.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace what the folder holds.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")] = "auto",
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Run text through a model and keep what its attention does, in a folder that other commands read."""
    from armillary.corpora import folder_names, split_sources
    from armillary.progress import ScanBar
    from armillary.scanning import scan as run_scan

    _one_of("--bos", bos, ("auto", "always", "never"))
    _one_of("--when-nan", when_nan, ("stop", "skip"))
    chosen = corpus or ["builtin:prose"]
    places = [out] if len(chosen) == 1 else [out / name for name in folder_names(chosen)]
    kept = {"streams": tuple(streams.split(","))} if streams else {}
    for source, place in zip(chosen, places, strict=True):
        with ScanBar() as bar:
            run_scan(
                model,
                split_sources(source),
                out=place,
                resume=resume,
                overwrite=overwrite,
                device=device,
                dtype=dtype,
                trust_remote_code=trust_remote_code,
                progress=bar,
                length=length,
                sequences=sequences,
                skip=skip,
                batch=batch,
                seed=seed,
                bos=bos,
                by_document=by_document,
                when_nan=when_nan,
                second_pass=second_pass,
                **kept,
            )
        typer.echo(f"{place}: look with  armillary heads {place}  and  armillary layers {place}")


@app.command()
def heads(
    folder: Folder,
    sort: Sort = None,
    layer: OneLayer = None,
    columns: Columns = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Print a row for every head: what its attention looks like."""
    _print_table(folder, "heads", sort, layer, columns, as_json, as_csv)


@app.command()
def layers(
    folder: Folder,
    sort: Sort = None,
    layer: OneLayer = None,
    columns: Columns = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Print a row for every point of the residual stream, from the embeddings to the last layer."""
    _print_table(folder, "layers", sort, layer, columns, as_json, as_csv)


@app.command()
def show(
    folder: Folder,
    head: Annotated[str, typer.Argument(help="LAYER.HEAD, as in 3.5", metavar="L.H")],
    text: Annotated[str | None, typer.Option(help="A text to look at; it needs the model.")] = None,
    model: Annotated[str | None, typer.Option(help="The model, if it is not where the scan found it.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the panels to this HTML file.")] = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Print a head's dossier: its numbers, its constituents, and what it attends to in a text and why."""
    from armillary import figures, tables
    from armillary.atlas import open_atlas
    from armillary.dossier import dossier, head_row, parse_head
    from armillary.lenses.constituents import text_constituents
    from armillary.models import load_for, load_tokenizer

    atlas = open_atlas(folder)
    layer, number = parse_head(head)
    head_row(atlas, layer, number)
    if html is not None and text is None:
        raise ArmillaryError("--html draws the head on a text: give one with --text")
    found = None
    if text is not None:
        source = model or atlas.attrs["model"]["name"]
        loaded = load_for(atlas.attrs["model"], source, trust_remote_code=trust_remote_code)
        tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code)
        found = text_constituents(atlas, loaded, tokenizer, layer, number, text)
    told = dossier(atlas, layer, number, found)
    tables.show_dossier(told)
    if html is not None and found is not None:
        figures.write_page(html, f"Head {layer}.{number}", [figures.constituents(found)], text or "")
        typer.echo(f"The panels are in {html}")


@app.command()
def compare(
    folders: Annotated[
        list[Path], typer.Argument(help="Two or more folders that `armillary scan` wrote.", metavar="A B ...")
    ],
    rows: Annotated[int, typer.Option(help="How many of the largest changes to print.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Print atlases side by side, layer means of every measure; of two, also what changed, largest changes first."""
    from armillary import tables
    from armillary.atlas import open_atlas
    from armillary.comparison import compare as run_comparison
    from armillary.comparison import side_by_side

    if len(folders) < 2:
        raise ArmillaryError("compare needs two folders or more")
    atlases = [open_atlas(folder) for folder in folders]
    beside = side_by_side(atlases)
    found = run_comparison(*atlases) if len(atlases) == 2 else None
    if as_json:
        parts = {"side_by_side": json.loads(tables.as_json(beside))}
        if found is not None:
            changes = {"heads": found.heads, "layers": found.layers}
            parts |= {name: json.loads(tables.as_json(table)) for name, table in changes.items()}
        _print_json({"scans": found.scans if found else [], **parts})
        return
    for line in found.scans if found else []:
        typer.echo(line)
    tables.show(beside, title="Side by side, means over layers")
    if found is not None:
        tables.show(found.heads, title="Heads, the largest changes first", limit=rows)
        tables.show(found.layers, title="Layers, the largest changes first", limit=rows)


@app.command()
def demo(out: Annotated[Path | None, typer.Option(help="Keep the atlas in this folder.")] = None) -> None:
    """Scan the small rotary model that comes with Armillary on the built-in prose, and show its heads."""
    from armillary import tables
    from armillary.progress import ScanBar
    from armillary.scanning import scan as run_scan
    from armillary.training.bundled import bundled

    with ScanBar() as bar:
        atlas = run_scan(bundled("llama"), "builtin:prose", out=out, progress=bar)
    shown = tables.columns_of(atlas.heads, "heads", None, None)
    tables.show(shown, title="A small rotary language model, head by head, on Python's own documentation")
    if out is not None:
        typer.echo(f"The atlas is in {out}: armillary heads {out} --sort prev_mass")


def _print_table(
    folder: Path, name: str, sort: str | None, layer: int | None, columns: str | None, as_json: bool, as_csv: bool
) -> None:
    from armillary import tables
    from armillary.atlas import open_atlas

    table = tables.select(getattr(open_atlas(folder), name), sort=sort, layer=layer)
    if columns is not None or not (as_json or as_csv):
        table = tables.columns_of(table, name, columns, sort)
    if as_json:
        typer.echo(tables.as_json(table))
    elif as_csv:
        typer.echo(table.to_csv(index=False), nl=False)
    else:
        tables.show(table)


def _one_of(option: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise ArmillaryError(f"{option} {given} is not known: it can be {', '.join(allowed)}")


def _print_json(value: Any) -> None:
    from dataclasses import asdict, is_dataclass

    def plain(item: Any) -> Any:
        if is_dataclass(item) and not isinstance(item, type):
            return asdict(item)
        return str(item)

    typer.echo(json.dumps(value, default=plain, indent=2))


def main() -> None:
    """The program: a user's mistake is one sentence on standard error and exit code 2."""
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        app()
    except ArmillaryError as error:
        typer.echo(f"armillary: {error}", err=True)
        sys.exit(2)
    except SystemExit as ended:
        if ended.code == 130:  # Ctrl-C
            typer.echo("armillary: stopped; what was finished is kept, and a scan goes on with --resume", err=True)
        raise
