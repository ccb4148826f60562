"""What several commands share: arguments, and how they print."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.commands.command import LARGEST
from armillary.errors import ArmillaryError
from armillary.files import destination
from armillary.numerals import whole_number


def output_file(path: Path | None) -> Path | None:
    """A file to write, refused before any work is done if it could not be written (a device, a folder)."""
    if path is not None:
        destination(path)
    return path


Model = Annotated[
    str, typer.Argument(help="A model folder (config.json and safetensors), a GGUF file or a hub id.", metavar="MODEL")
]
Folder = Annotated[Path, typer.Argument(help="A folder that `armillary scan` wrote.", metavar="DIR")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")]
Html = Annotated[Path | None, typer.Option(help="Draw it, into this HTML file.", callback=output_file)]
Sort = Annotated[str | None, typer.Option(help="Sort by this column, largest first (-column: smallest first).")]
Columns = Annotated[str | None, typer.Option(help="The columns to print, separated by commas, or 'all'.")]
OneLayer = Annotated[int | None, typer.Option("--layer", help="Only this layer.")]
TrustRemoteCode = Annotated[bool, typer.Option(help="Run Python code that comes with the checkpoint.")]
AllowNotFinite = Annotated[bool, typer.Option(help="Go on when weights hold NaN or infinite numbers.")]


def one_of(option: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise ArmillaryError(f"{option} {given} is not known: it can be {', '.join(allowed)}")


def check_shard(text: str) -> str:
    """--shard as it was given: a number of blocks, or 'auto'."""
    if text == "auto":
        return text
    try:
        blocks = int(text)
    except ValueError as error:
        raise typer.BadParameter("it should be a whole number of blocks, or auto") from error
    if not 1 <= blocks <= LARGEST:
        raise typer.BadParameter("it should be at least 1, or auto" if blocks < 1 else "no text has so many blocks")
    return text


def print_json(value: Any) -> None:
    from dataclasses import asdict, is_dataclass

    def plain(item: Any) -> Any:
        if is_dataclass(item) and not isinstance(item, type):
            return asdict(item)
        return str(item)

    typer.echo(json.dumps(value, default=plain, indent=2))


def numbers(option: str, given: str | None) -> list[int] | None:
    """Layers or heads written as 0,5,11 or 0-3,7; None where the option was not given."""
    if given is None:
        return None
    found: list[int] = []
    for part in given.split(","):
        written, dash, until = part.strip().partition("-")
        first, last = whole_number(written), whole_number(until if dash else written)
        if first is None or last is None or last < first:
            raise ArmillaryError(f"{option} {given} is not a list of numbers: write it as in 0,5,11 or 0-3")
        if last > 100_000:
            raise ArmillaryError(f"{option} {given} goes beyond any model: write it as in 0,5,11 or 0-3")
        found += range(first, last + 1)
    return found


def say_if_too_long(model: Any, tokenizer: Any, text: str, more: int = 0) -> None:
    """A note on standard error if the text, and `more` tokens that follow it, are more than the model was made for."""
    from armillary.anatomy import describe

    said = describe(model).too_long(len(tokenizer(text, verbose=False)["input_ids"]) + more)
    if said:
        typer.echo(said, err=True)


def read_text(text: str | None, file: Path | None) -> str:
    """The text that was given, or that of the file; exactly one of them."""
    if (text is None) == (file is None):
        raise ArmillaryError("one text is needed: give --text or --prompt-file")
    if file is None:
        return str(text)
    try:
        return file.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ArmillaryError(f"{file} cannot be read as UTF-8 text: {error}") from error
