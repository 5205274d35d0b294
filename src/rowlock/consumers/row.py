"""A row of a user's table as the function gets it, and as JSON between the claim and the function.

Every value keeps the type that the driver gave it; a type that JSON lacks is written with its name.
"""

from __future__ import annotations

import base64
import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode


class Row:
    """One row, by attribute (`row.path`) or by name (`row["path"]`); it cannot be changed."""

    __slots__ = ("__values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_Row__values", dict(values))

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__values[name]
        except KeyError:
            raise AttributeError(f"this row has no {name!r}; it has: {', '.join(self.__values)}") from None

    def __getitem__(self, name: str) -> Any:
        return self.__values[name]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Pairs of name and value, so that `dict(row)` works."""
        return iter(self.__values.items())

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a row cannot be changed here ({name}); write to the table instead")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and dict(self) == dict(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self)})"


def own_budget(value: Any) -> int | None:
    """A row's own max_attempts; None if its column holds no number."""
    try:
        return None if value is None else max(1, int(value))
    except (TypeError, ValueError, OverflowError):  # SQLite's columns hold anything
        return None


def key_text(key: Any) -> str:
    """A row's key as text for logs and messages."""
    return key.hex() if isinstance(key, (bytes, bytearray, memoryview)) else str(key)


def to_text(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The rows as JSON."""
    return _encode([list(names), [[_plain(value) for value in row] for row in rows]]).decode()


def from_text(text: str) -> list[Row]:
    """The rows again."""
    names, rows = _decode(text)
    return [Row(dict(zip(names, map(_restored, row), strict=True))) for row in rows]


# -- values that JSON lacks: [kind, text] ----------------------------------------------------------

# Of each kind: the types, how a value is written, and how it is read again. The first that fits counts.
_KINDS: dict[str, tuple[type | tuple[type, ...], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "json": ((dict, list, tuple), lambda value: value, lambda value: value),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),  # before date: it is one, too
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
    "timedelta": (timedelta, timedelta.total_seconds, lambda seconds: timedelta(seconds=seconds)),
    "decimal": (Decimal, str, Decimal),
    "uuid": (uuid.UUID, str, uuid.UUID),
    "bytes": (
        (bytes, bytearray, memoryview),
        lambda value: base64.b64encode(value).decode(),
        base64.b64decode,
    ),
    "int": (int, str, int),
    "float": (float, repr, float),
    "text": (object, str, str),
}


def _plain(value: Any) -> Any:
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return value
    if (kind is int and -(2**63) <= value < 2**63) or (kind is float and math.isfinite(value)):
        return value
    name, write = next(
        (name, write) for name, (types, write, _) in _KINDS.items() if isinstance(value, types)
    )
    return [name, write(value)]


def _restored(value: Any) -> Any:
    return _KINDS[value[0]][2](value[1]) if type(value) is list else value
