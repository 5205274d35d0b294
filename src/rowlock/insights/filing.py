"""How the ingests and janitors of an app stand, for every front end.

Only the record; the counting is each service's own, for it alone knows its table.
"""

from __future__ import annotations

from datetime import datetime

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
