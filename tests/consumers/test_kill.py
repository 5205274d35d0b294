"""Consumers in several processes, some of which are killed in the middle of their rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.consumers.lab import Lab
from tests.eventually import eventually

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="uses POSIX signals")

LEASE = 2.0
CODE = """
import os, sys
from rowlock import Retry, Rowlock

app = Rowlock({url!r}, lease={lease}, poll_interval=0.1)
insert = {insert!r}

def register(name):
    @app.consumer(name, table={table!r}, state="analysis_state", order_by="time", timeout=60,
                  retry=Retry(max_attempts=20, base=0.0))
    def analyse(ctx, recording):
        with ctx.transaction() as tx:
            tx.execute(insert, (str(recording.id), name))
    return analyse

for name in ("birdnet", "batdetect"):
    register(name)

if __name__ == "__main__":
    app.consume(sys.argv[1], concurrency=2, pool=sys.argv[2], until_empty="--drain" in sys.argv)
"""


class Processes:
    def __init__(self, lab: Lab, folder: Path) -> None:
        self.script = folder / "consume.py"
        mark = lab.mark
        insert = f"INSERT INTO {lab.prefix}detections VALUES ({mark}, {mark})"
        self.script.write_text(CODE.format(url=lab.url, lease=LEASE, table=lab.table, insert=insert))
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, consumer: str, pool: str = "thread", *more: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, str(self.script), consumer, pool, *more])
        self.running.append(process)
        return process

    def end(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.wait()


def storm(lab: Lab, folder: Path, rows: int, kills: int, company: int) -> None:
    """Kill all consumers so many times, then let as many others finish."""
    lab.create(rows)
    lab.app()
    processes = Processes(lab, folder)
    names = ("birdnet", "batdetect") * company
    try:
        for kill in range(1, kills + 1):
            victims = [processes.start(name) for name in names]
            enough = kill * 2 * rows / (kills + 1)
            eventually(lambda: len(lab.detections()) >= enough, timeout=90)  # noqa: B023 - asked at once
            for victim in victims:
                victim.kill()
                victim.wait()
        survivors = [processes.start(name, "thread", "--drain") for name in names]
        for survivor in survivors:
            assert survivor.wait(timeout=100) == 0
    finally:
        processes.end()
    assert lab.claims() == []
    expected = [(str(n), name) for n in range(1, rows + 1) for name in ("birdnet", "batdetect")]
    assert lab.detections() == sorted(expected)
    assert all(state == {"birdnet": True, "batdetect": True} for state in lab.states().values())


def test_killed_consumers_lose_no_row_and_double_no_detection(lab: Lab, tmp_path: Path) -> None:
    storm(lab, tmp_path, rows=60, kills=1, company=1)


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_three_processes_each_killed_again_and_again_do_every_row_once(lab: Lab, tmp_path: Path) -> None:
    storm(lab, tmp_path, rows=2_000, kills=3, company=3)


def test_a_process_pool_commits_rows_and_mark_in_its_children(lab: Lab, tmp_path: Path) -> None:
    lab.create(6)
    lab.app()
    processes = Processes(lab, tmp_path)
    try:
        assert processes.start("birdnet", "process", "--drain").wait(timeout=60) == 0
    finally:
        processes.end()
    assert lab.detections() == [(str(n), "birdnet") for n in range(1, 7)]
    assert set(lab.marks("birdnet").values()) == {True}
    assert lab.claims() == []
