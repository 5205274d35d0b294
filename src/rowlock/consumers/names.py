"""Names that come from a user's code and end up in SQL: checked, then quoted; never used as they are.

A consumer's name is also a JSON key and part of an index's name, so fewer characters are allowed in it.
"""

from __future__ import annotations

import re
from typing import Any

from rowlock.errors import ConfigurationError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_LONGEST = 63
_MOST_ORDERED = 8
Order = tuple[str, bool]  # a column, and whether its highest value comes first
_ORDER = re.compile(r"(?P<column>.+?)(?:\s+(?P<direction>asc|desc))?", re.IGNORECASE | re.DOTALL)
_REFUSED = frozenset("%:\\{}«»")  # some driver or rowlock's own templates read them, even inside quotes


def consumer_name(value: Any) -> str:
    """A name that is safe as a JSON key and as part of an index's name."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ConfigurationError(
            f"a consumer's name becomes a JSON key and part of an index's name: {value!r} must be 1 to 40 "
            "letters, digits, _ or -, beginning with a letter"
        )
    return value


def column(what: str, value: Any) -> str:
    """A column's name; it may have spaces and quotes, because it is quoted later."""
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= _LONGEST
        or not value.isprintable()
        or _REFUSED & set(value)
    ):
        raise ConfigurationError(
            f"{what}={value!r}: must be a column's name, printable text of 1 to {_LONGEST} characters "
            "without any of % : \\ { }"
        )
    return value


def table(value: Any) -> tuple[str, ...]:
    """A table's name in parts: (name,), or (schema, name) of "schema.name"."""
    parts: list[str] = value.split(".") if isinstance(value, str) else []
    if not 1 <= len(parts) <= 2:
        raise ConfigurationError(f"table={value!r}: must be a table's name, or schema.name")
    for part in parts:
        column("table", part)
    if parts[-1].lower().startswith("rowlock_"):
        raise ConfigurationError(f"table={value!r}: rowlock's own tables are no place for a consumer")
    return tuple(parts)


def order_by(value: Any) -> tuple[Order, ...]:
    """`"priority DESC, created_at"`, or a list of such columns, which may then have commas in their names."""
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)) or not 1 <= len(listed) <= _MOST_ORDERED:
        raise ConfigurationError(
            f"order_by={value!r}: must be up to {_MOST_ORDERED} columns' names, each with DESC after it "
            "if wanted, in a text with commas between them or in a list"
        )
    found = [_order_column(one) for one in listed]
    named = [name for name, _ in found]
    if len(set(named)) < len(named):
        raise ConfigurationError(f"order_by={value!r}: names a column twice")
    return tuple(found)


def _order_column(value: Any) -> Order:
    match = _ORDER.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ConfigurationError(f"order_by: {value!r} must be a column's name, with DESC after it if wanted")
    return column("order_by", match["column"]), (match["direction"] or "").lower() == "desc"


def quoted(name: str) -> str:
    """The name in SQL's double quotes, which are the same on every database that rowlock supports."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: str | int) -> str:
    """The text or number as SQL, for conditions of indexes, where no value can be bound."""
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
