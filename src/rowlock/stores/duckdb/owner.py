"""Owner mode: cursors from the connection or engine of the process that has the DuckDB file open.

DuckDB lets one process open a file, so whoever has it open shares it with rowlock; nothing here opens a file.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rowlock.errors import ConfigurationError, StoreClosed, StoreUnusable
from rowlock.stores import base
from rowlock.stores.duckdb.turns import TAKES_TURNS
from rowlock.stores.duckdb.wake import look_at

if TYPE_CHECKING:
    import duckdb

_IN_CHILD = (
    "this is a child process of the pool, and {path} is open in its parent, process {owner}: DuckDB lets "
    "no second "
    "process open it. Return what is to be written, and let the parent write it: in a task without "
    'pool="process"'
)
_FORKED = "{path} was opened by process {owner}, of which this is a fork: give the queue a process of its own"
_NO_FILE = "the {what} is to a DuckDB in memory; a queue has to outlive its process: use a file"
_TAKES_TURNS = (
    "this engine is of rowlock.duckdb.create_engine: it takes turns with {path}, and an app that has it "
    'would keep the turn. Give the app the URL, Rowlock("duckdb:///{path}"), and use the engine beside it'
)


class Owner:
    """A source of cursors: each is a connection of its own to the same open database."""

    def __init__(self, path: str, shown: str) -> None:
        self.path = path
        self.shown = shown
        self.url = f"duckdb:///{quote(shown)}"
        self._made_in = os.getpid()

    @contextmanager
    def borrowed(self, create: bool = True, is_long: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor for the length of a block; what it has not committed then is undone."""
        if base.in_pool_child:
            raise StoreUnusable(_IN_CHILD.format(path=self.shown, owner=os.getppid()))
        if os.getpid() != self._made_in:
            raise StoreUnusable(_FORKED.format(path=self.shown, owner=self._made_in))
        with closing(self._cursor()) as cursor:
            yield cursor

    def together(self) -> AbstractContextManager[None]:
        """Nothing is gained by doing several things at once."""
        return nullcontext()

    def change(self) -> Hashable:
        """A value that is different once anybody has written."""
        return look_at(self.path)

    def facts(self) -> dict[str, Any]:
        """For the doctor: this process has the file, and a cursor takes so long; there are no turns."""
        began = time.monotonic()
        with self.borrowed():
            return {"mode": "owner", "holder": os.getpid(), "turn_seconds": time.monotonic() - began}

    def long_turn(self) -> tuple[float, float]:
        """Nobody waits for a turn here."""
        return 0.0, 0.0

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what rowlock has of it; the user's own connections stay open."""


class ConnectionOwner(Owner):
    """Cursors from a `duckdb` connection."""

    def __init__(self, connection: Any) -> None:
        if type(connection).__name__ != "DuckDBPyConnection":
            raise ConfigurationError(
                "Rowlock(connection=...) takes a DuckDB connection, not a "
                f"{type(connection).__qualname__}: for another database give its URL"
            )
        self._connection = connection
        path = _file_of(self._cursor())
        super().__init__(path, path)

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        try:
            made: duckdb.DuckDBPyConnection = self._connection.cursor()
        except import_module("duckdb").ConnectionException as error:
            raise StoreClosed(
                "the DuckDB connection that this app was made with is closed: keep it open for as long as "
                f"the app is used (DuckDB: {error})"
            ) from error
        return made


class EngineOwner(Owner):
    """Cursors from a connection of a SQLAlchemy engine for DuckDB."""

    def __init__(self, engine: Any, home: str = "") -> None:
        dialect = getattr(getattr(engine, "dialect", None), "name", None)
        if dialect is None or not hasattr(engine, "raw_connection"):
            raise ConfigurationError(
                f"Rowlock(engine=...) takes a SQLAlchemy engine for DuckDB, not a {type(engine).__qualname__}"
            )
        if dialect != "duckdb":
            raise ConfigurationError(
                "Rowlock(engine=...) is for DuckDB, where only one process may open the file, and this "
                "engine is for "
                f'{dialect}: give its URL, Rowlock("{dialect}://...")'
            )
        path = engine.url.database or ""
        if path in ("", ":memory:"):
            raise ConfigurationError(_NO_FILE.format(what="engine"))
        if engine.get_execution_options().get(TAKES_TURNS):
            raise ConfigurationError(_TAKES_TURNS.format(path=path))
        super().__init__(os.path.abspath(os.path.join(home, path)), path)
        self._engine = engine
        self._lock = threading.Lock()
        self._root: Any = None
        self._disposed = False
        import_module("sqlalchemy").event.listen(engine, "engine_disposed", self._dispose)

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            if self._disposed:
                raise StoreClosed(
                    f"the engine for {self.shown} that this app was made with was disposed: make a new app "
                    "with the engine that is used now"
                )
            if self._root is None:
                self._root = self._connect()
            # The wrapper's own cursor is the connection itself; a cursor of that is a connection beside it.
            made: duckdb.DuckDBPyConnection = self._root.cursor().cursor()
        return made

    def _connect(self) -> Any:
        pooled = self._engine.raw_connection()
        driver = pooled.driver_connection
        if "Queue" in type(self._engine.pool).__name__ or "Null" in type(self._engine.pool).__name__:
            pooled.detach()  # else the pool might close it under the cursors that were made from it
        else:
            pooled.close()
        return driver

    def _dispose(self, engine: Any) -> None:
        self._disposed = True
        self.close()

    def close(self) -> None:
        """Close the connection of its own that it has from the engine."""
        with self._lock:
            root, self._root = self._root, None
            if root is not None:
                root.close()


def _file_of(cursor: duckdb.DuckDBPyConnection) -> str:
    """The file of a connection's database."""
    with closing(cursor):
        rows = cursor.execute(
            "SELECT path FROM duckdb_databases() WHERE database_name = current_database()"
        ).fetchall()
    if not rows or not rows[0][0]:
        raise ConfigurationError(_NO_FILE.format(what="connection"))
    return os.path.abspath(str(rows[0][0]))
