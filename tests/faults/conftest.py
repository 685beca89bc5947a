"""The nursery that runs the cells of the matrix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults.cells import Cell, tls_environment
from tests.faults.nursery import AT_ONCE
from tests.faults.report import Measured, write_results
from tests.limits import timeout_scale

ROOT = Path(__file__).parents[2]
REPORT_VARIABLE = "AIODIST_FAULT_REPORT"
"""Where it names a file, what the cells measured is written there."""


def _cells_at_once() -> int:
    """Each process that runs tests has a nursery of its own."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return AT_ONCE if workers == 1 else 2


WINDOW = 4
"""So many times the cells that run at once are given to the nursery: the one that is asked for and the
next. Not all: where several processes run tests, another one may come to ask for the rest.
"""


class Nursery:
    """Runs a cell that is asked for and, meanwhile, those that are likely to be asked for next."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        """``cells``: in the order in which they are asked for, if they are."""
        self.measured: dict[Cell, Measured] = {}
        """Of cells that passed."""
        at_once = _cells_at_once()
        self._cells = cells
        self._numbers = {cell: number for number, cell in enumerate(cells)}
        self._window = WINDOW * at_once
        self._given: set[int] = set()
        self._answers: dict[int, dict[str, Any]] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "tests.faults.nursery", str(at_once)],
            cwd=ROOT,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                **tls_environment(),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _give(self, first: int) -> None:
        """Give it those of the window from ``first`` on that it has not had."""
        assert self._process.stdin is not None
        for number in range(first, min(first + self._window, len(self._cells))):
            if number not in self._given:
                self._given.add(number)
                job = {"number": number, "cell": self._cells[number].as_dict()}
                self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def answer(self, cell: Cell) -> dict[str, Any]:
        number = self._numbers[cell]
        self._give(number)
        assert self._process.stdout is not None
        while number not in self._answers:
            line = self._process.stdout.readline()
            assert line, "the nursery has died"
            answer = json.loads(line)
            self._answers[answer["number"]] = answer
        return self._answers.pop(number)

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="session")
def nursery(request: pytest.FixtureRequest) -> Iterator[Nursery]:
    """One for all cells that this session has collected."""
    chosen = [item for item in request.session.items if isinstance(item, pytest.Function)]
    cells = [item.callspec.params["cell"] for item in chosen if "nursery" in item.fixturenames]
    made = Nursery(cells)
    yield made
    made.close()
    place = os.environ.get(REPORT_VARIABLE)
    if place:
        write_results(Path(place), made.measured, timeout_scale())
