"""A job without a secret logs one warning if other users or hosts can reach it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import stat
from pathlib import Path

import pytest

import aiodist as dist
from aiodist.groups.world import World, use_world
from aiodist.launch.ports import reserve_port
from aiodist.links.interfaces import default_address, is_loopback
from tests.test_credentials import tls_environ


async def meet(init_method: str) -> None:
    async def one(rank: int) -> None:
        use_world(World())
        await dist.init_process_group(
            init_method=init_method, rank=rank, world_size=2, timeout=30, liveness_timeout=0
        )
        await dist.barrier()
        await dist.destroy_process_group()

    context = contextvars.copy_context
    tasks = [asyncio.create_task(one(rank), context=context()) for rank in range(2)]
    await asyncio.gather(*tasks)


@pytest.mark.parametrize(
    ("environ", "warned"),
    [({}, 1), ({"AIODIST_SECRET": "s"}, 0), (tls_environ(), 0)],
    ids=["open", "secret", "tls"],
)
async def test_on_an_address_that_others_reach(
    environ: dict[str, str],
    warned: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    address = default_address()
    if is_loopback(address) or ":" in address:
        pytest.skip("this host has no IPv4 address but loopback")
    monkeypatch.delenv("AIODIST_SECRET", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level(logging.WARNING, "aiodist"), reserve_port() as reserved:
        await meet(f"tcp://{address}:{reserved.port}")
    assert caplog.text.count("this job has no secret") == warned


async def test_on_loopback_and_at_a_private_file_nothing_is_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.delenv("AIODIST_SECRET", raising=False)
    modes: list[int] = []
    path = tmp_path / "store"

    async def look() -> None:
        while not path.exists():  # noqa: ASYNC110  # the ranks make it at some point
            await asyncio.sleep(0)
        modes.append(stat.S_IMODE(path.stat().st_mode))

    with caplog.at_level(logging.WARNING, "aiodist"), reserve_port() as reserved:
        await meet(f"tcp://127.0.0.1:{reserved.port}")
        await asyncio.gather(meet(f"file://{path}"), look())
    assert "this job has no secret" not in caplog.text
    assert modes == [0o600]
