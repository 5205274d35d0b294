"""What the doctor looks at in a PostgreSQL server.

Judges the facts that `PostgresStore.facts()` brings; asks nothing itself.
"""

from __future__ import annotations

from rowlock.insights.finding import Facts, Verdict, error, note, ok, warning

_CROWDED = 0.8  # of max_connections
_MANY_DEAD, _TOO_MANY_DEAD = 50_000, 1_000_000  # rows; a claim over 51,600 was 4 to 5 times slower
_OLD_SNAPSHOT, _TOO_OLD_SNAPSHOT = 60.0, 600.0
_COMMIT_DURABLY = "for rowlock's user: ALTER ROLE app SET synchronous_commit = on"
_FIND_IT = (
    "SELECT pid, usename, application_name, state, xact_start, query FROM pg_stat_activity "
    "WHERE xact_start IS NOT NULL ORDER BY xact_start"
)


def _version(facts: Facts) -> Verdict:
    return ok(f"PostgreSQL {facts['server_version']}")


def _role(facts: Facts) -> Verdict:
    if not facts["is_standby"]:
        return ok("the server takes writes")
    return error(
        "this server is a standby: nothing can be enqueued or claimed on it",
        "use the URL of the primary (with several hosts: ?target_session_attrs=read-write)",
    )


def _durability(facts: Facts) -> Verdict:
    commit = facts["synchronous_commit"]
    if facts["fsync"] == "off":
        return warning(
            "fsync=off: a power cut or a crash of the machine can damage the whole database",
            "set fsync = on in postgresql.conf, and reload the server",
        )
    if commit == "off":
        return warning(
            "synchronous_commit=off: a crash of the server loses its last commits: jobs just enqueued are "
            "gone, and jobs just completed run again",
            _COMMIT_DURABLY,
        )
    if commit == "local":
        return warning(
            "synchronous_commit=local: a commit waits for no standby, so that a failover can lose it",
            _COMMIT_DURABLY,
        )
    return ok(f"synchronous_commit={commit}, fsync=on: a commit survives a power cut")


def _connections(facts: Facts) -> Verdict:
    used, most = facts["connections"], facts["max_connections"]
    said = f"{used} of {most} connections are in use"
    if used <= _CROWDED * most:
        return ok(said)
    return warning(
        f"{said}; when none is left, programs and workers are refused",
        "raise max_connections, run fewer workers, or put pgbouncer in between (?pooler=transaction)",
    )


def _bloat(facts: Facts) -> Verdict:
    dead, live = facts["dead_rows"] or 0, facts["live_rows"] or 0
    said = f"{dead:,} dead rows beside {live:,} live ones in the table of jobs"
    if dead <= max(_MANY_DEAD, live):
        return ok(said)
    verdict = warning if dead > max(_TOO_MANY_DEAD, 5 * live) else note
    return verdict(
        f"{said}: vacuum does not keep up, and every claim has to pass them",
        "is autovacuum on? Is a transaction open for long? Close it, then: VACUUM rowlock_jobs",
    )


def _snapshot(facts: Facts) -> Verdict:
    age = facts["oldest_snapshot_seconds"] or 0.0
    if age <= _OLD_SNAPSHOT:
        return ok(f"none has been open for more than {_OLD_SNAPSHOT:.0f} s")
    verdict = warning if age > _TOO_OLD_SNAPSHOT else note
    return verdict(
        f"one has been open for {age:.0f} s: vacuum removes no row that died since, and claims become slow",
        f"find it: {_FIND_IT}; end it: SELECT pg_terminate_backend(pid)",
    )


# The server's version, what a commit is worth there, and what makes claims slow or impossible.
CHECKS = {
    "version": _version,
    "primary": _role,
    "durability": _durability,
    "connections": _connections,
    "dead rows": _bloat,
    "open transactions": _snapshot,
}
