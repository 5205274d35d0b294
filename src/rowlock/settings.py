"""Settings from the environment, with their defaults and what they take.

Arguments win over the environment; `ROWLOCK_X` wins over `X`. Imported when first needed, because
pydantic-settings takes a quarter of a second to import.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import AliasChoices, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from rowlock.errors import ConfigurationError

DEFAULT_URL = "sqlite:///rowlock.db"
_PROFILES: dict[str, dict[str, float]] = {
    "dev": {"poll_interval": 5.0, "lease": 60.0},
    "prod": {"poll_interval": 30.0, "lease": 600.0},
}
_FAILED_AFTER_IN_RELAY = {"dev": 120.0, "prod": 3600.0}


def _env(name: str) -> AliasChoices:
    """`ROWLOCK_X` before `X`."""
    return AliasChoices(f"ROWLOCK_{name}", name)


class Settings(BaseSettings):
    """All that can be set from outside; see docs/settings.md for the table."""

    model_config = SettingsConfigDict(
        env_prefix="ROWLOCK_",
        env_ignore_empty=True,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
    )

    database_url: str = Field(default=DEFAULT_URL, repr=False)
    redis_url: str = Field(default="redis://localhost:6379", validation_alias=_env("REDIS_URL"), repr=False)
    profile: Literal["dev", "prod"] | None = None
    poll_interval: float = Field(default=1.0, gt=0, le=3600, validation_alias=_env("POLLER_INTERVAL_SECONDS"))
    lease: float = Field(default=60.0, gt=0, le=86400, validation_alias=_env("STALE_JOB_TIMEOUT_SECONDS"))
    failed_after: float = Field(default=0.0, ge=0, validation_alias=_env("FAILED_JOB_TIMEOUT_SECONDS"))
    concurrency: int = Field(default=4, ge=1, le=100_000)
    max_payload_bytes: int = Field(default=1024 * 1024, ge=1024)
    busy_timeout: float = Field(default=5.0, gt=0, le=600)
    keep_completed_days: float = Field(default=7.0, ge=0)
    keep_failed_days: float = Field(default=30.0, ge=0)

    @property
    def failed_after_in_relay(self) -> float:
        """The same in a relay, where the profile is the default: elsewhere jobs that only wait would fail."""
        if "failed_after" in self.model_fields_set:
            return self.failed_after
        return _FAILED_AFTER_IN_RELAY.get(self.profile or "", 0.0)


def without_password(url: str) -> str:
    """A URL as it may be shown. A password ends at the last @: it may hold one that was not escaped."""
    bare = re.sub(r"(?s)^([\w+.-]+:(?://)?[^/:@]*):(?:[^?]*|.*)@", r"\1:***@", url)
    return re.sub(r"(?i)(password=)[^&]*", r"\1***", bare)


def load(**arguments: Any) -> Settings:
    """Read the settings; arguments that are None count as not given. A bad value is refused by its name."""
    try:
        settings = Settings(**{name: value for name, value in arguments.items() if value is not None})
    except ValidationError as error:
        raise ConfigurationError("; ".join(_sentence(one, arguments) for one in error.errors())) from None
    profile = _PROFILES.get(settings.profile or "", {})
    unset = {name: value for name, value in profile.items() if name not in settings.model_fields_set}
    return settings.model_copy(update=unset)


def sources(settings: Settings, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Where each setting comes from: an argument, a variable, the profile or the default."""
    found: dict[str, str] = {}
    for name in Settings.model_fields:
        by_profile = settings.profile and name in (*_PROFILES[settings.profile], "failed_after")
        if arguments.get(name) is not None:
            found[name] = "argument"
        elif set_as := [one for one in _variables(name) if os.environ.get(one)]:
            found[name] = set_as[0]
        else:
            found[name] = f"profile {settings.profile}" if by_profile else "default"
    return found


def _variables(name: str) -> list[str]:
    """The environment variables of a setting; the first that is set counts."""
    alias = Settings.model_fields[name].validation_alias
    others = alias.choices if isinstance(alias, AliasChoices) else ()
    return [*map(str, others), f"ROWLOCK_{name.upper()}"]


def _sentence(error: Any, arguments: dict[str, Any]) -> str:
    """What is wrong with a value; pydantic knows it by the name of the setting or of a variable."""
    known_as = str(error["loc"][0])
    fields = Settings.model_fields
    name = next((one for one in fields if known_as.upper() in (one.upper(), *_variables(one))), known_as)
    if arguments.get(name) is None:
        variables = _variables(name)
        name = next((one for one in variables if one in os.environ), variables[0])
    return f"{name}={error['input']!r}: {error['msg'][0].lower()}{error['msg'][1:]}"
