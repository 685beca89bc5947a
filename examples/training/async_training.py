"""Train in an event loop that answers HTTP meanwhile: aiodist's async API.

    aiodist run -n 2 examples/training/async_training.py --port 8000
    curl localhost:8000/metrics
    curl -X POST localhost:8000/stop

Each rank has a loop that sends and receives, and the loop of rank 0 also serves HTTP. Forward, backward and
files would hold the loop up, so they run in a thread, and the loop awaits them. Gradients leave while
backward still runs: `GradientReducer` hands them from that thread to the loop.

A request to stop reaches rank 0 alone, so the ranks ask each other in each step. All stop after the same
one, evaluate, and save a checkpoint that resumes with this epoch.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import torch
from aiohttp import web
from torch import nn
from torch.nn import functional
from torch.utils.data.distributed import DistributedSampler

import aiodist as dist
import common
from aiodist.training import GradientReducer
from common.loop_ranks import LoopRanks


@dataclass
class Status:
    """What /metrics tells and /stop asks for, on rank 0."""

    epoch: int = 0
    steps: int = 0
    loss: float = float("nan")
    wants_to_stop: bool = False

    async def metrics(self, _: web.Request) -> web.Response:
        """Answer in the text format that Prometheus reads."""
        rows = {"epoch": self.epoch, "steps": self.steps, "loss": self.loss}
        return web.Response(text="".join(f"training_{name} {row}\n" for name, row in rows.items()))

    async def stop(self, _: web.Request) -> web.Response:
        """Ask all ranks to stop; the next step tells them."""
        self.wants_to_stop = True
        return web.Response(text="the training stops after the next step\n")


@asynccontextmanager
async def served(status: Status, port: int, ranks: LoopRanks) -> AsyncIterator[None]:
    """Serve /metrics and /stop on rank 0 during the block. All ranks end if that is not possible."""
    app = web.Application()
    app.add_routes([web.get("/metrics", status.metrics), web.post("/stop", status.stop)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        problem = None
        if ranks.rank == 0:
            try:
                await web.TCPSite(runner, "127.0.0.1", port).start()
                print("metrics at http://{}:{}/metrics".format(*runner.addresses[0]), flush=True)
            except OSError as error:
                problem = f"--port {port} cannot be served ({os.strerror(error.errno)})"
        await asyncio.to_thread(common.agree, ranks, problem)
        yield
    finally:
        await runner.cleanup()


def prepare(options: argparse.Namespace, ranks: common.Ranks) -> tuple[common.Data, nn.Module]:
    """Return the data and the model, with the same first parameters on all ranks."""
    with common.agreement(ranks):  # bad input ends all ranks, not one
        data = common.load_data(options)
        common.rank_batch_size(options, ranks)
        torch.manual_seed(options.seed)
        return data, common.build_model(options.arch, data).to(common.pick_device())


async def run(options: argparse.Namespace, ranks: LoopRanks, status: Status) -> None:
    """Do the job of one rank."""
    data, model = await asyncio.to_thread(prepare, options, ranks)
    device = next(model.parameters()).device
    batch_size = common.rank_batch_size(options, ranks)
    sampler = DistributedSampler(data.train, ranks.size, ranks.rank, seed=options.seed)
    batches = common.Batches(data.train, sampler, batch_size, options.workers)
    optimizer = common.sgd(model, options)
    schedule = common.learning_rate_schedule(optimizer, options)
    parts = {"state_dict": model, "optimizer": optimizer, "scheduler": schedule}
    checkpoint = common.Checkpoint(options, ranks, **parts)
    torch.manual_seed(options.seed + ranks.rank)  # augmentation differs between ranks
    start = await asyncio.to_thread(checkpoint.resume)
    reducer, traffic = GradientReducer(model.parameters()), common.Traffic()
    validation = (model, data.validation, ranks, batch_size, options.workers)

    trained = result = None
    for epoch in range(start, 0 if options.evaluate else options.epochs):
        sampler.set_epoch(epoch)
        meters, title = common.Meters(), f"epoch {epoch + 1}/{options.epochs}"
        rows = common.progress(batches, meters, ranks, title, options.print_freq)
        stop = torch.zeros(1)
        while not stop and (batch := await asyncio.to_thread(next, rows, None)):
            images, labels = (tensor.to(device) for tensor in batch)
            stop.fill_(status.wants_to_stop)
            agreed = dist.all_reduce(stop, dist.ReduceOp.MAX)  # it starts here
            optimizer.zero_grad()
            scores = await asyncio.to_thread(model, images)
            loss = functional.cross_entropy(scores, labels)
            await asyncio.to_thread(loss.backward)
            with traffic.timed(reducer.bytes_per_step):
                await reducer.synchronize()  # the gradients are now the means over all ranks
            optimizer.step()
            await agreed
            meters.update(loss, scores, labels)
            status.epoch, status.steps, status.loss = epoch, status.steps + 1, loss.item()
        rows.close()
        trained = await asyncio.to_thread(meters.over, ranks)
        result = await asyncio.to_thread(common.evaluate, *validation)
        if stop:
            await asyncio.to_thread(checkpoint.save, epoch, result.top1)
            break
        schedule.step()
        await asyncio.to_thread(checkpoint.save, epoch + 1, result.top1)
    result = result or await asyncio.to_thread(common.evaluate, *validation)
    await asyncio.to_thread(common.finish, options, ranks, model, trained, result, traffic)


async def main() -> None:
    """Read the options, meet the other ranks, train."""
    parser = common.add_rank_options(common.training_options(__doc__))
    parser.add_argument("--port", type=int, default=8000, help="of /metrics and /stop on rank 0")
    options = parser.parse_args()
    await dist.init_process_group(**common.rendezvous(options))
    try:
        ranks, status = LoopRanks(), Status()
        with common.sampled_to(options.statistics if ranks.rank == 0 else None):
            async with served(status, options.port, ranks):
                await run(options, ranks, status)
    finally:
        await dist.destroy_process_group()


if __name__ == "__main__":
    asyncio.run(main())
