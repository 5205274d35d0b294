"""Claims from a user's table in PostgreSQL, and rows beside jobs: as in consumers.py."""

from __future__ import annotations

import psycopg

from benchmarks.apps import adding_app
from benchmarks.consumers import claims, throughput, with_consumer
from benchmarks.report import Line, Setting
from benchmarks.server import a_server
from rowlock import Rowlock

_CREATE = """
CREATE TABLE recordings (id bigint PRIMARY KEY, time double precision, path text, analysis_state jsonb)
"""
_FILL = """
INSERT INTO recordings
SELECT n, n, 'recording-' || n || '.wav', CASE WHEN n <= %(done)s THEN '{"birdnet": true}'::jsonb END
FROM generate_series(1, %(rows)s) AS n
"""


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    with a_server() as url:

        def make(rows: int, done: int) -> Rowlock:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("DROP TABLE IF EXISTS recordings")
                connection.execute(_CREATE)
                connection.execute(_FILL, {"rows": rows, "done": done})
            return with_consumer(url)

        jobs, task = adding_app(url)
        lines = [
            claims("postgres_consumers", setting, make),
            throughput("postgres_consumers", setting, make, jobs, task),
        ]
        jobs.close()
    return lines
