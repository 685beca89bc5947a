"""Message to receive, in both orders of coming."""

from __future__ import annotations

from typing import Any

from aiodist.p2p.matching import Arrival, Matcher, Recv
from aiodist.wire.frames import COLLECTIVE

KEY = (COLLECTIVE, 1, 1)


def _recv() -> Recv:
    return Recv(KEY, 0, memoryview(bytearray(64)), b"meta", lambda recv, src, meta, length: None)


def bench_receive_first(benchmark: Any) -> None:
    """The receive is posted, then its message comes."""
    matcher = Matcher()

    def match() -> None:
        recv = _recv()
        matcher.post(recv)
        found = matcher.take_recv(KEY, 0)
        assert found is recv

    benchmark(match)


def bench_message_first(benchmark: Any) -> None:
    """The message waits, then its receive is posted."""
    matcher = Matcher()

    def match() -> None:
        arrival = Arrival(KEY, 0, b"meta", 64, 64, None)
        matcher.keep(arrival)
        assert matcher.post(_recv()) is arrival

    benchmark(match)
