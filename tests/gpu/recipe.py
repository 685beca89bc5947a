"""A rank of a training recipe that must use the GPU: ``recipe.py SCRIPT ARGUMENTS``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch

import aiodist.torch_backend  # noqa: F401  # lets torch know of the backend: aiodist is not installed here

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    script = Path(sys.argv[0])
    sys.path.insert(0, str(script.parent))  # as python SCRIPT has it
    runpy.run_path(str(script), run_name="__main__")
    assert torch.cuda.max_memory_allocated() > 0, "nothing was on the GPU"
    print("on the GPU", flush=True)
