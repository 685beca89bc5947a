"""aiodist's persistent collectives, in both APIs: each call of a turn starts what was prepared for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import aiodist
from aiodist.bench.measured_operations import Call
from aiodist.bench.peers.both_apis import AsyncApi, BlockingApi
from aiodist.bench.peers.measured_peer import UnsupportedError


def prepared(dist: Any, call: Call) -> Any:
    """Return the collective of ``call`` as ``dist``, one of aiodist's APIs, prepares it."""
    source, target = call.source, call.target
    match call.operation:
        case "all_reduce":
            return dist.all_reduce_init(source)
        case "broadcast":
            return dist.broadcast_init(source, 0)
        case "all_gather":
            return dist.all_gather_into_tensor_init(target, source)
        case "reduce_scatter":
            return dist.reduce_scatter_tensor_init(target, source)
        case "all_to_all":
            return dist.all_to_all_single_init(target, source)
        case "barrier":
            return dist.barrier_init()
    raise UnsupportedError(f"no persistent {call.operation}")


class AsyncPersistent(AsyncApi):
    """``await plan.start()``."""

    def _bind(self, call: Call) -> Callable[[], Awaitable[Any]]:
        plan: aiodist.PersistentCollective = prepared(aiodist, call)
        return plan.start


class BlockingPersistent(BlockingApi):
    """``plan.run()``."""

    def bind(self, call: Call) -> Callable[[], object]:
        plan: aiodist.sync.PersistentCollective = prepared(self._dist, call)
        return plan.run
