"""How rowlock's own cursor reads values: no value in a user's row can stop the statement that reads it.

The loaders of users' own connections stay as psycopg has them.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from struct import Struct
from typing import Any

import psycopg
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.types import datetime as times
from psycopg.types.string import TextBinaryLoader

_MICROSECONDS = Struct("!q")
_EPOCH_2000 = 946_684_800
_FIRST, _LAST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001 - as timestamp is
_LONGEST = timedelta(days=timedelta.max.days)


class _Seconds(Loader):
    """Times as Unix seconds, as the rest of rowlock has them."""

    format = Format.BINARY

    def load(self, data: Any) -> float:
        return float(_MICROSECONDS.unpack(data)[0] / 1e6 + _EPOCH_2000)


def _clamped(loader: type[Loader], least: Any, most: Any, signs: tuple[int, ...] = (0,)) -> type[Loader]:
    """The same loader; a value that Python cannot hold (infinity, 24:00) becomes the nearest that it can.

    `signs` are the bytes that hold a sign.
    """

    class Clamped(Loader):
        format = Format.BINARY

        def __init__(self, oid: int, context: Any = None) -> None:
            super().__init__(oid, context)
            self._plain = loader(oid, context)

        def load(self, data: Any) -> Any:
            try:
                return self._plain.load(data)
            except psycopg.DataError:
                return least if any(bytes(data)[at] & 0x80 for at in signs) else most

    return Clamped


_LOADERS: dict[str, type[Loader]] = {
    "timestamptz": _Seconds,
    "json": TextBinaryLoader,
    "timestamp": _clamped(times.TimestampBinaryLoader, _FIRST, _LAST),
    "date": _clamped(times.DateBinaryLoader, date.min, date.max),
    "time": _clamped(times.TimeBinaryLoader, time.min, time.max),
    "timetz": _clamped(times.TimetzBinaryLoader, time.min, time.max),
    "interval": _clamped(times.IntervalBinaryLoader, -_LONGEST, _LONGEST, signs=(8, 12)),  # days and months
}


def register(cursor: Any) -> None:
    """Let this cursor read values so."""
    for kind, loader in _LOADERS.items():
        cursor.adapters.register_loader(kind, loader)
