"""Python objects as bytes and back, exactly the type they went in: msgpack with records.

A message is an envelope, and the segments that are too long for it::

    u8 version | u32 segments | u32 rows | u64 bytes of head
    u64 each segment's bytes, plus 2**63 if it travels beside the envelope
    (u8 what, u32 first segment, u32 segments) of each row
    head | the other segments

(little-endian). The head is msgpack. In it, a type that msgpack lacks is an array whose first
element is a marker, an ext of code 0 with the record's code (`aiodist.wire.object_types`). A
segment is the long memory of a tensor, or a part of a row: a long container, str or bytes in
pieces. Short memory stands in the head.

Nothing but msgpack is ever parsed unless the caller passes ``allow_pickle=True`` on both sides.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from aiodist.completion import T
from aiodist.errors import DistError, InvalidUsageError, ProtocolError
from aiodist.wire.object_decoder import Decoder
from aiodist.wire.object_encoder import MAX_DEPTH, Encoder, Extension, RefusedError, Row
from aiodist.wire.registered_types import TypeRegistry

__all__ = [
    "MAX_DEPTH",
    "Envelope",
    "Extension",
    "ObjectCodec",
    "Packed",
    "finished",
    "read_envelope",
    "short_head",
]

PART_BYTES = 1 << 16
"""A segment of at least this length travels beside the envelope."""

ENVELOPE_BYTES = 1 << 18
"""Once the envelope has this length, all further segments travel beside it."""

_VERSION = 3
_FIXED = struct.Struct("<BIIQ")
SHORT_HEAD = _FIXED.size
"""Where the head begins in an envelope that has nothing else, as `short_head` finds it."""

_ROW = struct.Struct("<BII")
_BESIDE = 1 << 63

_MOST_STEPS = 10
"""The longest path to a part of an object in an error; the middle of a longer one is left out."""


class Packed(NamedTuple):
    """A message: the envelope first, then each part."""

    envelope: bytes
    parts: Sequence[memoryview]


class Envelope(NamedTuple):
    """An envelope that was read: what `ObjectCodec.load_steps` needs of it."""

    part_sizes: list[int]
    """Bytes of each part, in order."""
    sizes: list[int]
    rows: list[Row]
    data: memoryview
    """The head and the segments in the envelope."""
    head: int


class ObjectCodec:
    """Encode objects as bytes and back. Belongs to one thread at a time.

    These types come back exactly: None, bool, int, float, complex, str, bytes, bytearray, list,
    tuple, set, frozenset, dict, range, slice, Ellipsis, deque, OrderedDict, defaultdict, Counter,
    dates and times, Decimal, Fraction, UUID, paths, those of the ``extensions``, and the registered
    ``types``. An object that occurs twice comes back as two.
    """

    def __init__(
        self, extensions: Sequence[Extension] = (), types: TypeRegistry | None = None
    ) -> None:
        """``types``: the classes whose instances travel; None for no class."""
        self._extensions = tuple(extensions)
        self._types = types or TypeRegistry()
        flags = (False, True)  # of allow_pickle
        self._short_encoders = [Encoder(self._extensions, self._types, flag) for flag in flags]
        self._short_decoders = [
            Decoder(self._extensions, self._types, flag, [], []) for flag in flags
        ]

    def dumps(self, obj: Any, *, allow_pickle: bool = False, name: str = "obj") -> bytes:
        """Return ``obj`` as bytes, with all segments. Errors are those of `dump_steps`."""
        steps = self.dump_steps(obj, allow_pickle=allow_pickle, name=name, apart=False)
        return finished(steps).envelope

    def dump_at_once(self, obj: Any, *, allow_pickle: bool = False) -> bytes | Packed | None:
        """Pack an ``obj`` that takes one step.

        Returns the envelope of an object that has nothing else, the message of another one. None:
        `dump_steps` packs it, or says what is wrong.
        """
        encoder = self._short_encoders[allow_pickle]
        head = encoder.short(obj)
        if head is None:
            return None
        if not encoder.segments:
            return _FIXED.pack(_VERSION, 0, 0, len(head)) + head
        segments, encoder.segments = encoder.segments, []
        return _message(head, segments, [], apart=True)

    def load_short(self, head: memoryview | bytes, *, allow_pickle: bool = False) -> Any:
        """Decode the object whose `short_head` is ``head``. Errors are those of `load_steps`."""
        return self._short_decoders[allow_pickle].whole(head)

    def dump_steps(
        self, obj: Any, *, allow_pickle: bool = False, name: str = "obj", apart: bool = True
    ) -> Generator[None, None, Packed]:
        """Pack ``obj``; yield after each step of about a millisecond, and return the message.

        ``name`` stands for it in error messages. ``apart``: long segments become parts, which are
        the memory of the object itself.

        Raises TypeError for a type that is not in the list: a subclass, a class that is not
        registered, a function. The error says where in the object it is. With ``allow_pickle`` such
        parts are pickled.
        Raises InvalidUsageError for an object that contains itself, is nested deeper than 200
        levels, or changes between two steps.
        """
        encoder = Encoder(self._extensions, self._types, allow_pickle)
        try:
            head = yield from encoder.steps(obj)
        except RefusedError as refused:
            steps = refused.steps[::-1]
            if len(steps) > _MOST_STEPS:
                steps[_MOST_STEPS // 2 : -_MOST_STEPS // 2] = ["..."]
            path = name + "".join(steps)
            raise refused.error(f"{path} {refused.reason}") from refused.__cause__
        except DistError:  # which is a RuntimeError, too
            raise
        except RuntimeError as exc:  # of a dict or set that has lost or gained elements
            raise InvalidUsageError(
                f"{name} must not change before it has been sent: {exc}"
            ) from exc
        return _message(head, encoder.segments, encoder.rows, apart)

    def loads(self, data: bytes | bytearray | memoryview, *, allow_pickle: bool = False) -> Any:
        """Return the object that `dumps` made ``data`` from. Errors are those of `load_steps`."""
        envelope = read_envelope(memoryview(data).cast("B"))
        return finished(self.load_steps(envelope, [], allow_pickle=allow_pickle))

    def load_steps(
        self, envelope: Envelope, parts: Sequence[memoryview], *, allow_pickle: bool = False
    ) -> Generator[None, None, Any]:
        """Make the object; yield after each step of about a millisecond, and return it.

        ``parts`` have the lengths that the envelope says. The object may keep their memory.
        Raises ProtocolError for data that `dump_steps` does not make. Raises TypeError for pickled
        parts without ``allow_pickle`` (nothing is unpickled then), and for classes that are not
        registered here. Raises DistError for a part that fails to unpickle or to be decoded.
        """
        if [len(part) for part in parts] != envelope.part_sizes:
            raise ProtocolError("an object came without some of its parts")
        beside = iter(parts)
        at = envelope.head
        segments = []
        for size in envelope.sizes:
            if size & _BESIDE:
                segments.append(next(beside))
            else:
                segments.append(envelope.data[at : at + size])
                at += size
        owned = [bool(size & _BESIDE) for size in envelope.sizes]
        decoder = Decoder(self._extensions, self._types, allow_pickle, segments, owned)
        return (yield from decoder.steps(envelope.rows, envelope.data[: envelope.head]))


def _message(
    head: bytes, segments: Sequence[memoryview], rows: Sequence[Row], apart: bool
) -> Packed:
    """Return the message of a packed object. ``apart``: as of `ObjectCodec.dump_steps`."""
    inside: list[bytes | memoryview] = [head]
    parts: list[memoryview] = []
    sizes: list[int] = []
    length = len(head)
    for segment in segments:
        size = len(segment)
        if apart and (size >= PART_BYTES or length >= ENVELOPE_BYTES):
            parts.append(segment)
            sizes.append(size | _BESIDE)
        else:
            inside.append(segment)
            sizes.append(size)
            length += size
    start = _FIXED.pack(_VERSION, len(sizes), len(rows), len(head))
    table = struct.pack(f"<{len(sizes)}Q", *sizes)
    return Packed(b"".join((start, table, *(_ROW.pack(*row) for row in rows), *inside)), parts)


def short_head(data: memoryview | bytes) -> memoryview | bytes | None:
    """Return the head in an envelope that has nothing else. None: there is more, or less."""
    if len(data) < _FIXED.size:
        return None
    version, n_sizes, n_rows, head = _FIXED.unpack_from(data)
    if n_sizes or n_rows or version != _VERSION or len(data) != _FIXED.size + head:
        return None
    return data[_FIXED.size :]


def read_envelope(data: memoryview) -> Envelope:
    """Read what stands before the head. Raises ProtocolError unless all lengths add up."""
    if len(data) < _FIXED.size:
        raise ProtocolError(f"an object has at least {_FIXED.size} bytes, not {len(data)}")
    version, n_sizes, n_rows, head = _FIXED.unpack_from(data)
    if version != _VERSION:
        raise ProtocolError(f"an object of version {version}, and this is version {_VERSION}")
    table = _FIXED.size + 8 * n_sizes
    start = table + _ROW.size * n_rows
    if start > len(data):
        raise ProtocolError(f"{len(data)} bytes cannot describe {n_sizes} segments")
    sizes = [*struct.unpack_from(f"<{n_sizes}Q", data, _FIXED.size)]
    rows = list(_ROW.iter_unpack(data[table:start]))
    inside = sum(size for size in sizes if not size & _BESIDE)
    if start + head + inside != len(data):
        raise ProtocolError("the lengths of an object's parts do not add up to its length")
    beside = [size ^ _BESIDE for size in sizes if size & _BESIDE]
    return Envelope(beside, sizes, rows, data[start:], head)


def finished(steps: Generator[None, None, T]) -> T:
    """Take all ``steps`` at once and return what they make."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            made: T = stop.value
            return made
