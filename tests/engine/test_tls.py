"""Jobs whose store and streams are by TLS, in both APIs, as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from aiodist.launch.ports import reserve_port
from tests.limits import scaled
from tests.test_credentials import tls_environ

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]

BLOCKING = """
    import os, numpy as np, aiodist.sync as dist
    from aiodist.groups.world import current_world
    dist.init_process_group(timeout=60)
    for length in (3, 1 << 18):
        data = np.ones(length)
        dist.all_reduce(data)
        assert (data == 2).all()
    schemes = {c.scheme for c in current_world().endpoint.connections()}
    print(sorted(schemes), dist.get_rank())
    dist.destroy_process_group()
"""
ASYNC = """
    import asyncio, os, numpy as np, aiodist as dist
    from aiodist.groups.world import current_world
    async def main():
        await dist.init_process_group(timeout=60)
        for length in (3, 1 << 18):
            data = np.ones(length)
            await dist.all_reduce(data)
            assert (data == 2).all()
        schemes = {c.scheme for c in current_world().endpoint.connections()}
        print(sorted(schemes), dist.get_rank())
        await dist.destroy_process_group()
    asyncio.run(main())
"""


def run(source: str, environs: list[dict[str, str]]) -> list[tuple[int, str, str]]:
    with reserve_port() as reserved:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(source)],
                cwd=ROOT,
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(len(environs)),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(reserved.port),
                    "PYTHONWARNINGS": "error",
                    **environ,
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, environ in enumerate(environs)
        ]
        try:
            told = [rank.communicate(timeout=scaled(100)) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
    return [(r.returncode, out, err) for r, (out, err) in zip(ranks, told, strict=True)]


@pytest.mark.parametrize("api", [BLOCKING, ASYNC], ids=["blocking", "async"])
def test_store_and_streams_are_by_tls(api: str) -> None:
    environ = {**tls_environ(), "AIODIST_TRANSPORT": "tls"}
    for rank, told in enumerate(run(api, [environ, environ])):
        assert told == (0, f"['tls'] {rank}\n", "")


def test_a_rank_of_another_authority_is_kept_out() -> None:
    waiting = scaled(2.5)  # for rank 1 to be there, which it is not allowed to be
    source = BLOCKING.replace(
        "timeout=60", f"timeout={waiting} if os.environ['RANK'] == '0' else 60"
    )
    ours, theirs = run(source, [tls_environ(), tls_environ("another")])
    assert ours[0] == theirs[0] == 1
    assert "rank 1 of 2 did not arrive" in ours[2]
    assert "cannot be reached by TLS" in theirs[2]
