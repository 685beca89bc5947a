"""What a rank is told about shared memory, and the memory itself."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aiodist.errors import InvalidUsageError
from aiodist.shared.memory import DEFAULT_BYTES, MIN_BYTES, SharedMemory

log = logging.getLogger("aiodist")

SHARED = "shm"
"""In AIODIST_TRANSPORT: shared memory among the ranks of one host, beside a stream."""


class Sharing(NamedTuple):
    """What a rank shares with the ranks of its host."""

    nbytes: int
    """Of its segment; 0 for none."""
    single_copy: bool = True
    """Whether tensors are read where they are, if the system allows it."""


NO_SHARING = Sharing(0)


def sharing_from(environ: Mapping[str, str], schemes: Sequence[str]) -> Sharing:
    """What AIODIST_SHM_BYTES and AIODIST_SINGLE_COPY say; nothing where ``schemes`` leave memory out.

    Raises InvalidUsageError.
    """
    text = environ.get("AIODIST_SHM_BYTES", "")
    if text and (not text.isdecimal() or 0 < int(text) < MIN_BYTES):
        raise InvalidUsageError(
            f"AIODIST_SHM_BYTES must be a number of bytes, 0 or at least {MIN_BYTES}, not {text!r}"
        )
    choice = environ.get("AIODIST_SINGLE_COPY", "")
    if choice not in ("", "0", "1"):
        raise InvalidUsageError(
            "AIODIST_SINGLE_COPY must be 1 (ranks of a host read each other's tensors where they are, "
            f"if the system allows it) or 0 (they do not), not {choice!r}"
        )
    if SHARED not in schemes:
        return NO_SHARING
    return Sharing(int(text) if text else DEFAULT_BYTES, choice != "0")


def memory_of(rank: int, sharing: Sharing) -> SharedMemory | None:
    """The memory to share with the ranks of this host, None where there is none or cannot be."""
    if not sharing.nbytes:
        return None
    try:
        return SharedMemory.create(rank, sharing.nbytes, sharing.single_copy)
    except OSError as error:
        log.warning("rank %d uses streams instead of shared memory: %s", rank, error)
        return None
