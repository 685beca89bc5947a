"""torch's groups in processes of their own, by the blocking door: also how such processes end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

BEGIN = """
import sys
import numpy as np
import torch
import aiodist.sync as dist

dist.init_process_group("torch:gloo", timeout=40)
rank, size = dist.get_rank(), dist.get_world_size()
"""

OPERATIONS = """
tensor = torch.full((1000,), rank + 1.0)
work = dist.all_reduce(tensor, async_op=True)
assert work.wait() and tensor[0] == 3
array = np.full(5, rank)
dist.broadcast(array, 1)
assert array.tolist() == [1] * 5
gathered = [torch.zeros(2) for _ in range(size)]
dist.all_gather(gathered, torch.full((2,), float(rank)))
assert [int(each[0]) for each in gathered] == [0, 1]
if rank == 0:
    dist.send(torch.arange(3), 1, tag=4)
else:
    into = torch.zeros(3, dtype=torch.int64)
    assert dist.recv(into, tag=4) == 0
    assert into.tolist() == [0, 1, 2]
objects = [None, None]
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": 0}, {"rank": 1}]
assert not torch.distributed.is_initialized()
dist.barrier()
"""

ENDINGS = {
    "destroyed": "dist.destroy_process_group()",
    "not destroyed": "",
    "with a receive under way": "pending = dist.irecv(torch.zeros(2), 1 - rank)",
    "with a collective under way": "pending = rank or dist.all_reduce(torch.zeros(2), async_op=True)",
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
def test_operations_and_the_end(ending: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f'{BEGIN}{OPERATIONS}{ending}\nprint("done", flush=True)\n')
    done = subprocess.run(
        [sys.executable, "-m", "aiodist", "run", "-n", "2", str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 2
