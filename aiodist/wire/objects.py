"""Python objects as bytes and back, exactly the type they went in: msgpack with records.

A message is a head in msgpack and then segments, the memory of tensors, as they are::

    u8 version | u32 segments | u64 bytes of head | u64 bytes of each segment | head | segments

(little-endian). In the head, a type that msgpack lacks is an array whose first element is a
marker, an ext of code 0 with the record's code (`aiodist.wire.object_types`).

Nothing but msgpack is ever parsed unless the caller passes ``allow_pickle=True`` on both sides.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Protocol

import msgpack

from aiodist.errors import DistError, InvalidUsageError, ProtocolError
from aiodist.wire.object_types import BY_CODE, BY_TYPE, DICT_CODE, NATIVE, Record

MAX_DEPTH = 200
"""Containers in containers; msgpack's own limit is above 500."""

_VERSION = 1
_FIXED = struct.Struct("<BIQ")
_EXT_MARKER, _EXT_BIG_INT, _EXT_PICKLE = 0, 1, 2
_SEGMENT = struct.Struct("<I")
_NO_SEGMENT = 0xFFFFFFFF
_LIMIT = 0xFFFFFFFF  # of a str or bytes in msgpack


_TUPLE = msgpack.ExtType(_EXT_MARKER, bytes((BY_TYPE[tuple].code,)))


class Extension(Protocol):
    """Types from outside the standard library, such as tensors.

    Codes are 64 to 127, one meaning each over all extensions of a codec.
    """

    def encode(self, obj: Any) -> tuple[int, bytes, memoryview | None] | None:
        """(code, description, memory or None); None where ``obj`` is not of its types.

        Raises TypeError or ValueError for an object of its types that cannot travel.
        """
        ...

    def decode(self, code: int, data: bytes, memory: memoryview | None) -> Any:
        """The inverse; it copies ``memory``. Returns NotImplemented for codes of others.

        Raises ValueError, TypeError or ProtocolError for bytes that `encode` never makes.
        """
        ...


class ObjectCodec:
    """Turns objects into bytes and back. Immutable; may be used from several threads.

    These types come back exactly: None, bool, int, float, complex, str, bytes, bytearray, list,
    tuple, set, frozenset, dict, range, slice, Ellipsis, deque, OrderedDict, defaultdict, Counter,
    dates and times, Decimal, Fraction, UUID, paths, and those of the ``extensions``. An object
    that occurs twice comes back as two.
    """

    def __init__(self, extensions: Sequence[Extension] = ()) -> None:
        self._extensions = tuple(extensions)

    def dumps(self, obj: Any, *, allow_pickle: bool = False, name: str = "obj") -> bytes:
        """``obj`` as bytes. ``name`` stands for it in messages.

        Raises TypeError for a type that is not in the list (a subclass, a class of yours, a
        function), saying where in the object it is; with ``allow_pickle`` such parts are pickled.
        ValueError for an object that contains itself or is nested deeper than 200 levels.
        """
        return b"".join(self.dump_parts(obj, allow_pickle=allow_pickle, name=name))

    def dump_parts(
        self, obj: Any, *, allow_pickle: bool = False, name: str = "obj"
    ) -> list[bytes | memoryview]:
        """As `dumps`, in parts, so that the memory of tensors need not be copied together."""
        encoder = _Encoder(self._extensions, allow_pickle)
        try:
            head = encoder.pack(obj)
        except _RefusedError as refused:
            path = name + "".join(reversed(refused.steps))
            raise refused.error(f"{path} {refused.reason}") from refused.__cause__
        segments = encoder.segments
        sizes = [len(segment) for segment in segments]
        start = _FIXED.pack(_VERSION, len(segments), len(head))
        return [start, struct.pack(f"<{len(sizes)}Q", *sizes), head, *segments]

    def loads(self, data: bytes | bytearray | memoryview, *, allow_pickle: bool = False) -> Any:
        """The object that `dumps` made ``data`` from.

        Raises ProtocolError for anything else, TypeError for pickled parts without
        ``allow_pickle`` (nothing is unpickled then), DistError for a part that fails to unpickle.
        """
        head, segments = _cut(memoryview(data).cast("B"))
        return _Decoder(self._extensions, allow_pickle, segments).unpack(head)


class _RefusedError(Exception):
    """An object that cannot travel; ``steps`` lead to it from the inside out."""

    def __init__(self, error: type[Exception], reason: str) -> None:
        super().__init__(reason)
        self.error = error
        self.reason = reason
        self.steps: list[str] = []


class _Encoder:
    """One call of `dumps`: rewrites the object as what msgpack knows, then packs that."""

    def __init__(self, extensions: tuple[Extension, ...], allow_pickle: bool) -> None:
        self.segments: list[memoryview] = []
        self._extensions = extensions
        self._allow_pickle = allow_pickle
        self._open: set[int] = set()  # containers around the current object

    def pack(self, obj: Any) -> bytes:
        tree = self._encode(obj)
        packer = msgpack.Packer(default=_big_int, strict_types=True, unicode_errors="surrogatepass")
        try:
            packed: bytes = packer.pack(tree)
        except (ValueError, OverflowError) as exc:
            raise InvalidUsageError(
                f"the object does not fit into a message ({exc}); one str, bytes or container "
                f"may have 4 GiB: send large data as tensors"
            ) from exc
        return packed

    def _encode(self, obj: Any) -> Any:
        cls = type(obj)
        if cls in NATIVE:
            return obj
        if cls is list:
            if NATIVE.issuperset(map(type, obj)):
                return obj
            self._enter(obj)
            encoded: Any = self._each(obj, "[{}]")
        elif cls is dict:
            values_native = NATIVE.issuperset(map(type, obj.values()))
            keys_native = NATIVE.issuperset(map(type, obj))
            if keys_native and values_native:
                return obj
            self._enter(obj)
            encoded = self._dict(obj, keys_native)
        elif cls is tuple and NATIVE.issuperset(map(type, obj)):
            return [_TUPLE, *obj]
        else:
            record = BY_TYPE.get(cls)
            if record is None:
                return self._foreign(obj)
            self._enter(obj)
            encoded = self._record(obj, record)
        self._open.discard(id(obj))
        return encoded

    def _enter(self, container: Any) -> None:
        if id(container) in self._open:
            raise _RefusedError(ValueError, "contains itself, and objects travel as trees")
        if len(self._open) >= MAX_DEPTH:
            raise _RefusedError(ValueError, f"is nested deeper than {MAX_DEPTH} levels")
        self._open.add(id(container))

    def _each(self, values: Iterable[Any], step: str) -> list[Any]:
        out = []
        for number, value in enumerate(values):
            try:
                out.append(self._encode(value))
            except _RefusedError as refused:
                refused.steps.append(step.format(number))
                raise
        return out

    def _dict(self, items: dict[Any, Any], keys_native: bool) -> Any:
        keys: Iterable[Any] = items
        if not keys_native:
            try:
                keys = self._each(items, " key")
            except _RefusedError as refused:
                refused.steps[-1] = ".keys()"
                raise
        values = []
        for key, value in items.items():
            try:
                values.append(self._encode(value))
            except _RefusedError as refused:
                refused.steps.append(f"[{_short(key)}]")
                raise
        if keys_native:
            return dict(zip(keys, values, strict=True))
        return [_marker(DICT_CODE), *chain.from_iterable(zip(keys, values, strict=True))]

    def _record(self, obj: Any, record: Record) -> Any:
        try:
            fields = record.split(obj)
        except TypeError as exc:
            return self._pickled(obj, f"cannot travel as an object: {exc}")
        return [_marker(record.code), *self._each(fields, record.step)]

    def _foreign(self, obj: Any) -> msgpack.ExtType:
        reason = f"is {_article(type(obj))}, which does not travel exactly as it is"
        for extension in self._extensions:
            try:
                found = extension.encode(obj)
            except (TypeError, ValueError) as exc:
                reason = f"cannot travel: {exc}"
                break
            if found is not None:
                code, data, memory = found
                number = _NO_SEGMENT
                if memory is not None:
                    number = len(self.segments)
                    self.segments.append(memory)
                return msgpack.ExtType(code, _SEGMENT.pack(number) + data)
        return self._pickled(obj, reason)

    def _pickled(self, obj: Any, reason: str) -> msgpack.ExtType:
        if not self._allow_pickle:
            raise _RefusedError(
                TypeError, f"{reason}; pass allow_pickle=True, on all ranks, to pickle it"
            )
        try:
            return msgpack.ExtType(_EXT_PICKLE, pickle.dumps(obj))
        except Exception as exc:
            refused = _RefusedError(
                TypeError, f"is {_article(type(obj))} that cannot be pickled: {exc}"
            )
            raise refused from exc


class _PickleFoundError(Exception):
    """A pickled part where none is allowed."""


class _Decoder:
    """One call of `loads`."""

    def __init__(
        self, extensions: tuple[Extension, ...], allow_pickle: bool, segments: list[memoryview]
    ) -> None:
        self._extensions = extensions
        self._allow_pickle = allow_pickle
        self._segments: list[memoryview | None] = [*segments]
        self._markers = 0  # seen and not yet used up by the array that they begin

    def unpack(self, head: memoryview) -> Any:
        try:
            obj = msgpack.unpackb(
                head,
                ext_hook=self._ext,
                list_hook=self._list,
                strict_map_key=False,
                unicode_errors="surrogatepass",
            )
        except _PickleFoundError:
            raise TypeError(
                "the object has pickled parts, and unpickling may run any code of the sender's: "
                "pass allow_pickle=True if you trust all ranks"
            ) from None
        except DistError:
            raise
        # The bytes decide which of these it is; decimal's errors are ArithmeticErrors.
        except (
            ValueError, TypeError, LookupError, ArithmeticError, AttributeError, MemoryError,
            RecursionError, struct.error, msgpack.UnpackException,
        ) as exc:  # fmt: skip
            raise ProtocolError(f"not an object of this version: {exc}") from exc
        if self._markers or any(segment is not None for segment in self._segments):
            raise ProtocolError("not an object of this version: parts are left over")
        return obj

    def _list(self, items: list[Any]) -> Any:
        if not items or type(items[0]) is not Record:
            return items
        self._markers -= 1
        record = items[0]
        fields = items[1:]
        if record.types is not None and (
            len(fields) != len(record.types) or not all(map(isinstance, fields, record.types))
        ):
            raise ProtocolError(f"the fields of a {record.cls.__name__} are wrong")
        return record.join(*fields)

    def _ext(self, code: int, data: bytes) -> Any:
        if code == _EXT_MARKER:
            self._markers += 1
            return BY_CODE[data[0]]
        if code == _EXT_BIG_INT:
            return int.from_bytes(data, "little", signed=True)
        if code == _EXT_PICKLE:
            if not self._allow_pickle:
                raise _PickleFoundError
            return _unpickle(data)
        (number,) = _SEGMENT.unpack_from(data)
        memory = None
        if number != _NO_SEGMENT:
            memory, self._segments[number] = self._segments[number], None
        for extension in self._extensions:
            obj = extension.decode(code, data[_SEGMENT.size :], memory)
            if obj is not NotImplemented:
                return obj
        raise ProtocolError(f"no part of this version has the code {code}")


def _cut(data: memoryview) -> tuple[memoryview, list[memoryview]]:
    """The head and the segments of a message; their lengths must add up to it."""
    if len(data) < _FIXED.size:
        raise ProtocolError(f"an object has at least {_FIXED.size} bytes, not {len(data)}")
    version, count, head = _FIXED.unpack_from(data)
    if version != _VERSION:
        raise ProtocolError(f"an object of version {version}, and this is version {_VERSION}")
    at = _FIXED.size + 8 * count
    if at > len(data):
        raise ProtocolError(f"{len(data)} bytes cannot describe {count} segments")
    sizes = struct.unpack_from(f"<{count}Q", data, _FIXED.size)
    if at + head + sum(sizes) != len(data):
        raise ProtocolError("the lengths of an object's parts do not add up to its length")
    parts = []
    for size in (head, *sizes):
        parts.append(data[at : at + size])
        at += size
    return parts[0], parts[1:]


def _marker(code: int) -> msgpack.ExtType:
    return msgpack.ExtType(_EXT_MARKER, bytes((code,)))


def _big_int(obj: Any) -> msgpack.ExtType:
    """msgpack's hook for what it cannot pack, which after `_Encoder` is only a large int."""
    length = obj.bit_length() // 8 + 1
    return msgpack.ExtType(_EXT_BIG_INT, obj.to_bytes(length, "little", signed=True))


def _unpickle(data: bytes) -> Any:
    try:
        return pickle.loads(data)  # noqa: S301 - only where the caller passed allow_pickle=True
    except Exception as exc:
        raise DistError(f"a pickled part of the object cannot be unpickled here: {exc!r}") from exc


def _article(cls: type) -> str:
    module = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
    return f"a {module}{cls.__qualname__}"


def _short(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 60 else text[:57] + "..."
