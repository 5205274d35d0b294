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

import rowlock
from rowlock import Rowlock

SOURCE = Path(rowlock.__file__).parent
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
STEP = re.compile(r"^\| .+ \| `([\w/]+\.py):(\w+)` \|$", re.MULTILINE)
FILE = re.compile(r"`((?:[\w]+/)*[\w]+(?:\.py|/))`")


def test_every_file_and_function_on_the_map_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    steps = STEP.findall(text)
    assert 10 <= len(steps) <= 15
    for file, function in steps:
        tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert function in names, f"{file} has no {function}"
    for name in FILE.findall(text):
        assert any((folder / name).exists() for folder in (SOURCE, SOURCE / "stores", ROOT)), name


def test_a_job_passes_the_steps_in_their_order(tmp_path: Path) -> None:
    steps = STEP.findall(PAGE.read_text(encoding="utf-8"))
    wanted = {(str(SOURCE / file), function): (file, function) for file, function in steps}
    seen: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        key = (frame.f_code.co_filename, frame.f_code.co_name)
        if event == "call" and key in wanted:
            seen.append(wanted[key])

    with closing(Rowlock(f"sqlite:///{tmp_path}/jobs.db")) as app:

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
        assert app.result(job, timeout=10) == 3
    rest = iter(seen)
    missing = [step for step in steps if step not in rest]
    assert missing == [], f"not passed in this order: {missing[0]}; seen: {seen}"
