"""`processing_jobs` in PostgreSQL with SQLAlchemy: a result is committed for each image, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy import Engine, create_engine, func, inspect, select
from sqlalchemy.orm import Session

from tests.adoption.conftest import Hire
from tests.adoption.crew import ended, for_sqlalchemy
from tests.adoption.processing_jobs import Base, JobStatus, ProcessingJob, ProcessingResult
from tests.eventually import eventually

IMAGES = 14


@pytest.fixture
def engine(postgres_team: str) -> Iterator[Engine]:
    made = create_engine(for_sqlalchemy(postgres_team))
    Base.metadata.create_all(made)
    yield made
    made.dispose()


def count(db: Session, *conditions: object) -> int:
    return db.scalar(select(func.count()).select_from(ProcessingJob).where(*conditions)) or 0  # type: ignore[arg-type]


def test_processing_jobs_are_adopted_as_they_are(engine: Engine, postgres_team: str, hire: Hire) -> None:
    crew = hire("processing_jobs", postgres_team)
    columns = str(inspect(engine).get_columns("processing_jobs"))
    with Session(engine) as db:
        usual = [ProcessingJob(image_ids=[*range(IMAGES)]) for _ in range(12)]
        long_ago = datetime.now(timezone.utc) - timedelta(hours=1)
        forgotten = ProcessingJob(image_ids=[1], status=JobStatus.RUNNING, started_at=long_ago)
        db.add_all([*usual, forgotten])
        db.commit()
        crew.init()
        frozen = crew.one_killed_and_one_frozen("segment", "--concurrency", "1")
        held = db.scalars(
            select(ProcessingJob.current_index).where(ProcessingJob.status == JobStatus.RUNNING)
        )
        assert {*held} >= {2}  # two results and "2 images" were committed by each, and are kept
        db.add(ProcessingJob(image_ids=[-1]))
        db.commit()
        legacy = crew.legacy(4)
        made_by = select(ProcessingResult.made_by).where(ProcessingResult.made_by == "legacy").limit(1)
        eventually(lambda: db.scalar(made_by) or db.rollback(), timeout=60)
        ended(crew.drain("survivor", "segment"), legacy)
        crew.thaw(frozen)
        db.rollback()
        made = db.execute(select(ProcessingResult.job_id, ProcessingResult.image_id))
        results = Counter((job, image) for job, image in made)
        wanted = {(job.id, image): 1 for job in (*usual, forgotten) for image in job.image_ids}
        assert results == wanted
        makers = {*db.scalars(select(ProcessingResult.made_by))}
        assert makers == {"killed", "frozen", "legacy", "survivor"}
        done = select(ProcessingJob).where(ProcessingJob.status == JobStatus.COMPLETED)
        for job in db.scalars(done):
            assert job.current_index == len(job.image_ids) and job.error is None
            assert job.started_at and job.completed_at and job.started_at <= job.completed_at
        (bad,) = db.scalars(select(ProcessingJob).where(ProcessingJob.status == JobStatus.FAILED))
        assert bad.image_ids == [-1] and "no such image" in (bad.error or "") and bad.completed_at
        assert len(bad.error or "") <= 2048 and count(db) == len(usual) + 2
    assert str(inspect(engine).get_columns("processing_jobs")) == columns
