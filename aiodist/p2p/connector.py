"""How a rank connects to another one: address by address, and again where that may help."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence

from aiodist.deadline import Deadline
from aiodist.errors import DistError
from aiodist.links.dialing import CONNECT_SECONDS, authenticate, needs_a_person, retry_seconds_after
from aiodist.links.rank_info import RankInfo, reachable_at
from aiodist.p2p.link import Link
from aiodist.p2p.peer import Peer
from aiodist.transport.base_transport import Connection, Transport
from aiodist.transport.pending_handshakes import HANDSHAKE_SECONDS
from aiodist.turning_timer import TurningClock

log = logging.getLogger("aiodist")

_PAUSE_SECONDS = (0.1, 1.0)
"""Seconds before the addresses of a rank are dialled again: at first, and after that many seconds."""

_LONGEST_HANDSHAKE = 300.0
"""The most seconds that a handshake may take at an address that does not answer."""


class Connector:
    """The client's side of one rank's connections."""

    def __init__(
        self,
        transports: Sequence[Transport],
        new_link: Callable[[Connection], Link],
        has_left: Callable[[Peer], bool],
        *,
        watched: bool,
    ) -> None:
        """``has_left(peer)``: whether the peer is known to have left in good order. ``watched``: as of
        `retry_seconds_after`.
        """
        self._transports = {transport.scheme: transport for transport in transports}
        self._new_link = new_link
        self._has_left = has_left
        self._watched = watched
        self._links: set[Link] = set()  # whose handshakes are under way
        self._complained = False

    async def connect(self, peer: Peer, own: RankInfo) -> dict[str, DistError] | None:
        """Connect to ``peer``, by its addresses in its order of preference.

        ``own``: this rank's info. Return None if the peer has answered; it may have connected to this
        rank meanwhile. Else return the error of each address, if none works, nor will by what they
        tell (`retry_seconds_after`).
        """
        clock = TurningClock(asyncio.get_running_loop())
        try:
            return await self._connect(peer, own, clock)
        finally:
            clock.stop()

    async def _connect(
        self, peer: Peer, own: RankInfo, clock: TurningClock
    ) -> dict[str, DistError] | None:
        """As `connect`; ``clock`` counts the time in which the addresses are dialled again."""
        began, limit = 0.0, HANDSHAKE_SECONDS
        often, seldom = _PAUSE_SECONDS
        while True:
            tried = await self._try_addresses(peer, own, limit)
            if tried is None or peer.links or peer.error is not None:
                return None
            retry_seconds = max(
                (retry_seconds_after(error, watched=self._watched) for error in tried.values()),
                default=0.0,
            )
            if retry_seconds == math.inf:
                # Each time longer: a connection that was given up stays in the queue of a listener
                # whose loop stands still, and that queue has an end.
                began, limit = clock.seconds, min(2 * limit, _LONGEST_HANDSHAKE)
            elif clock.seconds - began >= retry_seconds:
                return tried
            if self._has_left(peer):
                return tried
            self._complain(peer, own, tried)
            await asyncio.sleep(often if clock.seconds - began < seldom else seldom)

    def close_in_child(self) -> None:
        """Close in a forked child the connections whose handshakes are under way."""
        for link in self._links:
            link.connection.close_in_child()

    async def _try_addresses(
        self, peer: Peer, own: RankInfo, limit: float
    ) -> dict[str, DistError] | None:
        tried: dict[str, DistError] = {}
        for address in peer.rank_info.addresses:
            if not reachable_at(address, peer.rank_info, own, self._transports):
                continue
            transport = self._transports[address.partition(":")[0]]
            deadline = Deadline(CONNECT_SECONDS)
            try:
                await self._dial(peer, await transport.connect(address, deadline), limit)
            except DistError as error:
                tried[address] = error
            else:
                return None
        return tried

    async def _dial(self, peer: Peer, connection: Connection, limit: float) -> None:
        link = self._new_link(connection)
        self._links.add(link)
        try:
            await authenticate(link, peer.rank, limit)
        finally:
            self._links.discard(link)

    def _complain(self, peer: Peer, own: RankInfo, tried: Mapping[str, DistError]) -> None:
        """Say once why this rank still tries, where a person may have to change something."""
        error = next(filter(needs_a_person, tried.values()), None)
        if error is not None and not self._complained:
            self._complained = True
            log.warning(
                "rank %d cannot connect to rank %d, and tries again: %s",
                own.rank,
                peer.rank,
                error,
            )
