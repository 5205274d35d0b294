"""The arguments of a task: how a call becomes JSON and back, bound to a signature, checked and converted.

Knows functions and JSON; nothing of stores, queues or retries.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from inspect import Parameter
from itertools import takewhile
from typing import Any, TypedDict, get_type_hints

import msgspec

from rowlock.codec import to_type
from rowlock.errors import ConfigurationError
from rowlock.resident import Resident

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class Binding:
    """The signature of a task's function, without the context and residents that rowlock passes itself."""

    def __init__(self, function: Callable[..., Any], task: str) -> None:
        is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if not inspect.isfunction(function) or is_generator:
            kind = "generator" if is_generator else type(function).__name__
            raise ConfigurationError(
                f"task {task!r} must be a plain or async function, not {kind} {function!r}"
            )
        self._function = function
        self._task = task
        parameters = list(_signature(function).parameters.values())
        self.takes_context = bool(parameters) and _is_context(parameters[0])
        if self.takes_context:
            parameters = parameters[1:]
        self.residents = {one.name: one.default for one in parameters if isinstance(one.default, Resident)}
        if self.residents:
            self._check_residents(parameters)
        positional = [one.name for one in parameters if one.kind in _POSITIONAL]
        # What the call gets by position: nothing after a resident.
        self._by_place = list(takewhile(lambda name: name not in self.residents, positional))
        parameters = [one for one in parameters if one.name not in self.residents]
        self._parameters = {one.name: one for one in parameters}
        self._signature = inspect.Signature(parameters)
        self._rest = next((one.name for one in parameters if one.kind is Parameter.VAR_POSITIONAL), None)
        self._extra = next((one.name for one in parameters if one.kind is Parameter.VAR_KEYWORD), None)
        self._names = [one.name for one in parameters if one.name != self._extra]
        self._plain = all(one.kind is Parameter.POSITIONAL_OR_KEYWORD for one in parameters)
        self._required = {
            one.name
            for one in parameters
            if one.default is Parameter.empty and one.name not in (self._rest, self._extra)
        }

    def _check_residents(self, parameters: list[Parameter]) -> None:
        for one in parameters:
            if one.name in self.residents and one.kind is Parameter.POSITIONAL_ONLY:
                raise ConfigurationError(
                    f"task {self._task!r}: the resident {one.name!r} must not be positional-only"
                )
            if one.kind is Parameter.VAR_POSITIONAL:
                raise ConfigurationError(f"task {self._task!r}: residents and *{one.name} do not go together")

    # -- when enqueued ---------------------------------------------------------------------------

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The call's arguments by name; raises `TypeError` as the call itself would."""
        if self._plain and len(args) <= len(self._names):  # as most calls are: 1.5 us instead of 4
            bound = dict(zip(self._names, args), **kwargs)  # noqa: B905 - fewer args than names is usual
            is_each_once = len(bound) == len(args) + len(kwargs)
            if is_each_once and bound.keys() <= self._parameters.keys() and self._required <= bound.keys():
                return bound
        try:
            arguments = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self._task}: {error}") from None
        named = dict(arguments)
        extra = named.pop(self._extra, {}) if self._extra else {}
        clash = extra.keys() & self._parameters.keys()
        if clash:
            raise TypeError(f"{self._task}: the extra argument {min(clash)!r} has the name of a parameter")
        return named | extra

    def bind_named(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The same for arguments that come by name; raises `TypeError` naming the parameter."""
        if self._plain and type(args) is dict and args.keys() == self._parameters.keys():
            return args  # as most calls are: 0.2 us instead of 1.2
        if not isinstance(args, Mapping):
            raise TypeError(f"{self._task}: arguments must be a mapping of names to values, not {args!r}")
        missing = self._required - args.keys()
        if missing:
            raise TypeError(
                f"{self._task}: missing a required argument: {', '.join(map(repr, sorted(missing)))}"
            )
        unknown = args.keys() - self._parameters.keys()
        if unknown and not self._extra:
            raise TypeError(
                f"{self._task}: got an unexpected argument {min(map(str, unknown))!r}; "
                f"it takes: {', '.join(self._names) or 'none'}"
            )
        return dict(args)

    def check(self, args: str) -> None:
        """Raise `TypeError` if the JSON arguments do not fit the annotated types."""
        self._decoded(args)

    # -- when run --------------------------------------------------------------------------------

    def arguments(self, args: str) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments, converted to the annotated types; raises `TypeError`."""
        self.bind_named(msgspec.json.decode(args))  # refuses what is missing or unknown
        given = self._decoded(args)
        positional: list[Any] = []
        for name in self._by_place:
            # Up to the first one left out, so that *rest and positional-only parameters find their place.
            if name not in given:
                break
            positional.append(given.pop(name))
        if self._rest:
            positional += given.pop(self._rest, [])
        return positional, given

    def _decoded(self, args: str) -> dict[str, Any]:
        """The arguments by name, as their annotated types."""
        try:
            decoded: dict[str, Any] = self._decoder.decode(args)
            if self._extra:
                kind = self._types[self._extra]
                for name, value in msgspec.json.decode(args).items():
                    if name not in self._names:
                        decoded[name] = msgspec.convert(value, kind, dec_hook=to_type)
        except msgspec.ValidationError as error:
            raise TypeError(f"{self._task}: {_named(str(error))}") from None
        return decoded

    @cached_property
    def _types(self) -> dict[str, Any]:
        # On first use, not when decorated: annotations may name what is defined further down.
        return {name: self._type_of(name) for name in self._parameters}

    def _type_of(self, name: str) -> Any:
        annotation = self._parameters[name].annotation
        if annotation is Parameter.empty:
            return Any
        holder = type("Holder", (), {"__annotations__": {name: annotation}})
        try:
            names = inspect.unwrap(self._function).__globals__
            return get_type_hints(holder, names, include_extras=True)[name]
        except Exception:  # a name that only a type checker can see: take the JSON value as it is
            return Any

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        typed_dict: Any = TypedDict  # whose members may have any name, as parameters may
        kinds = {name: self._json_type(name) for name in self._names}
        return msgspec.json.Decoder(typed_dict("Arguments", kinds, total=False), dec_hook=to_type)

    def _json_type(self, name: str) -> Any:
        kind = self._types[name]
        if name == self._rest:
            kind = list[kind]  # type: ignore[valid-type]
        try:
            msgspec.json.Decoder(kind, dec_hook=to_type)
        except (TypeError, RuntimeError) as error:
            raise ConfigurationError(
                f"task {self._task!r}: the type of its parameter {name!r} cannot be JSON: {error}"
            ) from None
        return kind


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):  # annotations may name what is defined later, or only for type checkers
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def _is_context(parameter: Parameter) -> bool:
    if parameter.kind not in _POSITIONAL:
        return False
    annotation = parameter.annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return parameter.name == "ctx" or name.strip("'\"").endswith("JobContext")


def _named(message: str) -> str:
    """msgspec's message with the parameter's name first: "argument 'a': Expected `int`, got `str`"."""
    text, _, path = message.partition(" - at `$.")
    return f"argument {path.rstrip('`')!r}: {text}" if path else text
