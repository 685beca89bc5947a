"""What `inference.py` and `inference_fastapi.py` serve: a small language model, split over the ranks."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

import aiodist as dist

VOCABULARY, WIDTH, HIDDEN = 256, 64, 256
MOST_TOKENS = 64


class Shard:
    """This rank's slice of the hidden units. The model is equal on any number of ranks."""

    def __init__(self, rank: int, size: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.embedding = torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=torch.float64)
        up = torch.randn(HIDDEN, WIDTH, generator=generator, dtype=torch.float64) / WIDTH**0.5
        down = torch.randn(WIDTH, HIDDEN, generator=generator, dtype=torch.float64) / HIDDEN**0.5
        self.up = up.tensor_split(size)[rank].clone()
        self.down = down.tensor_split(size, dim=1)[rank].clone()

    async def next_tokens(self, states: Tensor) -> Tensor:
        """The most likely next token for each of ``states``, after one all_reduce."""
        part = functional.relu(states @ self.up.T) @ self.down.T
        await dist.all_reduce(part)
        return (part @ self.embedding.T).argmax(1)


async def worker():
    """Load this rank's part; return what carries a batch out."""
    torch.set_num_threads(1)
    shard = Shard(dist.get_rank(), dist.get_world_size())

    async def generate(requests: list[dict]) -> list[list[int]]:
        texts = [list(request["prompt"]) for request in requests]
        for step in range(max(request["tokens"] for request in requests)):
            states = torch.stack([shard.embedding[text[-8:]].mean(0) for text in texts])
            found = await shard.next_tokens(states)
            for text, token, request in zip(texts, found.tolist(), requests, strict=True):
                if step < request["tokens"]:
                    text.append(token)
        return [
            text[len(request["prompt"]) :] for text, request in zip(texts, requests, strict=True)
        ]

    return generate


async def take_in(service: dist.Service) -> None:
    """Give lost ranks' places to the processes that the launcher starts for them."""
    while await service.until_leader():
        try:
            await service.grow(timeout=math.inf)
        except (dist.GroupEndedError, dist.CollectiveTimeoutError):
            pass  # another rank was lost meanwhile, or the newcomer was
