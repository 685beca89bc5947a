"""The command line of a recipe: the options that people know from PyTorch's ImageNet example."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import torch

from common.ranks import BadInput, Ranks, complain

RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
"""What launchers call a rank's number: aiodist run and torchrun, srun, Open MPI, MPICH, PMIx."""


def number(text: str, least: int = 0) -> int:
    """Read a number from 0 on."""
    value = int(text)
    if value < least:
        raise argparse.ArgumentTypeError(f"{text} is not a number from {least} on")
    return value


def count(text: str) -> int:
    """Read a number from 1 on."""
    return number(text, 1)


def training_options(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every recipe takes.

    ``description``: the recipe's docstring, of which the first line is shown by ``--help``.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    data = parser.add_argument_group("data and model")
    data.add_argument(
        "--data", type=Path, metavar="DIR", help="train/CLASS/*, val/CLASS/* (default: MNIST)"
    )
    data.add_argument("--image-size", type=count, default=224, help="pixels a side, with --data")
    data.add_argument("--arch", default="cnn", help="the model's name (default: %(default)s)")
    data.add_argument(
        "-j", "--workers", type=number, default=0, help="processes that load data, a rank"
    )
    data.add_argument(
        "--limit", type=count, metavar="N", help="use N images to train, N to evaluate"
    )

    train = parser.add_argument_group("training")
    train.add_argument("--epochs", type=count, default=4)
    train.add_argument("--start-epoch", type=number, default=0, help="skip the epochs before it")
    train.add_argument("-b", "--batch-size", type=count, default=128, help="of all ranks together")
    train.add_argument("--lr", type=float, default=0.05)
    train.add_argument("--momentum", type=float, default=0.9)
    train.add_argument("--wd", type=float, default=1e-4, help="weight decay")
    train.add_argument(
        "--lr-step", type=count, default=1, help="epochs between two changes of the rate"
    )
    train.add_argument(
        "--gamma", type=float, default=0.7, help="each change multiplies the rate by it"
    )
    train.add_argument("--seed", type=int, default=0)

    files = parser.add_argument_group("what it does and writes")
    files.add_argument("-p", "--print-freq", type=count, default=10, metavar="STEPS")
    files.add_argument("-e", "--evaluate", action="store_true", help="evaluate, do not train")
    files.add_argument("--resume", type=Path, metavar="FILE", help="go on from this checkpoint")
    files.add_argument("--checkpoint-dir", type=Path, default=Path(), help="(default: here)")
    files.add_argument("--statistics", type=Path, metavar="FILE", help="CSV of CPU and GPU use")
    files.add_argument("--summary", type=Path, metavar="FILE", help="JSON of what the run measured")
    return parser


def add_rank_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options that say how ranks meet; by default the launcher's environment says it."""
    ranks = parser.add_argument_group("ranks")
    ranks.add_argument(
        "--dist-url", default="env://", help="where ranks meet (default: %(default)s)"
    )
    ranks.add_argument("--dist-backend", default="aiodist", help="or gloo (default: %(default)s)")
    ranks.add_argument("--world-size", type=int, default=-1, help="(default: the environment says)")
    ranks.add_argument("--rank", type=int, default=-1, help="(default: the environment says)")
    # python -m aiodist.launch passes it, as torch's launcher once did.
    ranks.add_argument("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)
    return parser


def rendezvous(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``init_process_group`` that the options of `add_rank_options` ask for.

    Exit with code 2 if neither the options nor a launcher say which rank this is.
    """
    asks_launcher = options.dist_url == "env://" and options.rank < 0
    if asks_launcher and not any(name in os.environ for name in RANK_VARIABLES):
        script = Path(sys.argv[0])
        complain(f"no launcher has started this rank; start it by: aiodist run -n 2 {script}")
        raise SystemExit(2)
    return {
        "backend": options.dist_backend,
        "init_method": options.dist_url,
        "world_size": options.world_size,
        "rank": options.rank,
    }


def pick_device() -> torch.device:
    """Return the GPU of this rank's number on its machine, or the CPU where there is no GPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def rank_batch_size(options: argparse.Namespace, ranks: Ranks) -> int:
    """Return how many images of each batch a rank takes; raise BadInput if that is 0."""
    if options.batch_size < ranks.size:
        raise BadInput(
            f"--batch-size {options.batch_size} is of all ranks together, so {ranks.size} ranks need "
            f"{ranks.size} or more"
        )
    return int(options.batch_size // ranks.size)
