"""Start operations by their cached plans alone."""

from __future__ import annotations

from typing import Any

import pytest

from aiodist.backends.mixed import MixedBackend
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.operation import Operation
from tests.engine.conftest import engine_of


def native(group: Any) -> Any:
    """Return the backend of CPU tensors; with NVIDIA's driver there it lies in one for all devices."""
    backend = (group if isinstance(group, GroupEngine) else engine_of(group)).backend
    return backend.by_device["cpu"] if isinstance(backend, MixedBackend) else backend


def at_once(group: Any, operation: Operation[Any]) -> Any:
    """Return what a cached plan completes or begins; None if nothing has started."""
    backend = native(group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "_begin", _start_nothing)
        patch.setattr(backend, "_others", dict.fromkeys(backend._others, _start_nothing))
        patch.setattr(backend._group, "recv_posted", _start_nothing)
        return backend.start(operation)


def _start_nothing(*_: object) -> None:
    """Stand in for the general path."""
