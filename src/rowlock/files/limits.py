"""What users write as limits, `"20%"`, `"500MB"`, `"30d"`, or functions of these, as numbers.

Knows no disk and no table; a limit that cannot be read is refused with what it takes.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from rowlock.errors import ConfigurationError

T = TypeVar("T")
_AMOUNT = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>%|[A-Za-z]*)\s*")
_BYTES = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgtp", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_MOST_BYTES = 2**63 - 1
_OLDEST = 1_000 * 365 * 86_400.0


class Free(msgspec.Struct, frozen=True):
    """How much of a disk has to be free: a share of it, or bytes."""

    share: float | None = None
    size: int = 0

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
    return (float(value), "") if value > 0 else (None, "")


def _bytes(number: float | None, unit: str) -> int | None:
    if number is None or unit not in _BYTES:
        return None
    found = round(number * _BYTES[unit])
    return found if 0 < found <= _MOST_BYTES else None


class Limit(msgspec.Struct, frozen=True):
    """A limit of a service: what was given for it, and how that is read."""

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


def limit(what: str, given: Any, parse: Callable[[str, Any], Any]) -> Limit | None:
    """The limit; one that is no function is read here, so that a mistake is told where it was written."""
    if given is None:
        return None
    made = Limit(what, given, parse)
    if made.is_function:
        takes(what, given, 0, "tx")
    else:
        parse(what, given)
    return made


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
