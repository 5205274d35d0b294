"""A PostgreSQL URL to what the store needs to know: libpq's part, and rowlock's own options.

Opens nothing.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

import msgspec

from rowlock.errors import ConfigurationError

_EXAMPLE = "postgresql://user@host/database"
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_POOL_SIZE = 50
# Without these a server that vanished is noticed after two hours.
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where the queue is, and how it is reached."""

    conninfo: str
    shown: str  # without a password
    name: str = "rowlock"  # how the connections call themselves
    schema: str | None = None
    pooled: bool = False
    pool_size: int = _POOL_SIZE


def parse(url: str) -> Address:
    """The address in a URL; what is wrong with it is said by name."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigurationError(f"{url!r} is not a database URL ({error}); write {_EXAMPLE}") from None
    if parts.fragment:
        raise ConfigurationError(f"the database's URL has a fragment (#{parts.fragment}); write {_EXAMPLE}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = options.pop("schema", None)
    if schema is not None and not _SCHEMA.fullmatch(schema):
        raise ConfigurationError(f"schema={schema!r}: must be a plain name such as rowlock (a-z, 0-9 and _)")
    pooler = options.pop("pooler", None)
    if pooler not in (None, "transaction"):
        raise ConfigurationError(f"pooler={pooler!r}: must be transaction, or be left out")
    size = options.pop("pool_size", str(_POOL_SIZE))
    if not size.isdecimal() or not 2 <= int(size) <= 1000:
        raise ConfigurationError(f"pool_size={size!r}: must be a whole number from 2 to 1000")
    name = options.pop("application_name", "rowlock")
    defaults = {key: value for key, value in _DEFAULTS.items() if key not in options}
    query = urlencode(defaults | options, quote_via=quote)
    return Address(
        conninfo=urlunsplit(("postgresql", parts.netloc, parts.path, query, "")),
        shown=_shown(parts.netloc, parts.path, options.get("host"), schema),
        name=name,
        schema=schema,
        pooled=pooler == "transaction",
        pool_size=int(size),
    )


def _shown(netloc: str, path: str, host: str | None, schema: str | None) -> str:
    user, at, place = netloc.rpartition("@")
    user = user.partition(":")[0]
    suffix = f"?schema={schema}" if schema else ""
    return f"postgresql://{unquote(user)}{at}{place or host or ''}{path}{suffix}"
