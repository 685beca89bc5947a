"""``@pytest.mark.ranks``: tests on several ranks, in runs of pytest of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

RunPytest = Callable[..., str]

INI = "[pytest]\nfilterwarnings = error\n{more}"
ASYNCIO = "asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"


@pytest.fixture
def run_pytest(tmp_path: Path, scaled: Callable[[float], float]) -> RunPytest:
    """Run pytest on a file with the given tests; return what it printed."""

    def run(source: str, *options: str) -> str:
        file = tmp_path / "tests" / "test_it.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text("import asyncio, os, pytest\nimport aiodist as dist\n" + source)
        (tmp_path / "pytest.ini").write_text(
            INI.format(more="" if "no:asyncio" in options else ASYNCIO)
        )
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(file)],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=scaled(100),
            check=False,
        )
        return done.stdout + done.stderr

    return run


def test_async_and_blocking_tests_run_on_every_rank(run_pytest: RunPytest) -> None:
    output = run_pytest(
        """
import numpy as np

@pytest.fixture
def value():
    return 2.0

@pytest.mark.ranks(3)
async def test_async(value):
    data = np.full(2, value)
    await dist.all_reduce(data)
    assert data[0] == 6 and dist.get_world_size() == 3

@pytest.mark.ranks(2, transport="tcp")
async def test_tcp():
    await dist.barrier()

@pytest.mark.ranks(2)
def test_blocking(value):
    import aiodist.sync
    data = np.full(2, value)
    aiodist.sync.all_reduce(data)
    assert data[0] == 4

@pytest.mark.ranks(2, processes=True)
async def test_async_in_processes():
    pids = [0, 0]
    await dist.all_gather_object(pids, os.getpid())
    assert pids[0] != pids[1]

async def test_without_ranks():
    assert not dist.is_initialized()
""",
        "-v",
    )
    assert "5 passed" in output, output


def test_the_errors_of_all_ranks_are_shown_with_the_culprit_first(run_pytest: RunPytest) -> None:
    output = run_pytest(
        """
@pytest.mark.ranks(3)
async def test_it():
    if dist.get_rank() == 1:
        raise ValueError("rank 1 is the culprit")
    await dist.barrier()

@pytest.mark.ranks(2)
def test_different_errors():
    raise (KeyError, IndexError)[aiodist.sync.get_rank()]

@pytest.mark.ranks(2)
def test_blocking():
    assert aiodist.sync.get_rank() == 0, "not rank 0"
import aiodist.sync
"""
    )
    assert "3 failed" in output, output
    assert "ExceptionGroup: 2 of 2 ranks failed" in output
    assert "ValueError: rank 1 is the culprit" in output
    assert "AssertionError: not rank 0" in output
    assert "rank 1 of 2 raised this" in output


def test_skip_xfail_and_the_class_of_an_error_reach_pytest(run_pytest: RunPytest) -> None:
    output = run_pytest(
        """
@pytest.mark.ranks(2)
async def test_async_skip():
    pytest.skip("no reason")

@pytest.mark.ranks(2)
def test_blocking_skip():
    if sync.get_rank() == 0:
        pytest.importorskip("no_such_module")
    sync.barrier()

@pytest.mark.ranks(2)
async def test_async_xfail():
    pytest.xfail("later")

@pytest.mark.ranks(2)
def test_blocking_xfail():
    pytest.xfail("later")

@pytest.mark.xfail(raises=ZeroDivisionError, strict=True)
@pytest.mark.ranks(2)
async def test_async_raises():
    if dist.get_rank() == 0:
        1 / 0
    await dist.barrier()

@pytest.mark.xfail(raises=AssertionError, strict=True)
@pytest.mark.ranks(2)
def test_blocking_raises():
    assert 0
import aiodist.sync as sync
""",
        "-rsx",
    )
    assert "2 skipped, 4 xfailed" in output, output
    assert ": no reason\n" in output
    assert "could not import 'no_such_module'" in output


def test_notes_of_an_error_show_the_errors_of_the_other_ranks(run_pytest: RunPytest) -> None:
    output = run_pytest(
        """
@pytest.mark.ranks(2)
def test_it():
    raise ValueError(f"of rank {aiodist.sync.get_rank()}")
import aiodist.sync
"""
    )
    assert "1 failed" in output, output
    assert "ExceptionGroup" not in output
    assert "ValueError: of rank 0" in output
    assert "ValueError: of rank 1" in output
    assert "asyncio.run" not in output  # how the ranks were called says nothing about the test


def test_a_blocking_test_fails_as_it_does_in_one_process(run_pytest: RunPytest) -> None:
    output = run_pytest(
        """
@pytest.mark.ranks(2)
def test_no_error():
    with pytest.raises(ValueError):
        pass

@pytest.mark.ranks(2)
def test_fixture(request): ...
"""
    )
    assert "2 failed" in output, output
    assert "Failed: DID NOT RAISE" in output
    assert "with pytest.raises(ValueError):" in output  # the line of the test, from the rank
    assert "RuntimeError" not in output
    assert "the fixture 'request' cannot be sent to the processes of the ranks: " in output


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_a_wrong_mark_fails_its_test_alone(run_pytest: RunPytest, mode: str) -> None:
    output = run_pytest(
        """
import unittest

@pytest.mark.ranks(0)
async def test_no_rank(): ...

@pytest.mark.ranks
async def test_without_n(): ...

@pytest.mark.ranks("2")
def test_text(): ...

@pytest.mark.ranks(2, proceses=True)
async def test_misspelt(): ...

@pytest.mark.ranks(2, processes=False)
def test_blocking(): ...

@pytest.mark.ranks(2, transport="tcp")
def test_blocking_tcp(): ...

class TestOfUnittest(unittest.TestCase):
    @pytest.mark.ranks(2)
    def test_it(self): ...

@pytest.mark.ranks(2)
async def test_right(): ...
""",
        "-o",
        f"asyncio_mode={mode}",
    )
    assert "1 passed, 7 errors" in output, output
    assert "ERROR at setup of test_no_rank" in output
    for error in (
        "n must be at least 1, not 0",
        "missing a required argument: 'n'",
        "n must be an int, not str",
        "got an unexpected keyword argument 'proceses'",
        "a blocking test needs processes of its own; write `async def`, or leave processes out",
        "transport is for ranks in this process, and 'tcp' would not be used: leave it out, or write an "
        "`async def` test without processes=True",
        "TestOfUnittest is a unittest.TestCase, which runs its own methods",
    ):
        assert (
            f"wrong mark: {error}. Write @pytest.mark.ranks(n, transport='inproc', processes=None, "
            "timeout=60)\n" in output
        )


@pytest.mark.parametrize("options", [["-o", "asyncio_mode=strict"], ["-p", "no:asyncio"]], ids=str)
def test_an_async_test_needs_no_plugin_for_async_tests(
    run_pytest: RunPytest, options: list[str]
) -> None:
    page = (REPOSITORY / "docs" / "testing.md").read_text(encoding="utf-8")
    example, *_ = re.findall(r"^```python\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL)
    output = run_pytest(example, *options)
    assert "1 passed" in output, output


def test_the_mark_works_beside_xdist_and_strict_markers(run_pytest: RunPytest) -> None:
    output = run_pytest(
        """
@pytest.mark.ranks(2)
async def test_it():
    await dist.barrier()
""",
        "-n",
        "2",
        "--strict-markers",
    )
    assert "1 passed" in output, output


def test_the_mark_works_with_anyio(run_pytest: RunPytest) -> None:
    output = run_pytest(
        """
@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
@pytest.mark.ranks(2)
async def test_it():
    await dist.barrier()
""",
        "-p",
        "no:asyncio",
    )
    assert "1 passed" in output, output
