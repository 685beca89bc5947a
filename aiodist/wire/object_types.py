"""Python types that msgpack lacks, each as a record: a code and a list of fields.

A record's fields are values the codec can carry, so records nest. Codes are part of the wire
format: never renumber, only append.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from types import EllipsisType, MappingProxyType, NoneType, NotImplementedType
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Record:
    """How one type is taken apart and put together.

    ``split`` gives the fields; ``join`` takes them. ``types``: what each field must be, checked
    before ``join``; None where any number of any values will do. ``step``: how a path names field
    number ``{}``, empty where the field is the whole object in another guise.
    """

    code: int
    cls: type
    split: Callable[[Any], Iterable[Any]]
    join: Callable[..., Any]
    types: tuple[type, ...] | None = None
    step: str = ""


# What a defaultdict may make its values with.
_FACTORIES: Mapping[str, type] = MappingProxyType(
    {
        cls.__name__: cls
        for cls in (
            *(bool, int, float, complex, str, bytes, bytearray),
            *(list, tuple, set, frozenset, dict, object),
            *(deque, OrderedDict, Counter),
        )
    }
)

# A concrete path of the other system cannot be made; the pure one stands in for it.
_PATHS: tuple[type[PurePath], ...] = (PurePosixPath, PureWindowsPath, PosixPath, WindowsPath)


def _split_defaultdict(value: defaultdict[Any, Any]) -> tuple[Any, ...]:
    factory = value.default_factory
    if factory is None:
        return dict(value), None
    name = getattr(factory, "__name__", "")
    if _FACTORIES.get(name) is not factory:
        raise TypeError(f"its default_factory is {factory!r}, not a builtin type")
    return dict(value), name


def _join_defaultdict(items: dict[Any, Any], factory: str | None) -> defaultdict[Any, Any]:
    return defaultdict(None if factory is None else _FACTORIES[factory], items)


def _split_datetime(value: datetime) -> tuple[Any, ...]:
    clock = (value.hour, value.minute, value.second, value.microsecond)
    return (value.year, value.month, value.day, *clock, value.fold, value.tzinfo)


def _join_datetime(*fields: Any) -> datetime:
    *moment, fold, zone = fields
    return datetime(*moment).replace(tzinfo=zone, fold=fold)


def _split_time(value: time) -> tuple[Any, ...]:
    return value.hour, value.minute, value.second, value.microsecond, value.fold, value.tzinfo


def _join_time(*fields: Any) -> time:
    *clock, fold, zone = fields
    return time(*clock).replace(tzinfo=zone, fold=fold)


def _split_timezone(value: timezone) -> tuple[Any, ...]:
    # The name is kept only where its maker gave one; the default name follows from the offset.
    offset, name = value.utcoffset(None), value.tzname(None)
    return offset, None if name == timezone(offset).tzname(None) else name


def _join_timezone(offset: timedelta, name: str | None) -> timezone:
    return timezone(offset) if name is None else timezone(offset, name)


def _path(cls: type[PurePath]) -> Callable[[str], PurePath]:
    def join(text: str) -> PurePath:
        try:
            return cls(text)
        except NotImplementedError:  # UnsupportedOperation from Python 3.13 on is one too
            return (PureWindowsPath if cls is WindowsPath else PurePosixPath)(text)

    return join


_RECORDS = (
    Record(1, tuple, iter, lambda *items: items, step="[{}]"),
    Record(2, set, iter, lambda *items: set(items), step="{{...}}"),
    Record(3, frozenset, iter, lambda *items: frozenset(items), step="{{...}}"),
    Record(4, bytearray, lambda v: (bytes(v),), bytearray, (bytes,)),
    Record(5, complex, lambda v: (v.real, v.imag), complex, (float, float)),
    Record(6, range, lambda v: (v.start, v.stop, v.step), range, (int, int, int)),
    Record(7, slice, lambda v: (v.start, v.stop, v.step), slice, (object, object, object)),
    Record(8, EllipsisType, lambda _: (), lambda: Ellipsis, ()),
    Record(9, NotImplementedType, lambda _: (), lambda: NotImplemented, ()),
    Record(10, deque, lambda v: (list(v), v.maxlen), deque, (list, object)),
    Record(11, OrderedDict, lambda v: (dict(v),), OrderedDict, (dict,)),
    Record(12, Counter, lambda v: (dict(v),), Counter, (dict,)),
    Record(13, defaultdict, _split_defaultdict, _join_defaultdict, (dict, object)),
    Record(20, timedelta, lambda v: (v.days, v.seconds, v.microseconds), timedelta, (int,) * 3),
    Record(21, timezone, _split_timezone, _join_timezone, (timedelta, object)),
    Record(22, date, lambda v: (v.year, v.month, v.day), date, (int,) * 3),
    Record(23, time, _split_time, _join_time, (*(int,) * 5, object)),
    Record(24, datetime, _split_datetime, _join_datetime, (*(int,) * 8, object)),
    Record(25, Decimal, lambda v: (str(v),), Decimal, (str,)),
    Record(26, Fraction, lambda v: (v.numerator, v.denominator), Fraction, (int, int)),
    Record(27, UUID, lambda v: (v.bytes,), lambda b: UUID(bytes=b), (bytes,)),
    *(
        Record(30 + number, cls, lambda v: (str(v),), _path(cls), (str,))
        for number, cls in enumerate(_PATHS)
    ),
)

DICT_CODE = 40
"""Code of the record for a dict whose keys msgpack cannot encode: key, value, key, value, ..."""

CLASS_CODE = 41
"""Code of the record for an instance of a registered class: its name and its encoded form."""

BY_TYPE: Mapping[type, Record] = MappingProxyType({r.cls: r for r in _RECORDS})
BY_CODE: Mapping[int, Record] = MappingProxyType(
    {r.code: r for r in _RECORDS}
    | {DICT_CODE: Record(DICT_CODE, dict, dict.items, lambda *kv: _pair_up(kv))}
)

NATIVE: frozenset[type] = frozenset({NoneType, bool, int, float, str, bytes})
"""Types without parts that msgpack brings back exactly; ints beyond 64 bits get help."""


def _pair_up(flat: tuple[Any, ...]) -> dict[Any, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
