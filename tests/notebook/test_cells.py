"""A cell on a rank, without a kernel."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from aiodist.notebook.cells import run_cell


@pytest.fixture(autouse=True)
def _main(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``__main__`` for the names of the cells."""
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))


def test_a_cell_with_an_await_runs_on_the_loop_as_a_whole() -> None:
    run_cell("import asyncio\nasync def number():\n    return 3", 1)
    assert run_cell("task = asyncio.create_task(number())\nawait task", 2).text == "3"
    assert run_cell("await number()\nasyncio.create_task(number()).done()", 3).text == "False"


def test_a_cell_without_an_await_runs_in_its_thread() -> None:
    here = "import threading\nthreading.current_thread() is threading.main_thread()"
    assert run_cell(here, 1).text == "True"
    assert run_cell("value = 3", 2).text == ""
