"""The service's own tables: the API writes `processing_jobs`, rowlock keeps status, times and progress."""

from __future__ import annotations

import enum
import os
import uuid
from datetime import datetime
from functools import cache

from sqlalchemy import (
    JSON,
    DateTime,
    Engine,
    Enum,
    ForeignKey,
    LargeBinary,
    String,
    create_engine,
    func,
    make_url,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class JobStatus(enum.Enum):
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class Base(DeclarativeBase):
    pass


class Image(Base):
    __tablename__ = "images"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    png: Mapped[bytes] = mapped_column(LargeBinary)


class ProcessingJob(Base):
    __tablename__ = "processing_jobs"

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    status: Mapped[JobStatus] = mapped_column(Enum(JobStatus, name="job_status"), default=JobStatus.QUEUED)
    image_ids: Mapped[list[int]] = mapped_column(JSON)
    current_index: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())
    started_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    completed_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    error: Mapped[str | None] = mapped_column(String(2048))


class Result(Base):
    """What was found in one image of a job; the key makes a second result for it impossible."""

    __tablename__ = "results"

    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey(ProcessingJob.id), primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    image_id: Mapped[int] = mapped_column(ForeignKey(Image.id))
    segments: Mapped[int]
    masks_png: Mapped[bytes] = mapped_column(LargeBinary)
    worker: Mapped[str] = mapped_column(String(200))


@cache
def engine() -> Engine:
    """The database that ROWLOCK_DATABASE_URL names, opened when it is first needed."""
    url = make_url(os.environ["ROWLOCK_DATABASE_URL"])
    return create_engine(url.set(drivername="postgresql+psycopg"), pool_pre_ping=True)


def session() -> Session:
    """A session of the service's."""
    return Session(engine())


if __name__ == "__main__":  # those that are there already stay as they are
    Base.metadata.create_all(engine())
