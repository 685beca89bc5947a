"""Ranks by an agent of this machine, which needs no ssh; ``make test-hosts`` goes over a real one."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aiodist.errors import DistNetworkError, InvalidUsageError
from aiodist.launch import JobSpec, output, run_job
from aiodist.launch.args import job_spec, run_parser
from aiodist.launch.outlets import OutputOptions
from aiodist.launch.output import Console
from aiodist.launch.process import Watchdog
from aiodist.launch.remote import agent_connection, host_agent
from aiodist.launch.remote.agent_connection import agent_command
from aiodist.launch.remote.agent_frames import GREETING, Frame, FrameKind, FrameReader, encode
from aiodist.launch.remote.agents import Agents, portable
from aiodist.launch.remote.host_list import HostSlots
from tests.limits import scaled, until

PR_SET_CHILD_SUBREAPER = 36


def test_frames_arrive_whole_however_the_stream_is_cut() -> None:
    data = encode(FrameKind.STDOUT, 3, b"text") + encode(FrameKind.EXITED, 3, status=-9)
    reader = FrameReader()
    found = [frame for byte in data for frame in reader.feed(bytes([byte]))]
    assert found[0] == Frame(FrameKind.STDOUT, 3, b"text")
    assert (found[1].kind, found[1].facts) == (FrameKind.EXITED, {"status": -9})


@pytest.mark.parametrize("data", [b"Last login: today", encode(FrameKind.PONG)[:5] + b"\xff" * 4])
def test_bytes_that_are_no_frame_are_an_error(data: bytes) -> None:
    with pytest.raises(DistNetworkError, match="no frame"):
        list(FrameReader().feed(data))


def test_variables_of_the_launchers_session_stay_there() -> None:
    own = {"HOME": "/root", "SSH_AUTH_SOCK": "x", "LC_ALL": "C", "_": "x", "AIODIST_HOST_ID": "a"}
    job = {"AIODIST_SECRET": "s", "PATH": "/bin", "HOMEPAGE": "x"}
    assert portable(own | job) == job


def test_variables_that_the_user_gives_reach_all_hosts(capfd: pytest.CaptureFixture[str]) -> None:
    command = ["-H", "localhost:1", "--env", "TMPDIR=/x", "--no-python", "printenv", "TMPDIR"]
    assert run_job(job_spec(run_parser().read(command), os.environ)) == 0
    assert capfd.readouterr().out == "[0] /x\n"


def test_ssh_gets_options_that_keep_it_from_asking() -> None:
    command = agent_command(HostSlots("me@b", 2), ["ssh", "-p", "22"])
    assert command[:3] == ["ssh", "-p", "22"]
    assert "-oBatchMode=yes" in command
    assert command[-2:] == ["me@b", f"exec {sys.executable} -P -m {host_agent.__name__}"]
    assert agent_command(HostSlots("b", 2), ["/opt/rsh"])[:2] == ["/opt/rsh", "b"]


@pytest.mark.slow
def test_output_and_exit_code_are_those_of_one_machine(sandbox, run_command) -> None:
    script = sandbox.script(
        "E = os.environ\n"
        "print(E['LOCAL_RANK'], E['WORLD_SIZE'], E['LOCAL_WORLD_SIZE'], E['MASTER_ADDR'],\n"
        "      E['OMP_NUM_THREADS'], E['MINE'], len(E['AIODIST_SECRET']), sys.argv[1:], flush=True)\n"
        "open('started' + RANK, 'w').write('x')\n"
        "while not all(os.path.exists(f'started{k}') for k in range(2)): time.sleep(0.01)\n"
        "if RANK == '1': print('bad', file=sys.stderr); sys.exit(7)\n"
        "time.sleep(60)\n"
    )
    hosts = ("-H", "localhost:3", "-n", "2")
    code, out, err = sandbox.run(*run_command, *hosts, script, "-x", env={"MINE": "5"})
    assert sorted(out.splitlines()) == [f"[{k}] {k} 2 2 127.0.0.1 1 5 64 ['-x']" for k in range(2)]
    assert code == 7
    assert "[1] bad" in err
    assert "rank 1 failed first: exit code 7 (local rank 1, pid " in err
    assert "then ended: rank 0 by SIGTERM" in err


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["launcher", "agent"])
def test_nothing_outlives_the_launcher_or_the_agent(dies, sandbox, run_command) -> None:
    script = sandbox.script(
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "import pathlib\n"
        "agent = os.getppid()\n"
        "pathlib.Path('tmp').write_text(f'{os.getpid()} {child.pid} {agent}')\n"
        "os.rename('tmp', 'pids')\n"
        "time.sleep(60)\n"
    )
    launcher = sandbox.start(*run_command, "-H", "localhost:1", script)
    (text,) = sandbox.wait_for("pids")
    rank, child, agent = map(int, text.split())
    os.kill(launcher.pid if dies == "launcher" else agent, signal.SIGKILL)
    sandbox.wait_dead(rank, child, agent)
    code, _, err = sandbox.finish(launcher)
    if dies == "agent":
        assert code == 255
        assert "its host localhost was lost, the agent ended by SIGKILL" in err


def test_an_agent_ends_when_its_launcher_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_agent, "SILENCE", 0.2)
    commands, ours = os.pipe()
    theirs, answers = os.pipe()
    try:
        host_agent.HostAgent(commands, answers).serve()
        assert os.read(theirs, 100) == GREETING
    finally:
        for descriptor in (commands, ours, theirs, answers):
            os.close(descriptor)


def test_an_agent_ends_in_order_when_both_its_streams_end_at_once() -> None:
    commands, ours = os.pipe()
    theirs, answers = os.pipe()
    os.close(ours)
    os.close(theirs)
    try:
        host_agent.HostAgent(commands, answers).serve()
    finally:
        os.close(commands)
        os.close(answers)


def test_an_agent_ends_in_order_when_its_answers_were_not_read() -> None:
    """Its streams are one socket where sshd makes no pipes, and the end of that is a reset."""
    ours, theirs = socket.socketpair()
    with ThreadPoolExecutor(1) as threads, theirs:
        answers = os.dup(theirs.fileno())
        agent = host_agent.HostAgent(theirs.fileno(), answers)
        serving = threads.submit(agent.serve)
        while agent._outgoing:
            time.sleep(0.001)
        ours.close()
        serving.result()
        os.close(answers)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_a_group_of_zombies_is_forgotten_once_it_is_empty() -> None:
    """Another group may get its number before the agent ends, and kills what is left."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # zombies of ranks are left to us
    commands, ours = os.pipe()
    theirs, answers = os.pipe()
    agent = host_agent.HostAgent(commands, answers)
    serving = asyncio.create_task(asyncio.to_thread(agent.serve))
    try:
        command = ["sh", "-c", "true & exit 0"]
        facts = {"command": command, "variables": {}, "local_rank": 0}
        os.write(ours, encode(FrameKind.PREPARE, folder=os.getcwd(), environment={}, port=None))
        os.write(ours, encode(FrameKind.START, 0, **facts))
        await until(lambda: 0 in agent._ranks and not agent._ranks[0].running and not agent._ended)
        rank = agent._ranks[0]
        assert not rank.group_gone
        await asyncio.to_thread(os.waitid, os.P_PGID, rank.pid, os.WEXITED)
        os.write(ours, encode(FrameKind.PING))
        await until(lambda: rank.group_gone)
    finally:
        os.close(ours)
        await serving
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        for descriptor in (commands, theirs, answers):
            os.close(descriptor)


def test_a_host_that_cannot_be_reached_is_named(sandbox, run_command) -> None:
    script = sandbox.script("")
    code, out, err = sandbox.run(*run_command, "--ssh", "false", "-H", "elsewhere", script)
    assert (code, out) == (2, "")
    assert err == "aiodist: no rank can be started on elsewhere: ssh ended by exit code 1\n"


def test_a_job_whose_hosts_cannot_be_reached_leaves_the_log_files_of_an_earlier_one(
    tmp_path: Path,
) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("of the job before")
    spec = JobSpec(
        program=("true",),
        hosts=(HostSlots("elsewhere", 1),),
        ssh=("false",),
        output=OutputOptions(log_dir=tmp_path),
    )
    with pytest.raises(DistNetworkError, match="no rank can be started on elsewhere"):
        run_job(spec)
    assert log.read_text() == "of the job before"


@pytest.mark.parametrize("is_left", [False, True], ids=["empty", "something left"])
def test_the_watchdog_forgets_an_ended_ssh_once_its_group_is_empty(is_left: bool) -> None:
    """Another group may get its number before the launcher ends."""
    console = Console(1, 2)
    ssh = ["sh", "-c", "sleep 60 > /dev/null 2>&1 < /dev/null &" if is_left else "exit 0"]
    with Watchdog() as watchdog, selectors.DefaultSelector() as selector:
        with Agents([HostSlots("elsewhere", 1)], ssh, console, watchdog) as agents:
            agents.connect(selector, {}, None)
            (connection,) = agents.connections
            while not connection.is_lost:
                for key, _ in selector.select():
                    key.data()
            agents.tick(time.monotonic())
            assert connection.is_announced == is_left
        assert connection.is_announced == is_left


@pytest.mark.parametrize("is_full", [True, False], ids=["a full pipe", "room"])
def test_a_signal_may_come_while_the_launcher_looks_after_a_pipe(is_full: bool) -> None:
    """Its handler sends to the agent as well."""

    class Interrupted(selectors.DefaultSelector):
        handler: Callable[[], None] | None = None

        def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
            found = dict(super().get_map())
            handler, self.handler = self.handler, None
            if handler is not None:
                handler()  # the caller has what was there before
            return found

    ssh = ["sh", "-c", "exec sleep 60" if is_full else "exec cat > /dev/null"]
    with (
        Watchdog() as watchdog,
        Interrupted() as selector,
        Agents([HostSlots("elsewhere", 1)], ssh, Console(1, 2), watchdog) as agents,
    ):
        agents.connect(selector, {}, None)
        (connection,) = agents.connections
        selector.handler = lambda: connection.send(FrameKind.SIGNAL, 0, number=2, group=False)
        folder = "x" * (1 << 20 if is_full else 1)
        connection.send(FrameKind.PREPARE, folder=folder, environment={}, port=None)
        assert selector.handler is None
        is_waiting = bool(connection._outgoing)
        assert is_waiting == (connection._commands.fileno() in selector.get_map())
        os.kill(connection.pid, signal.SIGKILL)


def test_a_signal_may_come_once_the_launcher_has_hung_up() -> None:
    ssh = ["sh", "-c", "exec cat > /dev/null"]
    with Watchdog() as watchdog, selectors.DefaultSelector() as selector:
        with Agents([HostSlots("elsewhere", 1)], ssh, Console(1, 2), watchdog) as agents:
            agents.connect(selector, {}, None)
            (connection,) = agents.connections
        connection.send(FrameKind.SIGNAL, 0, number=9, group=True)  # as its handler does


def test_all_agents_end_at_the_same_time(tmp_path: Path) -> None:
    """Those of many hosts that are cut off would else take as many times five seconds."""
    gone = tmp_path / "gone"
    is_first = f"until [ -e '{gone}' ]; do sleep 0.01; done"
    ssh = ["sh", "-c", f"cat > /dev/null; if [ $0 = a ]; then {is_first}; else > '{gone}'; fi"]
    hosts = [HostSlots("a", 1), HostSlots("b", 1)]
    with Watchdog() as watchdog, selectors.DefaultSelector() as selector:
        with Agents(hosts, ssh, Console(1, 2), watchdog) as agents:
            agents.connect(selector, {}, None)
        assert [each._process.returncode for each in agents.connections] == [0, 0]


def test_a_host_is_silent_only_if_it_was_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A launcher that was stopped for a while has asked nothing."""
    monkeypatch.setattr(agent_connection, "SILENCE", 0.1)
    ready = encode(FrameKind.READY, host="", address="", launcher="", port=1)
    (tmp_path / "ready").write_bytes(GREETING + ready)
    ssh = ["sh", "-c", f"cat '{tmp_path}/ready'; exec cat > /dev/null"]
    with (
        Watchdog() as watchdog,
        selectors.DefaultSelector() as selector,
        Agents([HostSlots("elsewhere", 1)], ssh, Console(1, 2), watchdog) as agents,
    ):
        agents.connect(selector, {}, None)
        (connection,) = agents.connections
        while not connection.is_ready:
            for key, _ in selector.select():
                key.data()
        time.sleep(0.15)
        agents.tick(time.monotonic())  # asks
        assert not connection.is_lost
        time.sleep(0.15)
        agents.tick(time.monotonic())
        assert connection.refusal == "it has been silent for 0.1 s"


@pytest.mark.slow
def test_agents_hear_of_the_launcher_while_it_waits_for_the_reader_of_its_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agent ends its ranks if the launcher is silent for half a minute."""
    monkeypatch.setattr(output, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(agent_connection, "PING_EVERY", 0.01)
    read_end, write_end = os.pipe()
    pinged_while_full = threading.Event()
    send = agent_connection.AgentConnection.send

    def send_and_note(
        connection: agent_connection.AgentConnection, kind: FrameKind, *rest: Any, **facts: Any
    ) -> None:
        send(connection, kind, *rest, **facts)
        if kind is FrameKind.PING and not select.select([], [write_end], [], 0)[1]:
            pinged_while_full.set()

    def read() -> tuple[bool, int]:
        was_pinged = pinged_while_full.wait(scaled(15))
        received = 0
        with open(read_end, "rb", buffering=0) as pipe:
            while chunk := pipe.read(1 << 16):
                received += chunk.count(b"x")
        return was_pinged, received

    monkeypatch.setattr(agent_connection.AgentConnection, "send", send_and_note)
    program = (sys.executable, "-c", "for _ in range(3000): print('x' * 100)")
    hosts = (HostSlots("localhost", 1),)
    with ThreadPoolExecutor(1) as threads:
        reader = threads.submit(read)
        try:
            code = run_job(
                JobSpec(program=program, hosts=hosts), stdout=write_end, stderr=write_end
            )
        finally:
            os.close(write_end)
        assert reader.result() == (True, 300_000)
    assert code == 0


def test_a_folder_that_the_host_lacks_is_refused() -> None:
    agent = subprocess.Popen(
        agent_command(HostSlots("localhost", 1), ["ssh"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    order = encode(FrameKind.PREPARE, folder="/no/such/folder", environment={}, port=None)
    out, _ = agent.communicate(order)
    (frame,) = FrameReader().feed(out.partition(GREETING)[2])
    assert frame.kind is FrameKind.REFUSED
    assert "No such file or directory: '/no/such/folder'" in frame.facts["why"]
    assert agent.returncode == 0


def test_a_working_directory_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> str:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "getcwd", gone)
    with (
        selectors.DefaultSelector() as selector,
        Watchdog() as watchdog,
        Agents([HostSlots("elsewhere", 1)], ["false"], Console(1, 2), watchdog) as agents,
        pytest.raises(InvalidUsageError, match="the working directory is gone"),
    ):
        agents.connect(selector, {}, None)
