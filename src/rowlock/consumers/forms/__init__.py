"""The forms in which a user's table says what is due and done; each is one file and one line in `_FORMS`.

Only data: which pieces of SQL make up the form, which columns they name, and what is bound to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rowlock.consumers.forms.base import Form
from rowlock.consumers.forms.flag import Flag, FlagForm
from rowlock.consumers.forms.json_member import Failed, StateForm
from rowlock.consumers.forms.status_column import Status, StatusForm
from rowlock.errors import ConfigurationError

__all__ = ["Failed", "Flag", "Form", "Status", "of"]

_FORMS: dict[str, Callable[[Any, str], Form]] = {"state": StateForm, "status": StatusForm, "flag": FlagForm}


def of(consumer: str, given: Mapping[str, Any]) -> Form:
    """The form that the one option which is not None stands for; `failed` belongs to `state`."""
    chosen = [option for option in _FORMS if given.get(option) is not None]
    if len(chosen) != 1:
        raise ConfigurationError(
            f"consumer {consumer!r}: give it either state=..., a JSON column, or status=Status(...), "
            f"or flag=Flag(...){', and only one of them' if chosen else ''}"
        )
    (option,) = chosen
    failed = given.get("failed")
    if failed is None:
        return _FORMS[option](given[option], consumer)
    if option != "state":
        raise ConfigurationError(f"consumer {consumer!r}: failed=... is for state=..., not for {option}=...")
    return StateForm(given[option], consumer, failed)
