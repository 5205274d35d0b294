"""Values to JSON text and back, refusing what a database's JSON cannot hold.

Arguments and results are JSON only: no pickle, nothing imported by name.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from rowlock.errors import InvalidPayload

_BINARY = (bytes, bytearray, memoryview)
_encoder = msgspec.json.Encoder()
decode = msgspec.json.decode


def json_text(value: Any) -> str:
    """A value of rowlock's own, such as a list to be bound, as JSON text: nothing in it has to be refused."""
    return _encoder.encode(value).decode()


def encode(value: Any, what: str, limit: int) -> str:
    """The value as JSON text; `what` names it in errors, `limit` is its largest size in bytes."""
    try:
        if not (_is_fine(value) or _is_flat(value)):  # most are, and need no closer look: 1 us instead of 2.5
            value = msgspec.to_builtins(value, builtin_types=_BINARY, enc_hook=_to_builtins)
            _refuse_what_json_cannot_hold(value, what)
        raw = _encoder.encode(value)
    except RecursionError:
        raise InvalidPayload(f"{what} is circular or nested too deeply for JSON") from None
    except UnicodeEncodeError:
        raise InvalidPayload(f"{what} holds a lone surrogate, which is not valid text") from None
    except InvalidPayload:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidPayload(f"{what} cannot be stored as JSON: {error}") from None
    if len(raw) > limit:
        raise InvalidPayload(
            f"{what}: {len(raw):,} bytes as JSON, the limit is {limit:,}; store the data elsewhere and pass "
            "a reference to it, or raise ROWLOCK_MAX_PAYLOAD_BYTES"
        )
    return raw.decode()


def _refuse_what_json_cannot_hold(value: Any, path: str) -> None:
    # msgspec writes NaN as null, bytes as base64 and NUL as \u0000, all without a word.
    kind = type(value)
    if kind is dict:
        for key, member in value.items():
            if type(key) is not str:
                if str(key) in value:
                    raise InvalidPayload(
                        f"{path} has the keys {key!r} and '{key}', which are one key in JSON"
                    )
            elif "\x00" in key:
                raise InvalidPayload(f"{path} has a key with a NUL character, which databases refuse in JSON")
            if not _is_fine(member):
                _refuse_what_json_cannot_hold(member, f"{path}[{key!r}]")
    elif kind is list or kind is tuple:
        for index, member in enumerate(value):
            if not _is_fine(member):
                _refuse_what_json_cannot_hold(member, f"{path}[{index}]")
    elif not _is_fine(value):
        raise InvalidPayload(f"{path} {_why_not(value)}")


def _is_fine(value: Any) -> bool:
    """True for what JSON holds; False for what it does not, and for what has to be looked into."""
    kind = type(value)
    if kind is int:
        return bool(-(2**63) <= value < 2**63)
    if kind is str:
        return "\x00" not in value
    if kind is float:
        return math.isfinite(value)
    return value is None or kind is bool


def _is_flat(value: Any) -> bool:
    """True for an object whose members are all fine, as most arguments are."""
    if type(value) is not dict:
        return False
    for key, member in value.items():
        if type(key) is not str or "\x00" in key or not _is_fine(member):
            return False
    return True


def _why_not(value: Any) -> str:
    if isinstance(value, int):
        return f"is {value}, which does not fit into 64 bits; pass it as text"
    if isinstance(value, str):
        return "holds a NUL character, which databases refuse in JSON"
    if isinstance(value, float):
        return f"is {value}, which JSON cannot hold; use None or text instead"
    return f"is {type(value).__name__}, which JSON cannot hold; encode it as text (base64)"


def _to_builtins(value: Any) -> Any:
    # Pydantic models are common where FastAPI is; duck-typed, so that pydantic is never imported for it.
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"{type(value).__qualname__} is not a JSON type, dataclass, msgspec or pydantic model")


def to_type(kind: type, value: Any) -> Any:
    """Make what msgspec does not know from JSON values: pydantic models, else refuse."""
    validate = getattr(kind, "model_validate", None)
    if callable(validate):
        return validate(value)
    raise TypeError(f"arguments of type {kind.__qualname__} cannot be made from JSON")
