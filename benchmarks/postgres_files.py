"""Files and their rows in PostgreSQL: as in files.py."""

from __future__ import annotations

import psycopg

from benchmarks.files import TABLE, measured
from benchmarks.report import Line, Setting
from benchmarks.server import a_server


def run(setting: Setting) -> list[Line]:
    """Measure the scenario."""
    with a_server() as url, psycopg.connect(url, autocommit=True) as connection:
        key = "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
        connection.execute(TABLE.format(key=key, table="recordings", time="double precision").encode())

        def there(name: str) -> bool:
            return (
                connection.execute("SELECT 1 FROM recordings WHERE path = %s", (name,)).fetchone() is not None
            )

        return measured("postgres_files", setting, url, "recordings", there)
