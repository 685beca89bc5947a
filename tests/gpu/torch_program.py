"""A program of the torch backend with its tensors on the GPU: ``torch_program.py MODULE:FUNCTION``."""

from __future__ import annotations

import importlib
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import aiodist.torch_backend  # noqa: F401  # lets torch know of the backend


def main(program: str) -> None:
    module, function = program.split(":")
    torch.manual_seed(0)
    torch.set_default_device("cuda")
    run = getattr(importlib.import_module(f"tests.torch_backend.programs.{module}"), function)
    dist.init_process_group("aiodist", timeout=timedelta(seconds=60))
    run(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()
    print("good", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
