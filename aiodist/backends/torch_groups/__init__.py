"""torch's own process groups, awaited: the backends "torch:gloo" and "nccl". Imports torch."""

from __future__ import annotations

import torch
import torch.distributed

from aiodist.backends.torch_groups.backend import TorchBackend
from aiodist.backends.torch_groups.kinds import Gloo, Nccl
from aiodist.groups.collective_backend import CollectiveBackend
from aiodist.groups.group_engine import GroupEngine


def make_backend(group: GroupEngine, name: str) -> CollectiveBackend:
    """Return the backend of ``group`` over torch's group ``name``: "gloo" or "nccl"."""
    return TorchBackend(group, Gloo() if name == "gloo" else Nccl())


def why_not(name: str) -> str:
    """Return why torch's group ``name`` cannot run here; "" where it can."""
    available = torch.distributed.is_available()
    if not available or not getattr(torch.distributed, f"is_{name}_available")():
        return f"torch {torch.__version__} was built without {'Gloo' if name == 'gloo' else 'NCCL'}"
    if name == "nccl" and not torch.cuda.is_available():
        return "torch finds no CUDA device"
    return ""


def count_gpus() -> int:
    """Return how many CUDA devices this process sees."""
    return torch.cuda.device_count()
