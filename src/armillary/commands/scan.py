"""Text through a model into an atlas: scan, demo."""

from pathlib import Path
from typing import Annotated

import typer

from armillary.commands.options import Model, TrustRemoteCode, one_of


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
            help="What to keep, separated by commas: positions, attention, chunks, covariance, constituents, patterns, "
            "lags (all but the last by default)."
        ),
    ] = None,
    second_pass: Annotated[int, typer.Option(help="Blocks that run again for constituents and patterns.")] = 64,
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

    one_of("--bos", bos, ("auto", "always", "never"))
    one_of("--when-nan", when_nan, ("stop", "skip"))
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
