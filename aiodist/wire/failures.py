"""Errors as they travel between ranks: class name, message and fields, never pickled code."""

from __future__ import annotations

from typing import Any

import msgpack

import aiodist.errors as errors
from aiodist.errors import CollectiveError, DistError

MAX_MESSAGE = 64 * 1024
"""The most characters of a message that are sent; an exception may print a whole tensor."""

_MAX_FIELD = 32 * 1024
"""The most characters of a field, such as a traceback, which repeats the message."""

_MAX_FIELDS = 256 * 1024


def encode_error(error: DistError) -> bytes:
    """Encode ``error`` in msgpack; only fields that are numbers, text or lists of these are kept."""
    name = type(error).__name__
    message = _text(error.message, MAX_MESSAGE)
    fields = {k: _field(v) for k, v in error.fields.items()}
    try:
        if len(msgpack.packb(fields, default=str)) > _MAX_FIELDS:
            fields = {}
        packed: bytes = msgpack.packb([name, message, fields], default=str)
    except (ValueError, OverflowError):  # text that is no Unicode, a number beyond 64 bits
        packed = msgpack.packb([name, message, {}])
    return packed


def _text(text: str, most: int) -> str:
    """Return at most ``most`` characters of ``text``, without what Unicode does not have."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else text[:most] + " ..."


def _field(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value, _MAX_FIELD)
    return list(value) if isinstance(value, tuple) else value


def decode_error(data: bytes, src: int) -> DistError:
    """Decode the error that rank ``src`` sent. A malformed one becomes a CollectiveError that says so."""
    try:
        name, message, fields = msgpack.unpackb(data)
        cls = getattr(errors, name)
        is_error = isinstance(cls, type) and issubclass(cls, DistError)
        # A field becomes an attribute. It must not replace an attribute that every error has.
        taken = [field for field in fields if field.startswith("_") or hasattr(cls, field)]
        if is_error and type(message) is str and not taken:
            error: DistError = cls(message, **fields)
            return error
    except (ValueError, TypeError, AttributeError, msgpack.UnpackException):
        pass
    return CollectiveError(f"the operation failed on rank {src}, which gave no reason", rank=src)
