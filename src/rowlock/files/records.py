"""What ingest and janitor say about themselves and about a run, as plain data that any front end can show."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class FileTrouble(msgspec.Struct, frozen=True):
    """A file that was left alone, and why."""

    path: str
    why: str


class Ingested(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of an ingest did; paths are as the table has them."""

    name: str
    ingested: list[str] = []
    waiting: list[str] = []  # row() said None: not yet
    settling: list[str] = []  # somebody may still be writing them
    failed: list[FileTrouble] = []  # row() raised, or the row could not be written
    later: list[str] = []  # they failed before, and are tried again after their pause
    unreadable: list[FileTrouble] = []
    known: int = 0  # they have a row already
    never: int = 0  # row() said False


class DeletedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row whose files are gone (or would be, in a dry run)."""

    key: Any
    paths: list[str]  # below the folder
    size: int  # bytes of these files
    freed: int  # bytes on the disk that went with them, and with their companions
    why: str


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


class Cleaned(msgspec.Struct, kw_only=True):
    """What one run of a janitor did, or in a dry run what it would do; filled in as it happens."""

    name: str
    dry_run: bool = False
    deleted: list[DeletedRow] = []
    unconfirmed: list[DeletedRow] = []  # files of theirs are gone, and their table does not say so
    freed: int = 0  # bytes, by both
    kept: int = 0  # rows that a limit asked for, and that are protected
    refused: list[FileTrouble] = []
    healed: int = 0  # rows whose files were gone already
    free: int | None = None  # bytes on the disk after it
    short: str | None = None  # what is still over its limit although everything deletable is gone
    too_full: bool = False  # so is the disk, and no more urgent tier is left
    skipped: str | None = None  # why this janitor did nothing at all
