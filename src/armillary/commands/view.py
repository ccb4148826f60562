"""Serve the interactive viewer of an atlas: view."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from armillary.anatomy.options import ModelOptions
from armillary.commands.options import Folder, OtherModel
from armillary.commands.parameters import with_parameters
from armillary.errors import ArmillaryError

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas
    from armillary.viewer.live import LiveModel

# Imports inside functions: the program starts without what this command alone needs.


@with_parameters(ModelOptions)
def view(
    folder: Folder,
    model: OtherModel = None,
    compare: Annotated[Path | None, typer.Option(help="A second atlas, to compare with the first.")] = None,
    port: Annotated[int, typer.Option(help="Port to listen on (0: any free port).", min=0, max=65535)] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on (default: only this machine can connect).")] = (
        "127.0.0.1"
    ),
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    **options: Any,
) -> None:
    """Open a local page to explore heads, try texts and interventions while you type. Ctrl-C ends it."""
    from armillary.atlas.atlas import open_atlas
    from armillary.machine.temporary import remove_all
    from armillary.viewer.guard import Gate, is_loopback
    from armillary.viewer.pages import Pages
    from armillary.viewer.server import Viewer, address, listening_socket, serve

    atlas = open_atlas(folder)
    other = None if compare is None else open_atlas(compare)
    sock = listening_socket(host, port)  # before the model is loaded, which may take a while
    live, why = live_model(atlas, model, options)
    gate = Gate(host)
    viewer = Viewer(Pages(atlas, other, live, why), gate)
    if live is None:
        typer.echo(f"No model is loaded ({why}): the page shows the atlas alone.")
    if not is_loopback(host):
        typer.echo(f"Other machines can reach this page at {host}; the token in the address keeps them out.")
    typer.echo(f"The viewer is at\n\n    {address(gate, sock.getsockname()[1])}\n\nCtrl-C ends it.")
    code = 0
    try:
        serve(viewer, sock, browser=browser)
    except SystemExit as ended:  # SIGTERM
        code = int(ended.code or 0)
    sys.stdout.flush()
    remove_all()
    os._exit(code)  # at once: torch takes seconds to shut down, and a layer that is running cannot be interrupted


def live_model(atlas: "Atlas", given: str | None, options: dict[str, Any]) -> "tuple[LiveModel | None, str]":
    """The atlas's model, from its folder here or from the hub, or why there is none."""
    from armillary.anatomy.checkpoint import looks_like_path
    from armillary.anatomy.loading import as_recorded, load_for, tokenizer_of
    from armillary.viewer.live import LiveModel

    source = given or str(atlas.attrs["model"]["name"])
    if given is None and not Path(source).exists() and looks_like_path(source):
        return None, f"{source} is not a folder here"
    try:
        recorded = atlas.attrs["model"]
        model = load_for(recorded, source, **options)
        return LiveModel(model, tokenizer_of(source, as_recorded(recorded, options)), atlas), ""
    except ArmillaryError as error:
        if given is not None:
            raise
        return None, str(error)
