"""PostgreSQL as a database that holds a queue: opening, transactions, and what else is its own.

How the answer to a commit is looked up is in `lost_answers.py`, the exchange in one statement in `fused.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from rowlock.codec import json_text
from rowlock.errors import ConfigurationError, StoreError, StoreMissing, StoreUnusable
from rowlock.job import Exchange, Inserted, NewJob
from rowlock.stores.base import Wake
from rowlock.stores.postgres import schema
from rowlock.stores.postgres.connections import STAMP, Connections, Link, Stamp
from rowlock.stores.postgres.dialect import INDEXES, load, statements
from rowlock.stores.postgres.faults import explain
from rowlock.stores.postgres.fused import FusedExchange
from rowlock.stores.postgres.inserting import Inserting
from rowlock.stores.postgres.listener import Listener, Sleepers
from rowlock.stores.postgres.lost_answers import Fate, LostAnswers, fate_of
from rowlock.stores.postgres.session import PostgresSession
from rowlock.stores.postgres.transaction import PostgresTransaction
from rowlock.stores.postgres.url import Address
from rowlock.stores.source import OneStatement
from rowlock.stores.sql.claim_sql import ClaimSql
from rowlock.stores.sql.copying import CopySide
from rowlock.stores.sql.database import NOT_OUTERMOST, Database, Witness
from rowlock.stores.sql.schema_versions import VERSION, check
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.statements import Statements
from rowlock.stores.sql.store import Store
from rowlock.stores.sql.user_connection import UserConnection
from rowlock.stores.sql.user_transaction import UserSession

_OLDEST = 13
_STATEMENT_TIMEOUT = 30.0
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

    def __init__(self, address: Address, *, busy_timeout: float = 5.0) -> None:
        super().__init__()
        self.address = address
        self.url = address.shown
        self.queries = statements(address.schema)
        self.claim_sql = ClaimSql(self.queries, INDEXES)
        self.connections = Connections(
            address.conninfo,
            name=address.name,
            most=address.pool_size,
            statement_timeout=_STATEMENT_TIMEOUT,
            lock_timeout=busy_timeout,
            pooled=address.pooled,
        )
        self.answers = LostAnswers(self.connections, self.queries, self.url)
        self.sleepers = Sleepers(self.read)
        self._inserting = Inserting(self)
        self._fused = FusedExchange(self)

    # -- its life --------------------------------------------------------------------------------

    def _look_at_tables(self, create: bool) -> None:
        with self.meaning(), self.connections.borrowed() as link:
            server, place = link.connection, self.address.schema
            if server.info.server_version < _OLDEST * 10_000:
                raise StoreUnusable(f"{self.url} is older than PostgreSQL {_OLDEST}, which rowlock needs")
            facts = schema.meta(server, place)
            if facts is None and not create:
                raise StoreMissing(f"no queue at {self.url}: run `rowlock init`")
            check(schema.create(server, place) if facts is None else facts, self.url)

    def ddl(self) -> str:
        return schema.ddl(self.address.schema)

    def upgrade(self) -> tuple[int, int]:
        with self.meaning(), self.connections.borrowed() as link:
            return schema.upgrade(link.connection, self.address.schema)

    def _close_connections(self) -> None:
        self.connections.close()

    # -- sessions --------------------------------------------------------------------------------

    @contextmanager
    def write(self, now: float | None = None) -> Iterator[PostgresSession]:
        """If its COMMIT is not answered, its end is looked up."""
        self.open()
        with self.meaning(), self.connections.borrowed() as link:
            stamp = link.begin(self.connections.begin_write)
            session = PostgresSession(link, self.queries, now)
            with _undone_by_errors(link):
                yield session
            self.answers.commit(link, stamp, session)

    @contextmanager
    def read(self, now: float | None = None) -> Iterator[PostgresSession]:
        """Behind a pooler in a transaction: only that can carry limits there."""
        self.open()
        try:  # not `meaning` and `borrowed`: each block costs 2 us, and every job goes through here
            link = self.connections.borrow()
            try:
                session = PostgresSession(link, self.queries, now)
                if self.address.pooled:
                    link.cursor.execute(self.connections.begin_read)
                    with _undone_by_errors(link):
                        yield session
                    with suppress(psycopg.Error):  # it has only read
                        link.cursor.execute("COMMIT")
                else:
                    yield session
            finally:
                self.connections.give_back(link)
        except psycopg.Error as error:
            raise explain(error, self.url) from error

    @contextmanager
    def snapshot(self) -> Iterator[PostgresSession]:
        with self.read() as session:
            # Behind a pooler the session is in a transaction already, and ends it.
            begin = "SET TRANSACTION" if self.address.pooled else "BEGIN"
            session.link.cursor.execute(f"{begin} ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield session
            if not self.address.pooled:
                session.link.cursor.execute("COMMIT")

    @contextmanager
    def unhurried(self) -> Iterator[PostgresSession]:
        """On a connection of its own: to build an index, the server waits for every older transaction."""
        self.open()
        link = self.open_link()
        try:
            link.connection.answer_timeout = _LONGEST_STATEMENT_SECONDS
            with self.meaning():
                if not self.address.pooled:  # a pooler would give these to somebody else
                    for name in ("statement_timeout", "lock_timeout"):
                        link.cursor.execute(f"SET {name} = {int(_LONGEST_STATEMENT_SECONDS * 1000)}")
                yield PostgresSession(link, self.queries, None)
        finally:
            link.close()

    def open_link(self) -> Link:
        """A connection that is not of the pool."""
        with self.meaning():
            return self.connections.open()

    @contextmanager
    def meaning(self) -> Iterator[None]:
        """Say what PostgreSQL's errors mean."""
        try:
            yield
        except psycopg.Error as error:
            raise explain(error, self.url) from error

    def explained(self, error: Exception) -> StoreError | None:
        return explain(error, self.url) if isinstance(error, psycopg.Error) else None

    def statements(
        self, *sources: tuple[str, str], words: Mapping[str, str], style: str | None = None
    ) -> Statements:
        return load(self.address.schema, style or "pyformat", sources, words)

    # -- jobs ------------------------------------------------------------------------------------

    def numbers(self, tx: Session, count: int) -> list[int]:
        return sorted(row[0] for row in tx.rows("draw_numbers", count=count))

    def insert(self, jobs: Sequence[NewJob], now: float | None = None) -> list[Inserted]:
        return self._inserting.insert(jobs, now)

    def in_one_statement(self, asked: Exchange) -> OneStatement | None:
        return self._fused.ask(asked)

    # -- waking ----------------------------------------------------------------------------------

    def wake(self, worker: Callable[[], str], ring: Callable[[], None]) -> Wake:
        if self.address.pooled:
            return PollingAlone()
        return Listener(self.sleepers, self.open_link, worker, ring)

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

    def note_witness(self, where: Session | UserConnection, witness: Witness) -> None:
        self.answers.witnesses[where] = witness

    def session_on(self, user: UserConnection) -> Session:
        return UserSession(user, statements(self.address.schema, user.style), {"now": None})

    def make_tables_on(self, user: UserConnection, tx: Session) -> bool:
        self.install_id()  # which makes them on a connection of our own
        return tx.row("queue_there") is not None

    def transaction(self, timeout: float | None) -> PostgresTransaction:
        self.open()
        with self.meaning():
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
            server = dict(zip(_SERVER_FACTS, db.row("server_facts"), strict=True))
        return {"address": self.url, "code_version": VERSION, **server}

    def backup(self, target: str) -> int:
        raise StoreError("PostgreSQL has its own backups: use pg_dump, or your server's")


@contextmanager
def _undone_by_errors(link: Link) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(psycopg.Error):  # the first error is the one to tell
            link.cursor.execute("ROLLBACK")
        raise


def _names(names: Collection[str]) -> str | None:
    return json_text(sorted(names)) if names else None
