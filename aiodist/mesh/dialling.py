"""The client's side of a handshake, up to its proof."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from aiodist.errors import DistNetworkError
from aiodist.transport.base import Connection


class Introducible(Protocol):
    """A connection that has just been made; `mesh.link.Link` and the hearts' lifelines are."""

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
