"""Frames on the socket between an interactive program and one of its rank processes.

A frame is a kind, a length and as many bytes: a pickle of cloudpickle's, so that functions of a
notebook's cells travel too. Both ends are processes of one user, on a socket pair that no other
process can open.
"""

from __future__ import annotations

import importlib
import io
import struct
from collections import ChainMap
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import partial
from types import CodeType
from typing import Any, ClassVar

_HEAD = struct.Struct("<BQ")
HEAD_BYTES = _HEAD.size

END_MARK = b"\0aiodist: end of call\0\n"
"""What a rank writes to stdout and stderr after each call: all output of the call stands before it."""


class MarkedOutput:
    """Cuts what a rank writes to one stream at each `END_MARK`, and else behind line feeds."""

    def __init__(self) -> None:
        self.rest = bytearray()
        """What is held back: it has neither a line feed nor a whole mark."""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield pieces, with whether a mark follows. Each byte is searched twice at the most."""
        rest = self.rest
        begin = max(len(rest) - len(END_MARK), 0)
        rest += data
        while (end := rest.find(END_MARK, begin)) >= 0:
            piece, begin = bytes(rest[:end]), 0
            del rest[: end + len(END_MARK)]
            yield piece, True
        whole = rest.rfind(b"\n", begin) + 1
        piece = bytes(rest[:whole])
        del rest[:whole]
        yield piece, False


class FrameKind(IntEnum):
    """What a frame is."""

    CALL = 1
    """Call a function: ``(fn, args, kwargs)``."""
    RESULT = 2
    """What the function returned."""
    ERROR = 3
    """What the function raised: ``(exception, its traceback as text)``."""
    INTERRUPT = 4
    """End the call that was sent last, also if it has not begun."""


def pickler() -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Return cloudpickle's ``dumps`` and ``loads``. Raises ImportError with what to install."""
    try:
        module = importlib.import_module("cloudpickle")
    except ImportError as error:
        raise ImportError(
            "rank processes need the package cloudpickle: pip install 'aiodist[notebook]'"
        ) from error
    reduce = module.Pickler.dispatch_table[CodeType]

    class Pickler(module.Pickler):  # type: ignore[misc,name-defined]
        """cloudpickle's; from 3.1.3 on that forgets the files of functions, which tracebacks name."""

        dispatch_table: ClassVar[ChainMap[type, Any]] = ChainMap(
            {CodeType: partial(_reduced_with_file, reduce)}, module.Pickler.dispatch_table
        )

    def dumps(obj: Any) -> bytes:
        file = io.BytesIO()
        Pickler(file).dump(obj)
        return file.getvalue()

    return dumps, module.loads


def _reduced_with_file(reduce: Callable[[CodeType], Any], code: CodeType) -> tuple[Any, ...]:
    make, args = reduce(code)
    return _with_file, (make, args, code.co_filename)


def _with_file(make: Callable[..., CodeType], args: tuple[Any, ...], file: str) -> CodeType:
    return make(*args).replace(co_filename=file)


def encode(kind: FrameKind, payload: bytes) -> bytes:
    """Return the frame of ``kind`` with ``payload``."""
    return _HEAD.pack(kind, len(payload)) + payload


def decode_head(head: bytes) -> tuple[FrameKind, int]:
    """Return the kind of the frame that begins with ``head``, and the bytes of its payload."""
    kind, length = _HEAD.unpack(head)
    return FrameKind(kind), length
