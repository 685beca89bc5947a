"""Rewrite Python objects as what msgpack knows, and pack that in steps of bounded work.

An object that one step covers is packed whole. In a longer one, each long container becomes a row
of pieces: slices that are packed one by one, and joined to blocks, which travel as segments. The
place of the container then holds a reference to its row.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, Protocol, TypeVar

import msgpack

from aiodist.errors import InvalidUsageError
from aiodist.wire.object_types import BY_TYPE, CLASS_CODE, DICT_CODE, NATIVE
from aiodist.wire.registered_types import TypeRegistry

MAX_DEPTH = 200
"""Containers in containers; msgpack's own limit is above 500."""

STEP = 4096
"""Most work of one step: an element of a container counts 1, and so do 64 bytes of text."""

LONG_BYTES = 1 << 16
"""A str, bytes or bytearray above this length gets segments of its own."""

EXT_MARKER, EXT_BIG_INT, EXT_PICKLE, EXT_ROW = range(4)
SHORT_BYTES = 1 << 12
"""The memory of an extension's object up to this length stands in the head, behind its description."""

SEGMENT = struct.Struct("<I")
NO_SEGMENT = 0xFFFFFFFF
IN_HEAD = 0xFFFFFFFE
"""In the place of a segment's number: the length of the description, the description, the memory."""

DESCRIPTION = struct.Struct("<H")

LIST_ROW, STR_ROW, BYTES_ROW, BYTEARRAY_ROW = 0, 253, 254, 255
"""What a row of pieces makes, beside the codes of records."""

_PACKER_BYTES = 1 << 12
"""What a packer allocates at first. Each group has two, and msgpack's own choice is 256 KiB."""

_SLICE = 512
_FEW = 8
"""Up to so many values are looked at one by one: for more, lists of them are made."""

_BLOCK_BYTES = 1 << 18
_BYTES_SHIFT = 6
_FOREIGN_WORK = 6
"""An object of an extension takes about as long as so many elements more."""
_TEXT = frozenset({str, bytes})
_LISTS = frozenset({list, tuple})
_CONTAINERS = _LISTS | {dict}
_PLAIN = NATIVE | _CONTAINERS

Row = tuple[int, int, int]
"""(what it makes, number of its first segment, number of segments)"""

Values = TypeVar("Values")


class Extension(Protocol):
    """Types from outside the standard library, such as tensors.

    Codes are 64 to 127, one meaning each over all extensions of a codec.
    """

    def encode(self, obj: Any) -> tuple[int, bytes, memoryview | None] | None:
        """Return (code, description, memory or None); None where ``obj`` is not of its types.

        Raises TypeError or ValueError for an object of its types that cannot travel.
        """

    def decode(self, code: int, data: bytes, memory: memoryview | None, owned: bool) -> Any:
        """Do the inverse. Return NotImplemented for a code of another extension.

        ``owned``: the object may keep ``memory``; else it copies it. Raises ValueError, TypeError
        or ProtocolError for bytes that `encode` never makes.
        """


class RefusedError(Exception):
    """An object that cannot travel; ``steps`` lead to it from the inside out."""

    def __init__(self, error: type[Exception], reason: str) -> None:
        super().__init__(reason)
        self.error = error
        self.reason = reason
        self.steps: list[str] = []


class _TooLongError(Exception):
    """One step does not cover the object."""


class Encoder:
    """One object on its way to bytes; or one short object after another."""

    def __init__(
        self, extensions: Sequence[Extension], types: TypeRegistry, allow_pickle: bool
    ) -> None:
        self.segments: list[memoryview] = []
        self.rows: list[Row] = []
        self._extensions = extensions
        self._types = types
        self._allow_pickle = allow_pickle
        self._open: dict[int, None] = {}  # containers around the current object
        self._left = 0  # work that the current attempt may still do
        self._done = 0  # work since the last yield
        self._packer = msgpack.Packer(default=_default, strict_types=True, buf_size=_PACKER_BYTES)

    def short(self, obj: Any) -> bytes | None:
        """Pack ``obj``, whose segments are in `segments` then.

        None: one step does not cover it, or it cannot travel; `steps` packs it or says why.
        """
        if self._open:  # called by the encode function of a registered class
            return None
        self._left = STEP
        try:
            return self._pack(self._encode(obj))
        except BaseException as error:  # an error is raised by `steps`, an interrupt here
            self._open.clear()
            self.segments.clear()
            if not isinstance(error, Exception):
                raise
        return None

    def steps(self, obj: Any) -> Generator[None, None, bytes]:
        """Pack ``obj``; yield after each step, and return the head of the message."""
        tree, _ = yield from self._any(obj)
        return self._pack(tree)

    # -- in steps

    def _any(self, obj: Any) -> Generator[None, None, tuple[Any, int]]:
        """Encode ``obj`` in one step, or as a row. Return it and the work that is still to pack."""
        whole = self._in_one_step(self._encoded, obj)
        if whole is not None:
            return whole[0], STEP - self._left
        return (yield from self._row(obj)), 1

    def _row(self, obj: Any) -> Generator[None, None, msgpack.ExtType]:
        cls = type(obj)
        if cls is str:
            blocks = []
            for start in range(0, len(obj), _BLOCK_BYTES):
                part = obj[start : start + _BLOCK_BYTES]
                blocks.append(part.encode("utf-8", "surrogatepass"))
                yield
            return self._refer(STR_ROW, blocks)
        if cls is bytes or cls is bytearray:
            return self._refer(BYTES_ROW if cls is bytes else BYTEARRAY_ROW, [obj])
        self._enter(obj)
        if cls is list:
            code, pieces = LIST_ROW, self._pieces(iter(obj), "[{}]")
        elif cls is dict:
            code, pieces = DICT_CODE, self._dict_pieces(obj)
        else:
            code, step, fields = self._fields(obj, cls)
            pieces = self._pieces(iter(fields), step)
        blocks, block = [], bytearray()
        for piece in pieces:
            if piece is not None:
                block += self._pack(piece)
                if len(block) >= _BLOCK_BYTES:
                    blocks.append(block)
                    block = bytearray()
            if piece is None or self._done >= STEP:
                self._done = 0
                yield
        if block:
            blocks.append(block)
        self._open.pop(id(obj))
        return self._refer(code, blocks)

    def _refer(self, code: int, blocks: Sequence[bytes | bytearray]) -> msgpack.ExtType:
        """Keep a row that is complete: rows that it contains have lower numbers."""
        self.rows.append((code, len(self.segments), len(blocks)))
        self.segments.extend(memoryview(block) for block in blocks)
        return msgpack.ExtType(EXT_ROW, SEGMENT.pack(len(self.rows) - 1))

    def _pieces(self, values: Iterator[Any], step: str) -> Iterator[list[Any] | None]:
        """Encode ``values`` as lists, each of about one step's work; None is a step without one."""
        number, size = 0, _SLICE
        while part := list(islice(values, size)):
            whole = self._in_one_step(self._list, part, step, number)
            if whole is not None:
                yield whole
                if STEP - self._left < STEP // 4:
                    size = min(2 * size, _SLICE)
            else:
                yield None
                size = max(size // 8, _FEW)
                for start in range(0, len(part), size):
                    yield from self._part(part[start : start + size], step, number + start)
            number += len(part)

    def _part(
        self, values: list[Any], step: str, number: int
    ) -> Generator[list[Any] | None, None, None]:
        whole = self._in_one_step(self._list, values, step, number)
        if whole is not None:
            yield whole
        else:
            yield from self._one_by_one(values, step, number)

    def _one_by_one(
        self, values: Iterable[Any], step: str, number: int
    ) -> Generator[list[Any] | None, None, None]:
        piece: list[Any] = []
        work = 0
        for number, value in enumerate(values, number):  # noqa: B020  # goes on from there
            try:
                encoded, more = yield from self._any(value)
            except RefusedError as refused:
                refused.steps.append(step.format(number))
                raise
            piece.append(encoded)
            work += more
            if work >= STEP:
                yield piece
                piece, work = [], 0
        yield piece

    def _dict_pieces(self, items: dict[Any, Any]) -> Iterator[Any]:
        pairs = iter(items.items())
        while part := dict(islice(pairs, _SLICE)):
            whole = self._in_one_step(self._dict, part)
            if whole is not None:
                yield whole
                continue
            piece: list[Any] = [marker(DICT_CODE)]
            work = 0
            for key, value in part.items():
                try:
                    encoded_key, _ = yield from self._any(key)
                except RefusedError as refused:
                    refused.steps.append(".keys()")
                    raise
                try:
                    encoded, more = yield from self._any(value)
                except RefusedError as refused:
                    refused.steps.append(f"[{_short(key)}]")
                    raise
                piece += (encoded_key, encoded)
                work += more
                if work >= STEP:
                    yield piece
                    piece, work = [marker(DICT_CODE)], 0
            yield piece

    def _in_one_step(self, encode: Callable[..., Values], *args: Any) -> Values | None:
        """Return what ``encode(*args)`` makes in one step, None where that does not cover it."""
        self._left = STEP
        n_segments, n_open = len(self.segments), len(self._open)
        try:
            return encode(*args)
        except _TooLongError:
            del self.segments[n_segments:]
            while len(self._open) > n_open:
                self._open.popitem()
            return None
        finally:
            self._done += STEP - max(self._left, 0)

    # -- within one step

    def _encoded(self, obj: Any) -> tuple[Any]:
        return (self._encode(obj),)

    def _encode(self, obj: Any) -> Any:
        cls = type(obj)
        if cls in NATIVE:
            if cls in _TEXT:
                self._spend_text(len(obj))
            return obj
        if cls is list:
            if self._is_plain(obj):
                return obj
            self._enter(obj)
            encoded: Any = self._each(obj, "[{}]", 0)
        elif cls is dict:
            if NATIVE.issuperset(map(type, obj)) and self._is_plain(obj.values()):
                return obj
            self._enter(obj)
            encoded = self._dict_of(obj)
        elif cls is tuple and self._is_plain(obj):
            return obj
        else:
            if cls not in BY_TYPE and self._types.of_class(cls) is None:
                return self._foreign(obj)
            if cls is bytearray:
                self._spend_text(len(obj))
            self._enter(obj)
            try:
                code, step, fields = self._fields(obj, cls)
            except TypeError as exc:
                encoded = self._pickled(obj, f"cannot travel as an object: {exc}")
            else:
                encoded = [marker(code), *self._each(fields, step, 0)]
        self._open.pop(id(obj), None)
        return encoded

    def _is_plain(self, values: Collection[Any], is_open: bool = False) -> bool:
        """Return whether msgpack and `_default` pack ``values``, and all that is in them, as they are.

        They count as done then. ``is_open``: the container of ``values`` was entered.
        """
        left = self._left
        # The innermost container is never entered.
        if self._levels_are_plain(values, MAX_DEPTH + is_open - len(self._open)):
            return True
        self._left = left
        return False

    def _levels_are_plain(self, values: Collection[Any], levels: int) -> bool:
        """As `_is_plain`, for values with at most ``levels`` levels of containers."""
        self._spend(len(values))  # before it looks at each of them
        if len(values) <= _FEW:
            return self._few_are_plain(values, levels)
        types = set(map(type, values))
        if not types <= _PLAIN:
            return False
        if not types.isdisjoint(_TEXT):
            self._spend_texts(values, types)
        return types <= NATIVE or (levels > 0 and self._rows_are_plain(values, types, levels - 1))

    def _few_are_plain(self, values: Collection[Any], levels: int) -> bool:
        text = 0
        for value in values:
            cls = type(value)
            if cls is str or cls is bytes:
                size = len(value)
                if size > LONG_BYTES:
                    raise _TooLongError
                text += size
            elif cls in _CONTAINERS:
                if not levels:
                    return False
                if cls is dict:
                    if not NATIVE.issuperset(map(type, value)):
                        return False
                    value = value.values()
                if not self._levels_are_plain(value, levels - 1):
                    return False
            elif cls not in NATIVE:
                return False
        self._spend(text >> _BYTES_SHIFT)
        return True

    def _rows_are_plain(self, values: Collection[Any], types: set[type], levels: int) -> bool:
        """Look at what is in the containers among ``values`` together, which is faster."""
        if len(types) > 1:
            dicts: Collection[Any] = [value for value in values if value.__class__ is dict]
            lists: Collection[Any] = [value for value in values if value.__class__ in _LISTS]
        else:
            dicts, lists = (values, ()) if dict in types else ((), values)
        if not NATIVE.issuperset(map(type, chain.from_iterable(dicts))):
            return False
        work = sum(map(len, dicts)) + sum(map(len, lists))
        if work > self._left:
            raise _TooLongError
        rows = [*map(dict.values, dicts), *lists]
        n_columns = len(rows[0])
        if n_columns < len(rows) and work == n_columns * len(rows):
            # Columns mostly have one type, so that their text need not be searched for.
            columns = []
            with suppress(ValueError):  # rows differ in length
                columns = list(zip(*rows, strict=True))
            if columns:
                return all(self._levels_are_plain(column, levels) for column in columns)
        return self._levels_are_plain(list(chain.from_iterable(rows)), levels)

    def _spend(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise _TooLongError

    def _spend_text(self, length: int) -> None:
        if length > LONG_BYTES:
            raise _TooLongError
        self._spend(length >> _BYTES_SHIFT)

    def _spend_texts(self, values: Iterable[Any], types: set[type]) -> None:
        if types <= _TEXT:
            sizes = [*map(len, values)]
        else:  # a comparison with two classes takes half the time of a look into `_TEXT`
            sizes = [len(v) for v in values if v.__class__ is str or v.__class__ is bytes]
        if max(sizes) > LONG_BYTES:
            raise _TooLongError
        self._spend(sum(sizes) >> _BYTES_SHIFT)

    def _enter(self, container: Any) -> None:
        if id(container) in self._open:
            raise RefusedError(InvalidUsageError, "contains itself, and objects travel as trees")
        if len(self._open) >= MAX_DEPTH:
            raise RefusedError(InvalidUsageError, f"is nested deeper than {MAX_DEPTH} levels")
        self._open[id(container)] = None

    def _list(self, values: list[Any], step: str, number: int) -> list[Any]:
        return values if self._is_plain(values, is_open=True) else self._each(values, step, number)

    def _dict(self, items: dict[Any, Any]) -> Any:
        """Encode a part of a dict that was entered."""
        if NATIVE.issuperset(map(type, items)) and self._is_plain(items.values(), is_open=True):
            return items
        return self._dict_of(items)

    def _each(self, values: Iterable[Any], step: str, number: int) -> list[Any]:
        out = []
        for number, value in enumerate(values, number):  # noqa: B020  # goes on from there
            self._spend(1)
            try:
                out.append(self._encode(value))
            except RefusedError as refused:
                refused.steps.append(step.format(number))
                raise
        return out

    def _keys(self, keys: Iterable[Any]) -> list[Any]:
        try:
            return self._each(keys, " key", 0)
        except RefusedError as refused:
            refused.steps[-1] = ".keys()"
            raise

    def _dict_of(self, items: dict[Any, Any]) -> Any:
        keys_native = NATIVE.issuperset(map(type, items))
        keys: Iterable[Any] = items if keys_native else self._keys(items)
        values = []
        for key, value in items.items():
            self._spend(1)
            try:
                values.append(self._encode(value))
            except RefusedError as refused:
                refused.steps.append(f"[{_short(key)}]")
                raise
        if keys_native:
            return dict(zip(keys, values, strict=True))
        return [marker(DICT_CODE), *chain.from_iterable(zip(keys, values, strict=True))]

    def _fields(self, obj: Any, cls: type) -> tuple[int, str, Iterable[Any]]:
        """Return the code of an object's record, how a path names its fields, and the fields."""
        known = self._types.of_class(cls)
        if known is None:
            record = BY_TYPE[cls]
            return record.code, record.step, record.split(obj)
        try:
            value = known.encode(obj)
        except Exception as exc:
            raise RefusedError(
                TypeError, f"cannot travel: the encode function of {known.name} raised {exc!r}"
            ) from exc
        return CLASS_CODE, "", (known.name, value)

    def _foreign(self, obj: Any) -> msgpack.ExtType:
        reason = f"is {_article(type(obj))}, which does not travel exactly as it is"
        for extension in self._extensions:
            try:
                found = extension.encode(obj)
            except (TypeError, ValueError) as exc:
                reason = f"cannot travel: {exc}"
                break
            if found is not None:
                return self._of_extension(*found)
        else:
            if type(obj).__module__ != "builtins":
                reason += ": register its class on all ranks (aiodist.register_type)"
        return self._pickled(obj, reason)

    def _of_extension(self, code: int, data: bytes, memory: memoryview | None) -> msgpack.ExtType:
        self._spend(_FOREIGN_WORK)
        if memory is None:
            return msgpack.ExtType(code, SEGMENT.pack(NO_SEGMENT) + data)
        if len(memory) <= SHORT_BYTES:
            self._spend(len(memory) >> _BYTES_SHIFT)
            start = SEGMENT.pack(IN_HEAD), DESCRIPTION.pack(len(data)), data
            return msgpack.ExtType(code, b"".join((*start, memory)))
        self.segments.append(memory)
        return msgpack.ExtType(code, SEGMENT.pack(len(self.segments) - 1) + data)

    def _pickled(self, obj: Any, reason: str) -> msgpack.ExtType:
        if not self._allow_pickle:
            raise RefusedError(
                TypeError,
                f"{reason}; pass allow_pickle=True here, or to init_process_group, on all ranks to "
                "pickle it",
            )
        try:
            return msgpack.ExtType(EXT_PICKLE, pickle.dumps(obj))
        except Exception as exc:
            refused = RefusedError(
                TypeError, f"is {_article(type(obj))} that cannot be pickled: {exc}"
            )
            raise refused from exc

    def _pack(self, tree: Any) -> bytes:
        try:
            packed: bytes = self._packer.pack(tree)
        except UnicodeEncodeError:  # lone surrogates, with which all text is packed more slowly
            packed = msgpack.packb(
                tree, default=_default, strict_types=True, unicode_errors="surrogatepass"
            )
        except (ValueError, OverflowError) as exc:
            raise InvalidUsageError(f"the object does not fit into a message: {exc}") from exc
        return packed


def marker(code: int) -> msgpack.ExtType:
    """Return what a record of that code begins with."""
    return msgpack.ExtType(EXT_MARKER, bytes((code,)))


_TUPLE = marker(BY_TYPE[tuple].code)


def _default(obj: Any) -> Any:
    """msgpack's hook for what it cannot pack, which after `Encoder` is a tuple or a large int."""
    if type(obj) is tuple:
        return [_TUPLE, *obj]
    length = obj.bit_length() // 8 + 1
    return msgpack.ExtType(EXT_BIG_INT, obj.to_bytes(length, "little", signed=True))


def _article(cls: type) -> str:
    module = "" if cls.__module__ == "builtins" else f"{cls.__module__}."
    return f"a {module}{cls.__qualname__}"


def _short(key: Any) -> str:
    try:
        text = repr(key)
    except Exception:  # noqa: BLE001  # of an int that is too long, or of a registered class
        text = f"<{type(key).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."
