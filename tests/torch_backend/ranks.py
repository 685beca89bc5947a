"""Forks ranks of the torch backend, which have called ``init_process_group("aiodist")``."""

from __future__ import annotations

import importlib
import os
from datetime import timedelta

from tests.forked_ranks import serve


def run(program: str, rank: int, size: int, folder: str) -> None:
    """Run ``module:function`` of tests/torch_backend/programs."""
    import torch
    import torch.distributed as dist

    module, _, function = program.partition(":")
    os.environ["TEST_FOLDER"] = folder
    torch.set_num_threads(1)
    torch.manual_seed(0)
    called = getattr(importlib.import_module(f"tests.torch_backend.programs.{module}"), function)
    dist.init_process_group(
        "aiodist",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    called(rank, size)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    # Once, before any fork. What is imported here is imported in every rank.
    import torch._dynamo  # which every optimizer imports
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.tensor  # noqa: F401

    import aiodist.torch_backend  # noqa: F401

    serve(run)
