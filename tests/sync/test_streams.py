from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import aiodist.sync as dist
from aiodist.groups.world import current_world
from tests.tensors.cuda import Cuda


def test_blocking_calls_start_on_the_callers_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    found: list[str] = []
    store = dist.HashStore()
    dist.init_process_group(store=store, rank=0, world_size=1)
    group = current_world().default_group()
    start = group.backend.start

    def look(operation: Any, timeout: float | None) -> Any:
        found.append(cuda.current_stream())
        return start(operation, timeout)

    group.backend = SimpleNamespace(start=look, close=lambda: None)  # type: ignore[assignment]
    try:
        with cuda.stream("mine"):
            dist.barrier()
        dist.barrier()
    finally:
        dist.destroy_process_group()
        store.close()
    assert found == ["mine", "default"]
