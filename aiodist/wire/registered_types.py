"""Classes that a program has registered, so that their instances travel inside objects.

The name of a class travels with each instance. A receiver looks that name up among the classes
that its own program has registered, and nowhere else: it imports nothing, and an unknown name is
an error.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

from aiodist.errors import DistError, InvalidUsageError
from aiodist.wire.object_types import NATIVE

Encode = Callable[[Any], Any]
Decode = Callable[[Any], Any]


_AS_THEY_ARE = NATIVE | {list, dict, tuple, bytearray}
"""Classes of which some or all instances are packed without a look at the registry."""


class RegisteredType(NamedTuple):
    """A class, its name on the wire, and how its instances become other objects and back."""

    name: str
    cls: type
    encode: Encode
    decode: Decode

    def make(self, value: Any) -> Any:
        """Return the instance that ``value`` stands for. Raises DistError where decoding fails."""
        try:
            return self.decode(value)
        except Exception as exc:
            raise DistError(f"a {self.name} that arrived cannot be decoded: {exc!r}") from exc


class TypeRegistry:
    """Registered classes, by class and by name."""

    def __init__(self) -> None:
        self._by_class: dict[type, RegisteredType] = {}
        self._by_name: dict[str, RegisteredType] = {}

    def register(
        self,
        cls: type,
        encode: Encode | None = None,
        decode: Decode | None = None,
        name: str | None = None,
    ) -> None:
        """Register ``cls``; arguments and errors are those of `aiodist.register_type`."""
        if not isinstance(cls, type):
            raise TypeError(f"cls must be a class, not {cls!r}")
        if cls in _AS_THEY_ARE:
            raise InvalidUsageError(
                f"{cls.__name__} travels as it is; register a class of your own"
            )
        for what, function in (("encode", encode), ("decode", decode)):
            if function is not None and not callable(function):
                raise TypeError(f"{what} must be a function of one argument, not {function!r}")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name must be a str, the same on all ranks, not {name!r}")
        if (encode is None) != (decode is None):
            raise InvalidUsageError("pass encode and decode together, or neither")
        if encode is None or decode is None:
            encode, decode = _functions_of(cls)
        if name is None:
            # The script of the program has another module name in processes that it spawned.
            module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
            name = f"{module}.{cls.__qualname__}"
        old = self._by_name.get(name)
        if old is not None:
            # A class statement that runs again, as in a notebook, replaces its class.
            if (old.cls.__module__, old.cls.__qualname__) != (cls.__module__, cls.__qualname__):
                raise InvalidUsageError(
                    f"{name!r} is registered for {old.cls.__qualname__}; pass another name"
                )
            del self._by_class[old.cls]
        before = self._by_class.pop(cls, None)
        if before is not None:
            self._by_name.pop(before.name, None)
        self._by_class[cls] = self._by_name[name] = RegisteredType(name, cls, encode, decode)

    def of_class(self, cls: type) -> RegisteredType | None:
        """Return what is registered for exactly ``cls``, None where nothing is."""
        return self._by_class.get(cls)

    def of_name(self, name: str) -> RegisteredType | None:
        """Return what is registered under ``name``, None where nothing is."""
        return self._by_name.get(name)


def _functions_of(cls: type) -> tuple[Encode, Decode]:
    """Return encode and decode of a dataclass, an enum or a namedtuple."""
    if issubclass(cls, enum.Flag):
        return lambda member: member.value, cls
    if issubclass(cls, enum.Enum):  # which may be a dataclass or a namedtuple as well
        return lambda member: member.name, lambda name: cls[name]
    if dataclasses.is_dataclass(cls):
        try:
            object.__new__(cls)
        except TypeError as error:  # of an exception, a dict and the like
            raise InvalidUsageError(
                f"{cls.__qualname__} has more than its fields ({error}): pass encode and decode"
            ) from None
        names = [field.name for field in dataclasses.fields(cls)]
        return _fields_of(names), _maker_of(cls, names)
    named = getattr(cls, "_fields", None)
    if issubclass(cls, tuple) and isinstance(named, tuple):
        size = len(named)
        return list, lambda values: tuple.__new__(cls, _sized(values, size))
    raise InvalidUsageError(
        f"{cls.__qualname__} is no dataclass, enum or namedtuple: pass encode and decode"
    )


def _fields_of(names: list[str]) -> Encode:
    return lambda instance: [getattr(instance, name) for name in names]


def _maker_of(cls: type, names: list[str]) -> Decode:
    """Return what sets the fields of a new instance. It calls neither __init__ nor __post_init__."""

    def make(values: Any) -> Any:
        instance: object = object.__new__(cls)
        for name, value in zip(names, _sized(values, len(names)), strict=True):
            object.__setattr__(instance, name, value)
        return instance

    return make


def _sized(values: Any, size: int) -> list[Any]:
    if type(values) is not list or len(values) != size:
        raise ValueError(f"it has {size} fields here, and other ones where it comes from")
    return values


_types: ContextVar[TypeRegistry] = ContextVar("aiodist_types", default=TypeRegistry())  # noqa: B039

current_types: Callable[[], TypeRegistry] = _types.get
"""The registry of the calling context; all share one where none was set."""
