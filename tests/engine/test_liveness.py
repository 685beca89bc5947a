"""Real processes that are stopped, killed, busy or cut off: which of them count as lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import aiodist as dist
from aiodist.api.settings import LIVENESS_VARIABLE
from tests.faults.hosts import Hosts, hosts
from tests.limits import scaled
from tests.test_credentials import tls_environ
from tests.warm_python import STRICT

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]
TIMEOUT = 2.0

BLOCKING = """
    import os, sys, time
    import numpy as np
    import aiodist.sync as dist
    path, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

    def say(*words):
        print(*words, flush=True)

    def told(error):
        say("lost", error.rank, error.pid, error.noticed_by, "|", error.last, "|", error)

    def until_lost(rank):
        begin = time.monotonic()
        try:
            dist.recv(np.zeros(1), rank)
        except dist.PeerLostError as error:
            told(error)
        say("after", time.monotonic() - begin)

    dist.init_process_group(init_method="file://" + path, rank=rank, world_size=size, timeout=60)
    say("pid", os.getpid())
"""


class Job:
    """The ranks of one program, each in a process of its own, and what they say."""

    def __init__(
        self, path: Path, source: str, size: int, on: Hosts | None = None, **environment: str
    ) -> None:
        """``on``: a host for each rank."""
        path.mkdir()
        script = path / "script.py"
        script.write_text(textwrap.dedent(source))
        variables = {LIVENESS_VARIABLE: str(TIMEOUT), **STRICT, **environment}

        def command(rank: int, *words: str) -> list[str]:
            return list(words) if on is None else on.command(rank, *words)

        self.processes = [
            subprocess.Popen(
                command(
                    rank, sys.executable, str(script), str(path / "store"), str(rank), str(size)
                ),
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        self.pids = [int(self.hear(rank, "pid")[0]) for rank in range(size)]

    def hear(self, rank: int, word: str) -> list[str]:
        """The words of the next line of ``rank``, which begins with ``word``."""
        out = self.processes[rank].stdout
        assert out is not None
        line = out.readline()
        if not line.startswith(word):
            self.processes[rank].kill()
            raise AssertionError(f"rank {rank} said {line!r}{self.processes[rank].communicate()}")
        return line.split()[1:]

    def lost(self, rank: int) -> tuple[int, int, int, str, str]:
        """Rank, pid, who noticed, what it last did and the text of the error that ``rank`` tells."""
        words = " ".join(self.hear(rank, "lost"))
        numbers, last, text = words.split("|", 2)
        number, pid, noticed_by = map(int, numbers.split())
        return number, pid, noticed_by, last.strip(), text.strip()

    def answer(self, rank: int) -> None:
        """End the wait of ``rank`` for a line of its input."""
        writer = self.processes[rank].stdin
        assert writer is not None
        writer.write("\n")
        writer.flush()

    def finish(self, rank: int) -> tuple[int, str, str]:
        out, err = self.processes[rank].communicate(timeout=scaled(60))
        return self.processes[rank].returncode, out, err

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


Start = Callable[..., Job]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Start]:
    """``job(source, size)``: started, and every rank initialised."""
    started: list[Job] = []

    def start(source: str, size: int, on: Hosts | None = None, **environment: str) -> Job:
        one = Job(tmp_path / f"job{len(started)}", source, size, on, **environment)
        started.append(one)
        return one

    yield start
    for each in started:
        each.end()


@pytest.mark.parametrize("transport", [pytest.param("unix", marks=pytest.mark.extended), "tls"])
def test_a_stopped_rank_is_lost_to_all_and_learns_it_when_it_comes_back(
    job: Start, transport: str, scaled: Callable[[float], float]
) -> None:
    """Rank 3 waits for rank 0, which computes: neither talks to the stopped one."""
    source = (
        BLOCKING
        + """
    dist.barrier()
    from aiodist.groups.world import current_world
    while rank != 1 and "barrier" not in current_world().endpoint._heartbeat.last_heartbeat_of(1):
        time.sleep(0.01)
    say("ready")
    if rank == 1:
        for _ in range(2):
            sys.stdin.readline()
            until_lost(0)
    elif rank == 2:
        until_lost(1)
    else:
        until_lost({0: 3, 3: 0}[rank])
    """
    )
    ranks = job(source, 4, **tls_environ(), AIODIST_TRANSPORT=transport)
    for rank in range(4):
        ranks.hear(rank, "ready")
    os.kill(ranks.pids[1], signal.SIGSTOP)
    for rank in (0, 2, 3):
        number, pid, noticed_by, last, text = ranks.lost(rank)
        assert (number, pid) == (1, ranks.pids[1])
        assert noticed_by in (0, 2, 3)
        assert "barrier" in last
        assert "nothing was heard of it for 2 s" in text
        assert float(ranks.hear(rank, "after")[0]) < scaled(2 * TIMEOUT)
        assert ranks.finish(rank) == (0, "", "")
    os.kill(ranks.pids[1], signal.SIGCONT)
    for _ in range(2):
        ranks.answer(1)
        number, pid, noticed_by, _, text = ranks.lost(1)
        assert (number, pid) == (1, ranks.pids[1])
        assert noticed_by in (0, 2, 3)
        assert "is this rank, and was given up by the others" in text
        ranks.hear(1, "after")
    assert ranks.finish(1) == (0, "", "")


def test_a_short_stop_is_no_death(job: Start) -> None:
    source = (
        BLOCKING
        + """
    dist.barrier()
    say("ready")
    sys.stdin.readline()
    dist.barrier()
    say("done")
    """
    )
    ranks = job(source, 2, AIODIST_LIVENESS_TIMEOUT="20")
    for rank in (0, 1):
        ranks.hear(rank, "ready")
    os.kill(ranks.pids[1], signal.SIGSTOP)
    ranks.answer(0)
    os.kill(ranks.pids[1], signal.SIGCONT)
    ranks.answer(1)
    for rank in (0, 1):
        ranks.hear(rank, "done")
        assert ranks.finish(rank) == (0, "", "")


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_known_within_a_second_to_ranks_that_never_talked(
    job: Start, victim: int, scaled: Callable[[float], float]
) -> None:
    source = (
        BLOCKING
        + f"""
    if rank == {victim}:
        time.sleep(600)
    until_lost({victim})
    """
    )
    ranks = job(source, 3, AIODIST_LIVENESS_TIMEOUT="60")
    os.kill(ranks.pids[victim], signal.SIGKILL)
    for rank in {0, 1, 2} - {victim}:
        number, pid, _, _, text = ranks.lost(rank)
        assert (number, pid) == (victim, ranks.pids[victim])
        assert "die" in text
        assert float(ranks.hear(rank, "after")[0]) < scaled(1.0)
        assert ranks.finish(rank) == (0, "", "")


BUSY = {
    "Python": "while time.monotonic() < end: pass",
    "numpy": "while time.monotonic() < end: np.linalg.svd(np.ones((300, 300)))",
}


@pytest.mark.parametrize(("api", "how"), [("async", "Python"), ("blocking", "numpy")])
def test_a_rank_that_only_computes_is_not_dead(job: Start, how: str, api: str) -> None:
    """For two timeouts; in the async API the event loop stands still meanwhile."""
    compute = f"end = time.monotonic() + {2 * TIMEOUT}\n        {BUSY[how]}"
    if api == "blocking":
        source = (
            BLOCKING
            + f"""
    dist.barrier()
    if rank == 1:
        {compute}
    dist.barrier()
    say("done")
    """
        )
    else:
        source = f"""
    import asyncio, os, sys, time
    import numpy as np
    import aiodist as dist
    path, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    async def main():
        await dist.init_process_group(
            init_method="file://" + path, rank=rank, world_size=size, timeout=60
        )
        print("pid", os.getpid(), flush=True)
        await dist.barrier()
        if rank == 1:
            compute()
        await dist.barrier()
        print("done", flush=True)
        await dist.destroy_process_group()
    def compute():
        {compute}
    asyncio.run(main())
    """
    ranks = job(source, 2)
    for rank in (0, 1):
        ranks.hear(rank, "done")
        assert ranks.finish(rank) == (0, "", "")


def test_a_busy_loop_learns_of_a_loss_and_passes_it_on(job: Start) -> None:
    """All neighbours of the stopped rank compute in their loops; the last one waits for it."""
    source = """
    import asyncio, os, sys, time
    import numpy as np
    import aiodist as dist
    path, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    async def main():
        await dist.init_process_group(
            init_method="file://" + path, rank=rank, world_size=size, timeout=60
        )
        await dist.barrier()
        print("pid", os.getpid(), flush=True)
        if rank == 3:
            try:
                await dist.recv(np.zeros(1), 0)
            except dist.PeerLostError as error:
                print("lost", error.rank, error.pid, error.noticed_by, "|", error.last, "|", error)
                sys.stdout.flush()
        sys.stdin.readline()      # the loop stands still until the test says so
        try:
            await dist.barrier()
        except dist.PeerLostError as error:
            print("heard", error.rank, flush=True)
        await dist.destroy_process_group()
    asyncio.run(main())
    """
    ranks = job(source, 6)
    os.kill(ranks.pids[0], signal.SIGSTOP)
    assert ranks.lost(3)[:2] == (0, ranks.pids[0])
    for rank in range(1, 6):
        ranks.answer(rank)
        assert ranks.hear(rank, "heard") == ["0"]


def test_a_pulled_cable_is_noticed_on_both_sides(
    job: Start, scaled: Callable[[float], float]
) -> None:
    """Nothing is sent meanwhile, and no kernel says a word; operations have no timeout to help."""
    source = (
        BLOCKING
        + """
    dist.barrier()
    say("ready")
    sys.stdin.readline()
    until_lost(0 if rank == 2 else 2)
    os._exit(0)                 # a goodbye over a pulled cable takes its time
    """
    )
    with hosts(3) as network:
        ranks = job(source, 3, network, AIODIST_SOCKET_IFNAME="eth0", AIODIST_SECRET="s")
        for rank in range(3):
            ranks.hear(rank, "ready")
        network.pull_cable(2)
        for rank in range(3):
            ranks.answer(rank)
        for rank in (0, 1):
            number, pid, noticed_by, _, text = ranks.lost(rank)
            assert (number, pid) == (2, ranks.pids[2])
            assert noticed_by in (0, 1)
            assert "nothing was heard of it for 2 s" in text
            assert float(ranks.hear(rank, "after")[0]) < scaled(2 * TIMEOUT)
        number, _, noticed_by, _, _ = ranks.lost(2)
        assert number in (0, 1)
        assert noticed_by == 2
        assert float(ranks.hear(2, "after")[0]) < scaled(2 * TIMEOUT)
        ranks.end()


def test_a_forked_child_keeps_no_stream_of_its_dead_parent_open(
    job: Start, scaled: Callable[[float], float]
) -> None:
    """Like a data loader's worker, which never calls aiodist and outlives a kill of its parent."""
    source = (
        BLOCKING
        + """
    dist.barrier()
    if rank == 1:
        child = os.fork()
        if child == 0:
            sys.stdin.readline()
            os._exit(0)
        say("child", child)
        time.sleep(600)
    say("ready")
    until_lost(1)
    """
    )
    ranks = job(source, 2, AIODIST_LIVENESS_TIMEOUT="60")
    ranks.hear(0, "ready")
    ranks.hear(1, "child")
    os.kill(ranks.pids[1], signal.SIGKILL)
    assert ranks.lost(0)[:2] == (1, ranks.pids[1])
    assert float(ranks.hear(0, "after")[0]) < scaled(1.0)


def test_a_loop_that_ended_without_destroy_counts_as_dead(job: Start) -> None:
    source = """
    import asyncio, os, sys
    import numpy as np
    import aiodist as dist
    path, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    async def main():
        await dist.init_process_group(
            init_method="file://" + path, rank=rank, world_size=size, timeout=60
        )
        print("pid", os.getpid(), flush=True)
        if rank == 1:
            from aiodist.groups.world import current_world
            detector = current_world().endpoint._heartbeat._detector
            while not detector._lines:  # else rank 0 only sees a refused connection
                await asyncio.sleep(0.01)
        else:
            try:
                await dist.recv(np.zeros(1), 1)
            except dist.PeerLostError as error:
                print("lost", error.rank, error.pid, error.noticed_by, "|", error.last, "|", error)
            await dist.destroy_process_group()
    if rank == 0:
        asyncio.run(main())
    else:
        import warnings
        warnings.simplefilter("ignore")
        asyncio.run(main())
        sys.stdin.readline()
    """
    ranks = job(source, 2)
    number, pid, noticed_by, _, text = ranks.lost(0)
    assert (number, pid, noticed_by) == (1, ranks.pids[1], 1), text
    assert "its event loop has ended without destroy_process_group()" in text


@pytest.mark.parametrize("value", ["soon", "-1", "0.01", "inf", "nan"])
async def test_a_timeout_that_cannot_be_meant_is_refused(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIVENESS_VARIABLE, value)
    with pytest.raises(dist.InvalidUsageError, match=f"{LIVENESS_VARIABLE}='{value}'"):
        await dist.init_process_group(rank=0, world_size=1)


async def test_the_argument_is_checked_too_and_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(dist.InvalidUsageError, match=r"liveness_timeout=0\.1 is no"):
        await dist.init_process_group(rank=0, world_size=1, liveness_timeout=0.1)
    with pytest.raises(TypeError):
        await dist.init_process_group(rank=0, world_size=1, liveness_timeout="1")  # type: ignore[arg-type]
    monkeypatch.setenv(LIVENESS_VARIABLE, "nonsense")
    await dist.init_process_group(rank=0, world_size=1, liveness_timeout=5)
    await dist.destroy_process_group()
