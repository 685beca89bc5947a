"""The settings of shared memory, and a rank's segment."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from aiodist.errors import InvalidUsageError
from aiodist.shm.shared_memory import DEFAULT_BYTES, MIN_BYTES, SharedMemory

log = logging.getLogger("aiodist")

SHARED = "shm"
"""In AIODIST_TRANSPORT: shared memory among the ranks of one host, beside a stream."""


def shared_bytes_from(environ: Mapping[str, str], schemes: Sequence[str]) -> int:
    """Return how many bytes AIODIST_SHM_BYTES lets a rank share; 0 if ``schemes`` have no shared memory."""
    text = environ.get("AIODIST_SHM_BYTES", "")
    if text and not (text.isdecimal() and (int(text) == 0 or MIN_BYTES <= int(text) < 1 << 63)):
        raise InvalidUsageError(
            f"AIODIST_SHM_BYTES must be a number of bytes, 0 or at least {MIN_BYTES} and below "
            f"2**63, not {text!r}"
        )
    if SHARED not in schemes:
        return 0
    return int(text) if text else DEFAULT_BYTES


def memory_of(rank: int, nbytes: int) -> SharedMemory | None:
    """Return ``nbytes`` to share with the ranks of this host; None for 0, or if the system refuses."""
    if not nbytes:
        return None
    try:
        return SharedMemory.create(rank, nbytes)
    except OSError as error:
        log.warning("rank %d uses streams instead of shared memory: %s", rank, error)
        return None
