"""The processes that work on a team's table: rowlock's workers by their command line, and the team's own.

A worker with a name in `ADOPTION_HOLD` stops inside its function until the folder has a file `open`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.eventually import eventually
from tests.freezing import frozen_outside_of_transactions

ROOT = Path(__file__).parents[2]
URL = os.environ.get("ADOPTION_URL", "")
LEASE = 5.0  # seconds; a busy machine may keep a living worker from beating for a second or two
_FOLDER, _HOLD = "ADOPTION_FOLDER", "ADOPTION_HOLD"


def hold_here() -> None:
    """In the middle of a team's function: wait here, if this process was started to be killed or frozen."""
    name = os.environ.get(_HOLD)
    if name is None:
        return
    folder = Path(os.environ[_FOLDER])
    (folder / f"{name} is held").touch()
    eventually((folder / "open").exists, timeout=200)


def who() -> str:
    """The name of this process, for what it writes."""
    return os.environ.get("ADOPTION_NAME", "test")


def for_sqlalchemy(url: str) -> str:
    """The same URL as SQLAlchemy wants it."""
    return re.sub(r"^postgresql:", "postgresql+psycopg:", url)


class Crew:
    """The processes of one test, all of which end with it."""

    def __init__(self, team: str, url: str, folder: Path) -> None:
        self.url = url
        self._team = f"tests.adoption.{team}"
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []

    def rowlock(self, name: str, *command: str, hold: bool = False) -> subprocess.Popen[bytes]:
        """Start a command of rowlock's."""
        return self._start(name, "rowlock", *command, hold=hold)

    def consume(self, name: str, consumer: str, *options: str, hold: bool = False) -> subprocess.Popen[bytes]:
        """Start a worker with this name (and id)."""
        given = (f"{self._team}:app", consumer, "--name", name, *options)
        return self.rowlock(name, "consume", *given, hold=hold)

    def drain(self, name: str, consumer: str, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker that ends when nothing is due or in flight any more."""
        return self.consume(name, consumer, "--until-empty", *options)

    def init(self) -> None:
        """Adopt the table: create the indexes that the consumers need, and nothing else."""
        ended(self.rowlock("init", "consumers", "init", "--app", f"{self._team}:app"))

    def legacy(self, rows: int) -> subprocess.Popen[bytes]:
        """Start the team's own worker, which knows nothing of rowlock and takes at most so many rows."""
        return self._start("legacy", self._team, str(rows))

    def _start(self, name: str, module: str, *arguments: str, hold: bool = False) -> subprocess.Popen[bytes]:
        given = {"ADOPTION_URL": self.url, "ROWLOCK_DATABASE_URL": self.url}
        given |= {"ADOPTION_NAME": name, _FOLDER: str(self._folder)}
        if hold:
            given[_HOLD] = name
        command = [sys.executable, "-m", module, *arguments]
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **given})
        self._started.append(process)
        return process

    def one_killed_and_one_frozen(self, consumer: str, *options: str) -> subprocess.Popen[bytes]:
        """Two workers in the middle of rows, of which one is killed; returns the other, which is frozen."""
        names = ("killed", "frozen")
        killed, frozen = [self.consume(name, consumer, *options, hold=True) for name in names]
        for name in names:
            eventually((self._folder / f"{name} is held").exists, timeout=60)
        killed.kill()
        killed.wait()
        eventually(lambda: frozen_outside_of_transactions(frozen, self.url), timeout=60)
        return frozen

    def thaw(self, frozen: subprocess.Popen[bytes]) -> None:
        """Let it go on with the row that it has lost, and end in good order."""
        (self._folder / "open").touch()
        frozen.send_signal(signal.SIGCONT)
        stopped(frozen)

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()  # also one that is frozen
            process.wait()


def ended(*processes: subprocess.Popen[bytes]) -> None:
    """Wait for them; all have to end in good order."""
    for process in processes:
        assert process.wait(timeout=90) == 0


def stopped(process: subprocess.Popen[bytes]) -> None:
    """Tell it to finish what it has and to end."""
    process.send_signal(signal.SIGTERM)
    ended(process)
