"""What there is, as it can be asked for before anybody has met."""

from __future__ import annotations

import pytest

import aiodist as dist


def test_what_is_there_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dist.is_backend_available("GLOO")
    assert not dist.is_backend_available("mpi")
    assert not dist.is_backend_available("no such backend")
    for name in ("LOCAL_RANK", "RANK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    assert not dist.is_torchelastic_launched()
    with pytest.raises(dist.InvalidUsageError, match="pass fallback_rank"):
        dist.get_node_local_rank()
    assert dist.get_node_local_rank(fallback_rank=0) == 0
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "5")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1")
    assert dist.get_node_local_rank() == 1
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert dist.get_node_local_rank(0) == 3
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert dist.is_torchelastic_launched()
