"""Parts of a scan into one atlas: merge."""

from pathlib import Path
from typing import Annotated

import typer

from armillary.commands.engines import Address, DeviceMap, EngineOption, Threads, Workers
from armillary.commands.options import TrustRemoteCode


def merge(
    parts: Annotated[
        list[Path], typer.Argument(help="Folders that `armillary scan --part` wrote, in any order.", metavar="PART...")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write; it must be new or empty.")],
    model: Annotated[
        str | None, typer.Option(help="Where the model is now, if not where the parts found it.", metavar="MODEL")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted merge.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace what the folder holds.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    device_map: DeviceMap = None,
    engine: EngineOption = "local",
    workers: Workers = 1,
    threads: Threads = None,
    address: Address = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Join the parts of a scan, computed apart with --part, into the atlas that one scan would have written."""
    from armillary.merging import merge as run_merge
    from armillary.progress import scan_progress

    with scan_progress() as bar:
        run_merge(
            parts,
            out=out,
            model=model,
            resume=resume,
            overwrite=overwrite,
            device=device,
            device_map=device_map,
            trust_remote_code=trust_remote_code,
            engine=engine,
            workers=workers,
            threads=threads,
            address=address,
            progress=bar,
        )
    typer.echo(f"{out}: look with  armillary heads {out}  and  armillary layers {out}")
