"""`ProcessGroup`: what a program holds of a group, with the operations as methods."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, overload

from aiodist.api import object_streams, objects, p2p, state
from aiodist.api.collectives import Timeout
from aiodist.api.group_collectives import GroupCollectives
from aiodist.api.object_streams import DEFAULT_MAX_BYTES
from aiodist.groups.backend import ObjectStream, Received, ReceivedObject, Tensor
from aiodist.groups.group_engine import GroupEngine, NonGroupMember
from aiodist.groups.succession import shrink
from aiodist.groups.work import Work


class ProcessGroup(GroupCollectives):
    """Some of the world's ranks, in an order of their own.

    `own_rank` is this process's number among the group's `n_ranks`; ``ranks[i]`` is the
    global rank of group rank i. `rank`, `size` and `name` answer the same as methods, as in torch.
    Operations on one group start in the same order on all its ranks; different groups are
    independent of each other.

    Each operation of ``aiodist`` that takes a ``group`` is a method with the same parameters, without
    that one: ``await group.all_reduce(x)`` is ``await aiodist.all_reduce(x, group=group)``.
    """

    __slots__ = ()

    def shrink(self, timeout: Timeout = None) -> Coroutine[Any, Any, ProcessGroup]:
        """Return a working group of those members that are left: await it. See `aiodist.shrink`.

        Raises InvalidUsageError at the call outside the event loop of the group.
        """
        return _handle_of_result(shrink(self._engine, timeout))

    # -- messages

    def isend(
        self,
        tensor: Tensor,
        dst: int | None = None,
        tag: int = 0,
        group_dst: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Send ``tensor`` to rank ``dst``. Done when its memory may be changed again.

        As `aiodist.isend`, on this group.
        """
        return p2p.isend(tensor, dst, self, tag=tag, group_dst=group_dst, timeout=timeout)

    def irecv(
        self,
        tensor: Tensor,
        src: int | None = None,
        tag: int = 0,
        group_src: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[int]:
        """Receive into ``tensor`` from rank ``src``, or from any rank where None.

        As `aiodist.irecv`, on this group.
        """
        return p2p.irecv(tensor, src, self, tag=tag, group_src=group_src, timeout=timeout)

    def send(
        self,
        tensor: Tensor,
        dst: int | None = None,
        tag: int = 0,
        group_dst: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """The same as `isend`: in the async API every operation starts at the call.

        As `aiodist.send`, on this group.
        """
        return p2p.send(tensor, dst, self, tag=tag, group_dst=group_dst, timeout=timeout)

    @overload
    def recv(
        self,
        tensor: Tensor,
        src: int | None = None,
        tag: int = 0,
        group_src: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[int]: ...

    @overload
    def recv(
        self,
        tensor: None = None,
        src: int | None = None,
        tag: int = 0,
        group_src: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[Received]: ...

    def recv(
        self,
        tensor: Tensor | None = None,
        src: int | None = None,
        tag: int = 0,
        group_src: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[Any]:
        """With a tensor the same as `irecv`: its result is the sender's rank.

        As `aiodist.recv`, on this group.
        """
        return p2p.recv(tensor, src, self, tag=tag, group_src=group_src, timeout=timeout)

    # -- objects

    def broadcast_object_list(
        self,
        object_list: list[Any],
        src: int | None = None,
        device: Any = None,
        group_src: int | None = None,
        *,
        allow_pickle: bool | None = None,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Replace the entries of ``object_list`` on all ranks by those of rank ``src`` (default 0).

        As `aiodist.broadcast_object_list`, on this group.
        """
        return objects.broadcast_object_list(
            object_list,
            src,
            self,
            device=device,
            group_src=group_src,
            allow_pickle=allow_pickle,
            timeout=timeout,
        )

    def broadcast_object(
        self,
        obj: Any = None,
        src: int | None = None,
        group_src: int | None = None,
        *,
        allow_pickle: bool | None = None,
        timeout: Timeout = None,
    ) -> Work[Any]:
        """Send ``obj`` of rank ``src`` (default 0) to all ranks. The result is that object, on each.

        As `aiodist.broadcast_object`, on this group.
        """
        return objects.broadcast_object(
            obj, src, self, group_src=group_src, allow_pickle=allow_pickle, timeout=timeout
        )

    def all_gather_object(
        self,
        object_list: list[Any],
        obj: Any,
        *,
        allow_pickle: bool | None = None,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Fill ``object_list[r]`` with rank r's ``obj`` on all ranks. Its length is the group's size.

        As `aiodist.all_gather_object`, on this group.
        """
        return objects.all_gather_object(
            object_list, obj, self, allow_pickle=allow_pickle, timeout=timeout
        )

    def gather_object(
        self,
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group_dst: int | None = None,
        *,
        allow_pickle: bool | None = None,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Fill ``object_gather_list[r]`` on rank ``dst`` with rank r's ``obj``.

        As `aiodist.gather_object`, on this group.
        """
        return objects.gather_object(
            obj,
            object_gather_list,
            dst,
            self,
            group_dst=group_dst,
            allow_pickle=allow_pickle,
            timeout=timeout,
        )

    def scatter_object_list(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group_src: int | None = None,
        *,
        allow_pickle: bool | None = None,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Put entry r of rank ``src``'s input list into the output list's first place on each rank r.

        As `aiodist.scatter_object_list`, on this group.
        """
        return objects.scatter_object_list(
            scatter_object_output_list,
            scatter_object_input_list,
            src,
            self,
            group_src=group_src,
            allow_pickle=allow_pickle,
            timeout=timeout,
        )

    def send_object(
        self,
        obj: Any,
        dst: int | None = None,
        tag: int = 0,
        group_dst: int | None = None,
        *,
        allow_pickle: bool | None = None,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Send ``obj`` to rank ``dst``, where `recv_object` with an equal ``tag`` receives it.

        As `aiodist.send_object`, on this group.
        """
        return objects.send_object(
            obj, dst, tag, self, group_dst=group_dst, allow_pickle=allow_pickle, timeout=timeout
        )

    def recv_object(
        self,
        src: int | None = None,
        tag: int = 0,
        group_src: int | None = None,
        *,
        allow_pickle: bool | None = None,
        timeout: Timeout = None,
    ) -> Work[ReceivedObject]:
        """Receive an object from rank ``src``, or from any rank where None.

        As `aiodist.recv_object`, on this group.
        """
        return objects.recv_object(
            src, tag, self, group_src=group_src, allow_pickle=allow_pickle, timeout=timeout
        )

    def send_object_list(
        self,
        object_list: list[Any],
        dst: int | None = None,
        device: Any = None,
        group_dst: int | None = None,
        *,
        tag: int = 0,
        allow_pickle: bool | None = None,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Send a list of objects to rank ``dst``. ``device`` is for GPU backends.

        As `aiodist.send_object_list`, on this group.
        """
        return objects.send_object_list(
            object_list,
            dst,
            self,
            device=device,
            group_dst=group_dst,
            tag=tag,
            allow_pickle=allow_pickle,
            timeout=timeout,
        )

    def recv_object_list(
        self,
        object_list: list[Any],
        src: int | None = None,
        device: Any = None,
        group_src: int | None = None,
        *,
        tag: int = 0,
        allow_pickle: bool | None = None,
        timeout: Timeout = None,
    ) -> Work[int]:
        """Receive a list of objects, of the same length, from rank ``src``, or any where None.

        As `aiodist.recv_object_list`, on this group.
        """
        return objects.recv_object_list(
            object_list,
            src,
            self,
            device=device,
            group_src=group_src,
            tag=tag,
            allow_pickle=allow_pickle,
            timeout=timeout,
        )

    # -- streams

    def open_stream(
        self,
        peer: int | None = None,
        tag: int = 0,
        window: int = 8,
        group_peer: int | None = None,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        allow_pickle: bool | None = None,
    ) -> ObjectStream:
        """Open a stream of objects between this rank and rank ``peer`` (global; or ``group_peer``).

        As `aiodist.open_stream`, on this group.
        """
        return object_streams.open_stream(
            peer,
            tag,
            window,
            self,
            group_peer=group_peer,
            max_bytes=max_bytes,
            allow_pickle=allow_pickle,
        )

    # -- state

    async def sync_state(
        self,
        state_dict: Any,
        src: int | None = None,
        group_src: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Any:
        """Make ``state_dict`` on all ranks of this group bitwise equal to that of one; returns it.

        As `aiodist.sync_state`, on this group.
        """
        return await state.sync_state(
            state_dict, self, src=src, group_src=group_src, timeout=timeout
        )


Group = ProcessGroup | NonGroupMember
"""What functions that make a group return."""


def handle_of(engine: GroupEngine) -> ProcessGroup:
    """Return the handle of ``engine``, always the same one."""
    handle = engine.handle
    if not isinstance(handle, ProcessGroup):
        handle = engine.handle = ProcessGroup(engine)
    return handle


async def _handle_of_result(successor: Coroutine[Any, Any, GroupEngine]) -> ProcessGroup:
    return handle_of(await successor)
