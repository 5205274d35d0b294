"""The worker: takes rows of `processing_jobs` and segments their images, with a resident model.

`rowlock consume examples.segmentation.worker:app segmentation --via rq` runs it; nothing here knows Redis.
"""

from __future__ import annotations

import os
import socket

from examples.segmentation.model import Model, load_model
from examples.segmentation.pictures import Picture, png, read_png, with_masks
from examples.segmentation.tables import Image, Result, session
from sqlalchemy import func, select

from rowlock import Fail, JobContext, Retry, Rowlock, Status, resident
from rowlock.consumers.row import Row

POISON = "poison.png"

app = Rowlock()  # ROWLOCK_DATABASE_URL, STALE_JOB_TIMEOUT_SECONDS, ... are read when it starts

status = Status(
    "status",
    due="QUEUED",
    running="RUNNING",
    done="COMPLETED",
    failed="FAILED",
    error="error",
    created_at="created_at",
    started_at="started_at",
    finished_at="completed_at",
    progress_done="current_index",
    deadline=1800,  # a job that nobody has begun within half an hour is FAILED
)


@app.consumer(
    "segmentation",
    table="processing_jobs",
    order_by="created_at",
    columns=["id", "image_ids"],
    status=status,
    retry=Retry(max_attempts=2, base=0.5),
)
def segment(ctx: JobContext, job: Row, model: Model = resident(load_model)) -> None:
    """Segment one image after the other; another attempt goes on behind the results that are there."""
    with session() as db:
        done = db.scalar(select(func.count()).select_from(Result).where(Result.job_id == job.id)) or 0
    for index, id in list(enumerate(job.image_ids))[done:]:
        picture = read_image(id)
        labels = model.segment(picture)
        result = Result(
            job_id=job.id,
            index=index,
            image_id=id,
            segments=int(labels.max()),
            masks_png=png(with_masks(picture, labels)),
            worker=f"{socket.gethostname()}:{os.getpid()}",
        )
        with session() as db, ctx.checkpoint(db):  # commits result and progress if the claim is still held
            db.add(result)
            ctx.progress(index + 1, len(job.image_ids))


def read_image(id: int) -> Picture:
    with session() as db:
        image = db.get(Image, id)
    if image is None:
        raise Fail(f"image {id} has been deleted")
    if image.name == POISON:  # stands for an image on which a driver crashes
        os._exit(1)
    return read_png(image.png)
