"""Train under Slurm: srun starts the ranks, and nothing is passed by hand.

    srun -n 4 python examples/training/slurm.py
    srun -N 2 -n 4 python examples/training/slurm.py
    srun -N 2 -n 4 python examples/training/slurm.py --dist-file /shared/meeting
    sbatch examples/training/train.sbatch --epochs 10

The variables of the step say rank, number of ranks and meeting place, and aiodist reads them. The ranks
share a secret by MUNGE, as Slurm's own daemons do. With ``--dist-file`` they meet in a file that all nodes
see, which serves where nodes do not resolve each other's names. ``train.sbatch`` goes on where a job was
stopped. The gradients are averaged by aiodist's own reducer while backward runs.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data.distributed import DistributedSampler

import aiodist.sync as dist
import common
from aiodist.training.sync import GradientReducer, broadcast_parameters


def take_place() -> None:
    """Set what a launcher sets from what Slurm says; exit with code 2 outside of a step.

    LOCAL_RANK chooses the GPU. Without ``--cpus-per-task`` Slurm gives each task one CPU, and more
    threads than CPUs would stand in each other's way.
    """
    if "SLURM_PROCID" not in os.environ:
        common.complain("this is no task of Slurm; start it by: srun -n 4 python slurm.py")
        raise SystemExit(2)
    os.environ.setdefault("LOCAL_RANK", os.environ["SLURM_LOCALID"])
    threads = os.environ.setdefault("OMP_NUM_THREADS", os.environ.get("SLURM_CPUS_PER_TASK", "1"))
    torch.set_num_threads(int(threads))  # torch has read the variable before


def meeting_url(options: argparse.Namespace) -> str:
    """Return where the ranks meet: ``--dist-url``, or a file of this step beside ``--dist-file``.

    The file's name has the job, its restart and the step: what a killed step has left is never met
    again. Exits with code 2 where this node does not see the folder.
    """
    if options.dist_file is None:
        return options.dist_url
    file = options.dist_file.absolute()
    if not file.parent.is_dir():
        node = os.environ.get("SLURMD_NODENAME", "this node")
        common.complain(f"--dist-file {file} is in a folder that {node} does not see")
        raise SystemExit(2)
    names = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID")
    step = ".".join(os.environ.get(name, "0") for name in names)
    return file.with_name(f"{file.name}.{step}").as_uri()


def train_epoch(
    model: nn.Module,
    batches: common.Batches,
    optimizer: torch.optim.Optimizer,
    reducer: GradientReducer,
    traffic: common.Traffic,
    ranks: common.Ranks,
    title: str,
    every: int,
) -> common.Result:
    """Train on each batch once and return what all ranks' batches gave."""
    device = next(model.parameters()).device
    gradient_bytes = sum(parameter.nbytes for parameter in model.parameters())
    meters = common.Meters()
    for images, labels in common.progress(batches, meters, ranks, title, every):
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        scores = model(images)
        loss = functional.cross_entropy(scores, labels)
        loss.backward()  # the reducer sends the gradients of the last layers meanwhile
        with traffic.timed(gradient_bytes):
            reducer.synchronize()
        optimizer.step()
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
    batches = common.Batches(data.train, sampler, batch_size, options.workers)
    optimizer = common.sgd(model, options)
    schedule = common.learning_rate_schedule(optimizer, options)
    checkpoint = common.Checkpoint(
        options, ranks, state_dict=model, optimizer=optimizer, scheduler=schedule
    )
    torch.manual_seed(options.seed + ranks.rank)  # augmentation differs between ranks
    start = checkpoint.resume()
    broadcast_parameters(model)  # rank 0's, to all
    reducer = GradientReducer(model.parameters())
    traffic = common.Traffic()

    trained = result = None
    for epoch in range(start, 0 if options.evaluate else options.epochs):
        sampler.set_epoch(epoch)
        shown = ranks, f"epoch {epoch + 1}/{options.epochs}", options.print_freq
        trained = train_epoch(model, batches, optimizer, reducer, traffic, *shown)
        schedule.step()
        result = common.evaluate(model, data.validation, ranks, batch_size, options.workers)
        checkpoint.save(epoch + 1, result.top1)
    result = result or common.evaluate(model, data.validation, ranks, batch_size, options.workers)
    common.finish(options, ranks, model, trained, result, traffic)


def main() -> None:
    """Read the options, meet the other ranks, train."""
    parser = common.add_rank_options(common.training_options(__doc__))
    parser.add_argument("--dist-file", type=Path, help="meet in a file that all nodes see")
    options = parser.parse_args()
    if options.dist_file is not None and options.dist_url != "env://":
        parser.error("--dist-file and --dist-url each say where the ranks meet: leave one out")
    take_place()
    device = common.pick_device()
    dist.init_process_group(**common.rendezvous(options) | {"init_method": meeting_url(options)})
    try:
        ranks = common.JobRanks(dist, device)
        with common.sampled_to(options.statistics if ranks.rank == 0 else None):
            run(options, ranks, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
