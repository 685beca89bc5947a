"""A rank of an NCCL group whose ranks share one GPU: ``nccl_rank.py PROGRAM [BACKEND]``.

NCCL refuses two ranks of one host on one GPU. An NCCL_HOSTID of its own makes each rank a host of its own
for NCCL, whose data then go through sockets. PROGRAM is a function of nccl_programs.py.
"""

from __future__ import annotations

import asyncio
import os
import sys

import torch

import aiodist as dist
from tests.gpu import nccl_programs


async def main(program: str, *backend: str) -> None:
    os.environ["NCCL_HOSTID"] = f"rank {os.environ['RANK']}"  # NCCL reads it when a group is built
    await dist.init_process_group("aiodist")
    device = torch.device("cuda", 0)
    await getattr(nccl_programs, program)(device, *backend)
    await dist.destroy_process_group()
    print("good", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
