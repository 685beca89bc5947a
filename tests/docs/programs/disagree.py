"""Rank 0 calls another operation than the others."""

import contextlib

import numpy as np

import aiodist.sync as dist

dist.init_process_group()
data = np.ones(1000, np.float32)
for _ in range(3):
    dist.all_reduce(data)
with contextlib.suppress(dist.CollectiveMismatchError):
    if dist.get_rank() == 0:
        dist.broadcast(data, src=0)
    else:
        dist.all_reduce(data)
with contextlib.suppress(dist.CollectiveMismatchError):  # rank 0's part has ended: it waits here
    dist.barrier()
with contextlib.suppress(dist.CollectiveMismatchError):  # which it raises again
    dist.destroy_process_group()
