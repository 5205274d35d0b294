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


def to_text(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The rows as JSON."""
    return _encode([list(names), [[_plain(value) for value in row] for row in rows]]).decode()


def from_text(text: str) -> list[Row]:
    """The rows again."""
    names, rows = _decode(text)
    return [Row(dict(zip(names, map(_restored, row), strict=True))) for row in rows]


# -- values that JSON lacks: [kind, text] ----------------------------------------------------------

_RESTORE: dict[str, Callable[[Any], Any]] = {
    "json": lambda value: value,
    "text": str,
    "int": int,
    "float": float,
    "decimal": Decimal,
    "uuid": uuid.UUID,
    "bytes": base64.b64decode,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timedelta": lambda seconds: timedelta(seconds=seconds),
}
_KINDS: tuple[tuple[type | tuple[type, ...], Callable[[Any], list[Any]]], ...] = (
    ((dict, list, tuple), lambda value: ["json", value]),
    (datetime, lambda value: ["datetime", value.isoformat()]),  # before date: it is one, too
    (date, lambda value: ["date", value.isoformat()]),
    (time, lambda value: ["time", value.isoformat()]),
    (timedelta, lambda value: ["timedelta", value.total_seconds()]),
    (Decimal, lambda value: ["decimal", str(value)]),
    (uuid.UUID, lambda value: ["uuid", str(value)]),
    ((bytes, bytearray, memoryview), lambda value: ["bytes", base64.b64encode(bytes(value)).decode()]),
)


def _plain(value: Any) -> Any:
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return value
    if kind is int:
        return value if -(2**63) <= value < 2**63 else ["int", str(value)]
    if kind is float:
        return value if math.isfinite(value) else ["float", repr(value)]
    for kinds, written in _KINDS:
        if isinstance(value, kinds):
            return written(value)
    return ["text", str(value)]


def _restored(value: Any) -> Any:
    return _RESTORE[value[0]](value[1]) if type(value) is list else value
