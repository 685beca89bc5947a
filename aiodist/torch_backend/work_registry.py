"""Enter works in torch's registry, in which compiled code finds the work of a tensor.

Within torch's ``allow_inflight_collective_as_graph_input_ctx()``, eager code starts an operation and
compiled code waits for it by ``wait_tensor(tensor)``. torch's own groups enter each work in their
methods of C++, which a group in Python replaces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

_is_asked_for: Callable[[], bool] = getattr(
    c10d, "_allow_inflight_collective_as_graph_input", lambda: False
)


def enter(work: Any, tensors: Sequence[Any]) -> bool:
    """Enter ``work`` for each of ``tensors`` if torch asks for it. Returns whether it is there."""
    if not _is_asked_for():
        return False
    for tensor in _with_storage(tensors):
        c10d._register_work(tensor, work)
    return True


def remove(tensors: Sequence[Any]) -> None:
    """Remove what is entered for ``tensors``, and wait for it. Raises no error of theirs."""
    for tensor in _with_storage(tensors):
        with contextlib.suppress(Exception):  # the work's own `wait` raises it
            torch.ops._c10d_functional.wait_tensor(tensor)


def _with_storage(tensors: Sequence[Any]) -> list[Any]:
    """Return ``tensors`` without sparse ones. The registry finds a tensor by its storage."""
    return [tensor for tensor in tensors if tensor.layout is torch.strided]
