"""Pending and Driver: which callbacks run, when, and what errors leave behind."""

from __future__ import annotations

from typing import Any

import pytest

from aiodist.completion import Driver, Once, Pending, Unfinished, completed, together


class Outcome:
    """Where a driver's end is kept."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, BaseException | None]] = []

    def __call__(self, value: Any, error: BaseException | None) -> None:
        self.calls.append((value, error))


def test_a_driver_runs_at_once_to_the_first_wait_and_on_inside_complete() -> None:
    first: Pending[int] = Pending()
    second: Pending[int] = Pending()
    seen: list[Any] = []
    outcome = Outcome()

    async def body() -> int:
        seen.append("started")
        seen.append(await first)
        return await second + 1

    Driver(body(), outcome).start()
    assert seen == ["started"]
    first.complete(5)
    assert seen == ["started", 5]
    assert outcome.calls == []
    second.complete(41)
    assert outcome.calls == [(42, None)]


def test_a_pending_that_is_done_costs_no_loop_turn() -> None:
    outcome = Outcome()

    async def body() -> int:
        return await completed(1) + await completed(2)

    Driver(body(), outcome).start()
    assert outcome.calls == [(3, None)]


def test_the_first_completion_counts() -> None:
    pending: Pending[int] = Pending()
    pending.complete(1)
    pending.complete(2)
    pending.fail(ValueError())
    assert (pending.value, pending.error) == (1, None)
    failed: Pending[int] = Pending()
    failed.fail(ValueError())
    failed.complete(1)
    assert failed.value is None


def test_an_error_is_raised_at_the_wait_and_may_be_handled() -> None:
    pending: Pending[int] = Pending()
    outcome = Outcome()

    async def body() -> str:
        try:
            await pending
        except ValueError as error:
            return str(error)
        return "no error"

    Driver(body(), outcome).start()
    pending.fail(ValueError("told"))
    assert outcome.calls == [("told", None)]


def test_an_unhandled_error_reaches_on_done() -> None:
    pending: Pending[int] = Pending()
    outcome = Outcome()

    async def body() -> None:
        await pending

    Driver(body(), outcome).start()
    error = ValueError("out")
    pending.fail(error)
    assert outcome.calls == [(None, error)]


def test_throw_interrupts_the_wait_and_detaches_from_what_was_waited_for() -> None:
    pending: Pending[int] = Pending()
    outcome = Outcome()

    async def body() -> None:
        await pending

    driver = Driver(body(), outcome)
    driver.start()
    error = ValueError("thrown")
    driver.throw(error)
    assert outcome.calls == [(None, error)]
    pending.complete(1)  # no caller waits any more
    driver.throw(ValueError("too late"))
    assert len(outcome.calls) == 1


def test_throw_from_within_the_running_coroutine_comes_at_its_next_wait() -> None:
    outcome = Outcome()
    never: Pending[int] = Pending()
    reached: list[str] = []

    async def body() -> None:
        driver.throw(ValueError("own fault"))
        reached.append("after throw")
        await never
        reached.append("after wait")

    driver = Driver(body(), outcome)
    driver.start()
    assert reached == ["after throw"]
    assert str(outcome.calls[0][1]) == "own fault"
    assert never.callback is None


def test_throw_from_within_is_forgotten_when_the_coroutine_ends_first() -> None:
    outcome = Outcome()

    async def body() -> int:
        driver.throw(ValueError())
        return 1

    driver = Driver(body(), outcome)
    driver.start()
    assert outcome.calls == [(1, None)]


def test_completion_from_within_another_drivers_step() -> None:
    """A completes what B waits for, and B what A waits for next: no step is entered twice."""
    ping: Pending[int] = Pending()
    pong: Pending[int] = Pending()
    ends = Outcome()

    async def a() -> str:
        ping.complete(1)
        return f"a{await pong}"

    async def b() -> str:
        value = await ping
        pong.complete(value + 1)
        return "b"

    Driver(b(), ends).start()
    Driver(a(), ends).start()
    assert sorted(value for value, _ in ends.calls) == ["a2", "b"]


def test_a_long_chain_of_done_waits_does_not_recurse() -> None:
    outcome = Outcome()

    async def body() -> int:
        total = 0
        for _ in range(10_000):
            total += await completed(1)
        return total

    Driver(body(), outcome).start()
    assert outcome.calls == [(10_000, None)]


def once(pending: Pending[int]) -> tuple[Once[int], list[object]]:
    ended: list[object] = []
    run = Once(pending, lambda n: 10 // n, lambda value, error: ended.append(error or value))
    return run, ended


def test_once_ends_with_what_the_last_step_makes_of_the_value() -> None:
    pending: Pending[int] = Pending()
    run, ended = once(pending)
    run.start()
    assert ended == []
    pending.complete(2)
    assert ended == [5]
    run.throw(ValueError("too late"))
    assert ended == [5]
    run, ended = once(completed(5))
    run.start()
    assert ended == [2]


def test_a_driver_that_found_no_stack_to_end_is_ended_by_the_next_throw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome, pending = Outcome(), completed(1)
    driver = Driver(pending_value(pending), outcome)

    def no_stack(*_: Any) -> None:
        raise RecursionError

    with monkeypatch.context() as patch:
        patch.setattr(Driver, "_end", no_stack)
        with pytest.raises(RecursionError):
            driver.start()
    driver.throw(KeyError("late"))
    ((_, error),) = outcome.calls
    assert isinstance(error, RuntimeError)  # of Python: the coroutine has ended already


async def pending_value(pending: Pending[int]) -> int:
    return await pending


def test_once_ends_by_an_error_of_its_pending_of_its_step_or_from_outside() -> None:
    failed: Pending[int] = Pending()
    failed.fail(KeyError("gone"))
    run, ended = once(failed)
    run.start()
    run2, ended2 = once(completed(0))
    run2.start()
    waiting: Pending[int] = Pending()
    run3, ended3 = once(waiting)
    run3.start()
    run3.throw(TimeoutError())
    waiting.complete(1)
    kinds = [[type(end) for end in each] for each in (ended, ended2, ended3)]
    assert kinds == [[KeyError], [ZeroDivisionError], [TimeoutError]]


@pytest.mark.parametrize("end", ["well", "by an error", "by a throw"])
def test_once_goes_on_as_a_coroutine_if_its_step_was_not_the_last(end: str) -> None:
    first, second = Pending[int](), Pending[int]()
    ended: list[object] = []

    async def rest() -> int:
        return await second + 1

    def step(value: int) -> int:
        raise Unfinished(rest)

    run = Once(first, step, lambda value, error: ended.append(error or value))
    run.start()
    first.complete(1)
    assert ended == []
    error = ValueError()
    if end == "well":
        second.complete(2)
    elif end == "by an error":
        second.fail(error)
    else:
        run.throw(error)
    run.throw(KeyError())
    assert ended == [3 if end == "well" else error]


def test_throw_from_within_the_step_of_once_comes_at_the_first_wait_of_the_rest() -> None:
    pending: Pending[int] = Pending()
    ended: list[object] = []
    error = ValueError()

    async def rest() -> None:
        await Pending[None]()

    def step(value: int) -> None:
        run.throw(error)
        raise Unfinished(rest)

    run: Once[None] = Once(pending, step, lambda value, error: ended.append(error or value))
    run.start()
    pending.complete(1)
    assert ended == [error]


def test_together_runs_side_by_side_until_all_have_ended() -> None:
    first: Pending[None] = Pending()
    second: Pending[None] = Pending()
    seen: list[str] = []
    outcome = Outcome()

    async def one(name: str, until: Pending[None]) -> None:
        seen.append(f"{name} began")
        await until
        seen.append(f"{name} went on")

    async def both() -> None:
        await together(one("a", first), one("b", second))
        seen.append("both ended")

    Driver(both(), outcome).start()
    assert seen == ["a began", "b began"]
    second.complete(None)
    first.complete(None)
    assert seen[2:] == ["b went on", "a went on", "both ended"]
    assert outcome.calls == [(None, None)]


@pytest.mark.parametrize("from_outside", [False, True])
def test_the_first_error_ends_all_that_run_together(from_outside: bool) -> None:
    waits: list[Pending[None]] = [Pending(), Pending()]
    left: list[int] = []
    outcome = Outcome()

    async def one(number: int) -> None:
        try:
            await waits[number]
        finally:
            left.append(number)

    driver = Driver(together(one(0), one(1)), outcome)
    driver.start()
    error = ValueError("the first")
    if from_outside:
        driver.throw(error)
    else:
        waits[1].fail(error)
    assert sorted(left) == [0, 1]
    assert outcome.calls == [(None, error)]
    for pending in waits:
        pending.complete(None)
    assert len(outcome.calls) == 1


@pytest.mark.parametrize("fails_first", [False, True])
def test_an_immediate_error_ends_the_waiting_coroutine(fails_first: bool) -> None:
    never: Pending[None] = Pending()
    ended: list[str] = []
    outcome = Outcome()

    async def fails() -> None:
        raise ValueError("at once")

    async def waits() -> None:
        try:
            await never
        finally:
            ended.append("waits")

    bodies = (fails(), waits()) if fails_first else (waits(), fails())
    Driver(together(*bodies), outcome).start()
    ((_, error),) = outcome.calls
    assert str(error) == "at once"
    assert ended == ["waits"]


def test_the_completing_code_runs_to_its_next_wait_before_the_end_is_seen() -> None:
    """As a send that fails at once, inside the coroutine that sends: it goes on to post receives."""
    begun: Pending[None] = Pending()
    go: Pending[None] = Pending()
    never: Pending[None] = Pending()
    seen: list[str] = []
    drivers: list[Driver[None]] = []

    async def sends() -> None:
        await go
        begun.complete(None)  # the other one fails in here
        seen.append("posted")
        await never
        seen.append("wrong")

    async def fails() -> None:
        await begun
        raise ValueError("now")

    async def sends_and_is_lost() -> None:
        await go
        drivers[-1].throw(ValueError("now"))
        seen.append("posted")
        await never
        seen.append("wrong")

    async def waits() -> None:
        await begun

    for bodies in ((sends(), fails()), (sends_and_is_lost(), waits())):
        go, begun = Pending(), Pending()
        seen.clear()
        drivers.append(Driver(together(*bodies), lambda _, error: seen.append(f"ended by {error}")))
        drivers[-1].start()
        go.complete(None)
        assert seen == ["posted", "ended by now"]
