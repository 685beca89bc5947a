import asyncio
import errno
import fcntl
import logging
import os
import stat
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager

import pytest

from aiodist.deadline import Deadline
from aiodist.errors import DistStoreError, StoreTimeoutError
from aiodist.store import FileStore, exchange, join
from aiodist.store.filelog import FileLog
from aiodist.store.participants import Participant
from tests.limits import scaled


def soon() -> Deadline:
    return Deadline(20)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


HOLDER = """
import asyncio, sys
from aiodist.store import FileStore

async def main():
    store = await FileStore.open(sys.argv[1], int(sys.argv[2]))
    await store.set("owner", b"child")
    for key in sys.argv[3:]:
        await store.set_will(key, b"adieu")
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await store.close()

asyncio.run(main())
"""


@asynccontextmanager
async def holder(path, rank, *wills):
    """Another process that holds ``rank``: leaves properly when its stdin ends."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(path), str(rank), *wills, stdin=PIPE, stdout=PIPE
    )
    try:
        assert await child.stdout.readline() == b"ready\n"
        yield child
        await child.communicate(b"")
    finally:
        if child.returncode is None:
            child.kill()
            await child.communicate(b"")


async def kill(child):
    child.kill()
    await child.wait()


async def test_file_is_private_and_removed_by_the_last_to_leave(path):
    one = await FileStore.open(path, 0)
    two = await FileStore.open(path, 1)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    await one.close()
    await one.close()
    assert path.exists()
    await two.close()
    assert not path.exists()


async def test_processes_meet_and_the_other_one_may_leave_last(path):
    async with await FileStore.open(path, 0) as store:
        waiting = asyncio.create_task(store.get("owner", soon()))
        async with holder(path, 1) as child:
            assert await waiting == b"child"
            await store.close()
            assert path.exists()
        assert child.returncode == 0
    assert not path.exists()


async def test_left_over_file_of_dead_processes_is_started_afresh(path, caplog):
    async with holder(path, 0) as child:
        await kill(child)
    async with await FileStore.open(path, 0) as store:
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.name == "aiodist.store"
        assert str(path) in record.getMessage()
        assert f"rank 0 (pid {child.pid})" in record.getMessage()
        assert not await store.check(["owner"])
        async with await FileStore.open(path, 1):  # the next rank joins, and clears nothing
            assert len(caplog.records) == 1


async def test_rank_held_by_a_live_process_is_an_error_at_once(path):
    async with holder(path, 0) as child:
        with pytest.raises(DistStoreError) as caught:
            await FileStore.open(path, 0, Deadline(300))
        for fact in ("rank 0", f"process {child.pid}", str(path)):
            assert fact in str(caught.value)
        async with await FileStore.open(path, 1) as store:
            assert await store.get("owner", soon()) == b"child"


async def test_dead_rank_of_a_job_whose_others_live(path):
    async with holder(path, 0) as dead, holder(path, 1) as living:
        await kill(dead)
        with pytest.raises(DistStoreError, match=rf"pid {dead.pid}.*rank 1 \(pid {living.pid}\)"):
            await FileStore.open(path, 0)


async def test_rank_recorded_on_another_boot(path):
    stranger = Participant("token", 0, 1234, "another boot", 1)
    log = FileLog(str(path))
    log.open()
    with log.locked(exclusive=True):
        log.begin()
        log.append("join", stranger.token, 0, stranger.pid, stranger.host, stranger.started)
    log.close()
    with pytest.raises(DistStoreError, match=r"rank 0 .*pid 1234 of another host.*delete the"):
        await FileStore.open(path, 0)
    async with await FileStore.open(path, 1):
        pass
    assert path.exists()  # the other host's process may live


async def test_two_initialisations_in_a_row_by_the_same_processes(path):
    async def rank_main(rank: int) -> list[list[bytes]]:
        seen, stores = [], []
        for round_ in range(3):
            base = await FileStore.open(path, rank)
            store = await join(base, rank, 3, soon())
            seen.append(await exchange(store, rank, 3, b"%d/%d" % (round_, rank), soon()))
            stores.append(base)
            if round_ == 1:
                await base.close()
        for base in stores:
            await base.close()
        return seen

    expected = [[b"%d/%d" % (k, r) for r in range(3)] for k in range(3)]
    assert await asyncio.gather(*map(rank_main, range(3))) == [expected] * 3
    assert not path.exists()


COUNTER = """
import asyncio, sys
from aiodist.store import FileStore

async def main():
    async with await FileStore.open(sys.argv[1], int(sys.argv[2])) as store:
        for _ in range(50):
            await store.add("counter", 1)

asyncio.run(main())
"""


async def test_counters_of_many_processes(path):
    async with await FileStore.open(path, 0) as store:
        children = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", COUNTER, str(path), str(r))
            for r in (1, 2, 3)
        ]
        assert [await child.wait() for child in children] == [0, 0, 0]
        assert await store.add("counter", 0) == 150


async def test_record_of_a_killed_writer_is_cut_off(path):
    async with await FileStore.open(path, 0) as one, await FileStore.open(path, 1) as two:
        await one.set("whole", b"1")
        with path.open("ab") as file:
            file.write(b"\x00\x00\x10\x00" + b"half" * 100)
        assert await two.get("whole", soon()) == b"1"
        with pytest.raises(StoreTimeoutError):
            await two.get("half", Deadline(0.01))
        await two.set("next", b"2")
        assert await one.get("next", soon()) == b"2"


async def test_file_removed_before_it_could_be_locked(path, monkeypatch):
    opened = FileLog.open

    def open_and_lose_it_once(log):
        opened(log)
        monkeypatch.setattr(FileLog, "open", opened)
        os.unlink(path)

    monkeypatch.setattr(FileLog, "open", open_and_lose_it_once)
    async with await FileStore.open(path, 0) as one, await FileStore.open(path, 1) as two:
        await one.set("k", b"v")
        assert await two.get("k", soon()) == b"v"


async def test_last_one_does_not_remove_another_jobs_file(path):
    async with await FileStore.open(path, 0):
        path.unlink()
        other = await FileStore.open(path, 0)
    assert path.exists()
    await other.close()
    assert not path.exists()


@pytest.mark.parametrize("content", [b"AIODIST-FILESTORE 1\nshort", b"AIO", b""])
async def test_file_cut_off_at_birth_is_begun_again(path, content):
    path.write_bytes(content)
    async with await FileStore.open(path, 0) as store:
        assert await store.num_keys() == 0


@pytest.mark.parametrize("record", [b"\x00\x00\x00\x02\x91\x01", b"\xff\xff\xff\xff"])
async def test_damaged_record(path, record):
    async with await FileStore.open(path, 0) as store:
        with path.open("ab") as file:
            file.write(record)
        with pytest.raises(DistStoreError, match=r"damaged; delete it"):
            await store.num_keys()


async def test_file_of_another_program_is_left_alone(path):
    path.write_bytes(b"my thesis")
    with pytest.raises(DistStoreError, match="no file of an aiodist store"):
        await FileStore.open(path, 0)
    assert path.read_bytes() == b"my thesis"


async def test_file_that_cannot_be_opened(tmp_path):
    with pytest.raises(DistStoreError, match=r"cannot open .*missing/store: No such file"):
        await FileStore.open(tmp_path / "missing" / "store", 0)
    with pytest.raises(DistStoreError, match="Is a directory"):
        await FileStore.open(tmp_path, 0)


async def test_file_started_afresh_by_others(path):
    async with await FileStore.open(path, 0) as store:
        log = FileLog(str(path))
        log.open()
        with log.locked(exclusive=True):
            log.begin()
        log.close()
        with pytest.raises(DistStoreError, match="started afresh"):
            await store.set("k", b"")


async def test_waiting_for_the_lock_neither_blocks_the_loop_nor_lasts_for_ever(path):
    async with await FileStore.open(path, 0) as store:
        log = FileLog(str(path))
        log.open()
        with log.locked(exclusive=True) as held:
            assert held
            with pytest.raises(DistStoreError, match="could not lock"):
                await FileStore.open(path, 1, Deadline(0.02))
            setting = asyncio.create_task(store.set("k", b"v"))
            await asyncio.sleep(0.005)
            assert not setting.done()
        log.close()
        await setting
        assert await store.get("k", soon()) == b"v"


async def test_close_fails_calls_under_way_and_later_ones(path):
    store = await FileStore.open(path, 0)
    call = asyncio.create_task(store.get("absent", Deadline.never()))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(DistStoreError, match="closed on this side"):
        await call
    with pytest.raises(DistStoreError, match="closed on this side"):
        await store.set("k", b"")


async def test_record_over_the_limit(path, monkeypatch):
    monkeypatch.setattr("aiodist.store.filelog.MAX_RECORD", 1000)
    async with await FileStore.open(path, 0) as store:
        with pytest.raises(DistStoreError, match="longer than the store takes"):
            await store.set("k", bytes(1000))
        await store.set("k", b"small")


async def test_the_living_carry_out_the_wills_of_the_dead(path):
    async with (
        holder(path, 1, "last words") as child,
        await FileStore.open(path, 0) as store,
        await FileStore.open(path, 2) as third,
    ):
        await third.set_will("third", b"lives")
        waiting = asyncio.create_task(store.get("last words", soon()))
        await kill(child)
        assert await waiting == b"adieu"
        assert not await store.check(["third"])
        await third.clear_will("third")
    assert not path.exists()


async def test_a_wait_ends_in_time_although_a_will_cannot_be_carried_out(path):
    async with holder(path, 1, "last words") as child, await FileStore.open(path, 0) as store:
        await kill(child)
        reader = FileLog(path)
        reader.open()
        with reader.locked(exclusive=False):  # as of a process that was stopped while it read
            async with asyncio.timeout(scaled(5)):
                with pytest.raises(StoreTimeoutError, match="last words"):
                    await store.get("last words", Deadline(0.05))
        assert await store.get("last words", soon()) == b"adieu"
        reader.close()


def test_a_handle_that_was_not_closed_goes_with_its_loop(path):
    async def main():
        return await FileStore.open(path, 0)

    store = asyncio.run(main())
    assert os.fstat(store._log._fd)
    del store  # and the fixture that looks for descriptors finds none


async def test_a_forked_childs_close_is_no_goodbye(path):
    async with await FileStore.open(path, 0) as other, await FileStore.open(path, 1) as store:
        store.close_in_child()
        assert store._log._fd < 0
        with pytest.raises(DistStoreError, match="closed on this side"):
            await store.set("k", b"v")
        await other.num_keys()
        assert store._me.token in other._log.present


async def test_a_relative_path_is_that_of_the_directory_where_it_was_opened(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    async with await FileStore.open(path.name):
        assert path.exists()
        monkeypatch.chdir("/")
    assert not path.exists(), "the last handle removes the file"


async def test_a_lock_that_cannot_be_given_back_is_an_error_of_the_store(path, monkeypatch):
    def flock(fd, mode):
        if mode == fcntl.LOCK_UN:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    async with await FileStore.open(path, 0) as store:
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", flock)
            with pytest.raises(
                DistStoreError, match=r"cannot use the store's file .* No locks avail"
            ):
                await store.set("k", b"v")


async def test_without_descriptors_a_file_store_says_to_raise_their_limit(path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(
            DistStoreError, match=r"cannot open .* Too many open files; .*ulimit -n$"
        ):
            await FileStore.open(path, 0)


async def test_a_relative_path_in_a_directory_that_is_gone_is_an_error_of_the_store(
    tmp_path, monkeypatch
):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(DistStoreError, match="cannot open the store's file store: No such file"):
        await FileStore.open("store")
    monkeypatch.chdir(tmp_path)
