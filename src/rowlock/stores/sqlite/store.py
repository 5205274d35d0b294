"""The SQLite store: transactions, the sequence, inserts, and what else is SQLite's own.

The verbs it shares with other databases are in `stores/sql.py` and `stores/reading.py`.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache
from typing import Any, cast
from urllib.parse import quote

import msgspec

from rowlock.errors import DiskTrouble, SchemaMismatch, StoreError, StoreMissing, StoreUnusable
from rowlock.job import Inserted, NewJob, Outcome, utc
from rowlock.stores.sql import statements as queries
from rowlock.stores.sql.claim_sql import READY, ClaimSql
from rowlock.stores.sql.claiming import CLAIM_COLUMNS
from rowlock.stores.sql.inserting import insert as insert_by_key
from rowlock.stores.sql.reading import JOB_COLUMNS, SqlReads, refused_claims
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.store import SqlStore
from rowlock.stores.sql.user_connection import UserConnection
from rowlock.stores.sql.user_transaction import SqlUserTransactions, UserSession
from rowlock.stores.sql.versions import check, migrations_in, version_of
from rowlock.stores.sqlite import schema
from rowlock.stores.sqlite.checkpoints import Checkpoints, size_of
from rowlock.stores.sqlite.connections import SAFE_AUTOCHECKPOINT, Connections
from rowlock.stores.sqlite.faults import explain
from rowlock.stores.sqlite.inserting import insert, last_number
from rowlock.stores.sqlite.transaction import SqliteTransaction
from rowlock.stores.sqlite.wake import DataVersionWake

log = logging.getLogger("rowlock.sqlite")

_OLDEST = (3, 35)
_MANY = 4
_LARGE = 1_000_000  # characters: a list of results that is better written one by one
# What a claim will look like once `mark_taken` has been run on it.
_TAKEN = {"claim": "j.claim + 1", "claimed_at": ":now", "claimed_by": ":worker"}
_WORDS = {
    "now": ":now",
    "now+": "(:now + {0})",
    "now-": "(:now - {0})",
    "running": "state = 'running'",
    "lock": "",  # BEGIN IMMEDIATE has locked everything
    "ids": "SELECT value FROM json_each(:ids)",
    "queues": "SELECT value FROM json_each(:queues)",
    "task_names": "SELECT value FROM json_each(:task_names)",
    "job": JOB_COLUMNS,
    "claim": ", ".join(_TAKEN.get(name, f"j.{name}") for name in CLAIM_COLUMNS),
}
_QUERIES = queries.load(
    ("rowlock.stores.sql", "shared.sql"), ("rowlock.stores.sqlite", "queries.sql"), words=_WORDS
)
_CLAIM_SQL = ClaimSql(_QUERIES, indexes=(READY,))


@cache
def _pyformat() -> queries.Statements:
    """The same statements for drivers that write a parameter as %(name)s."""
    return queries.load(
        ("rowlock.stores.sql", "shared.sql"),
        ("rowlock.stores.sqlite", "queries.sql"),
        words=_WORDS,
        parameter="%({0})s".format,
    )


class SqliteSession:
    """Runs named statements on one connection, at one moment."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        now: float | None,
        statements: Mapping[str, str] | None = None,
    ) -> None:
        self.connection = connection
        self._statements = _QUERIES if statements is None else statements
        wall = time.time()
        self.now = wall if now is None else now
        # A given time moves both clocks by the same distance, so that tests can let leases run out.
        self.mono = time.monotonic() + (self.now - wall)

    def run(self, name: str, /, **values: Any) -> int:
        return self.connection.execute(self._statements[name], self._bound(values)).rowcount

    def rows(self, name: str, /, **values: Any) -> list[Any]:
        return self.connection.execute(self._statements[name], self._bound(values)).fetchall()

    def each(self, name: str, /, values: Sequence[dict[str, Any]]) -> None:
        self.connection.executemany(self._statements[name], [self._bound(one) for one in values])

    def count_each(self, name: str, /, values: Sequence[dict[str, Any]]) -> list[int]:
        execute, statement = self.connection.execute, self._statements[name]
        return [execute(statement, self._bound(one)).rowcount for one in values]

    def row(self, name: str, /, **values: Any) -> Any:
        cursor = self.connection.execute(self._statements[name], self._bound(values))
        row = cursor.fetchone()
        cursor.close()  # an unfinished SELECT would hold its snapshot, and with it the WAL
        return row

    def take(self, statement: str, /, **values: Any) -> list[Any]:
        # Read, then mark each by its id: one `UPDATE ... WHERE id IN (SELECT ...) RETURNING` fills temporary
        # tables and took 160 us against 28. BEGIN IMMEDIATE makes two statements as safe as one.
        rows = self.connection.execute(statement, self._bound(values)).fetchall()
        ids = [row[0] for row in rows]
        if len(ids) == 1:
            self.run("mark_taken", id=ids[0], worker=values["worker"])
        elif ids:
            self.run("mark_all_taken", ids=str(ids), worker=values["worker"])
        return rows

    def _bound(self, values: dict[str, Any]) -> dict[str, Any]:
        values["now"] = self.now
        values["mono"] = self.mono
        return values

    def using(self, statements: Mapping[str, str]) -> SqliteSession:
        """The same transaction, at the same moment, with other statements."""
        other = SqliteSession(self.connection, self.now, statements)
        other.mono = self.mono
        return other


class _Writing:
    """A durable transaction as a `with` block; a class, because generators cost 8 us of 90 per enqueue."""

    __slots__ = ("_began", "_connection", "_now", "_store")

    def __init__(self, store: SqliteStore, now: float | None) -> None:
        self._store = store
        self._now = now

    def __enter__(self) -> SqliteSession:
        try:
            self._connection = connection = self._store.connections.borrow()
        except sqlite3.Error as error:  # a thread's first use opens one, and a bad disk may refuse that
            raise self._store.explained(error) from error
        try:
            # A deferred transaction that turns from reading to writing fails at once, whatever the timeout.
            connection.execute("BEGIN IMMEDIATE")
        except BaseException as error:
            if connection.uses == 1 and connection.in_transaction:  # interrupted after it had begun
                connection.execute("ROLLBACK")
            self._store.connections.give_back(connection)
            if isinstance(error, sqlite3.Error):
                raise self._store.explained(error) from error
            raise
        self._began = time.monotonic()
        return SqliteSession(connection, self._now)  # its clock is read once the lock is held

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        connection, raised = self._connection, error
        try:
            if error is None:
                connection.execute("COMMIT")
        except BaseException as failed:
            error = failed
        if error is not None and connection.in_transaction:
            with suppress(sqlite3.Error):  # the first error is the one to tell
                connection.execute("ROLLBACK")
        try:
            if error is None:
                self._store.checkpoints.after_write(connection, time.monotonic() - self._began)
        except sqlite3.Error as late:  # what was written is committed: this must not look as if it were not
            log.warning("a checkpoint failed, the next one tries again: %s", self._store.explained(late))
        finally:
            self._store.connections.give_back(connection)
        if isinstance(error, sqlite3.Error):
            raise self._store.explained(error) from error
        if error is not None and error is not raised:
            raise error


class SqliteStore(SqlReads, SqlStore, SqlUserTransactions):
    """A queue in a SQLite file."""

    _dialect = "sqlite"
    sees_every_commit = True
    _claim_sql = _CLAIM_SQL

    def __init__(self, path: str, *, home: str = "", busy_timeout: float = 5.0) -> None:
        super().__init__()
        self.path = path
        self.url = f"sqlite:///{quote(path)}"
        # Absolute from the start: a task that changes the working directory must not lose the queue.
        self.connections = Connections(os.path.abspath(os.path.join(home, path)), busy_timeout, shown=path)
        self.checkpoints = Checkpoints(self.connections)
        self._opened_in: int | None = None
        self._inserts = 0

    # -- the life of the store -------------------------------------------------------------------

    def open(self, create: bool = True) -> None:
        if self._opened_in == os.getpid():
            return
        if sqlite3.sqlite_version_info < _OLDEST:
            raise StoreUnusable(f"SQLite {sqlite3.sqlite_version} is too old; rowlock needs 3.35 or later")
        try:
            with self._explained(), self.connections.borrowed(create) as connection:
                self._look_at(connection, create)
        except DiskTrouble:
            self.connections.forget()  # the next call begins anew, with what is there by then
            raise
        self.connections.exists = True
        self._opened_in = os.getpid()

    def _look_at(self, connection: sqlite3.Connection, create: bool) -> None:
        """Create the tables if they are missing (and may be), and see that this code can use them."""
        facts = schema.meta(connection)
        if facts is None:
            if not create:
                raise StoreMissing(f"no queue at {self.path} (the file is there, rowlock's tables are not)")
            self.connections.use_wal(connection)
            schema.create(connection)
            facts = schema.meta(connection)
        if facts is None:
            raise SchemaMismatch(f"the queue's tables could not be created in {self.path}")
        check(facts, self.path, schema.VERSION)
        self.connections.use_wal(connection)

    def ddl(self) -> str:
        return schema.ddl()

    def upgrade(self) -> tuple[int, int]:
        with self._explained(), self.connections.borrowed(create=False) as connection:
            if schema.meta(connection) is None:
                raise StoreMissing(f"no queue at {self.path}")
            return schema.upgrade(connection, migrations_in("rowlock.stores.sqlite"))

    def close(self) -> None:
        self.connections.close()
        self._opened_in = None

    # -- transactions ----------------------------------------------------------------------------

    def _write(self, now: float | None = None) -> _Writing:
        self.open()
        return _Writing(self, now)

    @contextmanager
    def _read(self, now: float | None = None) -> Iterator[SqliteSession]:
        self.open()
        with self._explained(), self.connections.borrowed() as connection:
            yield SqliteSession(connection, now)

    @contextmanager
    def _snapshot(self) -> Iterator[SqliteSession]:
        with self._read() as session:
            session.connection.execute("BEGIN")
            try:
                yield session
            finally:
                session.connection.execute("COMMIT")

    @contextmanager
    def undone(self) -> Iterator[SqliteSession]:
        # Not a writing transaction: what is tried out in temporary tables needs no lock on the file.
        with self._read() as session:
            session.connection.execute("SAVEPOINT undone")
            try:
                yield session
            finally:
                if session.connection.in_transaction:
                    session.connection.execute("ROLLBACK TO undone")
                    session.connection.execute("RELEASE undone")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self.explained(error) from error

    def explained(self, error: sqlite3.Error) -> StoreError:
        """What SQLite raised, as the store's own error."""
        if "readonly" in str(error):  # opened while it was read-only, a connection stays so for good
            self.connections.forget()
        return explain(error, self.path, self.connections.path)

    def statements(
        self, *sources: tuple[str, str], words: Mapping[str, str], style: str | None = None
    ) -> queries.Statements:
        return queries.load(
            ("rowlock.stores.sql", "shared.sql"),
            ("rowlock.stores.sqlite", "queries.sql"),
            *sources,
            words=_WORDS | dict(words),
            parameter="%({0})s".format if style == "pyformat" else None,
        )

    def _numbers(self, tx: Session, count: int) -> range:
        last = last_number(cast(SqliteSession, tx).connection)
        tx.run("draw_numbers", count=count)
        return range(last + 1, last + 1 + count)

    def _time(self, stored: float) -> datetime:
        return utc(stored)

    def transaction(self, timeout: float | None) -> SqliteTransaction:
        self.open()
        with self._explained():
            return SqliteTransaction(self.connections, self.path)

    def _appears(self, user: UserConnection, tx: Session) -> bool:
        # The user may hold the write lock by now: our own connection could not create them, the user's can.
        # If that is rolled back, the queue was never there.
        if not self._is_here(user):
            return False
        for statement in schema.statements(re.sub(r"--.*", "", schema.ddl())):
            user.run(statement, {})
        return True

    def _identity_for(self, user: UserConnection) -> str:
        return self._identity(self._session_on(user)) if self._is_here(user) else self.install_id()

    def _is_here(self, user: UserConnection) -> bool:
        files = [row[2] for row in user.run("PRAGMA database_list", {}).rows if row[1] == "main" and row[2]]
        here = os.path.realpath(self.connections.path)
        return any(os.path.realpath(file) == here for file in files)

    def _session_on(self, user: UserConnection) -> Session:
        statements = _QUERIES if user.style == "named" else _pyformat()
        return UserSession(user, statements, {"now": time.time(), "mono": time.monotonic()})

    # -- producing -------------------------------------------------------------------------------

    def insert(self, jobs: Sequence[NewJob], now: float | None = None) -> list[Inserted]:
        with self._write(now) as tx:
            if any(job.unique_key is not None for job in jobs):
                inserted = insert_by_key(tx, jobs)
            else:
                inserted = insert(tx.connection, jobs, tx.now)
        self._inserts += 1
        return inserted

    # -- finishing -------------------------------------------------------------------------------

    def _finish(self, tx: Session, worker: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
        # Many at once cost 3 us each against 14. If any claim was lost, that is undone and each is looked at.
        usual = [outcome for outcome in outcomes if outcome.is_usual]
        results = msgspec.json.encode({one.id: one.result for one in usual}).decode()
        if len(usual) < _MANY or len(results) > _LARGE:
            return super()._finish(tx, worker, outcomes)
        connection = cast(SqliteSession, tx).connection
        connection.execute("SAVEPOINT finish")
        if tx.run("finish_all_completed", done=results) < len(usual):
            connection.execute("ROLLBACK TO finish")
            return super()._finish(tx, worker, outcomes)
        return super()._finish(tx, worker, [one for one in outcomes if not one.is_usual])

    # -- what SQLite has to be asked for ---------------------------------------------------------

    def next_needed(self, worker: str, now: float | None = None) -> float | None:
        with self._read(now) as db:
            moments = [
                stored - db.now
                for name in ("next_due", "next_expiry", "next_pause_over")
                if (stored := db.row(name)[0]) is not None
            ]
            silent = db.row("next_silent", worker=worker)[0]
            if silent is not None:
                moments.append(silent)
            return max(0.0, min(moments)) if moments else None

    def wake(self, worker: Callable[[], str], ring: Callable[[], None]) -> DataVersionWake:
        return DataVersionWake(self._change)

    def _change(self) -> int:
        """A number that is different once somebody has committed since the last look."""
        self.open()
        with self._explained(), self.connections.borrowed() as connection:
            version: int = connection.execute("PRAGMA data_version").fetchone()[0]
        # A connection does not see its own commits this way, so the inserts of this process are counted, too.
        return version + (self._inserts << 32)

    def checkpoint(self) -> None:
        with self._explained(), self.connections.borrowed() as connection:
            self.checkpoints.in_maintenance(connection)

    def facts(self) -> dict[str, Any]:
        with self._read() as db:

            def pragma(name: str) -> Any:
                return db.connection.execute(f"PRAGMA {name}").fetchone()[0]

            meta = dict(db.rows("meta"))
            return {
                "store": "sqlite",
                "address": self.path,
                "schema_version": version_of(meta, self.path),
                "code_version": schema.VERSION,
                "install_id": meta["install_id"],
                "server_version": sqlite3.sqlite_version,
                "wal_reset_bug": not SAFE_AUTOCHECKPOINT,
                "journal_mode": pragma("journal_mode"),
                "synchronous": {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}[pragma("synchronous")],
                "bytes": pragma("page_count") * pragma("page_size"),
                "wal_bytes": size_of(f"{self.connections.path}-wal"),
                "quick_check": [row[0] for row in db.connection.execute("PRAGMA quick_check(5)")],
                "newest_created_at": db.row("newest_created_at")[0],
                "unknown_tasks": dict(db.rows("count_unknown")),
                "refused": refused_claims(db),
                "now": db.now,
            }

    def backup(self, target: str) -> int:
        self.open(create=False)
        if os.path.exists(target):
            raise StoreError(f"{target} exists already; a backup never overwrites: name another file")
        partial = f"{target}.partial"
        try:
            copy = sqlite3.connect(partial)
            try:
                with self.connections.borrowed() as connection:
                    connection.backup(
                        copy
                    )  # in one step: every commit of another process restarts a slow one
            finally:
                copy.close()
            os.replace(partial, target)
        except (sqlite3.Error, OSError) as error:
            with suppress(OSError):
                os.remove(partial)
            raise StoreError(f"the backup to {target} failed, nothing is left of it: {error}") from error
        return os.stat(target).st_size
