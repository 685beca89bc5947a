"""What can be measured, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MappingProxyType

from aiodist.bench.peers.both_apis import AsyncApi, BlockingApi
from aiodist.bench.peers.gloo import Gloo
from aiodist.bench.peers.measured_peer import Peer

PEERS: MappingProxyType[str, Callable[[], Peer]] = MappingProxyType(
    {
        "gloo": Gloo,
        "async": partial(AsyncApi, "async", None),
        "blocking": partial(BlockingApi, "blocking", None),
        "async-tcp": partial(AsyncApi, "async-tcp", "tcp"),
        "blocking-tcp": partial(BlockingApi, "blocking-tcp", "tcp"),
    }
)

LABELS = MappingProxyType(
    {
        "gloo": "Gloo",
        "async": "aiodist, async",
        "blocking": "aiodist, blocking",
        "async-tcp": "aiodist, async, TCP",
        "blocking-tcp": "aiodist, blocking, TCP",
    }
)
"""How each is called in tables and pictures."""
