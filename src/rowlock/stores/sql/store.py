"""The store: the few verbs through which everything else reaches a database, put together from parts.

Each verb is in the part that is named here; what a database has of its own is in `database.py`.
Batch-first and fenced: what ends, extends or reports on a claim says which claim number it holds, and is
told when that claim is lost. `now` is Unix seconds; None means the store's own clock.
"""

from __future__ import annotations

from functools import partial

from rowlock.stores.source import Source
from rowlock.stores.sql import pruning
from rowlock.stores.sql.database import Database
from rowlock.stores.sql.exchange import Exchanges
from rowlock.stores.sql.jobs import JobSource
from rowlock.stores.sql.operators import Operators
from rowlock.stores.sql.reading import Reading, facts
from rowlock.stores.sql.refusals import Refusals
from rowlock.stores.sql.rescue import Rescuing
from rowlock.stores.sql.user_transaction import UserTransactions
from rowlock.stores.sql.workers import Workers


class Store:
    """One database with one source of work; without a source of its own, that of the jobs."""

    def __init__(self, database: Database, source: Source | None = None) -> None:
        jobs = JobSource(database)
        self.database, self.url = database, database.url
        self.source: Source = source or jobs
        refusals = Refusals(database, self.source)
        with_retries = database.retried  # what writes may have to be made again

        self.open, self.close = database.open, database.close
        self.ddl, self.upgrade = database.ddl, database.upgrade
        self.insert, self.install_id = with_retries(database.insert), database.install_id
        self.checkpoint, self.backup, self.wake = database.checkpoint, database.backup, database.wake
        self.transaction, self.commit_on = database.transaction, database.commit_on

        users = UserTransactions(database, self.source)
        self.insert_on, self.get_on = users.insert_on, users.get_on
        self.finish_on, self.confirm_on = users.finish_on, users.confirm_on

        exchanges = Exchanges(database, self.source, refusals)
        self.exchange, self.held = exchanges.exchange, exchanges.held
        self.hand_over, self.start = exchanges.hand_over, exchanges.start
        self.report, self.titles = with_retries(refusals.report), self.source.titles

        # Whoever rescues takes back jobs, too: a worker of rows may be the only one left.
        others = [] if self.source.is_jobs else [Refusals(database, jobs)]
        rescuing = Rescuing(database, [*others, refusals])
        self.rescue, self.retire = with_retries(rescuing.rescue), with_retries(rescuing.retire)

        workers = Workers(database)
        self.register, self.know = with_retries(workers.register), with_retries(workers.know)
        self.beat, self.tell, self.info = with_retries(workers.beat), with_retries(workers.tell), workers.info

        self.promote, self.expire = with_retries(self.source.promote), with_retries(self.source.expire)
        self.fail_overdue = with_retries(self.source.fail_overdue)
        self.prune = with_retries(self.source.prune)
        self.next_needed, self.idle = self.source.next_needed, self.source.idle
        self.isolated_waiting = self.source.isolated_waiting
        self.prune_records = with_retries(partial(pruning.prune_records, database))

        operators = Operators(database)
        self.cancel, self.retry = with_retries(operators.cancel), with_retries(operators.retry)
        self.set_queue = with_retries(operators.set_queue)

        reading = Reading(database)
        self.get, self.find, self.history = reading.get, reading.find, reading.history
        self.changed, self.facts = reading.changed, partial(facts, database)
        self.logs, self.queues, self.workers = reading.logs, reading.queues, reading.workers
        self.consumer_claims = reading.consumer_claims
        self.pulse, self.minutes, self.depth = reading.pulse, reading.minutes, reading.depth

    @property
    def announces_all_work(self) -> bool:
        """Whether a wake-up or `next_needed` tells of everything that becomes due."""
        return self.source.announces_all_work

    def over(self, source: Source) -> Store:
        """The same database with another source of work."""
        return Store(self.database, source)
