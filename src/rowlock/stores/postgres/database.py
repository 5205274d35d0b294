"""PostgreSQL as a database that holds a queue: opening, transactions, and what else is its own.

How the answer to a commit is looked up is in `lost_answers.py`, the exchange in one statement in `fused.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from typing import Any, cast

import psycopg

from rowlock.codec import json_text
from rowlock.errors import ConfigurationError, StoreError, StoreUnusable
from rowlock.job import Exchange, Inserted, NewJob
from rowlock.stores.base import Wake
from rowlock.stores.postgres import schema
from rowlock.stores.postgres.connections import STAMP, Connection, Connections, Stamp
from rowlock.stores.postgres.dialect import INDEXES, load, statements
from rowlock.stores.postgres.faults import explain
from rowlock.stores.postgres.fused import FusedExchange
from rowlock.stores.postgres.inserting import insert
from rowlock.stores.postgres.listener import Listener, Sleepers
from rowlock.stores.postgres.lost_answers import Fate, LostAnswers, fate_of
from rowlock.stores.postgres.session import PostgresSession
from rowlock.stores.postgres.transaction import PostgresTransaction
from rowlock.stores.postgres.url import Address
from rowlock.stores.source import OneStatement
from rowlock.stores.sql.claim_sql import ClaimSql
from rowlock.stores.sql.copying import CopySide
from rowlock.stores.sql.database import NOT_OUTERMOST, Database
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.statements import Statements
from rowlock.stores.sql.store import Store
from rowlock.stores.sql.user_connection import UserConnection
from rowlock.stores.sql.user_transaction import UserSession

_OLDEST = 13
_LONGEST_STATEMENT_SECONDS = 86_400.0
_SERVER_FACTS = (
    *("server_version", "synchronous_commit", "fsync", "bytes", "connections", "max_connections"),
    *("dead_rows", "live_rows", "oldest_snapshot_seconds", "is_standby"),
)


class PollingAlone(Wake):
    """Behind a pooler nothing can be listened to."""

    @property
    def alive(self) -> bool:
        return False


class PostgresDatabase(Database):
    """A PostgreSQL database; the queue's tables are in one of its schemas."""

    dialect = "postgresql"
    package = "rowlock.stores.postgres"
    no_queue = "no queue at {}: run `rowlock init`"

    def __init__(self, address: Address, *, busy_timeout: float = 5.0) -> None:
        super().__init__()
        self.address = address
        self.url = self.shown = address.shown
        self.queries = statements(address.schema)
        self.claim_sql = ClaimSql(self.queries, INDEXES)
        self.connections = Connections(address, busy_timeout)
        self.answers = LostAnswers(self)
        self.sleepers = Sleepers(self)
        self._fused = FusedExchange(self)

    # -- its life --------------------------------------------------------------------------------

    def ddl(self) -> str:
        return schema.ddl(self.address.schema)

    def _tables_sql(self) -> str:
        return schema.tables_sql()

    @contextmanager
    def _before_tables(self, create: bool) -> Iterator[PostgresSession]:
        with self.explaining(), self.connections.borrowed() as server:
            if server.info.server_version < _OLDEST * 10_000:
                raise StoreUnusable(f"{self.url} is older than PostgreSQL {_OLDEST}, which rowlock needs")
            yield PostgresSession(server, self.queries, None)

    def _changing_tables(
        self, db: Session, creating: bool
    ) -> AbstractContextManager[Callable[[str], object]]:
        return schema.changing(cast(PostgresSession, db).connection, self.address.schema, creating)

    def _close_connections(self) -> None:
        self.connections.close()

    # -- sessions --------------------------------------------------------------------------------

    @contextmanager
    def write(self, now: float | None = None) -> Iterator[PostgresSession]:
        """If its COMMIT is not answered, its end is looked up."""
        self.open()
        with self.explaining(), self.connections.borrowed() as connection:
            stamp = connection.begin(self.connections.begin_write)
            session = PostgresSession(connection, self.queries, now)
            with _undone_by_errors(connection):
                yield session
            self.answers.commit(connection, stamp, session)

    @contextmanager
    def read(self, now: float | None = None) -> Iterator[PostgresSession]:
        """Behind a pooler in a transaction: only that can carry limits there."""
        self.open()
        try:  # not `explaining` and `borrowed`: each block costs 2 us, and every job goes through here
            connection = self.connections.borrow()
            try:
                session = PostgresSession(connection, self.queries, now)
                if self.address.pooled:
                    connection.own_cursor.execute(self.connections.begin_read)
                    with _undone_by_errors(connection):
                        yield session
                    with suppress(psycopg.Error):  # it has only read
                        connection.own_cursor.execute("COMMIT")
                else:
                    yield session
            finally:
                self.connections.give_back(connection)
        except psycopg.Error as error:
            raise explain(error, self.url) from error

    @contextmanager
    def snapshot(self) -> Iterator[PostgresSession]:
        with self.read() as session:
            # Behind a pooler the session is in a transaction already, and ends it.
            begin = "SET TRANSACTION" if self.address.pooled else "BEGIN"
            session.connection.own_cursor.execute(f"{begin} ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield session
            if not self.address.pooled:
                session.connection.own_cursor.execute("COMMIT")

    @contextmanager
    def unhurried(self) -> Iterator[PostgresSession]:
        """On a connection of its own: to build an index, the server waits for every older transaction."""
        self.open()
        with self.explaining(), closing(self.connect()) as connection:
            connection.answer_timeout = _LONGEST_STATEMENT_SECONDS
            if not self.address.pooled:  # a pooler would give these to somebody else
                for name in ("statement_timeout", "lock_timeout"):
                    connection.execute(f"SET {name} = {int(_LONGEST_STATEMENT_SECONDS * 1000)}".encode())
            yield PostgresSession(connection, self.queries, None)

    def connect(self) -> Connection:
        """A connection that is not of the pool."""
        with self.explaining():
            return self.connections.open()

    def explained(self, error: Exception) -> StoreError | None:
        return explain(error, self.url) if isinstance(error, psycopg.Error) else None

    def statements(
        self, *sources: tuple[str, str], words: Mapping[str, str], style: str | None = None
    ) -> Statements:
        return load(self.address.schema, style or "pyformat", sources, words)

    # -- jobs ------------------------------------------------------------------------------------

    def insert(self, jobs: Sequence[NewJob], now: float | None = None) -> list[Inserted]:
        return insert(self, jobs, now)

    def in_one_statement(self, asked: Exchange) -> OneStatement | None:
        return self._fused.ask(asked)

    # -- waking ----------------------------------------------------------------------------------

    def wake(self, worker: Callable[[], str], ring: Callable[[], None]) -> Wake:
        if self.address.pooled:
            return PollingAlone()
        return Listener(self, worker, ring)

    def hint(self, tx: Session, queues: Collection[str] = (), tasks: Collection[str] = ()) -> None:
        if not self.address.pooled:  # nobody can listen there
            tx.rows("wake_one", queues=_names(queues), task_names=_names(tasks))

    def wake_readers(self, tx: Session, name: str) -> None:
        if not self.address.pooled:
            tx.rows("wake_readers", queue=name)

    def got_up(self, worker: str) -> None:
        self.sleepers.get_up(worker)

    def limit_idle(self, lease: float) -> None:
        self.connections.limit_idle(lease)

    # -- users' connections, and a task's own --------------------------------------------------------

    def session_on(self, user: UserConnection) -> Session:
        return UserSession(user, statements(self.address.schema, user.style), {"now": None})

    def make_tables_on(self, user: UserConnection, tx: Session) -> bool:
        self.install_id()  # which makes them on a connection of our own
        return tx.row("queue_there") is not None

    def transaction(self, timeout: float | None) -> PostgresTransaction:
        self.open()
        with self.explaining():
            return PostgresTransaction(self, timeout)

    def commit_on(self, user: UserConnection) -> None:
        stamp = Stamp(*user.run(STAMP, {}).rows[0])
        try:
            user.commit()
        except Exception as error:  # whatever the user's library makes of a lost connection
            if not self.answers.has_committed(stamp, user, error):
                raise
            return
        with self.read() as db:
            if fate_of(db, stamp, None) in (None, Fate.UNDONE):
                raise ConfigurationError(NOT_OUTERMOST)

    def copying(self, store: Store) -> CopySide:
        from rowlock.stores.postgres.copying import PostgresCopySide

        return PostgresCopySide(store)

    # -- itself ----------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        with self.read() as db:
            return dict(zip(_SERVER_FACTS, db.row("server_facts"), strict=True))

    def backup(self, target: str) -> int:
        raise StoreError("PostgreSQL has its own backups: use pg_dump, or your server's")


@contextmanager
def _undone_by_errors(connection: Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(psycopg.Error):  # the first error is the one to tell
            connection.own_cursor.execute("ROLLBACK")
        raise


def _names(names: Collection[str]) -> str | None:
    return json_text(sorted(names)) if names else None
