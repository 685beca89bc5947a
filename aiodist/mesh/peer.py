"""What a rank knows of one other rank: where it listens, the links to it, what was said last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from aiodist.mesh.chute import Chute
from aiodist.mesh.closing import Doubt
from aiodist.mesh.lanes import Landing, Lane
from aiodist.mesh.mailbox import Mailbox
from aiodist.mesh.outbox import Outbox
from aiodist.mesh.rank_info import Card
from aiodist.transport.base import Connection
from aiodist.wire.frames import Frame

if TYPE_CHECKING:
    from aiodist.mesh.harbour import Harbour
    from aiodist.mesh.inbox import Inbox


class PeerLink(Protocol):
    """What a peer needs of a connection to it whose handshake is done; `mesh.link.Link` is one."""

    connection: Connection
    peer_window: int
    """Bytes that the peer buffers of what this rank sends."""
    failed: BaseException | None
    """Why it was closed, None while it is open."""

    @property
    def bytes_heard(self) -> int:
        """How many bytes it has read."""

    def abort(self, error: BaseException) -> None:
        """Close it at once, because of ``error``."""


class Peer:
    """One other rank. Its first link that is ready carries all that this rank sends to it.

    Both ranks may connect at the same moment; each then sends on the link it made and reads
    both, so that the order of its messages is the order on one stream.
    """

    def __init__(self, card: Card, window: int, inbox: Inbox, harbour: Harbour) -> None:
        self.card = card
        self.rank = card.rank
        self.outbox = Outbox(harbour.soon, harbour.hear)
        self.window = window  # bytes that this rank buffers of what the peer sends
        self.charged = 0  # credit that its messages have taken and did not get back
        self.owed = 0  # of that, what is to be given back soon
        self.stalled = False  # the peer holds messages back for want of credit
        self.wants = 0  # how often it was asked for one at any credit, less those beyond that came
        self.said_goodbye = False
        self.last: Frame | None = None  # the last message that it began to send
        self.error: BaseException | None = None
        self.links: list[PeerLink] = []
        self.doubt: Doubt | None = None  # one of two links ended without a word
        self.watch: asyncio.TimerHandle | None = None  # a receive waits, and nobody ever connected
        self.connecting: asyncio.Task[Any] | None = None
        self.landing = Landing(self, inbox, harbour, self._broken)
        self.mailbox = Mailbox(self, inbox, harbour, self._broken)
        self._harbour = harbour

    def carry(self, link: PeerLink) -> None:
        """``link`` carries from now on what this rank sends."""
        harbour, lane, chute = self._harbour, None, None
        if harbour.memory is not None and harbour.memory.could_share([self.rank]):
            lane = Lane(self.rank, harbour, link.connection, self._broken)
            chute = Chute(self.rank, harbour.memory, harbour, link.connection, self._broken)
        self.outbox.connected(link.connection, link.peer_window, lane, chute)

    def polls(self) -> list[Callable[[], None]]:
        """What to call to take in what it has sent, and send what is queued for it."""
        polls = [self.mailbox.poll, *(link.connection.poll for link in self.links)]
        if self.outbox.lane is not None:
            polls.append(self._harbour.work)
        return polls

    def _broken(self, error: BaseException) -> None:
        for link in list(self.links):
            link.abort(error)

    @property
    def bytes_heard(self) -> int:
        """How many bytes its links have read, and how many came through shared memory."""
        taken = self.landing.bytes_taken + self.mailbox.bytes_taken
        return taken + sum(link.bytes_heard for link in self.links)
