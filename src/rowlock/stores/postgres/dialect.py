"""PostgreSQL's words in the shared statements, and the types of their parameters; pure data.

Each statement is written for one schema and one driver's way of naming parameters.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

from rowlock.stores import queries
from rowlock.stores.claiming import CLAIM_COLUMNS
from rowlock.stores.queries import Queries
from rowlock.stores.reading import JOB_COLUMNS

CHANNEL = "rowlock.wake."
# A given time is for tests; else the server's clock decides, and always within the statement.
_NOW = "coalesce(:now, statement_timestamp())"
_WORDS = {
    "now": _NOW,
    "now+": f"({_NOW} + make_interval(secs => {{0}}))",
    "now-": f"({_NOW} - make_interval(secs => {{0}}))",
    "job": JOB_COLUMNS,
    "claim": ", ".join(f"j.{name}" for name in CLAIM_COLUMNS),
    # Written so that no partial index fits: the planner would walk all that runs instead of the key
    # (11 k against 28 k jobs/s).
    "running": "state || '' = 'running'",
    "lock": "FOR UPDATE SKIP LOCKED",
    "ids": "SELECT CAST(value AS bigint) FROM json_array_elements_text(:ids)",
    "queues": "SELECT value FROM json_array_elements_text(:queues)",
    "channel": CHANNEL,
    "meta_name": "rowlock' || '_meta",  # a name, not a table: it takes no schema before it
}
_SECONDS = "to_timestamp(CAST({0} AS double precision))"
_TYPES = {
    "text": (
        *(
            "after",
            "number",
            "error",
            "error_kind",
            "event",
            "host",
            "key",
            "message",
            "name",
            "note",
            "queue",
        ),
        *("state", "strategy", "task", "unique_key", "version", "worker"),
    ),
    "json": ("args", "fields", "ids", "jobs", "queues", "result", "tasks"),
    "bigint": (
        *("before", "beyond", "count", "id", "keep", "limit", "minute", "most", "pid", "position", "since"),
        *("token", "completed", "failed", "retried", "cancelled", "released"),
    ),
    "integer": ("all", "alone", "charge", "claim", "concurrency", "max_attempts", "paused"),
    "smallint": ("level", "priority"),
    "double precision": (
        *("age", "delay", "done", "expires", "lease", "total", "run_seconds", "wait_seconds"),
    ),
    "bigint[]": ("done_ids",),
    "integer[]": ("done_claims",),
    "text[]": ("done_results", "names"),
}
_CASTS = {name: f"CAST({{0}} AS {kind})" for kind, names in _TYPES.items() for name in names} | dict.fromkeys(
    ("at", "now", "run_at", "started_at"), _SECONDS
)
_ORDERS = {"PRIORITY": "priority DESC, position", "FIFO": "position", "LIFO": "position DESC"}
_PACKAGE = "rowlock.stores.postgres"


@lru_cache(maxsize=64)
def statements(schema: str | None, style: str = "pyformat") -> Queries:
    """All statements for tables in this schema; `style` is "pyformat" (%(name)s) or "named" (:name)."""
    template = "%({0})s" if style == "pyformat" else ":{0}"

    def parameter(name: str) -> str:
        return _CASTS[name].format(template.format(name))

    here = "n.nspname = ANY (current_schemas(false))" if schema is None else f"n.nspname = '{schema}'"
    loaded = queries.load(
        ("rowlock.stores", "shared.sql"),
        (_PACKAGE, "queries.sql"),
        words=_WORDS | {"here": here},
        parameter=parameter,
        schema=schema,
    )
    for strategy, turn, done in product(_ORDERS, ("all", "named"), ("one", "many")):
        words = {"order": _ORDERS[strategy], "turn": f"{{turn_{turn}}}", "done": f"{{done_{done}}}"}
        made = queries.load(
            (_PACKAGE, "exchange.sql"), words=_WORDS | words, parameter=parameter, schema=schema
        )
        loaded[f"exchange_{turn}_{strategy}_{done}"] = made.pop("exchange")
        loaded.update(made)
    return loaded
