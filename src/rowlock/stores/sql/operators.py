"""What operators do: cancel and retry jobs, pause queues, set their strategies."""

from __future__ import annotations

from rowlock.errors import DataRefused, JobNotFound, WrongState
from rowlock.job import State
from rowlock.options import CONSUMERS
from rowlock.stores.sql.copying import refuse_moved
from rowlock.stores.sql.database import Database
from rowlock.stores.sql.finishing import add_history
from rowlock.strategies import get_strategy


class Operators:
    """The operators' verbs of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def cancel(self, job: int, now: float | None = None) -> None:
        """Cancel a waiting job at once; ask a running one to stop; leave a finished one."""
        with self._database.write(now) as tx:
            for state, claim in tx.rows("cancel", id=job):
                event = "cancel asked for" if state == State.RUNNING else "cancelled"
                add_history(tx, job, claim, event, error_kind="operator")

    def retry(self, job: int, now: float | None = None) -> None:
        """Put a scheduled or finished job back into its queue, with a new budget."""
        try:
            self._retry(job, now)
        except DataRefused:  # if somebody took its unique key just now, this time that is seen, and said
            self._retry(job, now)

    def _retry(self, job: int, now: float | None) -> None:
        with self._database.write(now) as tx:
            row = tx.row("retry_facts", id=job)
            if row is None:
                raise JobNotFound(f"there is no job {job}; it may have been pruned")
            claim, state, task, unique_key, unique_until, queue = row
            if state in (State.QUEUED, State.RUNNING):
                raise WrongState(
                    f"job {job} is {state}: there is nothing to retry; cancel it first if it is stuck"
                )
            if unique_until is not None and state != State.SCHEDULED:
                holder = tx.row("unique_holder", task=task, unique_key=unique_key)
                if holder is not None:
                    raise WrongState(
                        f"job {job} cannot be retried: job {holder[0]} holds its unique key {unique_key!r}; "
                        "wait for that one or cancel it"
                    )
            if not tx.run("retry_job", id=job, position=self._database.numbers(tx, 1)[0]):
                raise WrongState(f"job {job} was changed or deleted at this very moment; look at it again")
            add_history(tx, job, claim, "retried", error_kind="operator")
            self._database.hint(tx, [queue], [task])

    def set_queue(
        self, name: str, *, paused: bool | None = None, strategy: str | None = None, now: float | None = None
    ) -> None:
        """Pause or resume a queue, or set the strategy of all its workers ("" unsets it)."""
        with self._database.write(now) as tx:
            if not name.startswith(CONSUMERS):  # their tables stay
                refuse_moved(tx)
            if paused is not None:
                tx.run("set_paused", name=name, paused=int(paused))
                self._database.hint(tx, [name])
            if strategy is not None:
                tx.run("set_strategy", name=name, strategy=get_strategy(strategy).name if strategy else None)
