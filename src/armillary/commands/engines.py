"""The options that choose where work runs: engine, workers, threads, address."""

from typing import Annotated, Literal

import typer

EngineOption = Annotated[
    Literal["local", "ray"],
    typer.Option(help="Where the work runs: processes on this machine (local) or a Ray cluster (ray)."),
]
Workers = Annotated[int, typer.Option(help="Number of worker processes; each loads the model.", min=1)]
Threads = Annotated[
    int | None, typer.Option(help="Threads per worker (default with several workers: 1).", min=1, max=1024)
]
Address = Annotated[
    str | None, typer.Option(help="The Ray cluster, as in 10.0.0.1:6379 or auto (default: start one on this machine).")
]
