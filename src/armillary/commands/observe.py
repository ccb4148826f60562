"""Print what heads attend to in images, in sound, or between a text and what the decoder writes: observe."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from armillary.anatomy.options import ModelOptions
from armillary.commands.options import AsCsv, AsJson, Model, OneLayer, Sort, one_of, read_text
from armillary.commands.parameters import with_parameters
from armillary.errors import ArmillaryError

if TYPE_CHECKING:
    from torch import Tensor

# Imports inside functions: the program starts without what this command alone needs.

PARTS = {"encoder": "", "decoder": "decoder", "cross": "cross"}


@with_parameters(ModelOptions)
def observe(
    model: Model,
    image: Annotated[list[Path] | None, typer.Option(help="An image file; can be given several times.")] = None,
    sound: Annotated[list[Path] | None, typer.Option(help="A WAV file; can be given several times.")] = None,
    text: Annotated[str | None, typer.Option(help="The text that the model or its encoder reads.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A file with the text, in place of --text.")] = None,
    target: Annotated[
        str | None, typer.Option(help="The text of the decoder (default: what the model itself writes).")
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="Of an encoder-decoder: encoder, decoder or cross (default: cross).")
    ] = None,
    layer: OneLayer = None,
    sort: Sort = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    **options: Any,
) -> None:
    """Print a row per head on inputs that a scan does not read: images, sound, and cross-attention.

    Positions of images are patches, with distances in their grid. In cross-attention keys are the encoder's positions.
    """
    from armillary.anatomy.loading import load, tokenizer_of
    from armillary.anatomy.source import load_config_of
    from armillary.probe.inputs import with_target
    from armillary.probe.observed import observed_heads
    from armillary.terminal import tables

    one_of("--part", part or "cross", tuple(PARTS))
    _refuse_several(image, sound, text or prompt_file)
    config = load_config_of(model, **{name: options[name] for name in ("trust_remote_code", "revision")})
    two_sided = bool(getattr(config, "is_encoder_decoder", False))
    for name, value in (("--part", part), ("--target", target)):
        if value is not None and not two_sided:
            raise ArmillaryError(f"{name} is for encoder-decoders, and {model} is none", advice="leave it out")
    loaded = load(model, **options)
    _refuse_other_input(loaded, "--image" if image else "--sound" if sound else "--text")
    tokenizer = None if image or (sound and target is None) else tokenizer_of(model, options)
    files = (image or [], sound or [])
    inputs = _inputs(loaded, model, options["revision"], tokenizer, files, text, prompt_file)
    if two_sided:
        inputs = with_target(loaded, tokenizer, inputs, target)
    table = observed_heads(loaded, part=PARTS[part or "cross"] if two_sided else "", **inputs)
    shown = tables.select(table, sort=sort, layer=layer)
    if as_json:
        typer.echo(tables.as_json(shown))
    elif as_csv:
        typer.echo(shown.to_csv(index=False), nl=False)
    else:
        tables.show(shown.drop(columns=["kind", "positions"]), title=_title(table))
        if target is None and two_sided and tokenizer is not None:
            typer.echo(f"The decoder's text, written by the model: {_readable(tokenizer, inputs)}")
        typer.echo("Labels are by the rules of a scan, without its comparison with random heads.")


def _refuse_several(image: Any, sound: Any, text: Any) -> None:
    given = [name for name, value in (("--image", image), ("--sound", sound), ("--text", text)) if value]
    if len(given) != 1:
        raise ArmillaryError(
            f"{' and '.join(given)} are given" if given else "there is nothing to observe",
            advice="give --image, --sound or --text (or --prompt-file)",
        )


def _refuse_other_input(loaded: Any, given: str) -> None:
    """Raise if the model reads something else than what was given."""
    read = {"pixel_values": "--image", "input_features": "--sound", "input_ids": "--text"}
    what = loaded.main_input_name
    if read.get(what) != given:
        advice = f"give {read[what]}" if what in read else "use armillary.probe.observed.observed_heads"
        raise ArmillaryError(f"{type(loaded).__name__} reads {what}", advice=advice)


def _inputs(
    loaded: Any,
    model: str,
    revision: str | None,
    tokenizer: Any,
    files: tuple[list[Path], list[Path]],
    text: str | None,
    prompt_file: Path | None,
) -> "dict[str, Tensor]":
    """The tensors that the model, or its encoder, reads: of images, of sound, or of a text."""
    from armillary.probe.inputs import image_inputs, sound_inputs, text_inputs

    image, sound = files
    if image:
        return image_inputs(loaded, model, image, revision)
    if sound:
        return sound_inputs(loaded, model, sound, revision)
    return text_inputs(loaded, tokenizer, read_text(text, prompt_file))


def _readable(tokenizer: Any, inputs: "dict[str, Tensor]") -> str:
    from armillary.terminal.tables import cell

    text = tokenizer.decode(inputs["decoder_input_ids"][0].tolist(), skip_special_tokens=True)
    return cell(text[:200])


def _title(table: Any) -> str:
    kind, positions = table["kind"].iloc[0], table["positions"].iloc[0]
    if kind == "cross":
        return "Cross-attention: queries are the decoder's positions, keys the encoder's"
    if positions == "patches":
        down, across = table.attrs["grid"]
        return f"Self-attention between patches, a grid of {down} x {across}"
    return f"Self-attention between {positions}"
