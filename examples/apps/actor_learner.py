"""Actors play, a learner learns: episodes go one way by streams, the newest policy goes back.

    aiodist run -n 4 --keep-going examples/apps/actor_learner.py --episodes 3000

Rank 0 learns by REINFORCE. Each other rank plays a corridor: a step to the right is worth nothing until
the last cell, which gives a reward. Actors never wait for the learner's update: they play on with the
policy that they have, up to `window` episodes ahead. Each actor has a group of its own with the learner,
so an actor that dies takes nothing but its own stream with it. Without --keep-going the launcher then
stops all ranks.
"""

from __future__ import annotations

import argparse
import asyncio

import torch
from torch import Tensor

import aiodist as dist

LEARNER, CELLS, MOST_STEPS, BATCH = 0, 6, 30, 16


def play(policy: Tensor, generator: torch.Generator) -> dict:
    """One episode: where the actor was, which way it went (1: right), and what it got."""
    cells, moves, cell = [], [], 0
    while cell < CELLS - 1 and len(cells) < MOST_STEPS:
        right = int(torch.rand((), generator=generator) < torch.sigmoid(policy[cell]))
        cells.append(cell)
        moves.append(right)
        cell = max(0, cell + (1 if right else -1))
    reward = 1.0 - len(cells) / MOST_STEPS if cell == CELLS - 1 else 0.0
    return {"cells": torch.tensor(cells), "moves": torch.tensor(moves), "reward": reward}


def improved(policy: Tensor, episodes: list[dict]) -> Tensor:
    """The policy after a step along the gradient of the expected reward."""
    mean = sum(episode["reward"] for episode in episodes) / len(episodes)
    gradient = torch.zeros_like(policy)
    for episode in episodes:
        chance = torch.sigmoid(policy[episode["cells"]])
        gain = (episode["moves"] - chance) * (episode["reward"] - mean)
        gradient.index_add_(0, episode["cells"], gain)
    return policy + gradient / len(episodes)


class Learner:
    """Takes episodes from all actors and tells them its newest policy."""

    def __init__(self, wanted: int) -> None:
        self.policy = torch.zeros(CELLS)
        self.wanted, self.taken = wanted, 0
        self.rewards: list[float] = []
        self._batch: list[dict] = []

    async def listen(self, rank: int, group: dist.ProcessGroup) -> None:
        """Learn from actor ``rank`` until there are enough episodes, or the actor is lost."""
        try:
            async with dist.open_stream(rank, window=8, group=group) as stream:
                async for episode in stream:
                    if self.learn(episode):
                        return
                    if self.taken % BATCH < 4:  # not after each: actors play on with what they have
                        await stream.send(self.policy)
        except dist.GroupEndedError as error:
            print(f"without actor {rank}: it {error.departure or 'is gone'}", flush=True)

    def learn(self, episode: dict) -> bool:
        """Count ``episode``, improve the policy once a batch is there; whether that is enough."""
        self.taken += 1
        self.rewards.append(episode["reward"])
        self._batch.append(episode)
        if len(self._batch) == BATCH:
            self.policy, self._batch = improved(self.policy, self._batch), []
        if self.taken % 500 == 0:
            print(f"{self.taken} episodes, mean reward {self.mean():.3f}", flush=True)
        return self.taken >= self.wanted

    def mean(self) -> float:
        """The mean reward of the last hundred episodes."""
        return sum(self.rewards[-100:]) / len(self.rewards[-100:])


async def act(group: dist.ProcessGroup, seed: int) -> None:
    """Play until the learner closes the stream."""
    generator = torch.Generator().manual_seed(seed)
    policy = torch.zeros(CELLS)

    async def follow(stream: dist.ObjectStream) -> None:
        nonlocal policy
        async for newest in stream:
            policy = newest

    async with dist.open_stream(LEARNER, window=64, group=group) as stream:
        following = asyncio.create_task(follow(stream))
        try:
            while not following.done():
                await stream.send(play(policy, generator))
        except dist.StreamClosedError:
            pass  # the learner has enough
        finally:
            following.cancel()


async def main() -> None:
    """Learn on rank 0, play on the others."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=3000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    await dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = {actor: await dist.new_group([LEARNER, actor]) for actor in range(1, size)}
    if rank == LEARNER:
        learner = Learner(arguments.episodes)
        async with asyncio.TaskGroup() as tasks:
            for actor, group in pairs.items():
                tasks.create_task(learner.listen(actor, group))
        print(f"mean reward {learner.mean():.3f} after {learner.taken} episodes", flush=True)
    else:
        await act(pairs[rank], seed=rank)
    await dist.destroy_process_group()


if __name__ == "__main__":
    asyncio.run(main())
