"""Give DDP's reducer a Work of C++ for the collective with which `Join` counts the ranks.

`DistributedDataParallel` starts that collective in Python, in each forward pass, and keeps the C++ half
of its Work alone. With ``divide_by_initial_world_size=False`` the reducer waits for this half, which is
never told that the operation has ended.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.distributed.algorithms.join import Join

from aiodist.torch_backend.ownership import work_of_cpp
from aiodist.torch_backend.torch_work import TorchWork


def give_joins_works_of_cpp() -> None:
    """Extend the function of torch's `Join` that starts this collective."""
    original = Join.notify_join_context

    @functools.wraps(original)
    def notify_join_context(joinable: Any) -> Any:
        work: Any = original(joinable)
        return work_of_cpp(work) if isinstance(work, TorchWork) else work

    torch_join: Any = Join
    torch_join.notify_join_context = staticmethod(notify_join_context)
