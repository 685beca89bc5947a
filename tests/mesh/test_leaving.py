"""A rank leaves over two streams at once; whichever end is seen first, its last words count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiodist.deadline import Deadline
from aiodist.errors import PeerLostError
from aiodist.mesh.endpoint import Endpoint
from aiodist.mesh.link import Link
from aiodist.mesh.peer import Card
from aiodist.transport.inproc import InprocHub, InprocTransport
from aiodist.wire.frames import Key
from aiodist.wire.handshake import Handshake

KEY = bytes(32)


class Events:
    """The world as the endpoint sees it."""

    def __init__(self) -> None:
        self.lost: list[tuple[int, bool]] = []

    def is_over(self, key: Key) -> bool:
        return False

    def late(self, key: Key, src: int, meta: bytes) -> None:
        raise AssertionError("no message was sent")

    def peer_lost(self, rank: int, error: PeerLostError, *, departed: bool) -> None:
        self.lost.append((rank, departed))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            if condition():
                return
            await asyncio.sleep(0)


async def test_a_stream_that_ends_while_another_still_introduces_itself() -> None:
    hub = InprocHub()
    transport = InprocTransport(hub)
    events = Events()
    endpoint = Endpoint(0, 2, [transport], events)  # type: ignore[arg-type]  # all that is asked
    card = await endpoint.open()
    endpoint.meet([card, Card(1, "host", "id", 1, ())], KEY)

    stream = await transport.connect(card.addresses[0], Deadline(10))
    proven: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    far = Link(_Far(proven), stream, Handshake(KEY, 1, 2, 1 << 20))  # type: ignore[arg-type]
    far.start(0)
    await proven
    links = endpoint._peers[1].links
    await until(lambda: bool(links))
    # A second stream, on which rank 1 has not said a word yet; then the first one ends.
    second = await transport.connect(card.addresses[0], Deadline(10))
    await until(lambda: bool(endpoint._strangers))
    stream.abort()
    await until(lambda: links[0].failed is not None)
    assert events.lost == []
    second.abort()
    await endpoint.close()


class _Far:
    """Rank 1's side, as far as a handshake needs it."""

    def __init__(self, proven: asyncio.Future[None]) -> None:
        self._proven = proven

    def proven(self, link: Link, rank: int) -> None:
        self._proven.set_result(None)

    def link_lost(self, link: Link, error: BaseException | None) -> None:
        """It ends when the test does."""
