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


def encode(value: Any, what: str, limit: int) -> str:
    """The value as JSON text; `what` names it in errors, `limit` is its largest size in bytes."""
    try:
        plain = msgspec.to_builtins(value, builtin_types=_BINARY, enc_hook=_to_builtins)
        _refuse_what_json_cannot_hold(plain, what)
        raw = _encoder.encode(plain)
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
    if kind is int:
        if not -(2**63) <= value < 2**63:
            raise InvalidPayload(f"{path} is {value}, which does not fit into 64 bits; pass it as text")
    elif kind is str:
        if "\x00" in value:
            raise InvalidPayload(f"{path} holds a NUL character, which databases refuse in JSON")
    elif kind is dict:
        if len({str(key) for key in value}) < len(value):
            raise InvalidPayload(f"{path} has keys that are the same as JSON text, such as 1 and '1'")
        for key, member in value.items():
            if isinstance(key, str) and "\x00" in key:
                raise InvalidPayload(f"{path} has a key with a NUL character, which databases refuse in JSON")
            _refuse_what_json_cannot_hold(member, f"{path}[{key!r}]")
    elif kind is list or kind is tuple:
        for index, member in enumerate(value):
            _refuse_what_json_cannot_hold(member, f"{path}[{index}]")
    elif kind is float:
        if not math.isfinite(value):
            raise InvalidPayload(f"{path} is {value}, which JSON cannot hold; use None or text instead")
    elif isinstance(value, _BINARY):
        raise InvalidPayload(f"{path} is {kind.__name__}, which JSON cannot hold; encode it as text (base64)")


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
