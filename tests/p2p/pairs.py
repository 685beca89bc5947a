"""Two ranks without a loop: real links, inboxes and outboxes over streams the test moves by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from aiodist.links.rank_info import RankInfo
from aiodist.p2p.inbox import Inbox
from aiodist.p2p.link import Link
from aiodist.p2p.matching import Recv
from aiodist.p2p.outbox import Send
from aiodist.p2p.peer import Peer
from aiodist.p2p.shm_progress import ShmProgress
from aiodist.p2p.spin_policy import SpinPolicy
from aiodist.shm.message_ring import RingReader, RingWriter
from aiodist.shm.shared_memory import SharedMemory
from aiodist.transport.base_transport import Connection, OnSent, Receiver
from aiodist.wire.frames import Frame, Key
from aiodist.wire.handshake import Handshake
from tests.shm.damage import ring_bytes

WINDOW = 4096


class Stream(Connection):
    """One end. ``push`` moves queued bytes to the other end, as many as the test says."""

    scheme = "test"

    def __init__(self, name: str) -> None:
        self.peer_name = name
        self.other: Stream | None = None
        self.receiver: Receiver | None = None
        self.queue: deque[tuple[memoryview, OnSent | None]] = deque()
        self.closed = False

    def start(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def send(self, parts: Sequence[memoryview | bytes], on_sent: OnSent | None = None) -> None:
        assert not self.closed
        for position, part in enumerate(parts):
            last = position == len(parts) - 1
            self.queue.append((memoryview(part), on_sent if last else None))

    def push(self, most: int) -> int:
        """Deliver at most ``most`` bytes; how many it were."""
        moved = 0
        while self.queue and moved < most:
            view, on_sent = self.queue[0]
            receiver = self.other.receiver if self.other is not None else None
            assert receiver is not None
            buffer = receiver.get_buffer()
            count = min(len(buffer), len(view), most - moved)
            buffer[:count] = view[:count]
            moved += count
            # The kernel has the bytes before the other side reads them.
            if count == len(view):
                self.queue.popleft()
                if on_sent is not None:
                    on_sent(None)
            else:
                self.queue[0] = (view[count:], on_sent)
            receiver.received(count)
        return moved

    def release(self, memory: memoryview) -> None:
        for place, (view, on_sent) in enumerate(self.queue):
            if view.obj is memory.obj:
                self.queue[place] = memoryview(bytes(view)), on_sent

    def queued(self) -> int:
        return sum(len(view) for view, _ in self.queue)

    async def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True
        while self.queue:
            _, on_sent = self.queue.popleft()
            if on_sent is not None:
                on_sent(OSError("aborted"))


class Side:
    """One rank of two: what an endpoint is to its links."""

    def __init__(
        self,
        rank: int,
        window: int,
        soon: list[Callable[[], None]],
        memory: SharedMemory | None,
    ) -> None:
        self.rank = rank
        self.over: set[Key] = set()
        self.late: list[tuple[Key, int, bytes, int]] = []
        self.inbox = Inbox(2, self.over.__contains__, lambda *what: self.late.append(what))
        rank_info = RankInfo(1 - rank, "host", "id", 1, ())
        self.spin_policy = SpinPolicy(soon.append)
        self.shm_progress = ShmProgress(memory, self.spin_policy)
        self.peer = Peer(rank_info, window, self.inbox, self.shm_progress)
        self.inbox.add_source(self.peer)
        self.stream = Stream(f"rank {1 - rank}")
        self.link = Link(self, self.stream, Handshake(b"key", rank, 2, window))
        self.aborts: list[bytes] = []
        self.lost: list[BaseException | None] = []

    # p2p.link.Owner

    def greeted(self, link: Link) -> bool:
        return True

    def proven(self, link: Link, rank: int) -> Peer:
        self.peer.links.append(link)
        self.peer.carry(link)
        return self.peer

    def status_queried(self, peer: Peer, frame: Frame) -> None:
        raise AssertionError("no roll is called here")

    status_answered = loss_notice_arrived = status_queried

    def link_lost(self, link: Link, error: BaseException | None) -> None:
        self.lost.append(error)
        if self.peer.error is None:
            self.peer.error = ConnectionError("peer lost")
            self.peer.outbox.fail(self.peer.error)
            self.inbox.peer_lost(self.peer, self.peer.error)

    # p2p.endpoint_events.EndpointEvents

    @property
    def events(self) -> Side:
        return self

    def collective_failed(self, src: int, group: int, sequence: int, error: memoryview) -> None:
        self.aborts.append(bytes(error))

    # the test's calls

    @property
    def ring(self) -> RingWriter:
        """The ring in which this side sends."""
        shm = self.peer.outbox.shm
        assert shm is not None
        assert shm.ring is not None
        return shm.ring

    @property
    def ring_read(self) -> RingReader:
        """The ring from which this side receives."""
        ring = self.peer.shm_receiver.ring
        assert ring is not None
        return ring

    @property
    def ring_bytes(self) -> memoryview:
        """The bytes of `ring`, to damage them."""
        assert self.shm_progress.memory is not None
        return ring_bytes(self.shm_progress.memory, self.ring)

    def send(self, key: Key, data: bytes | bytearray, meta: bytes = b"m") -> Send:
        message = Send(key, memoryview(data), meta)
        self.peer.outbox.send(message)
        return message

    def recv(self, key: Key, size: int | None, src: int | None = None) -> Recv:
        """``size`` None: into memory made for the message."""
        source = 1 - self.rank if src is None else src
        into = None if size is None else memoryview(bytearray(size))
        one = Recv(key, source, into, b"m", _refuse_length, lambda _, n: memoryview(bytearray(n)))
        if into is not None:
            one.allocate = None
        self.inbox.post(one)
        return one


def content(recv: Recv) -> bytes:
    """What ``recv`` has received, without an error."""
    assert recv.done
    assert recv.error is None
    assert recv.into is not None
    return bytes(recv.into)


def _refuse_length(recv: Recv, src: int, meta: bytes, length: int) -> BaseException | None:
    if recv.into is not None and len(recv.into) != length:
        return ValueError(f"{length} bytes for {len(recv.into)}")
    return ValueError("meta") if meta != b"m" else None


class Pair:
    """Two ranks, connected; nothing has been delivered yet but the handshake."""

    def __init__(
        self, window: int = WINDOW, *, handshake: bool = True, shared_bytes: int = 0
    ) -> None:
        """``shared_bytes``: of memory that the two share, to be closed by `close`."""
        self.soon: list[Callable[[], None]] = []
        memories: list[SharedMemory | None] = [None, None]
        if shared_bytes:
            shared = [SharedMemory.create(rank, shared_bytes) for rank in range(2)]
            for memory in shared:
                memory.meet({m.rank: m.description for m in shared})
            memories = [*shared]
        self.memories = memories
        self.a = Side(0, window, self.soon, memories[0])
        self.b = Side(1, window, self.soon, memories[1])
        self.a.stream.other, self.b.stream.other = self.b.stream, self.a.stream
        self.b.link.start()
        self.a.link.start(1)
        if handshake:
            self.settle()

    def run_soon(self) -> bool:
        calls, self.soon[:] = list(self.soon), []
        for call in calls:
            call()
        return bool(calls)

    def settle(self) -> None:
        """Deliver everything, until nothing moves."""
        while self.settle_once():
            pass

    def settle_once(self) -> bool:
        """Deliver what is on its way now; whether there may be more."""
        return bool(
            self.a.stream.push(1 << 40) + self.b.stream.push(1 << 40)
            or self.run_soon()
            or self.a.stream.queue
            or self.b.stream.queue
        )

    def close(self) -> None:
        """Give the shared memory back."""
        self.a.shm_progress.close()
        self.b.shm_progress.close()

    def lose(self, side: Side, error: BaseException | None = None) -> None:
        """``side`` sees the end of the stream."""
        receiver, side.stream.receiver = side.stream.receiver, None
        if receiver is not None:
            receiver.lost(error)
        side.stream.abort()
