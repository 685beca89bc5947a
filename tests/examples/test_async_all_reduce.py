"""The async example sums, and the event loop runs on meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "async_all_reduce.py"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_loop_runs_on_meanwhile(launch: Callable[..., str]) -> None:
    output = launch(2, SCRIPT)
    for rank in (0, 1):
        line = rf"\[{rank}\] rank {rank} of 2: every element is 3; (\d+) ticks meanwhile"
        found = re.search(line, output)
        assert found, output
        assert int(found[1]) >= 2
