"""Recognize the first bytes of a program that speaks another protocol."""

from __future__ import annotations

_HTTP_METHODS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"CONN", b"PATC", b"TRAC")
_QUOTED_BYTES = 32


def foreign_protocol(first: bytes) -> str | None:
    """Return text for the sender of ``first``, such as "it is an HTTP client"; None for unknown bytes.

    The text is one line of printable characters.
    """
    if first.startswith(b"\x16\x03"):
        return "it speaks TLS"
    if first.startswith(_HTTP_METHODS):
        return f"it is an HTTP client (it said {first[:_QUOTED_BYTES]!r})"
    if first.startswith(b"HTTP/"):
        return f"it is an HTTP server (it said {first[:_QUOTED_BYTES]!r})"
    return None
