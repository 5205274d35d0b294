"""The few steps from which the stories about stores are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rowlock.job import EVERY_TASK, Claim, ClaimRequest, Ending, Job, NewJob, Outcome
from rowlock.stores.base import Registration
from rowlock.stores.sql.statements import qualified
from rowlock.stores.sql.store import Store
from rowlock.strategies import Some, Strategy

_TABLES = (
    *("jobs", "workers", "history", "logs", "progress", "minutes", "queues"),
    *("consumer_claims", "consumer_failures"),
)


def new(task: str = "work", **fields: Any) -> NewJob:
    return NewJob(task=task, queue=fields.pop("queue", "default"), args=fields.pop("args", "{}"), **fields)


def add(store: Store, count: int = 1, now: float | None = None, **fields: Any) -> list[int]:
    return [one.id for one in store.insert([new(**fields) for _ in range(count)], now)]


def worker(
    store: Store,
    name: str = "w",
    lease: float = 60.0,
    now: float | None = None,
    queues: tuple[str, ...] = (),
    **tasks: int,
) -> str:
    facts = {task: {"max_attempts": attempts} for task, attempts in tasks.items()} or {EVERY_TASK: {}}
    registration = Registration(
        id=name,
        host="host",
        pid=1,
        version="0",
        queues=queues,
        tasks=facts,
        strategy="PRIORITY",
        concurrency=1,
        lease=lease,
    )
    return store.register(registration, now)


def take(store: Store, who: str, count: int = 1, now: float | None = None, **want: Any) -> list[Claim]:
    return store.exchange(who, request=ClaimRequest(count=count, **want), now=now).claims


def outcome(claim: Claim, ending: Ending, **fields: Any) -> Outcome:
    return Outcome(
        id=claim.id, claim=claim.claim, ending=ending, task=claim.task, queue=claim.queue, **fields
    )


def end(
    store: Store, claim: Claim, ending: Ending = Ending.COMPLETED, now: float | None = None, **fields: Any
) -> bool:
    """Finish a claim; True if it was accepted, False if the fence refused it."""
    if ending is Ending.RETRY:
        fields.setdefault("delay", 0.0)
    return not store.exchange(claim.claimed_by, [outcome(claim, ending, **fields)], now=now).lost


def job(store: Store, id: int) -> Job:
    found = store.get(id)
    assert found is not None
    return found


def jobs(store: Store) -> dict[int, Job]:
    """All of them, in one read."""
    return {one.id: one for one in store.find(limit=10_000)}


def state(store: Store, id: int) -> str:
    return str(job(store, id).state)


def events(store: Store, id: int) -> list[str]:
    return [entry.event for entry in store.history(id)]


def table(store: Any, name: str) -> str:
    """A table's name as a statement has to write it: PostgreSQL's are in the store's schema."""
    return qualified(name, store.database.address.schema) if hasattr(store.database, "address") else name


def run_sql(store: Any, *statements: str) -> list[Any]:
    """Run statements of a test's own in one transaction; returns the rows of the last."""
    with store.database.write() as tx:
        runs = getattr(tx.connection, "own_cursor", tx.connection)
        for statement in statements:
            cursor = runs.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


def emptied(store: Any) -> None:
    """Delete every row, so that one database serves many stories; numbers go on where they were."""
    run_sql(store, *(f"DELETE FROM {table(store, f'rowlock_{name}')}" for name in _TABLES))


def refuse_updates(
    execute: Callable[[str], Any], prefix: str, table: str, condition: str, message: str
) -> None:
    """A trigger of the user's that refuses updates, where the condition on OLD and NEW is true."""
    name = f"refuse_{table}"
    if "." not in prefix:
        execute(
            f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} WHEN {condition} "
            f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )
        return
    execute(
        f"CREATE OR REPLACE FUNCTION {prefix}{name}() RETURNS trigger LANGUAGE plpgsql AS $$ "
        f"BEGIN RAISE EXCEPTION '{message}'; END $$"
    )
    execute(
        f"CREATE TRIGGER {name} BEFORE UPDATE ON {prefix}{table} FOR EACH ROW WHEN ({condition}) "
        f"EXECUTE FUNCTION {prefix}{name}()"
    )


def in_order(strategy: Strategy, rows: Iterable[Some]) -> list[Some]:
    """The rows by all keys of a strategy at once, where `Strategy.arranged` goes key by key."""

    def keys(row: Some) -> list[int]:
        values = [(getattr(row, key.column), key.descending) for key in strategy.order]
        return [-value if descending else value for value, descending in values]

    return sorted(rows, key=keys)
