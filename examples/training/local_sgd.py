"""Train over a slow link: replicas take K steps on their own, then meet (DiLoCo).

    aiodist run -n 2 examples/training/local_sgd.py --sync-every 16
    aiodist run -n 2 examples/training/local_sgd.py --synchronous

To average gradients a rank sends as many numbers as the model has, in every step. Here each rank trains
a copy of its own with AdamW. Every K steps the ranks average how far their copies have moved. That mean is
the gradient of an outer optimizer, SGD with Nesterov momentum, which moves the copy that all ranks share.
So a rank sends 1/K of the bytes and waits 1/K as often. This is DiLoCo: Douillard et al., "DiLoCo:
Distributed Low-Communication Training of Language Models", 2023, arXiv:2311.08105.

``--synchronous`` is the other side of the comparison: the same AdamW, with gradients averaged in each step.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

import common


class DiLoCo:
    """The inner optimizer of each rank, and the outer optimizer that all ranks share.

    Invariant: ``shared`` and the outer optimizer's momentum are bitwise equal on all ranks.
    """

    def __init__(
        self, model: nn.Module, inner: torch.optim.Optimizer, options: argparse.Namespace
    ) -> None:
        self.inner = inner
        self.local = list(model.parameters())
        self.shared = [parameter.detach().clone() for parameter in self.local]
        self.outer = torch.optim.SGD(
            self.shared, options.outer_lr, options.outer_momentum, nesterov=True
        )
        self._inner_states: list[dict[str, Any]] = []

    @torch.no_grad()
    def synchronize(self, traffic: common.Traffic, steps: int) -> None:
        """Step the outer optimizer after a round of ``steps``; all copies start again from its result."""
        moved = [shared - local for shared, local in zip(self.shared, self.local, strict=True)]
        flat = torch.cat([each.flatten() for each in moved])  # one message of all parameters
        with traffic.timed(flat.nbytes, steps):
            dist.all_reduce(flat)
        means = (flat / dist.get_world_size()).split([each.numel() for each in moved])
        for shared, mean in zip(self.shared, means, strict=True):
            shared.grad = mean.view_as(shared)
        self.outer.step()
        for local, shared in zip(self.local, self.shared, strict=True):
            local.copy_(shared)

    def collect(self, ranks: common.Ranks) -> None:
        """Bring the inner states of all ranks together for the checkpoint. Call it on all ranks."""
        self._inner_states = ranks.gather(self.inner.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Return the outer state, and what `collect` brought."""
        return {"outer": self.outer.state_dict(), "inner": self._inner_states}

    @torch.no_grad()
    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore both optimizers. The model has its parameters already."""
        self.outer.load_state_dict(saved["outer"])
        self.inner.load_state_dict(saved["inner"][dist.get_rank()])
        for shared, local in zip(self.shared, self.local, strict=True):
            shared.copy_(local)


def run(options: argparse.Namespace, ranks: common.Ranks, device: torch.device) -> None:
    """Do the job of one rank."""
    with common.agreement(ranks):  # bad input ends all ranks, not one
        data = common.load_data(options)
        batch_size = common.rank_batch_size(options, ranks)
        torch.manual_seed(options.seed)  # the same first parameters on all ranks
        model = common.build_model(options.arch, data).to(device)

    sampler = DistributedSampler(data.train, ranks.size, ranks.rank, seed=options.seed)
    batches = common.Batches(data.train, sampler, batch_size, options.workers)
    inner = torch.optim.AdamW(model.parameters(), options.lr, weight_decay=options.wd)
    schedule = common.learning_rate_schedule(inner, options)
    diloco = DiLoCo(model, inner, options)
    optimizer = inner if options.synchronous else diloco
    checkpoint = common.Checkpoint(
        options, ranks, state_dict=model, optimizer=optimizer, scheduler=schedule
    )
    torch.manual_seed(options.seed + ranks.rank)  # augmentation differs between ranks
    start = checkpoint.resume()

    traffic = common.Traffic()
    replica: nn.Module = model
    if options.synchronous:
        replica = DistributedDataParallel(model)
        common.settle_buckets(replica, data)  # so that a resumed run has the same bits
        replica.register_comm_hook(None, traffic.measured())

    trained = result = None
    for epoch in range(start, 0 if options.evaluate else options.epochs):
        sampler.set_epoch(epoch)
        meters, title = common.Meters(), f"epoch {epoch + 1}/{options.epochs}"
        rows = common.progress(batches, meters, ranks, title, options.print_freq)
        for step, (images, labels) in enumerate(rows, 1):
            images, labels = images.to(device), labels.to(device)
            scores = replica(images)
            loss = functional.cross_entropy(scores, labels)
            inner.zero_grad()
            loss.backward()
            inner.step()
            in_round = (step - 1) % options.sync_every + 1
            if not options.synchronous and (in_round == options.sync_every or step == len(batches)):
                diloco.synchronize(traffic, in_round)
            meters.update(loss, scores, labels)
        trained = meters.over(ranks)
        schedule.step()
        result = common.evaluate(model, data.validation, ranks, batch_size, options.workers)
        diloco.collect(ranks)
        checkpoint.save(epoch + 1, result.top1)
    result = result or common.evaluate(model, data.validation, ranks, batch_size, options.workers)
    common.finish(options, ranks, model, trained, result, traffic)


def main() -> None:
    """Read the options, meet the other ranks, train."""
    parser = common.add_rank_options(common.training_options(__doc__))
    parser.set_defaults(lr=0.003)  # of AdamW
    parser.add_argument("--sync-every", type=common.options.count, default=16, metavar="STEPS")
    parser.add_argument("--outer-lr", type=float, default=0.7)
    parser.add_argument("--outer-momentum", type=float, default=0.5, help="0.9 for many rounds")
    parser.add_argument("--synchronous", action="store_true", help="average in every step instead")
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
