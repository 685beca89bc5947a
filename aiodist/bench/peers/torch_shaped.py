"""The operations by torch.distributed's names, which Gloo and both APIs of aiodist share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from aiodist.bench.measured_operations import Call
from aiodist.bench.peers.measured_peer import BlockingPeer, UnsupportedError


def bind(dist: Any, call: Call) -> Callable[[], Any]:
    """The call in ``dist``, a module shaped like torch.distributed. Not for send_recv."""
    source, target = call.source, call.target
    match call.operation:
        case "all_reduce":
            return partial(dist.all_reduce, source)
        case "broadcast":
            return partial(dist.broadcast, source, 0)
        case "all_gather":
            # torch 2.13 renames the two, and warns at each call by the old name.
            function = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
            return partial(function, target, source)
        case "reduce_scatter":
            function = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
            return partial(function, target, source)
        case "all_to_all":
            return partial(dist.all_to_all_single, target, source)
        case "barrier":
            return partial(dist.barrier)
    raise UnsupportedError(f"no operation {call.operation}")


class TorchShapedPeer(BlockingPeer):
    """A peer whose ``_dist`` is a module of blocking functions."""

    _dist: Any

    def bind(self, call: Call) -> Callable[[], object]:
        if call.operation != "send_recv":
            return bind(self._dist, call)
        dist, source, target = self._dist, call.source, call.target

        def ping() -> None:
            dist.send(source, 1)
            dist.recv(target, 1)

        def pong() -> None:
            dist.recv(target, 0)
            dist.send(target, 0)

        return ping if call.rank == 0 else pong

    def barrier(self) -> None:
        self._dist.barrier()
