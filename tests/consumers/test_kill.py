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
import sys
from rowlock import Retry, Rowlock, Status

app = Rowlock({url!r}, lease={lease}, poll_interval=0.1)
insert = {insert!r}

def register(name):
    @app.consumer(name, table={table!r}, {form}, timeout=60, retry=Retry(max_attempts=20, base=0.0))
    def analyse(ctx, row):
        with ctx.transaction() as tx:
            tx.execute(insert, (str(row.id), name))
    return analyse

for name in {names!r}:
    register(name)

if __name__ == "__main__":
    app.consume(sys.argv[1], concurrency=2, pool=sys.argv[2], until_empty="--drain" in sys.argv)
"""


class StateTable:
    """Recordings, which two consumers have to do independently."""

    names: tuple[str, ...] = ("birdnet", "batdetect")
    form = 'state="analysis_state", order_by="time"'

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.name = lab.table

    def fill(self, rows: int) -> None:
        self.lab.create(rows)

    def all_done(self) -> bool:
        done = dict.fromkeys(self.names, True)
        return all(state == done for state in self.lab.states().values())


class StatusTable(StateTable):
    """Jobs with a status, which one consumer has to do."""

    names = ("video",)
    form = 'status=Status("status", error="error", started_at="started_at")'

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.name = f"{lab.prefix}jobs"

    def fill(self, rows: int) -> None:
        self.lab.create(rows)
        types = self.lab.types
        self.lab.execute(
            f"CREATE TABLE {self.name} "
            f"(id {types['id']}, status TEXT, error TEXT, started_at {types['time']})"
        )
        self.lab.execute(f"INSERT INTO {self.name} SELECT id, 'pending', NULL, NULL FROM {self.lab.table}")

    def all_done(self) -> bool:
        return self.lab.execute(f"SELECT DISTINCT status, error FROM {self.name}") == [("completed", None)]


TABLES = {"state": StateTable, "status": StatusTable}


class Processes:
    def __init__(self, lab: Lab, folder: Path, table: StateTable) -> None:
        self.script = folder / "consume.py"
        mark = lab.mark
        insert = f"INSERT INTO {lab.prefix}detections VALUES ({mark}, {mark})"
        chosen = {"table": table.name, "form": table.form, "names": table.names}
        self.script.write_text(CODE.format(url=lab.url, lease=LEASE, insert=insert, **chosen))
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


def storm(lab: Lab, folder: Path, form: str, rows: int, kills: int, company: int) -> None:
    """Kill all consumers so many times, each time beside as many others, of which the last may finish."""
    table = TABLES[form](lab)
    table.fill(rows)
    lab.app()
    processes = Processes(lab, folder, table)

    def start(*more: str) -> list[subprocess.Popen[bytes]]:
        return [processes.start(name, "thread", *more) for name in table.names * company]

    try:
        living = start()
        for kill in range(1, kills + 1):
            enough = kill * len(table.names) * rows / (kills + 1)
            eventually(lambda: lab.count_detections() >= enough, timeout=150)  # noqa: B023 - asked at once
            others = start(*["--drain"] * (kill == kills))
            for victim in living:
                victim.kill()
                victim.wait()
            living = others
        for survivor in living:
            assert survivor.wait(timeout=150) == 0
    finally:
        processes.end()
    assert lab.claims() == []
    assert lab.detections() == sorted((str(n), name) for n in range(1, rows + 1) for name in table.names)
    assert table.all_done()


@pytest.mark.parametrize("form", TABLES)
def test_killed_consumers_lose_no_row_and_double_no_detection(lab: Lab, tmp_path: Path, form: str) -> None:
    storm(lab, tmp_path, form, rows=60, kills=1, company=1)


@pytest.mark.chaos
@pytest.mark.timeout(800)
@pytest.mark.parametrize("form", TABLES)
def test_three_processes_each_killed_again_and_again_do_every_row_once(
    lab: Lab, tmp_path: Path, form: str
) -> None:
    storm(lab, tmp_path, form, rows=2_000, kills=3, company=3)


def test_a_process_pool_commits_rows_and_mark_in_its_children(lab: Lab, tmp_path: Path) -> None:
    lab.create(6)
    lab.app()
    processes = Processes(lab, tmp_path, StateTable(lab))
    try:
        assert processes.start("birdnet", "process", "--drain").wait(timeout=60) == 0
    finally:
        processes.end()
    assert lab.detections() == [(str(n), "birdnet") for n in range(1, 7)]
    assert set(lab.marks("birdnet").values()) == {True}
    assert lab.claims() == []
