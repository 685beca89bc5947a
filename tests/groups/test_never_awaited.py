"""A forgotten ``await`` warns once, and says where the operation was called."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiodist as dist
from aiodist.testing import run_ranks

Caught = list[warnings.WarningMessage]


@contextmanager
def caught(action: str = "always") -> Iterator[Caught]:
    """The warnings about operations that were never awaited."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter(action, RuntimeWarning)  # type: ignore[arg-type]
        yield found
        gc.collect()


def here() -> int:
    """The line of the caller."""
    return sys._getframe(1).f_lineno


@pytest.mark.parametrize("transport", ["inproc", "shm"])
async def test_a_forgotten_await_warns_at_the_line_of_the_call(transport: str) -> None:
    lines: list[int] = []

    async def main(rank: int) -> None:
        x = np.ones(2)
        lines.append(here() + 1)
        dist.all_reduce(x)
        await dist.barrier()  # so it ends on both ranks
        lines.append(here() + 1)
        dist.all_reduce(x)  # the short way of equal calls, where ranks share memory
        await dist.barrier()

    with caught() as found:
        await run_ranks(2, main, transport)
    assert [each.category for each in found] == [RuntimeWarning] * 4
    assert {each.filename for each in found} == {__file__}
    assert sorted(each.lineno for each in found) == sorted(lines)
    for each in found:
        assert str(each.message) == "all_reduce(2 x float64, SUM) was never awaited or waited for"


async def warned_of(filename: str, namespace: dict[str, Any]) -> set[tuple[str, int]]:
    """The files and lines that are named if code of ``filename`` forgets an operation."""
    call = compile("dist.all_reduce(x)", filename, "exec")

    async def main(rank: int) -> None:
        exec(call, {"dist": dist, "x": np.ones(2), **namespace})
        await dist.barrier()

    with caught() as found:
        await run_ranks(2, main)
    return {(each.filename, each.lineno) for each in found}


async def test_a_caller_whose_folder_has_a_longer_name_is_not_taken_for_this_package() -> None:
    beside = str(Path(dist.__file__).parent) + "_training/train.py"
    assert await warned_of(beside, {"__name__": "train"}) == {(beside, 1)}


async def test_a_caller_whose_module_has_no_name_is_warned() -> None:
    assert await warned_of("<cell>", {}) == {("<cell>", 1)}


async def test_the_same_line_warns_once() -> None:
    async def main(rank: int) -> None:
        for _ in range(3):
            dist.barrier()
        await dist.barrier()

    with caught("default") as found:
        await run_ranks(2, main)
    assert len(found) == 1


ASKED: dict[str, Callable[[dist.Work[int]], object]] = {
    "is_completed": lambda work: work.is_completed(),
    "done": lambda work: work.done(),
    "is_success": lambda work: work.is_success(),
    "cancel": lambda work: work.cancel(),
    "get_future": lambda work: work.get_future(),
    "add_done_callback": lambda work: work.add_done_callback(print),
    "create_task": asyncio.ensure_future,
    "close": lambda work: work.close(),
}


@pytest.mark.parametrize("question", ASKED)
async def test_a_work_that_was_asked_does_not_warn(question: str) -> None:
    async def main(rank: int) -> None:
        ASKED[question](dist.irecv(np.ones(1), 1 - rank))
        await dist.send(np.ones(1), 1 - rank)
        await dist.barrier()

    with caught() as found:
        await run_ranks(2, main)
    assert found == []


async def test_a_work_that_was_waited_for_does_not_warn() -> None:
    async def main(rank: int) -> None:
        work = dist.irecv(np.zeros(1), 1 - rank)
        await dist.send(np.ones(1), 1 - rank)
        assert await asyncio.to_thread(work.wait)

    with caught() as found:
        await run_ranks(2, main)
    assert found == []


async def test_in_debug_mode_the_warning_has_the_stack_of_the_call() -> None:
    asyncio.get_running_loop().set_debug(True)

    async def main(rank: int) -> None:
        forgetful()
        await dist.barrier()

    def forgetful() -> None:
        dist.barrier()

    with caught() as found:
        await run_ranks(2, main)
    assert len(found) == 2
    text = str(found[0].message)
    assert "Operation called at (most recent call last):" in text
    assert text.index("in main") < text.index("in forgetful")
    assert "aiodist/groups" not in text


def run_alone(body: str) -> str:
    """Run ``body`` in a group of one rank, by ``python -c``. Returns what stderr got."""
    program = f"""
import asyncio
import numpy as np
import aiodist as dist

async def main():
    async with dist.process_group(rank=0, world_size=1, store=dist.MemoryStore()):
        {body}

work = asyncio.run(main())
"""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stderr


def test_a_program_without_a_file_is_warned_too() -> None:
    told = run_alone("dist.all_reduce(np.ones(2)); await dist.barrier()")
    wanted = "RuntimeWarning: all_reduce(2 x float64, SUM) was never awaited or waited for"
    first, *line = told.splitlines()
    assert first == f"<string>:8: {wanted}"
    # Some versions of Python show the line of a text after -c, as they do for a file.
    plain = "import warnings; warnings.warn('of Python itself')"
    command = [sys.executable, "-c", plain]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert len(line) == len(shown.splitlines()) - 1


def test_a_work_that_lives_as_long_as_its_program_ends_in_silence() -> None:
    """The interpreter drops it with no caller on the stack."""
    assert run_alone("return dist.all_reduce(np.ones(1))") == ""
