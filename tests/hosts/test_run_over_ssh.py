"""``aiodist run -H`` over a real OpenSSH, on loopback and between network namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.hosts.conftest import RANK, Lab
from tests.hosts.sshd import processes_with

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(120)]

TWO = ("-H", "h1:2,h2:2")


def waiting(lab: Lab, launcher: subprocess.Popen[str], count: int) -> str:
    """Read the job's output until ``count`` ranks wait; return what came."""
    said, left = [], count
    assert launcher.stdout is not None
    while left:
        line = launcher.stdout.readline()
        assert line, lab.finish(launcher)
        said.append(line)
        left -= line.endswith("waiting\n")
    return "".join(said)


def parent(pid: int) -> int:
    """Return the process that has started ``pid``."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_ranks_of_two_hosts_are_one_world(lab: Lab) -> None:
    code, out, err = lab.run(*TWO, RANK)
    assert code == 0, err
    assert sorted(out.splitlines()) == [
        f"[{rank}] rank {rank} 4 {rank % 2} 2 127.0.0.1 10.0" for rank in range(4)
    ]


def test_a_hostfile_and_a_number_of_ranks(lab: Lab, tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("h1 slots=1\nh2:3\n")
    code, out, err = lab.run("--hostfile", str(hostfile), "-n", "3", RANK)
    assert code == 0, err
    places = [line.split()[4:6] for line in sorted(out.splitlines())]
    assert places == [["0", "1"], ["0", "2"], ["1", "2"]]


@pytest.mark.parametrize(
    ("order", "code", "cause"), [("fail", 7, "exit code 7"), ("kill", 137, "SIGKILL")]
)
def test_a_failed_rank_ends_the_job(lab: Lab, order: str, code: int, cause: str) -> None:
    found, _, err = lab.run(*TWO, RANK, order, "2")
    assert found == code, err
    assert f"rank 2 failed first: {cause} (local rank 0, pid " in err
    assert not lab.ranks()


def test_the_secret_is_on_no_command_line(lab: Lab) -> None:
    launcher = lab.start(*TWO, RANK, "wait")
    waiting(lab, launcher, 4)
    assert len(processes_with(lab.secret, ("environ",))) >= 4
    assert processes_with(lab.secret) == []


def test_ctrl_c_ends_the_job(lab: Lab) -> None:
    launcher = lab.start(*TWO, RANK, "wait")
    waiting(lab, launcher, 4)
    launcher.send_signal(signal.SIGINT)
    code, _, err = lab.finish(launcher)
    assert code == 130
    assert "SIGINT: all ranks are stopped" in err
    assert not lab.ranks()


def test_nothing_outlives_a_launcher_that_is_killed(lab: Lab) -> None:
    launcher = lab.start(*TWO, RANK, "wait")
    waiting(lab, launcher, 4)
    launcher.kill()
    lab.wait_until_none_is_left()


def test_nothing_outlives_an_agent_that_is_killed(lab: Lab) -> None:
    launcher = lab.start(*TWO, RANK, "wait")
    waiting(lab, launcher, 4)
    agents = processes_with("-m\0aiodist.launch.remote.host_agent")
    agent = next(parent(rank) for rank in lab.ranks() if parent(rank) in agents)
    os.kill(agent, signal.SIGKILL)
    code, _, err = lab.finish(launcher)
    assert code == 255, err
    assert "was lost, ssh ended by exit code" in err
    lab.wait_until_none_is_left()


def test_a_host_that_refuses_is_named(lab: Lab) -> None:
    code, out, err = lab.run("-H", "h1:1,127.0.0.2:1", RANK)
    assert (code, out) == (2, ""), err
    assert "no rank can be started on 127.0.0.2: ssh ended by exit code 255" in err
    lab.wait_until_none_is_left()


def test_ranks_of_four_hosts_meet_at_the_first(four_hosts: Lab) -> None:
    code, out, err = four_hosts.run("-H", "h1:2,h2:2,h3:2,h4:2", RANK)
    assert code == 0, err
    assert sorted(out.splitlines()) == [
        f"[{rank}] rank {rank} 8 {rank % 2} 2 10.111.0.1 36.0" for rank in range(8)
    ]


def test_a_cut_connection_ends_the_job_on_both_sides(four_hosts: Lab) -> None:
    """The ranks of the host that is cut off do not notice: they wait for no other rank."""
    launcher = four_hosts.start("-H", "h1:2,h2:2", RANK, "wait")
    waiting(four_hosts, launcher, 4)
    assert four_hosts.reached.network is not None
    four_hosts.reached.network.pull_cable(1)
    code, _, err = four_hosts.finish(launcher)
    assert code == 255, err
    assert "its host h2 was lost, it has been silent for 10 s" in err
    four_hosts.wait_until_none_is_left()
