"""Rank processes that execute functions of an interactive program."""

from __future__ import annotations

import asyncio
import gc
import importlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

import numpy as np
import pytest
import pytest_asyncio

import aiodist
from aiodist.errors import InvalidUsageError, PeerLostError
from aiodist.launch.ports import reserve_port
from aiodist.rank_processes import Cluster, RanksError
from aiodist.rank_processes.cluster import InterruptedCallError, _print
from aiodist.rank_processes.control import pickler
from aiodist.rank_processes.rank_process import RankProcess
from tests.limits import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.asyncio(loop_scope="module"),
]

Shown = list[tuple[int, str, str]]


class Ranks(Cluster):
    """A cluster that keeps what its ranks write."""

    def __init__(self, n: int) -> None:
        self.shown: Shown = []
        self.changed = asyncio.Event()
        super().__init__(n, output=self._keep)

    def _keep(self, rank: int, text: str, stream: TextIO) -> None:
        name = "stderr" if stream is sys.stderr else "stdout"
        self.shown += [(rank, name, line) for line in text.splitlines()]
        self.changed.set()


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def _loop() -> None:
    """Begins the module's event loop, which the first test would seem to have left behind."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ranks() -> AsyncIterator[Ranks]:
    async with Ranks(2) as cluster:
        yield cluster


def blocking_sum(value: float, *, times: int = 1) -> float:
    import aiodist.sync as dist

    data = np.full(3, value * (dist.get_rank() + 1))
    dist.all_reduce(data)
    return float(data[0]) * times


async def async_sum(value: float) -> float:
    data = np.full(3, value)
    await aiodist.all_reduce(data)
    return float(data[0])


async def test_blocking_and_async_functions_use_one_group(ranks: Ranks) -> None:
    assert await ranks.run(blocking_sum, 2.0, times=10) == [60.0, 60.0]
    assert await ranks.run(async_sum, 2.0) == [4.0, 4.0]


async def test_closures_travel_and_results_come_by_rank(ranks: Ranks) -> None:
    factor = 100

    def number() -> int:
        import aiodist.sync as dist

        return factor + dist.get_rank()

    assert await ranks.run(number) == [100, 101]
    assert await ranks.run_on([1], number) == [101]


async def test_output_comes_by_rank_and_stream_before_the_result(ranks: Ranks) -> None:
    def speak() -> None:
        import aiodist.sync as dist

        rank = dist.get_rank()
        print(f"out of {rank}\nand more", end="")
        print(f"err of {rank}", file=sys.stderr)

    ranks.shown.clear()
    await ranks.run(speak)
    for rank in range(2):
        out = [text for who, name, text in ranks.shown if (who, name) == (rank, "stdout")]
        err = [text for who, name, text in ranks.shown if (who, name) == (rank, "stderr")]
        assert (out, err) == ([f"out of {rank}", "and more"], [f"err of {rank}"])


async def test_a_progress_bar_is_one_line_as_on_a_terminal() -> None:
    shown = io.StringIO()
    _print(1, "\r 10% \r100% \nnext \fline\r\n", shown)
    assert shown.getvalue() == "[1] 100% \n[1] next \fline\n"


async def test_an_error_names_its_rank_and_the_next_call_works(ranks: Ranks) -> None:
    def fail_on_1() -> str:
        import aiodist.sync as dist

        if dist.get_rank() == 1:
            raise ValueError("not today")
        dist.barrier()  # rank 1 never comes
        return "never"

    with pytest.raises(RanksError) as caught:
        await ranks.run(fail_on_1)
    culprit, consequence = caught.value.exceptions
    assert isinstance(culprit, ValueError)
    assert isinstance(consequence, InterruptedCallError)
    assert list(caught.value.by_rank) == [1, 0]
    assert caught.value.results == {}
    (note,) = culprit.__notes__
    assert note.startswith("rank 1 of 2 raised this:")
    assert 'raise ValueError("not today")' in note
    assert "worker.py" not in note
    assert await ranks.run(async_sum, 1.0) == [2.0, 2.0]


async def test_other_ranks_results_come_with_the_error(ranks: Ranks) -> None:
    def fail_on_0() -> str:
        import aiodist.sync as dist

        if dist.get_rank() == 0:
            sys.exit(3)
        return "fine"

    with pytest.raises(RanksError, match=r"rank 0 of 2 failed") as caught:
        await ranks.run(fail_on_0)
    assert caught.value.results == {1: "fine"}
    assert str(caught.value.exceptions[0]) == "SystemExit: 3"


@pytest.mark.parametrize("returns_it", [True, False], ids=["result", "exception"])
async def test_a_value_that_cannot_be_pickled_is_an_error_of_its_rank(
    ranks: Ranks, returns_it: bool
) -> None:
    def give() -> Any:
        if returns_it:
            return threading.Lock()
        raise OSError(threading.Lock())

    with pytest.raises(RanksError) as caught:
        await ranks.run(give)
    assert len(caught.value.exceptions) == 2
    error = caught.value.exceptions[0]
    assert "lock" in str(error).lower()
    returned = "the function returned a lock, which cannot be pickled"
    assert (error.__notes__[0] == returned) == returns_it
    assert await ranks.run(async_sum, 1.0) == [2.0, 2.0]


async def test_an_error_that_cannot_be_unpickled_here_is_shown_by_its_class_and_message(
    ranks: Ranks,
) -> None:
    with pytest.raises(RanksError) as caught:
        await ranks.run(pytest.skip, "not on this machine")
    for error in caught.value.exceptions:
        assert type(error) is RuntimeError
        assert str(error) == "Skipped: not on this machine"


async def test_a_result_that_cannot_be_unpickled_here_is_an_error_of_its_rank(ranks: Ranks) -> None:
    class Broken:
        def __reduce__(self) -> tuple[Any, ...]:
            return int, ("no number",)

    with pytest.raises(RanksError) as caught:
        await ranks.run(Broken)
    assert list(caught.value.by_rank) == [0, 1]
    assert caught.value.exceptions[0].__notes__ == ["the result of rank 0 cannot be unpickled here"]


@pytest.mark.parametrize("kind", ["blocking", "async"])
async def test_a_cancelled_call_is_interrupted_and_the_ranks_live_on(
    ranks: Ranks, kind: str
) -> None:
    def wait_blocking() -> NoReturn:
        print("waiting", flush=True)
        time.sleep(1000)
        raise AssertionError

    async def wait_async() -> NoReturn:
        print("waiting", flush=True)
        await asyncio.sleep(1000)
        raise AssertionError

    pids = ranks.pids
    ranks.shown.clear()
    call = asyncio.create_task(ranks.run(wait_blocking if kind == "blocking" else wait_async))
    while len(ranks.shown) < 2:
        ranks.changed.clear()
        await ranks.changed.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await ranks.run(async_sum, 1.0) == [2.0, 2.0]
    assert ranks.pids == pids


async def test_a_call_waits_for_the_end_of_one_that_was_just_cancelled(ranks: Ranks) -> None:
    def wait() -> None:
        print("waiting", flush=True)
        time.sleep(1000)

    ranks.shown.clear()
    call = asyncio.create_task(ranks.run(wait))
    while len(ranks.shown) < 2:
        ranks.changed.clear()
        await ranks.changed.wait()
    call.cancel()
    for _ in range(3):  # the cancellation arrives, and the ranks have not ended the call
        await asyncio.sleep(0)
    assert await ranks.run(async_sum, 1.0) == [2.0, 2.0]
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_second_call_at_the_same_time_is_refused(ranks: Ranks) -> None:
    call = asyncio.create_task(ranks.run(time.sleep, 0.5))
    await asyncio.sleep(0)
    with pytest.raises(
        InvalidUsageError, match=r"rank 0 \(pid \d+\) has not ended the call before"
    ):
        await ranks.run(time.sleep, 0)
    await call


async def test_wrong_arguments_are_refused_at_once(ranks: Ranks) -> None:
    with pytest.raises(
        InvalidUsageError, match="rank 2 is out of range: the cluster has ranks 0 to 1"
    ):
        await ranks.run_on([2], time.sleep, 0)
    with pytest.raises(InvalidUsageError, match=r"ranks must be distinct, got \[0, 0\]"):
        await ranks.run_on([0, 0], time.sleep, 0)
    assert await ranks.run(async_sum, 1.0) == [2.0, 2.0]  # nothing was sent
    with pytest.raises(InvalidUsageError, match="at least 1, not 0"):
        Cluster(0)
    with pytest.raises(TypeError, match="n must be"):
        Cluster("4")  # type: ignore[arg-type]
    with pytest.raises(InvalidUsageError, match="threads must be at least 1, not 0"):
        Cluster(1, threads=0)
    with pytest.raises(TypeError, match="'LEVEL' has 1"):
        Cluster(1, env={"LEVEL": 1})  # type: ignore[dict-item]
    with pytest.raises(InvalidUsageError, match="async with"):
        await Cluster(2).run(time.sleep, 0)
    with pytest.raises(InvalidUsageError, match="async with"):
        Cluster(2).kill(0)
    for rank in (2, -1):
        with pytest.raises(InvalidUsageError, match=f"rank {rank} is out of range"):
            ranks.kill(rank)
    with pytest.raises(TypeError, match=r"fn must be a function, .* not 1"):
        await ranks.run(1)  # type: ignore[arg-type]
    with pytest.raises(InvalidUsageError, match="have been started"):
        await ranks.start()
    assert await ranks.run(async_sum, 1.0) == [2.0, 2.0]  # all of them live


async def test_functions_of_modules_are_found_where_this_process_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_a_folder.py").write_text("def number():\n    return 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("of_a_folder")
    try:
        async with Ranks(1) as cluster:
            assert await cluster.run(module.number) == [42]
    finally:
        del sys.modules["of_a_folder"]


async def test_a_rank_begins_without_names_that_hide_a_missing_import(ranks: Ranks) -> None:
    def names() -> list[str]:
        return [name for name in vars(sys.modules["__main__"]) if not name.startswith("__")]

    assert await ranks.run(names) == [["main"]] * 2


async def test_output_that_cannot_be_shown_fails_its_call_and_the_next_one_works() -> None:
    def refuse(rank: int, text: str, stream: TextIO) -> None:
        raise OSError("the screen is off")

    async with Cluster(2, output=refuse) as cluster:
        with pytest.raises(RanksError) as failure:
            await cluster.run_on([1], print, "hello")
        (error,) = failure.value.exceptions
        assert isinstance(error, OSError)
        assert error.__notes__ == ["the output of rank 1 could not be shown"]
        assert await cluster.run(async_sum, 1.0) == [2.0, 2.0]


async def test_ranks_that_have_destroyed_their_group_may_make_another_one() -> None:
    def destroy() -> None:
        import aiodist.sync as dist

        dist.destroy_process_group()
        raise ValueError("after the end")

    def restart(port: int) -> int:
        import aiodist.sync as dist

        os.environ["MASTER_PORT"] = str(port)
        dist.init_process_group()
        return dist.get_world_size()

    async with Ranks(2) as cluster:
        with pytest.raises(RanksError) as failure:
            await cluster.run(destroy)
        assert isinstance(failure.value.exceptions[0], ValueError)
        with reserve_port() as reservation:
            assert await cluster.run(restart, reservation.port) == [2, 2]
        assert await cluster.run(async_sum, 1.0) == [2.0, 2.0]


async def test_a_rank_whose_answer_was_not_read_stays_busy() -> None:
    async with Ranks(1) as cluster:
        call = asyncio.create_task(cluster.run(time.sleep, 0.1))
        await asyncio.sleep(0)
        answering = cluster._ranks[0]._answering
        assert answering is not None
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(InvalidUsageError, match="all ranks by close"):
            await cluster.run(time.sleep, 0)


async def test_a_killed_rank_is_named_first_and_the_others_shrink() -> None:
    async with Ranks(3) as cluster:
        cluster.kill(1)
        with pytest.raises(RanksError) as caught:
            await cluster.run(blocking_sum, 1.0)
        first = caught.value.exceptions[0]
        assert isinstance(first, PeerLostError)
        assert str(first) == f"rank 1 (pid {cluster.pids[1]}) was killed by SIGKILL"
        assert await cluster.run_on([0, 2], shrunk) == [(0, 2), (0, 2)]
        assert await cluster.run_on([0, 2], async_sum, 1.0) == [2.0, 2.0]


def shrunk() -> tuple[int, ...]:
    import aiodist.sync as dist

    return tuple(dist.shrink().ranks)


async def test_a_rank_that_a_signal_without_a_name_has_killed_is_lost() -> None:
    rank = await RankProcess.start(0, dict(os.environ), lambda *_: None)
    try:
        dumps, _ = pickler()
        number = signal.SIGRTMIN + 1
        with pytest.raises(PeerLostError, match=f"was killed by signal {number}"):
            await rank.call(dumps((signal.raise_signal, (number,), {})))
    finally:
        await rank.end()


async def test_an_end_that_is_cancelled_leaves_no_socket_open() -> None:
    mine, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=mine)
    process = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    rank = RankProcess(0, process, reader, writer, lambda *_: None)
    ending = asyncio.create_task(rank.end())
    await asyncio.sleep(0)
    ending.cancel()
    await asyncio.wait([ending])
    assert ending.cancelled()
    assert await process.wait() == -signal.SIGKILL
    assert mine.fileno() < 0
    theirs.close()


async def cancel_at_every_turn(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` until it ends, as a cancelled scope of anyio does."""
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    assert task.cancelled()


@pytest.mark.parametrize("phase", ["start", "close"])
async def test_ranks_are_killed_however_often_their_program_is_cancelled(
    phase: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Ranks(2)
    task = asyncio.create_task(cluster.start())
    await until(lambda: len(cluster._ranks) == 2)
    ranks = list(cluster._ranks)
    if phase == "close":
        await task
        task = asyncio.create_task(cluster.close())
        await asyncio.sleep(0)
    await cancel_at_every_turn(task)
    with pytest.raises(InvalidUsageError, match="the cluster is closed"):
        await cluster.run(int)
    await until(lambda: not any(rank.is_alive for rank in ranks))
    await asyncio.wait([task for rank in ranks for task in [*rank._pumps, rank._answering] if task])
    gc.collect()
    assert caplog.text == ""


async def test_ranks_that_cannot_meet_say_why_and_leave_no_process() -> None:
    cluster = Ranks(2)
    cluster._first_call = (_fail_to_open, (), {})
    with pytest.raises(RanksError, match="failed"):
        await cluster.start()
    assert cluster.pids == ()


def _fail_to_open() -> NoReturn:
    raise RuntimeError("no network")


class _Loading:
    """An argument that tells when it is being unpickled, and goes on once the rank is interrupted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return _load, (self.folder,)


def _load(folder: Path) -> str:
    arrived: list[int] = []

    def note(number: int, frame: Any) -> None:
        arrived.append(number)
        before(number, frame)

    before: Any = signal.signal(signal.SIGINT, note)
    (folder / "begun").touch()
    while not arrived:
        time.sleep(0.01)
    signal.signal(signal.SIGINT, before)
    return "argument"


async def test_a_call_is_interrupted_before_it_has_begun(ranks: Ranks, tmp_path: Path) -> None:
    def note(argument: Any) -> None:
        (tmp_path / "called").touch()

    call = asyncio.create_task(ranks.run_on([0], note, _Loading(tmp_path)))
    while not (tmp_path / "begun").exists():  # noqa: ASYNC110  # another process makes it
        await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await ranks.run(lambda: "next") == ["next"] * 2
    assert not (tmp_path / "called").exists()


async def test_a_call_may_replace_the_streams_of_its_rank() -> None:
    def replace() -> None:
        sys.stdout = io.StringIO()
        sys.stderr.close()

    async with Ranks(1) as cluster:
        await cluster.run(replace)
        assert await cluster.run(lambda: "next") == ["next"]


@pytest.mark.parametrize("closes", [False, True])
async def test_a_call_may_redirect_or_close_the_descriptors_of_its_rank(closes: bool) -> None:
    def redirect() -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.close(descriptor) if closes else os.dup2(null, descriptor)

    async with Ranks(1) as cluster:
        await cluster.run(redirect)
        assert await cluster.run(lambda: "next") == ["next"]


async def test_a_coroutine_that_an_ordinary_function_returns_is_awaited(ranks: Ranks) -> None:
    def logged(value: float) -> Any:
        return async_sum(value)

    assert await ranks.run(logged, 2.0) == [4.0, 4.0]


async def test_an_operation_of_the_async_api_is_awaited(ranks: Ranks) -> None:
    assert await ranks.run(aiodist.broadcast_object, "from rank 0", 0) == ["from rank 0"] * 2


async def test_output_without_line_feeds_comes_whole(ranks: Ranks) -> None:
    text = "".join(f"{number}\r" for number in range(50_000))
    ranks.shown.clear()
    await ranks.run(lambda: print(text))
    shown = [(rank, line) for rank, name, line in ranks.shown if name == "stdout"]
    for rank in range(2):
        assert "".join(f"{line}\r" for owner, line in shown if owner == rank) == text


async def test_processes_that_a_rank_has_started_hold_nothing_up() -> None:
    def start() -> int:
        return subprocess.Popen(["sleep", "300"]).pid

    async with Ranks(2) as cluster:
        (left,) = await cluster.run_on([0], start)
        try:
            cluster.kill(0)
            with pytest.raises(RanksError) as failure:
                await cluster.run(lambda: None)
            assert isinstance(failure.value.exceptions[0], PeerLostError)
            os.kill(
                left, 0
            )  # it holds the output of rank 0 open, and the call did not wait for that
        finally:
            os.kill(left, signal.SIGKILL)
        (other,) = await cluster.run_on([1], start)
    await until(lambda: not _is_running(other))


def _is_running(pid: int) -> bool:
    """Whether the process has not ended; until its parent waits for it, it is a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
