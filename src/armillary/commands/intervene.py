"""Change a model's attention and compare it with the original: intervene."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.anatomy.options import ModelOptions
from armillary.commands.heads import chosen_heads
from armillary.commands.options import (
    AsJson,
    Model,
    numbers,
    output_file,
    print_json,
    read_text,
    say_if_too_long,
)
from armillary.commands.parameters import with_parameters
from armillary.errors import ArmillaryError

# Imports inside functions: the program starts without what this command alone needs.


@with_parameters(ModelOptions)
def intervene(
    model: Model,
    scale: Annotated[float | None, typer.Option(help="Multiply the spectra of W_q and W_k by this.")] = None,
    cut: Annotated[int | None, typer.Option(help="Keep this many of the largest singular values.", min=0)] = None,
    keep: Annotated[
        str | None,
        typer.Option(help="With --cut: top or rest. With --randomize: norm, spectrum or shape."),
    ] = None,
    randomize: Annotated[bool, typer.Option("--randomize", help="Replace the weights by random matrices.")] = False,
    remove: Annotated[
        str | None, typer.Option(help="position or content: remove this part of the layers' input; needs --atlas.")
    ] = None,
    atlas: Annotated[Path | None, typer.Option(help="With --remove: an atlas of this model, for the means.")] = None,
    parts: Annotated[
        str | None, typer.Option(help="With --cut and --randomize: which of q,k,v,o (default: q,k).")
    ] = None,
    layers: Annotated[str | None, typer.Option(help="Layers as in 0-3,7 (default: all).")] = None,
    heads: Annotated[
        str | None, typer.Option(help="Heads of those layers as in 0,2, or L3H5,L4H0 (default: all).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of --randomize (default: 0).", min=0)] = None,
    text: Annotated[str | None, typer.Option(help="A text to run through the original and the changed model.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A file with the text, in place of --text.")] = None,
    generate: Annotated[int, typer.Option(help="Continue the text by this many tokens.", min=0)] = 0,
    html: Annotated[
        Path | None, typer.Option(help="Write attention maps before and after to this HTML file.", callback=output_file)
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the changed model to this new folder.")] = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Change a model's attention and print the effect: loss, attention entropy, generated text, attention maps.

    --out writes the changed model to a new folder, to scan and compare. The original files do not change.
    """
    from armillary.anatomy.loading import load, tokenizer_of

    change = Change(model, scale, cut, keep, randomize, remove, atlas, parts, layers, heads, seed)
    change.check_kind()
    has_text = text is not None or prompt_file is not None
    if not has_text and out is None:
        raise ArmillaryError("give --text or --prompt-file to try the change on, or --out to write the changed model")
    if out is not None and remove is not None:
        raise ArmillaryError("--remove changes no weights, so there is nothing to write", advice="leave --out out")
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ArmillaryError(f"{out} is a file, or a folder that is not empty", advice="choose a new folder for --out")
    change.refuse_idle_options()
    if (html is not None or generate) and not has_text:
        raise ArmillaryError("--html and --generate need a text", advice="give --text or --prompt-file")
    change.where()
    loaded = load(model, **{**options, **open_dtype(atlas, options["dtype"])})
    tokenizer = tokenizer_of(model, options) if has_text else None
    if tokenizer is not None:
        _try_out(loaded, tokenizer, read_text(text, prompt_file), change.applied, generate, html, as_json)
    if out is not None:
        _write(loaded, change.applied, out, lambda folder: _copy_tokenizer(model, folder, options))
        typer.echo(f"The changed model is in {out}: armillary scan {out} ..., then armillary compare", err=as_json)


@dataclass(frozen=True)
class Change:
    """The change that the options describe: one of scale, cut, randomize and remove."""

    model: str
    scale: float | None
    cut: int | None
    keep: str | None
    randomize: bool
    remove: str | None
    atlas: Path | None
    parts: str | None
    layers: str | None
    heads: str | None
    seed: int | None

    def check_kind(self) -> None:
        """Raise unless the options give exactly one change."""
        kinds = (self.scale is not None, self.cut is not None, self.remove is not None, self.randomize)
        if sum(kinds) != 1:
            raise ArmillaryError(
                "intervene makes one change at a time", advice="give one of --scale, --cut, --randomize and --remove"
            )

    def refuse_idle_options(self) -> None:
        """Raise on an option that this change does not read."""
        cut_or_random = self.cut is not None or self.randomize
        idle = {
            "--keep": self.keep is not None and not cut_or_random,
            "--parts": self.parts is not None and not cut_or_random,
            "--seed": self.seed is not None and not self.randomize,
            "--atlas": self.atlas is not None and self.remove is None,
        }
        for option, without_effect in idle.items():
            if without_effect:
                raise ArmillaryError(f"{option} has no effect on this change", advice="leave it out")

    def where(self) -> dict[str, Any]:
        """The layers and heads to change, as arguments of the interventions."""
        chosen: dict[str, Any] = {"layers": numbers("--layers", self.layers)}
        if self.remove is None:
            chosen["heads"] = chosen_heads(self.layers, self.heads)
        elif self.heads is not None:
            raise ArmillaryError("--remove changes the input of whole layers", advice="leave --heads out")
        return chosen

    def applied(self, loaded: Any) -> AbstractContextManager[Any]:
        """A context in which the loaded model has the change."""
        from armillary import interventions

        where = self.where()
        if self.scale is not None:
            return interventions.scaled(loaded, self.scale, **where)
        keep: Any = self.keep
        parts = tuple(part.strip() for part in (self.parts or "q,k").split(","))
        if self.cut is not None:
            return interventions.cut(loaded, self.cut, keep=keep or "top", parts=parts, **where)
        if self.randomize:
            return interventions.randomized(loaded, keep=keep or "norm", parts=parts, seed=self.seed or 0, **where)
        return self._without(loaded, where)

    def _without(self, loaded: Any, where: dict[str, Any]) -> AbstractContextManager[Any]:
        """The model without position or content, whose means the atlas holds."""
        from armillary import interventions
        from armillary.anatomy.loading import refuse_other
        from armillary.atlas.atlas import open_atlas

        if self.atlas is None:
            raise ArmillaryError("--remove needs the means of an atlas of this model", advice="give --atlas DIR")
        means = open_atlas(self.atlas)
        try:
            refuse_other(loaded, means.attrs["model"], self.model)
        except ArmillaryError as error:
            raise ArmillaryError(
                f"{self.atlas} is an atlas of another model ({error})", advice=f"scan {self.model}"
            ) from error
        return interventions.without(loaded, self.remove, means, **where)  # type: ignore[arg-type]


def open_dtype(atlas: Path | None, given: str) -> dict[str, Any]:
    """The precision in which the atlas's model was scanned: the hash of the weights depends on it."""
    if atlas is None:
        return {}
    from armillary.atlas.atlas import open_atlas

    recorded = open_atlas(atlas).attrs["model"].get("dtype")
    if recorded and given not in ("auto", recorded):
        raise ArmillaryError(f"the atlas was made in {recorded}, not in {given}", advice="leave --dtype out")
    return {"dtype": recorded} if recorded else {}


def _write(
    model: Any, change: Callable[[Any], AbstractContextManager[Any]], out: Path, add_tokenizer: Callable[[Path], None]
) -> None:
    """Write the changed model and its tokenizer; the folder gets its name when it is complete."""
    from armillary.files.atomic import whole_folder

    if getattr(model.config, "quantization_config", None) is not None:  # a GGUF file, dequantized when loaded
        del model.config.quantization_config
        model.hf_quantizer = None
    try:
        with whole_folder(out, replace=False) as part:
            with change(model):
                model.save_pretrained(part)
            add_tokenizer(part)
    except ValueError as error:
        raise ArmillaryError(f"the changed model cannot be written to {out}: {error}") from error


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

    from armillary.probe.trial import trial
    from armillary.terminal import tables
    from armillary.terminal.progress import shown_progress

    say_if_too_long(model, tokenizer, text, generate)
    with shown_progress("writing") as progress:
        runs = trial(model, tokenizer, text, change, generate=generate, progress=progress)
    layers = runs.layers()
    if as_json:
        losses = {
            name: {"loss": run.loss if run.loss == run.loss else None, "written": run.written}
            for name, run in vars(runs).items()
        }
        print_json({**losses, "entropy": json.loads(tables.as_json(layers))})
    else:
        if runs.before.loss is not None and runs.after.loss is not None:
            typer.echo(f"loss per token (nats): {runs.before.loss:.4f} before, {runs.after.loss:.4f} after")
        tables.show(layers, title="Mean attention entropy (nats)")
        for name, run in (("before", runs.before), ("after", runs.after)):
            if run.written is not None:
                typer.echo(f"\n--- {name}\n{run.written}")
    if html is not None:
        from armillary.figures.maps import attention_maps
        from armillary.figures.page import write_page
        from armillary.probe.attention_map import attention_map

        before = attention_maps(attention_map(model, tokenizer, text))
        with change(model):
            after = attention_maps(attention_map(model, tokenizer, text))
        before.update_layout(title_text="Before: attention between words")
        after.update_layout(title_text="After: attention between words")
        write_page(html, "Attention before and after", [before, after], text)
        typer.echo(f"The maps are in {html}", err=as_json)


def _copy_tokenizer(model: str, out: Path, options: dict[str, Any]) -> None:
    """Copy the model's tokenizer, if it has one."""
    from armillary.anatomy.loading import tokenizer_of

    try:
        tokenizer_of(model, options).save_pretrained(out)
    except ArmillaryError:
        return
