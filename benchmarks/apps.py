"""The small apps that scenarios measure, and the same work for the baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rowlock import Rowlock
from rowlock.task import Task


def add(a: int, b: int) -> int:
    """The job of all scenarios: it costs nothing, so that the queue is what is measured."""
    return a + b


def app_at(path: Path) -> Rowlock:
    """An app in that file, opened."""
    app = Rowlock(f"sqlite:///{path}")
    app.store.open()
    return app


def adding_app(path: Path) -> tuple[Rowlock, Task[Any, int]]:
    """An app in that file with the task `add`."""
    app = app_at(path)
    return app, app.task(add)


def calls(count: int) -> list[dict[str, int]]:
    """Arguments for so many jobs."""
    return [{"a": number, "b": number + 1} for number in range(count)]
