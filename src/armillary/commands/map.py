"""Print or draw attention between the words of one text: map."""

from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.anatomy.options import ModelOptions
from armillary.commands.heads import averaged_heads
from armillary.commands.options import AsJson, Html, Model, Rows, one_of, print_json, read_text, say_if_too_long
from armillary.commands.parameters import with_parameters

# Imports inside functions: the program starts without what this command alone needs.


@with_parameters(ModelOptions)
def map_attention(
    model: Model,
    text: Annotated[str | None, typer.Option(help="The text.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A file with the text, in place of --text.")] = None,
    level: Annotated[str, typer.Option(help="word (summed over the tokens of a word) or token.")] = "word",
    layers: Annotated[str | None, typer.Option(help="Layers as in 0,5,11 or 0-3 (default: all).")] = None,
    heads: Annotated[
        str | None, typer.Option(help="Average over these heads, as in 0,2 or L3H5 (default: all).")
    ] = None,
    head_weights: Annotated[
        str,
        typer.Option(
            "--weights",
            help="Weights of the average over heads: equal (plain), or the norm of the output matrix (output).",
        ),
    ] = "plain",
    spans: Annotated[
        list[str] | None,
        typer.Option(
            help="Only words in this piece of the text, or in characters START:END; can be given several times."
        ),
    ] = None,
    rows: Rows = 8,
    html: Html = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Print attention between the words of a text, layer by layer, with the cosines of their embeddings."""
    from armillary.anatomy.loading import load_with_tokenizer
    from armillary.probe.attention_map import attention_map, layer_masses, parse_span, strongest
    from armillary.terminal import tables

    one_of("--level", level, ("word", "token"))
    one_of("--weights", head_weights, ("plain", "output"))
    prompt = read_text(text, prompt_file)
    chosen_layers, chosen_heads = averaged_heads(layers, heads)
    loaded, tokenizer = load_with_tokenizer(model, **options)
    say_if_too_long(loaded, tokenizer, prompt)
    attention = attention_map(
        loaded,
        tokenizer,
        prompt,
        level=level,  # type: ignore[arg-type]
        layers=chosen_layers,
        heads=chosen_heads,
        weights=head_weights,  # type: ignore[arg-type]
        spans=[parse_span(span) for span in spans] if spans else None,
    )
    if as_json:
        print_json({"model": model, **attention.as_dict()})
    else:
        tables.show(layer_masses(attention), title="Where attention goes, means over the words shown")
        tables.show(strongest(attention, rows), title="The strongest pairs of words")
    if html is not None:
        from armillary.figures.maps import attention_maps
        from armillary.figures.page import write_page

        write_page(html, f"Attention in {model}", [attention_maps(attention)], prompt)
        typer.echo(f"The maps are in {html}", err=as_json)
