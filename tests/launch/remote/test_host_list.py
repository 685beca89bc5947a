"""-H and --hostfile."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from aiodist.errors import InvalidUsageError
from aiodist.launch import JobSpec
from aiodist.launch.args import job_spec, run_parser
from aiodist.launch.remote.host_list import HostSlots, parse_hosts, read_hostfile, take_slots
from aiodist.launch.starting import start

HOSTS = [HostSlots("a", 2), HostSlots("me@b", 1), HostSlots("fe80::1", 3)]


def test_hosts_are_named_with_their_slots() -> None:
    assert parse_hosts("a:2, me@b,[fe80::1]:3") == HOSTS


def test_the_slots_of_a_host_that_is_named_twice_add_up() -> None:
    assert parse_hosts("a:2,b,a") == [HostSlots("a", 3), HostSlots("b", 1)]


def test_the_names_of_this_machine_are_one_host() -> None:
    """Otherwise its ranks would share local ranks, and thus GPUs."""
    hosts = parse_hosts(f"a,localhost:2,{socket.gethostname()}:3,127.0.0.1")
    assert hosts == [HostSlots("a", 1), HostSlots("localhost", 6)]


def test_an_ipv6_address_may_have_a_user() -> None:
    assert parse_hosts("me@[fe80::1]:2") == [HostSlots("me@fe80::1", 2)]


def test_a_hostfile_has_the_forms_of_other_launchers(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# of the lab\na slots=2\n\nme@b   # one slot\n[fe80::1]:3\n")
    assert read_hostfile(str(path)) == HOSTS


@pytest.mark.parametrize(
    "text",
    ["", ",", "a:0", "a:x", "a:", "fe80::1:3", "-oProxyCommand=x:2", "a b:2", "me@:2", "a slots=x"],
)
def test_an_invalid_host_is_refused(text: str) -> None:
    with pytest.raises(InvalidUsageError):
        parse_hosts(text)


def test_a_hostfile_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsageError, match="cannot be read: No such file"):
        read_hostfile(str(tmp_path / "none"))


def test_ranks_fill_the_first_hosts() -> None:
    assert take_slots(HOSTS, None) == tuple(HOSTS)
    assert take_slots(HOSTS, 3) == (HostSlots("a", 2), HostSlots("me@b", 1))
    with pytest.raises(InvalidUsageError, match="7 ranks need 7 slots, and the hosts have 6"):
        take_slots(HOSTS, 7)


def test_ranks_are_numbered_host_by_host() -> None:
    spec = JobSpec(program=("x",), hosts=(HostSlots("a", 2), HostSlots("b", 1)))
    assert spec.world_size == 3
    assert spec.places() == [(0, 0, 2, 0), (1, 1, 2, 0), (2, 0, 1, 1)]
    assert spec.rank_variables(spec.places()[2]) == {
        "RANK": "2",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "3",
        "LOCAL_WORLD_SIZE": "1",
    }


@pytest.mark.parametrize(
    "options",
    [
        ["--nnodes", "2", "--master_addr", "x"],
        ["--max_restarts", "1"],
        ["--trace", "x.json"],
        ["-n", "auto"],
        ["--hostfile", "x"],
    ],
)
def test_options_of_one_machine_are_refused_with_hosts(options: list[str]) -> None:
    with pytest.raises(InvalidUsageError):
        job_spec(run_parser().read(["-H", "a:2", *options, __file__]), {})


@pytest.mark.parametrize(
    ("options", "told"), [([], "1 process starts"), (["-H", "a:2,b:1"], "3 processes start")]
)
def test_a_count_behind_the_script_is_told_with_how_many_processes_start(
    options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(run_parser(), [*options, __file__, "-n", "9"], lambda args, spec: 0) == 0
    assert capsys.readouterr().err == (
        f"aiodist: -n stands after the script's name and goes to the script; {told}\n"
    )
