"""Ranks that share one GPU, each a process: by CUDA IPC, and through the host."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.gpu.jobs import run_job

SHARING = Path(__file__).with_name("sharing.py")


@pytest.mark.gpu
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("way", ["ipc", "staging"])
def test_every_operation_as_on_the_cpu(way: str, size: int) -> None:
    assert run_job(SHARING, size, way).count("equal") == size


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="segments are Linux's")
def test_the_same_between_processes_without_a_gpu() -> None:
    assert run_job(SHARING, 2, "memfd").count("equal") == 2
