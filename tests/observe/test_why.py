"""A running job says which rank waits for which, whatever its ranks are doing."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import aiodist as dist
from aiodist.errors import DistError, InvalidUsageError
from aiodist.groups.world import current_world
from aiodist.observe import asking
from aiodist.observe.asking import Place, ask_job, choose_job, jobs_here
from aiodist.observe.server import Server
from aiodist.observe.wait_graph import diagnose
from aiodist.testing import run_ranks
from tests.limits import scaled
from tests.observe.conftest import Job, needs_gil

ROOT = Path(__file__).parents[2]


def serve() -> Server:
    """Let the calling rank answer, as ``init_process_group`` does in a process of its own."""
    observer = current_world().observer
    assert observer is not None
    server = Server(observer, None)
    server.start({})
    observer.serves(server)
    return server


@needs_gil
async def test_a_rank_is_asked_while_its_loop_is_stuck() -> None:
    entered = asyncio.Event()

    async def receive() -> None:
        await dist.recv(np.zeros(1), 0, tag=3)

    async def main(rank: int) -> None:
        serve()
        await dist.barrier()
        if rank == 1:
            receiving = asyncio.create_task(receive())
            await asyncio.sleep(0)  # it begins
            entered.set()
            await receiving
            return
        await entered.wait()
        work = dist.irecv(np.zeros(1), 1, tag=9)  # no task awaits it: it keeps no rank waiting
        observer = current_world().observer
        assert observer is not None
        job = observer.identity.job
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(lambda: ask_job(job, jobs_here()[job], 10))
            answers = asked.result()  # blocks the loop of both ranks
        assert sorted(answers.parts) == [0, 1]
        diagnosis = diagnose(answers.parts)
        assert diagnosis.waits == ()
        assert all(part.standpoint.stuck > 0 for part in answers.parts.values())
        assert "test_why.py" in answers.parts[0].standpoint.place
        (recv,) = answers.parts[1].running()
        assert recv.call == "recv(from rank 0, 1 x float64, tag 3)"
        assert recv.awaited is True
        work.cancel()
        await dist.send(np.zeros(1), 1, tag=3)

    await run_ranks(2, main)


# Busy again and again, and not all the time, as `ASYNC` is: other tests need the processor too.
BLOCKING = """
import aiodist.sync as dist

def compute():
    while True:
        sum(range(100000))
        time.sleep(0.02)

dist.init_process_group(timeout=300)
if dist.get_rank() == 1:
    compute()
dist.all_reduce(np.ones(1))
"""

ASYNC = """
import asyncio
import aiodist as dist

async def main():
    await dist.init_process_group(timeout=300)
    if dist.get_rank() == 1:
        while True:
            sum(range(1000))
    await dist.all_reduce(np.ones(1))

asyncio.run(main())
"""


@needs_gil
@pytest.mark.parametrize(("script", "stuck"), [(BLOCKING, False), (ASYNC, True)])
def test_the_rank_that_computes_is_named_with_its_line(
    start: Callable[[str, int], Job], script: str, stuck: bool
) -> None:
    job = start(script, 3)
    job.places(3)
    told = job.until(
        "Ranks 0, 2 wait for rank 1, which has not entered all_reduce(1 x float64, SUM)"
    )
    assert "script.py:" in told.splitlines()[-1]
    assert ("its event loop has not turned" in told) is stuck


def test_a_stopped_rank_is_named_within_the_bound_and_sigusr1_dumps_all_ranks(
    start: Callable[[str, int], Job],
) -> None:
    job = start(BLOCKING, 2)
    places = job.places(2)
    job.until("Rank 0 waits for rank 1")
    assert [name for name in job.why("--jobs").splitlines() if name.startswith(job.name)] != []
    os.kill(places[1].pid, signal.SIGSTOP)
    began = time.monotonic()
    told = job.why("--timeout", "1")
    assert time.monotonic() - began < scaled(20)  # a second, and Python's start on a busy machine
    assert "rank 1, which does not answer" in told
    assert f"process {places[1].pid} is stopped" in told
    os.kill(places[1].pid, signal.SIGCONT)
    os.kill(places[0].pid, signal.SIGUSR1)  # one is signalled, both dump; one of them computes
    dump = job.dumped(2)
    assert dump.silent == {}
    assert diagnose(dump.parts).roots == (1,)
    assert "SIGUSR1 came to rank 0" in dump.parts[1].reason


LATE = """
import aiodist.sync as dist

def compute():
    while True:
        sum(range(100000))
        time.sleep(0.02)

dist.init_process_group(timeout=300)
dist.barrier()
if dist.get_rank() == 1:
    compute()
try:
    dist.all_reduce(np.ones(1), timeout=0.2)
except dist.CollectiveTimeoutError:
    compute()
"""


@needs_gil
def test_the_rank_to_blame_dumps_too_though_it_never_hears_of_the_failure(
    start: Callable[[str, int], Job],
) -> None:
    job = start(LATE, 2)
    dump = job.dumped(2)
    assert dump.silent == {}
    assert diagnose(dump.parts).roots == (1,)
    assert "script.py:" in dump.parts[1].standpoint.place
    assert "timed out" in dump.parts[1].reason


def test_sigusr1_without_a_folder_speaks_on_stderr_and_ends_with_the_group() -> None:
    script = """
import os, signal, sys, time
import aiodist.sync as dist

class Told:
    text = ""
    def write(self, text):
        self.text += text
    def flush(self):
        pass

told = sys.stderr = Told()
dist.init_process_group(rank=0, world_size=1)
dist.barrier()
os.kill(os.getpid(), signal.SIGUSR1)
while "barrier" not in told.text:
    time.sleep(0.001)
print(told.text, flush=True)
dist.destroy_process_group()
os.kill(os.getpid(), signal.SIGUSR1)  # its handler is gone
time.sleep(60)
"""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("AIODIST_")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == -signal.SIGUSR1, done.stderr
    assert "aiodist: rank 0 (process " in done.stdout
    assert "done " in done.stdout
    assert "in no operation" in done.stdout


def test_a_handler_of_the_programs_own_stays() -> None:
    script = """
import os, signal
import aiodist.sync as dist
heard = []
signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
dist.init_process_group(rank=0, world_size=1)
os.kill(os.getpid(), signal.SIGUSR1)
assert heard == [1]
dist.destroy_process_group()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


TABLE = """Num       RefCount Protocol Flags    Type St Inode Path
000: 00000002 00000000 00010000 0001 01 1 @aiodist-why/{uid}/job-a/0-12
000: 00000002 00000000 00010000 0001 01 2 @aiodist-why/{uid}/job-a/10-13
000: 00000003 00000000 00000000 0001 03 3 @aiodist-why/{uid}/job-a/0-12
000: 00000002 00000000 00010000 0001 01 4 @aiodist-why/{uid}/job-b/0-14
000: 00000002 00000000 00010000 0001 01 5 /run/other
000: 00000002 00000000 00010000 0001 01 6
"""


def test_jobs_are_found_in_the_kernels_table() -> None:
    jobs = jobs_here(TABLE.format(uid=os.geteuid()))
    assert {job: [place.rank for place in places] for job, places in jobs.items()} == {
        "job-a": [0, 10],
        "job-b": [0],
    }
    assert jobs["job-a"][1].pid == 13
    assert choose_job(jobs, "job-a") == "job-a"
    with pytest.raises(InvalidUsageError, match="several jobs run here; name one of\n  job-a"):
        choose_job(jobs, None)
    with pytest.raises(InvalidUsageError, match="no job here is called 'x'"):
        choose_job(jobs, "x")
    with pytest.raises(
        InvalidUsageError,
        match=r"no rank of yours can be asked .* from the end of init_process_group",
    ):
        choose_job({}, None)
    assert choose_job({"only": []}, None) == "only"


def listen(stack: ExitStack, name: str) -> Place:
    """A rank of this process that does not answer, as its container would number the process."""
    sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    sock.bind("\0" + name)
    sock.listen(1)
    return Place(name, 0, 1 << 30)


def test_a_process_of_another_pid_namespace_has_its_number_here() -> None:
    with ExitStack() as stack:
        place = listen(stack, f"aiodist-why/test-{os.getpid()}")
        answers = asking.ask_ranks([place], {"ask": "part"}, bytes, 0.1)
        assert answers.silent[0].startswith(f"process {os.getpid()} runs, and said nothing")


def test_a_process_that_this_pid_namespace_does_not_see_is_not_taken_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "listener_at", lambda name: 0)  # as the kernel tells it then
    with ExitStack() as stack:
        place = listen(stack, f"aiodist-why/test-{os.getpid()}")
        answers = asking.ask_ranks([place], {"ask": "part"}, bytes, 0.1)
        assert answers.silent[0].startswith(f"process {1 << 30} of another pid namespace: ")


def test_the_list_of_jobs_has_a_line_for_each_whatever_its_program_is() -> None:
    script = r"""
import socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
sock.bind("\0" + sys.argv[1])
sock.listen(1)
print(flush=True)
sys.stdin.read()
"""
    name = f"aiodist-why/test-{os.getpid()}"
    with subprocess.Popen(
        [sys.executable, "-c", script, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        jobs = {"one": [Place(name, 0, 1 << 30)], "other": []}
        with pytest.raises(InvalidUsageError) as told:
            choose_job(jobs, None)
        process.communicate()
    problem, *lines = str(told.value).splitlines()
    assert problem == "several jobs run here; name one of"
    assert lines[0].startswith("  one  (ranks here: 1; python")
    assert "-c import socket, sys sock = " in lines[0]
    assert lines[1:] == ["  other  (ranks here: 0)"]


def test_a_socket_of_any_bytes_as_its_name_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "unix"
    table.write_bytes(TABLE.format(uid=os.geteuid()).encode() + b"000: 2 0 1 1 01 7 @caf\xe9\n")
    monkeypatch.setattr(asking, "_TABLE", table)
    assert sorted(jobs_here()) == ["job-a", "job-b"]


def test_a_tag_is_no_other_tag_that_begins_so() -> None:
    jobs: dict[str, list[Place]] = {"exp1-0a": [], "exp10-0b": [], "exp-1-0c": [], "exp-1-0d": []}
    assert choose_job(jobs, "exp1") == "exp1-0a"
    assert choose_job(jobs, "exp10") == "exp10-0b"
    assert choose_job(jobs, "exp-1-0d") == "exp-1-0d"
    assert choose_job(jobs, "exp10-") == "exp10-0b"
    for several in ("exp", "exp-1"):
        with pytest.raises(InvalidUsageError, match="several jobs run here"):
            choose_job(jobs, several)


@pytest.mark.parametrize(("asker", "is_found"), [(1000, True), (1001, False), (0, True)])
def test_jobs_of_other_users_are_roots_to_see(
    monkeypatch: pytest.MonkeyPatch, asker: int, is_found: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: asker)
    assert bool(jobs_here(TABLE.format(uid=1000))) is is_found
    assert bool(jobs_here(TABLE.format(uid=0))) is (asker == 0)


def test_a_job_in_which_no_rank_answers_is_an_error() -> None:
    with pytest.raises(DistError, match="no rank of job gone"):
        ask_job("gone", [Place("aiodist-why/nobody", 0, 1 << 30)], 1)
