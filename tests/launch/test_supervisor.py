"""The launcher for real: tiny scripts, real processes, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from aiodist.launch import JobSpec, Launcher, run_job, supervisor
from aiodist.launch.process import Watchdog
from aiodist.launch.restarts import Restarts
from aiodist.observe.folder import read_parts
from tests.limits import scaled

WAIT = (
    "open(f'pid{RANK}', 'w').write(str(os.getpid()))\n"
    # Short sleeps: a signal that arrives just before a sleep begins does not end that sleep.
    "for _ in range(600): time.sleep(0.1)\n"
)


def lines(text: str) -> list[str]:
    return sorted(text.splitlines())


def test_ranks_learn_their_place(sandbox, run_command):
    script = sandbox.script(
        "E = os.environ\n"
        "print(E['LOCAL_RANK'], E['WORLD_SIZE'], E['LOCAL_WORLD_SIZE'], E['MASTER_ADDR'],\n"
        "      E['OMP_NUM_THREADS'], sys.argv[1:], 'TORCHELASTIC_USE_AGENT_STORE' in E)\n"
        "open('id' + RANK, 'w').write(' '.join(\n"
        "    [E['MASTER_PORT'], E['AIODIST_SECRET'], E['AIODIST_RUN_ID']]))\n"
    )
    env = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    code, out, err = sandbox.run(*run_command, "-n", "3", script, "-x", "--y=1", env=env)
    assert code == 0
    assert lines(out) == [f"[{k}] {k} 3 3 127.0.0.1 1 ['-x', '--y=1'] False" for k in range(3)]
    assert err.count("OMP_NUM_THREADS=1") == 1
    identities = sandbox.wait_for("id0", "id1", "id2")
    assert len(set(identities)) == 1
    port, secret, run_id = identities[0].split()
    assert 1024 < int(port) < 65536
    assert len(bytes.fromhex(secret)) == 32
    assert run_id.count("-") == 4


def test_variables_set_by_the_user_are_kept(sandbox, run_command):
    script = sandbox.script(
        "E = os.environ\n"
        "print(E['OMP_NUM_THREADS'], E['AIODIST_SECRET'], E['AIODIST_RUN_ID'], E['MASTER_PORT'])\n"
        "assert E['PYTHONUNBUFFERED'] == ''\n"
    )
    env = {
        "OMP_NUM_THREADS": "7",
        "AIODIST_SECRET": "s",
        "AIODIST_RUN_ID": "r",
        "PYTHONUNBUFFERED": "",
    }
    code, out, err = sandbox.run(*run_command, "-n", "2", script, env=env | {"MASTER_PORT": "1"})
    assert code == 0
    assert "OMP_NUM_THREADS" not in err
    assert all(line.split()[1:4] == ["7", "s", "r"] for line in out.splitlines())
    assert all(int(line.split()[4]) > 1 for line in out.splitlines())


def test_the_early_launcher_passes_the_local_rank(sandbox, launch_command):
    script = sandbox.script("print(sys.argv[1:])\n")
    code, out, _ = sandbox.run(*launch_command, "--nproc_per_node=2", script, "--lr", "1")
    assert code == 0
    assert lines(out) == [f"[{k}] ['--local_rank={k}', '--lr', '1']" for k in range(2)]
    code, out, _ = sandbox.run(*launch_command, "--use_env", "--nproc-per-node", "1", script)
    assert (code, out) == (0, "[0] []\n")


def test_several_nodes_number_their_ranks_on(sandbox, launch_command):
    script = sandbox.script(
        "E = os.environ\n"
        "print(RANK, E['LOCAL_RANK'], E['WORLD_SIZE'], E['MASTER_ADDR'], E['MASTER_PORT'],\n"
        "      'AIODIST_SECRET' in E)\n"
    )
    code, out, _ = sandbox.run(
        *launch_command,
        *("--nproc_per_node=2", "--nnodes=3", "--node_rank=1", "--master_addr=[::1]"),
        *("--master_port=4242", script),
    )
    assert code == 0
    assert lines(out) == [f"[{2 + k}] {2 + k} {k} 6 ::1 4242 False" for k in range(2)]


def test_modules_and_programs(sandbox, run_command):
    sandbox.script("print('module', sys.argv[1:])\n", "mod.py")
    assert sandbox.run(*run_command, "-m", "mod", "a")[:2] == (0, "[0] module ['a']\n")
    program = ("--no-python", "sh", "-c", "echo $RANK; exit 7")
    code, out, _ = sandbox.run(*run_command, *program)
    assert (code, out) == (7, "[0] 0\n")


def test_two_launches_at_the_same_moment_have_ports_of_their_own(sandbox, run_command):
    """Every rank 0 listens on its port, and all of them at the same time."""
    script = sandbox.script(
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', int(os.environ['MASTER_PORT'])))\n"
        "open(sys.argv[1], 'w').write(os.environ['MASTER_PORT'])\n"
        "while not os.path.exists('all'): time.sleep(0.01)\n"
    )
    jobs = [sandbox.start(*run_command, script, f"port{n}") for n in range(4)]
    ports = sandbox.wait_for(*(f"port{n}" for n in range(4)))
    (sandbox.folder / "all").touch()
    assert [sandbox.finish(job)[0] for job in jobs] == [0] * 4
    assert len(set(ports)) == 4


def test_a_rank_that_left_too_early_is_named_where_another_misses_it(sandbox, run_command):
    script = sandbox.script(
        "if RANK == '1':\n"
        "    open('new', 'w').write(str(os.getpid()))\n"
        "    os.replace('new', 'pid')\n"
        "    raise SystemExit\n"
        "class PeerLostError(Exception): pass\n"
        "while not os.path.exists('pid'): time.sleep(0.01)\n"
        "pid = int(open('pid').read())\n"
        "try:\n"
        "    while os.kill(pid, 0) is None: time.sleep(0.01)\n"
        "except ProcessLookupError: pass  # the launcher has seen it end\n"
        "raise PeerLostError('rank 1 is gone') if 'lost' in sys.argv else ValueError('boom')\n"
    )
    told = sandbox.run(*run_command, "-n", "2", script, "lost")[2].splitlines()
    said = "aiodist: rank 1 had returned with exit code 0, perhaps sooner than the script meant"
    assert said in told
    (sandbox.folder / "pid").unlink()
    assert said not in sandbox.run(*run_command, "-n", "2", script)[2].splitlines()


def test_the_first_failure_stops_the_rest_and_its_traceback_is_last(sandbox, run_command):
    script = sandbox.script(
        "open('ready' + RANK, 'w').write('1')\n"
        "if RANK == '1':\n"
        "    while not (os.path.exists('ready0') and os.path.exists('ready2')): time.sleep(0.01)\n"
        "    raise SystemExit(3) if 'quiet' in sys.argv else ValueError('boom')\n"
        "if 'quiet' not in sys.argv: time.sleep(60)\n"
    )
    code, _, err = sandbox.run(*run_command, "-n", "3", script)
    assert code == 1
    told = err.splitlines()
    assert told[-1] == "ValueError: boom"
    assert "[1] ValueError: boom" in told
    summary = next(line for line in told if "failed first" in line)
    assert summary.startswith("aiodist: rank 1 failed first: exit code 1 (local rank 1, pid ")
    assert "aiodist: then ended: ranks 0, 2 by SIGTERM" in told
    for name in ("ready0", "ready2"):
        (sandbox.folder / name).unlink()
    code, _, err = sandbox.run(*run_command, "-n", "3", script, "quiet")
    assert code == 3, err


def test_a_rank_killed_by_a_signal_gives_128_plus_it(sandbox, run_command):
    script = sandbox.script("if RANK == '0': os.kill(os.getpid(), 9)\n")
    code, _, err = sandbox.run(*run_command, "-n", "2", script)
    assert code == 137
    assert "rank 0 failed first: SIGKILL" in err


def test_surviving_ranks_name_the_lost_one_and_leave_their_dumps(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(supervisor, "HEAR", scaled(20))  # on a busy machine a second may be little
    script = (
        "import os, numpy as np, aiodist.sync as dist\n"
        "dist.init_process_group()\n"
        "for step in range(20):\n"
        "    if step == 5 and dist.get_rank() == 1: os.kill(os.getpid(), 9)\n"
        "    dist.all_reduce(np.ones(8))\n"
    )
    environment = os.environ | {"AIODIST_DUMP_DIR": str(tmp_path / "dump")}
    program = (sys.executable, "-c", script)
    assert run_job(JobSpec(program=program, nproc=3, environment=environment)) == 137
    told = capfd.readouterr().err.splitlines()
    for rank in (0, 2):
        assert any(
            line.startswith(f"[{rank}] aiodist.errors.PeerLostError: rank 1") for line in told
        )
    assert any(line.startswith("aiodist: rank 1 failed first: SIGKILL") for line in told)
    assert "aiodist: then ended: ranks 0, 2 by exit code 1" in told, "the launcher had to stop them"
    parts = read_parts(tmp_path / "dump").parts
    assert sorted(parts) == [0, 2]
    assert all(part.reason.startswith("rank 1 ") for part in parts.values())


def test_a_rank_that_blames_a_peer_does_not_hide_the_cause(sandbox, run_command):
    script = sandbox.script(
        "from aiodist.errors import PeerLostError\n"
        "if RANK == '0': raise PeerLostError('rank 1 is gone', rank=1)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        "raise ValueError('the cause')\n"
    )
    job = sandbox.start(*run_command, "-n", "2", script, stderr=subprocess.PIPE)
    for line in job.stderr:
        if b"PeerLostError: rank 1 is gone" in line:
            break
    (sandbox.folder / "go").touch()
    code, _, err = sandbox.finish(job)
    assert code == 1
    assert "rank 1 failed first" in err
    assert err.splitlines()[-1] == "ValueError: the cause"


@pytest.mark.timeout(120)
def test_a_rank_that_loses_a_peer_in_ddp_does_not_hide_the_cause(sandbox, run_command, warm_python):
    """torch prefixes each line of a traceback, and DDP wraps the error of a future."""
    sandbox.limit *= 4
    script = sandbox.script(
        "import atexit, torch, torch.distributed as dist\n"
        "open('pid' + RANK, 'w').write(str(os.getpid()))\n"
        "dist.init_process_group('aiodist')\n"
        "net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
        "def outlive():\n"
        "    dist.destroy_process_group()\n"
        "    try:\n"
        "        while True:\n"
        "            os.kill(int(open('pid0').read()), 0)\n"
        "            time.sleep(0.01)\n"
        "    except ProcessLookupError:\n"
        "        pass\n"
        "if RANK == '1':\n"
        "    atexit.register(outlive)\n"
        "    raise ValueError('the cause')\n"
        "net(torch.ones(1, 2)).sum().backward()\n",
    )
    code, _, err = sandbox.run(*run_command, "--no-python", "-n", "2", *warm_python.command, script)
    assert code == 1
    assert "callback: PeerLostError" in err
    assert "aiodist: rank 1 failed first: " in err
    assert "aiodist: its traceback (rank 1):\nTraceback (most" in err
    assert err.endswith("\nValueError: the cause\n")


def test_a_rank_that_raised_and_is_slow_to_end_is_the_cause(sandbox, run_command):
    """It destroys its group at its exit, which is how the others lose it before it has ended."""
    script = sandbox.script(
        "from aiodist.errors import PeerLostError\n"
        "import atexit, traceback\n"
        "while RANK == '0' and not os.path.exists('raises'): time.sleep(0.01)\n"
        "if RANK == '0': raise PeerLostError('rank 1 (process 7 on here) has left', rank=1)\n"
        "if RANK == '2': traceback.print_exception(KeyError('handled'))\n"
        "atexit.register(time.sleep, 60)\n"
        "if RANK == '1': open('raises', 'w')\n"
        "raise ValueError('the cause')\n"
    )
    code, _, err = sandbox.run(*run_command, "-n", "3", script)
    assert code == 1
    assert "rank 1 failed first: an exception, and still ending when stopped: SIGTERM" in err
    assert err.splitlines()[-1] == "ValueError: the cause"


def test_a_rank_deaf_to_sigterm_is_killed_after_the_grace(sandbox, run_command):
    script = sandbox.script(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if RANK == '0': open('deaf', 'w').write('1'); time.sleep(60)\n"
        "while not os.path.exists('deaf'): time.sleep(0.01)\n"
        "sys.exit(5)\n"
    )
    code, _, err = sandbox.run(*run_command, "-n", "2", "--grace", "0.2", script)
    assert code == 5
    assert "rank 0 by SIGKILL" in err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_to_the_launcher_reaches_each_rank_once(sandbox, run_command, number, code):
    script = sandbox.script(
        "got = []\n"
        "def note(n, f): got.append(n); os.write(1, b'got %d\\n' % n)\n"
        "signal.signal(signal.SIGINT, note); signal.signal(signal.SIGTERM, note)\n"
        "open('pid' + RANK, 'w').write(str(os.getpid()))\n"
        "while not got: time.sleep(0.01)\n"
    )
    job = sandbox.start(*run_command, "-n", "2", script)
    pids = sandbox.wait_for("pid0", "pid1")
    job.send_signal(number)
    got = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
    result, out, err = sandbox.finish(job)
    assert result == code
    assert lines(out) == [f"[{k}] got {got}" for k in range(2)]
    assert f"{signal.Signals(number).name}: all ranks are stopped" in err
    sandbox.wait_dead(*map(int, pids))


def test_a_second_ctrl_c_kills_at_once(sandbox, run_command):
    script = sandbox.script(
        "signal.signal(signal.SIGINT, lambda n, f: open('got' + RANK, 'w').write('1'))\n" + WAIT
    )
    job = sandbox.start(*run_command, "-n", "2", "--grace", "1000", script)
    sandbox.wait_for("pid0", "pid1")
    job.send_signal(signal.SIGINT)
    sandbox.wait_for("got0", "got1")
    job.send_signal(signal.SIGINT)
    code, _, err = sandbox.finish(job)
    assert code == 130
    assert "2 of them by SIGKILL" in err


GRANDCHILD = (
    "import subprocess\n"
    "child = subprocess.Popen(['sleep', '60'])\n"
    "open('child' + RANK, 'w').write(str(child.pid))\n"
)


def test_killing_the_launcher_leaves_no_orphan(sandbox, run_command):
    """Neither ranks nor what they started; the ranks ignore every signal that can be ignored."""
    script = sandbox.script(
        "for name in ('SIGTERM', 'SIGINT', 'SIGHUP'):\n"
        "    signal.signal(getattr(signal, name), signal.SIG_IGN)\n" + GRANDCHILD + WAIT
    )
    job = sandbox.start(*run_command, "-n", "2", script)
    pids = sandbox.wait_for("pid0", "pid1", "child0", "child1")
    job.kill()
    job.wait()
    sandbox.wait_dead(*map(int, pids))


def test_killing_launcher_and_watchdog_together_still_ends_the_ranks(sandbox, run_command):
    job = sandbox.start(*run_command, "-n", "2", sandbox.script(WAIT))
    pids = sandbox.wait_for("pid0", "pid1")
    children = _children(job.pid)
    (watchdog,) = children - set(map(int, pids))
    os.kill(watchdog, signal.SIGKILL)
    job.kill()
    job.wait()
    sandbox.wait_dead(*map(int, pids))


def _children(pid: int) -> set[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return set(map(int, file.read().split()))


@pytest.mark.parametrize("options", [{"keep_going": True}, {"max_restarts": 1}])
def test_the_watchdog_forgets_the_group_of_a_failed_rank_while_others_run(
    options, tmp_path, capfd, monkeypatch
):
    """The group is gone, and another may get its number before the launcher ends."""
    announced, announce, take_back = [], Watchdog.announce, Watchdog.take_back

    def announce_and_note(watchdog: Watchdog, group: int) -> None:
        announced.append(group)
        announce(watchdog, group)

    def take_back_and_note(watchdog: Watchdog, group: int) -> None:
        take_back(watchdog, group)
        announced.remove(group)
        (tmp_path / f"{group}.gone").touch()

    monkeypatch.setattr(Watchdog, "announce", announce_and_note)
    monkeypatch.setattr(Watchdog, "take_back", take_back_and_note)
    monkeypatch.setattr(Restarts, "may_replace", lambda *_: not options.get("keep_going"))
    script = (
        f"cd {tmp_path}\n"
        "if [ $RANK = 1 ]; then\n"
        '    if [ "$AIODIST_REPLACEMENT" ]; then exit 0; fi\n'
        "    echo $$ > new; mv new pid; exit 3\n"
        "fi\n"
        "for n in $(seq 500); do\n"
        '    if [ -e "$(cat pid 2>&1).gone" ]; then echo gone; exit 0; fi\n'
        "    sleep 0.01\n"
        "done\n"
    )
    code = run_job(spec("sh", "-c", script, nproc=2, **options))
    assert capfd.readouterr().out == "[0] gone\n"
    assert code == (3 if "keep_going" in options else 0)
    assert announced == []


@pytest.mark.parametrize("alone", [True, False], ids=["a replacement", "all ranks anew"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_a_rank_that_is_just_being_started_again(
    number, alone, capfd, monkeypatch
):
    started = []

    class Signalled(supervisor.RankProcess):
        """The third process of the job runs, and the launcher is told to end before it knows that."""

        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)
            started.append(self)
            if len(started) == 3:
                signal.raise_signal(number)

    monkeypatch.setattr(supervisor, "RankProcess", Signalled)
    monkeypatch.setattr(Restarts, "may_replace", lambda *_: alone)
    script = "[ $RANK$AIODIST_RESTART_COUNT = 10 ] && exit 3; exec sleep 300"
    options = {"nproc": 2, "max_restarts": 1, "grace": scaled(5)}
    assert run_job(spec("sh", "-c", script, **options)) == 128 + number
    assert len(started) == 3
    name = signal.Signals(number).name
    assert f"{name}: all ranks are stopped\n" in capfd.readouterr().err


def test_a_child_whose_launcher_is_gone_already_does_not_start(sandbox):
    program = os.path.join(os.path.dirname(sys.modules["aiodist.launch"].__file__), "child.py")
    nobody = "1" if os.getppid() != 1 else "2"
    done = subprocess.run(
        [sys.executable, "-I", "-S", program, nobody, "echo", "started"],
        capture_output=True,
        timeout=sandbox.limit,
        check=False,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")


def test_processes_left_by_ranks_end_with_the_job(sandbox, run_command):
    """It holds the rank's output open: a launcher that waited for its end would wait for ever."""
    script = sandbox.script(GRANDCHILD + "print('done')\n")
    code, out, _ = sandbox.run(*run_command, script)
    assert (code, out) == (0, "[0] done\n")
    sandbox.wait_dead(*map(int, sandbox.wait_for("child0")))


def test_long_binary_and_unfinished_output(sandbox, run_command):
    script = sandbox.script(
        "out = sys.stdout.buffer\n"
        "for n in range(20): out.write((RANK * 200_000).encode() + b'\\n')\n"
        "out.write(bytes(range(14, 256)) + b'\\n')\n"
        "out.write(b'end ' + RANK.encode()); out.flush()\n"
    )
    job = sandbox.start(*run_command, "-n", "2", script)
    out, _ = job.communicate(timeout=sandbox.limit)
    assert job.returncode == 0
    told = out.split(b"\n")
    for rank in (b"0", b"1"):
        assert told.count(b"[%b] " % rank + rank * 200_000) == 20
        assert b"[%b] " % rank + bytes(range(14, 256)) in told
        assert b"[%b] end %b" % (rank, rank) in told
    assert len(told) == 2 * 22 + 1


def test_raw_output_is_the_ranks_own(sandbox, run_command):
    script = sandbox.script("print('x\\ry', end=''); sys.exit(len(sys.argv) > 1 and 4)\n")
    code, out, _ = sandbox.run(*run_command, "-n", "2", "--raw", script)
    assert (code, out) == (0, "x\ryx\ry")
    code, out, err = sandbox.run(*run_command, "--raw", script, "4")
    assert (code, out) == (4, "x\ry")
    assert "rank 0 failed first" in err
    assert "look above" in err


def test_rank_0_reads_the_terminal_input(sandbox, run_command):
    script = sandbox.script("print(repr(sys.stdin.read()))\n")
    job = sandbox.start(*run_command, "-n", "2", script, stdin=subprocess.PIPE)
    out, _ = job.communicate(b"typed", timeout=sandbox.limit)
    assert lines(out.decode()) == ["[0] 'typed'", "[1] ''"]


def test_on_a_terminal_prompts_show_before_their_end_and_ranks_have_colours(sandbox, run_command):
    leader, follower = os.openpty()
    try:
        script = sandbox.script("print('name? ', end=''); print('hello ' + input())\n")
        ends = {"stdin": follower, "stdout": follower, "stderr": follower}
        env = {"NO_COLOR": "", "TERM": "xterm"}
        job = sandbox.start(*run_command, script, env=env, **ends)
        shown = b""
        while not shown.endswith(b"[0]\x1b[0m name? "):
            shown += os.read(leader, 1024)
        os.write(leader, b"me\n")
        while b"hello me\r\n" not in shown:
            shown += os.read(leader, 1024)
        assert job.wait(sandbox.limit) == 0
    finally:
        os.close(leader)
        os.close(follower)


def test_a_reader_that_went_away_ends_the_job(sandbox, run_command):
    script = sandbox.script("while True: print('y' * 1000)\n")
    job = sandbox.start(*run_command, "-n", "2", script)
    assert job.stdout.readline().startswith((b"[0] yyy", b"[1] yyy"))
    job.stdout.close()
    assert job.wait(sandbox.limit) == 141


def test_no_rank_starts_if_the_launchers_first_line_has_no_reader(sandbox, run_command):
    """That line says that each rank has one thread."""
    script = sandbox.script("open('started', 'w')\n" + WAIT)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        job = sandbox.start(*run_command, "-n", "2", script, stderr=writer)
    finally:
        os.close(writer)
    assert job.wait(sandbox.limit) == 141
    assert not (sandbox.folder / "started").exists()


SAVE = (
    "def save(n, f):\n"
    "    os.write(1, b'saves\\n')\n"
    "    open('saved' + RANK, 'w').write('1')\n"
    "    sys.exit()\n"
    "signal.signal(signal.SIGTERM, save)\n"
)


def test_a_terminal_that_hangs_up_leaves_the_ranks_their_grace(sandbox, run_command):
    leader, follower = os.openpty()
    script = sandbox.script(SAVE + WAIT)
    try:
        job = sandbox.start(
            *run_command, "-n", "2", "--grace", "1000", script, stdout=follower, stderr=follower
        )
        sandbox.wait_for("pid0", "pid1")
    finally:
        os.close(leader)
        os.close(follower)
    job.send_signal(signal.SIGHUP)
    assert job.wait(sandbox.limit) == 129
    sandbox.wait_for("saved0", "saved1")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_ends_the_job_and_leaves_the_ranks_their_grace(sandbox, run_command):
    script = sandbox.script(
        SAVE + "open('up' + RANK, 'w').write('1')\n"
        "while not (os.path.exists('up0') and os.path.exists('up1')): time.sleep(0.01)\n"
        "print('line', flush=True)\n" + WAIT
    )
    with open("/dev/full", "wb") as full, open(sandbox.folder / "told", "wb") as told:
        job = sandbox.start(
            *run_command, "-n", "2", "--grace", "1000", script, stdout=full, stderr=told
        )
    assert job.wait(sandbox.limit) == 141
    sandbox.wait_for("saved0", "saved1")
    said = (sandbox.folder / "told").read_text()
    assert "the output cannot be written (No space left on device)" in said


def spec(*command: str, **options: object) -> JobSpec:
    return JobSpec(program=command, **options)


def test_from_python(capfd):
    assert run_job(spec("sh", "-c", "echo $RANK")) == 0
    assert capfd.readouterr().out == "[0] 0\n"
    launcher = Launcher(spec("sh", "-c", "echo why >&2; exit $RANK", nproc=2))
    assert launcher.run() == 1
    assert launcher.failure.rank == 1
    assert launcher.failure.status == 1
    assert launcher.failure.stderr == "why\n"


def test_from_a_thread_the_programs_own_signal_handling_stays(capfd):
    before = signal.getsignal(signal.SIGINT)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(run_job(spec("sh", "-c", "exit 9"))))
    thread.start()
    thread.join()
    assert codes == [9]
    assert signal.getsignal(signal.SIGINT) is before


def test_handlers_are_put_back(capfd):
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    run_job(spec("true"))
    after = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert after == before


def test_without_pidfd_the_ends_are_still_seen(capfd, monkeypatch):
    monkeypatch.setattr("aiodist.launch.process._pidfd", lambda pid: None)
    assert run_job(spec("sh", "-c", "exit $RANK", nproc=3)) in (1, 2)


def test_a_command_that_cannot_be_run_is_the_ranks_failure(capfd):
    assert run_job(spec("/no/such/program")) == 127
    assert "cannot run '/no/such/program': No such file" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["program", "arguments", "ssh"])
def test_a_command_that_is_one_text_is_refused(name):
    words = {"program": ("true",), name: "echo"}
    with pytest.raises(TypeError, match=rf"{name} must be a tuple of words, such as \('echo',\)"):
        JobSpec(**words)


def test_a_refused_start_leaves_nothing_running(capfd, monkeypatch):
    """The system runs out of processes at the second rank; the leak check does the rest."""
    import aiodist.launch.supervisor as supervisor

    real, started = supervisor.RankProcess, []

    def process(*args: object, **kwargs: object) -> object:
        if started:
            raise BlockingIOError("Resource temporarily unavailable")
        started.append(real(*args, **kwargs))
        return started[0]

    monkeypatch.setattr(supervisor, "RankProcess", process)
    begun = time.monotonic()
    with pytest.raises(BlockingIOError):
        run_job(spec("sleep", "60", nproc=2))
    assert time.monotonic() - begun < scaled(30)
    assert started[0].popen.returncode == -signal.SIGKILL
