"""When a collective fails every rank writes its part, and the command reads them together."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import aiodist as dist
from aiodist.commands.main import main as aiodist
from aiodist.errors import (
    CollectiveError,
    GroupRevokedError,
    InvalidUsageError,
    NotInitializedError,
    PeerLostError,
)
from aiodist.groups.world import current_world
from aiodist.launch import JobSpec
from aiodist.observe.folder import read_parts, write_part
from aiodist.observe.observer import Observer
from aiodist.testing import run_ranks
from tests.engine.deaths import barrier_of_all, die
from tests.observe.made import op, part


async def outcome(work: dist.Work[None]) -> BaseException | None:
    try:
        await work
    except CollectiveError as error:
        return error
    return None


async def written(folder: Path, count: int) -> None:
    """Until ``count`` ranks, who all hear of the failure, have written their parts."""
    while sum(name.startswith("aiodist-") for name in os.listdir(folder)) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def disagree(rank: int) -> None:
    x = np.ones(4, np.float32)
    await dist.all_reduce(x)
    await outcome(dist.all_reduce(x) if rank else dist.broadcast(x, src=0))


async def test_ranks_that_disagree_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIODIST_DUMP_DIR", str(tmp_path))

    async def main(rank: int) -> None:
        await disagree(rank)
        await written(tmp_path, 3)
        dist.dump_operations()  # a slow rank may have heard of it before it called its own

    await run_ranks(3, main)
    assert await asyncio.to_thread(aiodist, ["dump", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "3 of 3 ranks have written a part" in told
    assert "The ranks disagree about operation 1 of group 'default_pg': " in told
    assert "\n\nThe ranks disagree" in told, "the first that is said beneath the table"
    assert "rank 0 called broadcast(4 x float32, root 0)" in told
    assert "ranks 1, 2 called all_reduce(4 x float32, SUM)" in told
    assert "first difference at operation 1" in told


@pytest.mark.parametrize("variable", ["AIODIST_DUMP_DIR", "AIODIST_TRACE_DIR"])
async def test_a_folder_is_the_one_named_at_the_start_whatever_directory_the_program_goes_to(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "parts")

    async def main(rank: int) -> None:
        await dist.barrier()
        (tmp_path / "other").mkdir(exist_ok=True)
        os.chdir(tmp_path / "other")
        if variable == "AIODIST_DUMP_DIR":
            dist.dump_operations()

    await run_ranks(2, main)
    assert sorted(read_parts(tmp_path / "parts").parts) == [0, 1]


async def test_the_rank_that_never_came_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIODIST_DUMP_DIR", str(tmp_path))

    async def main(rank: int) -> None:
        if rank != 2:
            assert await outcome(dist.barrier(timeout=0.05)) is not None
        await written(tmp_path, 3)

    await run_ranks(3, main)
    assert await asyncio.to_thread(aiodist, ["dump", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "Ranks 0, 1 wait for rank 2, which has not entered barrier()" in told
    assert "rank 2: 0 collectives started  <- behind" in told


async def test_nothing_is_written_unless_a_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main(rank: int) -> None:
        await outcome(dist.barrier(timeout=0.01) if rank == 0 else dist.barrier(timeout=5))
        with pytest.raises(InvalidUsageError, match="name a directory"):
            dist.dump_operations()

    await run_ranks(1, main)
    assert os.listdir(tmp_path) == []


async def test_a_program_dumps_when_it_likes(tmp_path: Path) -> None:
    with pytest.raises(NotInitializedError):
        dist.dump_operations(tmp_path)

    async def main(rank: int) -> Path:
        await dist.barrier()
        return dist.dump_operations(tmp_path)

    paths = await run_ranks(2, main)
    dump = read_parts(tmp_path)
    assert [path.parent for path in paths] == [tmp_path, tmp_path]
    assert [part.operations[0].call for part in dump.parts.values()] == ["barrier()"] * 2
    assert dump.parts[1].identity.pid == os.getpid()


async def test_threads_that_dump_at_once_leave_a_whole_part(tmp_path: Path) -> None:
    """The loop dumps what failed while another thread dumps what a peer asked for."""

    async def main(rank: int) -> None:
        observer = current_world().observer
        assert observer is not None

        def dump_often(name: int) -> None:
            for time in range(50):
                observer.dump(f"{name}" * (1 + time % 7 * 100), tmp_path)
                (part,) = read_parts(tmp_path).parts.values()
                assert len(set(part.reason)) == 1

        await asyncio.gather(*(asyncio.to_thread(dump_often, name) for name in range(4)))

    await run_ranks(1, main)
    assert len(os.listdir(tmp_path)) == 1


def test_a_run_leaves_a_trace_of_all_its_ranks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, aiodist.sync as dist\n"
        "dist.init_process_group()\n"
        "dist.all_reduce(np.ones(8))\n"
        "if dist.get_rank(): dist.destroy_process_group()\n"  # the other just ends
    )
    trace = tmp_path / "trace.json"
    command = [sys.executable, "-m", "aiodist", "run", "-n", "2", "--trace", str(trace)]
    done = subprocess.run(
        [*command, str(script)], capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 0, done.stderr
    assert "2 operations of 2 ranks" in done.stderr
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert sorted((e["pid"], e["name"]) for e in events) == [(0, "all_reduce"), (1, "all_reduce")]
    first, second = events
    # On one clock they overlap: neither can end before the other has begun.
    assert first["ts"] < second["ts"] + second["dur"]
    assert second["ts"] < first["ts"] + first["dur"]


def test_a_rank_that_is_killed_leaves_its_last_operations_in_the_trace(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, time\n"
        "import aiodist.sync as dist\n"
        "from aiodist.observe.folder import read_parts\n"
        "dist.init_process_group()\n"
        "for _ in range(150): dist.barrier()\n"
        "last = lambda part: max((op.sequence for op in part.operations), default=-1)\n"
        "def left():\n"
        "    names = os.listdir(os.environ['AIODIST_TRACE_DIR'])\n"
        "    if sum(name.endswith('.json') for name in names) < 2: return False\n"
        "    parts = read_parts(os.environ['AIODIST_TRACE_DIR']).parts.values()\n"
        "    return all(last(part) == 149 for part in parts)\n"
        "while not left(): time.sleep(0.01)\n"
        "if dist.get_rank() == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(60)\n"
    )
    trace = tmp_path / "trace.json"
    command = [sys.executable, "-m", "aiodist", "run", "-n", "2", "--trace", str(trace)]
    done = subprocess.run(
        [*command, str(script)], capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert "rank 1: was killed, or still runs: its last 128 operations are there" in done.stderr
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    killed = [e["args"]["sequence"] for e in events if e["pid"] == 1]
    assert killed == list(range(150 - 128, 150))


@pytest.mark.parametrize("code", [0, 3])
def test_a_trace_that_cannot_be_written_does_not_hide_the_jobs_exit_code(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"

    def run_job(spec: JobSpec) -> int:
        write_part(spec.environment["AIODIST_TRACE_DIR"], part(0, op(0, "done"), size=1))
        trace.mkdir()
        return code

    monkeypatch.setattr("aiodist.commands.run.run_job", run_job)
    assert aiodist(["run", "--trace", str(trace), __file__]) == (code or 1)
    assert f"aiodist: the trace cannot be written to {trace}: " in capsys.readouterr().err


def test_without_any_rank_s_part_of_a_trace_the_reasons_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a full disk each rank says that it cannot write there."""
    folders: list[str] = []

    def run_job(spec: JobSpec) -> int:
        folders.append(spec.environment["AIODIST_TRACE_DIR"])
        return 3

    monkeypatch.setattr("aiodist.commands.run.run_job", run_job)
    assert aiodist(["run", "--trace", str(tmp_path / "trace.json"), __file__]) == 3
    told = capsys.readouterr().err
    assert f"none was in a group for a second, or none could write to {folders[0]} (TMPDIR" in told


async def test_a_dump_is_about_a_lost_rank_and_not_about_the_revocation_that_came_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIODIST_DUMP_DIR", str(tmp_path))
    revoked = GroupRevokedError("rank 0 revoked the group", group="default_pg", rank=0)
    lost, other = (PeerLostError(f"rank {rank} is lost", rank=rank) for rank in (1, 2))

    async def main(rank: int) -> str:
        observer = current_world().observer
        assert observer is not None
        for error in (revoked, lost, other):
            observer.failed(error, here=False)
        await written(tmp_path, 1)
        return read_parts(tmp_path).parts[0].reason

    assert await run_ranks(1, main) == ["rank 1 is lost"]


async def test_survivors_leave_the_dump_about_a_lost_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """shrink() revokes a group that has ended already, which is no second failure."""
    monkeypatch.setenv("AIODIST_DUMP_DIR", str(tmp_path))
    over = asyncio.Barrier(3)

    async def main(rank: int) -> None:
        await barrier_of_all(over)
        if rank == 2:
            await die()
        else:
            with pytest.raises((PeerLostError, GroupRevokedError)):
                await dist.all_reduce(np.ones(3))
            await written(tmp_path, 2)
            group = await dist.shrink()
            await dist.barrier(group)
            if rank == 0:
                reasons = [part.reason for part in read_parts(tmp_path).parts.values()]
                assert len(reasons) == 2
                assert not any("revoked" in reason for reason in reasons), reasons
        await over.wait()

    await run_ranks(3, main)


async def test_the_abort_of_a_block_that_raised_leaves_the_dump_about_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``async with process_group()`` aborts the world where its block raises."""
    monkeypatch.setenv("AIODIST_DUMP_DIR", str(tmp_path))
    observers: list[Observer] = []

    async def main(rank: int) -> None:
        observer = current_world().observer
        assert observer is not None
        observers.append(observer)
        await disagree(rank)
        await written(tmp_path, 2)
        await dist.abort_process_group()

    await run_ranks(2, main)
    for observer in observers:
        observer.dump_quietly("another rank asks for a dump, late")
    parts = read_parts(tmp_path).parts
    assert sorted(parts) == [0, 1]
    assert all("disagree" in part.reason and part.operations for part in parts.values())


async def test_a_rank_says_once_that_it_cannot_write_dumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AIODIST_DUMP_DIR", str(tmp_path / "file" / "none"))

    async def main(rank: int) -> None:
        observer = current_world().observer
        assert observer is not None
        observer.dump_quietly("a collective failed")
        observer.dump_quietly("another rank asks for a dump")

    await run_ranks(1, main)
    assert caplog.text.count("cannot write a dump to AIODIST_DUMP_DIR=") == 1


async def test_a_rank_says_once_that_it_cannot_write_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It tries once a second, and at the end."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("AIODIST_TRACE_DIR", str(tmp_path / "file" / "none"))

    async def main(rank: int) -> None:
        observer = current_world().observer
        assert observer is not None
        for _ in range(2):
            await dist.barrier()
            observer.keep_trace()

    await run_ranks(1, main)
    assert caplog.text.count("cannot write a trace to AIODIST_TRACE_DIR=") == 1


async def test_an_earlier_dump_does_not_replace_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIODIST_TRACE_DIR", str(tmp_path))
    observers: list[Observer] = []

    async def main(rank: int) -> None:
        for _ in range(200):
            await dist.barrier()
        observer = current_world().observer
        assert observer is not None
        assert observer.keeps_a_trace
        observer.keep_trace()
        observers.append(observer)

    await run_ranks(1, main)
    observers[0].keep_trace()
    (part,) = read_parts(tmp_path).parts.values()
    assert (part.reason, len(part.operations)) == ("the end of the job", 200)


def test_mistakes_get_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert aiodist(["dump", str(tmp_path)]) == 2
    assert "AIODIST_DUMP_DIR" in capsys.readouterr().err
    assert aiodist(["trace"]) == 2
    assert "required: DIR" in capsys.readouterr().err
    (tmp_path / "aiodist-x-rank0.json").write_text("{}")
    assert aiodist(["trace", str(tmp_path)]) == 1
    assert "this is no part of a dump" in capsys.readouterr().err
    assert aiodist(["run", "--trace", "t.json", "--nnodes", "2", "--master-addr", "a", "x.py"]) == 2
    assert "AIODIST_TRACE_DIR" in capsys.readouterr().err
