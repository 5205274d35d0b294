"""Claims from users' tables of several shapes in PostgreSQL: as in consumer_tables.py."""

from __future__ import annotations

import psycopg

from benchmarks.consumer_tables import Dialect, measure
from benchmarks.report import Line, Setting
from benchmarks.server import a_server

POSTGRES = Dialect(
    {
        "NUMBER": "double precision",
        "JSON": "jsonb",
        "MOMENT": "timestamptz",
        "MARKED": """'{"shape_0": true}'::jsonb""",
        "TOMORROW": "now() + interval '1 day'",
    },
    "generate_series(1, ROWS) AS n",
)


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    with a_server() as url, psycopg.connect(url, autocommit=True) as db:
        return measure("postgres_consumer_tables", setting, url, db, POSTGRES)
