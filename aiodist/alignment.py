"""Where in a page data begins that is on its way: where the processor copies it at full speed.

``memcpy`` leaves stretches from 2 KiB on, until they get long (`aiodist.copying`), to the instruction
``rep movsb`` where the processor says that it is quick at it, and the system's own copies, to sockets and
from them, use it for any. AMD's processors say so since Zen 3, and yet they copy some 2 GB/s in place of
30 where the destination begins 1 to 31 bytes further from its page's begin than the source from its own
(glibc's bug 30994). What users have begins at byte 64 of a page (large tensors of torch), 16 (large arrays
of numpy), 48 (``bytes``) or 0 (pages), or in rows from there on. Data that begins at byte 192, or multiples
of 128 further, is out of the way of all four, whichever way it is copied, and of their rows where these are
multiples of 128 bytes, but for one in 32 in ``bytes``.
"""

from __future__ import annotations

LEAD = 192
"""How far behind the begin of a page data begins."""

EVERY = 128
"""What lies multiples of this further begins well, too."""

SHORT = 2048
"""So few bytes take as long wherever they begin, or nearly."""


def up(nbytes: int) -> int:
    """The next multiple of `EVERY`."""
    return -(-nbytes // EVERY) * EVERY


def gap(head: int, length: int) -> int:
    """How many bytes to leave free behind a head of ``head`` bytes, which ``length`` of data follow.

    0 where the data is short. The data then begins `LEAD` bytes behind the head's begin: the system puts
    what one call sends at the begin of a page, unless there is still something of an earlier one.
    """
    return LEAD - head if length > SHORT and head < LEAD else 0
