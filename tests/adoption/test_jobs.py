"""`jobs` with percent and a time of change, as a DuckDB file has it too: here on PostgreSQL and SQLite."""

from __future__ import annotations

import uuid
from contextlib import closing

import pytest

from tests.adoption import jobs
from tests.adoption.conftest import Hire
from tests.adoption.crew import ended
from tests.eventually import eventually

PAGE = "SELECT id, status, progress, error_message FROM jobs ORDER BY id"  # as the team's page asks it


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_jobs_are_adopted_as_they_are(store: str, request: pytest.FixtureRequest, hire: Hire) -> None:
    url = request.getfixturevalue(f"{store}_team")
    crew, ours = hire("jobs", url), jobs.database(url)
    with closing(ours.connect()) as db:
        for statement in (jobs.CREATE_SQLITE if ours.is_sqlite else jobs.CREATE_POSTGRES).split(";"):
            db.execute(statement)
        keys = ["a" + str(uuid.uuid4())[1:] for _ in range(30)]  # none of them begins with "bad"
        for key in keys:
            db.execute(f"INSERT INTO jobs (id, updated_at) VALUES ({ours.mark}, {ours.now})", (key,))
        crew.init()
        frozen = crew.one_killed_and_one_frozen("render")
        held = [row[1:] for row in db.execute(PAGE) if row[1] == "processing"]
        assert len(held) >= 2 and {*held} == {("processing", 0, None)}
        legacy = crew.legacy(10)
        eventually(lambda: db.execute("SELECT 1 FROM frames").fetchone(), timeout=60)
        ended(crew.drain("survivor", "render"), legacy)
        crew.thaw(frozen)
        assert [(str(row[0]), *row[1:]) for row in db.execute(PAGE)] == [
            (key, "done", 100, None) for key in sorted(keys)
        ]
        made = db.execute("SELECT job, number FROM frames").fetchall()
        assert sorted((str(job), number) for job, number in made) == sorted(
            (key, number) for key in keys for number in range(jobs.STEPS)
        )
        makers = {name for (name,) in db.execute("SELECT made_by FROM frames")}
        assert makers == {"legacy", "survivor"}
        if ours.is_sqlite:
            other = "SELECT count(*) FROM jobs WHERE updated_at NOT LIKE '____-__-__T__:__:__Z'"
            assert db.execute(other).fetchone() == (0,)
