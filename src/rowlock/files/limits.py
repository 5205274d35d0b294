"""What users write as limits, `"20%"`, `"500MB"`, `"30d"`, or functions of these, as bytes and seconds.

A limit that cannot be read is refused with what it takes. What the limits lead to is in `janitor_run.py`.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from rowlock.errors import TRANSIENT, ConfigurationError, StoreError
from rowlock.files import disk

T = TypeVar("T")
_AMOUNT = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>%|[A-Za-z]*)\s*")
_BYTES = {"b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgtp", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_MOST_BYTES = 2**63 - 1
_NAMES = ("min_free", "target_free", "max_age", "max_size")
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
    number, unit = _amount(value)
    if unit == "%" and number is not None and 0 < number <= 100:
        return Free(share=number / 100)
    found = _bytes(number, unit)
    if found is None or unit == "%":
        raise ConfigurationError(f'{what}={value!r}: must be free space such as "20%" or "500MB"')
    return Free(size=found)


def size(what: str, value: Any) -> int:
    """A size in bytes: `"500MB"` or a number; KB is 1,000 bytes and KiB 1,024."""
    found = _bytes(*_amount(value))
    if found is None:
        raise ConfigurationError(f'{what}={value!r}: must be a size such as "500MB" or "50GB"')
    return found


def age(what: str, value: Any) -> float:
    """An age in seconds: `"30d"`, `"12h"`, a number of seconds or a timedelta."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    number, unit = _amount(value)
    seconds = (
        None if number is None else number * (_SECONDS.get(unit, 0.0) if isinstance(value, str) else 1.0)
    )
    if seconds is None or not 0 < seconds <= _OLDEST:
        raise ConfigurationError(f'{what}={value!r}: must be an age such as "30d", "12h" or "90s"')
    return seconds


def _amount(value: Any) -> tuple[float | None, str]:
    """The number and its unit in small letters; no number if it is none."""
    if isinstance(value, str):
        match = _AMOUNT.fullmatch(value)
        return (float(match["number"]), match["unit"].lower()) if match else (None, "")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None, ""
    return (float(value), "b") if value > 0 else (None, "")


def _bytes(number: float | None, unit: str) -> int | None:
    if number is None or unit not in _BYTES:
        return None
    found = round(number * _BYTES[unit])
    return found if 0 < found <= _MOST_BYTES else None


class Limit(msgspec.Struct, frozen=True):
    """A limit of a janitor: what was given for it, and how that is read."""

    what: str
    given: Any
    parse: Callable[[str, Any], Any]

    @property
    def is_function(self) -> bool:
        """Whether it has to be asked at each run."""
        return callable(self.given)

    @property
    def wants_tx(self) -> bool:
        """Whether its function takes a transaction."""
        return self.is_function and takes(self.what, self.given, 0, "tx")

    def read(self, tx: Any = None) -> Any:
        """What the limit is now; None: there is none."""
        value = self.given
        if self.is_function:
            value = self.given(tx) if self.wants_tx else self.given()
        return None if value is None else self.parse(self.what, value)


class Wanted(msgspec.Struct, frozen=True):
    """The limits of one run, in bytes and seconds."""

    min_free: int | None
    target_free: int
    max_age: float | None
    max_size: int | None
    disk: disk.Space


class Limits:
    """The limits of a janitor as they were declared; functions are asked at each run."""

    def __init__(self, title: str, min_free: Any, target_free: Any, max_age: Any, max_size: Any) -> None:
        self.min_free = limit("min_free", min_free, free)
        self.target_free = limit("target_free", target_free, free)
        self.max_age = limit("max_age", max_age, age)
        self.max_size = limit("max_size", max_size, size)
        self._each = (self.min_free, self.target_free, self.max_age, self.max_size)
        if self.target_free is not None and self.min_free is None:
            raise ConfigurationError(f"{title}: target_free is where min_free ends: give it both")
        if self.min_free is None and self.max_age is None and self.max_size is None:
            raise ConfigurationError(f"{title}: give it a limit: min_free, max_age or max_size")
        both = [one for one in (self.min_free, self.target_free) if one is not None and not one.is_function]
        if len(both) == 2:
            least, most = (one.read() for one in both)
            if (least.share is None) == (most.share is None):  # else it depends on the disk
                _check_order(least, most, 1_000_000)

    @property
    def declared(self) -> tuple[Any, ...]:
        """What was given for them; functions are taken for the same."""
        return tuple(one and ("a function" if one.is_function else one.given) for one in self._each)

    @property
    def only_space(self) -> bool:
        """Whether free space is the only reason to delete."""
        return self.max_age is None and self.max_size is None

    def least_free(self, folder: str) -> int | None:
        """What has to be free in bytes, if that can be told without a database."""
        try:
            least = None if self.min_free is None or self.min_free.wants_tx else self.min_free.read()
        except Exception:  # its own run says so
            return None
        return None if least is None else least.of(disk.space(folder).total)

    def read(self, folder: str, transaction: Callable[[], AbstractContextManager[Any]]) -> Wanted:
        """What they are now; functions that ask for one get the connection of a transaction."""
        values: list[Any] = []
        wants_tx = any(one is not None and one.wants_tx for one in self._each)
        try:
            with transaction() if wants_tx else nullcontext() as tx:
                for one in self._each:
                    values.append(None if one is None else one.read(tx and tx.connection))  # noqa: PERF401 - counted
        except (ConfigurationError, *TRANSIENT):
            raise
        except Exception as error:
            if len(values) == len(_NAMES):  # all were asked: it is of the transaction
                raise
            said = (
                (error.__cause__ or error) if isinstance(error, StoreError) else error
            )  # the driver's words
            raise ConfigurationError(f"{_NAMES[len(values)]}() raised {said!r}") from error
        least, most, max_age, max_size = values
        space = disk.space(folder)
        if least is None:
            return Wanted(None, 0, max_age, max_size, space)
        _check_order(least, most or least, space.total)
        return Wanted(least.of(space.total), (most or least).of(space.total), max_age, max_size, space)


def limit(what: str, given: Any, parse: Callable[[str, Any], Any]) -> Limit | None:
    """The limit; one that is no function is read here, so that a mistake is told where it was written."""
    if given is None:
        return None
    if callable(given):
        takes(what, given, 0, "tx")
    else:
        parse(what, given)
    return Limit(what, given, parse)


def _check_order(least: Free, most: Free, total: int) -> None:
    if most.of(total) < least.of(total):
        raise ConfigurationError(f"target_free={most} is below min_free={least}: nothing could ever end")


def takes(what: str, function: Any, fewest: int, last: str) -> bool:
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
    wanted = ", ".join(["..."] * fewest + [f"[{last}]"]) if fewest else f"[{last}]"
    raise ConfigurationError(f"{what}={function!r}: must be a function of ({wanted}), not {signature}")
