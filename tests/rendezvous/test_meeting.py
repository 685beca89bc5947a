"""Ranks of one loop that meet over TCP, files and given stores, meet again, and fail to meet."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from aiodist.deadline import Deadline
from aiodist.errors import (
    DistNetworkError,
    DistStoreError,
    InvalidUsageError,
    StoreTimeoutError,
)
from aiodist.rendezvous import Rendezvous, loss_watch, meeting, meeting_stores, rendezvous
from aiodist.rendezvous.meeting_plan import Master
from aiodist.store import MemoryStore, PrefixStore, Store, TcpStoreServer, is_waiting
from tests.limits import scaled, until
from tests.links.kernels import remove_ipv6


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


async def meet(
    init_method: str | None = None,
    rank: int = -1,
    size: int = -1,
    *,
    environ: dict[str, str] | None = None,
    store: Any = None,
    seconds: float = 20,
) -> Rendezvous:
    return await rendezvous(
        init_method,
        rank=rank,
        size=size,
        store=store,
        deadline=Deadline(seconds),
        environ=environ or {},
    )


async def all_meet(size: int, init_method: str | None = None, **more: Any) -> list[Rendezvous]:
    return await asyncio.gather(*(meet(init_method, rank, size, **more) for rank in range(size)))


async def close(ranks: Sequence[Rendezvous]) -> None:
    await asyncio.gather(*(found.close() for found in ranks))


async def check_shared_store(ranks: Sequence[Rendezvous]) -> None:
    """Every rank sees what every other one wrote, and nothing from before."""
    assert not await ranks[0].store.check(["greeting/0"])
    await asyncio.gather(*(r.store.set(f"greeting/{r.rank}", b"%d" % r.rank) for r in ranks))
    for found in ranks:
        for rank in range(len(ranks)):
            assert await found.store.get(f"greeting/{rank}", Deadline(20)) == b"%d" % rank


@pytest.mark.parametrize("size", [1, 2, 5])
async def test_tcp(size: int, port: int) -> None:
    ranks = await all_meet(size, f"tcp://127.0.0.1:{port}")
    assert [found.rank for found in ranks] == list(range(size))
    assert {found.size for found in ranks} == {size}
    assert {found.hosts for found in ranks} == {("127.0.0.1",)}
    await check_shared_store(ranks)
    await close(ranks)


async def test_environment(port: int) -> None:
    base = {"WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    ranks = await asyncio.gather(
        *(meet(environ=base | {"RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(3))
    )
    assert [(found.rank, found.local_rank) for found in ranks] == [(0, 0), (1, 1), (2, 2)]
    assert ranks[0].source == "the environment"
    assert ranks[1].host == "127.0.0.1"
    await check_shared_store(ranks)
    await close(ranks)


async def test_ranks_meet_on_a_host_whose_name_is_no_utf_8(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: os.fsdecode(b"h\xf6st"))
    ranks = await all_meet(2, f"tcp://127.0.0.1:{port}")
    await check_shared_store(ranks)
    await close(ranks)


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
async def test_ipv6() -> None:
    with socket.socket(socket.AF_INET6) as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("::1", 0))
        ranks = await all_meet(2, f"tcp://[::1]:{keeper.getsockname()[1]}")
        assert {found.hosts for found in ranks} == {("::1",)}
        await check_shared_store(ranks)
        await close(ranks)


async def test_a_single_rank_with_nothing_set() -> None:
    found = await meet(rank=0, size=1)
    assert (found.rank, found.size, found.host) == (0, 1, "127.0.0.1")
    await check_shared_store([found])
    await found.close()


async def test_file(tmp_path: Path) -> None:
    ranks = await all_meet(3, f"file://{tmp_path}/meet")
    assert {found.hosts for found in ranks} == {("127.0.0.1",)}
    await check_shared_store(ranks)
    await close(ranks)


async def test_mpi_launcher_on_one_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    base = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}
    ranks = await asyncio.gather(
        *(meet(environ=base | {"PMI_RANK": str(r), "MPI_LOCALRANKID": str(r)}) for r in range(2))
    )
    assert [(found.rank, found.source) for found in ranks] == [(0, "MPICH"), (1, "MPICH")]
    await check_shared_store(ranks)
    await close(ranks)


async def test_a_rank_that_waits_long_logs_its_meeting_place(
    port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(meeting, "_LONG_WAIT_SECONDS", 0)
    with pytest.raises(StoreTimeoutError):
        await meet(f"tcp://127.0.0.1:{port}", 1, 2, seconds=0.1)
    assert [record.getMessage() for record in caplog.records] == [
        f"rank 1 of 2, told by init_method tcp://127.0.0.1:{port}, has waited 0 s at "
        f"127.0.0.1:{port} for all ranks to meet, and still waits. See whether all were started, and "
        "told this place and this size."
    ]


async def test_a_rank_that_need_not_wait_long_says_nothing(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    await close(await all_meet(2, f"tcp://127.0.0.1:{port}"))
    assert caplog.records == []


async def test_a_store_of_ours_stays_open() -> None:
    store = MemoryStore()
    for _ in range(2):
        ranks = await all_meet(3, store=store)
        await check_shared_store(ranks)
        await close(ranks)
    await store.set("mine", b"still")


async def test_a_store_of_torchs(tmp_path: Path) -> None:
    dist = pytest.importorskip("torch.distributed")
    store = dist.FileStore(str(tmp_path / "torch"), 2)
    ranks = await all_meet(2, store=store)
    await check_shared_store(ranks)
    await close(ranks)
    store.set("mine", "still")
    assert store.get("mine") == b"still"


async def test_torchruns_agent_serves_the_store() -> None:
    dist = pytest.importorskip("torch.distributed")
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    base = {
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "job",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(agent.port),
    }
    for _ in range(2):
        ranks = await asyncio.gather(*(meet(environ=base | {"RANK": str(r)}) for r in range(2)))
        assert ranks[1].source == "torchrun"
        assert ranks[1].host == "127.0.0.1"
        await check_shared_store(ranks)
        await close(ranks)
        # Workers that were killed on their way leave a trace in the agent's store.
        with pytest.raises(StoreTimeoutError, match=r"torchrun's store at 127\.0\.0\.1"):
            await meet(environ=base | {"RANK": "1"}, seconds=scaled(0.5))


async def test_an_agent_that_says_nothing_ends_the_meeting_at_its_timeout() -> None:
    pytest.importorskip("torch.distributed")
    with socket.create_server(("127.0.0.1", 0)) as mute:  # the kernel accepts for it
        environ = {
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "RANK": "0",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(mute.getsockname()[1]),
        }
        async with asyncio.timeout(scaled(10)):
            with pytest.raises(DistNetworkError, match=r"it did not answer within 0\.1 s"):
                await meet(environ=environ, seconds=0.1)
    await until(lambda: "aiodist-agent" not in [each.name for each in threading.enumerate()])


@pytest.mark.parametrize("method", ["tcp", "file"])
async def test_again_at_the_same_place(method: str, port: int, tmp_path: Path) -> None:
    url = f"tcp://127.0.0.1:{port}" if method == "tcp" else f"file://{tmp_path}/meet"

    async def life(rank: int) -> None:
        for time in range(3):
            found = await meet(url, rank, 3)
            key = f"seen/{rank}"
            assert not await found.store.check([key])
            await found.store.set(key, b"%d" % time)
            for other in range(3):
                assert await found.store.get(f"seen/{other}", Deadline(20)) == b"%d" % time
            await found.close()

    await asyncio.gather(*(life(rank) for rank in range(3)))


async def test_a_fast_rank_that_meets_the_server_of_the_time_before(port: int) -> None:
    old = await TcpStoreServer.start("127.0.0.1", port)
    fast = asyncio.create_task(meet(f"tcp://127.0.0.1:{port}", 1, 2))
    await old.store().get("gen1/exchange/1", Deadline(20))
    await old.close()
    slow = await meet(f"tcp://127.0.0.1:{port}", 0, 2)
    ranks = [slow, await fast]
    await check_shared_store(ranks)
    await close(ranks)


async def test_a_server_that_goes_away_for_good(port: int) -> None:
    old = await TcpStoreServer.start("127.0.0.1", port)
    fast = asyncio.create_task(meet(f"tcp://127.0.0.1:{port}", 1, 2, seconds=0.5))
    await old.store().get("gen1/exchange/1", Deadline(20))
    await old.close()
    with pytest.raises(StoreTimeoutError, match=r"never listened at .* earlier, .* was lost"):
        await fast


async def test_two_of_one_rank(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_watch, "_END_SECONDS", 0.01)
    url = f"tcp://127.0.0.1:{port}"
    async with await TcpStoreServer.start("127.0.0.1", port) as server:
        first = asyncio.create_task(meet(url, 1, 3))
        await server.store().get("gen1/exchange/1", Deadline(20))
        with pytest.raises(InvalidUsageError, match=rf"come to 127\.0\.0\.1:{port} as rank 1, and"):
            await meet(url, 1, 3)
        assert not first.done()
        first.cancel()
        await asyncio.wait([first])


async def test_the_next_one_of_a_rank_that_gave_up(port: int) -> None:
    url = f"tcp://127.0.0.1:{port}"
    async with await TcpStoreServer.start("127.0.0.1", port) as old:
        first = asyncio.create_task(meet(url, 1, 2))
        await old.store().get("gen1/exchange/1", Deadline(20))
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(meet(url, 1, 2))
        await old.store().get("gen2/exchange/1", Deadline(20))
    await close(await asyncio.gather(meet(url, 0, 2), second))


async def test_the_next_one_of_a_rank_whose_meeting_ends_meanwhile() -> None:
    """The first one had all it waited for: its job goes on, and this one belongs to the next."""

    class EndsMeanwhile(MemoryStore):
        async def get(self, key: str, deadline: Deadline) -> bytes:
            await self.set("gen1/exchange/all", b"")
            raise StoreTimeoutError(f"nothing under {key}")

    store = EndsMeanwhile()
    await store.set("gen1/exchange/1", b"")
    place = meeting_stores.MeetingStore(store, "here", store.close, once=True)
    assert await is_waiting(PrefixStore("gen1", store), 1)
    await loss_watch.check_alone(place, PrefixStore("gen2", store), 1)
    assert not await is_waiting(PrefixStore("gen1", store), 1)


async def test_rank_0_may_come_last(port: int) -> None:
    early = asyncio.create_task(meet(f"tcp://127.0.0.1:{port}", 1, 2))
    await asyncio.sleep(0)
    ranks = [await meet(f"tcp://127.0.0.1:{port}", 0, 2), await early]
    await close(ranks)


async def test_closing_waits_for_clients_that_still_read(port: int) -> None:
    ranks = await all_meet(2, f"tcp://127.0.0.1:{port}")
    closing = asyncio.create_task(ranks[0].close())
    await ranks[1].store.set("late", b"1")
    assert await ranks[1].store.get("late", Deadline(20)) == b"1"
    assert not closing.done()
    await ranks[1].done()
    await closing
    await ranks[1].close()
    await ranks[1].close()


async def test_closing_does_not_wait_for_the_dead(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiodist.rendezvous.meeting._FAREWELL_SECONDS", 0.01)
    ranks = await all_meet(2, f"tcp://127.0.0.1:{port}")
    await ranks[0].close()
    await ranks[1].close()  # its server is gone, and that is no error


async def test_names_of_interfaces(port: int) -> None:
    environ = {"AIODIST_SOCKET_IFNAME": "lo"}
    ranks = await all_meet(2, f"tcp://127.0.0.1:{port}", environ=environ)
    assert ranks[1].hosts == ("127.0.0.1",)
    await close(ranks)
    with pytest.raises(InvalidUsageError, match="matches no interface"):
        await meet(f"tcp://127.0.0.1:{port}", 0, 2, environ={"AIODIST_SOCKET_IFNAME": "nonesuch0"})


async def test_absent_ranks_are_named(port: int) -> None:
    url = f"tcp://127.0.0.1:{port}"
    results = await asyncio.gather(
        meet(url, 0, 4, seconds=0.3), meet(url, 2, 4, seconds=5), return_exceptions=True
    )
    for error in results:
        assert isinstance(error, StoreTimeoutError)
        assert error.fields["ranks"] == (1, 3)
        assert "ranks 1, 3 of 4 did not arrive" in str(error)
        assert f"they meet at 127.0.0.1:{port}, told by init_method tcp://" in str(error)


async def test_rank_0_that_never_listens(port: int) -> None:
    with pytest.raises(StoreTimeoutError) as caught:
        await meet(f"tcp://127.0.0.1:{port}", 1, 2, seconds=0.1)
    assert f"rank 1: rank 0 never listened at 127.0.0.1:{port}" in str(caught.value)
    assert "refused" in str(caught.value)
    told = "".join(traceback.format_exception(caught.value))
    assert told.count("Traceback") == 1, "the message says it all; a chain of errors hides it"


async def test_ranks_that_were_told_different_sizes(port: int) -> None:
    url = f"tcp://127.0.0.1:{port}"
    results = await asyncio.gather(meet(url, 0, 2), meet(url, 1, 3), return_exceptions=True)
    assert [type(error) for error in results] == [InvalidUsageError] * 2
    assert f"rank 0: 2, rank 1: 3; this is rank 1, told 3 by init_method {url})" in str(results[1])


async def test_a_slow_rank_names_different_sizes_although_rank_0_has_left(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "_FAREWELL_SECONDS", 0.01)
    leave = meeting.leave

    async def leave_late(store: Store, rank: int, size: int, deadline: Deadline, name: str) -> bool:
        if rank:
            await asyncio.wait([rank_0])
        return await leave(store, rank, size, deadline, name=name)

    monkeypatch.setattr(meeting, "leave", leave_late)
    url = f"tcp://127.0.0.1:{port}"
    rank_0 = asyncio.create_task(meet(url, 0, 2))
    for coming in (meet(url, 1, 3, seconds=scaled(5)), rank_0):
        with pytest.raises(InvalidUsageError, match="different world sizes"):
            await coming


@pytest.mark.parametrize("medium", ["tcp", "file"])
async def test_a_rank_0_that_was_told_more_does_not_wait_for_ranks_that_never_come(
    medium: str, port: int, tmp_path: Path
) -> None:
    url = f"tcp://127.0.0.1:{port}" if medium == "tcp" else f"file://{tmp_path / 'store'}"
    told = {0: 4, 1: 3, 2: 3}
    started = monotonic()
    results = await asyncio.gather(
        *(meet(url, rank, size, seconds=60) for rank, size in told.items()), return_exceptions=True
    )
    assert monotonic() - started < 20
    for rank, error in enumerate(results):
        assert isinstance(error, InvalidUsageError)
        assert "different world sizes (rank 0: 4, rank " in str(error)  # those that were there
        assert f"this is rank {rank}, told {told[rank]} by" in str(error)


async def test_ranks_of_two_jobs_do_not_meet(port: int) -> None:
    # Two launchers that got one secret and one port: the store of the one may let in ranks of the other.
    url = f"tcp://127.0.0.1:{port}"
    runs = [{"AIODIST_RUN_ID": name} for name in ("one", "two", "")]
    met = (meet(url, rank, 3, environ=runs[rank]) for rank in range(3))
    results = await asyncio.gather(*met, return_exceptions=True)
    assert [type(error) for error in results] == [InvalidUsageError] * 3
    assert "(AIODIST_RUN_ID of rank 0: one, rank 1: two; this is rank 2)" in str(results[2])
    same = await all_meet(2, url, environ=runs[0])
    await asyncio.gather(*(each.close() for each in same))


async def test_a_port_in_use() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(DistStoreError, match=f"port {taken} is in use"):
            await meet(f"tcp://127.0.0.1:{taken}", 0, 2)


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_host_that_does_not_resolve(rank: int) -> None:
    with pytest.raises(DistStoreError, match=r"'no\.such\.host\.invalid' does not resolve"):
        await meet("tcp://no.such.host.invalid:29500", rank, 2)


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_host_without_a_route(
    rank: int, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting_stores, "route_to", lambda _: None)
    with pytest.raises(DistNetworkError, match="no route to the master at 127"):
        await meet(f"tcp://127.0.0.1:{port}", rank, 2)


async def test_a_refused_route_has_the_systems_reason(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(socket.socket, "connect", refused)
    with pytest.raises(
        DistNetworkError,
        match=r"no route .* \(127\.0\.0\.1: Operation not permitted\): check MASTER",
    ):
        await meet(f"tcp://127.0.0.1:{port}", 0, 2)


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_link_local_address_of_the_master_without_an_interface(
    rank: int, port: int
) -> None:
    with pytest.raises(DistNetworkError, match=r"\[fe80::1\].*as in fe80::1%eth0"):
        await meet(f"tcp://[fe80::1]:{port}", rank, 2)


async def test_ranks_meet_at_a_name_with_an_ipv6_address_on_a_kernel_without_ipv6(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def both(host: str, port: int, deadline: Deadline) -> list[tuple[int, Any]]:
        return [
            (socket.AF_INET6, ("::1", port, 0, 0)),
            (socket.AF_INET, ("127.0.0.1", port)),
        ]

    remove_ipv6(monkeypatch)
    monkeypatch.setattr(meeting_stores, "resolve", both)
    found = await all_meet(2, f"tcp://localhost:{port}")
    assert [each.host for each in found] == ["127.0.0.1", "127.0.0.1"]
    await asyncio.gather(*(each.close() for each in found))
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_an_init_method_and_a_store() -> None:
    with pytest.raises(InvalidUsageError, match="leave one out"):
        await meet("env://", 0, 1, store=MemoryStore())


async def test_something_that_is_no_store() -> None:
    with pytest.raises(TypeError, match="store must be one of"):
        await meet(rank=0, size=1, store={"not": "a store"})


async def test_a_cancelled_rendezvous_leaves_no_connection_open(port: int) -> None:
    waiting = asyncio.create_task(meet(f"tcp://127.0.0.1:{port}", 0, 2))
    client = await meeting_stores.TcpStore.connect("127.0.0.1", port, Deadline(20))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(DistStoreError):
        await client.get("key", Deadline(20))
    await client.close()


def fake_network(monkeypatch: pytest.MonkeyPatch, resolved: Sequence[str]) -> None:
    async def resolve(host: str, port: int, deadline: Deadline) -> list[tuple[int, Any]]:
        return [(0, (address, port)) for address in resolved]

    monkeypatch.setattr(meeting_stores, "resolve", resolve)
    monkeypatch.setattr(meeting_stores, "default_address", lambda: "10.0.0.5")


@pytest.mark.parametrize(
    ("host", "resolved", "one_host", "expected"),
    [
        ("node7", ["127.0.1.1"], False, ["10.0.0.5"]),  # Debian's own name for itself
        ("node7", ["127.0.1.1"], True, ["127.0.1.1"]),
        ("node7", ["127.0.1.1", "10.0.0.7"], False, ["10.0.0.7"]),
        ("node7", ["10.0.0.7"], False, ["10.0.0.7"]),
        ("localhost", ["::1", "127.0.0.1"], False, ["::1", "127.0.0.1"]),
        ("127.0.0.1", ["127.0.0.1"], False, ["127.0.0.1"]),
        ("a.localhost", ["127.0.0.1"], False, ["127.0.0.1"]),
    ],
)
async def test_a_name_that_means_loopback_only_here(
    host: str,
    resolved: list[str],
    one_host: bool,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_network(monkeypatch, resolved)
    found = await meeting_stores.numeric_addresses(Master(host, 1), one_host, {}, Deadline(20))
    assert found == expected


async def test_a_node_that_slurm_does_not_find_in_time_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()
    answers: list[str] = []

    async def unknown(*_: object) -> None:
        raise DistStoreError("the host name does not resolve")

    def asks_scontrol(name: str, environ: object, seconds: float) -> str:
        assert seconds <= 0.01
        over.wait(1)
        answers.append(name)
        return name

    monkeypatch.setattr(meeting_stores, "resolve", unknown)
    monkeypatch.setattr(meeting_stores, "address_of_node", asks_scontrol)
    try:
        with pytest.raises(DistStoreError, match="does not resolve"):
            await meeting_stores.numeric_addresses(Master("n7", 1), False, {}, Deadline(0.01))
        assert not answers
    finally:
        over.set()


async def test_a_master_that_is_not_this_host_is_served_where_this_host_is(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_network(monkeypatch, ["192.0.2.77"])
    monkeypatch.setattr(meeting_stores, "default_address", lambda: "127.0.0.1")
    monkeypatch.setattr(meeting_stores, "route_to", lambda _: "127.0.0.1")
    with pytest.raises(StoreTimeoutError, match="is no address of rank 0's own host"):
        await meet(f"tcp://192.0.2.77:{port}", 0, 2, seconds=0.05)


RANK = """
import asyncio, os
from aiodist.deadline import Deadline
from aiodist.rendezvous import rendezvous

async def main():
    for _ in range(2):
        found = await rendezvous(
            None, rank=-1, size=-1, store=None, deadline=Deadline(40), environ=os.environ
        )
        await found.store.set(f"pid/{found.rank}", str(os.getpid()).encode())
        pids = {await found.store.get(f"pid/{r}", Deadline(40)) for r in range(found.size)}
        assert len(pids) == found.size, pids
        await found.close()
    print(found.source, found.rank, found.local_rank, found.host)

asyncio.run(main())
"""


async def run_process(environ: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RANK, env=os.environ | environ, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode().strip()


async def test_processes_that_meet_twice(port: int) -> None:
    base = {"SLURM_NTASKS": "3", "SLURM_JOB_NODELIST": "localhost", "MASTER_PORT": str(port)}
    outputs = await asyncio.gather(
        *(run_process(base | {"SLURM_PROCID": str(r), "SLURM_LOCALID": str(r)}) for r in range(3))
    )
    assert outputs == [f"Slurm {rank} {rank} 127.0.0.1" for rank in range(3)]


async def test_processes_of_an_mpi_launcher(tmp_path: Path) -> None:
    # What these two have in common is this test's process, which stands for the launcher.
    base = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "TMPDIR": str(tmp_path)}
    outputs = await asyncio.gather(
        *(run_process(base | {"PMI_RANK": str(r), "MPI_LOCALRANKID": str(r)}) for r in range(2))
    )
    assert outputs == [f"MPICH {rank} {rank} 127.0.0.1" for rank in range(2)]
    assert list((tmp_path / f"aiodist-{os.getuid()}").iterdir()) == []  # removed by the last one
