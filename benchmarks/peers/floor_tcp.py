"""A lower bound for the network without any library: TCP connections, shared memory, numpy.

No check of arguments, no event loop, no header on a message, no failure but a wait that lasts too
long. So its times are no library's to reach, and what it does not reach itself, Python over this
network does not. Ranks of one host pass each other chunks in shared memory, as in `Floor`.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch.distributed import PrefixStore

from aiodist.bench.measured_operations import Call
from aiodist.bench.pattern import Array
from aiodist.bench.peers.measured_peer import BlockingPeer, Place, UnsupportedError
from benchmarks.peers.floor import Floor, copy_array

PART = 1 << 16
"""Elements that are added up and sent on at once: 256 KiB."""
WHOLE = 1 << 16
"""Elements that both ranks add up each for itself; of more, each rank adds up a half."""
SLICE = 1 << 19
"""Bytes given to the kernel, or asked of it, at once."""
LOOK_SECONDS = 200e-6
"""For so long a rank looks for bytes before it sleeps, where each rank has a core."""
LIMIT = 60.0
"""Seconds that a rank waits for the other, before it says that nothing comes."""

_CONTROL = b"reno"
"""TCP's congestion control within a host: none that paces, as there is no network between processes.
Between hosts it is the system's, as of all peers."""
_INTERFACE = "GLOO_SOCKET_IFNAME"
_HOST = "AIODIST_HOST_ID"
_SIOCGIFADDR = 0x8915
_BLOCKED = (BlockingIOError, InterruptedError)


Message = tuple[int, memoryview]
"""Which rank it goes to, and what."""


@dataclass(frozen=True)
class Arrival:
    """Which rank bytes come from and where they go, and what is done as soon as they are there.

    What ``then()`` returns is sent on.
    """

    source: int
    into: memoryview
    then: Callable[[], Message | None] | None = None


@dataclass(frozen=True)
class Exchange:
    """What is done first, sent, received, done meanwhile and at the end."""

    out: Sequence[Message] = ()
    arrivals: Sequence[Arrival] = ()
    meanwhile: Callable[[], object] | None = None
    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None


class Channel:
    """The connection to one rank, what is still to go out there, and what to come."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.out: deque[memoryview] = deque()
        self.arrivals: deque[Arrival] = deque()
        self._got = 0

    def move(self) -> tuple[int, Arrival | None]:
        """Give and take what is possible now. Returns how many bytes, and what has come whole."""
        moved, out, arrivals = 0, self.out, self.arrivals
        if out and (sent := _try(self.sock.send, out[0][:SLICE])):
            moved = sent
            out[0] = out[0][sent:]
            if not out[0]:
                out.popleft()
        if arrivals:
            place = arrivals[0].into[self._got : self._got + SLICE]
            if taken := _try(self.sock.recv_into, place):
                moved += taken
                self._got += taken
                if self._got == len(arrivals[0].into):
                    self._got = 0
                    return moved, arrivals.popleft()
        return moved, None

    @property
    def events(self) -> int:
        """What to wait for."""
        return (select.POLLOUT if self.out else 0) | (select.POLLIN if self.arrivals else 0)


class FloorTcp(BlockingPeer):
    """Bytes go in and out by turns, as the kernel has and takes them, into memory known beforehand."""

    name = "floor-tcp"

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit = limit

    def open(self, place: Place) -> None:
        self._rank = place.rank
        self._hosts = _hosts(place)
        width = len(self._hosts[0])
        even = all(len(host) == width for host in self._hosts)
        self._trouble = "" if even and len(self._hosts) > 1 else "it is of equal hosts"
        if self._trouble:
            return
        host = next(host for host in self._hosts if place.rank in host)
        self._number, self._column = self._hosts.index(host), host.index(place.rank)
        self._memory: Floor | None = None
        if width > 1:
            self._memory = Floor(self._limit, ranks_here=place.ranks)
            here = PrefixStore(f"host{self._number}", place.store)
            self._memory.open(Place(self._column, width, here))
        oversubscribed = place.ranks > (os.cpu_count() or 1)
        self._look_seconds = 0.0 if oversubscribed else LOOK_SECONDS
        self._channels = {
            other: Channel(_connection(place, other, self._limit))
            for other in range(place.ranks)
            if other not in host
        }
        self._signal = self._barrier()

    def bind(self, call: Call) -> Callable[[], object]:
        if self._trouble:
            raise UnsupportedError(self._trouble)
        if call.operation == "barrier":
            return self.barrier
        program = self._program(call, np.asarray(call.source), np.asarray(call.target))

        def run() -> None:
            for exchange in program:
                self._run(exchange)

        return run

    def barrier(self) -> None:
        for exchange in self._signal:
            self._run(exchange)

    def close(self) -> None:
        if not self._trouble:
            for channel in self._channels.values():
                channel.sock.close()

    def _run(self, exchange: Exchange) -> None:
        if exchange.before:
            exchange.before()
        channels, meanwhile = self._channels, exchange.meanwhile
        for rank, data in exchange.out:
            channels[rank].out.append(data)
        for arrival in exchange.arrivals:
            channels[arrival.source].arrivals.append(arrival)
        idle_since = 0.0
        while busy := [each for each in channels.values() if each.out or each.arrivals]:
            moved = 0
            for channel in busy:
                count, came = channel.move()
                moved += count
                if came is not None and came.then and (onward := came.then()):
                    channels[onward[0]].out.append(onward[1])
            if moved:
                idle_since = 0.0
            elif meanwhile:
                meanwhile = meanwhile()  # type: ignore[assignment]  # None: all is done
            else:
                now = time.perf_counter()
                idle_since = idle_since or now
                if now - idle_since > self._look_seconds:
                    self._sleep(busy)
        if meanwhile:
            meanwhile()
        if exchange.after:
            exchange.after()

    def _sleep(self, busy: Sequence[Channel]) -> None:
        poll = select.poll()
        for channel in busy:
            poll.register(channel.sock, channel.events)
        if not poll.poll(self._limit * 1000):
            raise TimeoutError(f"{self.name}: another rank has not come in {self._limit:g} s")

    # -- what this rank does

    def _barrier(self) -> list[Exchange]:
        meet = None if self._memory is None else self._memory.barrier
        if self._column:
            return [Exchange(before=meet, after=meet)]
        leaders = self._others_of_column
        came = [Arrival(other, memoryview(bytearray(1))) for other in leaders]
        out = [(other, memoryview(b"-")) for other in leaders]
        return [Exchange(out, came, before=meet, after=meet)]

    @property
    def _others_of_column(self) -> list[int]:
        """The ranks in the place of this one on the other hosts."""
        return [host[self._column] for host in self._hosts if self._rank not in host]

    def _program(self, call: Call, source: Array, target: Array) -> list[Exchange]:
        match call.operation:
            case "broadcast":
                return self._broadcast(source if self._rank == 0 else target)
            case "send_recv" if call.case.ranks == 2:
                forth = Exchange([(1, _bytes(source))])
                back = Exchange((), [Arrival(1 - self._rank, _bytes(target))])
                again = Exchange([(0, _bytes(target))])
                return [back, again] if self._rank else [forth, back]
            case "all_reduce" if len(source) <= WHOLE:
                return self._sum_whole(source)
            case "all_reduce":
                return self._sum_parts(source)
            case "reduce_scatter" if call.case.ranks == 2:
                mine, theirs = source.reshape(2, -1)[:: -1 if self._rank else 1]
                other = 1 - self._rank
                pairs = zip(_parts(mine), _parts(target), strict=True)
                sums = [_added(other, part, out, out) for part, out in pairs]
                return [Exchange([(other, _bytes(theirs))], sums)]
            case "all_gather" if call.case.ranks == 2:
                mine, theirs = target.reshape(2, -1)[:: -1 if self._rank else 1]
                other = 1 - self._rank
                copy = partial(copy_array, mine, source)
                arrival = Arrival(other, _bytes(theirs))
                return [Exchange([(other, _bytes(source))], [arrival], meanwhile=copy)]
            case "all_to_all":
                return self._all_to_all(source, target)
        raise UnsupportedError(f"no operation {call.operation}")

    def _here(self, operation: str, source: Array, target: Array) -> Callable[[], None] | None:
        """Return the operation among the ranks of this host."""
        if self._memory is None:
            return None
        return self._memory.bind_arrays(operation, source, target)

    def _broadcast(self, array: Array) -> list[Exchange]:
        """A chain of the hosts' first ranks, in parts; each gives a part to its host as well."""
        parts = _parts(array)
        here = [self._here("broadcast", part, part) for part in parts]
        if self._column:
            return [Exchange(before=take) for take in here]
        leaders = [host[0] for host in self._hosts]
        following = leaders[self._number + 1 : self._number + 2]
        if not self._number:
            out = [(other, _bytes(part)) for part in parts for other in following]
            puts = iter(here)

            def begin() -> None:
                nonlocal puts
                puts = iter(here)

            def put() -> object:
                step = next(puts, None)
                if step is not None:
                    step()
                return put if step is not None else None

            def put_all() -> None:
                while put():
                    pass

            return [Exchange(out, before=begin, meanwhile=put, after=put_all)]

        def passed(part: Array, step: Callable[[], None] | None) -> Arrival:
            def then() -> Message | None:
                if step is not None:
                    step()
                return (following[0], _bytes(part)) if following else None

            return Arrival(leaders[self._number - 1], _bytes(part), then)

        return [Exchange((), [passed(*each) for each in zip(parts, here, strict=True)])]

    def _sum_whole(self, source: Array) -> list[Exchange]:
        """Each host adds up, and its first rank all hosts' sums."""
        add_here = self._here("all_reduce", source, source)
        tell_here = self._here("broadcast", source, source)
        if self._column:
            return [Exchange(before=add_here, after=tell_here)]
        others = self._others_of_column
        came = [np.empty_like(source) for _ in others]
        arrivals = [Arrival(*each) for each in zip(others, map(_bytes, came), strict=True)]
        sent = source.copy()

        def begin() -> None:
            if add_here is not None:
                add_here()
            np.copyto(sent, source)

        def end() -> None:
            for each in came:
                np.add(source, each, source)
            if tell_here is not None:
                tell_here()

        return [Exchange([(o, _bytes(sent)) for o in others], arrivals, before=begin, after=end)]

    def _sum_parts(self, source: Array) -> list[Exchange]:
        """Each rank of a host adds up a part of the host's, and a ring over the hosts does the rest."""
        width, hosts, number = len(self._hosts[0]), len(self._hosts), self._number
        mine = source if width == 1 else np.empty(len(source) // width, source.dtype)
        scatter = self._here("reduce_scatter", source, mine)
        gather = self._here("all_gather", mine, source)
        following, before = (self._hosts[(number + step) % hosts][self._column] for step in (1, -1))
        chunks = [_parts(chunk) for chunk in np.array_split(mine, hosts)]
        came = np.empty(PART, source.dtype)
        arrivals = [
            _added(before, part, came[: len(part)], part, following)
            for step in range(1, hosts)
            for part in chunks[(number - step) % hosts]
        ]
        for step in range(hosts - 1):
            last = step == hosts - 2
            for part in chunks[(number - step) % hosts]:
                onward = None if last else partial(_message, following, _bytes(part))
                arrivals.append(Arrival(before, _bytes(part), onward))
        out = [(following, _bytes(part)) for part in chunks[number]]
        return [Exchange(out, arrivals, before=scatter, after=gather)]

    def _all_to_all(self, source: Array, target: Array) -> list[Exchange]:
        ranks = sum(map(len, self._hosts))
        rows, into = source.reshape(ranks, -1), target.reshape(ranks, -1)
        host = self._hosts[self._number]
        # Ranks of a host follow each other, so their rows do.
        here = self._here(
            "all_to_all",
            rows[host[0] : host[-1] + 1].reshape(-1),
            into[host[0] : host[-1] + 1].reshape(-1),
        ) or partial(copy_array, into[self._rank], rows[self._rank])
        # Each begins with the rank behind it, so that not all send to the same one.
        others = [(self._rank + step) % ranks for step in range(1, ranks)]
        others = [other for other in others if other not in host]
        out = [(other, _bytes(rows[other])) for other in others]
        arrivals = [Arrival(other, _bytes(into[other])) for other in others]
        return [Exchange(out, arrivals, meanwhile=here)]


def _added(
    source: int, mine: Array, came: Array, out: Array, following: int | None = None
) -> Arrival:
    """``out`` becomes the sum of ``mine`` and what comes into ``came``, and goes to ``following``."""

    def add() -> Message | None:
        np.add(mine, came, out)
        return None if following is None else (following, _bytes(out))

    return Arrival(source, _bytes(came), add)


def _message(rank: int, data: memoryview) -> Message:
    return rank, data


def _parts(array: Array) -> list[Array]:
    return [array[start : start + PART] for start in range(0, len(array), PART)]


def _bytes(array: Array) -> memoryview:
    return memoryview(array).cast("B")


def _try(call: Callable[[memoryview], int], memory: memoryview) -> int:
    """How many bytes the kernel took or gave; 0 where it cannot now."""
    try:
        count = call(memory)
    except _BLOCKED:
        return 0
    if not count:
        raise ConnectionError("the other rank has ended")
    return count


def _hosts(place: Place) -> list[list[int]]:
    """The ranks of each host. Ranks that name no host are on one of their own."""
    mine = os.environ.get(_HOST, f"rank {place.rank}")
    place.store.set(f"host of {place.rank}", mine)
    hosts: dict[str, list[int]] = {}
    for rank in range(place.ranks):
        hosts.setdefault(place.store.get(f"host of {rank}").decode(), []).append(rank)
    return list(hosts.values())


def _connection(place: Place, other: int, limit: float) -> socket.socket:
    """To rank ``other``, over the interface that the peers are told to use."""
    key = f"address of {min(place.rank, other)} for {max(place.rank, other)}"
    if place.rank < other:
        with socket.create_server((_address(os.environ.get(_INTERFACE, "lo")), 0)) as server:
            server.settimeout(limit)
            _control(server)
            place.store.set(key, json.dumps(server.getsockname()))
            sock, _ = server.accept()
    else:
        host, port = json.loads(place.store.get(key))
        sock = socket.socket()
        sock.settimeout(limit)
        _control(sock)
        sock.connect((host, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return sock


def _control(sock: socket.socket) -> None:
    if _HOST not in os.environ:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _CONTROL)


def _address(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
    return socket.inet_ntoa(answer[20:24])
