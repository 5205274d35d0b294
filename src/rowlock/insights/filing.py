"""How the ingests and janitors of an app stand, for every front end.

Only the record and who is asked for it; the counting is each service's own, for it alone knows its table.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

import msgspec


class FileServiceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How an ingest or a janitor stands."""

    kind: str
    name: str
    table: str
    folder: str
    done: int  # rows ingested, or deleted
    bytes: int  # of these; a janitor's are freed
    waiting: int = 0
    failed: int = 0
    refused: int = 0
    free: int | None = None
    total: int | None = None
    last_run: datetime | None = None
    error: str | None = None


class HasFiles(Protocol):
    """An app, as far as it is asked here."""

    @property
    def ingests(self) -> Mapping[str, Any]:
        """The declared ingests by name."""
        ...

    @property
    def janitors(self) -> Mapping[str, Any]:
        """The declared janitors by name."""
        ...


def file_services(app: HasFiles) -> list[FileServiceRecord]:
    """How each ingest and each janitor of the app stands."""
    return [one.record() for one in (*app.ingests.values(), *app.janitors.values())]
