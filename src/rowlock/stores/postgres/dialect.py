"""PostgreSQL's words in the shared statements, and the types of their parameters; pure data.

Each statement is written for one schema and one driver's way of naming parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from rowlock.stores.sql import statements as queries
from rowlock.stores.sql.claim_sql import LINE, READY, Order, holes
from rowlock.stores.sql.claiming import CLAIM_COLUMNS
from rowlock.stores.sql.reading import JOB_COLUMNS
from rowlock.stores.sql.statements import Statements
from rowlock.strategies import Strategy

INDEXES: tuple[Order, ...] = (READY, LINE)
CHANNEL = "rowlock.wake."
# A given time is for tests; else the server's clock decides, and always within the statement.
_NOW = "coalesce(:now, statement_timestamp())"
_TIMES = ("created_at", "run_at", "claimed_at", "expires_at")


def _value(column: str) -> str:
    return f"date_part('epoch', j.{column})" if column in _TIMES else f"j.{column}"


_WORDS = {
    "now": _NOW,
    "now+": f"({_NOW} + make_interval(secs => {{0}}))",
    "now-": f"({_NOW} - make_interval(secs => {{0}}))",
    "job": JOB_COLUMNS,
    # Seconds are made by the server: a loader in Python would cost more than the rest of the row.
    "claim": ", ".join(f"{_value(name)} AS {name}" for name in CLAIM_COLUMNS),
    "claim_as_it_is": ", ".join(map(_value, CLAIM_COLUMNS)),
    "claim_text": f"CAST(json_build_array({', '.join(map(_value, CLAIM_COLUMNS))}) AS text)",
    # Written so that no partial index fits: the planner would walk all that runs instead of the key
    # (11 k against 28 k jobs/s).
    "running": "state || '' = 'running'",
    "lock": "FOR UPDATE SKIP LOCKED",
    "ids": "SELECT CAST(value AS bigint) FROM json_array_elements_text(:ids)",
    "queues": "SELECT value FROM json_array_elements_text(:queues)",
    "task_names": "SELECT value FROM json_array_elements_text(:task_names)",
    "channel": CHANNEL,
    "meta_name": "rowlock' || '_meta",  # a name, not a table: it takes no schema before it
}
_TEXT = "CAST({0} AS text)"
_SECONDS = "to_timestamp(CAST({0} AS double precision))"
# The parameters that are not text, by their type.
_TYPES = {
    "json": (
        *("args", "fields", "ids", "info", "jobs", "keys", "paths", "queues", "result", "tasks"),
        *("task_names", "unknown", "marks"),
    ),
    "bigint": (
        *("before", "beyond", "count", "id", "keep", "limit", "minute", "most", "pid", "position", "since"),
        *("token", "completed", "failed", "retried", "cancelled", "released", "claim_number"),
        *("size", "modified", "bytes", "more"),
    ),
    "integer": (
        *("include_refused", "isolate", "isolate_least", "isolate_most", "by_age", "charge", "claim"),
        *("begins", "companion", "concurrency", "failures", "max_attempts", "paused", "refused"),
    ),
    "smallint": ("level", "priority"),
    "double precision": (
        *("age", "delay", "done", "keep_completed", "keep_failed", "lease", "total", "percent"),
        *("reachable_for", "run_seconds", "wait_seconds"),
    ),
    "bigint[]": ("done_ids",),
    "integer[]": ("done_claims",),
    "text[]": ("done_results",),
}
TYPED = {name: f"CAST({{0}} AS {kind})" for kind, names in _TYPES.items() for name in names} | dict.fromkeys(
    ("at", "now", "run_at", "started_at"), _SECONDS
)
_PACKAGE = "rowlock.stores.postgres"


def load(
    schema: str | None, style: str, sources: Sequence[tuple[str, str]] = (), words: Mapping[str, str] = {}
) -> Statements:
    """All statements for tables in this schema, with those of another package.

    `style` is that of the parameters: "pyformat" (%(name)s) or "named" (:name).
    """
    template = "%({0})s" if style == "pyformat" else ":{0}"
    here = "n.nspname = ANY (current_schemas(false))" if schema is None else f"n.nspname = '{schema}'"
    return queries.load(
        (_PACKAGE, "queries.sql"),
        (_PACKAGE, "claims.sql"),
        *sources,
        words={**_WORDS, "here": here, **words},
        parameter=lambda name: TYPED.get(name, _TEXT).format(template.format(name)),
        schema=schema,
    )


@lru_cache(maxsize=64)
def statements(schema: str | None, style: str = "pyformat") -> Statements:
    """The queue's own statements."""
    return load(schema, style)


@lru_cache(maxsize=256)
def exchange(
    schema: str | None, strategy: Strategy, *, many: bool, named: bool, done: str, asleep: bool
) -> str:
    """The fused exchange by this strategy; `done` is "one" or "many" outcomes. A draw is always for many."""
    parts = holes(strategy, INDEXES, "shares.level")
    parts |= {
        "done": f"{{done_{done}}}",
        "in_some_level": "{eligible}",
        "awake": "{got_up}" if asleep else "",
    }
    if many:
        parts |= {
            "taken": "{taken_many}",
            "shared_out": "{shares_of_queues}\n",
            "turn": "{turn_named}" if named else "{turn_all}",
            "served": "turn.queue",
            "shares": "{drawn_shares}" if strategy.draw else "{equal_shares}",
            "weight": strategy.draw.sql("level.priority") if strategy.draw else "",
            "queue": "shares.queue",
            "limit": "shares.share",
        }
    else:
        parts |= {"taken": "{taken_one}", "shared_out": "", "limit": "1", "if_usual": "{is_usual}"}
    if not (many or named):
        parts["queue"] = "{next_in_turn}"
        if strategy.order in INDEXES:  # none has the newest first, queue by queue
            parts["first"] = "{first_of_next_queue}"
    return statements(schema).write("{exchange}", parts)


@lru_cache(maxsize=64)
def exchange_start(schema: str | None) -> str:
    """The fused exchange that begins one claim which was handed over."""
    parts = {"facts": "{facts_of_start}", "shared_out": "", "taken": "{taken_start}", "awake": ""}
    return statements(schema).write("{exchange}", {"done": "{done_many}", **parts})
