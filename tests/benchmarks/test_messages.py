"""The benchmark of short messages runs, and has a figure for every peer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("zmq")

ROOT = Path(__file__).parents[2]


def test_every_peer_has_its_figures() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.messages", "--count", "300", "--rounds", "1"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    figures = json.loads(run.stdout.splitlines()[-1])
    assert set(figures) == {
        "tensor",
        "object",
        "stream",
        "tensor_1MiB",
        "object_1MiB",
        "asyncio_streams",
        "pyzmq",
    }
    assert all(value > 0 for peer in figures.values() for value in peer.values())
