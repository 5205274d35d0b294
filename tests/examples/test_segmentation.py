"""The segmentation example from end to end, with its kill, its flush and its crashes; and its API alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from examples.segmentation import tables
from examples.segmentation.api import api
from examples.segmentation.model import Model
from examples.segmentation.pictures import NotAPicture, png, read_png, scene

from tests.asgi import request
from tests.examples.filtered_png import filtered_png
from tests.examples.running import ROOT, run_example
from tests.servers.postgres import PostgresServer


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a database of its own: the example's tables have plain names."""
    name = f"segmentation_{uuid.uuid4().hex}"
    postgres.execute(f"CREATE DATABASE {name}")
    yield postgres.url.removesuffix("rowlock") + name
    postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


class Client:
    """Calls the API in this process."""

    def get(self, path: str) -> Any:
        return request(api, "GET", path)

    def upload(self, png: bytes) -> Any:
        return request(api, "POST", "/images", "name=one.png", png, "image/png")

    def submit(self, images: list[int]) -> Any:
        return request(api, "POST", "/jobs", body=json.dumps({"image_ids": images}).encode())


@pytest.fixture
def client(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("ROWLOCK_DATABASE_URL", database)
    tables.engine.cache_clear()
    tables.Base.metadata.create_all(tables.engine())
    yield Client()
    tables.engine().dispose()
    tables.engine.cache_clear()


@pytest.mark.timeout(300)  # eight processes, of which five load a model
def test_every_image_of_every_job_is_segmented_once_and_what_cannot_be_done_says_failed(
    database: str, tmp_path: Path
) -> None:
    ran = run_example("segmentation", tmp_path, "--url", database, within=280)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"Redis flushed: [1-9]", ran.stdout)
    with psycopg.connect(database) as db:

        def rows(statement: str) -> list[Any]:
            return db.execute(statement.encode()).fetchall()

        jobs = rows(
            "SELECT id, status::text, image_ids, current_index, error, started_at, completed_at "
            "FROM processing_jobs ORDER BY created_at"
        )
        results = rows("SELECT job_id, index, image_id, segments, worker FROM results ORDER BY job_id, index")
        names = dict(rows("SELECT id, name FROM images"))
    expired, overdue, *segmented, crashing = jobs
    assert len(segmented) >= 3

    for id, status, image_ids, current_index, error, started_at, completed_at in segmented:
        assert (status, current_index, error) == ("COMPLETED", len(image_ids), None)
        assert started_at < completed_at
        found = [(index, image, segments) for job, index, image, segments, _ in results if job == id]
        shapes = [scene(int(names[image].removesuffix(".png")))[1] for image in image_ids]
        assert found == list(zip(range(len(image_ids)), image_ids, shapes, strict=True))
    assert any(len({worker for job, _, _, _, worker in results if job == one[0]}) == 2 for one in segmented)

    assert expired[1:5:3] == ("FAILED", "it was not begun within 1800 s")
    assert overdue[1] == "FAILED" and "600 s" in overdue[4]
    assert crashing[1] == "FAILED" and "its worker died 2 times" in crashing[4]
    assert crashing[3] == len([job for job, *_ in results if job == crashing[0]]) == 1
    assert len(results) == 6 * len(segmented) + 1

    # Each process that has segmented anything has loaded the model once.
    logs = "".join(path.read_text() for path in tmp_path.glob("logs/worker-*.log"))
    loads = re.findall(r"model loaded by process (\d+) ", logs)
    assert len(loads) == len(set(loads)) >= 3
    assert {worker.rpartition(":")[2] for *_, worker in results} <= set(loads)
    assert read_png((tmp_path / "masks.png").read_bytes()).shape == (480, 960, 3)


def test_a_worker_goes_on_behind_results_that_are_there_and_fails_what_nobody_can_do(client: Client) -> None:
    images = [client.upload(png(scene(number)[0]))[1]["id"] for number in (1, 2, 3)]
    begun, broken = [uuid.UUID(client.submit(one)[1]["id"]) for one in (images[:2], images[2:])]
    with tables.session() as db:
        known = {"image_id": images[0], "segments": 99, "masks_png": b"", "worker": "before"}
        db.add(tables.Result(job_id=begun, index=0, **known))
        db.delete(db.get(tables.Image, images[2]))
        db.commit()
    command = ["consume", "examples.segmentation.worker:app", "segmentation", "--until-empty"]
    subprocess.run([sys.executable, "-m", "rowlock", *command], check=True, cwd=ROOT, capture_output=True)
    assert [one["segments"] for one in client.get(f"/jobs/{begun}/results")[1]] == [99, scene(2)[1]]
    job = client.get(f"/jobs/{begun}")[1]
    assert (job["status"], job["current_index"]) == ("COMPLETED", 2)
    job = client.get(f"/jobs/{broken}")[1]
    assert (job["status"], job["error"]) == ("FAILED", f"image {images[2]} has been deleted")


def test_the_api_needs_neither_redis_nor_rowlock() -> None:
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in ("redis", "rq", "rowlock"))
    program = f"import sys; {blocked}import examples.segmentation.api"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_a_job_is_one_queued_row_and_has_no_results_yet(client: Client) -> None:
    image = client.upload(png(scene(1)[0]))[1]["id"]
    code, job = client.submit([image, image])
    assert (code, job["status"], job["current_index"]) == (201, "QUEUED", 0)
    assert client.get(f"/jobs/{job['id']}") == (200, job)
    assert client.get(f"/jobs/{job['id']}/results") == (200, [])
    assert client.get(f"/jobs/{job['id']}/results/0/masks.png")[0] == 404


def test_the_api_refuses_what_no_worker_could_do(client: Client) -> None:
    assert client.upload(b"GIF89a")[0] == 422
    assert client.upload(b"x" * 10_000_001)[0] == 413
    assert client.submit([7]) == (422, {"detail": "no such images: [7]"})
    assert client.submit([])[0] == 422
    nobody = "/jobs/00000000-0000-0000-0000-000000000000"
    assert client.get(nobody)[0] == client.get(f"{nobody}/results")[0] == 404
    with tables.session() as db:
        assert (db.query(tables.Image).count(), db.query(tables.ProcessingJob).count()) == (0, 0)


def test_the_model_finds_every_shape() -> None:
    model = Model()
    scenes = [scene(number) for number in range(100, 105)]
    assert [model.segment(picture).max() for picture, _ in scenes] == [shapes for _, shapes in scenes]


@pytest.mark.parametrize("filter_kind", range(5))
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_png_is_read_whatever_its_filter(filter_kind: int, channels: int) -> None:
    chance = np.random.default_rng(filter_kind)
    pixels = chance.integers(0, 256, (5, 7, channels), dtype=np.uint8)
    expected = np.repeat(pixels, 3, axis=2) if channels == 1 else pixels[..., :3]
    assert np.array_equal(read_png(filtered_png(pixels, filter_kind)), expected)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (b"", "not a PNG"),
        (png(scene(1)[0])[:-30], "broken PNG"),
        (png(scene(1)[0]).replace(b"IDAT", b"IDAX"), "checksum"),
        (filtered_png(np.zeros((2, 2, 3), np.uint8), 0, height=3), "too few"),
        (filtered_png(np.zeros((2, 2, 3), np.uint8), 0, height=1), "too many"),
        (filtered_png(np.zeros((2, 2, 3), np.uint8), 0, width=5_000), "too large"),
        (filtered_png(np.zeros((2, 2, 3), np.uint8), 0, depth=16), "8 bits"),
        (filtered_png(np.zeros((2, 2, 3), np.uint8), 9), "no filter 9"),
    ],
)
def test_what_is_no_png_is_refused(broken: bytes, reason: str) -> None:
    with pytest.raises(NotAPicture, match=reason):
        read_png(broken)
