"""A team with SQLAlchemy: jobs of several images in PostgreSQL, one result committed for each image.

Run as a program, this module is the team's old worker.
"""

from __future__ import annotations

import enum
import sys
import threading
import uuid
from collections.abc import Iterator
from datetime import datetime

from sqlalchemy import JSON, DateTime, ForeignKey, String, create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from rowlock import JobContext, Retry, Rowlock, Status
from rowlock.consumers.row import Row
from tests.adoption.crew import LEASE, URL, for_sqlalchemy, hold_here, who

STALE_SECONDS = 600
engine = create_engine(for_sqlalchemy(URL) if URL else "sqlite://")
SessionLocal = sessionmaker(engine)


class JobStatus(enum.Enum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class Base(DeclarativeBase):
    pass


class ProcessingJob(Base):
    __tablename__ = "processing_jobs"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    status: Mapped[JobStatus] = mapped_column(default=JobStatus.QUEUED)
    image_ids: Mapped[list[int]] = mapped_column(JSON)
    current_index: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())
    started_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    completed_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    error: Mapped[str | None] = mapped_column(String(2048))


class ProcessingResult(Base):
    __tablename__ = "processing_results"
    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("processing_jobs.id"))
    image_id: Mapped[int]
    made_by: Mapped[str]


app = Rowlock(for_sqlalchemy(URL) if URL else "sqlite:///team.db", lease=LEASE, poll_interval=0.1)


@app.consumer(
    "segment",
    table="processing_jobs",
    order_by="created_at",
    status=Status(
        "status",
        due="QUEUED",
        running="RUNNING",
        done="COMPLETED",
        failed="FAILED",
        error="error",
        started_at="started_at",
        finished_at="completed_at",
        progress_done="current_index",
        stale_after=STALE_SECONDS,
    ),
    retry=Retry(max_attempts=3, base=0.0),
)
def segment(ctx: JobContext, job: Row) -> None:
    for index, image_id in still_to_do(job.id, job.image_ids):
        result = segmented(job.id, image_id)
        if index == 3:
            hold_here()
        ctx.progress(index, len(job.image_ids))
        with SessionLocal() as db, ctx.checkpoint(db):
            db.add(result)


def still_to_do(job: uuid.UUID, images: list[int]) -> Iterator[tuple[int, int]]:
    """Images without a result, each with its place in the job."""
    with SessionLocal() as db:
        done = {*db.scalars(select(ProcessingResult.image_id).where(ProcessingResult.job_id == job))}
    return ((index, image) for index, image in enumerate(images, start=1) if image not in done)


def segmented(job: uuid.UUID, image_id: int) -> ProcessingResult:
    if image_id < 0:
        raise ValueError("no such image: " + "x" * 5000)
    return ProcessingResult(job_id=job, image_id=image_id, made_by=who())


def take(db: Session) -> ProcessingJob | None:
    """A row for the old worker."""
    due = select(ProcessingJob).where(ProcessingJob.status == JobStatus.QUEUED)
    job = db.scalars(
        due.order_by(ProcessingJob.created_at).limit(1).with_for_update(skip_locked=True)
    ).first()
    if job is not None:
        job.status, job.started_at = JobStatus.RUNNING, func.now()
    db.commit()
    return job


def work(most: int) -> None:
    """The old worker: takes one row after the other."""
    pace = threading.Event()
    with SessionLocal() as db:
        for _ in range(most):
            if (job := take(db)) is None:
                return
            try:
                for index, image_id in still_to_do(job.id, job.image_ids):
                    db.add(segmented(job.id, image_id))
                    job.current_index = index
                    db.commit()
                    pace.wait(0.02)
                job.status = JobStatus.COMPLETED
            except ValueError as error:
                job.status, job.error = JobStatus.FAILED, str(error)[:2048]
            job.completed_at = func.now()
            db.commit()


if __name__ == "__main__":
    work(int(sys.argv[1]))
