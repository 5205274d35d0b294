"""Django, set up once per process, whichever test needs it first."""

from __future__ import annotations

from django import setup
from django.conf import settings


def set_up_django() -> None:
    """Configure Django without a project of its own."""
    if not settings.configured:
        settings.configure(USE_TZ=True)
        setup()
