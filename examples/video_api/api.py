"""The service: takes an upload, writes the row and its job in one transaction, and streams progress."""

from __future__ import annotations

import json
import shutil
import threading
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from examples.video_api.jobs import TURNS, app, engine, process
from fastapi import FastAPI, HTTPException, Response, UploadFile
from fastapi.responses import FileResponse, HTMLResponse, StreamingResponse
from sqlalchemy import text
from sqlalchemy.orm import Session

from rowlock import Job, JobNotFound
from rowlock.worker.worker import Worker

UPLOADS = Path("uploads")
PAGE = Path(__file__).with_name("page.html")
CREATE = """
CREATE TABLE IF NOT EXISTS videos (
    id VARCHAR PRIMARY KEY, name VARCHAR NOT NULL, path VARCHAR NOT NULL, job BIGINT,
    frames INTEGER, brightness DOUBLE, cuts INTEGER, error VARCHAR)
"""
OPEN = "SELECT id, job FROM videos WHERE frames IS NULL AND error IS NULL"
UPDATE = """
UPDATE videos SET frames = :frames, brightness = :brightness, cuts = :cuts, error = :error WHERE id = :id
"""
CATCHING_UP = threading.Lock()  # DuckDB refuses one of two transactions that change the same row
UPLOADS.mkdir(exist_ok=True)


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    """Create the table, run the worker in the background if this process owns the file, and catch up."""
    api.state.worker = None
    with Session(engine) as session:
        session.execute(text(CREATE))
        session.commit()
    async with AsyncExitStack() as stack:
        if not TURNS:
            api.state.worker = await stack.enter_async_context(app.worker(concurrency=1).abackground())
        catch_up()
        yield
    app.close()
    engine.dispose()


api = FastAPI(title="Videos", lifespan=lifespan)


@api.post("/videos", status_code=202)
def upload(file: UploadFile, response: Response) -> dict[str, Any]:
    """The row and its job commit together, or neither."""
    id = uuid.uuid4().hex
    path = UPLOADS / f"{id}.grey"
    with path.open("wb") as kept:
        shutil.copyfileobj(file.file, kept)
    with Session(engine) as session:
        job = process.using(session).enqueue(
            video=id, path=str(path), thumbnail=str(path.with_suffix(".png"))
        )
        session.execute(
            text("INSERT INTO videos (id, name, path, job) VALUES (:id, :name, :path, :job)"),
            {"id": id, "name": file.filename or "video", "path": str(path), "job": job.id},
        )
        session.commit()
    response.headers["Location"] = f"/jobs/{job.id}"
    return {"video": id, "job": f"/jobs/{job.id}", "events": f"/jobs/{job.id}/events"}


@api.get("/jobs/{id}")
def job(id: int) -> Job:
    return found(id)


@api.get("/jobs/{id}/events")
async def events(id: int) -> StreamingResponse:
    try:
        await app.ajob(id)  # a stream has said 200 before its first event
    except JobNotFound as error:
        raise HTTPException(404, str(error)) from None

    async def stream() -> AsyncIterator[str]:
        async for job in app.watch(id):
            yield f"data: {json.dumps(job.to_dict())}\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


@api.get("/videos")
def videos() -> list[dict[str, Any]]:
    """All videos, newest last, with the state of their jobs; of those that are done, the row says it."""
    unfinished = catch_up()
    with Session(engine) as session:
        rows = session.execute(text("SELECT * FROM videos ORDER BY job")).mappings().all()
    return [{**row, "state": unfinished.get(row["id"]) or said_by(row)} for row in rows]


@api.get("/videos/{id}/thumbnail")
def thumbnail(id: uuid.UUID) -> FileResponse:
    path = UPLOADS / f"{id.hex}.png"
    if not path.exists():
        raise HTTPException(404, "there is no thumbnail yet")
    return FileResponse(path, media_type="image/png")


@api.get("/health")
def health() -> dict[str, str]:
    """A worker in the background that has died is no secret."""
    worker: Worker | None = api.state.worker
    if worker is not None and worker.failed is not None:
        raise HTTPException(503, f"the worker has died: {worker.failed}")
    return {"status": "ok"}


@api.get("/", response_class=HTMLResponse)
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def catch_up() -> dict[str, str]:
    """Write what jobs have come to into their rows: a child process cannot, and nobody may have looked.

    Returns the states of the others, by video.
    """
    unfinished = {}
    with CATCHING_UP, Session(engine) as session:  # in file mode all of it is one turn
        for id, number in session.execute(text(OPEN)).all():
            try:
                job = app.job(number)
            except JobNotFound:
                unfinished[id] = "gone"
                continue
            if not job.state.final:
                unfinished[id] = str(job.state)
                continue
            values = {"frames": None, "brightness": None, "cuts": None} | (job.result or {})
            error = None if job.state == "completed" else job.error or str(job.state)
            session.execute(text(UPDATE), values | {"error": error, "id": id})
        session.commit()
    return unfinished


def said_by(row: Mapping[Any, Any]) -> str:
    if row["error"] is not None:
        return "failed"
    return "queued" if row["frames"] is None else "completed"  # queued: uploaded a moment ago


def found(id: int) -> Job:
    try:
        return app.job(id)
    except JobNotFound as error:
        raise HTTPException(404, str(error)) from None
