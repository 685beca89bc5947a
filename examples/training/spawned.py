"""Train with processes that the script starts itself: aiodist.spawn, on one machine or on several.

    python examples/training/spawned.py --multiprocessing-distributed --nprocs 2

and on two machines, one task on each (the secret is any text, the same on both):

    export AIODIST_SECRET=...
    python spawned.py --multiprocessing-distributed --world-size 2 --rank 0 --dist-url tcp://node0:29500
    python spawned.py --multiprocessing-distributed --world-size 2 --rank 1 --dist-url tcp://node0:29500

As in PyTorch's ImageNet example ``--world-size`` and ``--rank`` count machines on the command line. Each
machine starts ``--nprocs`` ranks, so the ranks of machine K begin at K times that number. Without
``--multiprocessing-distributed`` each machine is one rank. The training is that of ``distributed.py``.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from distributed import run
from torch.multiprocessing.spawn import ProcessExitedException

import aiodist
import common


def work(local_rank: int, options: argparse.Namespace) -> None:
    """Do the job of one rank: ``aiodist.spawn`` calls it in a new process with the number there."""
    if options.nprocs > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # the ranks of a machine share its cores
    # From machines to ranks. spawn has set LOCAL_RANK, which chooses the GPU, and where to meet.
    options.rank = options.rank * options.nprocs + local_rank
    options.world_size = options.world_size * options.nprocs
    device = common.pick_device()
    dist.init_process_group(**common.rendezvous(options))
    try:
        ranks = common.JobRanks(dist, device)
        with common.sampled_to(options.statistics if ranks.rank == 0 else None):
            run(options, ranks, device)
    finally:
        dist.destroy_process_group()


def main() -> None:
    """Read the options and start this machine's ranks."""
    parser = common.add_rank_options(common.training_options(__doc__))
    parser.add_argument("--multiprocessing-distributed", action="store_true", help="start --nprocs")
    parser.add_argument("--nprocs", type=int, default=torch.cuda.device_count() or 2)
    # Slurm says which machine this is where it starts one task on each.
    nodes, node = os.environ.get("SLURM_NNODES", "1"), os.environ.get("SLURM_NODEID", "0")
    parser.set_defaults(world_size=int(nodes), rank=int(node))
    options = parser.parse_args()
    if options.world_size > 1 and options.dist_url == "env://":
        parser.error("several machines need --dist-url tcp://HOST:PORT, with a port on machine 0")

    if not options.multiprocessing_distributed:
        options.nprocs = 1
    try:
        aiodist.spawn(work, args=(options,), nprocs=options.nprocs)
    except ProcessExitedException as error:  # a rank that ended by itself has said why
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
