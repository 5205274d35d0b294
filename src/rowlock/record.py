"""The base of the records that users are given: plain frozen data that web frameworks return as JSON.

Knows no particular record. Pydantic is imported only when it asks for a schema itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema, SchemaSerializer


class Record(msgspec.Struct, frozen=True):
    """A record that can be returned from a view: by itself in FastAPI, as `to_dict()` elsewhere."""

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON types: times are ISO 8601 text with their zone, enums their words."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """What `vars()` returns: FastAPI asks for it when a view has no return annotation."""
        return self.to_dict()

    @property
    def __pydantic_serializer__(self) -> SchemaSerializer:
        """Pydantic asks for it where the annotation says nothing about the value, as `dict[str, object]`."""
        return _serializer(type(self))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The fields by name and type, for pydantic: `-> Job` in FastAPI is checked and shown in its docs."""
        from pydantic_core import core_schema

        fields = core_schema.typed_dict_schema(
            {
                field.name: core_schema.typed_dict_field(handler.generate_schema(field.type), required=True)
                for field in msgspec.structs.fields(cls)
            }
        )

        def validate(value: Any, validate_fields: Callable[[Any], dict[str, Any]]) -> Record:
            return value if isinstance(value, cls) else cls(**validate_fields(value))

        def serialize(record: Record, serialize_fields: Callable[[Any], Any]) -> Any:
            return serialize_fields(msgspec.structs.asdict(record))

        return core_schema.no_info_wrap_validator_function(
            validate,
            fields,
            serialization=core_schema.wrap_serializer_function_ser_schema(serialize, schema=fields),
            ref=f"{cls.__module__}.{cls.__qualname__}:{id(cls)}",
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The same as JSON schema, under the record's name."""
        shown = handler(schema)
        handler.resolve_ref_schema(shown).update(title=cls.__name__, description=cls.__doc__ or "")
        return shown


@cache
def _serializer(kind: type[Record]) -> SchemaSerializer:
    from pydantic import TypeAdapter

    return TypeAdapter(kind).serializer
