"""What a rank knows of one other rank: where it listens, the links to it, what was said last."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgpack

from aiodist.errors import ProtocolError, name_of
from aiodist.mesh.chute import Chute
from aiodist.mesh.lanes import Landing, Lane
from aiodist.mesh.mailbox import Mailbox
from aiodist.mesh.outbox import Outbox
from aiodist.wire.frames import Frame

if TYPE_CHECKING:
    from aiodist.mesh.harbour import Harbour
    from aiodist.mesh.inbox import Inbox
    from aiodist.mesh.link import Link
    from aiodist.mesh.losses import Doubt

_LOCAL_SCHEMES = ("unix",)


@dataclass(frozen=True)
class Card:
    """What a rank tells the others about itself when they meet."""

    rank: int
    host: str
    """Host name, for messages."""
    host_id: str
    """Equal on ranks that run under one kernel: only those try the transports of one host."""
    pid: int
    addresses: tuple[str, ...]
    """Where it listens, best first."""
    lifelines: tuple[str, ...] = ()
    """Where its heart listens, likewise."""
    segment: str = ""
    """How to map the memory that it shares with the ranks of its host; empty where it has none."""

    def encode(self) -> bytes:
        places = [list(self.addresses), list(self.lifelines)]
        fields = [self.rank, self.host, self.host_id, self.pid, self.segment, *places]
        packed: bytes = msgpack.packb(fields)
        return packed

    @property
    def mark(self) -> bytes:
        """Tells this process from another that has, had, or will have its rank."""
        return hashlib.blake2b(self.encode(), digest_size=8).digest()

    @classmethod
    def decode(cls, data: bytes) -> Card:
        try:
            rank, host, host_id, pid, segment, *places = msgpack.unpackb(data)
            addresses, lifelines = (tuple(map(str, place)) for place in places)
            who = int(rank), str(host), str(host_id), int(pid)
            return cls(*who, addresses, lifelines, str(segment))
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise ProtocolError("a rank introduced itself in a form nobody understands") from error

    def __str__(self) -> str:
        return name_of(self.rank, self.host, self.pid)


def reachable_at(address: str, there: Card, here: Card, schemes: Container[str]) -> bool:
    """Whether ``here`` can try ``address`` of ``there``, having transports for ``schemes``."""
    scheme = address.partition(":")[0]
    return scheme in schemes and (scheme not in _LOCAL_SCHEMES or there.host_id == here.host_id)


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
        self.links: list[Link] = []
        self.doubt: Doubt | None = None  # one of two links ended without a word
        self.watch: asyncio.TimerHandle | None = None  # a receive waits, and nobody ever connected
        self.connecting: asyncio.Task[Any] | None = None
        self.landing = Landing(self, inbox, harbour, self._broken)
        self.mailbox = Mailbox(self, inbox, harbour, self._broken)
        self._harbour = harbour

    def carry(self, link: Link) -> None:
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
