"""torch's groups in processes of their own, by the blocking API: also how such processes end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.limits import scaled
from tests.warm_python import WarmPython

ROOT = Path(__file__).parents[3]

BEGIN = """
import sys
import numpy as np
import torch
import aiodist.sync as dist

dist.init_process_group("torch:gloo", timeout=40, torch_group=False)
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
    "not destroyed": "",
    "with a receive under way": "pending = dist.irecv(torch.zeros(2), 1 - rank)",
    "with a collective under way": "pending = rank or dist.all_reduce(torch.zeros(2), async_op=True)",
}


FORK = """
import gc
import os

pid = os.fork()
if pid == 0:  # as a worker of torch's DataLoader does
    assert not dist.is_initialized()
    gc.collect()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
dist.barrier()
dist.destroy_process_group()
"""


DEATH = """
import os
import pathlib
import time

dist.barrier()
seen = pathlib.Path(__file__).with_name("rank 0 has received")
if rank == 1:
    dist.send(torch.ones(3), 0)
    while not seen.exists():
        time.sleep(0.01)
    print("done", flush=True)
    os._exit(0)
dist.recv(torch.ones(3), 1)
seen.touch()
try:
    dist.all_reduce(torch.ones(3))
except dist.PeerLostError as error:
    assert error.rank == 1
    assert "word about a message that torch:gloo carries in 'default_pg'" in str(error), error
else:
    raise AssertionError("a rank that died took part")
left = dist.shrink()
tensor = torch.ones(3)
dist.all_reduce(tensor, group=left)
assert dist.get_backend(left) == "torch:gloo" and tensor.tolist() == [1, 1, 1]
"""


Run = Callable[[str], None]


@pytest.fixture
def run(tmp_path: Path, warm_python: WarmPython) -> Run:
    """``run(program)``: on two ranks, which have to reach its end."""

    def program_on_two(program: str) -> None:
        script = tmp_path / "script.py"
        script.write_text(f'{BEGIN}{program}\nprint("done", flush=True)\n')
        job = (sys.executable, "-m", "aiodist", "run", "--no-python", "-n", "2")
        done = subprocess.run(
            [*job, *warm_python.command, str(script)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=scaled(50),
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("done") == 2

    return program_on_two


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
def test_operations_and_the_end(ending: str, run: Run) -> None:
    run(OPERATIONS + ending)


def test_a_forked_child_leaves_the_group_to_its_parent(run: Run) -> None:
    run(FORK)


def test_a_lost_rank_is_named_and_the_others_go_on(run: Run) -> None:
    run(DEATH)
