"""What tests look into."""

from __future__ import annotations

from typing import Any

from aiodist.backends.mixed import MixedBackend

SHORT_WAYS = (
    "run_cached",
    "run_cached_between",
    "run_cached_without_tensor",
    "send_cached",
    "recv_cached",
)
"""What a backend may have for calls like those before."""


def native(group: Any) -> Any:
    """The backend of tensors on the CPU; with NVIDIA's driver there it lies in one for all devices."""
    backend = getattr(group, "_engine", group).backend  # a handle or an engine
    return backend._by_device["cpu"] if isinstance(backend, MixedBackend) else backend
