"""Text through a model into an atlas: scan, demo."""

from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.commands.engines import Address, DeviceMap, EngineOption, Threads, Workers
from armillary.commands.options import Model, TrustRemoteCode, check_shard, one_of


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
    length: Annotated[
        int | None, typer.Option(help="Tokens in a block (128, or what the model has room for).", min=2)
    ] = None,
    sequences: Annotated[int, typer.Option(help="How many blocks.", min=1)] = 64,
    skip: Annotated[int, typer.Option(help="First positions left out of means (attention sinks).", min=0)] = 1,
    batch: Annotated[int, typer.Option(help="Blocks that go through the model together.", min=1)] = 8,
    shard: Annotated[
        str,
        typer.Option(
            callback=check_shard,
            help="Blocks that are one piece of work, kept and merged as one; auto: by the model's size.",
        ),
    ] = "auto",
    seed: Annotated[int, typer.Option(help="For builtin:random and the order of built-in documents.", min=0)] = 0,
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
    second_pass: Annotated[int, typer.Option(help="Blocks that run again for constituents and patterns.", min=1)] = 64,
    when_nan: Annotated[str, typer.Option(help="When a block gives NaN: stop or skip it.")] = "stop",
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted scan.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace what the folder holds.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")] = "auto",
    device_map: DeviceMap = None,
    engine: EngineOption = "local",
    workers: Workers = 1,
    threads: Threads = None,
    address: Address = None,
    part: Annotated[
        str | None,
        typer.Option(help="Only a part of the work, 3/16 for the third of sixteen; `armillary merge` joins them."),
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Run text through a model and keep what its attention does, in a folder that other commands read."""
    from armillary.corpora import folder_names, split_sources
    from armillary.corpus import check_corpus
    from armillary.engines import ENGINES, opened
    from armillary.progress import scan_progress
    from armillary.scanning import scan as run_scan
    from armillary.scanning import scan_part
    from armillary.shards import parse_part
    from armillary.text_loss import sentence

    one_of("--engine", engine, ENGINES)
    if part is not None:
        parse_part(part)
    one_of("--bos", bos, ("auto", "always", "never"))
    one_of("--when-nan", when_nan, ("stop", "skip"))
    chosen = corpus or ["builtin:prose"]
    places = [out] if len(chosen) == 1 else [out / name for name in folder_names(chosen)]
    for source in chosen if len(chosen) > 1 else ():
        check_corpus(split_sources(source))  # all of them before the first is scanned
    kept: dict[str, Any] = {} if streams is None else {"streams": tuple(name.strip() for name in streams.split(","))}
    with opened(engine, workers, threads, address) as started:  # the model is loaded once for all corpora
        for source, place in zip(chosen, places, strict=True):
            loss = ""
            with scan_progress() as bar:
                asked: dict[str, Any] = dict(
                    out=place,
                    resume=resume,
                    overwrite=overwrite,
                    device=device,
                    dtype=dtype,
                    device_map=device_map,
                    trust_remote_code=trust_remote_code,
                    engine=started,
                    progress=bar,
                    length=length,
                    sequences=sequences,
                    skip=skip,
                    batch=batch,
                    shard=None if shard == "auto" else int(shard),
                    seed=seed,
                    bos=bos,
                    by_document=by_document,
                    when_nan=when_nan,
                    second_pass=second_pass,
                    **kept,
                )
                if part is None:
                    loss = sentence(run_scan(model, split_sources(source), **asked).attrs.get("loss"))
                    told = f"{place}: look with  armillary heads {place}  and  armillary layers {place}"
                else:
                    scan_part(model, split_sources(source), part=part, **asked)
                    told = f"{place}: part {part}; when all are there:  armillary merge PART PART ... --out DIR"
            if loss:
                typer.echo(loss)
            typer.echo(told)


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write; a demo that is there is shown again.")] = Path(
        "armillary-demo"
    ),
) -> None:
    """Scan the small rotary model that comes with Armillary on the built-in prose, show its heads, write a report."""
    from armillary import tables
    from armillary.progress import scan_progress
    from armillary.report import write_report
    from armillary.scanning import scan as run_scan
    from armillary.training.bundled import bundled

    with scan_progress() as bar:
        atlas = run_scan(bundled("llama"), "builtin:prose", out=out, resume=True, progress=bar)
    shown = tables.columns_of(atlas.heads, "heads", None, None)
    tables.show(shown, title="A small rotary language model, head by head, on Python's own documentation")
    page = write_report(out)
    typer.echo(f"\nThe same while you type:  armillary view {out}\nTo read, in a browser:  {page.resolve()}")
