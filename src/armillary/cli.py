"""The commands. Each reads its arguments, calls the library and prints; torch is imported only when needed."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from armillary import __version__
from armillary.errors import ArmillaryError

app = typer.Typer(
    name="armillary",
    help="What every attention head of a transformer does, and why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Model = Annotated[
    str, typer.Argument(help="A model folder (config.json and safetensors) or a hub id.", metavar="MODEL")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
TrustRemoteCode = Annotated[bool, typer.Option(help="Run Python code that comes with the checkpoint.")]
AllowNotFinite = Annotated[bool, typer.Option(help="Go on when weights hold NaN or infinite numbers.")]


@app.callback(invoke_without_command=True)
def armillary(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def inspect(
    model: Model,
    weights: Annotated[bool, typer.Option(help="Also read the weights, a layer at a time: are all finite?")] = False,
    verify: Annotated[bool, typer.Option(help="Also load the model and check what Armillary sees against it.")] = False,
    allow_not_finite: AllowNotFinite = False,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Print what a model's attention is made of: layers, heads, positions, norms, windows.

    A folder is read without loading its weights: only the headers of its safetensors files.
    """
    from armillary import terminal
    from armillary.anatomy import describe
    from armillary.models import WhenNotFinite, load, not_finite_weights, refuse_not_finite

    anatomy = describe(model, trust_remote_code=trust_remote_code)
    notes: list[str] = []
    if weights:
        if allow_not_finite:
            notes += [f"not finite: {what}" for what in not_finite_weights(anatomy)]
        else:
            refuse_not_finite(anatomy)
        notes = notes or ["all attention weights are finite"]
    checked = None
    if verify:
        from armillary.verification import verify as run_verification

        allowed: WhenNotFinite = "allow" if allow_not_finite else "refuse"
        checked = run_verification(load(model, trust_remote_code=trust_remote_code, not_finite=allowed))
    if as_json:
        _print_json(
            {
                "model": model,
                **anatomy.as_dict(),
                "notes": notes,
                **({"verified": checked} if checked else {}),
            }
        )
    else:
        terminal.print_anatomy(model, anatomy, notes)
        if checked:
            terminal.print_verification(checked)
    if checked and not checked.passed:
        raise typer.Exit(1)


@app.command()
def doctor(
    verify: Annotated[bool, typer.Option(help="Check every family here and now, on small random models.")] = False,
    record: Annotated[Path | None, typer.Option(help="With --verify: write the results to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print versions, devices, and the supported families with what was verified for each."""
    from armillary import terminal, verified

    checks = verified.check_all(progress=terminal.progress) if verify else verified.shipped()
    if record is not None:
        if not verify:
            raise ArmillaryError("--record writes the results of --verify: give both")
        verified.write(checks, record)
    if as_json:
        _print_json({"versions": verified.versions(), "device": verified.devices(), "families": checks})
    else:
        terminal.print_doctor(checks)
    if verify and not all(check.passed for check in checks.samples.values()):
        raise typer.Exit(1)


@app.command()
def demo() -> None:
    """See Armillary at work on a small random Llama: its anatomy, and every head checked against the model."""
    from tempfile import TemporaryDirectory

    from armillary.anatomy.samples import sample_model

    with TemporaryDirectory() as folder:
        sample_model("llama").save_pretrained(folder)
        inspect(folder, weights=True, verify=True)


def _print_json(value: Any) -> None:
    from dataclasses import asdict, is_dataclass

    def plain(item: Any) -> Any:
        if is_dataclass(item) and not isinstance(item, type):
            return asdict(item)
        return str(item)

    typer.echo(json.dumps(value, default=plain, indent=2))


def main() -> None:
    """The program: a user's mistake is one sentence on standard error and exit code 2."""
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        app()
    except ArmillaryError as error:
        typer.echo(f"armillary: {error}", err=True)
        sys.exit(2)
