"""What ranks of one host know each other by."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from aiodist.links.host import have_cores, host_id


def test_a_host_has_one_name_and_a_variable_takes_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AIODIST_HOST_ID", raising=False)
    found = host_id()
    assert found == host_id() != ""
    monkeypatch.setenv("AIODIST_HOST_ID", " rack1-node7 ")
    assert host_id() == "rack1-node7"
    monkeypatch.setenv("AIODIST_HOST_ID", "")
    assert host_id() == found


@pytest.fixture
def others() -> Iterator[list[int]]:
    """Two processes that do nothing."""
    idle = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    started = [subprocess.Popen(idle, stdin=subprocess.PIPE) for _ in range(2)]
    yield [process.pid for process in started]
    for process in started:
        process.communicate(timeout=30)


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two cores and a system that tells who may use which",
)
def test_ranks_have_cores_where_each_may_use_one_of_its_own(others: list[int]) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    for where, each_has_one in (
        (({first}, {second}), True),
        (({first}, {first}), False),
        (({first, second}, {first, second}), True),
        (({first, second}, {second}), True),
    ):
        for pid, cores in zip(others, where, strict=True):
            os.sched_setaffinity(pid, cores)
        assert have_cores(others) is each_has_one
    assert have_cores(others[:1])
    many = len(os.sched_getaffinity(0)) + 1
    assert not have_cores([os.getpid()] * many)


def test_a_process_that_is_gone_counts_as_one_like_this() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(30)
    assert have_cores([ended.pid])
