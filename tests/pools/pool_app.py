"""One app for every kind of pool: the same tasks, written as plain functions or as coroutines.

A module of its own in a folder of the test's, because a child process has to import it.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path

from rowlock import Rowlock

KINDS = ["thread", "async", "process"]
_numbers = itertools.count()

_SOURCE = """
import asyncio
import os
import threading
import time
from pathlib import Path

from rowlock import Fail, JobContext, Retry, RetryLater, Rowlock, resident

HERE = Path({folder!r})
app = Rowlock({url!r}, lease=6)
QUICK = Retry(max_attempts=3, base=0.01, cap=0.02)


def mark(name):
    (HERE / name).touch()


def add_line(name, line):
    with open(HERE / name, "a") as file:
        file.write(line + "\\n")


@app.around
def around(ctx):
    outcome = yield
    add_line("around", f"{{ctx.id}} {{outcome.ending}}")


def load_counter():
    add_line("residents", "load")
    yield {{"uses": 0}}
    add_line("residents", "unload")


@app.task
{define} add(a: int, b: int) -> int:
    return a + b


@app.task(retry=QUICK)
{define} break_down(ctx: JobContext) -> None:
    add_line("tries", str(ctx.attempt))
    raise KeyError("no such thing")


@app.task
{define} later(ctx: JobContext) -> int:
    if ctx.claim == 1:
        raise RetryLater(0.01)
    return ctx.claim


@app.task
{define} talk(ctx: JobContext) -> str:
    ctx.progress(1, 2, "half way")
    ctx.log("hello", to="you")
    while not (HERE / "go").exists():
        {sleep}(0.01)
    return "done"


@app.task
{define} obey(ctx: JobContext) -> None:
    mark(f"obey-{{ctx.id}}")
    while True:
        ctx.check_cancelled()
        {sleep}(0.01)


@app.task(timeout=0.3, retry=False)
{define} too_long(ctx: JobContext) -> None:
    while True:
        ctx.progress(1)
        {sleep}(0.01)


@app.task(timeout=0.2, retry=False)
{define} deaf() -> None:
    {deaf}


@app.task
{define} wait(ctx: JobContext) -> str:
    add_line("waiting", str(ctx.id))
    while not (HERE / "go").exists():
        {sleep}(0.01)
    return "waited"


@app.task(retry=QUICK)
{define} write(ctx: JobContext, text: str, fail: bool = False) -> str:
    {with_} ctx.transaction() as tx:
        {await_}tx.execute("INSERT INTO notes (text) VALUES ({mark})", (text,))
    if fail and ctx.attempt == 1:
        raise RuntimeError("after the block")
    return text


@app.task
{define} count(counter: dict = resident(load_counter)) -> int:
    counter["uses"] += 1
    return counter["uses"]


@app.task
{define} quick() -> None:
    add_line("steps", "begin")
    {sleep}(0.001)
    add_line("steps", "end")


@app.task
{define} nothing(n: int = 0) -> None:
    pass
"""
_PLAIN = {
    "define": "def",
    "sleep": "time.sleep",
    "with_": "with",
    "await_": "",
    "deaf": "(HERE / 'deaf').touch() or time.sleep(60)",
}
_ASYNC = {
    "define": "async def",
    "sleep": "await asyncio.sleep",
    "with_": "async with",
    "await_": "await ",
    "deaf": """mark("deaf")
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if (HERE / "go").exists():
                raise""",
}


def app_for(kind: str, url: str, folder: Path) -> Rowlock:
    """The app, imported from a module that was written for this kind of pool."""
    words = _ASYNC if kind == "async" else _PLAIN
    name = f"pool_app_{next(_numbers)}"
    source = _SOURCE.format(
        url=url, folder=str(folder), mark="%s" if url.startswith("postgres") else "?", **words
    )
    (folder / f"{name}.py").write_text(source)
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        app: Rowlock = importlib.import_module(name).app
    finally:
        sys.path.remove(str(folder))
    return app
