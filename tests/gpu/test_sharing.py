"""Ranks that share one GPU, each a process: by CUDA IPC, and through the host."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.gpu.jobs import run_job

SHARING = Path(__file__).with_name("sharing.py")


@pytest.mark.gpu
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("way", ["ipc", "ipc-in-steps", "staging"])
def test_every_operation_as_on_the_cpu(way: str, size: int) -> None:
    assert run_job(SHARING, size, way).count("equal") == size


CANCELLED = """
import asyncio
import torch
import aiodist as dist

COUNT = 4 << 20


async def main():
    await dist.init_process_group("aiodist")
    failed = 0
    for turn in range(12):
        tensor = torch.ones(COUNT, device="cuda")
        reducing = asyncio.ensure_future(dist.all_reduce(tensor))
        await asyncio.sleep(turn * 0.002)
        reducing.cancel()
        try:
            await reducing
        except (asyncio.CancelledError, dist.CollectiveCancelledError):
            failed += 1
        values = torch.arange(COUNT, device="cuda") % 1000
        await dist.all_reduce(values)
        expected = 2 * (torch.arange(COUNT) % 1000)
        assert torch.equal(values.cpu(), expected), turn
    assert failed
    await dist.destroy_process_group()
    print("good", flush=True)


asyncio.run(main())
"""


@pytest.mark.gpu
@pytest.mark.parametrize("ipc", ["0", "1"])
def test_a_cancelled_collective_leaves_the_group_as_it_was(
    ipc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIODIST_CUDA_IPC", ipc)
    script = tmp_path / "cancelled.py"
    script.write_text(CANCELLED)
    assert run_job(script, 2).count("good") == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="segments are Linux's")
def test_the_same_between_processes_without_a_gpu() -> None:
    assert run_job(SHARING, 2, "memfd").count("equal") == 2
