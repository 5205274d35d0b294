"""Builds a large backlog in rowlock's tables in PostgreSQL, with plain SQL and without ANALYZE."""

from __future__ import annotations

import psycopg

from benchmarks.apps import app_at
from benchmarks.backlog import Backlog
from benchmarks.byhand_postgres import connect

_ROWS = """
INSERT INTO rowlock_jobs (id, position, task, queue, priority, state, claim, max_attempts, created_at, run_at,
                          due_at, claimed_at, claimed_by, started_at, finished_at, args, result)
SELECT n, n, 'add', 'q' || lpad(mod(n, %(queues)s)::text, 2, '0'),
       (%(levels)s::smallint[])[1 + mod((n / %(queues)s) * 7919, %(depth)s)], %(state)s, done, 3, at,
       CASE %(state)s WHEN 'scheduled' THEN now() + make_interval(days => 1, secs => n) ELSE at END, at,
       CASE done WHEN 1 THEN at END, CASE done WHEN 1 THEN 'builder' END,
       CASE done WHEN 1 THEN at END, CASE done WHEN 1 THEN now() END,
       json_build_object('a', n, 'b', 2), CASE done WHEN 1 THEN to_json(n + 2) END
FROM (SELECT n, %(done)s::integer AS done, now() - interval '2 hours' + make_interval(secs => n * 1e-3) AS at
      FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n) numbers
"""


def build(backlog: Backlog, url: str) -> None:
    """Write the rows: finished ones first, as they are the oldest, then those that wait."""
    app_at(url).close()
    with psycopg.ClientCursor(connect(url)) as cursor:
        cursor.execute("ALTER TABLE rowlock_jobs SET (autovacuum_enabled = off)")
        first = 1
        for state, count in (
            ("completed", backlog.completed),
            ("scheduled", backlog.scheduled),
            ("queued", backlog.queued),
        ):
            values = {
                "first": first,
                "last": first + count - 1,
                "levels": list(backlog.levels),
                "depth": len(backlog.levels),
                "queues": backlog.queues,
                "state": state,
                "done": int(state == "completed"),
            }
            cursor.execute(_ROWS, values)
            first += count
        cursor.execute("SELECT setval('rowlock_jobs_id_seq', %s)", (first,))
        cursor.execute("CHECKPOINT")  # what building has left to be written is not a claim's to wait for
        cursor.connection.close()


def check_never_analysed(connection: psycopg.Connection) -> None:
    """Raise if the planner has learnt something of the table after all."""
    (count,) = connection.execute(
        "SELECT count(*) FROM pg_stats WHERE tablename = 'rowlock_jobs'"
    ).fetchone() or (0,)
    assert count == 0
