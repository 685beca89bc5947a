"""Making the backend's name known to torch."""

from __future__ import annotations

import torch.distributed as torch_dist

from aiodist.torch_backend.devices import DEVICES
from aiodist.torch_backend.opening import open_group


def register() -> None:
    """Let torch know of "aiodist". Does nothing the second time."""
    if not hasattr(torch_dist.Backend, "AIODIST"):
        torch_dist.Backend.register_backend(
            "aiodist", open_group, extended_api=True, devices=list(DEVICES)
        )
