"""The options that say who does the work."""

from typing import Annotated, Literal

import typer

EngineOption = Annotated[
    Literal["local", "ray"], typer.Option(help="Who does the work: processes here (local) or a Ray cluster (ray).")
]
Workers = Annotated[int, typer.Option(help="How many processes share the work; each loads the model.", min=1)]
Threads = Annotated[int | None, typer.Option(help="Threads of each worker (with several workers: 1).", min=1, max=1024)]
Address = Annotated[
    str | None, typer.Option(help="The Ray cluster, as in 10.0.0.1:6379 or auto; without it one is started here.")
]
DeviceMap = Annotated[
    str | None, typer.Option(help="auto: spread a model that is too large for one device over all there are.")
]
