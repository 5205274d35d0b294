"""The settings in force, each with where it comes from; whether they are wise is for others to say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from rowlock.insights.finding import Finding

if TYPE_CHECKING:
    from rowlock.settings import Settings


class Configured(Protocol):
    """An app, as far as it is asked here."""

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        ...

    @property
    def given(self) -> Mapping[str, Any]:
        """The settings that were given to it as arguments."""
        ...


def configured(app: Configured) -> list[Finding]:
    """What a doctor says about the settings: those that decide how work is found, kept and given up."""
    from rowlock.settings import sources, without_password

    settings = app.settings
    by = sources(settings, app.given)
    failed, relayed = settings.failed_after, settings.failed_after_in_relay
    shown = {
        "database_url": without_password(settings.database_url),
        "redis_url": without_password(settings.redis_url),
        "poll_interval": f"{settings.poll_interval:g} s",
        "lease": f"{settings.lease:g} s",
        "failed_after": (f"{failed:g} s" if failed else "never")
        + (f", in a relay {relayed:g} s" if relayed != failed else ""),
        "concurrency": str(settings.concurrency),
    }
    said = "; ".join(f"{name} {value} ({by[name]})" for name, value in shown.items())
    return [Finding("settings", "ok", said)]
