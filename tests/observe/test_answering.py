"""A rank answers as long as its world lives, and no longer."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

import pytest

import aiodist as dist
from aiodist.groups.world import World, current_world, use_world
from aiodist.observe import server
from aiodist.observe.answering import SignalHandler, answer_here, heed_signal
from aiodist.observe.asking import jobs_here
from aiodist.observe.observer import DUMP_VARIABLE
from aiodist.observe.query_protocol import ask_here
from aiodist.observe.server import Server, socket_name
from tests.limits import until
from tests.observe.test_query_protocol import observer


def answers(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())


async def test_a_rank_that_comes_later_answers_on_its_host() -> None:
    late = observer(1)
    before = signal.getsignal(signal.SIGUSR1)
    try:
        answer_here(late)
        (place,) = jobs_here()[late.identity.job]
        assert place.rank == 1
    finally:
        late.close()
        signal.signal(signal.SIGUSR1, before)
    assert late.identity.job not in jobs_here()
    answer_here(None)


async def test_a_rank_whose_stderr_has_no_reader_answers_after_a_signal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Unread:
        def write(self, text: str) -> NoReturn:
            raise BrokenPipeError

    before = signal.getsignal(signal.SIGUSR1)
    asked = observer(1)
    try:
        answer_here(asked)
        (place,) = jobs_here()[asked.identity.job]
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", Unread())
            asked.signalled()
            await until(lambda: "a signal to this rank has no effect" in caplog.text)
        assert await asyncio.to_thread(ask_here, place.name, {"ask": "ranks"}, 10.0)
    finally:
        asked.close()
        signal.signal(signal.SIGUSR1, before)


async def test_a_reason_that_is_noted_while_others_are_obeyed_is_kept() -> None:
    asked = observer(0)
    answering = Server(asked, None)
    try:
        note = answering._signalled.append  # of a thread that is about to call it
        answering._handle_signals()
        note("a failure")
        assert list(answering._signalled) == ["a failure"]
    finally:
        answering.close()


async def test_a_rank_answers_while_it_asks_others_for_their_dumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scaled: Callable[[float], float]
) -> None:
    """The other ranks may have failed at the same time, and ask this one."""
    monkeypatch.setattr(server, "QUESTION_SECONDS", scaled(30))
    before = signal.getsignal(signal.SIGUSR1)
    failed = observer(0, environ={DUMP_VARIABLE: str(tmp_path)})
    other = failed.all_ranks[1]
    try:
        answer_here(failed)
        (place,) = jobs_here()[failed.identity.job]
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stopped:
            stopped.bind("\0" + socket_name(os.geteuid(), other.job, other.rank, other.pid))
            stopped.listen()
            failed.failed(dist.CollectiveTimeoutError("a timeout"), here=True)
            asking, _ = await asyncio.to_thread(stopped.accept)
            with asking:
                assert await asyncio.to_thread(ask_here, place.name, {"ask": "ranks"}, scaled(5))
    finally:
        failed.close()
        signal.signal(signal.SIGUSR1, before)


async def test_handlers_of_several_worlds_follow_each_other() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    one, two = observer(0), observer(1)
    try:
        answer_here(one)
        answer_here(two)
        second = signal.getsignal(signal.SIGUSR1)
        assert isinstance(second, SignalHandler)
        assert second.observer is two
        assert second.before.observer is one
        two.close()
        assert second.observer is None
        heed_signal(one)
        third = signal.getsignal(signal.SIGUSR1)
        assert isinstance(third, SignalHandler)
        assert third.before is second.before  # the one that is over was left out
    finally:
        one.close()
        two.close()
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_is_not_taken_from_the_program() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        heed_signal(None)
        asyncio.run(_begin_and_end())
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


async def _begin_and_end() -> None:
    one = observer(0)
    answer_here(one)
    one.close()


def test_the_thread_of_a_world_that_was_not_closed_ends_with_it(
    scaled: Callable[[float], float],
) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    name = "aiodist answers for rank 0"

    def live() -> None:
        use_world(World())

        async def main() -> None:
            await dist.init_process_group(rank=0, world_size=1)
            assert answers(name)
            assert current_world().observer is not None

        asyncio.run(main())

    try:
        thread = threading.Thread(target=live)  # with a context, and so a world, of its own
        thread.start()
        thread.join()
        del thread  # from Python 3.14 on a thread that has ended keeps its context
        limit = monotonic() + scaled(10)
        while answers(name) and monotonic() < limit:
            # More than once: the answering thread, which has only just begun, may look at the world.
            gc.collect()
            for each in threading.enumerate():
                if each.name == name:
                    each.join(0.05)
        assert not answers(name)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("value", ["0", "x"])
async def test_a_wrong_size_is_told_before_the_ranks_meet(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIODIST_RECORDER_SIZE", value)
    with pytest.raises(dist.InvalidUsageError, match="AIODIST_RECORDER_SIZE"):
        await dist.init_process_group(rank=0, world_size=1)
    assert not dist.is_initialized()


def test_a_server_that_finds_no_descriptors_leaves_nothing_to_finalize(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Owner:
        """In the place of an observer, of which the server keeps a weak reference alone."""

    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, "too many open files")

    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    monkeypatch.setattr(socket, "socketpair", refuse)
    owner: Any = Owner()
    with pytest.raises(OSError, match="too many"):
        Server(owner, None)
    del owner
    gc.collect()
    assert not raised


@pytest.mark.parametrize(
    ("where", "what", "reason"),
    [
        (threading.Thread, "start", RuntimeError("can't start new thread")),
        (selectors, "DefaultSelector", OSError(errno.EMFILE, "too many open files")),
    ],
    ids=["thread", "descriptor"],
)
async def test_a_rank_for_which_no_thread_can_answer_says_so(
    where: Any,
    what: str,
    reason: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise reason

    before = signal.getsignal(signal.SIGUSR1)
    deaf = observer(1)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(where, what, refuse)
            answer_here(deaf)
            await until(lambda: caplog.messages)
        (told,) = caplog.messages
        assert told.startswith("`aiodist why` will not hear of this rank")
        assert str(reason) in told
        await until(lambda: deaf.identity.job not in jobs_here())
    finally:
        deaf.close()
        signal.signal(signal.SIGUSR1, before)
