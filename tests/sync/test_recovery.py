"""Recovery through the blocking API."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiodist.sync as dist
from tests.limits import scaled

Run = Callable[..., list[Any]]


def test_shrink_after_a_revocation(run_threads: Run) -> None:
    def main(rank: int) -> None:
        if rank == 1:
            dist.revoke()
        else:
            with pytest.raises(dist.GroupRevokedError, match="rank 1"):
                dist.recv(np.zeros(1), 1)
        group = dist.shrink(timeout=20)
        assert (list(group.ranks), group.generation) == ([0, 1, 2], 1)
        data = np.full(3, float(rank))
        dist.all_reduce(data)
        assert (data == 3).all()
        with pytest.raises(dist.InvalidUsageError, match="outside any event loop"):
            group.shrink()

    run_threads(3, main)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "call",
    [
        "dist.shrink()",
        "dist.grow(dist.FileStore(path + '.more', 2), [1])",
        "dist.monitored_barrier()",
        "dist.sync_state({}, src=1)",
        "dist.rejoin(dist.FileStore(path + '.more', 2), 0)",
        "dist.init_process_group('gloo', 'file://' + path, rank=0, world_size=2)",
    ],
)
def test_ctrl_c_ends_a_blocking_call_at_once(
    script: Callable[..., subprocess.Popen[str]], tmp_path: Path, call: str
) -> None:
    apart, grows = "rejoin" in call or "init" in call, "grow" in call
    source = f"""
    import sys
    import aiodist.sync as dist
    path, rank = sys.argv[1], int(sys.argv[2])
    if {not apart}:
        dist.init_process_group("gloo", "file://" + path, rank=rank, world_size=2, timeout=60)
        if {grows} and rank == 1:
            print("up", flush=True)
            sys.exit(0)
        if {grows}:
            try:
                dist.barrier()
            except dist.PeerLostError:
                dist.shrink()
    if rank == 1:
        sys.stdin.readline()
        sys.exit(0)
    try:
        print("up", flush=True)
        {call}
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    """
    ranks = [script(source, tmp_path / "store", rank) for rank in (0, 1)]
    out = ranks[0].stdout
    assert out is not None
    assert out.readline() == "up\n"
    time.sleep(0.3)  # the call itself shows nothing when it has begun to wait
    ranks[0].send_signal(signal.SIGINT)
    assert out.readline() == "interrupted\n"  # and not a timeout, or nothing
    for rank in (1, 0):
        _, err = ranks[rank].communicate("\n", timeout=scaled(30))
        assert (ranks[rank].returncode, err) == (0, "")
