"""Which words attend to which in one text: map."""

from pathlib import Path
from typing import Annotated

import typer

from armillary.commands.options import (
    AsJson,
    Html,
    Model,
    TrustRemoteCode,
    numbers,
    one_of,
    print_json,
    read_text,
    say_if_too_long,
)


def map_attention(
    model: Model,
    text: Annotated[str | None, typer.Option(help="The text to look at.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A file that holds the text instead.")] = None,
    level: Annotated[str, typer.Option(help="word (pieces of a word added up) or token.")] = "word",
    layers: Annotated[str | None, typer.Option(help="Layers as in 0,5,11 or 0-3 (all by default).")] = None,
    heads: Annotated[str | None, typer.Option(help="Average over these heads, as in 0,2 (all by default).")] = None,
    head_weights: Annotated[
        str,
        typer.Option("--weights", help="Heads count alike (plain), or by the norm of their output matrix (output)."),
    ] = "plain",
    spans: Annotated[
        list[str] | None,
        typer.Option(help="Show only words in this piece of the text, or START:END in characters; repeat for more."),
    ] = None,
    rows: Annotated[int, typer.Option(help="How many of the strongest pairs to print for every layer.", min=1)] = 8,
    html: Html = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Print which words of a text attend to which, layer by layer, beside the cosines of their embeddings."""
    from armillary import tables
    from armillary.attention_map import attention_map, layer_masses, parse_span, strongest
    from armillary.models import load, load_tokenizer

    one_of("--level", level, ("word", "token"))
    one_of("--weights", head_weights, ("plain", "output"))
    prompt = read_text(text, prompt_file)
    loaded = load(model, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(model, trust_remote_code=trust_remote_code)
    say_if_too_long(loaded, tokenizer, prompt)
    found = attention_map(
        loaded,
        tokenizer,
        prompt,
        level=level,  # type: ignore[arg-type]
        layers=numbers("--layers", layers),
        heads=numbers("--heads", heads),
        weights=head_weights,  # type: ignore[arg-type]
        spans=[parse_span(span) for span in spans] if spans else None,
    )
    if as_json:
        print_json({"model": model, **found.as_dict()})
    else:
        tables.show(layer_masses(found), title="Where attention goes, means over the words shown")
        tables.show(strongest(found, rows), title="The strongest pairs of words")
    if html is not None:
        from armillary.figures.maps import attention_maps
        from armillary.figures.page import write_page

        write_page(html, f"Attention in {model}", [attention_maps(found)], prompt)
        typer.echo(f"The maps are in {html}", err=as_json)
