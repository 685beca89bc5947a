"""Train as a Horovod script does: an optimizer that waits for the gradients of all ranks.

    aiodist run -n 2 examples/training/horovod_style.py

Everything that begins with ``hvd.`` is Horovod's, word for word; only its import line is another one.
Ranks share the images without padding, so some may have a batch more than others. A rank that has no more
waits in ``hvd.join()`` and takes part in the others' steps with zeros. `docs/horovod.md` says what differs.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional
from tqdm import tqdm

import aiodist.horovod as hvd  # was: import horovod.torch as hvd
import aiodist.sync as dist
import common


def own_part(count: int, options: argparse.Namespace, epoch: int) -> list[int]:
    """Return this rank's images of ``count``: every ``hvd.size()``-th of an order that all ranks know."""
    generator = torch.Generator().manual_seed(options.seed + epoch)
    order = torch.randperm(count, generator=generator)
    return order[hvd.rank() :: hvd.size()].tolist()


def train_epoch(
    model: nn.Module,
    batches: common.Batches,
    optimizer: torch.optim.Optimizer,
    traffic: common.Traffic,
    ranks: common.Ranks,
    title: str,
    options: argparse.Namespace,
) -> common.Result:
    """Train on each of this rank's batches once and return what all ranks' batches gave."""
    device = next(model.parameters()).device
    meters = common.Meters()
    # In the loop only the optimizer communicates: a rank in hvd.join() knows of nothing else.
    bar = tqdm(batches, title, disable=hvd.rank() != 0, ncols=100, mininterval=0.5)
    for number, (images, labels) in enumerate(bar, 1):
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        parts = zip(
            images.chunk(options.batches_per_allreduce),
            labels.chunk(options.batches_per_allreduce),
            strict=True,
        )
        for part, classes in parts:  # their gradients add up, and travel during the last backward
            scores = model(part)
            loss = functional.cross_entropy(scores, classes)
            (loss * len(part) / len(images)).backward()
            meters.update(loss, scores, classes)
        with traffic.timed(optimizer.bytes_per_step):
            optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        with optimizer.skip_synchronize():
            optimizer.step()
        if number % options.print_freq == 0:  # this rank's part alone
            bar.set_postfix_str(str(meters.over(common.OneProcess())), refresh=False)
    hvd.join()
    common.agree(ranks, batches.problem)
    result = meters.over(ranks)
    if hvd.rank() == 0:
        print(f"{title}: {result}")
    return result


def run(options: argparse.Namespace, ranks: common.Ranks, device: torch.device) -> None:
    """Do the job of one rank."""
    with common.agreement(ranks):  # bad input ends all ranks, not one
        data = common.load_data(options)
        batch_size = common.rank_batch_size(options, ranks)
        torch.manual_seed(options.seed)
        model = common.build_model(options.arch, data).to(device)

    optimizer = common.sgd(model, options)
    schedule = common.learning_rate_schedule(optimizer, options)
    checkpoint = common.Checkpoint(
        options, ranks, state_dict=model, optimizer=optimizer, scheduler=schedule
    )
    torch.manual_seed(options.seed + hvd.rank())  # augmentation differs between ranks
    start = checkpoint.resume()

    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=getattr(hvd.Compression, options.compression),
        backward_passes_per_step=options.batches_per_allreduce,
        op=hvd.Average,
        gradient_predivide_factor=options.gradient_predivide_factor,
    )
    traffic = common.Traffic()

    trained = result = None
    for epoch in range(start, 0 if options.evaluate else options.epochs):
        part = own_part(len(data.train), options, epoch)
        batches = common.Batches(data.train, part, batch_size, options.workers)
        title = f"epoch {epoch + 1}/{options.epochs}"
        trained = train_epoch(model, batches, optimizer, traffic, ranks, title, options)
        schedule.step()
        result = common.evaluate(model, data.validation, ranks, batch_size, options.workers)
        checkpoint.save(epoch + 1, result.top1)
    result = result or common.evaluate(model, data.validation, ranks, batch_size, options.workers)
    common.finish(options, ranks, model, trained, result, traffic)


def main() -> None:
    """Read the options, meet the other ranks, train."""
    parser = common.add_rank_options(common.training_options(__doc__))
    horovod = parser.add_argument_group("Horovod")
    horovod.add_argument("--compression", default="none", choices=("none", "fp16", "bf16"))
    horovod.add_argument(
        "--batches-per-allreduce",
        type=common.options.count,
        default=1,
        help="parts of a batch, each with a backward",
    )
    horovod.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    horovod.add_argument("--clip", type=float, default=10.0, help="the most norm of all gradients")
    options = parser.parse_args()
    device = common.pick_device()
    # hvd.init() alone meets the ranks of a launcher; this line is for --dist-url and its like.
    dist.init_process_group(**common.rendezvous(options))
    hvd.init()
    try:
        ranks = common.JobRanks(dist, device)
        with common.sampled_to(options.statistics if hvd.rank() == 0 else None):
            run(options, ranks, device)
    finally:
        hvd.shutdown()


if __name__ == "__main__":
    main()
