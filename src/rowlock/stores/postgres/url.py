"""A PostgreSQL URL to what the store needs to know: libpq's part, and rowlock's own options.

Opens nothing.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from rowlock.errors import ConfigurationError

_EXAMPLE = "postgresql://user@host/database"
# Shows nothing of the URL: a password may be in any part of one that cannot be taken apart.
_UNREADABLE = (
    f"this is not a PostgreSQL URL; write {_EXAMPLE}, "
    "and / ? # : @ % in a user or a password as %2F %3F %23 %3A %40 %25"
)
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_POOL_SIZE = 50
_OF_ASYNCPG = ("prepared_statement_cache_size", "async_fallback")  # say nothing about the database
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
    pooled: bool = False  # by pgbouncer in transaction mode: nothing may live in the session
    pool_size: int = _POOL_SIZE

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"


def parse(url: str) -> Address:
    """The address in a URL; what is wrong with it is said by name."""
    scheme, _, rest = url.partition("://")
    try:
        parts = urlsplit(f"postgresql://{rest}")
        _ = "," in parts.netloc or parts.port  # libpq takes several hosts, separated by commas
    except ValueError:
        raise ConfigurationError(_UNREADABLE) from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.fragment or parts.netloc.count("@") > 1 or any("@" in piece for piece in (parts.path, *options)):
        raise ConfigurationError(_UNREADABLE)
    if scheme.lower().endswith("+asyncpg"):
        options = _from_asyncpg(options)
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
    query = urlencode(_DEFAULTS | options, quote_via=quote)
    # Not by urlunsplit, which drops the // of postgresql:///db.
    conninfo = f"postgresql://{parts.netloc}{parts.path}?{query}"
    _check(conninfo)
    return Address(
        conninfo=conninfo,
        shown=_shown(parts.netloc, parts.path, options.get("host"), schema),
        name=name,
        schema=schema,
        pooled=pooler == "transaction",
        pool_size=int(size),
    )


def _from_asyncpg(options: dict[str, str]) -> dict[str, str]:
    """The options of a URL for SQLAlchemy with asyncpg, as libpq calls them."""
    kept = {name: value for name, value in options.items() if name not in _OF_ASYNCPG}
    if (ssl := kept.pop("ssl", None)) is not None:
        kept.setdefault("sslmode", {"true": "require", "false": "disable"}.get(ssl.lower(), ssl))
    return kept


def _check(conninfo: str) -> None:
    """Let libpq read it, which opens nothing: an option that it does not know is refused here."""
    try:
        conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError as error:
        _, told, option = str(error).strip().partition("invalid URI query parameter: ")
        if not told:  # any other complaint may quote the password
            raise ConfigurationError(_UNREADABLE) from None
        raise ConfigurationError(f"the database's URL has an option that nobody knows: {option}") from None


def _shown(netloc: str, path: str, host: str | None, schema: str | None) -> str:
    user, at, place = netloc.rpartition("@")
    user = user.partition(":")[0]
    suffix = f"?schema={schema}" if schema else ""
    return f"postgresql://{unquote(user)}{at}{place or host or ''}{path}{suffix}"
