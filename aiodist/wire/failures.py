"""Errors as they travel between ranks: class name, message and fields, never pickled code."""

from __future__ import annotations

import msgpack

import aiodist.errors as errors
from aiodist.errors import CollectiveError, DistError

MAX_MESSAGE = 64 * 1024
"""The most characters of a message that are sent; an exception may print a whole tensor."""

_MAX_FIELDS = 256 * 1024


def encode_error(error: DistError) -> bytes:
    """Encode ``error`` in msgpack; only fields that are numbers, text or lists of these are kept."""
    name = type(error).__name__
    message = _text(error.message)
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + " ..."
    fields = {k: list(v) if isinstance(v, tuple) else v for k, v in error.fields.items()}
    try:
        if len(msgpack.packb(fields, default=str)) > _MAX_FIELDS:
            fields = {}
        packed: bytes = msgpack.packb([name, message, fields], default=str)
    except (ValueError, OverflowError):  # text that is no Unicode, a number beyond 64 bits
        packed = msgpack.packb([name, message, {}])
    return packed


def _text(message: str) -> str:
    return message.encode("utf-8", "replace").decode()


def decode_error(data: bytes, src: int) -> DistError:
    """Decode the error that rank ``src`` sent. A malformed one becomes a CollectiveError that says
    so.
    """
    try:
        name, message, fields = msgpack.unpackb(data)
        cls = getattr(errors, name)
        if isinstance(cls, type) and issubclass(cls, DistError):
            error: DistError = cls(message, **fields)
            return error
    except (ValueError, TypeError, AttributeError, msgpack.UnpackException):
        pass
    return CollectiveError(f"the operation failed on rank {src}, which gave no reason", rank=src)
