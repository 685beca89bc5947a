"""Groups, their end, and the watchdog's list."""

from __future__ import annotations

import os
import py_compile
import select
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aiodist.errors import DistError
from aiodist.launch import JobSpec, Launcher, output, process, run_job, supervisor
from aiodist.launch.process import UNKNOWN, RankProcess, Watchdog
from aiodist.launch.watchdog import surviving
from tests.limits import scaled


def start(*command: str) -> RankProcess:
    null = subprocess.DEVNULL
    return RankProcess(
        command, os.environ, rank=0, local_rank=0, stdin=null, stdout=null, stderr=null
    )


def test_a_rank_has_a_host_name_that_can_be_printed(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: os.fsdecode(b"h\xf6st"))
    rank = start("true")
    rank.popen.wait()
    rank.close()
    assert rank.host == "h?st"


def test_ranks_start_where_only_compiled_files_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("child", "watchdog"):
        source = Path(process.__file__).with_name(f"{name}.py")
        py_compile.compile(str(source), str(tmp_path / f"{name}.pyc"), doraise=True)
    monkeypatch.setattr(process, "_HERE", tmp_path)
    with Watchdog() as watchdog:
        rank, killed = start("true"), start("sleep", "60")
        watchdog.announce(killed.pid)
    assert rank.popen.wait() == 0
    assert killed.popen.wait() == -signal.SIGKILL
    rank.close()
    killed.close()


def test_an_aiodist_in_an_archive_says_that_it_starts_no_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(process, "_HERE", tmp_path / "app.pyz" / "aiodist" / "launch")
    with pytest.raises(DistError, match=r"inside of an archive, .*app\.pyz.*; install aiodist"):
        Watchdog().__enter__()


def test_the_watchdog_kills_announced_processes_that_were_not_withdrawn():
    assert surviving([b"+1\n", b"+22\n", b"-1\n", b"+333\n", b"+44"]) == {22, 333}


def test_closing_the_watchdog_kills_the_groups_still_announced():
    with Watchdog() as watchdog:
        lost, kept = start("sleep", "60"), start("sleep", "60")
        watchdog.announce(lost.pid)
        watchdog.announce(kept.pid)
        watchdog.take_back(kept.pid)
    assert lost.popen.wait() == -signal.SIGKILL
    assert kept.popen.poll() is None
    kept.send_group(signal.SIGKILL)
    kept.popen.wait()
    for rank in (lost, kept):
        rank.close_pidfd()


def test_a_killed_watchdog_is_not_missed():
    with Watchdog() as watchdog:
        watchdog._process.kill()
        watchdog._process.wait()
        watchdog.announce(1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_group_of_zombies_does_not_run():
    rank = start("sleep", "60")
    assert rank.group_running()
    rank.send_group(signal.SIGKILL)
    os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert rank.group_alive()
    assert not rank.group_running()
    assert rank.reap()
    assert not rank.reap()
    assert not rank.group_alive()
    rank.send_group(signal.SIGKILL)  # reaches no process
    assert rank.status == -signal.SIGKILL


def test_a_signal_to_a_rank_whose_end_is_being_noted_is_no_error(monkeypatch):
    """The launcher's signal handler may run directly after the call that waits for the rank."""
    rank = start("true")
    os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
    wait4 = os.wait4

    def wait_and_send(pid: int, options: int) -> object:
        ended = wait4(pid, options)
        rank.send(signal.SIGTERM)
        return ended

    monkeypatch.setattr(os, "wait4", wait_and_send)
    assert rank.reap()
    assert rank.status == 0


def test_a_rank_of_another_user_does_not_keep_the_signal_from_the_others(monkeypatch):
    def refuse(pid: int, number: int) -> None:
        raise PermissionError("Operation not permitted")

    rank = start("sleep", "60")
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "kill", refuse)
            rank.send(signal.SIGTERM)
    finally:
        rank.send_group(signal.SIGKILL)
        rank.close()


def test_a_rank_that_another_part_of_the_program_has_waited_for_counts_as_failed():
    rank = start("true")
    os.waitpid(rank.pid, 0)
    assert rank.reap()
    assert rank.status == UNKNOWN
    rank.close()


def test_output_that_nothing_reads_does_not_fill_the_launchers_memory():
    read_end, write_end = os.pipe()
    os.close(read_end)
    loud = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: print('y' * 999)"
    )
    spec = JobSpec(program=(sys.executable, "-c", loud), grace=0.3)
    try:
        launcher = Launcher(spec, stdout=write_end, stderr=write_end)
        assert launcher.run() == 128 + signal.SIGPIPE
    finally:
        os.close(write_end)
    assert not launcher._console.stdout._buffer


def test_a_launcher_that_got_a_signal_ends_although_nothing_reads_its_output(monkeypatch):
    monkeypatch.setattr(output, "WAIT_SECONDS", 0.01)
    read_end, write_end = os.pipe()
    deaf = ("sh", "-c", f"trap '' TERM; exec yes {'y' * 999}")
    launcher = Launcher(JobSpec(program=deaf, grace=0.01), stdout=write_end, stderr=write_end)
    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(launcher.run)
        try:
            while select.select([], [write_end], [], 0)[1]:
                time.sleep(0.001)
            launcher._on_signal(signal.SIGTERM)
            assert ended.result(scaled(5)) == 128 + signal.SIGTERM
        finally:
            os.close(read_end)  # by which a launcher that still waits ends
    os.close(write_end)


def test_a_grace_of_months_is_no_error(monkeypatch, capfd):
    monkeypatch.setattr(supervisor, "HEAR", 0.0)
    program = ("sh", "-c", "[ $RANK = 0 ] && exit 3; exec sleep 60")
    assert run_job(JobSpec(program=program, nproc=2, grace=1e8)) == 3


def test_a_failed_rank_of_a_program_that_ignores_sigchld_is_seen(capfd):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run_job(JobSpec(program=("sh", "-c", "exit 3"))) == 3
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_sigterm_goes_to_the_rank_alone(tmp_path):
    rank = start("sh", "-c", f"trap 'exit 5' TERM; sleep 60 & echo $! > {tmp_path}/pid; wait")
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.01)
    rank.send(signal.SIGTERM)
    assert rank.popen.wait() == 5
    assert rank.group_running()
    rank.send_group(signal.SIGKILL)
    rank.close_pidfd()
