"""The command line as its users meet it: in a folder of its own, and a process of its own where that matters.

A process takes half a second, so most commands run inside the tests' own, with `here`."""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from rowlock import Rowlock
from rowlock.cli import run
from tests.eventually import eventually

SHOP = """
import logging
import time
from pathlib import Path

from rowlock import Fail, JobContext, Retry, Rowlock


class WebApp:
    pass


app = WebApp()
queue = Rowlock("sqlite:///jobs.db", poll_interval=0.1)
print("the shop was imported")


@queue.task
def add(a: int, b: int) -> int:
    logging.getLogger("shop").info("adding")
    return a + b


@queue.task(queue="mail", priority=5, retry=Retry(max_attempts=2, base=0.05))
def send(to: str) -> None:
    raise ConnectionError(f"no [bold]way[/bold] to {to} \\x1b[31m")


@queue.task
def wait_for_the_go(ctx: JobContext) -> str:
    Path("started").touch()
    ctx.progress(1, 4, "waiting")
    ctx.log("waiting", for_what="go")
    deadline = time.monotonic() + 200
    while not Path("go").exists() and time.monotonic() < deadline:
        ctx.check_cancelled()
        time.sleep(0.01)
    return "gone"
"""
_IMPORTED = "the shop was imported\n"
_LEFT_OUT = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE")


class Ended:
    """What a command said and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def complaint(self) -> str:
        """The one line of a failure: nothing on stdout, no traceback."""
        assert self.code in (1, 2, 3) and self.out in ("", _IMPORTED), self
        (line,) = self.err.replace(_IMPORTED, "").splitlines()
        assert line.startswith("rowlock: ")
        return line.removeprefix("rowlock: ")

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class CommandLine:
    """Runs commands in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: object, code: int | None = 0, **environment: str) -> Ended:
        """Run a command to its end; `code` is the exit code it must have (None: any)."""
        done = subprocess.run(
            _command(words),
            cwd=self.folder,
            env=environment_with(environment),
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )
        ended = Ended(done.returncode, done.stdout, done.stderr)
        assert code is None or ended.code == code, ended
        return ended

    def refused(self, *words: object, code: int = 1, **environment: str) -> str:
        """Run a command that must fail with one line; returns that line."""
        return self(*words, code=code, **environment).complaint

    def start(self, *words: object, **environment: str) -> Started:
        """Start a command and leave it running."""
        with (self.folder / "stderr.txt").open("w", encoding="utf-8") as stderr:
            process = subprocess.Popen(
                _command(words),
                cwd=self.folder,
                env=environment_with(environment),
                stdout=subprocess.PIPE,
                stderr=stderr,
                encoding="utf-8",
            )
        return Started(process, self.folder)

    def here(self, *words: object, code: int | None = 0, **environment: str) -> Ended:
        """Run a command to its end inside this process, which is quicker."""
        out, err = StringIO(), StringIO()
        with (
            mock.patch.dict(os.environ, environment),
            _as_if_just_started(self.folder),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            ended_with = run([str(word) for word in words])
        ended = Ended(ended_with, out.getvalue(), err.getvalue())
        assert code is None or ended.code == code, ended
        return ended

    def refused_here(self, *words: object, code: int = 1, **environment: str) -> str:
        """Run a command inside this process that must fail with one line; returns that line."""
        return self.here(*words, code=code, **environment).complaint

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir() if path.suffix != ".py" and path.is_file()}


@contextmanager
def _as_if_just_started(folder: Path) -> Iterator[None]:
    """Be in the folder and know none of its modules; what a command leaves behind is cleared away."""
    root, where, known = logging.getLogger(), os.getcwd(), set(sys.modules)
    handlers, level = root.handlers, root.level
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    root.handlers = []  # or a worker's log would close those of pytest
    importlib.invalidate_caches()  # a module may have been written a moment ago
    os.chdir(folder)
    try:
        with mock.patch.object(sys, "path", sys.path[:]), mock.patch.object(sys, "dont_write_bytecode", True):
            yield
    finally:
        os.chdir(where)
        root.handlers = handlers
        root.setLevel(level)
        for number, handler in signals.items():  # a worker's process ends with it, and so do its signals
            signal.signal(number, handler)
        for name in set(sys.modules) - known:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(folder):
                _close_queues(sys.modules.pop(name))


def _close_queues(module: ModuleType) -> None:
    for value in vars(module).values():
        if isinstance(value, Rowlock):
            value.close()


class Started:
    """A command that is still running."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self._folder = folder

    @property
    def err(self) -> str:
        return (self._folder / "stderr.txt").read_text(encoding="utf-8")

    def signal(self, name: str) -> None:
        self.process.send_signal(getattr(signal, name))

    def says(self, words: str) -> None:
        """Wait until it has said this on stderr."""
        eventually(lambda: words in self.err, message=f"it never said {words!r}")

    def ends(self, within: float = 60) -> tuple[int, str]:
        """Wait for its end; returns its exit code and its stdout."""
        out, _ = self.process.communicate(timeout=within)
        return self.process.returncode, out

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def _command(words: tuple[object, ...]) -> list[str]:
    return [sys.executable, "-m", "rowlock", *map(str, words)]


def environment_with(more: dict[str, str]) -> dict[str, str]:
    """The environment of the tests, without what would decide on colours."""
    kept = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    return {**kept, "PYTHONIOENCODING": "utf-8", **more}
