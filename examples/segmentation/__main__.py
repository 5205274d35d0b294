"""Starts servers, API and two workers as processes, lets things go wrong, and shows what became of it."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[2]
WORKER = "examples.segmentation.worker:app"
STARTED = time.monotonic()
DEADLINE_SECONDS = 120.0
SETTINGS = {
    "STALE_JOB_TIMEOUT_SECONDS": "2",  # a demonstration shall not wait for a minute after each kill
    "POLLER_INTERVAL_SECONDS": "0.5",
    "FAILED_JOB_TIMEOUT_SECONDS": "600",
}


class Processes:
    """API and workers, with their logs in `logs/`; one that has ended is started again, as compose does."""

    def __init__(self, environments: dict[str, dict[str, str]]) -> None:
        self._environments = environments
        self._commands: dict[str, tuple[str, ...]] = {}
        self._living: dict[str, subprocess.Popen[bytes]] = {}
        self.workers: dict[int, str] = {}  # every process that was one
        self.ended: dict[int, str] = {}

    def start(self, name: str, *command: str) -> None:
        kind = name.partition("-")[0]
        with Path("logs", f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env={**os.environ, **self._environments.get(kind, {})},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._living[name], self._commands[name] = process, command
        if kind == "worker":
            self.workers[process.pid] = name

    def run(self, name: str, *command: str) -> None:
        """Run it to its end."""
        self.start(name, *command)
        if self._living.pop(name).wait(timeout=DEADLINE_SECONDS) != 0:
            raise SystemExit(f"{name} failed, see logs/{name}.log")

    def start_again(self) -> None:
        """Start what has ended."""
        for name, process in list(self._living.items()):
            if (code := process.poll()) is not None:
                self.ended[process.pid] = "killed with -9" if code == -signal.SIGKILL else f"crashed ({code})"
                self.start(name, *self._commands[name])

    def pid(self, name: str) -> int:
        return self._living[name].pid

    def stop(self) -> None:
        for process in self._living.values():
            process.terminate()
        for process in self._living.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


class Client:
    """The service as its users see it: over HTTP."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def call(self, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
        with urlopen(Request(self._url + path, body, {"Content-Type": kind}), timeout=10) as answer:
            return bytes(answer.read())

    def is_up(self) -> bool:
        try:
            return bool(self.call("/healthz"))
        except (URLError, OSError):
            return False

    def upload(self, picture: bytes, name: str) -> int:
        return int(json.loads(self.call(f"/images?name={name}", picture, "image/png"))["id"])

    def submit(self, images: list[int]) -> str:
        return str(json.loads(self.call("/jobs", json.dumps({"image_ids": images}).encode()))["id"])

    def job(self, id: str) -> dict[str, Any]:
        return dict(json.loads(self.call(f"/jobs/{id}")))

    def results(self, id: str) -> list[dict[str, Any]]:
        return list(json.loads(self.call(f"/jobs/{id}/results")))


class Demonstration:
    """What happens, in this order, and what is printed at the end."""

    def __init__(self, processes: Processes, client: Client, redis: Any, old: dict[str, str]) -> None:
        self.processes, self.client, self.redis = processes, client, redis
        self.jobs = dict(old)  # the job's id, and what there is to say of it

    def run(self, pictures: list[bytes]) -> None:
        from examples.segmentation.worker import POISON

        images = [self.client.upload(one, f"{number}.png") for number, one in enumerate(pictures, 1)]
        for _ in range(3):
            self.jobs[self.client.submit(images)] = ""
        say(f"3 jobs of {len(images)} images submitted, one row each in processing_jobs")
        victim = self.kill_in_the_middle("worker-1", images)
        keys = self.redis.dbsize()
        self.redis.flushall()
        say(f"Redis flushed: {keys} keys gone; worker-1 is started again")
        self.wait_for("the end of all jobs", self.all_are_over)
        self.jobs[victim] = "its worker was killed"

        poison = self.client.upload(pictures[0], POISON)
        self.jobs[self.client.submit([images[0], poison])] = "its second image crashes its worker"
        say("one more job, whose second image crashes its worker; workers are started again")
        self.wait_for("the end of all jobs", self.all_are_over)
        say("all jobs are over")

    def kill_in_the_middle(self, name: str, images: list[int]) -> str:
        """Kill a worker with -9 between two images of a job; returns the job."""
        pid = self.processes.pid(name)
        held = None
        while held is None:
            self.wait_for("a moment", lambda: self.unfinished_of(pid) is not None or self.all_are_over())
            os.kill(pid, signal.SIGSTOP)  # so that it cannot finish the job meanwhile
            if (held := self.unfinished_of(pid)) is None:
                os.kill(pid, signal.SIGCONT)
                if self.all_are_over():  # the moment was missed
                    self.jobs[self.client.submit(images)] = ""
        os.kill(pid, signal.SIGKILL)
        at, of = self.client.job(held)["current_index"], len(self.client.job(held)["image_ids"])
        say(f"{name} (process {pid}) killed with -9 after image {at} of {of}")
        return held

    def unfinished_of(self, pid: int) -> str | None:
        """A job that this process has begun and not finished."""
        for id in self.jobs:
            job = self.client.job(id)
            begun = job["status"] == "RUNNING" and 0 < job["current_index"] < len(job["image_ids"])
            if begun and self.client.results(id)[-1]["worker"].endswith(f":{pid}"):
                return id
        return None

    def all_are_over(self) -> bool:
        return all(self.client.job(one)["status"] in ("COMPLETED", "FAILED") for one in self.jobs)

    def wait_for(self, what: str, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not true():
            if time.monotonic() > deadline:
                raise SystemExit(f"not within {DEADLINE_SECONDS:g} s: {what}; see the logs")
            self.processes.start_again()
            time.sleep(0.1)


def report(demonstration: Demonstration) -> None:
    """Print what became of each job, and what each process did."""
    from rich.console import Console
    from rich.table import Table

    client, processes = demonstration.client, demonstration.processes
    images: dict[int, int] = {}
    jobs = Table("job", "status", "images", "by process", "remarks", title="\nJobs")
    for id, remarks in demonstration.jobs.items():
        job, results = client.job(id), client.results(id)
        by = [int(one["worker"].rpartition(":")[2]) for one in results]
        for pid in by:
            images[pid] = images.get(pid, 0) + 1
        done = f"{job['current_index']} of {len(job['image_ids'])}"
        names = ", ".join(str(pid) for pid in dict.fromkeys(by))
        error = f": {job['error']}" if job["error"] else ""
        jobs.add_row(id[:8], job["status"], done, names, remarks + error)
    workers = Table("worker", "process", "model loaded", "images", "ended", title="\nWorker processes")
    for pid, name in processes.workers.items():
        text = Path("logs", f"{name}.log").read_text()
        loads = text.count(f"model loaded by process {pid} ")
        how = processes.ended.get(pid, "" if loads else "still loads it")
        workers.add_row(name, str(pid), f"{loads} x", str(images.get(pid, 0)), how)
    for table in (jobs, workers):
        table.title_justify = "left"
        Console().print(table)


def draw(demonstration: Demonstration, path: Path) -> None:
    """The masks of one job in one picture, as the API returns them."""
    from examples.segmentation.pictures import png, read_png, side_by_side

    client, id = demonstration.client, list(demonstration.jobs)[-2]
    found = [client.call(f"/jobs/{id}/results/{one['index']}/masks.png") for one in client.results(id)]
    path.write_bytes(png(side_by_side([read_png(one) for one in found], across=3)))


def say(what: str) -> None:
    print(f"{time.monotonic() - STARTED:5.1f} s  {what}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path, help="a folder that is empty, or not there yet")
    options.add_argument("--url", help="an empty database of PostgreSQL; else a server is started")
    options.add_argument("--redis", help="the URL of a Redis that may be flushed; else a server is started")
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if any(given.folder.iterdir()):
        options.error(f"{given.folder} is not empty")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ.pop("REDIS_URL", None)  # the API has none
    os.chdir(given.folder)
    Path("logs").mkdir()
    with ExitStack() as end:
        from examples.segmentation import servers
        from examples.segmentation.pictures import png, scene
        from examples.segmentation.tables import engine
        from tests.servers.folders import free_port

        url = given.url or servers.start_postgres(end)
        redis_url = given.redis or servers.start_redis(end)
        redis = servers.connect(redis_url, options.error)
        end.callback(redis.close)
        os.environ["ROWLOCK_DATABASE_URL"] = url
        end.callback(lambda: engine().dispose())
        create_tables(options)
        say("PostgreSQL and Redis are up, and two jobs have waited for long")
        processes = Processes({"worker": {**SETTINGS, "REDIS_URL": redis_url}})
        end.callback(processes.stop)
        port = free_port()
        old = {submit_before(minutes): f"submitted {minutes} minutes ago" for minutes in (60, 20)}
        processes.start("api", "uvicorn", "examples.segmentation.api:api", "--port", str(port))
        processes.run("init", "rowlock", "consumers", "init", "--app", WORKER)
        for number in (1, 2):
            processes.start(f"worker-{number}", "rowlock", "consume", WORKER, "segmentation", "--via", "rq")
        say("API and two workers start; each worker loads its model")
        demonstration = Demonstration(processes, Client(port), redis, old)
        pictures = [png(scene(number)[0]) for number in range(1, 7)]
        demonstration.wait_for("the API", demonstration.client.is_up)
        demonstration.run(pictures)
        report(demonstration)
        draw(demonstration, Path("masks.png"))
    print(f"\nOne job's images with their masks: {given.folder / 'masks.png'}")


def create_tables(options: argparse.ArgumentParser) -> None:
    """The service's own tables; rowlock adds an index to one of them, and nothing else."""
    from examples.segmentation.tables import Base, engine
    from sqlalchemy import inspect
    from sqlalchemy.exc import SQLAlchemyError

    try:
        if set(inspect(engine()).get_table_names()) & set(Base.metadata.tables):
            options.error("the database already has tables of these names: give --url an empty one")
        Base.metadata.create_all(engine())
    except SQLAlchemyError as error:
        options.error(f"the database cannot be used: {error}")


def submit_before(minutes: int) -> str:
    """A job as if it had been submitted so long ago, and no worker had run since."""
    from datetime import datetime, timedelta, timezone

    from examples.segmentation.tables import ProcessingJob, session

    with session() as db:
        job = ProcessingJob(image_ids=[1], created_at=datetime.now(timezone.utc) - timedelta(minutes=minutes))
        db.add(job)
        db.commit()
        return str(job.id)


if __name__ == "__main__":
    main()
