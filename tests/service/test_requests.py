"""The leader's queue of requests."""

from __future__ import annotations

import asyncio

from aiodist.service.requests import Request, RequestQueue


async def test_any_number_of_cancelled_requests_may_come_before_one_that_is_taken():
    """More than Python's limit of nested calls, each alone and cancelled while it waits for others."""
    queue, delay = RequestQueue(), 1e-5
    taking = asyncio.create_task(queue.take(2, delay))
    for _ in range(1200):
        queue.add(request := Request("cancelled"))
        await asyncio.sleep(0)  # `take` waits for others
        request.answer.cancel()
        await asyncio.sleep(2 * delay)
    queue.add(request := Request("last"))
    assert await taking == [request]


async def test_a_request_does_not_wait_again_for_others_after_it_has_waited_for_the_batch_before():
    queue, delay = RequestQueue(), 0.01
    queue.add(request := Request("waits while another batch is carried out"))
    await asyncio.sleep(2 * delay)
    taking = asyncio.create_task(queue.take(2, delay))
    for _ in range(5):
        await asyncio.sleep(0)
    assert taking.done()
    assert taking.result() == [request]
