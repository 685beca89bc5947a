"""Which function works with which backend on which device; `docs/backends.md` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

COLUMNS = (
    ("aiodist", "cpu"),
    ("aiodist", "cuda"),
    ("torch:gloo", "cpu"),
    ("nccl", "cuda"),
    ("mpi", "cpu"),
)
"""Backend and device; "gloo" is another name for "aiodist"."""

YES, UNSEEN = "yes", "not run"
"""UNSEEN: the code is there, and has not been run on such a device yet."""

_HOST = (YES, YES, YES, UNSEEN, YES)  # bytes on the host, whatever the tensors' device
_ALL = (YES, UNSEEN, YES, UNSEEN, YES)

FUNCTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "send, recv, isend, irecv": _ALL,
        "recv from any rank": _ALL,
        "recv without a tensor": _ALL,
        "batch_isend_irecv": _ALL,
        "broadcast": _ALL,
        "all_reduce": _ALL,
        "all_reduce_coalesced": _ALL,
        "reduce": _ALL,
        "all_gather": _ALL,
        "all_gather, uneven": _ALL,
        "all_gather_into_tensor": _ALL,
        "all_gather_coalesced": _ALL,
        "gather": _ALL,
        "gather, uneven": _ALL,
        "gather_single": _ALL,
        "scatter": _ALL,
        "scatter, uneven": _ALL,
        "reduce_scatter": _ALL,
        "reduce_scatter, uneven": _ALL,
        "reduce_scatter_tensor": _ALL,
        "all_to_all": _ALL,
        "all_to_all, uneven": _ALL,
        "all_to_all_single": _ALL,
        "all_to_all_single, uneven": _ALL,
        "barrier": _ALL,
        "objects: send, recv, broadcast, gather, all_gather, scatter": _HOST,
    }
)
"""A cell for each of COLUMNS. uneven: ranks' sizes differ, in rows and blocks."""
