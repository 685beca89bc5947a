"""Train in two Dask workers: ``dask_workers BACKEND``."""

import sys
import tempfile
from typing import Any

import torch.distributed as dist
from distributed import Client, LocalCluster

from tests.ecosystem.programs.results import train


def work(rank: int, store: str, backend: str) -> list[Any]:
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        return train()
    finally:
        dist.destroy_process_group()


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        jobs = [
            client.submit(work, rank, f"{folder}/store", sys.argv[1], workers=[name], pure=False)
            for rank, name in enumerate(client.scheduler_info()["workers"])
        ]
        one, other = client.gather(jobs)
    assert one == other
    print("result", *one)


if __name__ == "__main__":
    main()
