from __future__ import annotations

import asyncio

import pytest

from aiodist.backends.polling import LONGEST_PAUSE, TURN_SECONDS, Poll


async def test_pauses_grow_with_the_time_that_passes() -> None:
    class Loop:
        """The clock and the timers of a loop, as if a turn took 10 us and all else no time."""

        def __init__(self) -> None:
            self.now = 0.0
            self.turns = 0
            self.pauses: list[float] = []

        def time(self) -> float:
            return self.now

        def call_soon(self, callback: Poll) -> None:
            self.turns += 1
            self.now += 1e-5

        def call_later(self, pause: float, callback: Poll) -> None:
            self.pauses.append(pause)
            self.now += pause

    loop = Loop()
    ended: list[BaseException | None] = []
    poll = Poll(loop, lambda: loop.now > 0.5, ended.append)  # type: ignore[arg-type]
    while not ended:
        poll()
    assert ended == [None]
    assert loop.turns == pytest.approx(TURN_SECONDS / 1e-5, abs=1)
    assert loop.pauses[0] < 2e-4
    assert all(a <= b for a, b in zip(loop.pauses, loop.pauses[1:], strict=False))
    assert max(loop.pauses) == LONGEST_PAUSE
    assert len(loop.pauses) < 200


async def test_an_error_of_the_question_ends_polling() -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[BaseException | None] = loop.create_future()

    def ask() -> bool:
        raise RuntimeError("the device fell off")

    loop.call_soon(Poll(loop, ask, ended.set_result))
    assert str(await ended) == "the device fell off"


async def test_polling_ends_when_the_answer_is_true() -> None:
    loop = asyncio.get_running_loop()
    answers = iter([False, False, True])
    ended: asyncio.Future[BaseException | None] = loop.create_future()
    loop.call_soon(Poll(loop, lambda: next(answers), ended.set_result))
    assert await ended is None
    assert list(answers) == []
