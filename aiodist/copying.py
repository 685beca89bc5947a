"""Copying large data in pieces: what is copied in one go is copied more slowly.

``memcpy`` leaves stretches from 2 KiB on to the instruction ``rep movsb``, on AMD's processors those that
are shorter than a core's second-level cache, 512 KiB or 1 MiB. That instruction writes whole lines without
reading them first. Longer stretches are written by ordinary stores, which fetch each line before they
overwrite it: from memory, or from the core of another rank that has read it.
"""

from __future__ import annotations

import os
import sys

_SECOND_LEVEL = 191  # glibc's _SC_LEVEL2_CACHE_SIZE, for which Python has no name
_LEAST = 256 << 10


def _half_a_cache() -> int:
    """Half of what glibc takes for a core's second-level cache, in pages; at least 256 KiB."""
    try:
        cache = os.sysconf(_SECOND_LEVEL) if sys.platform == "linux" else 0
    except (OSError, ValueError):  # another C library
        cache = 0
    return max(cache // 2 & -4096, _LEAST)


AT_ONCE = _half_a_cache()
"""Bytes of a piece: well below where ``memcpy`` changes its ways."""


def copy(into: memoryview, data: memoryview) -> None:
    """``into[:] = data``, of bytes."""
    if len(into) <= AT_ONCE or len(into) != len(data):  # which the assignment refuses
        into[:] = data
        return
    for start in range(0, len(into), AT_ONCE):
        piece = slice(start, start + AT_ONCE)
        into[piece] = data[piece]
