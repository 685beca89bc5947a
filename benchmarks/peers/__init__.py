"""The peers by name. Another one is named ``module:factory``, and needs no change here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from types import MappingProxyType

from aiodist.bench import peers as bench
from aiodist.bench.peers.measured_peer import Peer
from benchmarks.arrival.wakeup import WakeUp
from benchmarks.peers.floor import Floor
from benchmarks.peers.floor_shared import FloorShared
from benchmarks.peers.floor_tcp import FloorTcp
from benchmarks.peers.persistent import AsyncPersistent, BlockingPersistent

PEERS: MappingProxyType[str, Callable[[], Peer]] = MappingProxyType(
    {
        **bench.PEERS,
        "async-persistent": partial(AsyncPersistent, "async-persistent", None),
        "blocking-persistent": partial(BlockingPersistent, "blocking-persistent", None),
        "floor": Floor,
        "floor-shared": FloorShared,
        "floor-tcp": FloorTcp,
        "wake-up": WakeUp,
    }
)

FLOORS = frozenset({"floor", "floor-shared", "floor-tcp", "wake-up"})
"""No libraries: what there is to reach."""
_PERSISTENT = frozenset({"async-persistent", "blocking-persistent"})
"""Measured where they are asked for: an ordinary call is what programs make."""
LIBRARIES = tuple(name for name in PEERS if name not in FLOORS | _PERSISTENT)
ON_A_HOST = tuple(name for name in PEERS if name not in {"floor-tcp", "wake-up", *_PERSISTENT})
BETWEEN_HOSTS = ("gloo", "async-tcp", "blocking-tcp", "floor-tcp")
ON_HOSTS_OF_SEVERAL = ("gloo", "async", "blocking", "floor-tcp")
"""What is compared where, unless a run says otherwise."""

LABELS = MappingProxyType(
    {
        **bench.LABELS,
        "async-persistent": "aiodist, async, persistent",
        "blocking-persistent": "aiodist, blocking, persistent",
        "floor": "no library",
        "floor-shared": "no library, shared tensors",
        "floor-tcp": "no library",
        "wake-up": "one wake-up",
        "openmpi": "Open MPI",
        "mpich": "MPICH",
        "openmpi-aiodist": "aiodist over Open MPI",
        "mpich-aiodist": "aiodist over MPICH",
    }
)


def label(name: str) -> str:
    """How a peer is called in tables and plots."""
    return LABELS.get(name, name)


def make_peer(name: str) -> Peer:
    """The peer called ``name``, not yet open. ValueError for a name that is not known."""
    factory = PEERS.get(name)
    if factory is None:
        module, colon, attribute = name.partition(":")
        if not colon:
            known = ", ".join(PEERS)
            raise ValueError(f"no peer {name!r}; there are {known}, or name one module:factory")
        factory = getattr(importlib.import_module(module), attribute)
    peer = factory()
    peer.name = name
    return peer
