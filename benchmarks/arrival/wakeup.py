"""One wake-up: a rank sleeps in a read of a pipe until another rank writes a byte into it."""

from __future__ import annotations

import os
from collections.abc import Callable

from aiodist.bench.measured_operations import Call
from aiodist.bench.peers.measured_peer import BlockingPeer, Place, UnsupportedError
from benchmarks.arrival.calls import PatternCall
from benchmarks.arrival.cases import TIMED


class WakeUp(BlockingPeer):
    """Two ranks that wake each other. No library whose waiting rank sleeps is faster."""

    name = "wake-up"

    def open(self, place: Place) -> None:
        self._ranks = place.ranks
        if place.ranks != 2:
            return
        self._read, mine = os.pipe()
        place.store.set(f"pipe/{place.rank}", f"{os.getpid()} {mine}")
        pid, number = place.store.get(f"pipe/{1 - place.rank}").split()
        self._write = os.open(f"/proc/{int(pid)}/fd/{int(number)}", os.O_WRONLY)
        self._kept = mine  # open until `close`: the other rank opens it by its number

    def bind(self, call: Call) -> Callable[[], object]:
        if self._ranks != 2 or not isinstance(call, PatternCall) or call.pattern.kind not in TIMED:
            raise UnsupportedError("it is one call of two ranks")
        return self.barrier

    def check_result(self, call: Call, number: int) -> None:
        """Check nothing: it moves no data."""

    def barrier(self) -> None:
        os.write(self._write, b"x")
        os.read(self._read, 1)

    def close(self) -> None:
        if self._ranks == 2:
            for fd in (self._read, self._kept, self._write):
                os.close(fd)
