"""A parameter server: workers push gradients when they have them, die, and come back.

    aiodist run -n 4 --max-restarts 8 examples/apps/parameter_server.py --updates 400

Rank 0 holds the parameters. Each worker has a stream to it: a gradient goes there, new parameters come
back, and no worker waits for another. When a worker dies, the others shrink the group and go on. Every
GROW_EVERY updates the server asks all workers to call `grow` with it, so that replacements come in.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os

import torch
from torch import nn
from torch.nn import functional

import aiodist as dist

SERVER, GROW_EVERY = 0, 50


def model() -> nn.Module:
    """What all workers train."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))


class Server:
    """The parameters, and how many updates they have had."""

    def __init__(self, updates: int, replacements: int) -> None:
        self.parameters = nn.utils.parameters_to_vector(model().parameters()).detach()
        self.wanted, self.awaited = updates, replacements
        self.done, self.loss = 0, float("nan")

    async def serve(self) -> None:
        """Answer the workers of one group until it is time to grow."""
        until = self.done - self.done % GROW_EVERY + GROW_EVERY
        workers = [rank for rank in dist.group.WORLD.ranks if rank != SERVER]
        if not workers:
            await asyncio.sleep(0.05)  # all are dead: those that come are taken in by `grow`
            return
        async with asyncio.TaskGroup() as tasks:
            for rank in workers:
                tasks.create_task(self.answer(rank, until))

    async def answer(self, rank: int, until: int) -> None:
        """Give ``rank`` parameters for its gradients, and end its stream when there are ``until``."""
        async with dist.open_stream(rank) as stream:
            await stream.send(self.parameters)
            async for loss, gradient in stream:
                self.loss, self.done = loss, self.done + 1
                self.parameters = self.parameters - 0.05 * gradient
                if self.done >= until:
                    return
                await stream.send(self.parameters)

    async def run(self) -> None:
        """Serve one group after the other."""
        known = dist.group.WORLD
        while True:
            with surviving():
                await self.serve()
                is_over = self.done >= self.wanted and self.awaited <= 0
                await dist.broadcast_object(is_over, SERVER)
                if is_over:
                    print(f"{self.done} updates, loss {self.loss:.4f}", flush=True)
                    return
                print(f"update {self.done}: loss {self.loss:.4f}", flush=True)
                group = await dist.grow()
                if group.newcomers and group is not known:
                    self.awaited -= len(group.newcomers)
                    print(f"update {self.done}: ranks {group.newcomers} came", flush=True)
                known = group
                continue
            group = await dist.shrink()
            print(f"update {self.done}: left are ranks {group.ranks}", flush=True)


async def work() -> None:
    """Compute gradients for the server until it says that this is the end."""
    net, parts = model(), torch.Generator().manual_seed(os.getpid())
    while True:
        with surviving():
            async with dist.open_stream(SERVER) as stream:
                async for parameters in stream:
                    nn.utils.vector_to_parameters(parameters, net.parameters())
                    inputs = torch.randn(32, 8, generator=parts)
                    loss = functional.mse_loss(net(inputs), inputs.mean(1, keepdim=True).sin() * 3)
                    gradients = torch.autograd.grad(loss, list(net.parameters()))
                    flat = nn.utils.parameters_to_vector(gradients)
                    with contextlib.suppress(dist.StreamClosedError):  # it has enough
                        await stream.send((loss.item(), flat))
            if await dist.broadcast_object(None, SERVER):
                return
            await dist.grow()
            continue
        if SERVER not in (await dist.shrink()).ranks:
            raise SystemExit("the server is gone")


@contextlib.contextmanager
def surviving():
    """Leave the block when a rank is lost; what follows it is to shrink the group."""
    try:
        yield
    except* dist.GroupEndedError:
        pass


async def main() -> None:
    """Be the server or a worker; a process that replaces one comes in by `rejoin`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument(
        "--replacements", type=int, default=0, help="to wait for, after the updates"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    await (dist.rejoin() if dist.is_replacement() else dist.init_process_group())
    await dist.register_elastic()
    is_server = dist.get_rank() == SERVER
    await (Server(arguments.updates, arguments.replacements).run() if is_server else work())
    await dist.destroy_process_group()


if __name__ == "__main__":
    asyncio.run(main())
