"""A lower bound for the network without any library: two processes, one TCP connection, numpy.

No check of arguments, no event loop, no header on a message, no failure but a wait that lasts too
long. So its times are no library's to reach, and what it does not reach itself, Python over this
network does not.
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

from aiodist.bench.measured_operations import Call
from aiodist.bench.pattern import Array
from aiodist.bench.peers.measured_peer import BlockingPeer, Place, UnsupportedError
from benchmarks.peers.floor import copy_array

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
"""TCP's congestion control: none that paces, as there is no network between processes."""
_INTERFACE = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915
_BLOCKED = (BlockingIOError, InterruptedError)


@dataclass(frozen=True)
class Arrival:
    """Where bytes go, and what is done as soon as they are there; what that returns is sent on."""

    into: memoryview
    then: Callable[[], memoryview | None] | None = None


@dataclass(frozen=True)
class Exchange:
    """What is sent, what comes, what is done here meanwhile and at the end."""

    out: Sequence[memoryview] = ()
    arrivals: Sequence[Arrival] = ()
    meanwhile: Callable[[], object] | None = None
    after: Callable[[], object] | None = None


class FloorTcp(BlockingPeer):
    """Bytes go in and out by turns, as the kernel has and takes them, into memory known beforehand."""

    name = "floor-tcp"

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit = limit

    def open(self, place: Place) -> None:
        self._trouble = "" if place.ranks == 2 else "it is of two ranks"
        if self._trouble:
            return
        self._look_seconds = LOOK_SECONDS if place.ranks <= (os.cpu_count() or 1) else 0.0
        self._socket = _connection(place, self._limit)
        self._poll = select.poll()
        self._signal = [Exchange([memoryview(b"-")], [Arrival(memoryview(bytearray(1)))])]

    def bind(self, call: Call) -> Callable[[], object]:
        if self._trouble:
            raise UnsupportedError(self._trouble)
        if call.operation == "barrier":
            return self.barrier
        program = _program(call, np.asarray(call.source), np.asarray(call.target))

        def run() -> None:
            for exchange in program:
                self._run(exchange)

        return run

    def barrier(self) -> None:
        for exchange in self._signal:
            self._run(exchange)

    def close(self) -> None:
        if not self._trouble:
            self._socket.close()

    def _run(self, exchange: Exchange) -> None:
        out, arrivals = deque(exchange.out), deque(exchange.arrivals)
        sock, meanwhile = self._socket, exchange.meanwhile
        got, idle_since = 0, 0.0
        while out or arrivals or meanwhile:
            moved = 0
            if out and (sent := _try(sock.send, out[0][:SLICE])):
                moved = sent
                out[0] = out[0][sent:]
                if not out[0]:
                    out.popleft()
            if arrivals and (taken := _try(sock.recv_into, arrivals[0].into[got : got + SLICE])):
                moved += taken
                got += taken
                if got == len(arrivals[0].into):
                    got, then = 0, arrivals.popleft().then
                    onward = then() if then else None
                    if onward is not None:
                        out.append(onward)
            if moved:
                idle_since = 0.0
            elif meanwhile:
                meanwhile = meanwhile()  # None: all is done
            else:
                now = time.perf_counter()
                idle_since = idle_since or now
                if now - idle_since > self._look_seconds:
                    self._sleep(bool(out), bool(arrivals))
        if exchange.after:
            exchange.after()

    def _sleep(self, sends: bool, receives: bool) -> None:
        events = (select.POLLOUT if sends else 0) | (select.POLLIN if receives else 0)
        self._poll.register(self._socket, events)
        if not self._poll.poll(self._limit * 1000):
            raise TimeoutError(f"{self.name}: the other rank has not come in {self._limit:g} s")


def _program(call: Call, source: Array, target: Array) -> list[Exchange]:
    """What this rank does. Arrays are halved in the order of ranks."""
    rank = call.rank
    forth, back = Exchange([_bytes(source)]), Exchange((), [Arrival(_bytes(target))])
    match call.operation:
        case "broadcast":
            return [back if rank else forth]
        case "send_recv":
            return [back, Exchange([_bytes(target)])] if rank else [forth, back]
        case "all_reduce" if len(source) <= WHOLE:
            came = np.empty_like(source)
            add = partial(np.add, source, came, source)
            return [Exchange([_bytes(source)], [Arrival(_bytes(came))], after=add)]
        case "all_reduce":
            mine, theirs = np.array_split(source, 2)[:: -1 if rank else 1]
            came = np.empty(PART, np.float32)
            sums = [_added(part, came[: len(part)], part, onward=True) for part in _parts(mine)]
            return [Exchange([_bytes(theirs)], [*sums, Arrival(_bytes(theirs))])]
        case "reduce_scatter":
            mine, theirs = source.reshape(2, -1)[:: -1 if rank else 1]
            pairs = zip(_parts(mine), _parts(target), strict=True)
            return [Exchange([_bytes(theirs)], [_added(part, out, out) for part, out in pairs])]
        case "all_gather":
            mine, theirs = target.reshape(2, -1)[:: -1 if rank else 1]
            copy = partial(copy_array, mine, source)
            return [Exchange([_bytes(source)], [Arrival(_bytes(theirs))], meanwhile=copy)]
        case "all_to_all":
            kept, sent = source.reshape(2, -1)[:: -1 if rank else 1]
            mine, theirs = target.reshape(2, -1)[:: -1 if rank else 1]
            copy = partial(copy_array, mine, kept)
            return [Exchange([_bytes(sent)], [Arrival(_bytes(theirs))], meanwhile=copy)]
    raise UnsupportedError(f"no operation {call.operation}")


def _added(mine: Array, came: Array, out: Array, onward: bool = False) -> Arrival:
    """``out`` becomes the sum of ``mine`` and of what comes into ``came``, and goes ``onward``."""

    def add() -> memoryview | None:
        np.add(mine, came, out)
        return _bytes(out) if onward else None

    return Arrival(_bytes(came), add)


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


def _connection(place: Place, limit: float) -> socket.socket:
    """Between the two ranks, over the interface that the peers are told to use."""
    if place.rank == 0:
        with socket.create_server((_address(os.environ.get(_INTERFACE, "lo")), 0)) as server:
            server.settimeout(limit)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _CONTROL)
            place.store.set("address", json.dumps(server.getsockname()))
            sock, _ = server.accept()
    else:
        host, port = json.loads(place.store.get("address"))
        sock = socket.socket()
        sock.settimeout(limit)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _CONTROL)
        sock.connect((host, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return sock


def _address(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
    return socket.inet_ntoa(answer[20:24])
