"""The state that a rank keeps for one peer: its addresses, the links to it, the traffic both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from aiodist.links.closing_streams import LossSuspicion
from aiodist.links.rank_info import RankInfo
from aiodist.p2p.direct_receiver import DirectReceiver
from aiodist.p2p.outbox import Outbox
from aiodist.p2p.shm_receiver import ShmReceiver
from aiodist.p2p.shm_sender import ShmSender
from aiodist.transport.base_transport import Connection
from aiodist.wire.frames import Frame

if TYPE_CHECKING:
    from aiodist.p2p.inbox import Inbox
    from aiodist.p2p.shm_progress import ShmProgress


class PeerLink(Protocol):
    """What a peer needs of a connection to it whose handshake is done; `p2p.link.Link` is one."""

    connection: Connection
    peer_window: int
    """Bytes that the peer buffers of what this rank sends."""
    failed: BaseException | None
    """Why the connection was closed, or None while it is open."""

    @property
    def bytes_heard(self) -> int:
        """Return how many bytes the connection has read."""

    def abort(self, error: BaseException) -> None:
        """Close the connection at once because of ``error``."""


class Peer:
    """One other rank. Its first proven link carries all that this rank sends to it.

    Both ranks may connect at the same moment. Each then sends on the link that it dialled and reads
    both. The order of a rank's messages is therefore the order on one stream.
    """

    def __init__(
        self, rank_info: RankInfo, window: int, inbox: Inbox, shm_progress: ShmProgress
    ) -> None:
        self.rank_info = rank_info
        self.rank = rank_info.rank
        self.outbox = Outbox(shm_progress.call_after_turn, shm_progress.note_progress)
        self.window = window  # Bytes that this rank buffers of what the peer sends.
        self.charged = 0  # Credit that its messages have used and that was not returned.
        self.owed = 0  # The part of it that will be returned with the next CREDIT frame.
        self.stall = 0  # The number of its last STALLED; 0 where it holds no messages back.
        self.wants = 0  # Receives asked for since its last question for all, less the excess.
        self.said_goodbye = False  # on a stream, or it counts so
        self.has_departed = False  # the heartbeat threads have heard its goodbye
        self.last: Frame | None = None  # the last message that it began to send
        self.error: BaseException | None = None
        self.links: list[PeerLink] = []
        self.suspicion: LossSuspicion | None = None  # a link on which it had sent nothing has ended
        self.watch: asyncio.TimerHandle | None = None  # a receive waits and there is no link yet
        self.connecting: asyncio.Task[Any] | None = None
        self.shm_receiver = ShmReceiver(self, inbox, shm_progress, self._broken)
        self.direct_receiver = DirectReceiver(self, inbox, shm_progress)
        self._shm_progress = shm_progress

    def carry(self, link: PeerLink) -> None:
        """Send all further messages to the peer on ``link``."""
        shm_progress, shm = self._shm_progress, None
        if shm_progress.memory is not None and shm_progress.memory.could_share([self.rank]):
            shm = ShmSender(
                self.rank, shm_progress.memory, shm_progress, link.connection, self._broken
            )
        self.outbox.connected(link.connection, link.peer_window, shm)

    def abandon(self) -> None:
        """Make void what the peer reads from now on: the program goes on without the loop."""
        if self.outbox.shm is not None:
            self.outbox.shm.withdraw()

    def polls(self) -> list[Callable[[], None]]:
        """Return the functions that read what the peer has sent and write what is queued for it."""
        polls = [self.shm_receiver.poll, *(link.connection.poll for link in self.links)]
        if self.outbox.shm is not None:
            polls.append(self._shm_progress.work)
        return polls

    def _broken(self, error: BaseException) -> None:
        for link in list(self.links):
            link.abort(error)

    @property
    def bytes_heard(self) -> int:
        """Return how many bytes its links have read, and how many came through shared memory."""
        taken = self.shm_receiver.bytes_taken + self.direct_receiver.bytes_taken
        return taken + sum(link.bytes_heard for link in self.links)
