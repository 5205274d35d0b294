"""What the doctor looks at in a SQLite file.

Judges the facts that `SqliteStore.facts()` brings; asks nothing itself.
"""

from __future__ import annotations

from typing import Any

from rowlock.insights.finding import Finding

_LARGE_WAL = 64 * 1024 * 1024


def looks(facts: dict[str, Any]) -> list[Finding]:
    """The state of the file, of its journal, and of the SQLite that this Python has."""
    return [look(facts) for look in (_integrity, _version, _journal, _durability, _wal)]


def _integrity(facts: dict[str, Any]) -> Finding:
    if facts["quick_check"] == ["ok"]:
        return Finding("integrity", "ok", "the database's own quick check found nothing wrong")
    return Finding(
        "integrity",
        "error",
        "the database is damaged: " + "; ".join(facts["quick_check"]),
        "stop the workers, keep a copy of the file and its -wal, and restore a backup",
    )


def _version(facts: dict[str, Any]) -> Finding:
    if facts["wal_reset_bug"]:
        return Finding(
            "version",
            "note",
            f"SQLite {facts['server_version']} has the WAL-reset bug (fixed in 3.51.3); rowlock works "
            "around it by making its own checkpoints",
            "let other programs that write to this file set PRAGMA wal_autocheckpoint = 0, or update SQLite",
        )
    return Finding("version", "ok", f"SQLite {facts['server_version']}")


def _journal(facts: dict[str, Any]) -> Finding:
    if facts["journal_mode"] == "wal":
        return Finding("journal mode", "ok", "WAL: readers and the writer do not block each other")
    return Finding(
        "journal mode",
        "error",
        f"the journal mode is {facts['journal_mode']}, not WAL",
        "is the file on a network drive or a read-only disk? Move it to a local disk",
    )


def _durability(facts: dict[str, Any]) -> Finding:
    if facts["synchronous"] in ("FULL", "EXTRA"):
        return Finding(
            "durability", "ok", f"synchronous={facts['synchronous']}: a commit survives a power cut"
        )
    return Finding(
        "durability", "error", f"synchronous={facts['synchronous']}", "commits can be lost; report this"
    )


def _wal(facts: dict[str, Any]) -> Finding:
    if facts["wal_bytes"] < _LARGE_WAL:
        return Finding("write-ahead log", "ok", f"{facts['wal_bytes']:,} bytes")
    return Finding(
        "write-ahead log",
        "warning",
        f"the -wal file has grown to {facts['wal_bytes']:,} bytes",
        "some program keeps a read open on this database: find and close it",
    )
