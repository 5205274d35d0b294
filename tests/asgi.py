"""Sends one request to an ASGI app, in this process and without a client library."""

from __future__ import annotations

import asyncio
import json
from typing import Any


def request(
    app: Any, method: str, path: str, query: str = "", body: bytes = b"", kind: str = "application/json"
) -> tuple[int, Any]:
    """The status and the JSON of the answer; an error of the app is raised here."""
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"content-type", kind.encode())],
        "server": ("test", 80),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))
