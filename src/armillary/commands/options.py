"""Arguments and options that several commands share, and how they print."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.commands.command import LARGEST
from armillary.errors import ArmillaryError
from armillary.files.atomic import destination
from armillary.text.numerals import whole_number

# Imports inside functions: the program starts without what this command alone needs.


def output_file(path: Path | None) -> Path | None:
    """Raise before any work is done if this file cannot be written (a device, a folder)."""
    if path is not None:
        destination(path)
    return path


Model = Annotated[
    str, typer.Argument(help="A model folder (config.json and safetensors), a GGUF file or a hub id.", metavar="MODEL")
]
Folder = Annotated[Path, typer.Argument(help="A folder that `armillary scan` wrote.", metavar="DIR")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")]
Html = Annotated[Path | None, typer.Option(help="Draw figures into this HTML file.", callback=output_file)]
Sort = Annotated[str | None, typer.Option(help="Sort by this column, largest first (-column: smallest first).")]
Columns = Annotated[str | None, typer.Option(help="The columns to print, separated by commas, or 'all'.")]
OneLayer = Annotated[int | None, typer.Option("--layer", help="Only this layer.")]
NewFolder = Annotated[Path, typer.Option("--out", "-o", help="The folder to write; it must be new or empty.")]
OtherModel = Annotated[str | None, typer.Option("--model", help="The model, if it is not where the scan found it.")]
Rows = Annotated[int, typer.Option("--rows", "--limit", help="How many of the strongest or largest to print.", min=1)]
OneHead = Annotated[str | None, typer.Option("--head", help="Only this head, as in L3H5 or 3.5.")]
AllowNotFinite = Annotated[bool, typer.Option(help="Continue when weights are NaN or infinite.")]


def one_of(option: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise ArmillaryError(f"{option} {given} is not known", advice=f"it can be {', '.join(allowed)}")


def check_shard(text: str) -> str:
    """--shard as it was given: a number of sequences, or 'auto'."""
    if text == "auto":
        return text
    try:
        sequences = int(text)
    except ValueError as error:
        raise typer.BadParameter("it should be a whole number of sequences, or auto") from error
    if not 1 <= sequences <= LARGEST:
        raise typer.BadParameter("it should be at least 1, or auto" if sequences < 1 else "it is too large")
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
    listed: list[int] = []
    for part in given.split(","):
        written, dash, until = part.strip().partition("-")
        first, last = whole_number(written), whole_number(until if dash else written)
        if first is None or last is None or last < first:
            raise ArmillaryError(f"{option} {given} is not a list of numbers", advice="write it as in 0,5,11 or 0-3")
        if last > 100_000:
            raise ArmillaryError(f"{option} {given} goes beyond any model", advice="write it as in 0,5,11 or 0-3")
        listed += range(first, last + 1)
    return listed


def say_if_too_long(model: Any, tokenizer: Any, text: str, more: int = 0) -> None:
    """Print a note on standard error if the text and `more` tokens exceed the model's context length."""
    from armillary.anatomy.source import describe

    note = describe(model).too_long(len(tokenizer(text, verbose=False)["input_ids"]) + more)
    if note:
        typer.echo(note, err=True)


def read_text(text: str | None, file: Path | None) -> str:
    """The text of --text or of --prompt-file; exactly one of them must be given."""
    if (text is None) == (file is None):
        raise ArmillaryError("one text is needed", advice="give --text or --prompt-file")
    if file is None:
        return str(text)
    try:
        return file.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ArmillaryError(f"{file} cannot be read as UTF-8 text: {error}") from error
