"""torch's own process groups, awaited: the backends "torch:gloo" and "nccl". Imports torch."""

from __future__ import annotations

import torch

from aiodist.backends.torch_groups.backend import TorchBackend
from aiodist.backends.torch_groups.kinds import Gloo, Nccl, why_no_gloo, why_no_nccl
from aiodist.groups.collective_backend import CollectiveBackend
from aiodist.groups.group_engine import GroupEngine


def make_backend(group: GroupEngine, name: str) -> CollectiveBackend:
    """The backend of ``group`` over torch's group ``name``: "gloo" or "nccl"."""
    return TorchBackend(group, Gloo() if name == "gloo" else Nccl())


def why_not(name: str) -> str:
    """Why torch's group ``name`` cannot run here; "" where it can."""
    return why_no_gloo() if name == "gloo" else why_no_nccl()


def count_gpus() -> int:
    """How many CUDA devices this process sees."""
    return torch.cuda.device_count()
