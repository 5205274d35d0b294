"""A worker process on a database that is about to fail, and what to look at while it does."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rowlock import Rowlock
from rowlock.errors import StoreError
from tests.eventually import eventually

_MODULE = """
import os, time
from pathlib import Path
from rowlock import Rowlock

app = Rowlock({url!r}, lease={lease}, poll_interval=0.1, busy_timeout=0.2)
folder = Path({folder!r})


@app.task
def work(n: int) -> int:
    with (folder / "runs").open("a") as runs:
        runs.write(f"{{n}}\\n")
    while (folder / "hold").exists():
        time.sleep(0.01)
    return n
"""
_LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
os.execv(sys.argv[2], sys.argv[2:])
"""


class Outage:
    """A folder with an app, its queue (which may be on another disk), a worker and the worker's log."""

    def __init__(self, folder: Path, database: Path, lease: float = 60.0) -> None:
        self.folder, self.database = folder, database
        text = _MODULE.format(url=f"sqlite:///{database}", lease=lease, folder=str(folder))
        (folder / "jobs.py").write_text(text)
        self.process: subprocess.Popen[bytes] | None = None

    def rowlock(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a command on the queue to its end."""
        command = [sys.executable, "-m", "rowlock", *map(str, words)]
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, encoding="utf-8", timeout=60, check=False
        )

    def enqueue(self, n: int) -> bool:
        """Enqueue a job; True if that was acknowledged."""
        app = Rowlock(f"sqlite:///{self.database}")
        try:
            app.enqueue("work", {"n": n})
        except StoreError:
            return False
        finally:
            app.close()
        return True

    @contextmanager
    def worker(self, *words: str, largest_file: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """A worker with two threads, from its first claim on; killed at the end if it still lives.

        `words` start another one; `largest_file` is how many bytes it may write into a file, until `unlimit`.
        """
        limited = [] if largest_file is None else [sys.executable, "-c", _LIMITED, str(largest_file)]
        rowlock = [sys.executable, "-m", "rowlock", *(words or ("worker", "jobs:app")), "--concurrency", "2"]
        # Half of a cached module would be written, too, and believed.
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                limited + rowlock, cwd=self.folder, env=environment, stdout=subprocess.DEVNULL, stderr=log
            )
        try:
            yield self.process
        finally:
            self.process.kill()
            self.process.wait()

    def stop(self) -> int:
        """Tell the worker to end; returns its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def unlimit(self) -> None:
        """From now on the worker may write large files."""
        import resource

        assert self.process is not None
        no_limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, no_limit)

    # -- what can be seen from outside ----------------------------------------------------------------

    def hold(self) -> None:
        """From now on tasks do not return."""
        (self.folder / "hold").touch()

    def let_go(self) -> None:
        (self.folder / "hold").unlink()

    def runs(self) -> Counter[int]:
        """How often each job has been begun."""
        path = self.folder / "runs"
        return Counter(map(int, path.read_text().split())) if path.exists() else Counter()

    def log(self) -> list[str]:
        return (self.folder / "log").read_text().splitlines()

    def told(self, word: str) -> list[str]:
        """The lines of the worker's log that have this word."""
        return [line for line in self.log() if word in line]

    def states(self) -> dict[str, int]:
        """How many jobs are in each state."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
            return dict(connection.execute("SELECT state, count(*) FROM rowlock_jobs GROUP BY state"))

    def completed(self) -> int:
        return self.states().get("completed", 0)

    def integrity(self) -> str:
        with closing(sqlite3.connect(self.database)) as connection:
            return str(connection.execute("PRAGMA integrity_check").fetchone()[0])

    def cpu_seconds(self) -> float:
        """The processor time that the worker has used so far."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def watch(self, seconds: float) -> Watched:
        """Look on for a while; what is measured is the worker's own doing, not how long it took."""
        cpu, lines, began = self.cpu_seconds(), len(self.log()), time.monotonic()
        eventually(lambda: time.monotonic() >= began + seconds, timeout=seconds + 60)
        assert self.process is not None and self.process.poll() is None, self.log()
        used = self.cpu_seconds() - cpu
        return Watched(used / (time.monotonic() - began), self.log()[lines:])


class Watched:
    """What a worker did while its database could not be used."""

    def __init__(self, cpu_share: float, lines: list[str]) -> None:
        self.cpu_share, self.lines = cpu_share, lines

    def assert_calm(self) -> None:
        """Neither spinning nor chattering: an idle worker uses about one hundredth of a core."""
        assert self.cpu_share < 0.3, self.cpu_share
        assert len(self.lines) <= 5, self.lines


class SmallDisk:
    """A file system of a few megabytes, in memory, that can be filled and freed; for root on Linux."""

    def __init__(self, folder: Path, megabytes: int = 8) -> None:
        self.folder = folder
        self._filler = folder / "filler"
        folder.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "rowlock-test", str(folder))

    def fill(self, spare: int = 0) -> None:
        """Take what is left, to the last byte, or to the last few."""
        with self._filler.open("wb", buffering=0) as file:
            for size in (65536, 4096, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    pass
            file.truncate(file.tell() - spare)

    def free(self) -> None:
        self._filler.unlink()

    def read_only(self, yes: bool) -> None:
        _run("mount", "-o", f"remount,{'ro' if yes else 'rw'}", str(self.folder))

    def close(self) -> None:
        _run("umount", "-l", str(self.folder))


def can_mount() -> bool:
    """True if this process may mount a file system."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "rowlock-test", "/mnt"]  # gone with its process
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@contextmanager
def failing_calls(process: subprocess.Popen[bytes], what: str) -> Iterator[None]:
    """While the block runs, these system calls of a running process fail (an `inject=` of strace)."""
    command = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"inject={what}", "-p", str(process.pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        eventually(lambda: _traced(process.pid) or tracer.poll() is not None)
        assert tracer.poll() is None, tracer.communicate()[1]
        yield
    finally:
        tracer.terminate()
        tracer.communicate()


def _traced(pid: int) -> bool:
    try:
        return all(
            "TracerPid:\t0\n" not in (thread / "status").read_text()
            for thread in Path(f"/proc/{pid}/task").iterdir()
        )
    except (FileNotFoundError, ProcessLookupError):
        return False  # a thread ended while it was looked at


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def seconds_until(predicate: Callable[[], object], timeout: float) -> float:
    """How long it took until it was true."""
    began = time.monotonic()
    eventually(predicate, timeout)
    return time.monotonic() - began
