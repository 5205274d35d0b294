"""A worker in a process whose wall clock can be moved, and the clock itself; the monotonic clock stays true.

Started as `python -m tests.chaos.clockwork SETTINGS NAME` under libfaketime. What is enqueued through its
stdin is enqueued by its clock, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.chaos.work import Settings, make_app

_ROOT = Path(__file__).parents[2]
_PROBE = "import time; print(time.time() - {real}, time.monotonic() - {mono})"


class Clock:
    """The wall clock of some processes: so many seconds away from the real one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.move(0.0)

    def move(self, seconds: float) -> None:
        """Set it to so many seconds after (or before) the real time, in one step."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(f"{seconds:+.3f}")
        os.replace(draft, self._file)

    def set(self, moment: datetime) -> None:
        """Set it to a moment, from which it goes on."""
        self.move(moment.timestamp() - time.time())

    def environment(self, zone: str = "UTC") -> dict[str, str]:
        """What a process needs to live by this clock."""
        import libfaketime  # type: ignore[import-untyped, unused-ignore]

        _, preloaded = libfaketime.get_reload_information()
        return {
            **os.environ,
            **preloaded,  # among it: the monotonic clock is not to be moved
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "TZ": zone,
        }


def why_not(folder: Path) -> str | None:
    """The reason why clocks cannot be moved on this machine, or None."""
    try:
        import libfaketime  # noqa: F401
    except ImportError as error:
        return f"libfaketime is not there: {error}"
    clock = Clock(folder / "probe")
    clock.move(3600.0)
    code = _PROBE.format(real=time.time(), mono=time.monotonic())
    ended = subprocess.run(
        [sys.executable, "-c", code], env=clock.environment(), capture_output=True, text=True, check=False
    )
    try:
        wall, monotonic = map(float, ended.stdout.split())
    except ValueError:
        return f"libfaketime does not work here: {ended.stderr.strip() or ended.stdout}"
    if not 3000 < wall < 4200 or not 0 <= monotonic < 600:
        return f"libfaketime moves the wall clock by {wall:.0f} s and the monotonic one by {monotonic:.0f} s"
    return None


class Clocked:
    """A worker process by some clock."""

    def __init__(self, settings: Settings, name: str, clock: Clock, zone: str = "UTC") -> None:
        self.name = name
        self.clock = clock
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.clockwork", settings.dump(), name],
            cwd=_ROOT,
            env=clock.environment(zone),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def enqueue(self, seconds: float = 0.0, **options: Any) -> tuple[int, float]:
        """Enqueue a job from there; returns its id, and the monotonic time just before."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps({"seconds": seconds, "options": options}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return int(answer["id"]), float(answer["before"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()


def main(settings: Settings, name: str) -> None:
    app = make_app(settings)

    def serve() -> None:
        for line in sys.stdin:
            order = json.loads(line)
            options = order["options"]
            if "run_at" in options:
                options["run_at"] = datetime.fromisoformat(options["run_at"])
            before = time.monotonic()
            job = app.tasks["plain"].configure(**options).enqueue(seconds=order["seconds"])
            sys.stdout.write(json.dumps({"id": job.id, "before": before}) + "\n")
            sys.stdout.flush()

    threading.Thread(target=serve, daemon=True).start()
    app.worker(concurrency=settings.concurrency, worker_id=name).run()


if __name__ == "__main__":
    main(Settings(**json.loads(sys.argv[1])), sys.argv[2])
