"""The map of the inside is true: its files and functions exist, and a real job passes them in this order."""

from __future__ import annotations

import ast
import re
import sys
import threading
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import rowlock
from rowlock import Rowlock

SOURCE = Path(rowlock.__file__).parent
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
STEP = re.compile(r"^\| .+ \| `([\w/]+\.py):(\w+)` \|$", re.MULTILINE)
FOLDERS = (SOURCE, SOURCE / "stores", SOURCE / "stores" / "sql", SOURCE / "stores" / "postgres")
POSTGRESQL = "### The same on PostgreSQL\n"
FILE = re.compile(r"`((?:[\w]+/)*[\w]+(?:\.py|\.sql|/))`")


def steps_on(store: str) -> list[tuple[str, str]]:
    """The steps that the page names for a job on this store: (file, function)."""
    sqlite, postgresql = PAGE.read_text(encoding="utf-8").split(POSTGRESQL)
    return STEP.findall(sqlite if store == "sqlite" else postgresql)


def test_every_file_and_function_on_the_map_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert 10 <= len(steps_on("sqlite")) <= 15 and len(steps_on("postgresql")) >= 4
    for steps in (steps_on("sqlite"), steps_on("postgresql")):
        assert len({file for file, _ in steps}) == len(steps), "a file is entered twice"
        for file, function in steps:
            tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
            names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            assert function in names, f"{file} has no {function}"
    for name in FILE.findall(text):
        assert any((folder / name).exists() for folder in (*FOLDERS, ROOT)), name


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_a_job_passes_the_steps_in_their_order(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db" if store == "sqlite" else request.getfixturevalue("postgres_queue")
    steps = steps_on(store)
    wanted = {(str(SOURCE / file), function): (file, function) for file, function in steps}
    seen: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        key = (frame.f_code.co_filename, frame.f_code.co_name)
        if event == "call" and key in wanted:
            seen.append(wanted[key])

    with closing(Rowlock(url)) as app:

        @app.task
        def add(a: int, b: int) -> int:
            return a + b

        app.depth()  # the tables are there
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            job = add.enqueue(1, 2)
            app.worker(concurrency=1).run(until_empty=True)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
        assert app.result(job, timeout=30) == 3
    rest = iter(seen)
    missing = [step for step in steps if step not in rest]
    assert missing == [], f"not passed in this order: {missing[0]}; seen: {seen}"
