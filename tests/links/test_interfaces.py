"""Which interface a rank is reached at."""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
from collections.abc import Sequence

import pytest

from aiodist.errors import DistNetworkError, InvalidUsageError
from aiodist.links import interfaces
from aiodist.links.interfaces import Interface, choose_hosts
from tests.links.kernels import REFUSALS, remove_ipv6

V4, V6 = socket.AF_INET, socket.AF_INET6
HERE = [
    Interface("lo", "127.0.0.1", V4),
    Interface("lo", "::1", V6),
    Interface("eth0", "10.0.0.5", V4),
    Interface("eth0", "fd00::5", V6),
    Interface("eth1", "10.1.0.5", V4),
    Interface("eth10", "10.2.0.5", V4),
    Interface("docker0", "172.17.0.1", V4),
    Interface("ib0", "fd01::5", V6),
]


def here() -> Sequence[Interface]:
    return HERE


def route(address: str) -> str | None:
    return "10.1.0.5" if address.startswith("10.") else "fd00::5"


def choose(
    spec: str, master: str | None = "10.1.0.9", variable: str = "AIODIST_SOCKET_IFNAME"
) -> tuple[str, ...] | None:
    return choose_hosts(master, {variable: spec}, interfaces=here, route=route)


def test_without_a_variable_the_route_to_the_master_decides() -> None:
    assert choose_hosts("10.1.0.9", {}, interfaces=here, route=route) == ("10.1.0.5",)
    assert choose_hosts("fd00::9", {}, interfaces=here, route=route) == ("fd00::5",)


def test_without_master_and_variable_nothing_is_decided() -> None:
    assert choose_hosts(None, {}, interfaces=here, route=route) is None


def test_a_route_to_oneself_is_advertised_as_the_masters_address() -> None:
    assert choose_hosts("10.1.0.5", {}, route=lambda _: "127.0.0.1") == ("10.1.0.5",)


def test_no_route_is_an_error_that_names_the_master() -> None:
    with pytest.raises(DistNetworkError, match=r"no route .* 10\.9\.9\.9"):
        choose_hosts("10.9.9.9", {}, route=lambda _: None)


@pytest.mark.parametrize(
    ("spec", "hosts"),
    [
        ("eth0", ("10.0.0.5",)),
        ("eth1", ("10.1.0.5",)),  # exact before prefix: not eth10 as well
        ("eth", ("10.0.0.5", "10.1.0.5", "10.2.0.5")),
        ("=eth10", ("10.2.0.5",)),
        ("eth1, eth0", ("10.1.0.5", "10.0.0.5")),
        ("eth0,eth", ("10.0.0.5", "10.1.0.5", "10.2.0.5")),  # each once
        ("ens,eth0", ("10.0.0.5",)),  # one value for hosts that differ
        ("^lo", ("10.1.0.5",)),  # the route's own interface is left
        ("^lo,eth1", ("10.0.0.5",)),
        ("^=eth1,lo", ("10.0.0.5",)),
        ("^eth,docker", ("127.0.0.1",)),
    ],
)
def test_names(spec: str, hosts: tuple[str, ...]) -> None:
    assert choose(spec) == hosts


def test_the_masters_family_decides_which_address() -> None:
    assert choose("eth0", "fd00::9") == ("fd00::5",)
    assert choose("eth0,ib0", None) == ("10.0.0.5", "fd01::5")


def test_gloos_variable_is_read_where_ours_is_not_set() -> None:
    assert choose("eth0", variable="GLOO_SOCKET_IFNAME") == ("10.0.0.5",)
    both = {"AIODIST_SOCKET_IFNAME": "eth1", "GLOO_SOCKET_IFNAME": "eth0"}
    assert choose_hosts("10.1.0.9", both, interfaces=here, route=route) == ("10.1.0.5",)


@pytest.mark.parametrize("spec", ["=eth", "wlan0", "ib0", "^lo,eth,docker", ","])
def test_no_match_lists_the_existing_interfaces(spec: str) -> None:
    with pytest.raises(InvalidUsageError) as caught:
        choose(spec)
    message = str(caught.value)
    assert f"AIODIST_SOCKET_IFNAME={spec!r} matches no interface with an IPv4 address" in message
    assert "eth0 (10.0.0.5)" in message
    assert "docker0 (172.17.0.1)" in message


def test_names_are_refused_where_interfaces_cannot_be_listed() -> None:
    with pytest.raises(InvalidUsageError, match="cannot be listed: unset it"):
        choose_hosts("10.1.0.9", {"AIODIST_SOCKET_IFNAME": "en0"}, interfaces=list, route=route)


def test_the_kernels_ipv6_table() -> None:
    table = (
        "fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n"
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fd000000000000000000000000000002 04 40 00 82     eth0\n"
    )
    assert interfaces._ipv6_addresses(table) == {"lo": ["::1"], "eth0": ["fd00::2"]}


@pytest.mark.skipif(sys.platform != "linux", reason="interfaces are listed on Linux only")
def test_this_hosts_loopback_is_listed() -> None:
    assert Interface("lo", "127.0.0.1", V4) in interfaces.list_interfaces()


def test_the_route_to_loopback_is_loopback() -> None:
    assert interfaces.route_to("127.0.0.1") == "127.0.0.1"
    assert choose_hosts("127.0.0.1", {}) == ("127.0.0.1",)


@pytest.mark.parametrize("number", REFUSALS, ids=errno.errorcode.get)
def test_a_system_without_ipv6_has_no_ipv6_routes(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    remove_ipv6(monkeypatch, number)
    assert interfaces.route_to("::1") is None
    assert interfaces.route_to("127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.ENETUNREACH])
def test_the_error_about_a_missing_route_has_the_systems_reason(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket.socket, "connect", refused)
    assert interfaces.route_to("10.9.9.9") is None
    reason = re.escape(os.strerror(number))
    with pytest.raises(DistNetworkError, match=rf"no route .* 10\.9\.9\.9: {reason}; check MASTER"):
        choose_hosts("10.9.9.9", {})


def test_a_lack_of_descriptors_is_no_missing_route(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", exhausted)
    with pytest.raises(DistNetworkError, match=r"route to 127\.0\.0\.1: Too many open.*ulimit -n$"):
        interfaces.route_to("127.0.0.1")


def test_the_default_address_is_one_of_this_hosts() -> None:
    with socket.socket(V6 if ":" in interfaces.default_address() else V4) as probe:
        probe.bind((interfaces.default_address(), 0))


def test_the_default_address_without_any_route(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "route_to", lambda _: None)
    assert interfaces.default_address(HERE) == "10.0.0.5"
    assert interfaces.default_address(HERE[:2]) == "127.0.0.1"
