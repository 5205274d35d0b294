"""Records as JSON: plain dictionaries for every framework, and a schema for FastAPI and pydantic."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.encoders import jsonable_encoder
from pydantic import BaseModel, TypeAdapter

from rowlock import HistoryEntry, Job, JobContext, JobList, LogEntry, Progress, RetryLater, Rowlock
from rowlock.insights import Stats
from rowlock.monitoring import QueueRecord, WorkerRecord
from tests.asgi import request


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rowlock]:
    made = Rowlock(f"sqlite:///{tmp_path_factory.mktemp('records') / 'jobs.db'}")
    yield made
    made.close()


@pytest.fixture(scope="module")
def job(app: Rowlock) -> Job:
    """A job with everything that hangs on one: progress, log lines, history."""

    @app.task
    def report(ctx: JobContext, year: int) -> dict[str, int]:
        ctx.progress(6, 12, "half")
        ctx.log("begun", year=year)
        if ctx.claim == 1:
            raise RetryLater(0)
        return {"pages": 12}

    made = report.configure(meta={"tenant": "x"}, unique_key="2026", expires=60).enqueue(2026)
    app.worker(concurrency=1).run(until_empty=True)
    return app.job(made)


@pytest.fixture
def records(app: Rowlock, job: Job) -> list[Any]:
    return [job, job.progress, *app.history(job), *app.logs(job), *app.store.workers(), *app.store.queues()]


def test_every_record_is_a_dictionary_of_json_types(records: list[Any]) -> None:
    kinds = {Job, Progress, HistoryEntry, LogEntry, WorkerRecord, QueueRecord}
    assert {type(record) for record in records} == kinds
    for record in records:
        plain = record.to_dict()
        assert json.loads(json.dumps(plain)) == plain
        assert list(plain) == list(record.__struct_fields__)


def test_times_in_a_dictionary_have_their_zone(job: Job) -> None:
    written = job.to_dict()["created_at"]
    assert datetime.fromisoformat(written.replace("Z", "+00:00")) == job.created_at
    assert job.to_dict()["state"] == "completed"


def test_a_page_of_jobs_is_a_dictionary_with_its_cursor(job: Job) -> None:
    assert JobList([job], cursor="next").to_dict() == {"jobs": [job.to_dict()], "cursor": "next"}


def test_pydantic_writes_what_to_dict_says_and_reads_it_back(records: list[Any]) -> None:
    for record in records:
        adapter = TypeAdapter(type(record))
        assert json.loads(adapter.dump_json(record)) == record.to_dict() == jsonable_encoder(record)
        assert adapter.validate_json(adapter.dump_json(record)) == record
        assert adapter.validate_python(record) is record


def test_a_job_may_be_a_field_of_a_pydantic_model(job: Job) -> None:
    class Answer(BaseModel):
        job: Job
        others: list[Job]

    plain = Answer(job=job, others=[job]).model_dump(mode="json", exclude={"job": {"progress": {"note"}}})
    assert plain["job"]["progress"] == {"done": 6, "total": 12}
    assert plain["others"] == [job.to_dict()]


def test_a_record_is_still_copied_and_pickled_as_it_is(records: list[Any]) -> None:
    for record in records:
        assert copy.deepcopy(record) == pickle.loads(pickle.dumps(record)) == record


NOT_SAID = object()


@pytest.mark.parametrize(
    ("annotation", "ask"),
    [
        (NOT_SAID, lambda app: app.job(1)),
        (Job, lambda app: app.job(1)),
        (Job, lambda app: app.job(1).to_dict()),
        (Any, lambda app: app.job(1)),
        (Job | None, lambda app: app.job(1)),
        (NOT_SAID, lambda app: app.jobs()),
        (list[Job], lambda app: app.jobs()),
        (JobList, lambda app: app.jobs()),
        (NOT_SAID, lambda app: {"progress": app.job(1).progress}),
        (dict[str, object], lambda app: {"state": app.job(1).state, "progress": app.job(1).progress}),
        (NOT_SAID, lambda app: app.history(1)),
        (list[HistoryEntry], lambda app: app.history(1)),
        (list[LogEntry], lambda app: app.logs(1)),
        (Stats, lambda app: app.stats()),
    ],
)
@pytest.mark.usefixtures("job")
def test_fastapi_returns_a_record_with_or_without_annotation(
    app: Rowlock, annotation: Any, ask: Callable[[Rowlock], Any]
) -> None:
    web = FastAPI()

    def look() -> Any:
        return ask(app)

    look.__annotations__ = {} if annotation is NOT_SAID else {"return": annotation}
    web.get("/")(look)
    status, answer = request(web, "GET", "/")
    assert status == 200
    assert answer == jsonable_encoder(ask(app))


def test_fastapi_shows_the_fields_of_a_job_in_its_schema(app: Rowlock) -> None:
    web = FastAPI()

    @web.get("/jobs/{job}")
    def look(job: int) -> Job:
        return app.job(job)

    schemas = web.openapi()["components"]["schemas"]
    fields = schemas["Job"]["properties"]
    assert list(fields) == list(Job.__struct_fields__) == schemas["Job"]["required"]
    assert (schemas["Job"]["title"], schemas["Job"]["description"]) == ("Job", Job.__doc__)
    assert fields["created_at"]["format"] == "date-time"
    assert {"$ref": "#/components/schemas/Progress"} in fields["progress"]["anyOf"]
    assert schemas["State"]["enum"] == ["scheduled", "queued", "running", "completed", "failed", "cancelled"]


def test_fastapi_leaves_out_fields_that_a_view_does_not_want(job: Job) -> None:
    web = FastAPI()
    web.get("/", response_model=Job, response_model_include={"id", "state"})(lambda: job)
    assert request(web, "GET", "/") == (200, {"id": 1, "state": "completed"})
