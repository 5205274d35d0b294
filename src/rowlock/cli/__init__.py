"""The `rowlock` command: puts the groups of commands together and turns errors into one line each.

Each group is a module of its own, imported when one of its commands is called (`commands.py`).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, Any, TextIO

import typer

from rowlock import RowlockError, __version__
from rowlock.cli import target
from rowlock.cli.commands import CommandsOfModules
from rowlock.cli.failing import ERROR, USAGE, CommandFailed, complain, told
from rowlock.worker.signals import leave_with

# A command says itself what its user needs; those that work for long set up a log (`logs.py`).
logging.getLogger("rowlock").addHandler(logging.NullHandler())

cli = typer.Typer(
    name="rowlock",
    cls=CommandsOfModules,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rowlock {__version__}")
        raise typer.Exit


@cli.callback(invoke_without_command=True, epilog="Each command's --help has an example.")
def _rowlock(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A durable job queue in the database you already run."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line and leave with its exit code."""
    code = run(sys.argv[1:])
    stream: TextIO | None = sys.stdout
    if stream is not None:  # `>&-` closed it
        try:
            stream.flush()
        except BrokenPipeError:  # `rowlock jobs | head` has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            code = code or ERROR
    leave_with(code)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code. A worker's leaves signals without effect: the process ends."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a console that lacks a character must not end a command
    try:
        code = cli(list(arguments), prog_name="rowlock", standalone_mode=False)
    except CommandFailed as error:
        complain(error)
        return error.code
    except (RowlockError, ValueError, OSError) as error:
        complain(told(error))
        return ERROR
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        complain(_usage(error))
        return USAGE
    finally:
        target.close()
    return code if isinstance(code, int) else 0


def _usage(error: Any) -> str:
    """What was wrong with the words on the command line, and where help is.

    Typer's usage errors are known by their method: its versions take the class from different packages.
    """
    message = str(error.format_message()).rstrip(".").removeprefix("Invalid value: ")
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "rowlock"
    return f"{message[:1].lower()}{message[1:]}; see {path} --help"
