"""The blocking API and the methods of a group are what `tests/sync/generate.py` writes, with types."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import aiodist
import aiodist.sync as dist
from tests.sync.generate import ROOT, generated

TYPED = """
from typing import Any

import numpy as np

import aiodist
import aiodist.sync as dist

x = np.zeros(1)
started: dist.Work[None] | None = dist.all_reduce(x, dist.ReduceOp.SUM, None, True, timeout=1.0)
sender: int = dist.recv(x, 0)
received: dist.Received = dist.recv()
tensors: list[Any] = dist.all_gather_new(x)
dist.reduce(x, 0, async_op=True, group_dst=None)


async def method(group: aiodist.ProcessGroup) -> None:
    await group.all_reduce(x, aiodist.ReduceOp.SUM, timeout=1.0)
    rank: int = await group.recv(x, 0, 4)
    await group.broadcast(x, group_src=0)
"""

WRONG = """
import numpy as np

import aiodist
import aiodist.sync as dist

x = np.zeros(1)
dist.all_reduce(x, "sum")  # arg-type
dist.broadcast(x, source=0)  # call-arg
dist.reduce(x, 0, async_op="no")  # arg-type
dist.send(x, dst="1")  # arg-type
text: str = dist.recv(x, 0)  # assignment
dist.all_gather_new(x, async_op=True)  # call-arg


def method(group: aiodist.ProcessGroup) -> None:
    group.all_reduce(x, "sum")  # arg-type
    group.broadcast(x, 0, group=None)  # call-arg
    group.send_object(1, tag="4")  # arg-type
    group.isend(x, async_op=True)  # call-arg
"""


def test_the_committed_files_are_what_the_async_functions_make() -> None:
    for path, text in generated().items():
        assert path.read_text() == text, f"{path.relative_to(ROOT)}: run `make generated`"


def mypy(script: Path, text: str) -> str:
    script.write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", str(script)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_mypy_knows_the_types_of_blocking_functions_and_methods(tmp_path: Path) -> None:
    found = mypy(tmp_path / "typed.py", TYPED)
    assert "Success" in found, found


@pytest.mark.slow
def test_mypy_rejects_each_wrong_argument(tmp_path: Path) -> None:
    found = mypy(tmp_path / "wrong.py", WRONG)
    expected = {
        f"wrong.py:{number}: [{line.split('# ')[1]}]"
        for number, line in enumerate(WRONG.splitlines(), 1)
        if "# " in line
    }
    errors = [line for line in found.splitlines() if ": error: " in line]
    places = (line.split(": error: ")[0].rpartition("/")[2] for line in errors)
    codes = (line[line.rindex("[") :] for line in errors)
    assert {f"{place}: {code}" for place, code in zip(places, codes, strict=True)} == expected, (
        found
    )


def test_a_blocking_function_has_the_docstring_of_its_async_one() -> None:
    text = inspect.getdoc(dist.all_reduce) or ""
    assert text.startswith(inspect.getdoc(aiodist.all_reduce) or "-")
    assert "async_op=True" in text
    assert "async_op" not in (inspect.getdoc(dist.monitored_barrier) or "")
    assert "await" not in (inspect.getdoc(dist.recv_object) or "")
