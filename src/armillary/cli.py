"""The command line: registers the commands, prints a user's mistake as one sentence, handles signals."""

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
    columns,
    convert,
    experiment,
    intervene,
    labels,
    map,
    merge,
    model,
    observe,
    report,
    rope,
    scan,
    theory,
    timeline,
    train,
    view,
    weights,
)
from armillary.commands.command import Command
from armillary.errors import ArmillaryError
from armillary.machine.limits import lift
from armillary.machine.quiet import VERBOSE
from armillary.machine.threads import wait_asleep
from armillary.terminal.options import as_options

UsageError: Any = typer.BadParameter.__base__
"""What the parser raises; newer versions of Typer bundle a copy of Click, older ones import it."""

TERMINATED = 128 + signal.SIGTERM
"""The exit code after SIGTERM, as a shell reports it."""

app = typer.Typer(
    name="armillary",
    help="What every attention head of a transformer does, and why.",
    no_args_is_help=True,
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
        bool, typer.Option("--no-limits", help="Run even if the estimated memory or time exceeds what is available.")
    ] = False,
) -> None:
    if no_limits:
        lift()
    if verbose:
        os.environ[VERBOSE] = "1"  # workers inherit it
    if version:
        typer.echo(__version__)
        raise typer.Exit


PANELS = {
    "Look at a model": (
        scan.scan,
        map.map_attention,
        observe.observe,
        model.inspect,
        weights.weights,
        scan.demo,
        merge.merge,
        convert.convert,
        model.doctor,
    ),
    "Look at an atlas": (
        atlas.heads,
        atlas.show,
        view.view,
        report.report,
        atlas.layers,
        labels.labels,
        atlas.compare,
        columns.columns,
        labels.verify_heads,
        rope.frequencies,
        weights.gaussian,
        weights.localization,
        check.check,
    ),
    "Change and train": (
        intervene.intervene,
        rope.rope,
        train.train,
        train.runs,
        timeline.timeline,
    ),
    "The papers": (theory.theory,),
}
"""The commands by the panels of --help, those of every day first."""

for panel, commands in PANELS.items():
    for command in commands:
        name = {"map_attention": "map"}.get(command.__name__)
        app.command(name=name, cls=Command, rich_help_panel=panel)(command)
app.add_typer(experiment.experiment, name="experiment", rich_help_panel="The papers")


def main() -> None:
    """Run a command; a user's mistake prints one sentence on standard error and exits with code 2."""
    wait_asleep(os.environ)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit_on_sigterm)
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        code = app(prog_name="armillary", standalone_mode=False) or 0
        sys.stdout.flush()
    except ArmillaryError as error:
        _tell(as_options(str(error)))
        code = 2
    except OSError as error:
        _tell(_os_sentence(error))
        _discard_output()
        code = 2
    except MemoryError as error:
        _tell(f"there is not enough memory for this ({error or 'an allocation failed'}): ask for less")
        code = 2
    except typer.Abort as error:  # how Typer passes on an EOFError
        _tell(f"a file or the input ended too early ({error.__cause__ or 'the input'})")
        code = 2
    except UsageError as error:
        code = 2
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            _tell(_usage_sentence(error))
    except SystemExit as ended:
        code = ended.code
        if code == TERMINATED:  # a second signal must not interrupt the cleanup
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if code in (130, TERMINATED):  # Ctrl-C sends the first
        kept = (
            "finished work is saved: continue a scan with --resume, a training run or a timeline by starting it again"
        )
        _tell(f"stopped; {kept}")
    sys.exit(code)


def _os_sentence(error: OSError) -> str:
    """The sentence for an error of the file system or of a connection."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        where = f" to write {error.filename}" if error.filename else ""
        return f"there is no space left{where}: make room, then run it again"
    place = str(error.filename)[:200] if error.filename is not None else "a file or a connection"
    return f"{place} cannot be used: {error.strerror or error}"


def _discard_output() -> None:
    """Discard what could not be printed: Python would try again at exit and print its own traceback."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage_sentence(error: Any) -> str:
    """The parser's message in one line, and where the options are listed."""
    message = " ".join(error.format_message().split()).rstrip(".").removeprefix("Invalid value: ")
    return f"{message} ({error.ctx.command_path if error.ctx else 'armillary'} --help lists the options)"


def _tell(sentence: str) -> None:
    typer.echo(f"armillary: {sentence}", err=True)


def _exit_on_sigterm(number: int, frame: Any) -> None:
    """Turn SIGTERM into an exception, so that workers end and temporary folders are removed."""
    sys.unraisablehook = _resend_sigterm
    sys.exit(TERMINATED)


def _resend_sigterm(unraisable: Any) -> None:
    """Python drops exceptions raised inside a finalizer; if it dropped the one above, send the signal again."""
    if isinstance(unraisable.exc_value, SystemExit) and unraisable.exc_value.code == TERMINATED:
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
        timer.daemon = True
        timer.start()
    else:
        sys.__unraisablehook__(unraisable)
