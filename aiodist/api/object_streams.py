"""Streams of objects between two ranks."""

from __future__ import annotations

from aiodist.errors import InvalidUsageError
from aiodist.groups.argument_checks import check_int, check_other, check_rank, check_tag, pickles
from aiodist.groups.collective_backend import ObjectStream, StreamSettings
from aiodist.groups.handle import Group
from aiodist.groups.world import current_world

DEFAULT_MAX_BYTES = 64 << 20


def open_stream(
    peer: int | None = None,
    tag: int = 0,
    window: int = 8,
    group: Group | None = None,
    group_peer: int | None = None,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    allow_pickle: bool | None = None,
) -> ObjectStream:
    """Open a stream of objects between this rank and another one.

    Both ranks open it with the same ``tag``, and both may send and receive::

        async with dist.open_stream(1) as stream:
            await stream.send(x)                 # rank 0

        async with dist.open_stream(0) as stream:
            async for x in stream: ...           # rank 1

    Objects arrive in the order in which they were sent: tensors, arrays, and what `send_object`
    takes. A sender that is further ahead than the receiver's limits waits. Each rank chooses its
    own limits.

    A stream may idle for any time: no timeout applies to it, so use ``asyncio.timeout`` around a
    call that needs one.

    Args:
        peer: The other rank's global rank. Pass it or ``group_peer``.
        tag: An integer of 64 bits that must be equal on both sides.
        window: How many objects this rank buffers before it reads them.
        group: The process group; None is the default group.
        group_peer: The other rank's number in the group, in place of ``peer``.
        max_bytes: How many bytes this rank buffers before it reads them. A longer object travels
            when nothing else is buffered.
        allow_pickle: Whether what has no other form may be pickled. None is the choice of
            `init_process_group`.

    Raises:
        InvalidUsageError: A stream with that peer and tag is open, a limit is below 1 or not below
            2**63, or this is not the event loop of ``init_process_group``.
    """
    pg = current_world().group_here(group)
    to = check_other(pg, check_rank(pg, peer, group_peer, "peer"), "peer")
    window, max_bytes = check_int(window, "window"), check_int(max_bytes, "max_bytes")
    for name, value in (("window", window), ("max_bytes", max_bytes)):
        if not 1 <= value < 1 << 63:  # the peer gets it as 64 bits
            raise InvalidUsageError(f"{name} must be at least 1 and below 2**63, not {value}")
    may_pickle = pickles(pg, allow_pickle)
    settings = StreamSettings(to, check_tag(tag), window, max_bytes, may_pickle)
    return pg.backend.open_stream(settings)
