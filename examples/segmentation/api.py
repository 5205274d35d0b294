"""The API: takes images and jobs, and shows what became of them. It writes to the database alone.

It knows neither Redis nor rowlock: a job is a row with the status QUEUED.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

from examples.segmentation.pictures import NotAPicture, read_png
from examples.segmentation.tables import Image, JobStatus, ProcessingJob, Result, session
from fastapi import Body, Depends, FastAPI, HTTPException, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import select, text
from sqlalchemy.orm import Session

LARGEST_IMAGE = 10_000_000  # bytes

api = FastAPI(title="Segmentation")


def database() -> Iterator[Session]:
    """A session for each request."""
    with session() as opened:
        yield opened


Database = Annotated[Session, Depends(database)]


class NewJob(BaseModel):
    image_ids: list[int] = Field(min_length=1, max_length=1_000)


class Job(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: uuid.UUID
    status: JobStatus
    image_ids: list[int]
    current_index: int
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    error: str | None


class Found(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    index: int
    image_id: int
    segments: int
    worker: str


@api.get("/healthz")
def healthz(db: Database) -> dict[str, str]:
    db.execute(text("SELECT 1"))
    return {"status": "ok"}


@api.post("/images", status_code=201)
def upload(
    db: Database, png: Annotated[bytes, Body(media_type="image/png")], name: str = "unnamed"
) -> dict[str, int]:
    if len(png) > LARGEST_IMAGE:
        raise HTTPException(413, f"an image has at most {LARGEST_IMAGE} bytes")
    try:
        read_png(png)
    except NotAPicture as error:
        raise HTTPException(422, str(error)) from None
    image = Image(name=name[:200], png=png)
    db.add(image)
    db.commit()
    return {"id": image.id}


@api.post("/jobs", status_code=201)
def submit(db: Database, new: NewJob) -> Job:
    known = set(db.scalars(select(Image.id).where(Image.id.in_(new.image_ids))))
    if unknown := [one for one in new.image_ids if one not in known]:
        raise HTTPException(422, f"no such images: {unknown}")
    job = ProcessingJob(image_ids=new.image_ids)
    db.add(job)
    db.commit()
    return Job.model_validate(job)


@api.get("/jobs/{id}")
def show(db: Database, id: uuid.UUID) -> Job:
    return Job.model_validate(_job(db, id))


@api.get("/jobs/{id}/results")
def results(db: Database, id: uuid.UUID) -> list[Found]:
    _job(db, id)
    found = db.scalars(select(Result).where(Result.job_id == id).order_by(Result.index))
    return [Found.model_validate(one) for one in found]


@api.get("/jobs/{id}/results/{index}/masks.png", response_class=Response)
def masks(db: Database, id: uuid.UUID, index: int) -> Response:
    result = db.get(Result, (id, index))
    if result is None:
        raise HTTPException(404, f"job {id} has no result {index} so far")
    return Response(result.masks_png, media_type="image/png")


def _job(db: Session, id: uuid.UUID) -> ProcessingJob:
    job = db.get(ProcessingJob, id)
    if job is None:
        raise HTTPException(404, f"no job {id}")
    return job
