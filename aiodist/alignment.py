"""Where in a page a message's data begins, so that the processor copies it at full speed.

For lengths from 2 KiB to an upper limit (`aiodist.copying`), ``memcpy`` uses the instruction ``rep
movsb`` if the processor reports that it is fast. The system's own copies, to and from sockets, use
it for any length. AMD's processors have reported that since Zen 3. They copy only about 2 GB/s
instead of 30 if the destination begins 1 to 31 bytes further from the start of its page than the
source (glibc's bug 30994).

User data begins at byte 64 of a page (large tensors of torch), 16 (large arrays of numpy), 48
(``bytes``) or 0 (pages), or in rows from there on. Data at byte 192 plus a multiple of 128 avoids
all four, in either direction of the copy. It also avoids their rows if these are multiples of 128
bytes, except for one row in 32 in ``bytes``.
"""

from __future__ import annotations

LEAD = 192
"""Offset of data from the start of a page."""

EVERY = 128
"""Data at `LEAD` plus a multiple of this is aligned as well."""

SHORT = 2048
"""Up to this length in bytes a copy takes nearly the same time wherever it begins."""


def up(nbytes: int) -> int:
    """Return ``nbytes`` rounded up to a multiple of `EVERY`."""
    return -(-nbytes // EVERY) * EVERY


def gap(head: int, length: int) -> int:
    """Return how many bytes to leave free between a head of ``head`` bytes and ``length`` bytes of data.

    The result is 0 for short data. The data then begins `LEAD` bytes behind the start of the head:
    the system puts the bytes of one call at the start of a page, unless bytes of an earlier call
    are still there.
    """
    return LEAD - head if length > SHORT and head < LEAD else 0
