"""A rank on one of several hosts: ``rank.py [fail N] [kill N] [wait]``.

It prints its place and a sum over all ranks. Then rank N ends by exit code 7 or by SIGKILL, and the
others wait for it in a barrier. With ``wait`` each says ``waiting`` and waits for its end.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

import aiodist.sync as dist

OWN = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")


def main() -> None:
    # Hosts of one kernel: their ranks share no memory, as if each had its own.
    os.environ["AIODIST_HOST_ID"] = os.readlink("/proc/self/ns/net")
    dist.init_process_group()
    rank = dist.get_rank()
    total = np.full(4, rank + 1.0)
    dist.all_reduce(total)
    print("rank", rank, dist.get_world_size(), *(os.environ[name] for name in OWN), total[0])
    orders = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
    if orders.get("fail") == str(rank):
        sys.exit(7)
    if orders.get("kill") == str(rank):
        os.kill(os.getpid(), signal.SIGKILL)
    if "wait" in sys.argv:
        print("waiting", flush=True)
        time.sleep(300)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
