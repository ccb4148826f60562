"""Which heads look from some tokens to others, as a user's file says: relation."""

from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.anatomy.options import ModelOptions
from armillary.commands.options import AsJson, Rows
from armillary.commands.parameters import with_parameters

# Imports inside functions: the program starts without what this command alone needs.


@with_parameters(ModelOptions)
def relation(
    model: Annotated[str, typer.Argument(help="A model folder, GGUF file or hub id.", metavar="MODEL")],
    file: Annotated[
        Path, typer.Argument(help="A TOML file: query, key, distance, nearest (docs/tokens.md).", metavar="FILE")
    ],
    corpus: Annotated[
        str, typer.Option(help="The text: builtin:prose, builtin:code, a file or a folder.")
    ] = "builtin:prose",
    length: Annotated[int, typer.Option(help="Tokens of a sequence.", min=2)] = 128,
    sequences: Annotated[int, typer.Option(help="Number of sequences.", min=1)] = 16,
    rows: Rows = 20,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Score every head on a relation between tokens that you declare, compared with random heads."""
    from armillary.anatomy.loading import load, tokenizer_of
    from armillary.probe.relations import score_relation
    from armillary.terminal import tables

    loaded, tokenizer = load(model, **options), tokenizer_of(model, options)
    table = score_relation(loaded, tokenizer, file, corpus, length=length, sequences=sequences)
    if as_json:
        typer.echo(tables.as_json(table))
    else:
        tables.show(table, title="Heads by the share of their focus on the relation's keys", limit=rows)
