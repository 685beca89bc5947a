"""Ranks of the blocking API: as threads of this process, and as scripts in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import aiodist.sync as dist
from aiodist.groups.world import World, use_world
from aiodist.sync import portal
from tests.warm_python import STRICT, WarmPython

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _pythons_handler_of_ctrl_c() -> None:
    """Where a forgotten store is the last to leave, the loop's thread ends, which may not restore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def run_threads() -> Callable[..., list[Any]]:
    """``run_threads(size, fn)``: ``fn(rank)`` in a thread for each rank; their results."""
    return _run_threads


@pytest.fixture
def run_apart(tmp_path: Path) -> Callable[..., list[Any]]:
    """As `run_threads`, but each rank has an event loop of its own, as in a process."""
    return partial(_start_threads, {"init_method": f"file://{tmp_path}/store"})


def _run_threads(size: int, fn: Callable[[int], Any]) -> list[Any]:
    store = dist.HashStore()
    try:
        return _start_threads({"store": store}, size, fn)
    finally:
        store.close()


def _start_threads(meeting: dict[str, Any], size: int, fn: Callable[[int], Any]) -> list[Any]:
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def one(rank: int) -> None:
        use_world(World())
        if "store" not in meeting:
            portal._current.set(portal.Portal())
        try:
            dist.init_process_group(**meeting, rank=rank, world_size=size, timeout=30)
            try:
                results[rank] = fn(rank)
            finally:
                dist.destroy_process_group()
        except BaseException as error:  # noqa: BLE001  # raised below, in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@pytest.fixture
def alone() -> Iterator[None]:
    """An initialised world of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def script(
    tmp_path: Path, warm_python: WarmPython
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a Python script in a process of its own; killed at the end if it still runs.

    ``python`` is the command that takes it, a fork of a Python that has imported aiodist by default.
    """
    started: list[subprocess.Popen[str]] = []

    def start(
        source: str, *args: object, python: Sequence[str] = warm_python.command, **environment: str
    ) -> subprocess.Popen[str]:
        path = tmp_path / f"script{len(started)}.py"
        path.write_text(textwrap.dedent(source))
        process = subprocess.Popen(
            [*python, str(path), *map(str, args)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **STRICT, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
