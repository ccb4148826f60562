"""Convert pickled weights to safetensors: convert."""

from pathlib import Path
from typing import Annotated

import typer

# Imports inside functions: the program starts without what this command alone needs.


def convert(
    folder: Annotated[Path, typer.Argument(help="A model folder with pytorch_model.bin.", metavar="FOLDER")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A new folder for the model, with its configuration and tokenizer."),
    ] = None,
) -> None:
    """Convert pytorch_model.bin to safetensors, beside it or in a new folder, without running code from the file."""
    from armillary.anatomy.convert import convert as write_safetensors

    written = write_safetensors(folder, out=out)
    typer.echo(f"{written} has its weights as safetensors, equal bit for bit; see  armillary inspect {written}")
