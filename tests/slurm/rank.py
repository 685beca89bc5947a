"""A rank of a Slurm step: meets the others with nothing passed by hand, and prints what it found."""

from __future__ import annotations

import argparse
import json
import os
import sys

import torch

import aiodist.sync as dist


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fail", type=int, metavar="RANK", help="this rank exits with code 7")
    parser.add_argument("--kill", type=int, metavar="RANK", help="this rank kills itself")
    args = parser.parse_args()
    dist.init_process_group()
    rank = dist.get_rank()
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    report = {
        "rank": rank,
        "size": dist.get_world_size(),
        "sum": total.item(),
        "node": os.environ["SLURMD_NODENAME"],
        "step": os.environ["SLURM_STEP_ID"],
        "job": os.environ["SLURM_JOB_ID"],
    }
    print(json.dumps(report), flush=True)
    if rank == args.fail:
        sys.exit(7)
    if rank == args.kill:
        os.kill(os.getpid(), 9)
    if args.fail is not None or args.kill is not None:
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
