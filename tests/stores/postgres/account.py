"""All that is known of a run in which the server crashed, for the one who reads why its test failed.
Not a judgement: the test says what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import psycopg

from tests.servers.postgres import PostgresServer


def account(server: PostgresServer, acknowledged: Sequence[int], runs: Sequence[tuple[int, int]]) -> str:
    """The jobs that stand out, their runs and their timelines, the workers, and what the server said."""
    ran_twice = sorted({id for (id, _), times in Counter(runs).items() if times > 1})
    parts = {
        "acknowledged twice": [id for id, times in Counter(acknowledged).items() if times > 1],
        "acknowledged and never run": sorted(set(acknowledged) - {id for id, _ in runs}),
        "run twice under one claim": ran_twice,
    }
    try:
        rows = server.execute("SELECT * FROM rowlock_jobs ORDER BY id")
        columns = server.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'rowlock_jobs'::regclass AND attnum > 0 "
            "AND NOT attisdropped ORDER BY attnum"
        )
        jobs = [dict(zip([name for (name,) in columns], row, strict=True)) for row in rows]
        found = {job["id"] for job in jobs}
        parts["acknowledged and not there"] = sorted(set(acknowledged) - found)
        odd = {job["id"] for job in jobs if job["state"] != "completed"} | set(ran_twice)
        odd |= found - set(acknowledged)
        timelines = server.execute("SELECT * FROM rowlock_history ORDER BY id")
        listed: dict[str, list[Any]] = {
            **parts,
            "not completed, run twice, or acknowledged to nobody": [job for job in jobs if job["id"] in odd],
            "their runs": [run for run in runs if run[0] in odd],
            "all timelines": timelines,
            "workers": server.execute("SELECT * FROM rowlock_workers"),
        }
    except psycopg.Error as error:
        listed = {**parts, "the server does not answer": [error]}
    listed["the server's log"] = server.log.read_text(errors="replace").splitlines()
    return "\n".join(line for title, lines in listed.items() for line in [f"-- {title}:", *map(str, lines)])
