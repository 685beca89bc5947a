"""Opening the store where a plan says the ranks meet: at a master, an agent, a file, or nowhere."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiodist.credentials import Certificates, job_secret
from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError, StoreTimeoutError
from aiodist.mesh.interfaces import (
    choose_hosts,
    default_address,
    family_of,
    is_loopback,
    route_to,
)
from aiodist.mesh.rendezvous.agent import agent_client
from aiodist.mesh.rendezvous.assembly import assemble
from aiodist.mesh.rendezvous.plan import Master, Plan
from aiodist.mesh.rendezvous.watch import Opening, in_file, over_tcp, over_tcp_served
from aiodist.store import (
    FileStore,
    MemoryStore,
    PrefixStore,
    Store,
    TcpStore,
    TcpStoreServer,
    TorchStore,
    join,
)
from aiodist.store.addresses import resolve

_LOCAL_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


def _keep() -> None:
    """A store without sockets of its own."""


_TORCH_METHODS = ("set", "add", "check", "compare_set", "delete_key", "num_keys")


@dataclass
class Place:
    """An open store. ``where``: for messages. ``route``: a numeric address to be reached by.

    ``serves``: this rank keeps the store alive for the others. ``once``: the others lose it with
    the process that serves it, so meeting there may be tried anew. ``private``: strangers cannot
    read what is in it. ``watch``: where ranks can beat meanwhile, see `watch`.
    """

    store: Store
    where: str
    close: Callable[[], Awaitable[None]]
    route: str | None = None
    close_in_child: Callable[[], None] = _keep
    serves: bool = False
    once: bool = False
    private: bool = False
    watch: Opening | None = None
    join: Callable[[Store, int, int, Deadline], Awaitable[Store]] = join


async def open_place(plan: Plan, environ: Mapping[str, str], deadline: Deadline) -> Place:
    """The store of ``plan``. Raises DistStoreError or DistNetworkError; then nothing is open."""
    if plan.file is not None:
        file = await FileStore.open(plan.file, plan.rank, deadline)
        where, given_back = f"the file {plan.file}", file.close_in_child
        watch = in_file(plan.file, plan.rank)
        return Place(file, where, file.close, None, given_back, private=True, watch=watch)
    if plan.master is None:
        store = MemoryStore()
        return Place(store, "this process", store.close, route="127.0.0.1", private=True)
    if plan.master.agent:
        return await _at_agent(plan.master, environ, deadline)
    return await _at_master(plan, plan.master, environ, deadline)


def given_place(store: Any) -> Place:
    """A store that the caller made: ours, or one of torch's. It stays the caller's to close.

    Raises TypeError for anything else.
    """
    if isinstance(store, Store):
        return Place(store, "the store given", _nothing)
    if not all(callable(getattr(store, name, None)) for name in _TORCH_METHODS):
        raise TypeError(
            "store must be one of aiodist.store's or of torch.distributed's (TCPStore, FileStore, "
            f"HashStore), not {store!r}"
        )
    adapter = TorchStore(store)
    where = f"the {type(store).__name__} given"
    # It may outlive ranks: torchrun's agent serves the same one to the workers it starts anew.
    return Place(PrefixStore("aiodist", adapter), where, adapter.close, join=assemble)


async def _nothing() -> None:
    pass


async def _at_master(
    plan: Plan, master: Master, environ: Mapping[str, str], deadline: Deadline
) -> Place:
    addresses = await numeric_addresses(master, plan.one_host, environ, deadline)
    route = _routed(addresses, master)
    secret, certificates = job_secret(environ), Certificates.from_environ(environ)
    if plan.rank != 0:
        host = addresses[0] if len(addresses) == 1 else master.host
        try:
            client = await TcpStore.connect(
                host, master.port, deadline, secret=secret, certificates=certificates
            )
        except StoreTimeoutError as error:
            raise StoreTimeoutError(
                f"rank {plan.rank}: rank 0 never listened at {master} ({plan.source}): "
                f"{error.message}",
                **error.fields,
            ) from None
        watch = over_tcp(host, secret, certificates)
        given_back = client.close_in_child
        return Place(client, str(master), client.close, route, given_back, once=True, watch=watch)
    own = [address for address in addresses if _is_own(address)]
    where = str(master)
    if own == addresses and len(own) > 1:
        host = master.host
    elif own:
        host = route = next((a for a in own if family_of(a) == socket.AF_INET), own[0])
    else:
        # Behind address translation the host itself does not know the address others see.
        host = route = (choose_hosts(None, environ) or (default_address(),))[0]
        where = f"{host} (since {master} is no address of rank 0's own host), port {master.port}"
    # Everybody connected: the port is free for a next job, which then cannot meet this one.
    server = await TcpStoreServer.start(
        host,
        master.port,
        secret=secret,
        expected_clients=plan.size - 1,
        certificates=certificates,
    )
    # Where the address is another host's that passes connections on, it may pass on no second port.
    offered = over_tcp_served(host, secret, certificates) if own else None
    given_back = server.close_in_child
    return Place(server.store(), where, server.close, route, given_back, serves=True, watch=offered)


async def numeric_addresses(
    master: Master, one_host: bool, environ: Mapping[str, str], deadline: Deadline
) -> list[str]:
    """The master's addresses as this host sees them, in the system's order.

    Many hosts give their own name the address 127.0.1.1 or 127.0.0.1. Served there, nobody else
    would reach it: unless all ranks are on one host, the address that others know takes its place.
    """
    found = [str(address[0]) for _, address in await resolve(master.host, master.port, deadline)]
    local = master.host.lower() in _LOCAL_NAMES or master.host.lower().endswith(".localhost")
    if one_host or local or _is_numeric(master.host):
        return found
    if not any(is_loopback(address) for address in found):
        return found
    outward = (choose_hosts(None, environ) or (default_address(),))[0]
    others = [address for address in found if not is_loopback(address)]
    return others or [outward]


def _is_numeric(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host.partition("%")[0])
        except OSError:
            continue
        return True
    return False


def _routed(addresses: list[str], master: Master) -> str:
    """One that this host has a route to, IPv4 first: every rank then picks the same family."""
    routed = [address for address in addresses if route_to(address) is not None]
    if not routed:
        raise DistNetworkError(
            f"this host has no route to the master at {master} ({', '.join(addresses)}): check "
            "MASTER_ADDR and the network"
        )
    return min(routed, key=lambda address: family_of(address) != socket.AF_INET)


def _is_own(address: str) -> bool:
    """Whether this host has ``address``: a socket can be bound to it."""
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as probe:
        host, _, scope = address.partition("%")
        try:
            probe.bind((host, 0, 0, socket.if_nametoindex(scope)) if scope else (host, 0))
        except OSError:
            return False
    return True


async def _at_agent(master: Master, environ: Mapping[str, str], deadline: Deadline) -> Place:
    """torchrun's agent owns the port, with a torch TCPStore: be its client, as torch is."""
    addresses = await numeric_addresses(master, False, environ, deadline)
    route = _routed(addresses, master)
    loop = asyncio.get_running_loop()
    client = await loop.run_in_executor(None, partial(agent_client, master, deadline))
    adapter = TorchStore(client)
    store = PrefixStore(f"aiodist/{environ.get('TORCHELASTIC_RUN_ID', '')}", adapter)
    where = f"torchrun's store at {master}"
    # Not by counting: the agents of several nodes count attempts differently.
    return Place(store, where, adapter.close, route, join=assemble)
