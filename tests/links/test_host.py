"""What ranks of one host know each other by."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from aiodist.links import host
from aiodist.links.host import have_cores, host_id, outlast, own_cores, spare_cores


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


@pytest.mark.parametrize(
    ("allowed", "spare"),
    [
        ([2, 2], 1),  # the other rank's
        ([2, 2, 2], 0),
        ([16, 16], 15),
        ([16] * 8, 3),
        ([16] * 16, 1),
    ],
)
def test_a_rank_may_use_its_share_of_the_cores_and_that_of_the_rank_that_waits_for_it(
    allowed: list[int], spare: int
) -> None:
    cores = [frozenset(range(count)) for count in allowed]
    assert spare_cores(cores, cores[0]) == spare


def test_a_rank_that_is_bound_to_one_core_has_none_to_spare() -> None:
    cores = [frozenset({0}), frozenset({1})]
    assert spare_cores(cores, cores[0]) == 0


def test_ranks_have_cores_where_each_may_use_one_of_its_own() -> None:
    first, second, both = frozenset({0}), frozenset({1}), frozenset({0, 1})
    for where, each_has_one in (
        ([first], True),
        ([first, second], True),
        ([first, first], False),
        ([both, both], True),
        ([both, second], True),
        ([both, both, second], False),
    ):
        assert have_cores(where) is each_has_one


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no such sets")
def test_a_process_knows_its_cores() -> None:
    core = max(os.sched_getaffinity(0))
    ask = "from aiodist.links.host import own_cores; print(own_cores())"
    pinned = f"import os; os.sched_setaffinity(0, [{core}]); {ask}"
    printed = subprocess.run([sys.executable, "-c", pinned], capture_output=True, text=True)
    assert printed.stdout == f"{frozenset({core})}\n"
    assert own_cores() == os.sched_getaffinity(0)


def test_a_process_that_may_not_ask_for_its_cores_takes_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(pid: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "sched_getaffinity", refuse, raising=False)
    assert own_cores() == frozenset(range(os.cpu_count() or 1))


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS], ids=errno.errorcode.get)
def test_a_process_that_may_not_yield_its_core_goes_on(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse() -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "sched_yield", refuse, raising=False)
    assert host._yielding()() is None


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes, each of which ends with its input."""
    started = [subprocess.Popen(["cat"], stdin=subprocess.PIPE) for _ in range(2)]
    yield started
    for process in started:
        process.communicate()


@pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="the system tells no process of another's end"
)
async def test_outlast_waits_for_all_that_run_and_no_longer_than_its_time(
    processes: list[subprocess.Popen[bytes]],
) -> None:
    pids = [process.pid for process in processes]
    before = len(os.listdir("/proc/self/fd"))
    await outlast(pids, 0.0)
    assert len(os.listdir("/proc/self/fd")) == before
    waiting = asyncio.create_task(outlast(pids, 60))
    for process in processes:
        for _ in range(20):  # in which it could see that another one has ended
            await asyncio.sleep(0)
        assert not waiting.done()
        process.communicate()
    await waiting
    await outlast(pids, 60)  # which have ended
