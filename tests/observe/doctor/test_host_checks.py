"""What the doctor says of a host, by facts that are made up; and that a real look gives such facts."""

from __future__ import annotations

import errno
import os
import socket
import sys
from dataclasses import replace
from typing import Any

import pytest

from aiodist.errors import ProtocolError
from aiodist.links.interfaces import default_address
from aiodist.observe.doctor.facts import Facts, Link, decode_facts, look
from aiodist.observe.doctor.finding import OK, PROBLEM, WARNING, Finding, worst
from aiodist.observe.doctor.host_checks import examine

HEALTHY = Facts(
    host="node0",
    identity="a",
    system="Linux",
    cores=8,
    resolved=("10.0.0.1",),
    resolve_seconds=0.01,
    links=(
        Link("lo", "127.0.0.1", 65536, "unknown"),
        Link("eth0", "10.0.0.1", 1500, "up"),
        Link("eth1", "10.1.0.1", 1500, "up"),
    ),
    address="10.0.0.1",
    chosen=("10.0.0.1",),
    chosen_error="",
    listen_error="",
    unix_error="",
    shm_bytes=8 << 30,
    memfd_error="",
    open_files=(65536, 65536),
    python="3.12.1",
    versions={"aiodist": "1", "torch": "2", "numpy": "2", "msgpack": "1", "uvloop": "0.2"},
    is_closed=True,
)


@pytest.mark.parametrize("several", [False, True])
def test_a_healthy_host_is_well(several: bool) -> None:
    findings = examine(HEALTHY, several=several)
    assert worst(findings) == OK
    assert {finding.area for finding in findings} == {
        "versions",
        "names",
        "interfaces",
        "routes",
        "ports",
        "shared memory",
        "limits",
    }
    assert not any(finding.advice for finding in findings)


ILLS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"versions": {}}, WARNING, "torch is not installed", "pip install torch"),
    ({"versions": {"torch": "2"}}, WARNING, "uvloop is not installed", "pip install uvloop"),
    ({"resolved": ()}, WARNING, "does not resolve", "add '10.0.0.1 node0' to /etc/hosts"),
    ({"resolved": ("127.0.1.1", "::1")}, WARNING, "cannot reach", "use 10.0.0.1, not the name"),
    ({"resolved": ("fe80::1%eth0",)}, WARNING, "cannot reach", "use 10.0.0.1"),
    ({"resolve_seconds": 3.0}, WARNING, "took 3.0 s", "/etc/hosts"),
    ({"chosen": (), "chosen_error": "no route"}, PROBLEM, "no route", "AIODIST_SOCKET_IFNAME"),
    ({"chosen": ("127.0.0.1",)}, PROBLEM, "loopback", "to one of eth0, eth1"),
    ({"listen_error": "10.0.0.1: refused"}, PROBLEM, "10.0.0.1: refused", "firewall"),
    ({"unix_error": "EACCES"}, PROBLEM, "Unix socket: EACCES", "AIODIST_TRANSPORT to shm,tcp"),
    ({"memfd_error": "EPERM"}, WARNING, "EPERM", "sockets"),
    ({"shm_bytes": -1}, WARNING, "no /dev/shm", "tmpfs"),
    ({"shm_bytes": 64 << 20}, WARNING, "64 MiB", "--shm-size"),
    ({"open_files": (1024, 4096)}, WARNING, "1024 files", "ulimit -n 4096"),
    ({"open_files": (1024, 1024)}, WARNING, "1024 files", "--ulimit nofile=65536"),
    ({"open_files": (1024, -1)}, WARNING, "1024 files", "ulimit -n 65536"),
    ({"is_closed": False}, WARNING, "AIODIST_SECRET is not set", "openssl rand"),
]


@pytest.mark.parametrize(("changes", "level", "what", "advice"), ILLS)
def test_an_ill_is_found_and_something_can_be_done(
    changes: dict[str, Any], level: str, what: str, advice: str
) -> None:
    findings = examine(replace(HEALTHY, **changes), several=True)
    hits = [finding for finding in findings if what in finding.what]
    assert [finding.level for finding in hits] == [level]
    assert advice in hits[0].advice


def test_findings_between_hosts_are_not_reported_for_one_host() -> None:
    alone = replace(HEALTHY, resolved=("127.0.0.1",), chosen=("127.0.0.1",), is_closed=False)
    assert worst(examine(alone, several=False)) == OK


def test_ranks_on_one_link_may_have_link_local_addresses() -> None:
    findings = examine(replace(HEALTHY, chosen=("fe80::1%eth0",)), several=True)
    assert worst(findings) == OK


def test_a_host_name_that_the_resolver_cannot_encode_has_no_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "a" * 64)
    assert look({}).resolved == ()


def test_a_host_name_that_is_not_utf_8_can_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: os.fsdecode(b"h\xf6st"))
    assert look({}).host == "h?st"


def test_unlimited_files_are_enough() -> None:
    findings = examine(replace(HEALTHY, open_files=(-1, -1)), several=True)
    assert worst(findings) == OK


def test_a_real_look() -> None:
    facts = look(os.environ, ("127.0.0.1",))
    assert facts.chosen == ("127.0.0.1",)
    assert facts.address == default_address()  # by which other hosts may reach this one
    assert facts.chosen_error == facts.listen_error == facts.unix_error == facts.memfd_error == ""
    assert look(os.environ).chosen
    assert facts.versions["torch"]
    assert any(link.address == "127.0.0.1" for link in facts.links)
    assert decode_facts(facts.encode()) == facts


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere such sockets lie on disk")
@pytest.mark.parametrize("call", ["bind", "connect"])
def test_refused_unix_sockets_are_told_if_ranks_use_them(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = getattr(socket.socket, call)

    def refuse(sock: socket.socket, address: Any) -> None:
        if sock.family == socket.AF_UNIX:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        usual(sock, address)

    monkeypatch.setattr(socket.socket, call, refuse)
    for transports in ("", "shm,unix,tcp"):
        facts = look({"AIODIST_TRANSPORT": transports})
        assert (facts.unix_error, facts.listen_error) == ("[Errno 1] Operation not permitted", "")
    assert look({"AIODIST_TRANSPORT": "shm,tcp"}).unix_error == ""


def test_a_job_with_certificates_is_closed_without_a_secret() -> None:
    names = ("AIODIST_TLS_CERT", "AIODIST_TLS_KEY", "AIODIST_TLS_CA")
    assert look(dict.fromkeys(names, "file.pem")).is_closed
    assert not look({}).is_closed


def test_an_interface_that_is_not_there_is_told() -> None:
    facts = look({"AIODIST_SOCKET_IFNAME": "nosuch0"})
    assert facts.chosen == ()
    assert "matches no interface" in facts.chosen_error


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"links": [1]}'])
def test_facts_of_another_form_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_facts(data)


def test_a_finding_shows_its_advice_below() -> None:
    assert str(Finding(PROBLEM, "ports", "closed", "open them")) == (
        "problem  ports: closed\n         -> open them"
    )
    assert worst([]) == OK
