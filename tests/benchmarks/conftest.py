"""What libraries open once and keep until Python ends is opened before the tests look."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cases import Case
from benchmarks.plots import draw
from benchmarks.results import Report, Result
from benchmarks.stats import Summary


@pytest.fixture(scope="session")
def libuv() -> None:
    """libuv's pipe: the runner meets its ranks at a store of torch's."""
    from torch.distributed import TCPStore

    TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture(scope="session")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """matplotlib's font files; a folder with a figure that needed them."""
    folder = tmp_path_factory.mktemp("figures")
    result = Result(Case("all_reduce", 2, 64), "gloo", Summary(1.0, 1.0, 1.0, 1))
    draw(Report({}, {}, ("gloo",), (result,)), folder)
    return folder
