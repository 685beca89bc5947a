"""Errors as they travel between ranks: class name, message and fields, never pickled code."""

from __future__ import annotations

import msgpack

from aiodist import errors
from aiodist.errors import CollectiveError, DistError


def encode_error(error: DistError) -> bytes:
    """``error`` in msgpack; only fields that are numbers, text or lists of these survive."""
    fields = {k: list(v) if isinstance(v, tuple) else v for k, v in error.fields.items()}
    packed: bytes = msgpack.packb([type(error).__name__, error.message, fields], default=str)
    return packed


def decode_error(data: bytes, src: int) -> DistError:
    """The error that rank ``src`` sent. Anything unreadable becomes a CollectiveError saying so."""
    try:
        name, message, fields = msgpack.unpackb(data)
        cls = getattr(errors, name)
        if isinstance(cls, type) and issubclass(cls, DistError):
            error: DistError = cls(message, **fields)
            return error
    except (ValueError, TypeError, AttributeError, msgpack.UnpackException):
        pass
    return CollectiveError(f"the operation failed on rank {src}, which gave no reason", rank=src)
