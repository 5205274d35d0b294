"""Settings from the environment, with their defaults and what they take.

Arguments win over the environment; `ROWLOCK_X` wins over `X`. Imported when first needed, because
pydantic-settings takes a quarter of a second to import.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import AliasChoices, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from rowlock.errors import ConfigurationError

DEFAULT_URL = "sqlite:///rowlock.db"
_PROFILES: dict[str, dict[str, float]] = {
    "dev": {"poll_interval": 5, "lease": 60},
    "prod": {"poll_interval": 30, "lease": 600},
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
    )

    database_url: str = Field(default=DEFAULT_URL, repr=False)
    redis_url: str = Field(default="redis://localhost:6379", validation_alias=_env("REDIS_URL"), repr=False)
    profile: Literal["dev", "prod"] | None = None
    poll_interval: float = Field(
        default=1.0, gt=0, le=3600, allow_inf_nan=False, validation_alias=_env("POLLER_INTERVAL_SECONDS")
    )
    lease: float = Field(
        default=60.0, gt=0, le=86400, allow_inf_nan=False, validation_alias=_env("STALE_JOB_TIMEOUT_SECONDS")
    )
    failed_after: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, validation_alias=_env("FAILED_JOB_TIMEOUT_SECONDS")
    )
    concurrency: int = Field(default=4, ge=1, le=100_000)
    max_payload_bytes: int = Field(default=1024 * 1024, ge=1024)
    busy_timeout: float = Field(default=5.0, gt=0, le=600, allow_inf_nan=False)
    keep_completed_days: float = Field(default=7.0, ge=0, allow_inf_nan=False)
    keep_failed_days: float = Field(default=30.0, ge=0, allow_inf_nan=False)

    @property
    def failed_after_in_relay(self) -> float:
        """The same in a relay, where the profile is the default: elsewhere jobs that only wait would fail."""
        if "failed_after" in self.model_fields_set:
            return self.failed_after
        return _FAILED_AFTER_IN_RELAY.get(self.profile or "", 0.0)

    @model_validator(mode="before")
    @classmethod
    def _profile_is_a_set_of_defaults(cls, values: Any) -> Any:
        chosen = next((values[key] for key in ("profile", "ROWLOCK_PROFILE") if key in values), None)
        given = {str(key).lower().removeprefix("rowlock_") for key in values}
        for name, value in _PROFILES.get(str(chosen), {}).items():
            if not given & {name, _ENVIRONMENT_NAMES[name].lower()}:
                values[name] = value
        return values


# Of the settings whose variables work without the prefix, too.
_ENVIRONMENT_NAMES = {
    "poll_interval": "POLLER_INTERVAL_SECONDS",
    "lease": "STALE_JOB_TIMEOUT_SECONDS",
    "failed_after": "FAILED_JOB_TIMEOUT_SECONDS",
    "redis_url": "REDIS_URL",
}


def without_password(url: str) -> str:
    """A URL as it may be shown. A password ends at the last @: it may hold one that was not escaped."""
    bare = re.sub(r"(?s)^([\w+.-]+:(?://)?[^/:@]*):(?:[^?]*|.*)@", r"\1:***@", url)
    return re.sub(r"(?i)(password=)[^&]*", r"\1***", bare)


def load(**arguments: Any) -> Settings:
    """Read the settings; arguments that are None count as not given. A bad value is refused by its name."""
    try:
        return Settings(**{name: value for name, value in arguments.items() if value is not None})
    except ValidationError as error:
        raise ConfigurationError("; ".join(_sentence(one, arguments) for one in error.errors())) from None


def sources(settings: Settings, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Where each setting comes from: an argument, a variable, the profile or the default."""
    found: dict[str, str] = {}
    for name in Settings.model_fields:
        short = _ENVIRONMENT_NAMES.get(name, name.upper())
        variables = [f"ROWLOCK_{short}", short] if name in _ENVIRONMENT_NAMES else [f"ROWLOCK_{short}"]
        set_as = next((one for one in variables if os.environ.get(one)), None)
        by_profile = settings.profile and name in (*_PROFILES[settings.profile], "failed_after")
        if arguments.get(name) is not None:
            found[name] = "argument"
        elif set_as is not None:
            found[name] = set_as
        else:
            found[name] = f"profile {settings.profile}" if by_profile else "default"
    return found


def _sentence(error: Any, arguments: dict[str, Any]) -> str:
    location = str(error["loc"][0]).lower() if error["loc"] else "settings"
    short = location.removeprefix("rowlock_")
    field = next((name for name, env in _ENVIRONMENT_NAMES.items() if env.lower() == short), short)
    spellings = [f"ROWLOCK_{short}".upper(), short.upper()]
    set_as = next((name for name in spellings if name in os.environ), spellings[0])
    name = field if arguments.get(field) is not None else set_as
    return f"{name}={error['input']!r}: {error['msg'][0].lower()}{error['msg'][1:]}"
