"""The types of the blocking API and of a group's methods. `make types` checks it; nothing runs it.

An error that mypy must report is ignored by its code: `--strict` reports an ignore that it does not
need.
"""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np

import aiodist
import aiodist.sync as dist

x = np.zeros(1)


def blocking_functions() -> None:
    """Call them as they are meant."""
    started = dist.all_reduce(x, dist.ReduceOp.SUM, None, True, timeout=1.0)
    assert_type(started, dist.Work[None] | None)
    assert_type(dist.recv(x, 0), int)
    assert_type(dist.recv(), dist.Received)
    assert_type(dist.all_gather_new(x), list[Any])
    dist.reduce(x, 0, async_op=True, group_dst=None)


async def methods(group: aiodist.ProcessGroup) -> None:
    """Call them as they are meant."""
    await group.all_reduce(x, aiodist.ReduceOp.SUM, timeout=1.0)
    assert_type(await group.recv(x, 0, 4), int)
    await group.broadcast(x, group_src=0)
    await group.all_reduce(x, "sum")


def wrong_arguments_of_blocking_functions() -> None:
    """Each line has one error."""
    dist.all_reduce(x, 3)  # type: ignore[arg-type]
    dist.broadcast(x, source=0)  # type: ignore[call-arg]
    dist.reduce(x, 0, async_op="no")  # type: ignore[arg-type]
    dist.send(x, dst="1")  # type: ignore[arg-type]
    _text: str = dist.recv(x, 0)  # type: ignore[assignment]
    dist.all_gather_new(x, async_op=True)  # type: ignore[call-arg]


def wrong_arguments_of_methods(group: aiodist.ProcessGroup) -> None:
    """Each line has one error."""
    group.all_reduce(x, 3)  # type: ignore[arg-type]
    group.broadcast(x, 0, group=None)  # type: ignore[call-arg]
    group.send_object(1, tag="4")  # type: ignore[arg-type]
    group.isend(x, async_op=True)  # type: ignore[call-arg]
