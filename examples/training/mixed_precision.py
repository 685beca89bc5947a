"""Train in mixed precision, with gradients of two bytes on the wire and batches that are there in time.

    aiodist run -n 2 examples/training/mixed_precision.py

This is what NVIDIA's Apex gave, with what PyTorch has today:

- Autocast computes convolutions and dense layers in two bytes a number, and the rest in four.
- GradScaler keeps small gradients from becoming 0 in float16, the type on a GPU. bfloat16, the type on a
  CPU, has the range of float32 and needs none. ``--dtype`` chooses.
- A communication hook sends the gradients as two bytes a number.
- A prefetcher has the next batch on the device while the model computes with this one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

import common


class Prefetcher:
    """Batches on a device; a thread loads and copies the next one while the model uses this one.

    On a GPU the copies run on a stream of their own, beside the model's kernels.
    """

    def __init__(self, batches: common.Batches, device: torch.device) -> None:
        self.batches = batches
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @property
    def problem(self) -> str | None:
        """Why an image could not be read, or None."""
        return self.batches.problem

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        source = iter(self.batches)
        with ThreadPoolExecutor(1) as loader:
            coming = loader.submit(self._load, source)
            while (batch := coming.result()) is not None:
                if self.stream is not None:
                    model_stream = torch.cuda.current_stream()
                    model_stream.wait_stream(self.stream)  # for this batch: no other is on its way
                    for tensor in batch:  # its memory stays until the model's kernels are done
                        tensor.record_stream(model_stream)
                coming = loader.submit(self._load, source)
                yield batch

    def _load(self, source: Iterator[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
        batch = next(source, None)
        if batch is None or self.stream is None:
            return batch
        with torch.cuda.stream(self.stream):
            return tuple(tensor.to(self.device, non_blocking=True) for tensor in batch)


def train_epoch(
    model: nn.Module,
    batches: Prefetcher,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    ranks: common.Ranks,
    title: str,
    options: argparse.Namespace,
) -> common.Result:
    """Train on each batch once and return what all ranks' batches gave."""
    meters = common.Meters()
    for images, labels in common.progress(batches, meters, ranks, title, options.print_freq):
        with torch.autocast(batches.device.type, options.dtype):
            scores = model(images)
            loss = functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()  # a factor of 1 where the scaler is off
        scaler.step(optimizer)  # leaves the step out on all ranks if a gradient is infinite
        scaler.update()
        meters.update(loss, scores, labels)
    return meters.over(ranks)


def run(options: argparse.Namespace, ranks: common.Ranks, device: torch.device) -> None:
    """Do the job of one rank."""
    with common.agreement(ranks):  # bad input ends all ranks, not one
        data = common.load_data(options)
        batch_size = common.rank_batch_size(options, ranks)
        torch.manual_seed(options.seed)
        model = common.build_model(options.arch, data).to(device)

    sampler = DistributedSampler(data.train, ranks.size, ranks.rank, seed=options.seed)
    batches = Prefetcher(common.Batches(data.train, sampler, batch_size, options.workers), device)
    optimizer = common.sgd(model, options)
    schedule = common.learning_rate_schedule(optimizer, options)
    usual = "float16" if device.type == "cuda" else "bfloat16"
    options.dtype = getattr(torch, options.dtype or usual)
    scaler = torch.amp.GradScaler(device.type, enabled=options.dtype == torch.float16)
    parts = {"state_dict": model, "optimizer": optimizer, "scheduler": schedule, "scaler": scaler}
    checkpoint = common.Checkpoint(options, ranks, **parts)
    torch.manual_seed(options.seed + ranks.rank)  # augmentation differs between ranks
    start = checkpoint.resume()

    replica = DistributedDataParallel(model)
    common.settle_buckets(replica, data)  # so that a resumed run has the same bits
    hooks = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
    traffic = common.Traffic()
    replica.register_comm_hook(None, traffic.measured(hooks[options.compression], wire_bytes=2))

    trained = result = None
    for epoch in range(start, 0 if options.evaluate else options.epochs):
        sampler.set_epoch(epoch)
        title = f"epoch {epoch + 1}/{options.epochs}"
        trained = train_epoch(replica, batches, optimizer, scaler, ranks, title, options)
        schedule.step()
        result = common.evaluate(model, data.validation, ranks, batch_size, options.workers)
        checkpoint.save(epoch + 1, result.top1)
    result = result or common.evaluate(model, data.validation, ranks, batch_size, options.workers)
    common.finish(options, ranks, model, trained, result, traffic)


def main() -> None:
    """Read the options, meet the other ranks, train."""
    parser = common.add_rank_options(common.training_options(__doc__))
    parser.add_argument("--compression", default="fp16", choices=("bf16", "fp16"))
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), help="of autocast")
    options = parser.parse_args()
    device = common.pick_device()
    dist.init_process_group(**common.rendezvous(options))
    try:
        ranks = common.JobRanks(dist, device)
        with common.sampled_to(options.statistics if ranks.rank == 0 else None):
            run(options, ranks, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
