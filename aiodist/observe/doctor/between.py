"""Compare hosts: each publishes its facts at the store, and dials every other as ranks would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter

from aiodist.deadline import Deadline
from aiodist.observe.doctor.facts import Facts, decode_facts, look
from aiodist.observe.doctor.finding import OK, PROBLEM, WARNING, Finding
from aiodist.rendezvous import rendezvous
from aiodist.store import exchange
from aiodist.transport.tcp import format_address, on_own_link

_DIAL_SECONDS = 5.0
_PAYLOAD = 1 << 20
"""Bytes of the trial in each direction: more than fits into the buffers of a path that drops packets."""

_SAME = frozenset({"aiodist"})
"""Versions that must be equal; differences of the others are warnings."""


@dataclass(frozen=True)
class Dial:
    """One host's attempt to reach another. Times in seconds; ``error``: "" if it worked.

    ``connected``: whether at least a connection was made.
    """

    source: int
    target: int
    address: str
    connected: bool
    round_trip: float
    payload: float
    error: str


@dataclass(frozen=True)
class Comparison:
    """The facts of all hosts by node rank, and all attempts."""

    hosts: tuple[Facts, ...]
    dials: tuple[Dial, ...]


async def compare(
    master: str, port: int, nodes: int, node: int, seconds: float, environ: Mapping[str, str]
) -> Comparison:
    """Meet the other hosts at ``master``:``port``, where node 0 listens. All of them must call it.

    Raises what ``init_process_group`` raises: StoreTimeoutError with the nodes that did not arrive,
    DistNetworkError, DistStoreError.
    """
    deadline = Deadline(seconds)
    met = await rendezvous(
        format_address(master, port),
        rank=node,
        size=nodes,
        store=None,
        deadline=deadline,
        environ=environ,
    )
    try:
        async with await asyncio.start_server(_echo, met.host, 0) as server:
            # Each host has a name of its own for the interface of a link-local address.
            address = [met.host.partition("%")[0], server.sockets[0].getsockname()[1]]
            mine = json.dumps([look(environ, met.hosts).encode().decode(), *address]).encode()
            told = await exchange(met.store, node, nodes, mine, deadline, name="doctor/facts")
            others = [json.loads(one) for one in told]
            tries = [
                await _dial(node, other, on_own_link(host, met.host), target_port)
                for other, (_, host, target_port) in enumerate(others)
                if other != node
            ]
            result = json.dumps([asdict(each) for each in tries]).encode()
            # Each host may have waited for the answers of all others until it gave up.
            dialled = deadline.later(_DIAL_SECONDS * nodes)
            results = await exchange(met.store, node, nodes, result, dialled, name="doctor/dials")
    finally:
        await met.close()
    return Comparison(
        tuple(decode_facts(facts.encode()) for facts, _, _ in others),
        tuple(Dial(**each) for result in results for each in json.loads(result)),
    )


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echo one byte, and then as much as ranks send in one part, until the other side closes."""
    try:
        async with asyncio.timeout(2 * _DIAL_SECONDS):
            writer.write(await reader.readexactly(1))
            writer.write(await reader.readexactly(_PAYLOAD))
            await reader.read()
    except (OSError, EOFError, TimeoutError):
        pass  # the other side reports the error
    finally:
        # A close would wait for data that got stuck, and the end of the server for the close.
        writer.transport.abort()


async def _dial(source: int, target: int, host: str, port: int) -> Dial:
    address = f"{host}:{port}"
    connected = False
    times = [0.0, 0.0]
    error = ""
    try:
        async with asyncio.timeout(_DIAL_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            connected = True
            try:
                for place, size in enumerate((1, _PAYLOAD)):
                    began = perf_counter()
                    writer.write(bytes(size))
                    await reader.readexactly(size)
                    times[place] = perf_counter() - began
            finally:
                writer.close()
    except TimeoutError:
        error = f"no answer within {_DIAL_SECONDS:g} s"
    except (OSError, EOFError) as failed:
        error = str(failed)
    return Dial(source, target, address, connected, times[0], times[1], error)


def judge_between(comparison: Comparison) -> list[Finding]:
    """Return the findings about the hosts together."""
    hosts = comparison.hosts
    return [*_versions(hosts), *_frames(hosts), *_neighbours(hosts), *_ways(comparison)]


def _versions(hosts: Sequence[Facts]) -> list[Finding]:
    found = []
    for name in ["Python", *dict.fromkeys(name for host in hosts for name in host.versions)]:
        versions: dict[str, list[int]] = {}
        for node, host in enumerate(hosts):
            version = host.python if name == "Python" else host.versions.get(name, "")
            versions.setdefault(version or "none", []).append(node)
        if len(versions) > 1:
            told = "; ".join(
                f"{version} on node {', '.join(map(str, nodes))}"
                for version, nodes in versions.items()
            )
            level = PROBLEM if name in _SAME else WARNING
            found.append(Finding(level, "versions", f"{name} differs: {told}", "install the same"))
    return found or [Finding(OK, "versions", "the same on all hosts")]


def _frames(hosts: Sequence[Facts]) -> list[Finding]:
    sizes: dict[int, list[int]] = {}
    for node, host in enumerate(hosts):
        for link in host.links:
            if link.address in host.chosen and link.mtu:
                sizes.setdefault(link.mtu, []).append(node)
    if len(sizes) < 2:
        return []
    told = "; ".join(f"{mtu} on node {', '.join(map(str, nodes))}" for mtu, nodes in sizes.items())
    return [
        Finding(
            WARNING,
            "interfaces",
            f"the MTU differs: {told}",
            "set the same MTU on the interfaces that ranks use, or large messages may get stuck",
        )
    ]


def _neighbours(hosts: Sequence[Facts]) -> list[Finding]:
    places: dict[str, list[int]] = {}
    for node, host in enumerate(hosts):
        places.setdefault(host.identity, []).append(node)
    return [
        Finding(OK, "hosts", f"nodes {', '.join(map(str, nodes))} are on one host")
        for nodes in places.values()
        if len(nodes) > 1
    ]


def _ways(comparison: Comparison) -> list[Finding]:
    found = []
    for dial in comparison.dials:
        if not dial.error:
            continue
        source, target = comparison.hosts[dial.source].host, comparison.hosts[dial.target].host
        way = f"node {dial.source} ({source}) to node {dial.target} ({target}) at {dial.address}"
        if dial.connected:
            what, advice = (
                f"connected from {way}, but data gets stuck: {dial.error}",
                "compare the MTU of all interfaces and switches on the way",
            )
        else:
            what, advice = (
                f"no way from {way}: {dial.error}",
                "open all TCP ports between the hosts (ranks listen at free ones), or name another "
                "interface in AIODIST_SOCKET_IFNAME",
            )
        found.append(Finding(PROBLEM, "routes", what, advice))
    if not found and comparison.dials:
        trip = max(dial.round_trip for dial in comparison.dials) * 1e3
        load = max(dial.payload for dial in comparison.dials) * 1e3
        told = (
            f"every host reaches every other; the slowest round trip took {trip:.1f} ms, 1 MiB "
            f"there and back {load:.0f} ms"
        )
        found.append(Finding(OK, "routes", told))
    return found
