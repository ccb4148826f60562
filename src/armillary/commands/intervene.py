"""Change a model and look again: intervene."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.commands.options import (
    AsJson,
    Model,
    TrustRemoteCode,
    numbers,
    output_file,
    print_json,
    read_text,
    say_if_too_long,
)
from armillary.errors import ArmillaryError


def intervene(
    model: Model,
    scale: Annotated[float | None, typer.Option(help="Multiply the spectra of W_q and W_k by this.")] = None,
    cut: Annotated[int | None, typer.Option(help="Keep so many of the largest singular values.", min=0)] = None,
    keep: Annotated[
        str | None,
        typer.Option(help="With --cut: top or rest. With --randomise: norm, spectrum or shape."),
    ] = None,
    randomise: Annotated[bool, typer.Option("--randomise", help="Random matrices in place of the weights.")] = False,
    remove: Annotated[
        str | None, typer.Option(help="position or content: that part of what the layers read; needs --atlas.")
    ] = None,
    atlas: Annotated[Path | None, typer.Option(help="With --remove: an atlas of this model, for the means.")] = None,
    parts: Annotated[str | None, typer.Option(help="With --cut and --randomise: which of q,k,v,o (q,k).")] = None,
    layers: Annotated[str | None, typer.Option(help="Layers as in 0-3,7 (all by default).")] = None,
    heads: Annotated[str | None, typer.Option(help="Heads of those layers as in 0,2 (all by default).")] = None,
    seed: Annotated[int | None, typer.Option(help="For --randomise (0).", min=0)] = None,
    text: Annotated[str | None, typer.Option(help="A text to try the change on.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A file that holds the text instead.")] = None,
    generate: Annotated[int, typer.Option(help="Go on with the text for so many tokens.", min=0)] = 0,
    html: Annotated[
        Path | None, typer.Option(help="Attention maps before and after, into this HTML file.", callback=output_file)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the changed model to this new folder.")] = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Change a model's attention and see what it does: loss, attention entropy, generated text, maps.

    --out writes the changed model as a folder of its own, to scan and compare. The original is never touched.
    """
    from armillary import interventions
    from armillary.models import load, load_tokenizer

    wanted = [name for name, given in (("--scale", scale), ("--cut", cut), ("--remove", remove)) if given is not None]
    wanted += ["--randomise"] if randomise else []
    if len(wanted) != 1:
        raise ArmillaryError("say what to change: one of --scale, --cut, --randomise and --remove")
    if text is None and prompt_file is None and out is None:
        raise ArmillaryError("say what for: --text or --prompt-file to try the change on, or --out to write it")
    if out is not None and remove is not None:
        raise ArmillaryError("--remove acts while the model runs and changes no weights: there is nothing to write")
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ArmillaryError(f"{out} is a file, or a folder that is not empty: choose a new folder for --out")
    _refuse_idle(scale, cut, randomise, remove, keep, atlas, parts, seed)
    if (html is not None or generate) and text is None and prompt_file is None:
        raise ArmillaryError("--html and --generate need a text: give --text or --prompt-file")
    where: dict[str, Any] = {"layers": numbers("--layers", layers)}
    if remove is None:
        where["heads"] = numbers("--heads", heads)
    elif heads is not None:
        raise ArmillaryError("--remove changes what whole layers read: --heads does not apply")

    def change(loaded: Any) -> AbstractContextManager[Any]:
        if scale is not None:
            return interventions.scaled(loaded, scale, **where)
        chosen = tuple(part.strip() for part in (parts or "q,k").split(","))
        if cut is not None:
            return interventions.cut(loaded, cut, keep=keep or "top", parts=chosen, **where)  # type: ignore[arg-type]
        if randomise:
            kept: Any = keep or "norm"
            return interventions.randomised(loaded, keep=kept, parts=chosen, seed=seed or 0, **where)
        if atlas is None:
            raise ArmillaryError("--remove needs --atlas DIR, an atlas of this model that holds the means")
        from armillary.atlas import open_atlas
        from armillary.models import refuse_other

        known = open_atlas(atlas)
        try:
            refuse_other(loaded, known.attrs["model"], model)
        except ArmillaryError as error:
            raise ArmillaryError(f"{atlas} is an atlas of another model ({error}): scan {model}") from error
        return interventions.without(loaded, remove, known, **where)  # type: ignore[arg-type]

    dtype = open_dtype(atlas)
    loaded = load(model, trust_remote_code=trust_remote_code, **dtype)
    tokenizer = load_tokenizer(model, trust_remote_code=trust_remote_code) if _needs_words(text, prompt_file) else None
    if tokenizer is not None:
        _try_out(loaded, tokenizer, read_text(text, prompt_file), change, generate, html, as_json)
    if out is not None:
        _write(loaded, change, out, lambda place: _copy_tokenizer(model, place, trust_remote_code))
        typer.echo(f"The changed model is in {out}: armillary scan {out} ..., then armillary compare", err=as_json)


def open_dtype(atlas: Path | None) -> dict[str, Any]:
    """The precision that the atlas's model was scanned in, so that its weights can be recognised."""
    if atlas is None:
        return {}
    from armillary.atlas import open_atlas
    from armillary.models import pick_dtype

    recorded = open_atlas(atlas).attrs["model"].get("dtype")
    return {"dtype": pick_dtype(recorded, "cpu")} if recorded else {}


def _refuse_idle(
    scale: float | None,
    cut: int | None,
    randomise: bool,
    remove: str | None,
    keep: str | None,
    atlas: Path | None,
    parts: str | None,
    seed: int | None,
) -> None:
    """An option that would do nothing is told, not ignored."""
    idle = {
        "--keep": keep is not None and cut is None and not randomise,
        "--parts": parts is not None and cut is None and not randomise,
        "--seed": seed is not None and not randomise,
        "--atlas": atlas is not None and remove is None,
    }
    for option, without_effect in idle.items():
        if without_effect:
            raise ArmillaryError(f"{option} has no effect on this change: leave it out")


def _write(
    model: Any, change: Callable[[Any], AbstractContextManager[Any]], out: Path, add_tokenizer: Callable[[Path], None]
) -> None:
    """The changed model and its tokenizer as a folder, which appears under its name when it is whole."""
    from armillary.files import whole_folder

    if getattr(model.config, "quantization_config", None) is not None:  # a GGUF file, dequantised when loaded
        del model.config.quantization_config
        model.hf_quantizer = None
    try:
        with whole_folder(out, replace=False) as part:
            with change(model):
                model.save_pretrained(part)
            add_tokenizer(part)
    except ValueError as error:
        raise ArmillaryError(f"the changed model cannot be written to {out}: {error}") from error


def _needs_words(text: str | None, file: Path | None) -> bool:
    return text is not None or file is not None


def _try_out(
    model: Any,
    tokenizer: Any,
    text: str,
    change: Callable[[Any], AbstractContextManager[Any]],
    generate: int,
    html: Path | None,
    as_json: bool,
) -> None:
    import json

    from armillary import tables
    from armillary.interventions.trial import trial
    from armillary.terminal import progress

    say_if_too_long(model, tokenizer, text, generate)
    found = trial(model, tokenizer, text, change, generate=generate, track=progress)
    layers = found.layers()
    if as_json:
        losses = {
            name: {"loss": run.loss if run.loss == run.loss else None, "written": run.written}
            for name, run in vars(found).items()
        }
        print_json({**losses, "entropy": json.loads(tables.as_json(layers))})
    else:
        if found.before.loss is not None and found.after.loss is not None:
            typer.echo(f"loss per token (nats): {found.before.loss:.4f} before, {found.after.loss:.4f} after")
        tables.show(layers, title="Mean attention entropy (nats)")
        for name, run in (("before", found.before), ("after", found.after)):
            if run.written is not None:
                typer.echo(f"\n--- {name}\n{run.written}")
    if html is not None:
        from armillary.attention_map import attention_map
        from armillary.figures.maps import attention_maps
        from armillary.figures.page import write_page

        before = attention_maps(attention_map(model, tokenizer, text))
        with change(model):
            after = attention_maps(attention_map(model, tokenizer, text))
        before.update_layout(title_text="Before: attention from word to word")
        after.update_layout(title_text="After: attention from word to word")
        write_page(html, "Attention before and after", [before, after], text)
        typer.echo(f"The maps are in {html}", err=as_json)


def _copy_tokenizer(model: str, out: Path, trust_remote_code: bool) -> None:
    """A model without one (tokens only) is written without."""
    from armillary.models import load_tokenizer

    try:
        load_tokenizer(model, trust_remote_code=trust_remote_code).save_pretrained(out)
    except ArmillaryError:
        return
