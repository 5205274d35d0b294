"""PostgreSQL and Redis for the demonstration, from wheels: neither root nor docker is needed.

Those of the tests, which end with whoever started them, however that ends.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NoReturn


def start_postgres(end: ExitStack) -> str:
    """The URL of a PostgreSQL of our own."""
    from tests.servers.postgres import own_server, wheel_binaries

    return end.enter_context(own_server(wheel_binaries())).url


def start_redis(end: ExitStack) -> str:
    """The URL of a Redis of our own that keeps nothing on disk."""
    from tests.servers.redis import redis_server

    return end.enter_context(redis_server()).url


def connect(url: str, refuse: Callable[[str], NoReturn]) -> Any:
    """A client of that Redis: the demonstration flushes it."""
    from redis import Redis, RedisError

    try:
        client = Redis.from_url(url)
        client.ping()
    except (RedisError, ValueError) as error:
        refuse(f"Redis cannot be used: {error}")
    return client
