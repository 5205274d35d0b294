"""The small apps that scenarios measure, and the same work for the baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rowlock import Rowlock
from rowlock.task import Task


def add(a: int, b: int) -> int:
    """The job of all scenarios: it costs nothing, so that the queue is what is measured."""
    return a + b


def app_at(place: Path | str) -> Rowlock:
    """An app in that file, or at that URL, opened."""
    app = Rowlock(f"sqlite:///{place}" if isinstance(place, Path) else place)
    app.store.open()
    return app


def adding_app(place: Path | str) -> tuple[Rowlock, Task[Any, int]]:
    """An app in that file, or at that URL, with the task `add`."""
    app = app_at(place)
    return app, app.task(add)


def calls(count: int) -> list[dict[str, int]]:
    """Arguments for so many jobs."""
    return [{"a": number, "b": number + 1} for number in range(count)]
