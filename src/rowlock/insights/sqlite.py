"""What the doctor looks at in a SQLite file.

Judges the facts that `SqliteStore.facts()` brings; asks nothing itself.
"""

from __future__ import annotations

from rowlock.insights.finding import Facts, Verdict, error, note, ok, warning

_LARGE_WAL = 64 * 1024 * 1024


def _integrity(facts: Facts) -> Verdict:
    if facts["quick_check"] == ["ok"]:
        return ok("the database's own quick check found nothing wrong")
    return error(
        "the database is damaged: " + "; ".join(facts["quick_check"]),
        "stop the workers, keep a copy of the file and its -wal, and restore a backup",
    )


def _version(facts: Facts) -> Verdict:
    if not facts["wal_reset_bug"]:
        return ok(f"SQLite {facts['server_version']}")
    return note(
        f"SQLite {facts['server_version']} has the WAL-reset bug (fixed in 3.51.3); rowlock works "
        "around it by making its own checkpoints",
        "let other programs that write to this file set PRAGMA wal_autocheckpoint = 0, or update SQLite",
    )


def _journal(facts: Facts) -> Verdict:
    if facts["journal_mode"] == "wal":
        return ok("WAL: readers and the writer do not block each other")
    return error(
        f"the journal mode is {facts['journal_mode']}, not WAL",
        "is the file on a network drive or a read-only disk? Move it to a local disk",
    )


def _durability(facts: Facts) -> Verdict:
    said = f"synchronous={facts['synchronous']}"
    if facts["synchronous"] in ("FULL", "EXTRA"):
        return ok(f"{said}: a commit survives a power cut")
    return error(said, "commits can be lost; report this")


def _wal(facts: Facts) -> Verdict:
    if facts["wal_bytes"] < _LARGE_WAL:
        return ok(f"{facts['wal_bytes']:,} bytes")
    return warning(
        f"the -wal file has grown to {facts['wal_bytes']:,} bytes",
        "some program keeps a read open on this database: find and close it",
    )


# The state of the file, of its journal, and of the SQLite that this Python has.
CHECKS = {
    "integrity": _integrity,
    "version": _version,
    "journal mode": _journal,
    "durability": _durability,
    "write-ahead log": _wal,
}
