"""Starts the service, uploads videos over HTTP, kills what works on them, and shows that all have ended."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from examples.video_api.jobs import HOLD
from examples.video_api.video import generate

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 60.0
FINAL = ("completed", "failed", "cancelled")
STARTED = time.monotonic()


def say(words: str) -> None:
    print(f"{time.monotonic() - STARTED:5.1f} s  {words}", flush=True)


class Service:
    """The API, and with `--two-processes` a worker beside it."""

    def __init__(self, two_processes: bool) -> None:
        self.two_processes = two_processes
        self.port = _free_port()
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "VIDEO_MODE": "file" if two_processes else "owner",
            "ROWLOCK_STALE_JOB_TIMEOUT_SECONDS": "3",  # nobody wants to wait for a minute after a kill here
        }
        self._living: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start what is not running, and wait until it answers."""
        uvicorn = (
            "uvicorn",
            "examples.video_api.api:api",
            "--port",
            str(self.port),
            "--log-level",
            "warning",
        )
        commands: dict[str, tuple[str, ...]] = {"api": uvicorn}
        if self.two_processes:
            commands["worker"] = ("rowlock", "worker", "examples.video_api.jobs:app", "--concurrency", "1")
        for name, command in commands.items():
            if name not in self._living:
                with Path(f"{name}.log").open("ab") as log:
                    self._living[name] = subprocess.Popen(
                        [sys.executable, "-m", *command], env=self._environment, stdout=log, stderr=log
                    )
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                self.get("/health")
            except URLError:
                if time.monotonic() > deadline or self._living["api"].poll() is not None:
                    raise SystemExit("the service does not answer, see api.log") from None
                time.sleep(0.05)
            else:
                return

    def kill_worker(self) -> str:
        """Kill -9 whoever has the worker: in owner mode that is the API itself."""
        name = "worker" if self.two_processes else "api"
        process = self._living.pop(name)
        process.kill()
        process.wait()
        return name

    def stop(self) -> None:
        for process in self._living.values():
            process.terminate()
        for process in self._living.values():
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()

    # -- the service as its users see it ---------------------------------------------------------

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def get(self, path: str) -> Any:
        with urlopen(self.url(path), timeout=30) as answer:
            return json.loads(answer.read())

    def upload(self, name: str, content: bytes) -> dict[str, Any]:
        head = f'--video\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        body = head.encode() + content + b"\r\n--video--\r\n"
        headers = {"Content-Type": "multipart/form-data; boundary=video"}
        with urlopen(Request(self.url("/videos"), body, headers), timeout=30) as answer:
            assert answer.status == 202
            made: dict[str, Any] = json.loads(answer.read())
            return made

    def events(self, path: str) -> Iterator[dict[str, Any]]:
        """The job as it changes, from the event stream."""
        with urlopen(self.url(path), timeout=DEADLINE_SECONDS) as stream:
            for line in stream:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))


def play(service: Service, frames: int) -> list[dict[str, Any]]:
    """Upload, kill, start again; returns the videos as the service shows them at the end."""
    videos = {f"scenes-{scenes}.grey": generate(frames, scenes, seed=scenes) for scenes in (2, 3, 4)}
    first, *others = videos.items()
    *_, warm = service.events(service.upload("warm-up.grey", generate(5, 1))["events"])
    say(f"the worker's process is up: {warm['result']}")
    HOLD.touch()
    made = [service.upload(*first)]
    say(f"uploaded {first[0]}: {made[0]['job']}")
    child = None
    for job in service.events(made[0]["events"]):
        note = (job["progress"] or {}).get("note", "")
        if job["state"] == "running" and (pid := re.search(r"process (\d+)", note)):
            say(f"it was begun {_milliseconds(job):.0f} ms after it was enqueued; {note}")
            child = int(pid[1])
            break
    assert child is not None
    os.kill(child, signal.SIGKILL)
    say(f"killed its process {child} with -9")

    for name, content in [*others, ("letter.txt", b"this is no video")]:
        made.append(service.upload(name, content))
        say(f"uploaded {name}: {made[-1]['job']}")
    while not any(one["state"] == "running" for one in service.get("/videos")):
        time.sleep(0.05)
    say(f"killed the {service.kill_worker()} with -9, while jobs ran and waited")
    HOLD.unlink()
    service.start()
    say("started it again")
    for one in made:
        *_, last = service.events(one["events"])
        say(
            f"{one['job']} is {last['state']} after {last['claim']} claims: {last['result'] or last['error']}"
        )
    shown: list[dict[str, Any]] = service.get("/videos")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.video_api")
    parser.add_argument("folder", type=Path, help="where data.duckdb and the uploads go")
    parser.add_argument("--two-processes", action="store_true", help="file mode: a worker beside the API")
    parser.add_argument("--serve", action="store_true", help="only serve the page, until Ctrl-C")
    parser.add_argument("--frames", type=int, default=150)
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(chosen.folder)
    if chosen.serve:  # slow enough for a person to see the progress
        os.environ.setdefault("VIDEO_SECONDS_PER_FRAME", "0.03")
    service = Service(chosen.two_processes)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else its processes would go on without it
    try:
        service.start()
        if chosen.serve:
            Path("video.grey").write_bytes(generate(chosen.frames, 3))
            say(f"open {service.url('/')} and upload {Path('video.grey').resolve()}; Ctrl-C ends it")
            while True:
                time.sleep(1)
        videos = play(service, chosen.frames)
    except KeyboardInterrupt:
        return
    finally:
        service.stop()
    for one in videos:
        found = f"{one['frames']} frames, {one['cuts']} cuts, brightness {one['brightness']}"
        say(f"{one['name']:15} {one['state']:10} {one['error'] or found}")
    unfinished = [one["name"] for one in videos if one["state"] not in FINAL]
    sys.exit(f"these are not done: {unfinished}" if unfinished else 0)


def _milliseconds(job: dict[str, Any]) -> float:
    begun, made = (
        datetime.fromisoformat(job[name].replace("Z", "+00:00")) for name in ("started_at", "created_at")
    )
    return 1000 * (begun - made).total_seconds()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main()
