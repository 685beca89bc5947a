"""Train on though a rank is killed, and lose no step: the launcher starts all ranks anew.

    torchrun --nproc-per-node 2 --max-restarts 1 examples/training/elastic.py --kill 40:1
    aiodist run -n 2 --max-restarts 1 examples/training/elastic.py --kill 40:1

This is stock DistributedDataParallel with a checkpoint after each step. If a rank dies, the launcher
stops the others and starts all of them anew. They read the checkpoint and repeat the step that was
interrupted. The result is that of a run in which no rank died, bit for bit. A large model saves less
often (``--save-every``) and repeats the steps since then.

``--kill STEP:RANK`` has a rank kill itself in that step. In ``elastic_shrink.py`` the other ranks go on
without a restart.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import common

RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "AIODIST_RESTART_COUNT")  # of torchrun, of aiodist run
IS_FIRST_START = not any(int(os.environ.get(name) or 0) for name in RESTARTS)


class Training:
    """A model, its optimizer, and how far it has come: all that a rank needs to go on."""

    def __init__(self, options: argparse.Namespace, ranks: common.Ranks) -> None:
        with common.agreement(ranks):  # bad input ends all ranks, not one
            self.data = common.load_data(options)
            common.rank_batch_size(options, ranks)
            torch.manual_seed(options.seed)  # the same first parameters on all ranks
            self.model = common.build_model(options.arch, self.data).to(common.pick_device())
        self.options, self.start_rank = options, ranks.rank  # shrink() changes ranks.rank
        self.optimizer = common.sgd(self.model, options)
        self.schedule = common.learning_rate_schedule(self.optimizer, options)
        # Epochs, images of the epoch under way, and steps of all epochs.
        self.made = {"epochs": options.start_epoch, "images": 0, "steps": 0}
        self.parts = {"state_dict": self.model, "optimizer": self.optimizer}
        self.parts |= {"scheduler": self.schedule, "made": self}

    def state_dict(self) -> dict[str, int]:
        """Return how far it has come."""
        return dict(self.made)

    def load_state_dict(self, made: dict[str, int]) -> None:
        """Go on from there."""
        self.made = dict(made)

    def rest_of_epoch(self, ranks: common.Ranks) -> common.Batches:
        """Return this rank's part of the images that the epoch still has, at any number of ranks."""
        images, seed = self.data.train, self.options.seed + self.made["epochs"]
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed)).tolist()
        rest = order[self.made["images"] :]
        even = len(rest) - len(rest) % ranks.size  # all ranks take equally many steps
        mine = rest[ranks.rank : even : ranks.size]
        batch_size = common.rank_batch_size(self.options, ranks)
        # The seed is also of the augmentation: each image gets the same one after a restart.
        return common.Batches(images, mine, batch_size, self.options.workers, seed)

    def train_epoch(
        self, ranks: common.Ranks, replica: nn.Module, step_over: Callable[[], object]
    ) -> common.Result:
        """Train to the end of the epoch. Call ``step_over`` after each step."""
        device = next(self.model.parameters()).device
        meters, title = common.Meters(), f"epoch {self.made['epochs'] + 1}/{self.options.epochs}"
        batches = self.rest_of_epoch(ranks)
        for images, labels in common.progress(
            batches, meters, ranks, title, self.options.print_freq
        ):
            images, labels = images.to(device), labels.to(device)
            scores = replica(images)
            loss = functional.cross_entropy(scores, labels)
            self.optimizer.zero_grad()
            if self.options.kill == f"{self.made['steps']}:{self.start_rank}" and IS_FIRST_START:
                os.kill(os.getpid(), signal.SIGKILL)  # while the others wait for its gradients
            loss.backward()
            self.optimizer.step()
            meters.update(loss, scores, labels)
            self.made["images"] += len(labels) * ranks.size
            self.made["steps"] += 1
            step_over()
        self.schedule.step()
        self.made |= {"epochs": self.made["epochs"] + 1, "images": 0}
        return meters.over(ranks)

    def evaluate(self, ranks: common.Ranks) -> common.Result:
        """Return the result over the images that are held out."""
        batch_size = common.rank_batch_size(self.options, ranks)
        images = self.data.validation
        return common.evaluate(self.model, images, ranks, batch_size, self.options.workers)


def run(options: argparse.Namespace, ranks: common.Ranks) -> None:
    """Do the job of one rank, from the beginning or from the checkpoint."""
    training = Training(options, ranks)
    checkpoint = common.Checkpoint(options, ranks, **training.parts)
    if not IS_FIRST_START:
        options.resume = options.checkpoint_dir / "checkpoint.pth.tar"
    checkpoint.resume()
    if ranks.rank == 0 and not IS_FIRST_START:
        print(f"restarted      with step {training.made['steps']}", flush=True)
    replica = DistributedDataParallel(training.model)
    common.settle_buckets(replica, training.data)  # so that a restarted run has the same bits
    traffic = common.Traffic()
    replica.register_comm_hook(None, traffic.measured())

    def save() -> None:
        if training.made["steps"] % options.save_every == 0:
            checkpoint.save(training.made["epochs"], 0.0)  # the epoch's accuracy is not known yet

    if IS_FIRST_START:
        save()  # a restart finds this one, and none that an earlier job has left
    trained = result = None
    while not options.evaluate and training.made["epochs"] < options.epochs:
        trained = training.train_epoch(ranks, replica, save)
        result = training.evaluate(ranks)
        checkpoint.save(training.made["epochs"], result.top1)
    result = result or training.evaluate(ranks)
    if ranks.rank == 0:
        print(f"steps          {training.made['steps']}")
    common.finish(options, ranks, training.model, trained, result, traffic)


def main() -> None:
    """Read the options, meet the other ranks, train."""
    parser = common.add_rank_options(common.training_options(__doc__))
    parser.add_argument("--kill", metavar="STEP:RANK", help="the rank kills itself in that step")
    parser.add_argument("--save-every", type=common.options.count, default=1, metavar="STEPS")
    options = parser.parse_args()
    dist.init_process_group(**common.rendezvous(options))
    try:
        ranks = common.JobRanks(dist, common.pick_device())
        with common.sampled_to(options.statistics if ranks.rank == 0 else None):
            run(options, ranks)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
