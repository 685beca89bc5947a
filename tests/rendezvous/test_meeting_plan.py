"""Rank, size and meeting place from arguments, URLs and every launcher's environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aiodist.errors import InvalidUsageError
from aiodist.rendezvous.meeting_plan import AGENT, Master, MeetingPlan, plan, plan_with_store
from aiodist.rendezvous.slurm import job_port

PLAIN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"}
LOCAL = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
TORCHRUN = PLAIN | LOCAL | {"TORCHELASTIC_USE_AGENT_STORE": "True"}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_JOB_NODELIST": "node[01-04]",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-node7-5445@1",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
MASTER = {"MASTER_ADDR": "node7", "MASTER_PORT": "29500"}


def go(
    environ: dict[str, str], init_method: str | None = None, *, rank: int = -1, size: int = -1
) -> MeetingPlan:
    return plan(init_method, rank=rank, size=size, environ=environ)


def error(
    environ: dict[str, str], init_method: str | None = None, *, rank: int = -1, size: int = -1
) -> str:
    with pytest.raises(InvalidUsageError) as caught:
        go(environ, init_method, rank=rank, size=size)
    return str(caught.value)


@pytest.mark.parametrize("init_method", [None, "env://"])
def test_plain_environment(init_method: str | None) -> None:
    found = go(PLAIN, init_method)
    assert found == MeetingPlan(1, 4, None, "the environment", master=Master("node7", 29500))


def test_local_numbers_and_one_host() -> None:
    found = go(PLAIN | LOCAL)
    assert (found.local_rank, found.one_host) == (1, False)
    assert go(PLAIN | {"LOCAL_WORLD_SIZE": "4"}).one_host


def test_torchrun_with_its_agents_store() -> None:
    found = go(TORCHRUN)
    assert found.source == "torchrun"
    assert found.master == Master("node7", 29500, AGENT)


def test_torchrun_without_its_agents_store() -> None:
    assert go(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "False"}).master == Master("node7", 29500)


def test_a_url_with_the_agents_port_means_the_agents_store() -> None:
    ours = go(TORCHRUN, "tcp://node7:29500").master
    other = go(TORCHRUN, "tcp://node7:29501").master
    assert ours == Master("node7", 29500, AGENT)
    assert other == Master("node7", 29501)


def test_slurm() -> None:
    port = job_port("4711", "2")
    assert go(SLURM) == MeetingPlan(3, 8, 1, "Slurm", master=Master("node01", port), by_munge=True)
    assert go(SLURM | {"SLURM_STEP_NODELIST": "node[03-04]"}).master == Master("node03", port)
    assert go(SLURM | MASTER).master == Master("node7", 29500)


def test_a_step_on_one_node_is_one_host() -> None:
    step = {"SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}
    assert not go(SLURM | step).one_host
    assert go(SLURM | {"SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "8"}).one_host


def test_slurm_lacks() -> None:
    bare = {name: SLURM[name] for name in ("SLURM_PROCID", "SLURM_NTASKS")}
    message = error(bare)
    assert "SLURM_JOB_NODELIST, SLURM_JOB_ID are not set (ranks seem started by Slurm)" in message


@pytest.mark.parametrize(("environ", "name"), [(OPEN_MPI, "Open MPI"), (MPICH, "MPICH")])
def test_mpi_on_one_host_meets_at_a_private_file(
    environ: dict[str, str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = go(environ)
    assert (found.rank, found.size, found.local_rank, found.source) == (1, 2, 1, name)
    assert found.master is None
    assert found.file is not None
    assert found.file.parent.parent == tmp_path
    assert found.file.parent.stat().st_mode & 0o777 == 0o700
    assert str(os.getppid()) in found.file.name
    assert go(environ).file == found.file  # every rank names the same one


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "open directory"])
def test_mpi_does_not_meet_in_what_another_user_may_have_put_there(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = tmp_path / f"aiodist-{os.getuid()}"
    if kind == "file":
        place.write_bytes(b"")
    elif kind == "open directory":
        place.mkdir()
        place.chmod(0o755)
    else:
        place.symlink_to(tmp_path if kind == "link" else tmp_path / "nothing")
    assert f"{place} is not a directory of this user's alone" in error(OPEN_MPI)


def test_mpi_without_a_temporary_directory_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    message = error(OPEN_MPI)
    assert f"cannot meet in {tmp_path}/none/aiodist-{os.getuid()}: No such file" in message
    assert "TMPDIR" in message


@pytest.mark.parametrize("environ", [OPEN_MPI, MPICH])
def test_mpi_with_a_master(environ: dict[str, str]) -> None:
    found = go(environ | MASTER)
    assert (found.master, found.file) == (Master("node7", 29500), None)


@pytest.mark.parametrize(
    "several_hosts",
    [OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, MPICH | {"MPI_LOCALNRANKS": "1"}],
)
def test_mpi_on_several_hosts_needs_a_master(several_hosts: dict[str, str]) -> None:
    assert "MASTER_ADDR, MASTER_PORT are not set" in error(several_hosts)


def test_half_a_master_is_no_reason_for_a_file() -> None:
    assert "MASTER_PORT is not set" in error(MPICH | {"MASTER_ADDR": "node7"})


def test_mpi_inside_of_slurm_is_mpi() -> None:
    assert go(SLURM | OPEN_MPI | MASTER).source == "Open MPI"
    assert go(SLURM | MPICH | MASTER).source == "MPICH"


def test_srun_with_a_pmi_is_slurm() -> None:
    assert go(SLURM | {"PMI_RANK": "3", "PMI_SIZE": "8"}).source == "Slurm"
    assert go({"PMI_RANK": "1", "PMI_SIZE": "2"} | MASTER).source == "PMI"


def test_rank_and_world_size_win_over_the_launchers_names() -> None:
    found = go(SLURM | PLAIN | {"RANK": "0"})
    assert (found.rank, found.size, found.master) == (0, 4, Master("node7", 29500))
    assert go(SLURM | {"WORLD_SIZE": "4"}).size == 4


def test_arguments_win_over_the_environment() -> None:
    found = go(PLAIN, rank=0, size=2)
    assert (found.rank, found.size, found.master) == (0, 2, Master("node7", 29500))
    assert go(PLAIN | {"RANK": "abc"}, rank=0).rank == 0


def test_a_number_that_overrules_another_one_is_named_with_it() -> None:
    assert go(PLAIN, size=3).source == "the environment (but world_size=3 overrules WORLD_SIZE=4)"
    both = "the environment (but rank=0 overrules RANK=1 and world_size=2 overrules WORLD_SIZE=4)"
    assert go(PLAIN, rank=0, size=2).source == both
    assert go(SLURM, size=4).source == "Slurm (but world_size=4 overrules SLURM_NTASKS=8)"
    assert go(PLAIN | {"RANK": "abc"}, rank=0).source.endswith("(but rank=0 overrules RANK=abc)")
    assert go(PLAIN, "env://?world_size=3").source.endswith("world_size=3 overrules WORLD_SIZE=4)")
    assert go(PLAIN, rank=1, size=4).source == "the environment"
    assert go(SLURM | {"WORLD_SIZE": "4"}).source == "Slurm"


def test_urls_take_missing_values_from_the_environment() -> None:
    found = go(SLURM, "tcp://head:1234")
    assert (found.rank, found.size, found.local_rank) == (3, 8, 1)
    assert found.master == Master("head", 1234)
    assert found.source == "init_method tcp://head:1234"


def test_tcp_urls() -> None:
    assert go({}, "tcp://h:1?rank=1&world_size=2").rank == 1
    assert go({}, "tcp://h:1?rank=0", size=2).size == 2
    assert go({}, "tcp://[fd00::1]:9", rank=0, size=1).master == Master("fd00::1", 9)


def test_file_urls() -> None:
    assert go({}, "file:///a%20b/c", rank=0, size=1).file == Path("/a b/c")
    assert go({}, "file://localhost/a?rank=0&world_size=3").size == 3


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///runs/job#17", "/runs/job#17"),
        ("file:///runs#2/job?rank=0&world_size=1", "/runs#2/job"),
        ("file:///job%3F%23", "/job?#"),
    ],
)
def test_a_number_sign_belongs_to_the_name_of_the_file(url: str, path: str) -> None:
    query = {} if "rank" in url else {"rank": 0, "size": 1}
    assert go({}, url, **query).file == Path(path)


def test_env_urls_with_a_query() -> None:
    found = go(MASTER, "env://?rank=1&world_size=3")
    assert (found.rank, found.size) == (1, 3)


def test_brackets_around_an_ipv6_master() -> None:
    assert go(PLAIN | {"MASTER_ADDR": "[::1]"}).master == Master("::1", 29500)
    assert str(Master("::1", 5)) == "[::1]:5"


def test_a_single_rank_needs_no_master() -> None:
    assert go({}, rank=0, size=1) == MeetingPlan(0, 1, None, "the environment")
    assert go({"RANK": "0", "WORLD_SIZE": "1"}).master is None


def test_all_that_is_missing_in_one_message() -> None:
    message = error({})
    assert "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not set" in message
    for launcher in ("aiodist run", "torchrun", "mpiexec", "srun"):
        assert launcher in message
    assert "a process that is to be alone passes rank=0, world_size=1" in message
    assert "WORLD_SIZE, MASTER_PORT are not set" in error({"RANK": "0", "MASTER_ADDR": "h"})
    assert "variable MASTER_PORT is not set" in error({"MASTER_ADDR": "h"}, rank=0, size=2)
    assert "pass rank= and world_size=" in error({}, "tcp://h:1")


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"RANK": "abc"}, "RANK='abc' is not a whole number"),
        ({"WORLD_SIZE": "2.5"}, "WORLD_SIZE='2.5' is not a whole number"),
        ({"RANK": "4"}, "RANK=4 does not fit WORLD_SIZE=4: ranks go from 0 to 3"),
        ({"RANK": "-2"}, "RANK=-2 is impossible: ranks go from 0"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0 is impossible"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT=65536 is not a TCP port"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT='http' is not a whole number"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK='x' is not a whole number"),
    ],
)
def test_malformed_variables(changed: dict[str, str], part: str) -> None:
    assert part in error(PLAIN | changed)


@pytest.mark.parametrize("environ", [{}, {"RANK": "0"}, MASTER])
def test_numbers_are_looked_at_before_the_address(environ: dict[str, str]) -> None:
    assert "world_size=0 is impossible" in error(environ, rank=0, size=0)
    assert "world_size=0 is impossible" in error(environ, size=0)
    assert "rank=-2 is impossible" in error(environ, rank=-2)
    assert "rank=2 does not fit world_size=2" in error(environ, rank=2, size=2)


def test_minus_one_is_said_to_mean_nothing() -> None:
    for url in (None, "tcp://h:1"):
        assert "rank=-1 or world_size=-1 means that it is not given" in error({}, url, size=2)


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("ftp://host:1", "known scheme: use 'env://', 'tcp://host:port' or 'file:///path"),
        ("host:29500", "known scheme"),
        ("", "known scheme"),
        ("tcp://host", "lacks the port"),
        ("tcp://[::1]", "lacks the port"),
        ("tcp://:29500", "lacks the host"),
        ("tcp://host:0", "port=0 is not a TCP port"),
        ("tcp://host:x", "port='x' is not a whole number"),
        ("tcp://::1:29500", "goes in brackets"),
        ("tcp://[::1:5", "is not a URL"),
        ("file://", "lacks the path"),
        ("file://#x", "lacks the path"),
        ("file:///job?17", "write '%3F' for a '?' in the file's name"),
        ("file:///job?", "write '%3F' for a '?' in the file's name"),
        ("file:///job?world_size=2#1", "world_size='2#1' is not a whole number"),
        ("file://tmp/x", "three slashes, 'file:///tmp/x'"),
        ("env://host:1", "did you mean 'tcp://host:port'"),
        ("tcp://h:1?rank=0", "rank is given twice"),
        ("tcp://h:1?rank=x", "rank='x' is not a whole number"),
    ],
)
def test_malformed_urls(url: str, part: str) -> None:
    assert part in error({}, url, rank=0, size=2)


def test_wrong_types() -> None:
    with pytest.raises(TypeError, match="init_method must be a URL"):
        plan(b"env://", rank=0, size=1, environ={})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="rank must be an int, not '0'"):
        plan(None, rank="0", size=1, environ={})  # type: ignore[arg-type]


def test_a_store_needs_rank_and_world_size() -> None:
    found = plan_with_store(rank=1, size=2, environ=LOCAL)
    assert found == MeetingPlan(1, 2, 1, "the store given")
    for rank, size in ((-1, 2), (0, -1)):
        with pytest.raises(InvalidUsageError, match=r"needs rank= and world_size=.*rank=-1"):
            plan_with_store(rank=rank, size=size, environ=PLAIN)
    with pytest.raises(InvalidUsageError, match="rank=2 does not fit world_size=2"):
        plan_with_store(rank=2, size=2, environ={})
