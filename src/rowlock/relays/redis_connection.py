"""How Redis is reached, and what its errors mean in one sentence.

Not what is kept there: that is each target's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import redis
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry as RedisRetry

from rowlock.errors import ConfigurationError
from rowlock.relays.messages import TargetError
from rowlock.settings import without_password

SOCKET_TIMEOUT_SECONDS = 5.0
ERRORS = (redis.exceptions.RedisError, OSError)
# What servers and the driver say, which takes the first word of some away.
_CAUSES = (
    ("WRONGPASS", "it refuses the password"),
    ("invalid username-password", "it refuses the password"),
    ("NOAUTH", "it wants a password"),
    ("Authentication required", "it wants a password"),
    ("already authenticated", "it wants a password"),
    ("read only replica", "it is a read-only replica"),
    ("maxmemory", "it is out of memory"),
    ("MISCONF", "it cannot save to its disk, and refuses writes"),
    ("loading the dataset", "it is still loading its data"),
    ("no permissions", "its user may not do that"),
)

_ESCAPES = "it cannot be read; in a password write / as %2F, @ as %40, ? as %3F and # as %23"


def connect(url: str) -> redis.Redis:
    """A client for this URL; opens nothing yet."""
    try:
        return redis.Redis.from_url(
            url,
            socket_timeout=SOCKET_TIMEOUT_SECONDS,
            socket_connect_timeout=SOCKET_TIMEOUT_SECONDS,
            retry=RedisRetry(NoBackoff(), 0),  # who uses it knows better when to try again
        )
    except (ValueError, redis.exceptions.RedisError) as error:
        name = "ROWLOCK_REDIS_URL" if os.environ.get("ROWLOCK_REDIS_URL") else "REDIS_URL"
        # The error itself may show half of the password.
        said = _ESCAPES if "@" in url and "Port" in str(error) else error
        raise ConfigurationError(f"{name}={without_password(url)!r}: {said}") from None


def explained(error: Exception, where: str) -> TargetError:
    """What went wrong with Redis, in one sentence."""
    said = str(error).strip().partition("\n")[0] or type(error).__name__
    cause = next((words for mark, words in _CAUSES if mark in said), None)
    if cause is not None:
        return TargetError(f"Redis at {where} cannot be used: {cause} ({said})")
    if isinstance(error, (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError)):
        return TargetError(f"Redis at {where} cannot be reached: {said}")
    return TargetError(f"Redis at {where} answers with an error: {said}")


def check(connection: redis.Redis, where: str) -> None:
    """Raise if Redis cannot be reached, or cannot be written to."""
    with explaining(without_password(where)):
        connection.set("rowlock-check", "1", ex=10)


@contextmanager
def explaining(where: str) -> Iterator[None]:
    """Raise whatever goes wrong with Redis in this block as a `TargetError`."""
    try:
        yield
    except ERRORS as error:
        raise explained(error, where) from error
