"""The PostgreSQL store: transactions whose end is always known, inserts, and what else is PostgreSQL's own.

The verbs it shares with other databases are in `stores/sql.py` and `stores/reading.py`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import msgspec
import psycopg

from rowlock.errors import (
    OutcomeUnknown,
    SchemaMismatch,
    StoreError,
    StoreMissing,
    StoreUnreachable,
    StoreUnusable,
    WorkerGone,
)
from rowlock.job import Claim, Exchange, Inserted, Minute, NewJob, Outcome, Report, Want, utc
from rowlock.stores.base import Wake
from rowlock.stores.borrowed import Borrowed
from rowlock.stores.claiming import take
from rowlock.stores.finishing import without_expired
from rowlock.stores.inserting import insert
from rowlock.stores.lending import BorrowedSession, SqlLending
from rowlock.stores.postgres import exchanging, inserting, schema
from rowlock.stores.postgres.connections import Connections, Link
from rowlock.stores.postgres.dialect import statements
from rowlock.stores.postgres.faults import explain, is_lost
from rowlock.stores.postgres.transaction import PostgresTransaction
from rowlock.stores.postgres.url import Address
from rowlock.stores.postgres.wake import Listener, NoWake
from rowlock.stores.queries import Queries
from rowlock.stores.reading import SqlReads
from rowlock.stores.session import Session
from rowlock.stores.sql import SqlStore
from rowlock.stores.versions import check

T = TypeVar("T")
_OLDEST = 13
_STATEMENT_TIMEOUT = 30.0
_TRIES = 3


class PostgresSession:
    """Runs named statements on one connection."""

    def __init__(self, link: Link, queries: Queries, now: float | None) -> None:
        self.link = link
        self._cursor = link.cursor
        self._queries = queries
        self._now = now

    @property
    def now(self) -> float:
        """The server's clock."""
        return float(self.row("clock")[0])

    def run(self, name: str, /, **values: Any) -> int:
        values["now"] = self._now
        changed: int = self._cursor.execute(self._queries[name], values, binary=True).rowcount
        return max(0, changed)

    def rows(self, name: str, /, **values: Any) -> list[Any]:
        values["now"] = self._now
        rows: list[Any] = self._cursor.execute(self._queries[name], values, binary=True).fetchall()
        return rows

    def ask(self, statement: str, values: dict[str, Any]) -> list[Any]:
        """The rows of a statement that has no name of its own, because it was put together."""
        values["now"] = self._now
        rows: list[Any] = self._cursor.execute(statement, values, binary=True).fetchall()
        return rows

    def take(self, name: str, /, **values: Any) -> list[Any]:
        return self.rows(name, **values)  # one statement chooses, locks, marks and returns

    def row(self, name: str, /, **values: Any) -> Any:
        rows = self.rows(name, **values)
        return rows[0] if rows else None

    def each(self, name: str, /, values: Sequence[dict[str, Any]]) -> None:
        if values:
            self._cursor.executemany(self._queries[name], [{**one, "now": self._now} for one in values])


class _Reading:
    """Statements that commit one by one, as a `with` block; a class, as every job goes through it."""

    __slots__ = ("_link", "_now", "_store")

    def __init__(self, store: PostgresStore, now: float | None) -> None:
        self._store = store
        self._now = now

    def __enter__(self) -> PostgresSession:
        store = self._store
        try:
            self._link = store.connections.borrow()
        except psycopg.Error as error:
            raise explain(error, store.url) from error
        return PostgresSession(self._link, store.queries, self._now)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._store.connections.give_back(self._link)
        if isinstance(error, psycopg.Error):
            raise explain(error, self._store.url) from error


class _Limited(_Reading):
    """The same behind a pooler: in a transaction, which is the only thing there that can carry limits."""

    __slots__ = ()

    def __enter__(self) -> PostgresSession:
        session = super().__enter__()
        try:
            self._link.cursor.execute(self._store.connections.limits_statement)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        with suppress(psycopg.Error):  # it has only read
            if not self._link.connection.closed:
                self._link.cursor.execute("ROLLBACK" if error else "COMMIT")
        super().__exit__(kind, error, trace)


class _Writing:
    """A durable transaction as a `with` block; if its COMMIT is not answered, its end is looked up."""

    def __init__(self, store: PostgresStore, now: float | None) -> None:
        self._store = store
        self._now = now

    def __enter__(self) -> PostgresSession:
        store = self._store
        with store.explained():
            self._link = store.connections.borrow()
            try:
                self._number = self._link.begin(store.connections.begin_statement)
            except BaseException:
                store.connections.give_back(self._link)
                raise
        return PostgresSession(self._link, store.queries, self._now)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        store = self._store
        try:
            if error is None:
                store.commit(self._link, self._number)
                return
            if not self._link.connection.closed:
                with suppress(psycopg.Error):  # the first error is the one to tell
                    self._link.cursor.execute("ROLLBACK")
            if isinstance(error, psycopg.Error):
                raise explain(error, store.url) from error
        finally:
            store.connections.give_back(self._link)


class PostgresStore(SqlReads, SqlStore, SqlLending):
    """A queue in a PostgreSQL database."""

    _dialect = "postgresql"

    def __init__(self, address: Address, *, busy_timeout: float = 5.0) -> None:
        super().__init__()
        self.address = address
        self.url = address.shown
        self.queries = statements(address.schema)
        self.connections = Connections(
            address.conninfo,
            name=address.name,
            most=address.pool_size,
            statement_timeout=_STATEMENT_TIMEOUT,
            lock_timeout=busy_timeout,
            pooled=address.pooled,
        )
        self._insert = self.queries["insert_one"]
        self._opened_in: int | None = None
        self._asleep: set[str] = set()  # workers of this process whose rows say that they sleep

    # -- the life of the store -------------------------------------------------------------------

    def open(self, create: bool = True) -> None:
        if self._opened_in == os.getpid():
            return
        with self.explained(), self.connections.borrowed() as link:
            server, place = link.connection, self.address.schema
            if server.info.server_version < _OLDEST * 10_000:
                raise StoreUnusable(f"{self.url} is older than PostgreSQL {_OLDEST}, which rowlock needs")
            facts = schema.meta(server, place)
            if facts is None:
                if not create:
                    raise StoreMissing(f"no queue at {self.url}: run `rowlock init`")
                schema.create(server, place)
                facts = schema.meta(server, place)
            if facts is None:
                raise SchemaMismatch(f"the queue's tables could not be created at {self.url}")
            check(facts, self.url, schema.VERSION)
        self._opened_in = os.getpid()

    def ddl(self) -> str:
        return schema.ddl(self.address.schema)

    def upgrade(self) -> tuple[int, int]:
        with self.explained(), self.connections.borrowed() as link:
            return schema.upgrade(link.connection, self.address.schema)

    def close(self) -> None:
        self.connections.close()
        self._opened_in = None

    # -- transactions ----------------------------------------------------------------------------

    def _write(self, now: float | None = None) -> _Writing:
        self.open()
        return _Writing(self, now)

    def _read(self, now: float | None = None) -> _Reading:
        self.open()
        return _Limited(self, now) if self.address.pooled else _Reading(self, now)

    @contextmanager
    def _snapshot(self) -> Iterator[PostgresSession]:
        with self._read() as session:
            cursor = session.link.cursor
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield session
            cursor.execute("COMMIT")

    def _borrow(self) -> Link:
        try:
            return self.connections.borrow()
        except psycopg.Error as error:
            raise explain(error, self.url) from error

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Say what PostgreSQL's errors mean."""
        try:
            yield
        except psycopg.Error as error:
            raise explain(error, self.url) from error

    def commit(self, link: Link, number: str) -> None:
        """Commit the transaction of that number; if there is no answer, look up how it ended."""
        try:
            link.cursor.execute("COMMIT")
        except psycopg.Error as error:
            if not is_lost(error) or not self._look_up(lambda db: _has_committed(db, number), error):
                raise explain(error, self.url) from error

    def _look_up(self, look: Callable[[PostgresSession], T | None], reason: BaseException) -> T:
        """Ask a server that may just be coming back, until it gives an answer; never assume one."""
        deadline = time.monotonic() + _STATEMENT_TIMEOUT
        wait = 0.02
        while True:
            with suppress(psycopg.Error, StoreError), self.connections.borrowed() as link:
                answer = look(PostgresSession(link, self.queries, None))
                if answer is not None:
                    return answer
            if time.monotonic() > deadline:
                raise OutcomeUnknown(
                    f"the connection to {self.url} was lost, and it could not be found out whether the last "
                    f"statement was committed ({reason})"
                ) from reason
            time.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the callers, hides nothing
            wait = min(1.0, wait * 2)

    def _numbers(self, tx: Session, count: int) -> list[int]:
        return sorted(row[0] for row in tx.rows("draw_numbers", count=count))

    def _time(self, stored: float) -> datetime:
        return utc(stored)

    def transaction(self, timeout: float | None) -> PostgresTransaction:
        self.open()
        with self.explained():
            return PostgresTransaction(self.connections, self.commit, timeout)

    def commit_on(self, lent: Borrowed) -> None:
        number = self._session_on(lent).row("transaction_number")[0]
        try:
            lent.commit()
        except Exception as error:  # whatever the user's library makes of a lost connection
            if not self._look_up(lambda db: _has_committed(db, number), error):
                raise

    def _session_on(self, lent: Borrowed) -> Session:
        return BorrowedSession(lent, statements(self.address.schema, lent.style), {"now": None})

    # -- producing -------------------------------------------------------------------------------

    def insert(self, jobs: Sequence[NewJob], now: float | None = None) -> list[Inserted]:
        plain_statement = (
            now is None and not self.address.pooled
        )  # a pooler takes its limits in a transaction
        if plain_statement and len(jobs) == 1 and inserting.is_plain(jobs[0]):
            return [self._insert_one(jobs[0])]
        with self._write(now) as tx:
            if inserting.is_bulk(jobs):
                moment = tx.row("began")[0] if now is None else now
                ids = self._numbers(tx, len(jobs))
                plain = now is None and all(map(inserting.is_plain, jobs))
                write = inserting.copy_plain if plain else inserting.copy
                write(tx.link, self.address.schema, ids, jobs, moment)
                inserted = [Inserted(id, True, moment) for id in ids]
            else:
                inserted = insert(tx, jobs)
            for queue in {job.queue for job in jobs}:
                self._hint(tx, queue)
            return inserted

    def _insert_one(self, job: NewJob) -> Inserted:
        """One statement, which commits by itself; if its answer is lost, the token finds the job."""
        self.open()
        token = random.getrandbits(63)
        values = {**inserting.values_of(job), "token": token}
        for _ in range(_TRIES):
            link = self._borrow()
            try:
                id, created, _ = link.cursor.execute(self._insert, values, binary=True).fetchone()
                return Inserted(id, True, created)
            except psycopg.Error as error:
                if not is_lost(error):
                    raise explain(error, self.url) from error
                reason = error
            finally:
                self.connections.give_back(link)
            found = self._look_up(partial(self._find_by_token, token=token, old=link.name), reason)
            if found is not _NOT_THERE:
                return found
        raise StoreError(f"{self.url} was lost {_TRIES} times in a row; the job was not enqueued")

    def _find_by_token(self, db: PostgresSession, token: int, old: str) -> Inserted | None:
        # The old connection may still be at work: it is ended first, so that the answer stays true.
        still_there = db.rows("end_connection", name=old)
        row = db.row("find_by_token", token=token)
        if row is not None:
            return Inserted(row[0], True, row[1])
        return None if still_there else _NOT_THERE

    # -- claiming and finishing ------------------------------------------------------------------

    def exchange(
        self,
        worker: str,
        outcomes: Sequence[Outcome] = (),
        want: Want | None = None,
        reports: Sequence[Report] = (),
        minutes: Sequence[Minute] = (),
        now: float | None = None,
        again: bool = False,
    ) -> Exchange:
        writes_more = reports or minutes or again or not exchanging.is_usual(outcomes)
        if want is None or want.count < 1 or writes_more or self.address.pooled:
            got = super().exchange(worker, outcomes, want, reports, minutes, now, again)
        elif exchanging.fits(want):
            return self._fused(worker, outcomes, want, now)
        else:
            try:
                got = self._step_by_step(worker, outcomes, want, now)
            except StoreUnreachable as error:
                raise self._unknown(error) from error
        if got.claims and worker in self._asleep:
            self._get_up(worker)
        return got

    @staticmethod
    def _unknown(error: StoreUnreachable) -> StoreUnreachable:
        """If an answer was lost, the caller has to know that it is unknown what was written."""
        return (
            OutcomeUnknown(f"{error}; what was written is looked up") if is_lost(error.__cause__) else error
        )

    def _step_by_step(
        self, worker: str, outcomes: Sequence[Outcome], want: Want, now: float | None
    ) -> Exchange:
        """For strategies that look before they take: each step is a statement of its own."""
        lost: list[Outcome] = []
        with self._read(now) as db:
            if outcomes:
                number, values = exchanging.finished(outcomes)
                done = {row[0] for row in db.rows(f"finish_{number}", **values)}
                lost = [outcome for outcome in outcomes if outcome.id not in done]
            alive, has_settings, next_queue = db.row("claim_facts", worker=worker, after=want.after)
            if not alive and not outcomes:
                raise WorkerGone(f"worker {worker} was declared dead; it has to register anew")
            settings = db.rows("queue_settings") if has_settings else []
            claims = take(db, worker, want, settings, next_queue) if alive and next_queue is not None else []
        last = claims[-1].queue if claims else want.after
        return Exchange(self._in_time(worker, claims, now), lost, last)

    def _in_time(self, worker: str, claims: list[Claim], now: float | None) -> list[Claim]:
        """Without those whose deadline to start has passed; most often there are none."""
        if all(claim.deadline is None or claim.deadline > claim.taken for claim in claims):
            return claims
        with self._write(now) as tx:
            return without_expired(tx, worker, claims)

    def _fused(self, worker: str, outcomes: Sequence[Outcome], want: Want, now: float | None) -> Exchange:
        """The whole cycle in one statement and one round trip."""
        asleep = worker in self._asleep
        statement, values = exchanging.question(self.address.schema, worker, outcomes, want, asleep)
        try:
            with self._read(now) as db:
                answer = exchanging.answer(db.ask(statement, values), outcomes, want)
        except StoreUnreachable as error:
            raise self._unknown(error) from error
        if answer.claims:
            self._asleep.discard(worker)  # the statement has cleared the mark in its row
        if answer.special or (exchanging.is_drawn(want) and answer.alive and not answer.claims):
            got = self._step_by_step(worker, (), want, now)
            return Exchange(got.claims, answer.lost, got.last_queue)
        if not answer.alive and not outcomes:
            raise WorkerGone(f"worker {worker} was declared dead; it has to register anew")
        claims = answer.claims
        last = claims[-1].queue if claims else want.after
        if answer.leaves_places(want):
            rest = msgspec.structs.replace(want, count=want.count - len(claims), alone=False)
            claims = claims + self.exchange(worker, (), rest, now=now).claims
        return Exchange(self._in_time(worker, claims, now), answer.lost, last)

    # -- waking ----------------------------------------------------------------------------------

    def wake(self, worker: Callable[[], str], ring: Callable[[], None]) -> Wake:
        return NoWake() if self.address.pooled else Listener(self, worker, ring)

    def open_link(self) -> Link:
        """A connection of its own, for a listener."""
        with self.explained():
            return self.connections.open()

    def fall_asleep(self, worker: str) -> None:
        """Say in the worker's row that it waits for jobs."""
        with self._read() as db:
            db.run("sleep", worker=worker)
        self._asleep.add(worker)

    def _get_up(self, worker: str) -> None:
        with self._read() as db:
            db.run("awake", worker=worker)
        self._asleep.discard(worker)

    def wake_another(self, worker: str) -> None:
        """Tell somebody else who waits that there may be work."""
        with self._read() as db:
            db.rows("wake_one", queue=None, worker=worker)

    def _hint(self, tx: Session, queue: str | None = None) -> None:
        if not self.address.pooled:
            tx.rows("wake_one", queue=queue, worker="")

    # -- what PostgreSQL has to be asked for -----------------------------------------------------

    def next_needed(self, worker: str, now: float | None = None) -> float | None:
        with self._read(now) as db:
            (seconds,) = db.row("next_needed", worker=worker)
            return None if seconds is None else max(0.0, seconds)

    def checkpoint(self) -> None:
        """The server does it by itself."""

    def facts(self) -> dict[str, Any]:
        with self._read() as db:
            meta = dict(db.rows("meta"))
            return {
                "store": "postgresql",
                "address": self.url,
                "schema_version": int(meta["version"]),
                "code_version": schema.VERSION,
                "install_id": meta["install_id"],
                "newest_created_at": db.row("newest_created_at")[0],
                "unknown_tasks": dict(db.rows("count_unknown")),
                "now": db.now,
                **dict(zip(_SERVER_FACTS, db.row("server_facts"), strict=True)),
            }

    def backup(self, target: str) -> int:
        raise StoreError("PostgreSQL has its own backups: use pg_dump, or your server's")


_NOT_THERE = Inserted(0, False, 0.0)
_SERVER_FACTS = (
    *("server_version", "synchronous_commit", "fsync", "bytes", "connections", "max_connections"),
    *("dead_rows", "live_rows", "oldest_snapshot_seconds", "is_standby"),
)


def _has_committed(db: PostgresSession, number: str) -> bool | None:
    try:
        (status,) = db.row("transaction_status", number=number)
    except psycopg.errors.InvalidParameterValue:  # a number from the future: this is another server by now
        return False
    return None if status == "in progress" else bool(status == "committed")
