"""Settings from the environment, with their defaults and what they take.

Arguments win over the environment; `ROWLOCK_X` wins over `X`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from rowlock.errors import ConfigurationError

DEFAULT_URL = "sqlite:///rowlock.db"
_PROFILES: dict[str, dict[str, float]] = {
    "dev": {"poll_interval": 5.0, "lease": 60.0},
    "prod": {"poll_interval": 30.0, "lease": 600.0},
}
_FAILED_AFTER_IN_RELAY = {"dev": 120.0, "prod": 3600.0}
# Names that were common before rowlock, which therefore also count without its prefix.
_COMMON_NAMES = {
    "redis_url": "REDIS_URL",
    "poll_interval": "POLLER_INTERVAL_SECONDS",
    "lease": "STALE_JOB_TIMEOUT_SECONDS",
    "failed_after": "FAILED_JOB_TIMEOUT_SECONDS",
}


class _Range(NamedTuple):
    """Which numbers a setting takes: more than `above`, or from `least`, and up to `most`."""

    kind: type[int] | type[float] = float
    above: float = -math.inf
    least: float = -math.inf
    most: float = math.inf


_NUMBERS = {
    "poll_interval": _Range(above=0, most=3600),
    "lease": _Range(above=0, most=86400),
    "failed_after": _Range(least=0),
    "concurrency": _Range(int, least=1, most=100_000),
    "max_payload_bytes": _Range(int, least=1024),
    "busy_timeout": _Range(above=0, most=600),
    "keep_completed_days": _Range(least=0),
    "keep_failed_days": _Range(least=0),
}


@dataclass(frozen=True)
class Settings:
    """All that can be set from outside; see docs/settings.md for the table."""

    database_url: str = field(default=DEFAULT_URL, repr=False)
    redis_url: str = field(default="redis://localhost:6379", repr=False)
    profile: Literal["dev", "prod"] | None = None
    poll_interval: float = 1.0
    lease: float = 60.0
    failed_after: float = 0.0
    concurrency: int = 4
    max_payload_bytes: int = 1024 * 1024
    busy_timeout: float = 5.0
    keep_completed_days: float = 7.0
    keep_failed_days: float = 30.0
    # Names of the settings that an argument or a variable has set.
    chosen: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def failed_after_in_relay(self) -> float:
        """The same in a relay, where the profile is the default: elsewhere jobs that only wait would fail."""
        if "failed_after" in self.chosen:
            return self.failed_after
        return _FAILED_AFTER_IN_RELAY.get(self.profile or "", 0.0)


_NAMES = [one.name for one in fields(Settings) if one.name != "chosen"]


def without_password(url: str) -> str:
    """A URL as it may be shown. A password ends at the last @: it may hold one that was not escaped."""
    bare = re.sub(r"(?s)^([\w+.-]+:(?://)?[^/:@]*):(?:[^?]*|.*)@", r"\1:***@", url)
    return re.sub(r"(?i)(password=)[^&]*", r"\1***", bare)


def load(**arguments: Any) -> Settings:
    """Read the settings; arguments that are None count as not given. A bad value is refused by its name."""
    environment = _environment()
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for name in _NAMES:
        given_as, value = name, arguments.get(name)
        if value is None and (variable := _variable(name, environment)):
            given_as, value = variable, environment[variable]
        if value is None:
            continue
        try:
            values[name] = _checked(name, value)
        except ValueError as error:
            wrong.append(f"{given_as}={value!r}: {error}")
    if wrong:
        raise ConfigurationError("; ".join(wrong))
    defaults = _PROFILES.get(values.get("profile", ""), {})
    return Settings(**{**defaults, **values}, chosen=frozenset(values))


def sources(settings: Settings, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Where each setting comes from: an argument, a variable, the profile or the default."""
    environment = _environment()
    found: dict[str, str] = {}
    for name in _NAMES:
        by_profile = settings.profile and name in (*_PROFILES[settings.profile], "failed_after")
        if arguments.get(name) is not None:
            found[name] = "argument"
        elif variable := _variable(name, environment):
            found[name] = variable
        else:
            found[name] = f"profile {settings.profile}" if by_profile else "default"
    return found


def _environment() -> dict[str, str]:
    """The variables in capitals; one that is empty counts as not set."""
    return {name.upper(): value for name, value in os.environ.items() if value}


def _variable(name: str, environment: Mapping[str, str]) -> str | None:
    """The variable that sets this, if any does."""
    common = [f"ROWLOCK_{_COMMON_NAMES[name]}", _COMMON_NAMES[name]] if name in _COMMON_NAMES else []
    return next((one for one in (*common, f"ROWLOCK_{name.upper()}") if one in environment), None)


def _checked(name: str, value: Any) -> Any:
    """The value as its setting has it; ValueError says what is wrong with it."""
    if name in _NUMBERS:
        return _number(value, _NUMBERS[name])
    if name == "profile":
        if value not in _PROFILES:
            raise ValueError("input should be 'dev' or 'prod'")
    elif not isinstance(value, str):
        raise ValueError("input should be a valid string")
    return value


def _number(value: Any, range_: _Range) -> float:
    kind = "integer" if range_.kind is int else "number"
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"input should be a valid {kind}") from None
    if kind == "integer" and not number.is_integer():
        raise ValueError("input should be a valid integer")
    if not math.isfinite(number):
        raise ValueError("input should be a finite number")
    if number <= range_.above:
        raise ValueError(f"input should be greater than {range_.above}")
    if number < range_.least:
        raise ValueError(f"input should be greater than or equal to {range_.least}")
    if number > range_.most:
        raise ValueError(f"input should be less than or equal to {range_.most}")
    return range_.kind(number)
