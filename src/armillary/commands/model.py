"""Print a model's anatomy, and the supported families: inspect, doctor."""

from pathlib import Path
from typing import Annotated, Any

import typer

from armillary.anatomy.options import ModelOptions, refuse_idle
from armillary.commands.options import AllowNotFinite, AsJson, Model, output_file, print_json
from armillary.commands.parameters import with_parameters
from armillary.errors import ArmillaryError

# Imports inside functions: the program starts without what this command alone needs.


@with_parameters(ModelOptions)
def inspect(
    model: Model,
    weights: Annotated[
        bool, typer.Option(help="Also read the weights, a layer at a time, and check that all are finite.")
    ] = False,
    verify: Annotated[
        bool, typer.Option(help="Also load the model and check the anatomy and the tap against it.")
    ] = False,
    allow_not_finite: AllowNotFinite = False,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Print the anatomy of a model's attention: layers, heads, positions, norms, windows.

    Of a folder only the configuration and the headers of the safetensors files are read.
    """
    from armillary.anatomy.hub import fetched
    from armillary.anatomy.loading import WhenNotFinite, load, not_finite_weights, refuse_not_finite
    from armillary.anatomy.source import describe
    from armillary.terminal import anatomy as terminal

    chosen = {name: options[name] for name in ("trust_remote_code", "revision", "adapter")}
    anatomy = describe(model, **chosen)
    notes: list[str] = []
    if weights:
        files = fetched(model, revision=options["revision"])
        if allow_not_finite:
            notes += [f"not finite: {what}" for what in not_finite_weights(files)]
        else:
            refuse_not_finite(files)
        notes = notes or ["all weights are finite"]
    checked = None
    if verify:
        from armillary.observe.verification import verify as run_verification

        allowed: WhenNotFinite = "allow" if allow_not_finite else "refuse"
        checked = run_verification(load(model, not_finite=allowed, **options))
    if as_json:
        print_json(
            {
                "model": model,
                **anatomy.as_dict(),
                "notes": notes,
                **({"verified": checked.as_dict()} if checked else {}),
            }
        )
    else:
        terminal.print_anatomy(model, anatomy, notes)
        if checked:
            terminal.print_verification(checked)
    if checked and not checked.passed:
        raise typer.Exit(1)


@with_parameters(ModelOptions)
def doctor(
    verify: Annotated[
        bool, typer.Option(help="Verify every family again on this machine, with small random models.")
    ] = False,
    record: Annotated[
        Path | None, typer.Option(help="With --verify: write the results to this file.", callback=output_file)
    ] = None,
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option(help="Print the page of families of the documentation.")] = False,
    **options: Any,
) -> None:
    """Print versions, devices, and the supported families with what was verified for each."""
    from armillary.observe import verified
    from armillary.terminal import anatomy as terminal
    from armillary.terminal.progress import shown_progress

    used = ("device", "dtype", "attn_implementation") if verify else ()
    refuse_idle(options, used, "the models of doctor are made here" if verify else "without --verify no model runs")
    if verify:
        with shown_progress("verifying") as progress:
            checks = verified.check_all(progress=progress, **{name: options[name] for name in used})
    else:
        checks = verified.shipped()
    if record is not None:
        if not verify:
            raise ArmillaryError("--record writes the results of --verify", advice="give both")
        verified.write(checks, record)
    if markdown:
        from armillary.terminal.families_page import families_page

        typer.echo(families_page(checks), nl=False)
    elif as_json:
        print_json({"versions": verified.versions(), "device": verified.devices(), "families": checks})
    else:
        terminal.print_doctor(checks)
    if verify and not all(check.passed for check in checks.samples.values()):
        raise typer.Exit(1)
