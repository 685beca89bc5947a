"""Judge the facts of one host."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from aiodist.links.interfaces import IFNAME_VARIABLES, is_loopback
from aiodist.observe.doctor.facts import Facts
from aiodist.observe.doctor.finding import OK, PROBLEM, WARNING, Finding

_SLOW_NAME = 1.0
_FEW_FILES = 4096
_SMALL_SHM = 1 << 30


def examine(facts: Facts, *, several: bool) -> list[Finding]:
    """Return the findings about a host. ``several``: the job has ranks on other hosts too."""
    return [
        *_versions(facts),
        *_names(facts, several=several),
        *_network(facts, several=several),
        *_memory(facts),
        *_limits(facts),
        *_secret(facts, several=several),
    ]


def _versions(facts: Facts) -> Iterator[Finding]:
    told = ", ".join(f"{name} {version}" for name, version in facts.versions.items() if version)
    yield Finding(
        OK, "versions", f"Python {facts.python}, {told}; {facts.system}, {facts.cores} cores"
    )
    if not facts.versions.get("torch"):
        yield Finding(
            WARNING,
            "versions",
            "torch is not installed",
            "only numpy arrays can travel; pip install torch",
        )
    if not facts.versions.get("uvloop"):
        yield Finding(
            WARNING,
            "versions",
            "uvloop is not installed: coroutine functions run on asyncio's own loop, which is slower",
            "pip install uvloop",
        )


def _names(facts: Facts, *, several: bool) -> Iterator[Finding]:
    name = facts.host
    outward = [address for address in facts.resolved if not _is_local(address)]
    if not facts.resolved:
        yield Finding(
            WARNING,
            "names",
            f"the host's own name {name!r} does not resolve",
            f"use the address {facts.address} as MASTER_ADDR, or add '{facts.address} {name}' to "
            "/etc/hosts",
        )
    elif not outward:
        yield Finding(
            WARNING if several else OK,
            "names",
            f"{name} means {', '.join(facts.resolved)} here, which other hosts cannot reach",
            f"use {facts.address}, not the name, as MASTER_ADDR" if several else "",
        )
    else:
        yield Finding(OK, "names", f"{name} is {', '.join(outward)}")
    if facts.resolve_seconds > _SLOW_NAME:
        yield Finding(
            WARNING,
            "names",
            f"looking up {name} took {facts.resolve_seconds:.1f} s",
            "name the host in /etc/hosts, or use addresses",
        )


def _network(facts: Facts, *, several: bool) -> Iterator[Finding]:
    for link in facts.links:
        facts_of_link = (
            f"{link.name} {link.address}, MTU {link.mtu}, {link.state or 'state unknown'}"
        )
        yield Finding(OK, "interfaces", facts_of_link)
    if facts.chosen_error:
        yield Finding(
            PROBLEM, "routes", facts.chosen_error, f"check {IFNAME_VARIABLES[0]} and MASTER_ADDR"
        )
        return
    yield Finding(OK, "routes", f"ranks use {', '.join(facts.chosen)}")
    outward = {link.name for link in facts.links if not _is_local(link.address)}
    if several and all(map(is_loopback, facts.chosen)):
        yield Finding(
            PROBLEM,
            "routes",
            "ranks here would be known by a loopback address, which other hosts cannot reach",
            f"set MASTER_ADDR to node 0's address on the network, or {IFNAME_VARIABLES[0]} to one "
            f"of {', '.join(sorted(outward)) or 'its interfaces (it has none)'}",
        )
    elif several and len(outward) > 1:
        yield Finding(
            OK,
            "routes",
            f"several interfaces lead outward ({', '.join(sorted(outward))}): the one on the way to "
            f"the master is used unless {IFNAME_VARIABLES[0]} names others",
        )
    if facts.listen_error:
        yield Finding(
            PROBLEM,
            "ports",
            f"a rank cannot listen and be reached at {facts.listen_error}",
            "check the interface and the host's firewall",
        )
    else:
        yield Finding(OK, "ports", "ranks can listen at free ports there")
    if facts.unix_error:
        yield Finding(
            PROBLEM,
            "Unix sockets",
            f"a rank cannot listen and be reached at a Unix socket: {facts.unix_error}",
            "set AIODIST_TRANSPORT to shm,tcp (shm,tls with certificates) on all ranks",
        )


def _memory(facts: Facts) -> Iterator[Finding]:
    if facts.memfd_error:
        yield Finding(
            WARNING,
            "shared memory",
            f"anonymous shared memory does not work: {facts.memfd_error}",
            "ranks of this host will use sockets between each other",
        )
    else:
        yield Finding(OK, "shared memory", "memfd_create works")
    if facts.shm_bytes < 0:
        yield Finding(
            WARNING,
            "shared memory",
            "there is no /dev/shm",
            "data loaders with workers need it: mount a tmpfs there",
        )
    elif facts.shm_bytes < _SMALL_SHM:
        yield Finding(
            WARNING,
            "shared memory",
            f"/dev/shm has {facts.shm_bytes >> 20} MiB, which data loaders with workers soon fill",
            "in a container: docker run --shm-size=8g, or --ipc=host",
        )
    else:
        yield Finding(OK, "shared memory", f"/dev/shm has {facts.shm_bytes >> 20} MiB")


def _limits(facts: Facts) -> Iterator[Finding]:
    soft, hard = facts.open_files
    if 0 <= soft < _FEW_FILES:
        most = "unlimited" if hard < 0 else str(hard)
        if soft == hard:
            advice = (
                f"only an administrator may raise it (the most here: {most}): nofile in "
                "/etc/security/limits.conf; in a container: docker run --ulimit nofile=65536"
            )
        else:
            wanted = 65536 if hard < 0 else min(hard, 65536)
            advice = f"ulimit -n {wanted} before the start (the most here: {most})"
        yield Finding(
            WARNING,
            "limits",
            f"a process may open {soft} files; a rank needs up to two sockets for each other rank",
            advice,
        )
    else:
        yield Finding(
            OK, "limits", f"a process may open {'any number of' if soft < 0 else soft} files"
        )


def _secret(facts: Facts, *, several: bool) -> Iterator[Finding]:
    if several and not facts.is_closed:
        yield Finding(
            WARNING,
            "secret",
            "AIODIST_SECRET is not set: any process that reaches the ports can join the job",
            "set the same long random value on all hosts, such as from: openssl rand -hex 32",
        )


def _is_local(address: str) -> bool:
    if is_loopback(address):
        return True
    return ipaddress.ip_address(address.partition("%")[0]).is_link_local
