"""What users write as limits, `"20%"`, `"500MB"`, `"30d"`, or functions of these, as bytes and seconds.

A limit that cannot be read is refused with what it takes. What the limits lead to is in `janitor_run.py`.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import msgspec

from rowlock.errors import TRANSIENT, ConfigurationError, StoreError
from rowlock.files import disk

_AMOUNT = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>%|[A-Za-z]*)\s*")
_BYTES = {"b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgtp", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_LEAST_BYTES, _MOST_BYTES = 0.5, 2**63 - 1
_OLDEST = 1_000 * 365 * 86_400.0


class Free(msgspec.Struct, frozen=True):
    """How much of a disk has to be free: a share of it, or bytes."""

    share: float | None = None
    size: int = 0

    def __str__(self) -> str:
        return f"{self.size} bytes" if self.share is None else f"{self.share * 100:g}%"

    def of(self, total: int) -> int:
        """The same in bytes, on a disk of this size."""
        return self.size if self.share is None else math.ceil(total * self.share)


def free(what: str, value: Any) -> Free:
    """Free space: `"20%"`, `"500MB"` or a number of bytes."""
    wanted = 'free space such as "20%" or "500MB"'
    if isinstance(value, str) and value.rstrip().endswith("%"):
        return Free(share=_amount(what, value, {"%": 1}, 0, 100, wanted) / 100)
    return Free(size=round(_amount(what, value, _BYTES, _LEAST_BYTES, _MOST_BYTES, wanted)))


def size(what: str, value: Any) -> int:
    """A size in bytes: `"500MB"` or a number; KB is 1,000 bytes and KiB 1,024."""
    wanted = 'a size such as "500MB" or "50GB"'
    return round(_amount(what, value, _BYTES, _LEAST_BYTES, _MOST_BYTES, wanted))


def age(what: str, value: Any) -> float:
    """An age in seconds: `"30d"`, `"12h"`, a number of seconds or a timedelta."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return _amount(what, value, _SECONDS, 0, _OLDEST, 'an age such as "30d", "12h" or "90s"')


def _amount(
    what: str, value: Any, units: Mapping[str, float], above: float, most: float, wanted: str
) -> float:
    """The value in the smallest of these units, which is that of a plain number."""
    found = 0.0
    if isinstance(value, str) and (match := _AMOUNT.fullmatch(value)):
        found = float(match["number"]) * units.get(match["unit"].lower(), 0)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        found = float(value)
    if not above < found <= most:
        raise ConfigurationError(f"{what}={value!r}: must be {wanted}")
    return found


_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "min_free": free,
    "target_free": free,
    "max_age": age,
    "max_size": size,
}


class Wanted(msgspec.Struct, frozen=True):
    """The limits of one run, in bytes and seconds."""

    min_free: int | None
    target_free: int
    max_age: float | None
    max_size: int | None
    disk: disk.Space


class Limits:
    """The limits of a janitor as they were declared; functions are asked at each run."""

    def __init__(self, title: str, options: Mapping[str, Any]) -> None:
        given = {name: options.get(name) for name in _PARSERS}
        self._given = {name: value for name, value in given.items() if value is not None}
        functions = {name for name, value in self._given.items() if callable(value)}
        self._want_tx = {name for name in functions if takes(name, given[name], 0)}
        # The others are read here, so that a mistake is told where it was written.
        fixed = {name: self._read(name) for name in self._given if name not in functions}
        if "target_free" in self._given and "min_free" not in self._given:
            raise ConfigurationError(f"{title}: target_free is where min_free ends: give it both")
        if not self._given:
            raise ConfigurationError(f"{title}: give it a limit: min_free, max_age or max_size")
        least, most = fixed.get("min_free"), fixed.get("target_free")
        if least and most and (least.share is None) == (most.share is None):  # else it depends on the disk
            _check_order(least, most, 1_000_000)

    @property
    def declared(self) -> dict[str, Any]:
        """What was given for them; functions are taken for the same."""
        return {name: "a function" if callable(value) else value for name, value in self._given.items()}

    @property
    def only_space(self) -> bool:
        """Whether free space is the only reason to delete."""
        return not {"max_age", "max_size"} & set(self._given)

    def least_free(self, folder: str) -> int | None:
        """What has to be free in bytes, if that can be told without a database."""
        try:
            least = None if "min_free" in self._want_tx else self._read("min_free")
            return None if least is None else least.of(disk.space(folder).total)
        except Exception:  # its own run says so
            return None

    def read(self, folder: str, transaction: Callable[[], AbstractContextManager[Any]]) -> Wanted:
        """What they are now; functions that ask for one get the connection of a transaction."""
        values: dict[str, Any] = {}
        asked = ""
        try:
            with transaction() if self._want_tx else nullcontext() as tx:
                for asked in _PARSERS:
                    values[asked] = self._read(asked, tx and tx.connection)
        except (ConfigurationError, *TRANSIENT):
            raise
        except Exception as error:
            if len(values) == len(_PARSERS):  # all were asked: it is of the transaction
                raise
            # In the driver's words.
            said = (error.__cause__ or error) if isinstance(error, StoreError) else error
            raise ConfigurationError(f"{asked}() raised {said!r}") from error
        least, max_age, max_size = values["min_free"], values["max_age"], values["max_size"]
        space = disk.space(folder)
        if least is None:
            return Wanted(None, 0, max_age, max_size, space)
        most = values["target_free"] or least
        _check_order(least, most, space.total)
        return Wanted(least.of(space.total), most.of(space.total), max_age, max_size, space)

    def _read(self, name: str, tx: Any = None) -> Any:
        """What the limit is now; None: there is none."""
        value = self._given.get(name)
        if callable(value):
            value = value(tx) if name in self._want_tx else value()
        return None if value is None else _PARSERS[name](name, value)


def _check_order(least: Free, most: Free, total: int) -> None:
    if most.of(total) < least.of(total):
        raise ConfigurationError(f"target_free={most} is below min_free={least}: nothing could ever end")


def takes(what: str, function: Any, fewest: int) -> bool:
    """Whether the function takes one argument more than `fewest`: a transaction. Others are refused."""
    if not callable(function):
        raise ConfigurationError(f"{what}={function!r}: must be a function")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions do not tell
        return False
    for count in (fewest + 1, fewest):
        try:
            signature.bind(*[None] * count)
        except TypeError:
            continue
        return count > fewest
    wanted = ", ".join(["..."] * fewest + ["[tx]"])
    raise ConfigurationError(f"{what}={function!r}: must be a function of ({wanted}), not {signature}")
