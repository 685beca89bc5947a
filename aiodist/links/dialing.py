"""The client's side of a handshake, up to its proof; what is said of a rank that answers nowhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from aiodist.errors import DistError, DistNetworkError
from aiodist.links.losses import LEFT
from aiodist.transport.base import Connection

_NOBODY = ConnectionRefusedError, FileNotFoundError
"""What the system says where nobody listens: a Unix socket on disk goes with its listener."""


class Introducible(Protocol):
    """A connection that has just been made; `p2p.link.Link` and the heartbeat threads' heartbeat
    connections are.
    """

    connection: Connection
    on_proven: Callable[[BaseException | None], None] | None

    def start(self, server_rank: int | None = None) -> None: ...


async def introduce(link: Introducible, rank: int, seconds: float) -> None:
    """Prove to ``rank`` who this is, and have it proven who answers there.

    Raises DistNetworkError, or whatever ended the connection. Failed or cancelled, it is closed.
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
    """Why a rank counts as gone that answers nowhere; continues a sentence that begins with it.

    ``tried``: what came of each of its addresses. ``left``: it is known to have gone in good order.
    """
    if left:
        return LEFT
    if not tried:
        return "cannot be reached: it offers no transport that this rank has"
    if all(map(_is_refusal, tried.values())):
        # They listen from before anybody learns their addresses until they end, well or badly.
        told = "; ".join(map(str, tried.values()))
        return f"has probably left, or its process has ended: {told}"
    told = "; ".join(f"{address}: {error}" for address, error in tried.items())
    return f"cannot be reached: {told}"


def _is_refusal(error: DistError) -> bool:
    cause = error.__cause__
    while isinstance(cause, DistError):  # of one of several streams
        cause = cause.__cause__
    return isinstance(cause, _NOBODY)
