"""The client's side of a handshake up to the proof, and the error text for an unreachable rank."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from aiodist.errors import DistError, DistNetworkError
from aiodist.links.losses import LEFT
from aiodist.transport.base_transport import Connection

_NOBODY = ConnectionRefusedError, FileNotFoundError
"""Errors of the system if no process listens. A Unix socket on disk goes with its listener."""


class Introducible(Protocol):
    """A new connection: a `p2p.link.Link`, or a `liveness.heartbeat_connection.HeartbeatConnection`."""

    connection: Connection
    on_proven: Callable[[BaseException | None], None] | None

    def start(self, server_rank: int | None = None) -> None: ...


async def introduce(link: Introducible, rank: int, seconds: float) -> None:
    """Prove this rank's identity to ``rank``, and wait until the other side has proven its own.

    Raises DistNetworkError, or the error that ended the connection. If it fails or is cancelled,
    the connection is closed.
    """
    proven: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def answer(error: BaseException | None) -> None:
        if not proven.done():
            proven.set_result(error)

    link.on_proven = answer
    try:
        link.start(rank)
        async with asyncio.timeout(seconds):
            error = await proven
    except TimeoutError:
        link.connection.abort()
        raise DistNetworkError("no answer to the handshake in time") from None
    except BaseException:
        link.connection.abort()
        raise
    if error is not None:
        link.connection.abort()
        raise error


def unreachable(tried: Mapping[str, DistError], *, left: bool) -> str:
    """Return why a rank counts as gone that answers at no address; the text follows the rank's name.

    ``tried``: the error of each of its addresses. ``left``: the rank is known to have left in good
    order.
    """
    if left:
        return LEFT
    if not tried:
        return (
            "cannot be reached: it offers no transport that this rank has; let AIODIST_TRANSPORT "
            "on both ranks name a transport in common that crosses hosts, such as tcp"
        )
    if all(map(_is_refusal, tried.values())):
        # A rank listens from before its addresses are known until its process ends.
        told = "; ".join(map(str, tried.values()))
        return f"has probably left, or its process has ended: {told}"
    told = "; ".join(f"{address}: {error}" for address, error in tried.items())
    return f"cannot be reached: {told}"


def _is_refusal(error: DistError) -> bool:
    cause = error.__cause__
    while isinstance(cause, DistError):  # the cause of one of several streams
        cause = cause.__cause__
    return isinstance(cause, _NOBODY)
