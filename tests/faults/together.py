"""A rank of a job on several hosts that have several: ``python -m tests.faults.together RANK SIZE STORE``.

Prints a line of JSON: what it reduced, the ranks with which it shares memory, and the bytes that its
host has sent, by interface.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import aiodist.sync as dist
from aiodist.groups.world import current_world

COUNT = 2 << 20
"""Elements, of 4 bytes."""


def sent() -> dict[str, int]:
    """Bytes that left this host by each interface."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    parts = [line.partition(":") for line in lines]
    return {name.strip(): int(numbers.split()[8]) for name, _, numbers in parts}


def main() -> None:
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo", f"file://{sys.argv[3]}", rank=rank, world_size=size, timeout=60)
    data = np.full(COUNT, rank + 1.0, np.float32)
    dist.barrier()
    before = sent()
    dist.all_reduce(data)
    dist.barrier()
    gathered = [np.zeros(1000, np.float32) for _ in range(size)]
    dist.all_gather(gathered, np.full(1000, float(rank), np.float32))
    communicator = current_world().default_group().communicator
    facts = {
        "sums": sorted({float(value) for value in data}),
        "gathered": [float(each[0]) for each in gathered],
        "shares with": [] if communicator is None or communicator.is_off else communicator.members,
        "sent": {name: now - before[name] for name, now in sent().items()},
    }
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
