"""Ranks of the torch backend, forked from one process that imports torch once for all tests."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def _server() -> Iterator[subprocess.Popen[str]]:
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.torch_backend.ranks"],
            cwd=HERE.parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        yield process
        process.communicate()


@pytest.fixture
def run_ranks(_server: subprocess.Popen[str]) -> Callable[..., None]:
    """``run_ranks("ddp:equals_whole_batch", 3)``; fails with the tracebacks of the ranks."""

    def run(program: str, size: int, may_die: tuple[int, ...] = ()) -> None:
        assert _server.stdin is not None
        assert _server.stdout is not None
        print(json.dumps([program, size]), file=_server.stdin, flush=True)
        answers = json.loads(_server.stdout.readline())
        failed = [
            f"rank {rank}:\n{answer}"
            for rank, answer in enumerate(answers)
            if answer is not None and rank not in may_die
        ]
        if failed:
            pytest.fail("\n\n".join(failed), pytrace=False)

    return run
