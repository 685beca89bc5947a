"""Have torch shut down the groups of this backend when it destroys them.

`torch.distributed.destroy_process_group` calls each group's `shutdown` since torch 2.7. Before, it
shuts down NCCL's groups and only drops the others.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import version
from torch.distributed import distributed_c10d
from torch.torch_version import TorchVersion

from aiodist.torch_backend.group_state import Membership


def shut_down_destroyed_groups() -> None:
    """Extend the function by which torch before 2.7 shuts down a group; no effect on newer torch."""
    if TorchVersion(version.__version__) >= TorchVersion("2.7"):
        return
    torch_c10d: Any = distributed_c10d
    original = torch_c10d._shutdown_backend

    @functools.wraps(original)
    def shutdown_backend(group: Any) -> None:
        if isinstance(group, Membership):
            group.shutdown()
        else:
            original(group)

    torch_c10d._shutdown_backend = shutdown_backend
