"""SQLite as a database that holds a queue: transactions, the sequence, inserts, and what else is its own.

Sessions are in `session.py`, the words in which statements are written in `dialect.py`.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, cast
from urllib.parse import quote

from rowlock.codec import json_text
from rowlock.errors import DiskTrouble, StoreError, StoreMoved, StoreUnusable
from rowlock.job import Inserted, NewJob, Outcome
from rowlock.stores.base import LookingWake, Wake
from rowlock.stores.sql.copying import MOVED, CopySide
from rowlock.stores.sql.database import Database, size_of
from rowlock.stores.sql.inserting import insert as insert_by_key
from rowlock.stores.sql.schema_versions import facts_in, single_statements
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.statements import Statements
from rowlock.stores.sql.store import Store
from rowlock.stores.sql.user_connection import UserConnection
from rowlock.stores.sql.user_transaction import UserSession
from rowlock.stores.sqlite import schema
from rowlock.stores.sqlite.connections import SAFE_AUTOCHECKPOINT, Connections
from rowlock.stores.sqlite.dialect import CLAIM_SQL, own_statements, written
from rowlock.stores.sqlite.faults import explain, is_moved
from rowlock.stores.sqlite.inserting import insert, last_number
from rowlock.stores.sqlite.session import SqliteSession
from rowlock.stores.sqlite.transaction import SqliteTransaction
from rowlock.stores.sqlite.wal_checkpoints import Checkpoints

log = logging.getLogger("rowlock.sqlite")

_OLDEST = (3, 35)
_MANY = 4
_LARGE = 1_000_000  # characters: a list of results that is better written one by one


class SqliteDatabase(Database):
    """A SQLite file."""

    dialect = "sqlite"
    package = "rowlock.stores.sqlite"
    sees_every_commit = True
    claim_sql = CLAIM_SQL

    def __init__(self, path: str, *, home: str = "", busy_timeout: float = 5.0) -> None:
        super().__init__()
        self.path = self.shown = path
        self.url = f"sqlite:///{quote(path)}"
        # Absolute from the start: a task that changes the working directory must not lose the queue.
        self.connections = Connections(os.path.abspath(os.path.join(home, path)), busy_timeout, shown=path)
        self.checkpoints = Checkpoints(self.connections)
        self._inserts = 0

    # -- the life of the store -------------------------------------------------------------------

    def _look_at_tables(self, create: bool) -> None:
        if sqlite3.sqlite_version_info < _OLDEST:
            raise StoreUnusable(f"SQLite {sqlite3.sqlite_version} is too old; rowlock needs 3.35 or later")
        try:
            super()._look_at_tables(create)
        except DiskTrouble:
            self.connections.forget()  # the next call begins anew, with what is there by then
            raise
        self.connections.exists = True

    def ddl(self) -> str:
        return schema.ddl()

    @contextmanager
    def _before_tables(self, create: bool) -> Iterator[SqliteSession]:
        with self.explaining(), self.connections.borrowed(create) as connection:
            yield SqliteSession(connection, None)
            self.connections.use_wal(connection)

    @contextmanager
    def _changing_tables(self, db: Session, creating: bool) -> Iterator[Callable[[str], object]]:
        connection = cast(SqliteSession, db).connection
        if creating:
            self.connections.use_wal(connection)
        with self._writing(None):
            yield lambda script: [connection.execute(one) for one in single_statements(script)]

    def _close_connections(self) -> None:
        self.connections.close()

    # -- transactions ----------------------------------------------------------------------------

    def write(self, now: float | None = None) -> AbstractContextManager[SqliteSession]:
        self.open()
        return self._writing(now)

    @contextmanager
    def _writing(self, now: float | None) -> Iterator[SqliteSession]:
        with self.explaining(), self.connections.borrowed() as connection:
            is_inside_another = connection.in_transaction  # which SQLite refuses, and that one goes on
            try:
                # A deferred transaction that turns from reading to writing fails at once, with any timeout.
                connection.execute("BEGIN IMMEDIATE")
                began = time.monotonic()
                yield SqliteSession(connection, now)  # its clock is read once the lock is held
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction and not is_inside_another:
                    with suppress(sqlite3.Error):  # the first error is the one to tell
                        connection.execute("ROLLBACK")
                raise
            try:
                self.checkpoints.after_write(connection, time.monotonic() - began)
            except sqlite3.Error as late:
                # What was written is committed: this must not look as if it were not.
                log.warning("a checkpoint failed, the next one tries again: %s", self.explained(late))

    @contextmanager
    def read(self, now: float | None = None) -> Iterator[SqliteSession]:
        self.open()
        with self.explaining(), self.connections.borrowed() as connection:
            yield SqliteSession(connection, now)

    @contextmanager
    def snapshot(self) -> Iterator[SqliteSession]:
        with self.read() as session:
            session.connection.execute("BEGIN")
            try:
                yield session
            finally:
                session.connection.execute("COMMIT")

    @contextmanager
    def undone(self) -> Iterator[SqliteSession]:
        # Not a writing transaction: what is tried out in temporary tables needs no lock on the file.
        with self.read() as session:
            session.connection.execute("SAVEPOINT undone")
            try:
                yield session
            finally:
                if session.connection.in_transaction:
                    session.connection.execute("ROLLBACK TO undone")
                    session.connection.execute("RELEASE undone")

    def explained(self, error: Exception) -> StoreError | None:
        if not isinstance(error, sqlite3.Error):
            return None
        if is_moved(error):
            with self.connections.borrowed() as connection:
                return StoreMoved((facts_in(SqliteSession(connection, None)) or {}).get(MOVED, str(error)))
        if "readonly" in str(error):  # opened while it was read-only, a connection stays so for good
            self.connections.forget()
        return explain(error, self.path, self.connections.path)

    def statements(
        self, *sources: tuple[str, str], words: Mapping[str, str], style: str | None = None
    ) -> Statements:
        return written(*sources, words=words, style=style or "named")

    def numbers(self, tx: Session, count: int) -> range:
        last = last_number(cast(SqliteSession, tx).connection)
        tx.run("draw_numbers", count=count)
        return range(last + 1, last + 1 + count)

    def transaction(self, timeout: float | None) -> SqliteTransaction:
        self.open()
        with self.explaining():
            return SqliteTransaction(self)

    def is_file_of(self, user: UserConnection) -> bool:
        files = [row[2] for row in user.run("PRAGMA database_list", {}).rows if row[1] == "main" and row[2]]
        here = os.path.realpath(self.connections.path)
        return any(os.path.realpath(file) == here for file in files)

    def session_on(self, user: UserConnection) -> Session:
        return UserSession(user, own_statements(user.style), {"now": time.time(), "mono": time.monotonic()})

    def copying(self, store: Store) -> CopySide:
        from rowlock.stores.sqlite.copying import SqliteCopySide

        return SqliteCopySide(store)

    # -- producing -------------------------------------------------------------------------------

    def insert(self, jobs: Sequence[NewJob], now: float | None = None) -> list[Inserted]:
        with self.write(now) as tx:
            if any(job.unique_key is not None for job in jobs):
                inserted = insert_by_key(tx, jobs)
            else:
                inserted = insert(tx.connection, jobs, tx.now)
        self._inserts += 1
        return inserted

    # -- finishing -------------------------------------------------------------------------------

    def finish_many(self, tx: Session, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        # Many at once cost 3 us each against 14. If any claim was lost, that is undone and each is looked at.
        usual = [outcome for outcome in outcomes if outcome.is_usual]
        if len(usual) < _MANY:
            return outcomes
        results = json_text({one.id: one.result for one in usual})
        if len(results) > _LARGE:
            return outcomes
        connection = cast(SqliteSession, tx).connection
        connection.execute("SAVEPOINT finish")
        if tx.run("finish_all_completed", done=results) < len(usual):
            connection.execute("ROLLBACK TO finish")
            return outcomes
        return [one for one in outcomes if not one.is_usual]

    # -- what SQLite has to be asked for ---------------------------------------------------------

    def wake(self, worker: Callable[[], str], ring: Callable[[], None]) -> Wake:
        return LookingWake(self._change)

    def _change(self) -> int:
        """A number that is different once somebody has committed since the last look."""
        self.open()
        with self.explaining(), self.connections.borrowed() as connection:
            version: int = connection.execute("PRAGMA data_version").fetchone()[0]
        # A connection does not see its own commits this way, so the inserts of this process are counted, too.
        return version + (self._inserts << 32)

    def checkpoint(self) -> None:
        with self.explaining(), self.connections.borrowed() as connection:
            self.checkpoints.in_maintenance(connection)

    def facts(self) -> dict[str, Any]:
        with self.read() as db:

            def pragma(name: str) -> Any:
                return db.connection.execute(f"PRAGMA {name}").fetchone()[0]

            return {
                "server_version": sqlite3.sqlite_version,
                "wal_reset_bug": not SAFE_AUTOCHECKPOINT,
                "journal_mode": pragma("journal_mode"),
                "synchronous": {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}[pragma("synchronous")],
                "bytes": pragma("page_count") * pragma("page_size"),
                "wal_bytes": size_of(f"{self.connections.path}-wal"),
                "quick_check": [row[0] for row in db.connection.execute("PRAGMA quick_check(5)")],
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
                    # In one step: every commit of another process restarts a slow one.
                    connection.backup(copy)
            finally:
                copy.close()
            os.replace(partial, target)
        except (sqlite3.Error, OSError) as error:
            with suppress(OSError):
                os.remove(partial)
            raise StoreError(f"the backup to {target} failed, nothing is left of it: {error}") from error
        return os.stat(target).st_size
