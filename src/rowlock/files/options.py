"""What an ingest and a janitor can be told when they are declared, as types; `docs/files.md` has the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict


class _TableAndFolder(TypedDict):
    table: str
    folder: str | os.PathLike[str]


class ServiceOptions(_TableAndFolder, total=False):
    """Options of both."""

    path: str | Sequence[str]  # the column of a file's path, or several
    paths: str  # "absolute", or "relative" to the folder
    interval: float  # seconds between two runs


class IngestOptions(ServiceOptions, total=False):
    """Options of `app.ingest`."""

    pattern: str
    row: Callable[..., Mapping[str, Any] | bool | None] | None
    settle: float  # seconds for which a file has to stand still


class JanitorOptions(ServiceOptions, total=False):
    """Options of `app.janitor`."""

    key: str | None  # a unique column; without it the primary key
    order_by: str | None
    after: Sequence[str]  # names of consumers
    failed_too: bool
    where: str | None
    deleted: str | None  # a boolean or a time column
    remove_rows: bool
    min_free: Any  # limits: "20%", "500MB", "30d", a number, or a function that returns one of these
    target_free: Any
    max_age: Any
    max_size: Any
    cap: int  # rows in one run
    also: Callable[..., Iterable[Any]] | None
    also_folder: str | os.PathLike[str] | None
    on_deleted: Callable[..., Any] | None
