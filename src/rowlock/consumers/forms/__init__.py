"""The forms in which a user's table says what is due and done; each is one file and one line in `_FORMS`.

Only data: which pieces of SQL make up the form, which columns they name, and what is bound to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rowlock.consumers.forms.base import Form
from rowlock.consumers.forms.flag import Flag
from rowlock.consumers.forms.json_member import Failed, JsonMember
from rowlock.consumers.forms.status_column import Status
from rowlock.errors import ConfigurationError

__all__ = ["Failed", "Flag", "Form", "Status", "of"]

_FORMS: dict[str, type[Form]] = {"state": JsonMember, "status": Status, "flag": Flag}


def of(consumer: str, given: Mapping[str, Any]) -> Form:
    """The form that the one option which is not None stands for; `failed` belongs to `state`."""
    chosen = [option for option in _FORMS if given.get(option) is not None]
    if len(chosen) != 1:
        raise ConfigurationError(
            f"consumer {consumer!r}: give it either state=..., a JSON column, or status=Status(...), "
            f"or flag=Flag(...){', and only one of them' if chosen else ''}"
        )
    (option,) = chosen
    form, failed = given[option], given.get("failed")
    if option == "state":
        return JsonMember(form, consumer, failed)
    if failed is not None:
        raise ConfigurationError(f"consumer {consumer!r}: failed=... is for state=..., not for {option}=...")
    if not isinstance(form, _FORMS[option]):
        raise ConfigurationError(f"{option}={form!r}: must be {_FORMS[option].__name__}(...)")
    return form
