"""The PostgreSQL store: how jobs are written and claimed in one round trip, and who is woken.

Opening and transactions are in `connected.py`, the verbs it shares with other databases in `stores/sql.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, cast

import msgspec
import psycopg

from rowlock.errors import DataRefused, OutcomeUnknown, StoreError, StoreUnreachable, WorkerGone
from rowlock.job import Claim, ClaimRequest, ExchangeResult, Inserted, Minute, NewJob, Outcome, Report
from rowlock.stores.base import Wake
from rowlock.stores.postgres import fused, inserting, schema
from rowlock.stores.postgres.connected import LOOKED_UP, ConnectedStore, log
from rowlock.stores.postgres.connections import Link
from rowlock.stores.postgres.dialect import INDEXES
from rowlock.stores.postgres.faults import explain, is_lost
from rowlock.stores.postgres.notifier import Listener, NoWake
from rowlock.stores.postgres.prepared import prepared
from rowlock.stores.postgres.session import PostgresSession, Witness
from rowlock.stores.postgres.url import Address
from rowlock.stores.sql.claim_sql import ClaimSql
from rowlock.stores.sql.finishing import took_effect, without_expired
from rowlock.stores.sql.inserting import insert
from rowlock.stores.sql.reading import refused_claims
from rowlock.stores.sql.session import Session
from rowlock.stores.sql.versions import version_of

_TRIES = 3
_LONGEST_STATEMENT_SECONDS = 86_400.0
_MICROSECONDS = 1e-5  # as near as a float comes to the server's
_NOT_THERE = Inserted(0, False, 0.0)
_SERVER_FACTS = (
    *("server_version", "synchronous_commit", "fsync", "bytes", "connections", "max_connections"),
    *("dead_rows", "live_rows", "oldest_snapshot_seconds", "is_standby"),
)


class PostgresStore(ConnectedStore):
    """A queue in a PostgreSQL database."""

    def __init__(self, address: Address, *, busy_timeout: float = 5.0) -> None:
        super().__init__(address, busy_timeout=busy_timeout)
        self._insert = prepared(self.queries["insert_one"])
        self._claim_sql = ClaimSql(self.queries, INDEXES)
        self._has_configured = False  # a queue is paused or has a strategy of its own, as of the last look
        self._asleep: set[str] = set()  # workers of this process whose rows say that they sleep

    # -- producing -------------------------------------------------------------------------------

    def insert(self, jobs: Sequence[NewJob], now: float | None = None) -> list[Inserted]:
        plain_statement = (
            now is None and not self.address.pooled
        )  # a pooler takes its limits in a transaction
        if plain_statement and len(jobs) == 1 and inserting.is_short(jobs[0]):
            return [self._insert_one(jobs[0])]
        with self._write(now) as tx:
            if inserting.is_bulk(jobs):
                moment = tx.row("began")[0] if now is None else now
                ids = self._numbers(tx, len(jobs))
                plain = now is None and all(map(inserting.is_short, jobs))
                write = inserting.copy_plain if plain else inserting.copy
                write(tx.link, self.address.schema, ids, jobs, moment)
                inserted = [Inserted(id, True, moment) for id in ids]
            else:
                inserted = insert(tx, jobs)
            self._hint(tx, {job.queue for job in jobs}, {job.task for job in jobs})
            tx.witness = _sees([one for one in inserted if one.is_new])
            return inserted

    def _insert_one(self, job: NewJob) -> Inserted:
        """One statement, which commits by itself; if its answer is lost, the token finds the job."""
        self.open()
        token = random.getrandbits(63)
        values = {**inserting.values_of(job), "token": token}
        for _ in range(_TRIES):
            link = self.borrow()
            written = False
            try:
                ((id, created, _),) = self._insert.rows(link, values)
                written = True
                return Inserted(int(id or 0), True, float(created or 0))
            except psycopg.Error as error:
                if not is_lost(error):
                    raise explain(error, self.url) from error
                reason = error
            finally:
                self.connections.give_back(link, clean=written)
            found = self.look_up(partial(self._find_by_token, token=token, old=link.name), reason)
            if found is not _NOT_THERE:
                log.warning(LOOKED_UP, "an enqueue", self.url, f"job {found.id} is there")
                return found
            log.warning(LOOKED_UP, "an enqueue", self.url, "it is not there, so it is tried again")
        raise StoreError(f"{self.url} was lost {_TRIES} times in a row; the job was not enqueued")

    def _find_by_token(self, db: PostgresSession, token: int, old: str) -> Inserted | None:
        # The old connection may still be at work: it is ended first, so that the answer stays true.
        still_there = db.rows("end_connection", name=old)
        row = db.row("find_by_token", token=token)
        if row is not None:
            return Inserted(row[0], True, row[1])
        return None if still_there else _NOT_THERE

    # -- claiming and finishing ------------------------------------------------------------------

    def _exchange(
        self,
        worker: str,
        outcomes: Sequence[Outcome] = (),
        request: ClaimRequest | None = None,
        reports: Sequence[Report] = (),
        minutes: Sequence[Minute] = (),
        now: float | None = None,
        again: bool = False,
    ) -> ExchangeResult:
        writes_more = reports or minutes or again or not fused.is_usual(outcomes)
        if request is not None and request.count > 0 and not writes_more and not self.address.pooled:
            return self._fused(worker, outcomes, request, now)
        got = super()._exchange(worker, outcomes, request, reports, minutes, now, again)
        if got.claims and worker in self._asleep:
            self._get_up(worker)
        return got

    def at_once(self, now: float | None = None) -> AbstractContextManager[PostgresSession] | None:
        return None if self.address.pooled else self._read(now)

    def _leave_trace(
        self,
        tx: Session,
        worker: str,
        outcomes: Sequence[Outcome],
        not_written: Sequence[Outcome],
        claims: Sequence[Claim],
    ) -> None:
        """One claim or outcome is enough: they are all written, or none.

        Not an outcome that was there before, when it is given again: it says nothing about this transaction.
        """
        written = next((outcome for outcome in outcomes if outcome not in not_written), None)
        if claims:
            first = claims[0]
            cast("PostgresSession", tx).witness = lambda db: any(
                (job, claim) == (first.id, first.claim) for job, claim, _ in db.rows("held", worker=worker)
            )
        elif written is not None:
            cast("PostgresSession", tx).witness = lambda db: took_effect(db, written)

    @staticmethod
    def _unknown(error: StoreUnreachable) -> StoreUnreachable:
        """If an answer was lost, the caller has to know that it is unknown what was written."""
        return (
            OutcomeUnknown(f"{error}; what was written is looked up") if is_lost(error.__cause__) else error
        )

    def _in_time(self, worker: str, claims: list[Claim], now: float | None) -> list[Claim]:
        """Without those whose deadline to start has passed; most often there are none."""
        if all(claim.deadline is None or claim.deadline > claim.taken for claim in claims):
            return claims
        with self._write(now) as tx:
            return without_expired(tx, worker, claims)

    def _fused(
        self, worker: str, outcomes: Sequence[Outcome], request: ClaimRequest, now: float | None
    ) -> ExchangeResult:
        """The whole cycle in one statement and one round trip."""
        one = fused.is_for_one(request) and not self._has_configured
        asleep = worker in self._asleep
        statement, values = fused.question(
            self.address.schema, worker, outcomes, request, asleep=asleep, many=not one
        )
        try:
            with self._read(now) as db:
                answer = fused.answer(db.ask(statement, values), outcomes, request)
        except StoreUnreachable as error:
            raise self._unknown(error) from error
        self._has_configured = answer.configured
        if answer.claims:
            self._asleep.discard(worker)  # the statement has cleared the mark in its row
        claims = answer.claims
        last = claims[-1].queue if claims else request.after
        try:
            if not answer.alive:
                raise WorkerGone(f"worker {worker} was declared dead; it has to register anew")
            if answer.special or (one and answer.configured):
                ask_again = super()._exchange if answer.special else self._exchange
                got = ask_again(worker, (), request, now=now)
                if got.claims and worker in self._asleep:
                    self._get_up(worker)
                return ExchangeResult(got.claims, answer.lost, got.last_queue)
            if answer.leaves_places(request):
                rest = msgspec.structs.replace(request, count=request.count - len(claims), isolate=False)
                claims = claims + self._exchange(worker, (), rest, now=now).claims
        except (WorkerGone, DataRefused):  # what was finished is kept; the next claim says the same
            if not outcomes and not claims:
                raise
        return ExchangeResult(self._in_time(worker, claims, now), answer.lost, last)

    # -- operators -------------------------------------------------------------------------------

    def retry(self, job: int, now: float | None = None) -> None:
        try:
            super().retry(job, now)
        except StoreError as error:
            if not isinstance(error.__cause__, psycopg.errors.UniqueViolation):
                raise
            super().retry(job, now)  # somebody took its unique key just now: this time that is seen, and said

    # -- waking ----------------------------------------------------------------------------------

    def wake(self, worker: Callable[[], str], ring: Callable[[], None]) -> Wake:
        return NoWake() if self.address.pooled else Listener(self, worker, ring)

    @contextmanager
    def unhurried(self) -> Iterator[PostgresSession]:
        """On a connection of its own: to build an index, the server waits for every older transaction."""
        self.open()
        link = self.open_link()
        try:
            link.connection.patience = _LONGEST_STATEMENT_SECONDS
            with self.explained():
                if not self.address.pooled:  # a pooler would give these to somebody else
                    for name in ("statement_timeout", "lock_timeout"):
                        link.cursor.execute(f"SET {name} = {int(_LONGEST_STATEMENT_SECONDS * 1000)}")
                yield PostgresSession(link, self.queries, None)
        finally:
            link.close()

    def open_link(self) -> Link:
        """A connection of its own, for a listener."""
        with self.explained():
            return self.connections.open()

    def fall_asleep(self, worker: str) -> bool:
        """Say in the worker's row that it waits for jobs; True if it does so for some queues only."""
        with self._read() as db:
            row = db.row("sleep", worker=worker)
        self._asleep.add(worker)
        return row is not None and bool(row[0])

    def _get_up(self, worker: str) -> None:
        with self._read() as db:
            db.run("awake", worker=worker)
        self._asleep.discard(worker)

    def wake_readers(self, name: str) -> None:
        if not self.address.pooled:
            with self._read() as db:
                db.rows("wake_readers", queue=name)

    def got_up(self, worker: str) -> None:
        if worker in self._asleep:
            self._get_up(worker)

    def wake_another(self, worker: str) -> None:
        """Tell somebody else who waits, if there is work for them."""
        with self._read() as db:
            db.rows("wake_another", worker=worker)

    def _hint(self, tx: Session, queues: Collection[str] = (), tasks: Collection[str] = ()) -> None:
        if not self.address.pooled:
            tx.rows("wake_one", queues=_names(queues), task_names=_names(tasks))

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
                "schema_version": version_of(meta, self.url),
                "code_version": schema.VERSION,
                "install_id": meta["install_id"],
                "newest_created_at": db.row("newest_created_at")[0],
                "unknown_tasks": dict(db.rows("count_unknown")),
                "refused": refused_claims(db),
                "now": db.now,
                **dict(zip(_SERVER_FACTS, db.row("server_facts"), strict=True)),
            }

    def backup(self, target: str) -> int:
        raise StoreError("PostgreSQL has its own backups: use pg_dump, or your server's")


def _names(names: Collection[str]) -> str | None:
    return msgspec.json.encode(sorted(names)).decode() if names else None


def _sees(inserted: list[Inserted]) -> Witness:
    """One new job is enough. Not by its id alone: a server that crashed may give that a second time, too."""

    def is_there(db: PostgresSession) -> bool:
        if not inserted:  # all were there before
            return True
        row = db.row("created_at", id=inserted[-1].id)
        return row is not None and abs(row[0] - inserted[-1].now) < _MICROSECONDS

    return is_there
