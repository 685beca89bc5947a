"""torch's own Gloo."""

from __future__ import annotations

from collections.abc import Callable

from aiodist.bench.measured_operations import Call
from aiodist.bench.peers.measured_peer import BlockingPeer, Place
from aiodist.bench.peers.torch_shaped import bind_blocking


class Gloo(BlockingPeer):
    """``torch.distributed`` with backend "gloo"."""

    name = "gloo"

    def open(self, place: Place) -> None:
        import torch.distributed as dist

        self._dist = dist
        dist.init_process_group("gloo", store=place.store, rank=place.rank, world_size=place.ranks)

    def bind(self, call: Call) -> Callable[[], object]:
        return bind_blocking(self._dist, call)

    def barrier(self) -> None:
        self._dist.barrier()

    def close(self) -> None:
        self._dist.destroy_process_group()
