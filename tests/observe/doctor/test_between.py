"""Hosts compared: by facts that are made up, and two "hosts" that really meet over loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import aiodist.commands.doctor as command
from aiodist.commands.main import main as aiodist
from aiodist.errors import DistStoreError, StoreTimeoutError
from aiodist.links.interfaces import default_address
from aiodist.observe.doctor import between
from aiodist.observe.doctor.between import Comparison, Dial, compare, judge_between
from aiodist.observe.doctor.finding import OK, PROBLEM, WARNING, worst
from aiodist.store import Store, exchange
from tests.limits import scaled
from tests.observe.doctor.test_host_checks import HEALTHY

OTHER = replace(HEALTHY, host="node1", identity="b", chosen=("10.1.0.1",))
GOOD = Dial(0, 1, "10.1.0.1:5", True, 0.001, 0.02, "")


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_equal_hosts_that_reach_each_other_are_well() -> None:
    findings = judge_between(Comparison((HEALTHY, OTHER), (GOOD,)))
    assert worst(findings) == OK
    assert "slowest round trip took 1.0 ms, 1 MiB there and back 20 ms" in findings[-1].what


def test_versions_that_differ() -> None:
    older = replace(OTHER, versions={**HEALTHY.versions, "aiodist": "0", "uvloop": ""})
    findings = judge_between(Comparison((HEALTHY, older, HEALTHY), ()))
    told = {finding.what: finding.level for finding in findings if finding.area == "versions"}
    assert told == {
        "aiodist differs: 1 on node 0, 2; 0 on node 1": PROBLEM,
        "uvloop differs: 0.2 on node 0, 2; none on node 1": WARNING,
    }


def test_an_mtu_that_differs() -> None:
    small = replace(OTHER, links=tuple(replace(link, mtu=1400) for link in OTHER.links))
    (found,) = (f for f in judge_between(Comparison((HEALTHY, small), ())) if f.level != OK)
    assert found.what == "the MTU differs: 1500 on node 0; 1400 on node 1"


def test_a_way_that_is_closed_and_one_on_which_data_gets_stuck() -> None:
    closed = replace(GOOD, connected=False, error="no answer within 5 s")
    stuck = replace(GOOD, source=1, target=0, error="no answer within 5 s")
    findings = judge_between(Comparison((HEALTHY, OTHER), (closed, stuck)))
    first, second = (finding for finding in findings if finding.level == PROBLEM)
    assert first.what.startswith("no way from node 0 (node0) to node 1 (node1) at 10.1.0.1:5")
    assert "open all TCP ports" in first.advice
    assert second.what.startswith("connected from node 1 (node1) to node 0 (node0)")
    assert "MTU" in second.advice


async def test_two_hosts_meet_and_dial_each_other(
    port: int, scaled: Callable[[float], float]
) -> None:
    async with asyncio.timeout(scaled(30)):
        first, second = await asyncio.gather(
            *(compare("127.0.0.1", port, 2, node, 20, {}) for node in range(2))
        )
    assert first == second
    assert [(dial.source, dial.target, dial.error) for dial in first.dials] == [
        (0, 1, ""),
        (1, 0, ""),
    ]
    assert all(dial.round_trip > 0 and dial.payload > 0 for dial in first.dials)
    told = [finding.what for finding in judge_between(first)]
    assert "nodes 0, 1 are on one host" in told


async def test_each_host_that_does_not_answer_has_its_time(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: dict[str, float] = {}

    async def noted(store: Store, *ranks: Any, name: str) -> list[bytes]:
        left[name] = ranks[3].remaining()
        return await exchange(store, *ranks, name=name)

    monkeypatch.setattr(between, "exchange", noted)
    monkeypatch.setattr(between, "_DIAL_SECONDS", 1000.0)
    async with asyncio.timeout(scaled(30)):
        await asyncio.gather(*(compare("127.0.0.1", port, 2, node, 20, {}) for node in range(2)))
    assert left["doctor/facts"] < 20
    assert left["doctor/dials"] > 1000


async def test_data_that_gets_stuck_does_not_keep_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of a server waits for its connections, from Python 3.12 on."""
    monkeypatch.setattr(between, "_PAYLOAD", 16 << 20)  # more than the kernel takes
    ended = asyncio.Event()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await between._echo(reader, writer)
        ended.set()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    async with server, asyncio.timeout(scaled(10)):
        with socket.socket() as dialing:
            dialing.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            dialing.setblocking(False)
            await loop.sock_connect(dialing, server.sockets[0].getsockname())
            await loop.sock_sendall(dialing, bytes(1 + between._PAYLOAD))
            dialing.shutdown(socket.SHUT_WR)  # it gives up
            await ended.wait()
            arrived = 0
            while data := await loop.sock_recv(dialing, 1 << 20):
                arrived += len(data)
            assert arrived <= between._PAYLOAD  # the rest was given up


async def test_a_host_that_does_not_come_is_named(port: int) -> None:
    with pytest.raises(StoreTimeoutError, match="rank 1 of 2 did not arrive"):
        await compare("127.0.0.1", port, 2, 0, 0.2, {})


async def test_the_hosts_are_examined_by_the_addresses_by_which_they_met(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many systems give a host's own name the address 127.0.1.1, which ranks do not use."""
    look_up = socket.getaddrinfo

    def own_name(host: str, *args: Any, **options: Any) -> Any:
        return look_up("127.0.1.1" if host == "node0" else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", own_name)
    async with asyncio.timeout(scaled(30)):
        told, _ = await asyncio.gather(
            *(compare("node0", port, 2, node, 20, {}) for node in range(2))
        )
    assert [host.chosen for host in told.hosts] == [(default_address(),)] * 2


async def test_a_master_without_an_address_is_told(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody_knows(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody_knows)  # no packet leaves for a test
    with pytest.raises(DistStoreError, match=r"'node0' does not resolve to .*\(.*not known\)"):
        await compare("node0", port, 2, 0, 20, {})


async def test_a_name_that_cannot_be_looked_up_is_told(port: int) -> None:
    with pytest.raises(DistStoreError, match=r"'node\.\.0' does not resolve to .*\(.*empty"):
        await compare("node..0", port, 2, 0, 20, {})


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    code = aiodist(["doctor"])
    told = capsys.readouterr().out
    assert "versions: Python" in told
    assert code == (1 if "\nproblem" in told else 0)


def test_quiet_prints_problems_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "look", lambda environ: replace(HEALTHY, shm_bytes=1))
    assert aiodist(["doctor", "-q"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("warning  shared memory: /dev/shm has 0 MiB")
    assert told.endswith("ranks will run; see the warnings\n")
    monkeypatch.setattr(command, "look", lambda environ: replace(HEALTHY, listen_error="refused"))
    assert aiodist(["doctor", "-q"]) == 1
    assert "ranks will fail here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("TRANSPORT", "smh,tcp", "names 'smh', which is no transport"),
        ("SHM_BYTES", "1G", "AIODIST_SHM_BYTES must be a number of bytes"),
        ("STREAMS", "many", "AIODIST_STREAMS must be a number from 1"),
        ("BUFFER_BYTES", "12", "AIODIST_BUFFER_BYTES must be a number of bytes"),
        ("INIT_TIMEOUT", "soon", "AIODIST_INIT_TIMEOUT must be a positive number"),
        ("LIVENESS_TIMEOUT", "-1", "is no liveness timeout"),
        ("ALLOW_PICKLE", "perhaps", "AIODIST_ALLOW_PICKLE"),
        ("RECORDER_SIZE", "0", "AIODIST_RECORDER_SIZE must be a number of operations"),
        ("TABLE", "/no/such/table", "AIODIST_TABLE=/no/such/table"),
        ("SECRET_FILE", "/no/such/file", "'/no/such/file' cannot be read"),
        ("TORCH_GROUP", "maybe", "AIODIST_TORCH_GROUP"),
    ],
)
def test_settings_that_ranks_would_refuse_are_problems(
    name: str,
    value: str,
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "look", lambda environ: HEALTHY)
    monkeypatch.setenv(f"AIODIST_{name}", value)
    assert aiodist(["doctor", "-q"]) == 1
    problem, conclusion = capsys.readouterr().out.splitlines()
    assert problem.startswith("problem  settings: ")
    assert told in problem
    assert conclusion == "ranks will fail here: see the problems"


def test_a_misspelt_setting_is_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "look", lambda environ: HEALTHY)
    monkeypatch.setenv("AIODIST_STREAM", "2")
    assert aiodist(["doctor", "-q"]) == 0
    assert "is AIODIST_STREAMS meant?" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["--nnodes", "2"], ["--master", "a:1"], ["--master", "a", "--nnodes", "2"], ["--master=:1"]],
)
def test_mistakes_get_a_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert aiodist(["doctor", *arguments]) == 2
    assert "--master" in capsys.readouterr().err
