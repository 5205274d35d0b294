"""Every command's help, usage errors, the version, pipes and interrupts."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from rowlock import Rowlock, __version__
from rowlock.cli import cli, run
from rowlock.cli.commands import COMMANDS
from tests.cli.commands import CommandLine


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


ALL = dict(commands(typer.main.get_command(cli)))
PROMISED = {
    *("worker", "enqueue", "jobs", "job", "watch", "cancel", "retry", "queues", "pause", "resume", "workers"),
    *("check", "consume", "consumers", "relay", "ingest", "janitor", "init", "upgrade", "backup", "copy"),
    *("doctor", "demo"),
}


def test_all_promised_commands_are_there() -> None:
    assert {path[0] for path in ALL} == PROMISED


def test_every_module_has_exactly_the_commands_that_it_is_imported_for() -> None:
    for module, names in COMMANDS.items():
        made = typer.main.get_group(import_module(f"rowlock.cli.{module}").commands).commands
        assert tuple(made) == names


def test_a_command_imports_only_what_it_needs(rowlock: CommandLine) -> None:
    script = """if True:
        import sys
        from rowlock.cli import run
        assert run(["enqueue", "add", "a=1"]) == 0
        assert "rowlock.cli.jobs" not in sys.modules
        assert run(["--help"]) == 0
        assert "rowlock.cli.jobs" in sys.modules
        heavy = {"rowlock.worker.worker", "rowlock.consumers.source", "rowlock.insights"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", script], cwd=rowlock.folder, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_help_with_an_example_that_it_understands(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*path, "--help"]) == 0
    help_text = capsys.readouterr().out
    assert f"Usage: rowlock {' '.join(path)}" in help_text
    assert f"Example: rowlock {' '.join(path)}" in help_text
    assert "\x1b" not in help_text

    for line in (
        ALL[path].epilog.replace("Example: ", "").replace("Or: ", "").replace("\\[", "[").split("\n\n")
    ):
        words = shlex.split(line.split(" | ")[0].split(" || ")[0])
        assert words[0] == "rowlock"
        command = max((known for known in ALL if words[1 : 1 + len(known)] == list(known)), key=len)
        ALL[command].make_context("example", words[1 + len(command) :])  # raises if it cannot be parsed


def test_help_and_version_and_wrong_words(rowlock: CommandLine) -> None:
    assert rowlock("--version").out == f"rowlock {__version__}\n"
    assert "Usage: rowlock [OPTIONS] COMMAND" in rowlock.here().out
    assert rowlock.refused_here("jbos", code=2).startswith("no such command 'jbos'. Did you mean 'jobs'")
    assert rowlock.refused_here("jobs", "--stat", "failed", code=2).startswith("no such option: --stat")
    assert rowlock.refused_here("job", code=2) == "missing argument 'ID'; see rowlock job --help"


def test_the_installed_script_is_the_same_program() -> None:
    script = shutil.which("rowlock", path=str(Path(sys.executable).parent))
    assert script is not None
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"rowlock {__version__}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGPIPE and no SIGINT to send on Windows")
def test_a_reader_that_has_enough_and_an_interrupt_end_a_command_quietly(
    rowlock: CommandLine, shop: Rowlock
) -> None:
    shop.enqueue("add", {"text": "x" * 500_000})
    for words in (["--json"], ["--limit", "1"]):  # more than fits into a buffer, and less
        reader, writer = os.pipe()
        os.close(reader)  # long before it has anything to say
        command = [sys.executable, "-m", "rowlock", "jobs", *words, "-d", "jobs.db"]
        ended = subprocess.run(
            command, cwd=rowlock.folder, stdout=writer, stderr=subprocess.PIPE, check=False
        )
        os.close(writer)
        assert (ended.returncode, ended.stderr) == (1, b"")
    with rowlock.start("watch", "1", "-d", "jobs.db") as watch:
        assert watch.process.stdout is not None
        assert watch.process.stdout.readline() == "job 1 (add): queued\n"
        watch.signal("SIGINT")
        assert watch.ends()[0] == 130
        assert watch.err == ""
