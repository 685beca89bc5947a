"""A service of several ranks: one order for concurrent callers, errors, losses, and its end."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import importlib
import math
import traceback
from functools import partial

import numpy as np
import pytest

import aiodist as dist
from aiodist.groups.group_lifecycle import Newcomer
from aiodist.testing import run_ranks
from tests.engine.conftest import newcomer
from tests.engine.deaths import die
from tests.limits import scaled, until


async def summing():
    """A worker whose handler adds up, over all ranks, what each makes of every request."""

    async def forward(requests):
        parts = [
            np.asarray(request, dtype=np.float64) * (dist.get_rank() + 1) for request in requests
        ]
        await asyncio.gather(*(dist.all_reduce(part) for part in parts))
        return parts

    return forward


class Services:
    """The services of all ranks of a test, for its workers and handlers."""

    def __init__(self):
        self._by_rank = {}
        self._entered = asyncio.Condition()

    async def enter(self, service):
        async with self._entered:
            self._by_rank[dist.get_rank()] = service
            self._entered.notify_all()

    async def here(self):
        async with self._entered:
            await self._entered.wait_for(lambda: dist.get_rank() in self._by_rank)
        return self._by_rank[dist.get_rank()]


async def serve(size, lead, worker=summing, *, services=None, **options):
    """Run ``lead(service)`` on the leader of a service of ``size`` ranks; return its result."""
    result = None

    async def main(rank):
        nonlocal result
        async with dist.serving(worker, **options) as service:
            if services is not None:
                await services.enter(service)
            if await service.until_leader():
                result = await lead(service)

    async with asyncio.timeout(scaled(20)):
        await run_ranks(size, main)
    return result


async def test_callers_that_are_cancelled_while_a_batch_waits_for_more_leave_the_service_as_it_is():
    async def lead(service):
        first = asyncio.create_task(service.call(np.ones(1)))
        await asyncio.sleep(0.05)
        first.cancel()
        second = asyncio.create_task(service.call(np.ones(1)))
        await until(lambda: service.waiting > 0)
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        return await service.call(np.full(1, 3.0))

    assert await serve(2, lead, max_batch=4, max_delay=0.2) == [9.0]


async def test_an_exception_that_is_false_reaches_the_caller():
    class EmptyError(Exception):
        def __len__(self):
            return 0

    async def worker():
        async def forward(requests):
            raise EmptyError("nothing found")

        return forward

    async def lead(service):
        for _ in range(2):
            with pytest.raises(EmptyError, match="nothing found"):
                await service.call(1.0)

    await serve(2, lead, worker)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("max_batch", [1, 8])
async def test_each_of_many_concurrent_callers_gets_its_own_answer(size, max_batch):
    factor = size * (size + 1) / 2

    async def lead(service):
        requests = [np.full(n % 7 + 1, float(n)) for n in range(60)]
        answers = await asyncio.gather(*map(service.call, requests))
        for request, answer in zip(requests, answers, strict=True):
            assert np.array_equal(answer, request * factor)

    await serve(size, lead, max_batch=max_batch)


async def test_requests_that_wait_are_carried_out_together():
    sizes = []

    async def worker():
        async def forward(requests):
            if dist.get_rank() == 0:
                sizes.append(len(requests))
            await dist.barrier()
            return requests

        return forward

    async def lead(service):
        return await asyncio.gather(*map(service.call, range(20)))

    assert await serve(2, lead, worker, max_batch=8, max_delay=5.0) == list(range(20))
    assert sizes[:2] == [8, 8]
    assert sum(sizes) == 20


async def test_a_cancelled_caller_leaves_the_order_of_all_others():
    async def lead(service):
        calls = [asyncio.ensure_future(service.call([float(n)])) for n in range(40)]
        await asyncio.wait(calls[:3], return_when=asyncio.FIRST_COMPLETED)
        for call in calls[1::3]:  # done, in a batch, and waiting
            call.cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for n, answer in enumerate(answers):
            if isinstance(answer, asyncio.CancelledError):
                assert n % 3 == 1
            else:
                assert answer.tolist() == [n * 6.0]
        assert sum(isinstance(answer, asyncio.CancelledError) for answer in answers) >= 5

    await serve(3, lead, max_batch=2)


@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_error_on_one_rank_reaches_its_caller_and_no_other(culprit, when):
    made = []

    async def worker():
        made.append(dist.get_rank())

        async def forward(requests):
            part = np.ones(1)
            fails = requests == ["bad"] and dist.get_rank() == culprit
            if fails and when == "before":
                raise KeyError("no such model")
            await dist.all_reduce(part)
            if fails:
                raise KeyError("no such model")
            return [part[0]]

        return forward

    async def lead(service):
        requests = ["good", "bad", "good", "bad", "good"]
        return await asyncio.gather(*map(service.call, requests), return_exceptions=True)

    answers = await serve(3, lead, worker)
    assert answers[::2] == [3.0] * 3
    for error in answers[1::2]:
        if culprit == 0:
            assert isinstance(error, KeyError)
        else:
            assert isinstance(error, dist.WorkerError)
            assert (error.rank, error.kind) == (culprit, "KeyError")
            assert "no such model" in error.message
            assert "forward" in error.traceback
    assert sorted(made) == [0, 1, 2]  # the ranks stayed: nothing is loaded again


class Mute(Exception):
    """An exception without a text."""

    def __str__(self):
        raise RuntimeError("no text")


async def test_an_exception_whose_text_cannot_be_made_reaches_the_caller():
    async def worker():
        async def forward(requests):
            if requests == ["bad"] and dist.get_rank() == 1:
                raise Mute
            return requests

        return forward

    async def lead(service):
        return await asyncio.gather(*map(service.call, ["bad", "good"]), return_exceptions=True)

    error, answer = await serve(2, lead, worker)
    assert (error.rank, error.kind) == (1, "Mute")
    assert answer == "good"


class Refused(dist.DistError):
    """An error of the user's, whose constructor takes no text."""

    def __init__(self):
        super().__init__("no such model")


@pytest.mark.parametrize("culprit", [0, 1], ids=["leader", "worker"])
async def test_a_dist_error_of_the_users_reaches_the_caller(culprit):
    async def worker():
        async def forward(requests):
            if dist.get_rank() == culprit:
                raise Refused
            return requests

        return forward

    async def lead(service):
        with pytest.raises(dist.DistError, match="no such model") as caught:
            await service.call(1)
        return caught.value

    error = await serve(2, lead, worker)
    if culprit == 0:
        assert type(error) is Refused
    else:
        assert (error.rank, error.kind) == (1, "Refused")


async def test_an_error_of_aiodist_in_the_handler_shows_the_line_that_raised_it():
    async def worker():
        async def forward(requests):
            await dist.broadcast(np.ones(1))

        return forward

    async def lead(service):
        with pytest.raises(dist.InvalidUsageError, match="pass src") as caught:
            await service.call(1)
        return [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]

    assert "forward" in await serve(1, lead, worker)


class End(BaseException):
    """As pytest.fail raises it."""


async def test_a_base_exception_in_the_handler_of_the_leader_ends_the_service():
    async def worker():
        async def forward(requests):
            raise End

        return forward

    async def lead(service):
        with pytest.raises(dist.GroupRevokedError, match="it stops"):
            await asyncio.wait_for(service.call(1), scaled(10))

    with pytest.raises(End):
        await serve(1, lead, worker)


async def test_an_error_on_all_ranks_needs_no_new_group():
    async def worker():
        async def forward(requests):
            await dist.barrier()
            raise ValueError(requests[0])

        return forward

    async def lead(service):
        before = service.group
        for text in ("one", "two"):
            with pytest.raises(ValueError, match=text):
                await service.call(text)
        return service.group is before

    assert await serve(3, lead, worker)


async def test_a_result_that_is_an_exception_is_raised_at_its_caller_alone():
    async def worker():
        async def forward(requests):
            return [ZeroDivisionError() if x == 0 else 1 / x for x in requests]

        return forward

    async def lead(service):
        return await asyncio.gather(*map(service.call, [2, 0, 4]), return_exceptions=True)

    first, second, third = await serve(2, lead, worker, max_batch=4)
    assert (first, third) == (0.5, 0.25)
    assert isinstance(second, ZeroDivisionError)


async def test_a_result_that_no_coroutine_can_raise_becomes_a_runtime_error():
    async def worker():
        async def forward(requests):
            return [StopIteration("empty") if x == 0 else x for x in requests]

        return forward

    async def lead(service):
        return await asyncio.gather(*map(service.call, [2, 0, 4]), return_exceptions=True)

    first, second, third = await serve(2, lead, worker, max_batch=4)
    assert (first, third) == (2, 4)
    assert isinstance(second, RuntimeError)
    assert isinstance(second.__cause__, StopIteration)


async def test_a_request_that_cannot_travel_fails_alone():
    async def lead(service):
        calls = [service.call([1.0]), service.call(print), service.call([2.0])]
        return await asyncio.gather(*calls, return_exceptions=True)

    first, second, third = await serve(2, lead, max_batch=8)
    assert (first.tolist(), third.tolist()) == ([3.0], [6.0])
    assert isinstance(second, TypeError)
    assert str(second).startswith("request is a builtin_function_or_method, which does not travel")


class Positive:
    """A request that checks itself where it is decoded."""

    def __init__(self, value):
        self.value = value


def check_positive(value):
    if value < 0:
        raise ValueError("it is negative")
    return Positive(value)


async def test_a_request_that_a_worker_cannot_decode_fails_alone():
    dist.register_type(Positive, lambda positive: positive.value, check_positive)

    async def worker():
        async def forward(requests):
            part = np.full(1, float(requests[0].value))
            await dist.all_reduce(part)
            return [part[0]]

        return forward

    async def lead(service):
        calls = [service.call(Positive(value)) for value in (1, -1, 2)]
        return await asyncio.gather(*calls, return_exceptions=True)

    first, second, third = await serve(3, lead, worker)
    assert (first, third) == (3.0, 6.0)
    assert isinstance(second, dist.DistError)
    assert "it is negative" in str(second)


class Fickle:
    """A request that only the first worker can get."""

    packed = 0


def pack_once(fickle):
    Fickle.packed += 1
    if Fickle.packed > 1:
        raise ValueError("it has changed")
    return 1


async def test_a_request_that_only_some_workers_get_does_not_mix_with_the_next_ones():
    Fickle.packed = 0
    dist.register_type(Fickle, pack_once, lambda value: value)

    async def worker():
        async def forward(requests):
            part = np.ones(1)
            if not isinstance(requests[0], Fickle):
                part *= requests[0]
            await dist.all_reduce(part)
            return [part[0]]

        return forward

    async def lead(service):
        return await asyncio.gather(*map(service.call, [Fickle(), 10, 100]), return_exceptions=True)

    refused, *answers = await serve(3, lead, worker)
    assert isinstance(refused, dist.GroupRevokedError)
    assert "it has changed" in str(refused)
    assert answers == [30.0, 300.0]


class Long:
    """A request whose parts a worker takes only while its group has not ended."""


async def test_a_worker_that_is_lost_while_it_is_told_leaves_no_unread_error():
    groups, complaints, packed = {}, [], []

    def pack(request):
        packed.append(request)
        if len(packed) == 2:  # for rank 2: rank 1 has got its own
            groups[2].revoke()
        return np.zeros(2 << 20)

    async def worker():
        groups[dist.get_rank()] = dist.group.WORLD
        return await summing()

    async def lead(service):
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
        with pytest.raises(dist.GroupRevokedError, match="rank 2 revoked"):
            await service.call(Long())
        return (await service.call([1.0])).tolist()

    dist.register_type(Long, pack, lambda data: data)
    assert await serve(3, lead, worker) == [6.0]
    gc.collect()
    assert not complaints


async def test_a_group_that_ends_while_a_batch_is_stopped_leaves_no_unread_error():
    complaints = []

    async def worker():
        async def forward(requests):
            if requests == ["good"]:
                return requests
            if dist.get_rank():
                raise ValueError
            try:
                await dist.barrier()
            finally:  # it is stopped, as the other rank has failed
                dist.revoke()
                await asyncio.sleep(0.01)

        return forward

    async def lead(service):
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        with pytest.raises(dist.WorkerError, match="ValueError"):
            await service.call("bad")
        return await service.call("good")

    assert await serve(2, lead, worker) == "good"
    gc.collect()
    assert not complaints


async def test_requests_behind_one_that_ends_the_group_are_served_by_the_next_group():
    async def worker():
        async def forward(requests):
            if requests == ["bad"] and dist.get_rank() == 1:
                raise KeyError("no such model")  # the other rank waits in the barrier
            await dist.barrier()
            return requests

        return forward

    async def lead(service):
        before = service.group
        requests = [object(), "bad", "good", "fine"]  # one batch, retried one by one
        calls = map(service.call, requests)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert service.group is not before
        return answers

    unsendable, bad, *others = await serve(2, lead, worker, max_batch=4)
    assert isinstance(unsendable, TypeError)
    assert isinstance(bad, dist.WorkerError)
    assert others == ["good", "fine"]


async def end_of(block):
    """The result of the task that ``block(service)`` starts before it raises, in a service of one rank."""
    started = None

    async def main(rank):
        nonlocal started
        async with dist.serving(summing, store=dist.MemoryStore()) as service:
            await service.until_leader()
            started = await block(service)
            raise KeyError("the block fails")

    async with asyncio.timeout(scaled(20)):
        with pytest.raises(KeyError):
            await run_ranks(1, main)
        (result,) = await asyncio.gather(started, return_exceptions=True)
    return result


@pytest.mark.parametrize("turns", range(8))
async def test_a_caller_gets_its_answer_or_an_error_when_the_block_raises(turns):
    async def block(service):
        calling = asyncio.create_task(service.call([1.0]))
        for _ in range(turns):  # the request is queued, then taken, then carried out
            await asyncio.sleep(0)
        return calling

    assert isinstance(await end_of(block), (np.ndarray, dist.DistError))


@pytest.mark.parametrize("turns", range(9, 15))
def test_a_leader_that_stops_as_a_worker_leaves_has_no_unread_error(turns):
    complaints, leaving = [], asyncio.Event()

    async def worker():
        async def forward(requests):
            await dist.barrier()
            return requests

        return forward

    async def lead(service):
        await service.until_leader()
        await service.call("first")
        calling = asyncio.create_task(service.call("second"))
        leaving.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        return calling

    async def main(rank):
        calls = []
        try:
            async with dist.serving(worker) as service:
                calls += [await lead(service)] if rank == 0 else []
                await leaving.wait()
                raise KeyError
        except KeyError:
            await dist.abort_process_group()
        await asyncio.gather(*calls, return_exceptions=True)

    async def both():
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        async with asyncio.timeout(scaled(20)):
            await run_ranks(2, main)

    asyncio.run(both())
    gc.collect()
    assert not complaints


async def test_the_caller_of_grow_gets_an_error_when_the_block_raises_meanwhile(monkeypatch):
    growing = asyncio.Event()

    async def waiting_at(place, ranks):
        return [Newcomer(1, b"", b"", b"")]

    async def grow(*_):
        growing.set()
        await asyncio.Event().wait()

    module = importlib.import_module("aiodist.service.serving")
    monkeypatch.setattr(module, "waiting_at", waiting_at)
    monkeypatch.setattr(module, "grow", grow)

    async def block(service):
        calling = asyncio.create_task(service.grow())
        await growing.wait()
        return calling

    assert isinstance(await end_of(block), dist.ServiceClosedError)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "NoneType"),
        ([1], "a list of 1"),
        ({1: 1, 2: 2}, "dict"),
        ("ab", "str"),
        (b"ab", "bytes"),
    ],
)
async def test_a_handler_without_a_result_for_each_request_raises_at_the_callers(returned, said):
    async def worker():
        async def forward(requests):
            return returned

        return forward

    async def lead(service):
        return await asyncio.gather(*map(service.call, [1, 2]), return_exceptions=True)

    for error in await serve(2, lead, worker, max_batch=2):
        assert isinstance(error, dist.InvalidUsageError)
        assert str(error).endswith(f"one result for each of its 2 requests, not {said}")


@pytest.mark.parametrize("returned", [[], [3, 4]])
async def test_a_handler_may_change_its_list_of_requests(returned):
    async def worker():
        async def forward(requests):
            requests.clear()
            return returned

        return forward

    async def lead(service):
        return await asyncio.gather(*map(service.call, [1, 2]), return_exceptions=True)

    answers = await serve(2, lead, worker, max_batch=2)
    if returned:
        assert answers == returned
    else:
        assert [type(answer) for answer in answers] == [dist.InvalidUsageError] * 2


async def test_only_the_leader_calls_and_the_end_of_its_block_ends_the_service():
    ends = []

    async def main(rank):
        async with dist.serving(summing) as service:
            if await service.until_leader():
                assert service.leader == rank == 0
                assert (await service.call([1.0])).tolist() == [3.0]
            else:
                ends.append(rank)
                await service.until_closed()
        with pytest.raises(dist.ServiceClosedError if rank == 0 else dist.InvalidUsageError):
            await service.call([1.0])
        await dist.barrier()  # the group is as good as before

    async with asyncio.timeout(scaled(20)):
        await run_ranks(2, main)
    assert ends == [1]


async def test_tasks_that_wait_beside_a_block_that_raises_are_told_that_the_service_is_closed():
    async def block(rank, waiting):
        async with dist.serving(summing) as service:
            waits = [service.until_closed(), *([service.until_leader()] if rank else [])]
            waiting += map(asyncio.create_task, waits)
            await until(lambda: service.is_serving)
            raise ValueError("of the block")

    async def main(rank):
        waiting = []
        with pytest.raises(ValueError, match="of the block"):
            await block(rank, waiting)
        for task in waiting:
            with pytest.raises(dist.ServiceClosedError):
                await task

    async with asyncio.timeout(scaled(20)):
        await run_ranks(2, main)


async def test_a_worker_that_ends_by_what_it_cancelled_is_no_cancellation_of_the_block():
    async def worker():
        sleeping = asyncio.create_task(asyncio.sleep(60))
        sleeping.cancel()
        await sleeping

    async def main(_):
        with pytest.raises(dist.ServiceClosedError):
            async with dist.serving(worker):
                pass

    async with asyncio.timeout(scaled(20)):
        await run_ranks(2, main)


async def test_another_event_loop_is_refused_and_told_the_way():
    def raises(method):
        with pytest.raises(dist.InvalidUsageError, match=r"asyncio\.run_coroutine_threadsafe"):
            asyncio.run(method())

    async def lead(service):
        methods = (partial(service.call, [1.0]), service.grow, service.until_leader)
        for method in (*methods, service.until_closed):
            await asyncio.to_thread(raises, method)
        loop = asyncio.get_running_loop()

        def call():
            return asyncio.run_coroutine_threadsafe(service.call([1.0]), loop).result()

        return await asyncio.to_thread(call)

    assert (await serve(2, lead)).tolist() == [3.0]


async def test_callers_that_wait_when_the_leader_leaves_get_an_error():
    async def lead(service):
        calls = [asyncio.ensure_future(service.call([1.0])) for _ in range(20)]
        await calls[0]
        return calls

    calls = await serve(2, lead)
    answers = await asyncio.gather(*calls, return_exceptions=True)
    closed = [answer for answer in answers if isinstance(answer, dist.ServiceClosedError)]
    assert closed
    assert all(isinstance(answer, np.ndarray) for answer in answers[: -len(closed)])


@pytest.mark.parametrize("options", [{"max_batch": 0}, {"max_delay": -1.0}])
async def test_impossible_arguments_raise_at_once(options):
    async def main(rank):
        with pytest.raises(dist.InvalidUsageError):
            async with dist.serving(summing, **options):
                pass

    await run_ranks(1, main)


@pytest.mark.parametrize(
    ("worker", "options", "said"),
    [
        (5, {}, "worker must be an async function, not 5"),
        (summing, {"max_delay": "1"}, "max_delay must be a number of seconds, not str"),
        (summing, {"max_delay": None}, "max_delay must be a number of seconds, not NoneType"),
        (summing, {"store": 5}, "store must be one of aiodist.store's .* not 5"),
    ],
)
async def test_arguments_of_a_wrong_type_raise_at_once(worker, options, said):
    async def main(rank):
        with pytest.raises(TypeError, match=said):
            async with dist.serving(worker, **options):
                pass

    await run_ranks(1, main)


async def worker_without_return():
    async def forward(requests):
        return requests


def ordinary_worker():
    return summing


@pytest.mark.parametrize(
    ("worker", "said"),
    [
        (worker_without_return, r"worker\(\) must return the handler, .*, not None"),
        (ordinary_worker, "the worker of a service must be an async function, .* `async def`"),
    ],
)
async def test_a_worker_without_a_handler_ends_the_service_with_a_sentence(worker, said):
    async def main(rank):
        with pytest.raises(TypeError, match=said):
            async with dist.serving(worker) as service:
                await service.until_leader()

    await run_ranks(2, main)


async def test_callers_hear_what_has_ended_the_service():
    async def worker():
        raise KeyError("no such model")

    async def main(rank):
        async with dist.serving(worker) as service:
            for _ in ("waits for the service", "comes later"):
                with pytest.raises(dist.ServiceClosedError) as caught:
                    await service.call(1)
                assert isinstance(caught.value.__cause__, KeyError)

    with pytest.raises(KeyError, match="no such model"):
        await run_ranks(1, main)


async def test_callers_are_told_that_the_handler_must_be_an_async_function():
    async def worker():
        return list

    async def lead(service):
        with pytest.raises(TypeError, match="the handler of a service must be an async function"):
            await service.call(1)

    await serve(2, lead, worker)


async def call_itself(service):
    await service.call("inner")


async def call_itself_in_tasks(service):
    await asyncio.gather(service.call("inner"), service.call("inner"))


async def call_itself_in_a_thread(service):
    loop = asyncio.get_running_loop()

    def compute():
        return asyncio.run_coroutine_threadsafe(service.call("inner"), loop).result()

    await asyncio.to_thread(compute)


async def call_itself_in_an_executor_with_the_context(service):
    loop = asyncio.get_running_loop()

    def compute():
        return asyncio.run_coroutine_threadsafe(service.call("inner"), loop).result()

    await loop.run_in_executor(None, contextvars.copy_context().run, compute)


async def grow_itself(service):
    await service.grow(timeout=math.inf)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "inside",
    [
        call_itself,
        call_itself_in_tasks,
        call_itself_in_a_thread,
        call_itself_in_an_executor_with_the_context,
        grow_itself,
    ],
)
async def test_a_handler_that_waits_for_its_own_service_raises_at_its_caller(size, inside):
    services = Services()

    async def worker():
        async def forward(requests):
            if requests == ["outer"]:
                await inside(await services.here())
            return requests

        return forward

    async def lead(service):
        with pytest.raises(dist.InvalidUsageError, match="inside the handler of the same service"):
            await service.call("outer")
        return await service.call("again")

    store = dist.MemoryStore()
    assert await serve(size, lead, worker, services=services, store=store) == "again"


@pytest.mark.parametrize("inside", [call_itself, call_itself_in_tasks])
async def test_a_worker_function_that_waits_for_its_own_service_ends_it(inside):
    services = Services()

    async def worker():
        await inside(await services.here())

    with pytest.raises(dist.InvalidUsageError, match="inside the worker of the same service"):
        await serve(1, None, worker, services=services)


async def test_a_task_that_outlives_its_handler_may_call_the_service():
    services, started, returned = Services(), [], asyncio.Event()

    async def follow_up():
        await returned.wait()
        return await (await services.here()).call("inner")

    async def worker():
        async def forward(requests):
            if requests == ["outer"] and dist.get_rank() == 0:
                started.append(asyncio.create_task(follow_up()))
            return requests

        return forward

    async def lead(service):
        await service.call("outer")
        returned.set()
        return await started[0]

    assert await serve(2, lead, worker, services=services) == "inner"


async def test_a_task_with_a_context_of_its_own_may_call_while_the_handler_runs():
    services, started = Services(), []

    async def worker():
        async def forward(requests):
            if requests == ["outer"] and dist.get_rank() == 0:
                service = await services.here()
                calling = service.call("inner")
                context = contextvars.Context()
                started.append(asyncio.create_task(calling, context=context))
                await until(lambda: service.waiting)
            return requests

        return forward

    async def lead(service):
        await service.call("outer")
        return await started[0]

    assert await serve(2, lead, worker, services=services) == "inner"


async def test_when_the_leader_dies_the_next_rank_leads():
    led = []

    async def main(rank):
        async with dist.serving(summing) as service:
            if not await service.until_leader():
                return
            led.append(rank)
            assert service.leader == rank
            if rank == 0:
                await service.call([1.0])
                await die()
                raise asyncio.CancelledError
            assert (await service.call([1.0])).tolist() == [3.0]

    async def all_but_the_dead(rank):
        try:
            await main(rank)
        except asyncio.CancelledError:
            assert rank == 0

    async with asyncio.timeout(scaled(20)):
        await run_ranks(3, all_but_the_dead)
    assert led == [0, 1]


async def call_until_it_fails(service):
    while True:
        await service.call([1.0])


async def test_grow_right_after_a_loss_waits_for_the_lost_rank():
    store, called = dist.MemoryStore(), asyncio.Event()

    async def main(rank):
        async with dist.serving(summing, store=store) as service:
            if rank == 2:
                await called.wait()
                await dist.abort_process_group()
                raise asyncio.CancelledError
            if await service.until_leader():
                await service.call([1.0])
                called.set()
                with pytest.raises(dist.GroupEndedError):
                    await call_until_it_fails(service)
                with pytest.raises(dist.CollectiveTimeoutError) as caught:
                    await service.grow([2], timeout=0.05)
                assert caught.value.waiting_for == (2,)
                await service.call([1.0])
                with pytest.raises(dist.CollectiveTimeoutError) as caught:
                    await service.grow([1, 2], timeout=0.05)
                assert caught.value.waiting_for == (2,)  # rank 1 is a member

    async def all_but_the_lost(rank):
        try:
            await main(rank)
        except asyncio.CancelledError:
            assert rank == 2

    async with asyncio.timeout(scaled(20)):
        await run_ranks(3, all_but_the_lost)


async def test_grow_is_for_the_leader_and_for_ranks_of_the_world():
    store = dist.MemoryStore()

    async def main(rank):
        async with dist.serving(summing, store=store) as service:
            if await service.until_leader():
                with pytest.raises(dist.InvalidUsageError, match="out of range"):
                    await service.grow([5])
                with pytest.raises(TypeError, match="ranks must be a list of ints, not int"):
                    await service.grow(1)
                assert (await service.grow([1])).ranks == (0, 1)  # which is there
                asked.set()
                await told.wait()

    async def worker(rank):
        async with dist.serving(summing, store=store) as service:
            await asked.wait()
            with pytest.raises(dist.InvalidUsageError, match="rank 0 leads the service"):
                await service.grow(timeout=20)
            told.set()

    asked, told = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(scaled(10)):
        await run_ranks(2, lambda rank: worker(rank) if rank else main(rank))


async def test_grow_ends_with_the_service():
    async def lead(service):
        return asyncio.create_task(service.grow(timeout=math.inf))

    growing = await serve(2, lead, store=dist.MemoryStore())
    async with asyncio.timeout(scaled(10)):
        with pytest.raises(dist.ServiceClosedError):
            await growing


async def test_grow_for_a_rank_says_that_the_service_has_ended_once_its_ranks_have_left():
    async def lead(service):
        return service

    service = await serve(2, lead, store=dist.MemoryStore())
    with pytest.raises(dist.ServiceClosedError):
        await service.grow([1])


@pytest.mark.parametrize("waits_for", ["the other rank", "its own store"])
async def test_a_busy_member_is_waited_for_when_a_newcomer_is_taken_in(monkeypatch, waits_for):
    """It has not come within the time that a process at the store is waited for."""
    monkeypatch.setenv("AIODIST_SOCKET_IFNAME", "lo")
    module = importlib.import_module("aiodist.service.serving")
    store, grow, refused = dist.MemoryStore(), module.grow, []

    async def not_at_first(*arguments):
        if (rank := dist.get_rank()) not in refused:
            refused.append(rank)
            busy = [1 - rank] if waits_for == "the other rank" else []
            raise dist.CollectiveTimeoutError("grow timed out", waiting_for=busy)
        return await grow(*arguments)

    monkeypatch.setattr(module, "grow", not_at_first)

    async def member(rank):
        meeting = {"store": meet, "rank": rank, "world_size": 2, "capacity": 3}
        await dist.init_process_group(**meeting)
        async with dist.serving(summing, store=store) as service:
            if await service.until_leader():
                later = newcomer(worker)
                assert (await service.grow([2])).ranks == (0, 1, 2)
                assert (await service.call([1.0])).tolist() == [6.0]
            else:
                later = None
        if later is not None:
            await later

    async def worker():
        await dist.rejoin(store, 2, timeout=20)
        async with dist.serving(summing, store=store) as service:
            assert not await service.until_leader()

    meet = dist.MemoryStore()
    async with asyncio.timeout(scaled(20)):
        await asyncio.gather(*(newcomer(partial(member, rank)) for rank in range(2)))
    assert sorted(refused) == [0, 1]


async def test_the_leader_takes_in_a_rank_that_was_not_there_at_the_start(monkeypatch):
    monkeypatch.setenv("AIODIST_SOCKET_IFNAME", "lo")
    store = dist.MemoryStore()

    async def leader():
        await dist.init_process_group(store=dist.MemoryStore(), rank=0, world_size=1, capacity=3)
        async with dist.serving(summing, store=store) as service:
            assert await service.until_leader()
            assert (await service.call([1.0])).tolist() == [1.0]
            with pytest.raises(dist.CollectiveTimeoutError, match=r"for a free place, of \[1, 2\]"):
                await service.grow(timeout=0.01)
            growing = asyncio.create_task(service.grow())
            later = newcomer(worker)
            assert (await growing).ranks == (0, 2)
            assert (await service.call([1.0])).tolist() == [3.0]
        await later

    async def worker():
        await dist.rejoin(store, 2, timeout=20)
        async with dist.serving(summing, store=store) as service:
            assert not await service.until_leader()

    async with asyncio.timeout(scaled(20)):
        await newcomer(leader)
