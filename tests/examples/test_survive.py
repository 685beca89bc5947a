"""The training job goes on through two kills and ends with all ranks and equal replicas."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "survive.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_the_example_survives_a_killed_rank(launch: Callable[..., str]) -> None:
    output = launch(4, SCRIPT, options=["--max-restarts", "2"])
    for rank, number in ((2, 1), (0, 2)):
        replaced = f"rank {rank} has failed: SIGKILL; another process takes its place"
        assert f"{replaced} (restart {number} of 2)" in output
    assert "left are ranks (0, 1, 3)" in output
    assert "left are ranks (1, 2, 3)" in output
    taken = [
        (int(step), rank) for step, rank in re.findall(r"step (\d+): took in rank (\d)", output)
    ]
    (first, second), ranks = zip(*taken, strict=True)
    assert ranks == ("2", "0")
    # A replacement enters at every fifth step after its rank's last, 32 and 62; at steps 55 and 85 the
    # others wait for it.
    assert 32 < first <= 55
    assert 62 < second <= 85
    assert first % 5 == second % 5 == 0
    assert first % 5 == second % 5 == 0
    # before anybody was taken in again
    assert len(re.findall(r"went on \d+\.\d\d s after", output.split("took in rank 2")[0])) == 1
    assert len(re.findall(r"went on \d+\.\d\d s after", output)) == 2
    assert re.search(r"bitwise the same on 4 ranks \(sha256 [0-9a-f]{12}\)", output)
