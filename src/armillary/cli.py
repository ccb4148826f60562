"""The program: which commands there are, and how a user's mistake is told."""

import errno
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Annotated, Any

import typer

from armillary import __version__
from armillary.commands import (
    atlas,
    check,
    convert,
    experiment,
    intervene,
    labels,
    map,
    merge,
    model,
    report,
    rope,
    scan,
    theory,
    train,
    view,
    weights,
)
from armillary.commands.command import Command
from armillary.errors import ArmillaryError
from armillary.limits import lift
from armillary.quiet import VERBOSE
from armillary.waiting import wait_asleep

UsageError: Any = typer.BadParameter.__base__
"""What the parser raises; Typer carries a copy of Click in newer versions and imports it in older ones."""

TERMINATED = 128 + signal.SIGTERM
"""The exit code of a program that was told to end: what a shell shows for one that the signal killed."""

app = typer.Typer(
    name="armillary",
    help="What every attention head of a transformer does, and why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def armillary(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also show what transformers says while it loads a model.")
    ] = False,
    no_limits: Annotated[
        bool, typer.Option("--no-limits", help="Try also what should need more memory or time than there is.")
    ] = False,
) -> None:
    if no_limits:
        lift()
    if verbose:
        os.environ[VERBOSE] = "1"  # workers inherit it
    if version:
        typer.echo(__version__)
        raise typer.Exit


for command in (
    scan.scan,
    atlas.heads,
    atlas.layers,
    atlas.show,
    atlas.compare,
    labels.labels,
    labels.verify_heads,
    report.report,
    view.view,
    merge.merge,
    check.check,
    weights.weights,
    weights.gaussian,
    weights.localization,
    intervene.intervene,
    map.map_attention,
    rope.frequencies,
    rope.rope,
    train.train,
    train.runs,
    theory.theory,
    model.inspect,
    model.doctor,
    convert.convert,
    scan.demo,
):
    app.command(name={"map_attention": "map"}.get(command.__name__), cls=Command)(command)
app.add_typer(experiment.experiment, name="experiment")


def main() -> None:
    """The program: a user's mistake is one sentence on standard error and exit code 2."""
    wait_asleep(os.environ)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _ended)
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        code = app(prog_name="armillary", standalone_mode=False) or 0
        sys.stdout.flush()
    except ArmillaryError as error:
        _tell(str(error))
        code = 2
    except OSError as error:
        _tell(_of_the_machine(error))
        _give_up_output()
        code = 2
    except MemoryError as error:
        _tell(f"there is not enough memory for this ({error or 'nothing could be set aside'}): ask for less")
        code = 2
    except typer.Abort as error:  # how Typer passes on an EOFError
        _tell(f"something that was read ended too early ({error.__cause__ or 'the input'})")
        code = 2
    except UsageError as error:
        code = 2
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            _tell(_usage_sentence(error))
    except SystemExit as ended:
        code = ended.code
        if code == TERMINATED:  # a second signal may not get in the way of the cleaning up that follows
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if code in (130, TERMINATED):  # Ctrl-C sends the first
        _tell("stopped; what was finished is kept: a scan goes on with --resume, training when started again")
    sys.exit(code)


def _of_the_machine(error: OSError) -> str:
    """A file, a folder or a disk that is not as it should be, wherever that was noticed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        where = f" to write {error.filename}" if error.filename else ""
        return f"there is no space left{where}: make room, then run it again"
    place = str(error.filename)[:200] if error.filename is not None else "a file or a connection"
    return f"{place} cannot be used: {error.strerror or error}"


def _give_up_output() -> None:
    """Let what could not be printed go: Python would try again when it ends, and complain in its own way."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage_sentence(error: Any) -> str:
    """What the parser has to say, in one line, and where the options are listed."""
    said = " ".join(error.format_message().split()).rstrip(".").removeprefix("Invalid value: ")
    return f"{said} ({error.ctx.command_path if error.ctx else 'armillary'} --help lists what there is)"


def _tell(sentence: str) -> None:
    typer.echo(f"armillary: {sentence}", err=True)


def _ended(number: int, frame: Any) -> None:
    """SIGTERM ends the program as an exception does, so that workers end and temporary folders are removed."""
    sys.unraisablehook = _end_again
    sys.exit(TERMINATED)


def _end_again(unraisable: Any) -> None:
    """Python drops what is raised inside a finalizer; if that was the exception above, the signal is sent again."""
    if isinstance(unraisable.exc_value, SystemExit) and unraisable.exc_value.code == TERMINATED:
        again = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(unraisable)
