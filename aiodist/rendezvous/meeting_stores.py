"""Open the store where a plan says the ranks meet: at a master, an agent, a file, or nowhere."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiodist.credentials import Certificates, job_secret
from aiodist.deadline import Deadline
from aiodist.errors import DistNetworkError, DistStoreError, StoreTimeoutError
from aiodist.links.interfaces import (
    address_of,
    choose_hosts,
    datagram_socket,
    default_address,
    family_of,
    is_loopback,
    route_to,
    without_route,
)
from aiodist.rendezvous.agent import connect_agent
from aiodist.rendezvous.assembly import assemble
from aiodist.rendezvous.meeting_plan import TORCH_GROUP, Master, MeetingPlan
from aiodist.rendezvous.munge import Munge, StepSecret
from aiodist.rendezvous.node_address import address_of_node
from aiodist.rendezvous.silence_watch import Opening, in_file, over_tcp, over_tcp_served
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
from aiodist.store.generation import Will
from aiodist.store.waiting import limit

_LOCAL_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


def _keep() -> None:
    """Do nothing: the store has no sockets of its own."""


_TORCH_METHODS = ("set", "add", "check", "compare_set", "delete_key", "num_keys")


@dataclass
class MeetingStore:
    """An open store.

    ``where``: for messages. ``route``: a numeric address by which this rank is reached. ``serves``:
    this rank keeps the store alive for the others. ``once``: the others lose the store with the
    process that serves it, so meeting there may be tried again. ``private``: strangers cannot read
    what is in it. ``watch``: where ranks can beat meanwhile, see `silence_watch`. ``secret``: the
    job's, empty if the store was opened without one. ``all_met``: releases the port; called when all
    ranks have arrived.
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
    secret: bytes = b""
    join: Callable[[Store, int, int, Deadline, Will], Awaitable[Store]] = join
    all_met: Callable[[], None] = _keep


async def open_place(
    plan: MeetingPlan, environ: Mapping[str, str], deadline: Deadline
) -> MeetingStore:
    """Open the store of ``plan``. Leaves nothing open if it raises: DistStoreError, DistNetworkError."""
    if plan.file is not None:
        file = await FileStore.open(plan.file, plan.rank, deadline)
        where, given_back = f"the file {plan.file}", file.close_in_child
        watch = partial(in_file, plan.file, plan.rank)
        return MeetingStore(file, where, file.close, None, given_back, private=True, watch=watch)
    if plan.master is None:
        store = MemoryStore()
        return MeetingStore(store, "this process", store.close, route="127.0.0.1", private=True)
    if plan.master.server:
        return await _at_torchs_store(plan, plan.master, environ, deadline)
    return await _at_master(plan, plan.master, environ, deadline)


def wrap_store(store: Any) -> MeetingStore:
    """Wrap a store that the caller made, of aiodist or torch. The caller closes it.

    Raises TypeError for other objects.
    """
    check_store(store)
    if isinstance(store, Store):
        return MeetingStore(store, "the store given", _nothing)
    adapter = TorchStore(store)
    where = f"the {type(store).__name__} given"
    # The store may outlive ranks: torchrun's agent serves the same one to restarted workers.
    return MeetingStore(PrefixStore("aiodist", adapter), where, adapter.close, join=assemble)


def check_store(store: Any) -> None:
    """Raise TypeError unless ``store`` is one of aiodist or torch."""
    if isinstance(store, Store):
        return
    if not all(callable(getattr(store, name, None)) for name in _TORCH_METHODS):
        raise TypeError(
            "store must be one of aiodist.store's or of torch.distributed's (TCPStore, FileStore, "
            f"HashStore), not {store!r}"
        )


async def _nothing() -> None:
    pass


async def _at_master(
    plan: MeetingPlan, master: Master, environ: Mapping[str, str], deadline: Deadline
) -> MeetingStore:
    addresses = await numeric_addresses(master, plan.one_host, environ, deadline)
    route = _routed(addresses, master)
    secret, certificates = job_secret(environ), Certificates.from_environ(environ)
    shared = None
    if plan.by_munge and not secret and certificates is None and plan.size > 1:
        shared = StepSecret(Munge.find(environ))
    if plan.rank != 0:
        host = addresses[0] if len(addresses) == 1 else master.host
        try:
            client = await TcpStore.connect(
                host,
                master.port,
                deadline,
                secret=secret,
                certificates=certificates,
                learn=None if shared is None else shared.learn,
            )
        except StoreTimeoutError as error:
            raise StoreTimeoutError(
                f"rank {plan.rank}: rank 0 never listened at {master} ({plan.source}): "
                f"{error.message}",
                **error.fields,
            ) from None
        secret = secret if shared is None else shared.value
        return MeetingStore(
            client,
            str(master),
            client.close,
            route,
            client.close_in_child,
            once=True,
            watch=partial(over_tcp, host, secret, certificates),
            secret=secret,
        )
    own = [address for address in addresses if _is_own(address)]
    where = str(master)
    if own == addresses and len(own) > 1:
        host = master.host
    elif own:
        host = route = next((a for a in own if family_of(a) == socket.AF_INET), own[0])
    else:
        # Behind address translation the host itself does not know the address that others see.
        host = route = (choose_hosts(None, environ) or (default_address(),))[0]
        where = f"{host} (since {master} is no address of rank 0's own host), port {master.port}"
    if shared is not None:
        await shared.make()
        secret = shared.value
    # Once all ranks have met the port is free for the next job, which cannot meet this one. Not before:
    # a rank that was cut off, or was cancelled, comes again.
    server = await TcpStoreServer.start(
        host,
        master.port,
        secret=secret,
        expected_clients=plan.size - 1,
        stays_open=True,
        certificates=certificates,
        seal=None if shared is None else shared.seal,
    )
    return MeetingStore(
        server.store(),
        where,
        server.close,
        route,
        server.close_in_child,
        serves=True,
        # If the address belongs to a host that forwards connections, it may forward no second port.
        watch=partial(over_tcp_served, host, secret, certificates) if own else None,
        secret=secret,
        all_met=server.stop_accepting,
    )


async def numeric_addresses(
    master: Master, one_host: bool, environ: Mapping[str, str], deadline: Deadline
) -> list[str]:
    """Return the master's addresses as this host sees them, in the system's order.

    Many hosts give their own name the address 127.0.1.1 or 127.0.0.1. A store served there is out
    of reach for other hosts. Unless all ranks are on one host, the address that others know takes
    its place.
    """
    try:
        known = await resolve(master.host, master.port, deadline)
    except StoreTimeoutError:
        raise
    except DistStoreError as unknown:
        try:
            async with asyncio.timeout(limit(deadline)):
                # The thread ends in time, too: the end of the loop waits for it.
                seconds = deadline.remaining()
                host = await asyncio.to_thread(address_of_node, master.host, environ, seconds)
        except TimeoutError:
            raise unknown from None
        if host == master.host:
            raise
        known = await resolve(host, master.port, deadline)
    found = [address_of(address) for _, address in known]
    local = master.host.lower() in _LOCAL_NAMES or master.host.lower().endswith(".localhost")
    if one_host or local or _is_numeric(master.host):
        return found
    if not any(is_loopback(address) for address in found):
        return found
    outward = (choose_hosts(None, environ) or (default_address(),))[0]
    others = [address for address in found if not is_loopback(address)]
    return others or [outward]


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _routed(addresses: list[str], master: Master) -> str:
    """Return an address that this host has a route to, IPv4 first: all ranks then pick the same family."""
    routed = [address for address in addresses if route_to(address) is not None]
    if not routed:
        advice = "check MASTER_ADDR and the network"
        if all(map(_is_link_local, addresses)):
            advice = (
                "a link-local address needs the interface that this host reaches it by, as in "
                "fe80::1%eth0; or let MASTER_ADDR be another address of that host"
            )
        raise DistNetworkError(
            f"this host has no route to the master at {master} "
            f"({', '.join(map(without_route, addresses))}): {advice}"
        )
    return min(routed, key=lambda address: family_of(address) != socket.AF_INET)


def _is_link_local(address: str) -> bool:
    return family_of(address) == socket.AF_INET6 and ipaddress.ip_address(address).is_link_local


def _is_own(address: str) -> bool:
    """Return whether this host has ``address``: a socket can be bound to it."""
    probe = datagram_socket(address)
    if probe is None:
        return False
    with probe:
        host, _, scope = address.partition("%")
        try:
            probe.bind((host, 0, 0, socket.if_nametoindex(scope)) if scope else (host, 0))
        except OSError:
            return False
    return True


async def _at_torchs_store(
    plan: MeetingPlan, master: Master, environ: Mapping[str, str], deadline: Deadline
) -> MeetingStore:
    """Connect as a client to the torch TCPStore of torchrun's agent or of torch's default group."""
    addresses = await numeric_addresses(master, plan.one_host, environ, deadline)
    route = _routed(addresses, master)
    adapter = TorchStore(await connect_agent(master, deadline))
    store = PrefixStore(f"aiodist/{environ.get('TORCHELASTIC_RUN_ID', '')}", adapter)
    # torch's store ends when rank 0 destroys torch's group, so rank 0 stays until all have met.
    serves = plan.rank == 0 and master.server == TORCH_GROUP
    # Do not count attempts: the agents of several nodes count them differently.
    where = f"{master.server} at {master}"
    return MeetingStore(store, where, adapter.close, route, serves=serves, join=assemble)
