"""Pickled weights as safetensors: convert."""

from pathlib import Path
from typing import Annotated

import typer


def convert(
    folder: Annotated[Path, typer.Argument(help="A model folder with pytorch_model.bin.", metavar="FOLDER")],
    out: Annotated[
        Path | None, typer.Option(help="A new folder for the model, with its configuration and tokenizer.")
    ] = None,
) -> None:
    """Write the weights of pytorch_model.bin as safetensors, beside it or into a new folder; no code of it runs."""
    from armillary.converting import convert as write_safetensors

    written = write_safetensors(folder, out=out)
    typer.echo(f"{written} has its weights as safetensors, equal bit for bit: look with  armillary inspect {written}")
