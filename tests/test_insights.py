"""What the doctor makes of a PostgreSQL server's facts; those it can be shown quickly are in tests/cli."""

from __future__ import annotations

from typing import Any

import pytest

from rowlock import Rowlock
from rowlock.insights import doctor
from rowlock.insights.finding import Finding, judged
from rowlock.insights.postgresql import CHECKS

HEALTHY: dict[str, Any] = {
    "server_version": "18.0",
    "synchronous_commit": "on",
    "fsync": "on",
    "connections": 80,
    "max_connections": 100,
    "dead_rows": 50_000,
    "live_rows": 10,
    "oldest_snapshot_seconds": 60.0,
    "is_standby": False,
}


def look(check: str, **facts: Any) -> Finding:
    (found,) = [one for one in judged(HEALTHY | facts, CHECKS) if one.check == check]
    return found


def test_a_healthy_server_is_called_healthy() -> None:
    assert {one.level for one in judged(HEALTHY, CHECKS)} == {"ok"}
    never_analysed = {"dead_rows": None, "live_rows": None, "oldest_snapshot_seconds": None}
    assert {one.level for one in judged(HEALTHY | never_analysed, CHECKS)} == {"ok"}


@pytest.mark.parametrize(
    ("check", "facts", "level", "words", "advice"),
    [
        ("durability", {"synchronous_commit": "off"}, "warning", "loses its last commits", "ALTER ROLE"),
        ("durability", {"synchronous_commit": "local"}, "warning", "failover", "ALTER ROLE"),
        ("durability", {"synchronous_commit": "remote_apply"}, "ok", "remote_apply", ""),
        ("durability", {"fsync": "off"}, "warning", "damage the whole database", "fsync = on"),
        ("connections", {"connections": 81}, "warning", "81 of 100", "max_connections"),
        ("dead rows", {"dead_rows": 50_001}, "note", "50,001 dead rows", "autovacuum"),
        ("dead rows", {"dead_rows": 90_000, "live_rows": 90_000}, "ok", "90,000", ""),
        ("dead rows", {"dead_rows": 1_000_001}, "warning", "vacuum does not keep up", "VACUUM rowlock_jobs"),
        ("open transactions", {"oldest_snapshot_seconds": 61.0}, "note", "61 s", "pg_stat_activity"),
        ("open transactions", {"oldest_snapshot_seconds": 601.0}, "warning", "601 s", "pg_terminate_backend"),
        ("primary", {"is_standby": True}, "error", "standby", "URL of the primary"),
    ],
)
def test_what_is_wrong_with_a_server_is_said_with_what_to_do(
    check: str, facts: dict[str, Any], level: str, words: str, advice: str
) -> None:
    found = look(check, **facts)
    assert found.level == level
    assert words in found.message and advice in found.advice


def test_the_doctor_asks_a_real_server_for_these_facts(postgres_schema: str) -> None:
    app = Rowlock(postgres_schema)
    app.enqueue("work")
    facts, findings = app.store.facts(), {one.check: one for one in doctor(app.store)}
    app.close()
    assert facts.keys() >= HEALTHY.keys()
    assert findings["primary"].level == findings["clock"].level == "ok"
    assert findings["workers"].level == "warning"
