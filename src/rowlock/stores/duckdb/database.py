"""DuckDB as a database that holds a queue: transactions, the sequence, and what else is its own.

Its connections come from `owner.py`, or from `turns.py`.
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, cast
from urllib.parse import quote

import duckdb
import msgspec

from rowlock.errors import StoreBusy, StoreError, StoreUnusable
from rowlock.job import Inserted, NewJob, Outcome
from rowlock.liveness import Lease
from rowlock.stores.duckdb import dialect, schema
from rowlock.stores.duckdb.dialect import CLAIM_SQL, STATEMENTS
from rowlock.stores.duckdb.faults import Clash, explain
from rowlock.stores.duckdb.locks import lock_of
from rowlock.stores.duckdb.owner import Owner
from rowlock.stores.duckdb.session import DuckdbSession
from rowlock.stores.duckdb.transaction import DuckdbTransaction
from rowlock.stores.duckdb.turns import Turns
from rowlock.stores.duckdb.wake import FileWake, Hints
from rowlock.stores.sql import statements as queries
from rowlock.stores.sql.copying import CopySide, refuse_moved
from rowlock.stores.sql.database import Database, F, size_of
from rowlock.stores.sql.inserting import insert
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.store import Store
from rowlock.stores.sql.user_connection import UserConnection
from rowlock.stores.sql.user_transaction import UserSession

_OLDEST = (1, 5)
_TRIES = 8  # of a transaction that clashes with another
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.1  # seconds, before it is made again
_LEASE_PER_CAREFUL_AGE = 1.0 / Lease(1.0).rescue_below
_hints: dict[str, Hints] = {}  # by file: a process may have several apps on one
Access = Owner | Turns  # where connections come from: the process's own, or a turn with the file


class DuckdbDatabase(Database):
    """A DuckDB file."""

    dialect = "duckdb"
    package = "rowlock.stores.duckdb"
    sees_every_commit = True
    claim_sql = CLAIM_SQL

    def __init__(self, access: Access, *, busy_timeout: float = 5.0) -> None:
        super().__init__()
        self.access = access
        self.shown = access.shown
        self.url = f"duckdb:///{quote(access.shown)}"
        self.clashes = 0  # transactions that were made again, because another was faster
        self._busy_timeout = busy_timeout
        self._hints = _hints.setdefault(os.path.realpath(access.path), Hints())

    # -- the life of the store -------------------------------------------------------------------

    def _look_at_tables(self, create: bool) -> None:
        if tuple(int(part) for part in duckdb.__version__.split(".")[:2]) < _OLDEST:
            raise StoreUnusable(f"DuckDB {duckdb.__version__} is too old; rowlock needs 1.5 or later")
        super()._look_at_tables(create)

    def ddl(self) -> str:
        return schema.ddl()

    @contextmanager
    def _before_tables(self, create: bool) -> Iterator[DuckdbSession]:
        with self.explaining(), self.access.borrowed(create) as connection, self._locked():
            yield DuckdbSession(connection, None)

    @contextmanager
    def _changing_tables(self, db: Session, creating: bool) -> Iterator[Callable[[str], object]]:
        connection = cast(DuckdbSession, db).connection
        with schema.transaction(connection):
            yield connection.execute

    def _close_connections(self) -> None:
        self.access.close()

    # -- transactions ----------------------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of those in this process that write to the file."""
        lock = lock_of(self.access.path)
        if not lock.acquire(timeout=self._busy_timeout):
            raise StoreBusy(
                f"another thread of this process writes to {self.access.shown} for longer than "
                f"{self._busy_timeout:g} s; the call can simply be made again"
            )
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def write(self, now: float | None = None) -> Iterator[DuckdbSession]:
        with self.write_anyway(now, refuses_if_moved=True) as session:
            yield session

    @contextmanager
    def write_anyway(
        self, now: float | None = None, refuses_if_moved: bool = False
    ) -> Iterator[DuckdbSession]:
        """A transaction that is not refused on a queue that has moved."""
        self.open()
        with ExitStack() as stack:
            stack.enter_context(self.explaining())
            # The turn before the lock, always: two that wait for each other's would wait in vain.
            connection = stack.enter_context(self.access.borrowed())
            stack.enter_context(self._locked())
            stack.enter_context(schema.transaction(connection))
            session = DuckdbSession(connection, now, refuses_if_moved=refuses_if_moved)
            yield session
        if session.brings_work:
            self._hints.tell()

    @contextmanager
    def read(self, now: float | None = None) -> Iterator[DuckdbSession]:
        self.open()
        with self.explaining(), self.access.borrowed() as connection:
            yield DuckdbSession(connection, now)

    @contextmanager
    def snapshot(self) -> Iterator[DuckdbSession]:
        with self.read() as session, schema.transaction(session.connection):
            yield session

    def explained(self, error: Exception) -> StoreError | None:
        return explain(error, self.access.shown) if isinstance(error, duckdb.Error) else None

    def retried(self, verb: F) -> F:
        # DuckDB lets no transaction wait for another: who changes a row that another has changed is refused.
        @functools.wraps(verb)
        def again(*given: Any, **named: Any) -> Any:
            for tried in range(1, _TRIES):
                try:
                    with self.together():
                        return verb(*given, **named)
                except Clash:
                    self.clashes += 1
                    pause = min(_FIRST_PAUSE * 2**tried, _LONGEST_PAUSE)
                    time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - so that two do not meet again
            return verb(*given, **named)

        return cast("F", again)

    def together(self) -> AbstractContextManager[None]:
        return self.access.together()

    def kept_others_waiting(self, careful_age: float) -> bool:
        # A turn as long as that has kept everybody from beating: they come to it in the next few.
        lease = Lease(careful_age * _LEASE_PER_CAREFUL_AGE)
        seconds, ago = self.access.long_turn()
        return seconds >= lease.claim_below and 0.0 <= ago < lease.beat_every

    def check_open(self, tx: Session) -> None:
        refuse_moved(tx)

    def copying(self, store: Store) -> CopySide:
        from rowlock.stores.duckdb.copying import DuckdbCopySide

        return DuckdbCopySide(store)

    def statements(
        self, *sources: tuple[str, str], words: Mapping[str, str], style: str | None = None
    ) -> queries.Statements:
        return dialect.load(*sources, words=words, style=style)

    def hint(self, tx: Session, queues: Collection[str] = (), tasks: Collection[str] = ()) -> None:
        if isinstance(tx, DuckdbSession):
            tx.brings_work = True

    @contextmanager
    def lend(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection for statements of the user's own."""
        with self.access.borrowed(is_long=True) as connection:
            yield connection
        self._hints.tell()

    def transaction(self, timeout: float | None) -> DuckdbTransaction:
        self.open()
        stack = ExitStack()
        with self.explaining():
            driver = stack.enter_context(self.access.borrowed(is_long=True))
        return DuckdbTransaction(
            driver, lambda error: self.explained(error) or error, stack.close, self._hints.tell
        )

    def is_file_of(self, user: UserConnection) -> bool:
        files = user.run(
            "SELECT path FROM duckdb_databases() WHERE database_name = current_database()", {}
        ).rows
        return any(os.path.realpath(row[0]) == os.path.realpath(self.access.path) for row in files if row[0])

    def session_on(self, user: UserConnection) -> Session:
        statements = STATEMENTS if user.style == "dollar" else dialect.named()
        return UserSession(user, statements, {"now": time.time(), "mono": time.monotonic()})

    # -- producing and finishing -----------------------------------------------------------------

    def insert(self, jobs: Sequence[NewJob], now: float | None = None) -> list[Inserted]:
        with self.write(now) as tx:
            if len(jobs) == 1 and jobs[0].unique_key is None:
                ((id, created),) = tx.rows("insert_one", **msgspec.structs.asdict(jobs[0]))
                inserted = [Inserted(id, True, created)]
            else:
                inserted = insert(tx, jobs)
            tx.brings_work = True
        return inserted

    def finish_many(self, tx: Session, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        # Many at once take 0.03 ms each, one by one 0.7. Those that it does not change are looked at by
        # themselves.
        usual = {outcome.id: outcome for outcome in outcomes if outcome.is_usual}
        done: set[int] = set()
        if len(usual) > 1:
            given = [{"id": one.id, "result": one.result} for one in usual.values()]
            rows = tx.rows("finish_all_completed", done=msgspec.json.encode(given).decode())
            done = {row[0] for row in rows}
        return [one for one in outcomes if one.id not in done or usual[one.id] is not one]

    # -- what DuckDB has to be asked for ---------------------------------------------------------

    def wake(self, worker: Callable[[], str], ring: Callable[[], None]) -> FileWake:
        made = FileWake(self.change, ring)
        self._hints.add(made)
        return made

    def change(self) -> Hashable:
        """A value that is different once somebody has committed since the last look."""
        return (self._hints.told, self.access.change())

    def facts(self) -> dict[str, Any]:
        self.open()  # what the first turn has to do more is not the cost of a turn
        return {
            **self.access.facts(),
            "long_turn": self.access.long_turn(),
            "clashes": self.clashes,
            "server_version": duckdb.__version__,
            "bytes": size_of(self.access.path),
            "wal_bytes": size_of(f"{self.access.path}.wal"),
        }

    def backup(self, target: str) -> int:
        raise StoreError(
            "DuckDB files are copied by DuckDB itself: `ATTACH 'copy.duckdb' AS copy; COPY FROM DATABASE "
            "data TO copy`"
        )
