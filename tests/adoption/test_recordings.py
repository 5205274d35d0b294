"""`recordings` in PostgreSQL: two analysers and an uploader, beside an old analyser."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.adoption import recordings
from tests.adoption.conftest import Hire
from tests.adoption.crew import Crew, ended, stopped
from tests.eventually import eventually

INSERT = """
INSERT INTO recordings (time, file_raw, file_processed, analysis_state)
SELECT now() - make_interval(mins => n), 'raw/' || n || '.wav', %s || '/' || n || '.wav', %s
FROM generate_series(1, %s) n
"""
COLUMNS = """
SELECT column_name, data_type, is_nullable, column_default FROM information_schema.columns
WHERE table_schema = current_schema() AND table_name = 'recordings' ORDER BY ordinal_position
"""
WORDS = "SELECT analysis_state ->> %s, count(*) FROM recordings GROUP BY 1"  # as the team's page asks
BY_SURVIVOR = """
SELECT r.id, r.time FROM detections d JOIN recordings r ON r.id = d.recording
WHERE d.found_by = 'survivor' ORDER BY d.id
"""
ROWS = 40


@pytest.fixture
def db(postgres_team: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_team, autocommit=True) as made:
        made.execute(recordings.CREATE)
        yield made


def words(db: psycopg.Connection[Any], analyser: str) -> dict[str | None, int]:
    return dict(db.execute(WORDS, (analyser,)).fetchall())


def test_recordings_are_adopted_as_they_are(
    db: psycopg.Connection[Any], postgres_team: str, hire: Hire
) -> None:
    crew = hire("recordings", postgres_team)
    before = '{"birdnet": "done", "batdetect": "failed_file_missing", "reviewer": "Ada"}'
    for folder, state, rows in (
        ("good", None, ROWS),
        ("missing", "{}", 2),
        ("broken", None, 1),
        ("old", before, 3),
    ):
        db.execute(INSERT, (folder, state, rows))
    db.execute(INSERT, (None, None, 2))  # not processed yet
    columns = db.execute(COLUMNS).fetchall()
    crew.init()
    upload = crew.consume("upload", "uploader")
    frozen = crew.one_killed_and_one_frozen("birdnet")
    held = {key for (key,) in db.execute("SELECT row_key FROM rowlock_consumer_claims")}
    ended(crew.rowlock("newest", "queues", "set", "consumer:birdnet", "--strategy", "LIFO"))
    legacy, bats = crew.legacy(15), crew.drain("bats", "batdetect")
    eventually(
        lambda: db.execute("SELECT 1 FROM detections WHERE found_by = 'legacy'").fetchone(), timeout=60
    )
    ended(crew.drain("survivor", "birdnet", "--concurrency", "1"), legacy, bats)
    crew.thaw(frozen)
    detections = Counter(db.execute("SELECT recording, analyser FROM detections").fetchall())
    good = [id for (id,) in db.execute("SELECT id FROM recordings WHERE file_processed LIKE 'good%'")]
    assert detections == {(id, name): 1 for id in good for name in ("birdnet", "batdetect")}
    newest_first = [time for id, time in db.execute(BY_SURVIVOR) if str(id) not in held]
    assert len(newest_first) > 5 and newest_first == sorted(newest_first, reverse=True)
    failed = {"failed_file_missing": 2, "crashed: ValueError: not a sound": 1}
    assert words(db, "birdnet") == {None: 2, "done": ROWS + 3, **failed}
    assert words(db, "batdetect") == {None: 2, "done": ROWS, **failed, "failed_file_missing": 5}
    assert words(db, "reviewer") == {"Ada": 3, None: ROWS + 5}
    check_uploads(crew, db)
    stopped(upload)
    assert db.execute(COLUMNS).fetchall() == columns
    in_flight = "SELECT count(*) FROM rowlock_consumer_claims WHERE claimed_by IS NOT NULL"
    assert db.execute(in_flight).fetchone() == (0,)


def check_uploads(crew: Crew, db: psycopg.Connection[Any]) -> None:
    """Off until the switch says on; then the other side is away, which pauses all; then it is there."""
    paused = (
        "SELECT paused_until - now() FROM rowlock_queues "
        "WHERE name = 'consumer:uploader' AND paused_at IS NOT NULL"
    )
    assert db.execute(paused).fetchone() is None  # nobody has tried
    db.execute("UPDATE settings SET value = 'on' WHERE name = 'upload'")
    ((left,),) = eventually(lambda: db.execute(paused).fetchall(), timeout=60)
    assert 200 < left.total_seconds() <= 300
    assert db.execute("SELECT count(*) FROM recordings WHERE uploaded").fetchone() == (0,)
    held = "SELECT row_key::bigint FROM rowlock_consumer_claims WHERE consumer = 'uploader' AND claimed_by "
    eventually(lambda: db.execute(f"{held} IS NOT NULL").fetchone() is None)
    late = db.execute(f"{held} IS NULL AND failures = 0 ORDER BY 1").fetchall()
    assert 1 <= len(late) <= 4
    db.execute("UPDATE settings SET value = 'here' WHERE name = 'server'")
    ended(crew.rowlock("resume", "resume", "consumer:uploader"))
    # Only the rows that found nobody there wait for their 300 s.
    waiting = "SELECT id FROM recordings WHERE NOT uploaded ORDER BY id"
    eventually(lambda: db.execute(waiting).fetchall() == late, timeout=60)
    uploads = "SELECT recording FROM uploads ORDER BY 1"
    done = "SELECT id FROM recordings WHERE uploaded AND uploaded_at <= now() ORDER BY 1"
    assert db.execute(uploads).fetchall() == db.execute(done).fetchall()
