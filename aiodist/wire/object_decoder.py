"""Make Python objects of what `object_encoder` has packed, in steps of bounded work."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

import msgpack

from aiodist.errors import DistError, ProtocolError
from aiodist.wire.object_encoder import (
    BYTEARRAY_ROW,
    BYTES_ROW,
    DESCRIPTION,
    EXT_BIG_INT,
    EXT_MARKER,
    EXT_PICKLE,
    EXT_ROW,
    IN_HEAD,
    LIST_ROW,
    NO_SEGMENT,
    SEGMENT,
    STR_ROW,
    Extension,
    Row,
)
from aiodist.wire.object_types import BY_CODE, CLASS_CODE, DICT_CODE, Record
from aiodist.wire.registered_types import TypeRegistry

_COPY_BYTES = 1 << 20
_UNPACK_BYTES = 1 << 15
"""What is copied, or unpacked, in one step."""


class _PickleFoundError(Exception):
    """A pickled part where none is allowed."""


class _UnknownClassError(Exception):
    """An instance of a class that is not registered here."""


class Decoder:
    """One message on its way to an object."""

    def __init__(
        self,
        extensions: Sequence[Extension],
        types: TypeRegistry,
        allow_pickle: bool,
        segments: Sequence[memoryview],
        owned: Sequence[bool],
    ) -> None:
        """``owned[i]``: the object may keep the memory of segment i."""
        self._extensions = extensions
        self._class_record = Record(
            CLASS_CODE, object, lambda _: (), partial(_instance, types), (str, object)
        )
        self._allow_pickle = allow_pickle
        self._segments: list[memoryview | None] = [*segments]
        self._owned = owned
        self._rows: list[Any] = []  # what rows have become; None when that has found its place
        self._markers = 0  # seen and not yet used up by the array that they begin
        self._options: dict[str, Any] = {
            "ext_hook": self._ext,
            "list_hook": self._list,
            "strict_map_key": False,
            "unicode_errors": "surrogatepass",
        }

    def whole(self, head: memoryview | bytes) -> Any:
        """Make an object that has neither rows nor segments; the next one may follow.

        The decode function of a registered class may make another one meanwhile.
        """
        outer, self._markers = self._markers, 0
        try:
            obj = msgpack.unpackb(head, **self._options)
            left = self._markers
        except Exception as exc:  # noqa: BLE001  # told apart there
            raise _translated(exc) from None
        finally:
            self._markers = outer
        if left:
            raise ProtocolError("not an object of this version: parts are left over")
        return obj

    def steps(self, rows: Sequence[Row], head: memoryview) -> Generator[None, None, Any]:
        """Unpack; yield after each step, and return the object. Call it once."""
        try:
            for row in rows:
                made = yield from self._row(*row)
                self._rows.append(made)
            obj = msgpack.unpackb(head, **self._options)
        except Exception as exc:  # noqa: BLE001  # told apart there
            raise _translated(exc) from exc.__cause__
        finally:
            self._options.clear()  # the hooks hold this decoder
        unused = any(segment is not None for segment in self._segments)
        if self._markers or unused or any(made is not None for made in self._rows):
            raise ProtocolError("not an object of this version: parts are left over")
        return obj

    def _row(self, code: int, first: int, count: int) -> Generator[None, None, Any]:
        blocks = [self._take(number) for number in range(first, first + count)]
        if code == STR_ROW:
            text = ""
            for block in blocks:
                text += str(block, "utf-8", "surrogatepass")  # CPython extends it in place
                yield
            return text
        if code in (BYTES_ROW, BYTEARRAY_ROW):
            return (yield from _copied(code, blocks))
        made: Any = {} if code == DICT_CODE else []
        add = made.update if code == DICT_CODE else made.extend
        for block in blocks:
            unpacker = msgpack.Unpacker(max_buffer_size=len(block), **self._options)
            unpacker.feed(block)
            at = end = 0
            for piece in unpacker:
                if type(piece) is not type(made):
                    raise ProtocolError("a piece of a long container is of another type")
                add(piece)
                end = unpacker.tell()
                if end - at >= _UNPACK_BYTES:
                    at = end
                    yield
            if end != len(block):  # tell() now counts the start of a piece that is cut off, too
                raise ProtocolError("a block of a long container ends inside a piece")
            yield
        return made if code in (LIST_ROW, DICT_CODE) else _joined(self._record(code), made)

    def _record(self, code: int) -> Record:
        return self._class_record if code == CLASS_CODE else BY_CODE[code]

    def _take(self, number: int) -> memoryview:
        """Return a segment. Each is used once, so the bytes bound what they make."""
        segment, self._segments[number] = self._segments[number], None
        if segment is None:
            raise ProtocolError(f"segment {number} is used twice")
        return segment

    def _list(self, items: list[Any]) -> Any:
        if not items or type(items[0]) is not Record:
            return items
        self._markers -= 1
        return _joined(items[0], items[1:])

    def _ext(self, code: int, data: bytes) -> Any:
        if code == EXT_MARKER:
            self._markers += 1
            return self._record(data[0])
        if code == EXT_BIG_INT:
            return int.from_bytes(data, "little", signed=True)
        if code == EXT_PICKLE:
            if not self._allow_pickle:
                raise _PickleFoundError
            return _unpickle(data)
        (number,) = SEGMENT.unpack_from(data)
        if code == EXT_ROW:
            made, self._rows[number] = self._rows[number], None
            if made is None:
                raise ProtocolError(f"row {number} is used twice")
            return made
        data, memory, owned = data[SEGMENT.size :], None, False
        if number == IN_HEAD:
            (length,) = DESCRIPTION.unpack_from(data)
            end = DESCRIPTION.size + length
            data, memory = data[DESCRIPTION.size : end], memoryview(data)[end:]
        elif number != NO_SEGMENT:
            memory, owned = self._take(number), self._owned[number]
        for extension in self._extensions:
            obj = extension.decode(code, data, memory, owned)
            if obj is not NotImplemented:
                return obj
        raise ProtocolError(f"no part of this version has the code {code}")


def _translated(exc: Exception) -> Exception:
    """Return what the caller gets for what unpacking has raised."""
    if isinstance(exc, _PickleFoundError):
        return TypeError(
            "the object has pickled parts, and unpickling may run any code of the sender's: "
            "pass allow_pickle=True here, or to init_process_group, if you trust all ranks"
        )
    if isinstance(exc, _UnknownClassError):
        return TypeError(str(exc))
    # The bytes decide which of these it is; decimal's errors are ArithmeticErrors.
    if isinstance(
        exc,
        (
            ValueError, TypeError, LookupError, ArithmeticError, AttributeError, MemoryError,
            RecursionError, struct.error, msgpack.UnpackException,
        ),
    ) and not isinstance(exc, DistError):  # fmt: skip
        return ProtocolError(f"not an object of this version: {exc}")
    return exc


def _instance(types: TypeRegistry, name: str, value: Any) -> Any:
    known = types.of_name(name)
    if known is None:
        raise _UnknownClassError(
            f"a {name} arrived, which this rank does not know: register its class here too, with "
            "aiodist.register_type"
        )
    return known.make(value)


def _joined(record: Record, fields: list[Any]) -> Any:
    if record.types is not None and (
        len(fields) != len(record.types) or not all(map(isinstance, fields, record.types))
    ):
        raise ProtocolError(f"the fields of a {record.cls.__name__} are wrong")
    return record.join(*fields)


def _copied(code: int, blocks: Sequence[memoryview]) -> Generator[None, None, bytes | bytearray]:
    """Copy ``blocks`` in steps. A BytesIO hands out the bytes it holds without another copy."""
    copied = io.BytesIO()
    for block in blocks:
        for start in range(0, len(block), _COPY_BYTES):
            copied.write(block[start : start + _COPY_BYTES])
            yield
    if code == BYTES_ROW:
        return copied.getvalue()
    made = bytearray()
    with copied.getbuffer() as whole:
        for start in range(0, len(whole), _COPY_BYTES):
            made += whole[start : start + _COPY_BYTES]
            yield
    return made


def _unpickle(data: bytes) -> Any:
    try:
        return pickle.loads(data)  # noqa: S301 - only where the caller passed allow_pickle=True
    except Exception as exc:
        raise DistError(f"a pickled part of the object cannot be unpickled here: {exc!r}") from exc
