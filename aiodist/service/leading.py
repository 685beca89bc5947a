"""The leader's part of a service in one group: it sends batches to the workers, one after the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiodist.api.object_streams import open_stream
from aiodist.api.process_group import ProcessGroup
from aiodist.errors import (
    DistError,
    GroupEndedError,
    GroupRevokedError,
    InvalidUsageError,
    StreamClosedError,
)
from aiodist.groups.collective_backend import ObjectStream
from aiodist.service.handlers import Handler
from aiodist.service.outcomes import Outcome, Round, outcome_of, stop
from aiodist.service.requests import Admission, Request, RequestQueue

CALL, GROW = 0, 1
"""What the leader sends to its workers: a list of one of these and its arguments."""

_PLACE = "obj[1][0]"
"""The first request in such a list, as an error about what cannot travel begins."""


class Leader:
    """Carries out the requests of ``queue`` in ``group``, on all its ranks."""

    def __init__(
        self,
        group: ProcessGroup,
        handler: Handler,
        queue: RequestQueue,
        batching: tuple[int, float],
        tag: int,
        grow: Callable[[Sequence[int]], Awaitable[ProcessGroup]],
    ) -> None:
        """``batching``: the most requests of a batch, and the seconds that the first waits for others.

        ``grow(ranks)`` takes the newcomers in; all ranks of the group call it at the same point.
        """
        self._group = group
        self._handler = handler
        self._queue = queue
        self._batching = batching
        self._tag = tag
        self._grow = grow
        self._streams: dict[int, ObjectStream] = {}
        self._round: Round | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> bool:
        """Serve until the queue is closed, or a newcomer was taken in; return whether it was closed.

        Raises GroupEndedError when the group has ended, and where it has to be made anew.
        """
        readers: list[asyncio.Task[None]] = []
        try:
            async with contextlib.AsyncExitStack() as stack:
                for rank in self._group.ranks:
                    if rank != self._group.global_rank:
                        stream = open_stream(rank, self._tag, group=self._group)
                        self._streams[rank] = await stack.enter_async_context(stream)
                        readers.append(asyncio.ensure_future(self._read(rank, stream)))
                return await self._serve()
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def _read(self, rank: int, stream: ObjectStream) -> None:
        """Note the outcomes that ``rank`` sends, until the group ends."""
        try:
            async for message in stream:
                if self._round is not None:
                    self._round.ended(Outcome.decode(rank, message))
            if self._queue.is_closed:
                return
            error: Exception = _revoked(self._group, f"rank {rank} has left the service")
        except StreamClosedError as given_up:
            error = _revoked(self._group, f"rank {rank} has left the service: {given_up}")
        except DistError as ended:
            error = ended
        self._end(error)
        if self._round is not None:
            self._round.fail(error)

    def _end(self, error: Exception) -> None:
        """Note that the group has ended, or has to be made anew."""
        if not self._ended.done():
            self._ended.set_exception(error)
            self._ended.exception()  # asked for: a leader that stops at this moment never comes to it

    async def _serve(self) -> bool:
        while True:
            taking = asyncio.ensure_future(self._queue.take(*self._batching))
            try:
                watched: set[asyncio.Future[Any]] = {taking, self._ended}
                await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            except BaseException:
                self._put_back(taking)
                raise
            if self._ended.done():
                self._put_back(taking)
                self._ended.result()  # raises
            batch = taking.result()
            if not batch:
                return True
            if isinstance(batch[0], Admission):
                if await self._admit(batch[0]):
                    return False
            else:
                await self._answer(batch)

    def _put_back(self, taking: asyncio.Future[Sequence[Request]]) -> None:
        """Stop ``taking``, and queue again the requests that it has taken."""
        if not taking.cancel() and not taking.cancelled():
            self._queue.put_back(taking.result())

    async def _admit(self, request: Request) -> bool:
        """Take newcomers in. Returns whether there is another group now."""
        try:
            await self._send([GROW, list(request.value)])
            group = await self._grow(request.value)
        except Exception as error:
            request.fail(error)
            if isinstance(error, GroupEndedError):
                raise
            return False
        except BaseException:  # the service stops on this rank, and its queue fails the request
            self._queue.put_back([request])
            raise
        request.succeed(group)
        return group is not self._group

    async def _answer(self, batch: Sequence[Request]) -> None:
        try:
            results = await self._carry_out([request.value for request in batch])
        except (TypeError, ValueError, OverflowError) as error:  # raised before anything was sent
            if len(batch) == 1:
                batch[0].fail(_about_request(error))
                return
            for number, request in enumerate(batch, 1):
                try:
                    await self._answer([request])
                except BaseException:
                    self._queue.put_back(batch[number:])  # these have not begun
                    raise
            return
        except BaseException as error:
            reason = error if isinstance(error, Exception) else _revoked(self._group, "it stops")
            for request in batch:
                request.fail(reason)
            raise
        if isinstance(results, Exception):
            for request in batch:
                request.fail(results)
        else:
            for request, result in zip(batch, results, strict=True):
                request.succeed(result)
        if self._ended.done():
            self._ended.result()

    async def _carry_out(self, values: list[Any]) -> Sequence[Any] | Exception:
        """Execute a batch on all ranks; return its results, or what the handler raised.

        Raises GroupEndedError where the group ended, TypeError for a request that cannot travel.
        """
        self._round = current = Round(self._group.ranks)
        try:
            await self._send([CALL, values])
            mine = asyncio.ensure_future(_results(self._handler, values))
            noting = asyncio.ensure_future(self._note(current, mine))
            try:
                await current.over
            finally:
                current.close()
                await stop(mine)
                await noting
        finally:
            self._round = None
        if not current.in_step:
            self._group.revoke()
            self._end(_revoked(self._group, "the ranks were out of step after an error"))
        results: Sequence[Any] = () if current.mine is None else current.mine.results
        return results if current.error is None else current.error

    async def _note(self, current: Round, mine: asyncio.Task[Any]) -> None:
        try:
            current.mine = await outcome_of(mine, self._group.global_rank, self._group._engine)
        except BaseException as error:  # the handler raised it: the service ends on this rank
            current.fail(error)
            raise
        current.ended(current.mine)

    async def _send(self, message: list[Any]) -> None:
        """Send ``message`` to all workers.

        Each stream packs it anew. An error of the packing is raised as it is where no worker has got the
        message. Where one has, the ranks are out of step: the group is revoked.
        """
        for number, stream in enumerate(self._streams.values()):
            try:
                await stream.send(message)
            except StreamClosedError as error:
                raise _revoked(self._group, f"a worker has left the service: {error}") from None
            except (TypeError, ValueError, OverflowError) as error:
                if not number:
                    raise
                self._group.revoke()
                raise _revoked(
                    self._group, f"some workers got a request that others cannot get: {error}"
                ) from None


async def _results(handler: Handler, values: list[Any]) -> Sequence[Any]:
    """Return one result for each of ``values``."""
    count = len(values)  # the handler may change its list
    results = await handler(values)
    is_list = isinstance(results, Sequence) and not isinstance(results, str | bytes | bytearray)
    if not is_list or len(results) != count:
        told = type(results).__name__
        raise InvalidUsageError(
            f"the handler of a service returns a list with one result for each of its {count} requests, "
            f"not {f'a {told} of {len(results)}' if is_list else told}"
        )
    return results


def _about_request(error: Exception) -> Exception:
    """Return ``error``, of packing a batch of one, without the place of the request in the batch."""
    text = str(error)
    if not text.startswith(_PLACE):
        return error
    return type(error)(f"request{text.removeprefix(_PLACE)}").with_traceback(error.__traceback__)


def _revoked(group: ProcessGroup, why: str) -> GroupRevokedError:
    return GroupRevokedError(
        f"the service goes on in a new group: {why}", group=group.group_name, rank=group.global_rank
    )
