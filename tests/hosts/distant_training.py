"""A rank that trains on a distant host: ``distant_training.py FOLDER``, in which it writes files.

It tells in a line of JSON the bytes of plain and compressed gradients, and how many steps of two runs of
the recipe local_sgd.py have communicated: of one each step, of the other every eighth.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

import aiodist.sync as dist
from aiodist.training import Compression
from aiodist.training.sync import GradientReducer
from tests.examples.training.programs import several

WAYS = ("--synchronous", "--sync-every=8")


def averaged(compression: Compression) -> dict[str, Any]:
    """Return the bytes of a step, and the first gradients."""
    model = torch.nn.Linear(512, 512, bias=False)
    reducer = GradientReducer(model.parameters(), compression=compression)
    inputs = torch.full((1, 512), 1.0 + dist.get_rank()) + torch.arange(512) / 512
    model(inputs).sum().backward()
    reducer.synchronize()
    reducer.close()
    gradient = model.weight.grad
    assert gradient is not None
    return {"bytes": reducer.bytes_per_step, "gradients": gradient[0, :8].tolist()}


def meetings(number: int, way: str) -> int:
    """Return how many of the eight steps of an epoch have communicated; 0 on other ranks than 0."""
    summary = Path(f"summary-{os.environ['RANK']}-{number}.json")
    small = ("--arch", "mlp", "--limit", "512", "-b", "64", "--epochs", "1")
    code, _, err = several.run(
        number, "local_sgd.py", *small, way, "--summary", str(summary), "--checkpoint-dir", "RANK"
    )
    assert code == 0, err
    seconds = json.loads(summary.read_text())["communication_by_step"] if summary.exists() else []
    return sum(each > 0 for each in seconds)


def main() -> None:
    dist.init_process_group(timeout=120)
    gradients = [averaged(compression) for compression in (Compression.none, Compression.fp16)]
    dist.destroy_process_group()
    os.chdir(sys.argv[1])
    sys.path.insert(0, str(several.RECIPES))
    met = [meetings(number, way) for number, way in enumerate(WAYS)]
    print(json.dumps({"gradients": gradients, "meetings": met}), flush=True)


if __name__ == "__main__":
    main()
