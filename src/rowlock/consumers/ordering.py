"""The order in which a consumer takes rows: what `order_by` may say. Its SQL is written in `table_sql.py`."""

from __future__ import annotations

import re
from typing import Any

from rowlock.consumers import names
from rowlock.errors import ConfigurationError

MOST_ORDER_COLUMNS = 8
Order = tuple[str, bool]  # a column, and whether its highest value comes first
_ORDER = re.compile(r"(?P<column>.+?)(?:\s+(?P<direction>asc|desc))?", re.IGNORECASE | re.DOTALL)


def parse_order_by(value: Any) -> tuple[Order, ...]:
    """`"priority DESC, created_at"`, or a list of such columns, which may then have commas in their names."""
    listed = value.split(",") if isinstance(value, str) else value
    if not isinstance(listed, (list, tuple)) or not 1 <= len(listed) <= MOST_ORDER_COLUMNS:
        raise ConfigurationError(
            f"order_by={value!r}: must be up to {MOST_ORDER_COLUMNS} columns' names, each with DESC after it "
            "if wanted, in a text with commas between them or in a list"
        )
    found = [_parse_column(one) for one in listed]
    named = [name for name, _ in found]
    if len(set(named)) < len(named):
        raise ConfigurationError(f"order_by={value!r}: names a column twice")
    return tuple(found)


def _parse_column(value: Any) -> Order:
    match = _ORDER.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ConfigurationError(f"order_by: {value!r} must be a column's name, with DESC after it if wanted")
    return names.column("order_by", match["column"]), (match["direction"] or "").lower() == "desc"
