"""The command line: its commands, and how it ends after an error, a signal or a closed pipe.

A command imports what it needs only when it runs, so that help is quick.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from idiolect import __version__
from idiolect.cli.bundle import bundle_command
from idiolect.cli.describe import describe_command
from idiolect.cli.diff import diff_command
from idiolect.cli.export import export_command
from idiolect.cli.federation import app as federation_app
from idiolect.cli.federation import site_command
from idiolect.cli.join import join_command
from idiolect.cli.list import list_command
from idiolect.cli.options import Command, Group
from idiolect.cli.output import finish, last_words, spell_out
from idiolect.cli.predict import predict_command
from idiolect.cli.report import report_command
from idiolect.cli.reproduce import reproduce_command
from idiolect.cli.run import run_command
from idiolect.cli.tune import tune_command
from idiolect.cli.validate import validate_command
from idiolect.cli.watch import watch_command
from idiolect.core import heap, terminal
from idiolect.core.errors import IdiolectError, Interrupted, as_options, near

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_MEMORY = re.compile("can't allocate memory|out of memory")  # torch has no exception class for this on the CPU
_STOPPED = 128 + signal.SIGINT
_UNREAD = 128 + 13  # as SIGPIPE ends other programs
UsageError: Any = typer.BadParameter.__mro__[1]  # from click, which typer includes under changing names


def _version(show: bool) -> None:
    if show:
        print(f"idiolect {__version__}")
        raise typer.Exit


@app.callback()
def idiolect(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Personalised federated learning: train, compare and understand."""


app.command("run", cls=Command)(run_command)
app.command("tune", cls=Command)(tune_command)
app.command("describe", cls=Command)(describe_command)
app.command("reproduce", cls=Command)(reproduce_command)
app.command("report", cls=Command)(report_command)
app.command("bundle", cls=Command)(bundle_command)
app.command("join", cls=Command)(join_command)
app.command("predict", cls=Command)(predict_command)
app.command("validate", cls=Command)(validate_command)
app.command("export", cls=Command)(export_command)
app.command("watch", cls=Command)(watch_command)
app.add_typer(federation_app, name="federation")
app.command("site", cls=Command)(site_command)
app.command("diff", cls=Command)(diff_command)
app.command("list")(list_command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point. An error gives one sentence on standard error and exit code 2, a signal 128 plus its number."""
    if threading.current_thread() is not threading.main_thread():
        _main(arguments)
    before = signal.signal(signal.SIGINT, _stop)
    try:
        _main(arguments)
    finally:
        signal.signal(signal.SIGINT, before)


def _main(arguments: Sequence[str] | None) -> NoReturn:
    heap.keep_heap()
    if logging.lastResort is not None:  # where warnings go
        logging.lastResort.setFormatter(terminal.Formatter())
    spell_out()
    try:
        try:
            with as_options():
                code = app(arguments, prog_name="idiolect", standalone_mode=False)
            if sys.stdout is not None:
                sys.stdout.flush()
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # rich and click end in this way
                raise end.__context__ from None
            raise
    except Interrupted as stop:
        finish(str(stop), 128 + stop.signal)
    except IdiolectError as error:
        finish(str(error), 2)
    except UsageError as error:
        finish(_usage(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        code = _STOPPED  # by Ctrl-C before a run began; some versions of typer return this
    except BrokenPipeError:  # as after "| head": the reader has stopped
        finish("", _UNREAD)
    except (OSError, MemoryError, UnicodeError, RecursionError) as error:
        finish(last_words(error), 2)
    except RuntimeError as error:
        if not _MEMORY.search(str(error)):
            raise
        finish(last_words(MemoryError(str(error).partition("] . ")[2] or error)), 2)
    if code == _STOPPED:
        finish("stopped", code)
    finish("", code if isinstance(code, int) else 0)


def _usage(error: Any) -> str:
    """A sentence for arguments that cannot be parsed; an unknown option is told as everywhere else."""
    unknown, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if context is None or type(error).__name__ != "NoSuchOption":
        return " ".join(error.format_message().replace("Value error, ", "").split())
    names = [
        name for p in context.command.get_params(context) for name in (*p.opts, *p.secondary_opts) if name[0] == "-"
    ]
    close = near(str(unknown), names)
    hint = "" if close is None else f"did you mean {close}? "
    return f"unknown option {unknown}; {hint}{'All' if close else 'all'} options: {context.command_path} --help"


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """Ctrl-C outside a run, when nothing has to be saved; another package's import could hide a KeyboardInterrupt."""
    os.write(2, b"idiolect: stopped\n")
    os._exit(_STOPPED)
