"""--max-restarts: the dead rank alone where the script can take it, else all."""

from __future__ import annotations

import asyncio
import threading

import pytest

from aiodist.credentials import Certificates
from aiodist.deadline import Deadline
from aiodist.errors import DistStoreError, InvalidUsageError
from aiodist.launch import JobSpec, restarts, run_job, supervisor
from aiodist.launch.restarts import Restarts
from aiodist.store import TcpStore
from tests.certificates import tls_files

ONCE = (
    "count = int(os.environ['AIODIST_RESTART_COUNT'])\n"
    "assert count == int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
    "assert int(os.environ['TORCHELASTIC_MAX_RESTARTS']) >= 1\n"
    "print('start', count, os.environ.get('AIODIST_REPLACEMENT'), flush=True)\n"
    "if RANK == '1' and count < {times}:\n"
    "    raise SystemExit(7)\n"
    "open(f'started{{RANK}}.{{count}}', 'w').write('x')\n"
    "while RANK != '1' and count < {times}:\n"
    "    time.sleep(0.01)\n"
)


def test_all_ranks_start_anew_where_the_script_says_nothing(sandbox, run_command):
    script = sandbox.script(ONCE.format(times=2))
    code, out, err = sandbox.run(*run_command, "-n", "2", "--max-restarts", "2", script)
    assert code == 0, err
    lines = out.splitlines()
    for rank in (0, 1):
        starts = [line for line in lines if line.startswith(f"[{rank}]")]
        # a rank may be stopped before it has said anything
        assert starts[-1] == f"[{rank}] start 2 None"
    assert [line for line in lines if line.startswith("[1]")] == [
        f"[1] start {count} None" for count in range(3)
    ]
    assert "rank 1 failed first: exit code 7" in err
    assert "all ranks start anew (restart 1 of 2)" in err
    assert "all ranks start anew (restart 2 of 2)" in err


def test_after_the_last_restart_a_failure_ends_the_job(sandbox, launch_command):
    script = sandbox.script(ONCE.format(times=9))
    code, _, err = sandbox.run(
        *launch_command, "--nproc_per_node=2", "--max_restarts=1", "--use_env", script
    )
    assert code == 7
    assert err.count("rank 1 failed first: exit code 7") == 2
    assert err.count("start anew") == 1


def test_without_the_option_nothing_starts_anew(sandbox, run_command):
    script = sandbox.script(
        "assert 'AIODIST_RESTART_COUNT' not in os.environ\n"
        "assert 'AIODIST_REJOIN_STORE' not in os.environ\n"
        "assert 'TORCHELASTIC_RESTART_COUNT' not in os.environ\n"
        "sys.exit(RANK == '1' and 7)\n"
    )
    env = {
        "AIODIST_RESTART_COUNT": "3",
        "TORCHELASTIC_RESTART_COUNT": "3",
        "AIODIST_REJOIN_STORE": "elsewhere:1",
    }
    code, _, err = sandbox.run(*run_command, "-n", "2", script, env=env)
    assert code == 7
    assert "anew" not in err


ELASTIC = """
import contextlib
from pathlib import Path
import numpy as np
import aiodist.sync as dist
full = int(os.environ["WORLD_SIZE"])
state = {"sum": np.zeros(3)}
if dist.is_replacement():
    dist.rejoin()
else:
    dist.init_process_group()
assert signal.getsignal(signal.SIGUSR1) != signal.SIG_DFL  # a report is what it asks for
print("pid", os.getpid(), dist.get_restart_count(), flush=True)
assert dist.register_elastic()
if not dist.is_replacement():
    dist.barrier()      # all have registered
held = []               # how many pipes the launcher has, each time that all are there
victims = sys.argv[1:]  # of each time that all are there, in turn
for turn in range(len(victims) + 1):
    turn = max(turn, dist.group.WORLD.generation // 2)
    if dist.group.WORLD.newcomers:
        dist.sync_state(state)
    data = np.ones(3)
    dist.all_reduce(data)
    state["sum"] += data
    held.append(0)
    for descriptor in Path(f"/proc/{os.getppid()}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has been closed meanwhile
            held[-1] += os.readlink(descriptor).startswith("pipe:")
    if turn == len(victims):
        break
    victim = int(victims[turn])
    if victim == int(RANK):
        for other in range(full):  # none of them needs it any more
            if other != victim:
                dist.recv(np.zeros(1), other)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.send(np.zeros(1), victim)
    try:
        dist.recv(np.zeros(1), victim)
    except (dist.PeerLostError, dist.GroupRevokedError):
        pass
    group = dist.shrink()
    assert len(group.ranks) == full - 1
    group = dist.grow(ranks=range(full))
    assert len(group.ranks) == full
print("sum", state["sum"].tolist(), flush=True)
print("held", *held, flush=True)
dist.destroy_process_group()
"""


@pytest.mark.timeout(120)
def test_only_the_dead_rank_starts_anew_where_all_are_elastic(sandbox, run_command):
    """Also when it is rank 0, at which all had met, and when it is one for the second time."""
    sandbox.limit *= 3
    script = sandbox.script(ELASTIC)
    command = (*run_command, "-n", "3", "--max-restarts", "3", script, "1", "0", "1")
    code, out, err = sandbox.run(*command)
    assert code == 0, err + out
    starts = [line.split() for line in out.splitlines() if " pid " in line]
    assert sorted((rank, count) for rank, _, _, count in starts) == [
        *(("[0]", "0"), ("[0]", "1")),
        *(("[1]", "0"), ("[1]", "1"), ("[1]", "2")),
        ("[2]", "0"),
    ]
    (held,) = [line.split()[2:] for line in out.splitlines() if "[2] held " in line]
    assert len(held) == 4
    assert len(set(held)) == 1  # pipes of ended processes are closed
    sums = [line for line in out.splitlines() if " sum " in line]
    assert sorted(sums) == [f"[{rank}] sum [12.0, 12.0, 12.0]" for rank in range(3)]
    assert "rank 1 has failed: SIGKILL; another process takes its place (restart 1 of 3)" in err
    assert "rank 0 has failed: SIGKILL; another process takes its place (restart 2 of 3)" in err
    assert "anew" not in err


@pytest.mark.timeout(120)
def test_the_job_ends_when_the_members_finish_while_a_replacement_waits(sandbox, run_command):
    sandbox.limit *= 3
    script = sandbox.script(
        "import aiodist.sync as dist\n"
        "if dist.is_replacement():\n"
        "    print('comes', flush=True)\n"
        "    dist.rejoin()\n"
        "dist.init_process_group()\n"
        "dist.register_elastic()\n"
        "try:\n"
        "    dist.barrier()\n"
        "    if RANK == '1':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    dist.barrier()\n"
        "except (dist.PeerLostError, dist.GroupRevokedError):\n"
        "    print('left', len(dist.shrink().ranks), flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    code, out, err = sandbox.run(*run_command, "-n", "3", "--max-restarts", "2", script)
    assert code == 0, err + out
    assert sorted(out.splitlines()) == ["[0] left 2", "[1] comes", "[2] left 2"]
    assert "rank 1 waited in rejoin() to be taken in, and the other ranks have returned" in err


def test_one_rank_that_is_not_elastic_makes_all_start_anew(sandbox, run_command):
    sandbox.limit *= 3
    script = sandbox.script(
        "import aiodist.sync as dist\n"
        "dist.init_process_group()\n"
        "count = dist.get_restart_count()\n"
        "if RANK == '1':\n"
        "    dist.register_elastic()\n"
        "dist.barrier()\n"
        "if RANK == '1' and not count:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "dist.barrier()\n"
        "print('done', count, dist.is_replacement())\n"
    )
    code, out, err = sandbox.run(*run_command, "-n", "2", "--max-restarts", "1", script)
    assert code == 0, err
    assert sorted(out.splitlines()) == ["[0] done 1 False", "[1] done 1 False"]
    assert "all ranks start anew (restart 1 of 1)" in err


def test_a_rank_that_was_replaced_counts_the_start_of_all_once(capfd, monkeypatch):
    monkeypatch.setattr(supervisor, "HEAR", 0.0)
    answers = iter([True, False])
    monkeypatch.setattr(Restarts, "may_replace", lambda *_: next(answers))
    script = (
        "echo start $AIODIST_RESTART_COUNT\n"
        "if [ $RANK = 1 ]; then [ $AIODIST_RESTART_COUNT -ge 2 ] || exit 7\n"
        "elif [ $AIODIST_RESTART_COUNT = 0 ]; then exec sleep 60; fi\n"
    )
    assert run_job(JobSpec(program=("sh", "-c", script), nproc=2, max_restarts=2)) == 0
    out = capfd.readouterr().out.splitlines()
    assert [line for line in out if line.startswith("[1]")] == [
        f"[1] start {count}" for count in range(3)
    ]
    # rank 0 may be stopped before it has said anything
    assert [line for line in out if line.startswith("[0]")][-1] == "[0] start 1"


def test_a_signal_to_the_launcher_starts_nothing_anew(sandbox, run_command):
    script = sandbox.script("open('up' + RANK, 'w').write('x')\ntime.sleep(60)\n")
    process = sandbox.start(*run_command, "-n", "2", "--max-restarts", "5", script)
    sandbox.wait_for("up0", "up1")
    process.terminate()
    code, _, err = sandbox.finish(process)
    assert code == 143
    assert "anew" not in err


def test_invalid_arguments_are_refused():
    with pytest.raises(InvalidUsageError, match="one node"):
        JobSpec(program=("x",), nnodes=2, max_restarts=1)
    with pytest.raises(InvalidUsageError, match="0 or more"):
        JobSpec(program=("x",), max_restarts=-1)


def test_no_rank_is_replaced_without_survivors():
    with Restarts(2, b"secret") as restarts:
        assert not restarts.may_replace(0, [])
        assert not restarts.may_replace(0, [1])
        assert restarts.variables(0, replacement=True)["AIODIST_REPLACEMENT"] == "1"
        restarts.start_over([0, 1])
        assert restarts.variables(0, replacement=False)["AIODIST_RESTART_COUNT"] == "1"
    with Restarts(0, b"") as restarts:
        assert not restarts.may_replace(0, [1])
        assert restarts.variables(0, replacement=False) == {}


def test_a_store_that_does_not_answer_is_named_and_does_not_hide_the_end(monkeypatch):
    monkeypatch.setattr(restarts, "_ANSWER_SECONDS", 0.05)
    release = threading.Event()
    with Restarts(2, b"secret") as counter:
        counter._loop.call_soon_threadsafe(release.wait)
        with pytest.raises(DistStoreError, match=r"launcher's own store.* within 0\.05 s"):
            counter.may_replace(0, [1])
        threading.Timer(0.2, release.set).start()


def test_a_launcher_whose_store_has_no_thread_says_so(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(DistStoreError, match=r"launcher's own store.* can't start new.*ulimit -u"):
        Restarts(1, b"secret").__enter__()


async def _register(
    restarts: Restarts, rank: int, certificates: Certificates | None = None
) -> None:
    address = restarts.variables(rank, replacement=False)["AIODIST_REJOIN_STORE"]
    host, _, port = address.rpartition(":")
    opening = TcpStore.connect(
        host, int(port), Deadline(10), secret=b"secret", certificates=certificates
    )
    async with await opening as store:
        await store.set(f"rejoin/elastic/{rank}", b"1")


def test_a_replacement_that_is_only_starting_counts_as_elastic_but_admits_no_rank():
    with Restarts(9, b"secret") as restarts:
        for rank in range(3):
            asyncio.run(_register(restarts, rank))
        assert restarts.may_replace(0, [1, 2])
        restarts.replace(0)
        assert restarts.may_replace(1, [0, 2])
        restarts.replace(1)
        assert not restarts.may_replace(2, [0, 1])
        asyncio.run(_register(restarts, 1))
        assert restarts.may_replace(2, [0, 1])
        restarts.start_over([0, 1, 2])
        assert not restarts.may_replace(2, [0, 1])


def test_the_store_is_by_tls_where_the_job_has_certificates():
    with Restarts(1, b"secret", tls_files()) as restarts:
        with pytest.raises(DistStoreError):
            asyncio.run(_register(restarts, 0))
        asyncio.run(_register(restarts, 0, tls_files()))
        assert restarts.may_replace(1, [0]) is False
        asyncio.run(_register(restarts, 1, tls_files()))
        assert restarts.may_replace(1, [0]) is True
