"""What libraries open once and keep until Python ends is opened before the tests look."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiodist.bench.cases import Case
from benchmarks import processes
from benchmarks.peers.floor import DEPTH
from benchmarks.peers.floor import PART as PART_IN_MEMORY
from benchmarks.peers.floor_tcp import PART as PART_OVER_TCP
from benchmarks.plots import draw
from benchmarks.results import Report, Result
from benchmarks.stats import Summary
from tests.warm_python import WarmPython

WRAPPED = 4 * (DEPTH * PART_IN_MEMORY * 6 + 48)
"""Bytes of a tensor whose halves and thirds go round a ring and leave a rest."""

LONG = 4 * (5 * PART_OVER_TCP + 6)
"""Bytes of a tensor whose halves have several parts and a rest, and fill what the kernel takes."""


@pytest.fixture(scope="session")
def libuv() -> None:
    """The pipes of both libuvs: the runner meets its ranks at a store of torch's, peers run uvloop."""
    import uvloop
    from torch.distributed import TCPStore

    TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    uvloop.new_event_loop().close()


@pytest.fixture
def quick_ranks(libuv: None, warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start ranks as forks, which import torch no more, and look often for what they answer.

    Those of ``make test-benchmarks`` start them as a user does.
    """
    monkeypatch.setattr(processes, "PYTHON", warm_python.command)
    monkeypatch.setattr(processes, "LOOK_SECONDS", 0.01)


@pytest.fixture(scope="session")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """matplotlib's font files; a folder with a figure that needed them."""
    folder = tmp_path_factory.mktemp("figures")
    result = Result(Case("all_reduce", 2, 64), "gloo", Summary(1.0, 1.0, 1.0, 1, 1.0, 1.0))
    draw(Report({}, {}, ("gloo",), (result,)), folder)
    return folder
