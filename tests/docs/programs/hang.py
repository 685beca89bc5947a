"""Rank 2 stays in `load`, and the other ranks wait for it in an operation."""

import signal

import numpy as np

import aiodist.sync as dist


def load() -> None:
    """Wait for what does not come."""
    print("ready", flush=True)
    signal.pause()


def step(data: np.ndarray) -> None:
    """Sum the data of all ranks."""
    if dist.get_rank() == 2:
        load()
    work = dist.all_reduce(data, async_op=True)
    print("ready", flush=True)
    work.wait()


dist.init_process_group()
dist.barrier()
step(np.ones(1000, np.float32))
