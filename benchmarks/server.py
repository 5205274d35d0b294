"""A PostgreSQL server for one scenario, as it comes: durable, with the buffers of an untouched configuration.

The tests know how to start one; they are imported when it is needed, and not before.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def a_server(settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start a server below /tmp; gives the URL of an empty database, and ends the server at once."""
    from tests.servers.postgres import own_server, wheel_binaries

    with own_server(wheel_binaries()) as server:
        # The tests' servers have to be small; 128 MB is what PostgreSQL sets up by itself.
        for name, value in {"shared_buffers": "128MB", **(settings or {})}.items():
            server.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        server.restart("fast")
        durable = [server.execute(f"SHOW {name}") for name in ("fsync", "synchronous_commit")]
        assert durable == [[("on",)], [("on",)]]
        try:
            yield server.url
        finally:
            server.stop("immediate")  # by the time the next scenario begins, nothing of it is left


def version() -> str:
    """The version of the server that `a_server` starts."""
    from tests.servers.postgres import wheel_binaries

    said = subprocess.run(
        [wheel_binaries() / "postgres", "--version"], check=True, capture_output=True, text=True
    )
    return said.stdout.split()[-1]
