"""torch's own Gloo."""

from __future__ import annotations

from aiodist.bench.peers.measured_peer import Place
from aiodist.bench.peers.torch_shaped import TorchShapedPeer


class Gloo(TorchShapedPeer):
    """``torch.distributed`` with backend "gloo"."""

    name = "gloo"

    def open(self, place: Place) -> None:
        import torch.distributed as dist

        self._dist = dist
        dist.init_process_group("gloo", store=place.store, rank=place.rank, world_size=place.ranks)

    def close(self) -> None:
        self._dist.destroy_process_group()
