"""The keeper of a server's folder: waits until nobody holds it, ends the server, removes the folder.
A process of its own, for tests may be killed and must not leave servers behind; imported by nobody."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from pathlib import Path


def main(folder: Path) -> None:
    """Leave at once, and keep the folder in a process that outlives whoever started it."""
    if os.fork():
        return
    os.setsid()
    # The kernel lets go of a hold when its process ends, however it ends: no count can be wrong.
    users = os.open(folder / "users", os.O_RDONLY)
    fcntl.flock(users, fcntl.LOCK_EX)
    for pid_file in (folder / "redis.pid", folder / "pgbouncer.pid", folder / "data" / "postmaster.pid"):
        end(pid_file)
    shutil.rmtree(folder, ignore_errors=True)


def end(pid_file: Path) -> None:
    """End the process that the file names: its data is about to go, so at once."""
    try:
        pid = int(pid_file.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return
    # SIGQUIT is PostgreSQL's immediate shutdown: it takes its children with it.
    for number in (signal.SIGQUIT, signal.SIGKILL):
        deadline = time.monotonic() + 10
        try:
            os.kill(pid, number)
            while pid_file.exists() and time.monotonic() < deadline:
                os.kill(pid, 0)
                time.sleep(0.01)  # noqa: TID251 - without site-packages and the tests' folder
        except ProcessLookupError:
            return
        if not pid_file.exists():
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
