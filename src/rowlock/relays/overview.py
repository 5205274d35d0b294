"""What a doctor says about Redis and the relay: whether it answers, how it is set up, what of ours is there.

Short reads; nothing here is on the way of a job.
"""

from __future__ import annotations

from typing import Any

import rq

from rowlock.errors import ConfigurationError
from rowlock.insights.finding import Finding
from rowlock.relays.messages import TargetError
from rowlock.relays.redis_connection import ERRORS, check, connect, explaining
from rowlock.relays.rq_target import Names, check_version, texts
from rowlock.settings import without_password

_KEEPS_POPPED_IDS = (6, 2)  # from this version on, with one queue per worker
_START = "start it, or name another with REDIS_URL; until then jobs stay queued"


def findings(app: Any) -> list[Finding]:
    """What is to be said about Redis."""
    url = app.settings.redis_url
    where = without_password(url)
    try:
        check_version()
        with connect(url) as connection, explaining(where):
            check(connection, url)
            return [
                _version(connection, where),
                _eviction(connection),
                _ours(connection, Names(app.store.install_id())),
            ]
    except ConfigurationError as error:
        return [Finding("Redis", "error", str(error), "correct the setting, or install a newer RQ")]
    except TargetError as error:
        return [Finding("Redis", "error", str(error), _START)]


def _version(connection: Any, where: str) -> Finding:
    version = str(connection.info("server").get("redis_version", "0"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    said = f"{where} answers; Redis {version}, RQ {rq.__version__}"
    if numbers < _KEEPS_POPPED_IDS:
        return Finding("Redis", "note", said, "6.2 or later keeps a record of ids that were popped")
    return Finding("Redis", "ok", said)


def _eviction(connection: Any) -> Finding:
    try:
        chosen = connection.config_get("maxmemory*")
    except ERRORS:
        return Finding("Redis eviction", "note", "Redis does not say what it does when its memory is full")
    limit, policy = int(chosen.get("maxmemory", 0)), chosen.get("maxmemory-policy", "unknown")
    if limit and policy != "noeviction":
        return Finding(
            "Redis eviction",
            "warning",
            f"it drops keys above {limit:,} bytes ({policy}): what is dropped comes back to its queue, later",
            "set maxmemory-policy noeviction",
        )
    said = "no limit of memory" if not limit else f"it refuses writes above {limit:,} bytes ({policy})"
    return Finding("Redis eviction", "ok", said)


def _ours(connection: Any, names: Names) -> Finding:
    listed = connection.smembers(rq.Queue.redis_queues_keys)
    prefix = f"{rq.Queue.redis_queue_namespace_prefix}{names.prefix}"
    keys = sorted(key for key in texts(listed) if key.startswith(prefix))
    waiting = {key.removeprefix(prefix): connection.llen(key) for key in keys}
    popped = sum(connection.llen(f"{key}:intermediate") for key in keys)
    said = ", ".join(f"{name} {count}" for name, count in waiting.items()) or "nothing was handed over so far"
    return Finding("Redis queues", "ok", f"ids of this database that wait: {said}; taken just now: {popped}")
