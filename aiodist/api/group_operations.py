"""Operations as methods. Generated from `aiodist.api.*` by ``make generated``: edit that instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from aiodist.api import blocks, collectives, object_streams, objects, p2p, persistent, state
from aiodist.api.collectives import Timeout
from aiodist.api.object_streams import DEFAULT_MAX_BYTES
from aiodist.groups.collective_backend import ObjectStream
from aiodist.groups.handle import GroupHandle
from aiodist.groups.message import Received, ReceivedObject
from aiodist.groups.operation import Tensor
from aiodist.groups.persistent_collective import PersistentCollective
from aiodist.groups.work import Work
from aiodist.types import ReduceOp


class GroupOperations(GroupHandle):
    """The functions of `aiodist` that take a group as methods: each acts on this group."""

    __slots__ = ()

    def broadcast(
        self,
        tensor: Tensor,
        src: int | None = None,
        group_src: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Copy ``tensor`` of one rank into ``tensor`` of all ranks. See `aiodist.broadcast`."""
        return collectives.broadcast(tensor, src, self, group_src, timeout=timeout)

    def broadcast_new(
        self,
        tensor: Tensor | None = None,
        src: int | None = None,
        group_src: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[Tensor]:
        """Return ``tensor`` of one rank on all ranks, whatever its dtype and shape.

        See `aiodist.broadcast_new`.
        """
        return collectives.broadcast_new(tensor, src, self, group_src, timeout=timeout)

    def all_reduce(
        self, tensor: Tensor, op: ReduceOp | str = ReduceOp.SUM, *, timeout: Timeout = None
    ) -> Work[None]:
        """Reduce ``tensor`` over all ranks, in place; the result is bitwise the same on all ranks.

        See `aiodist.all_reduce`.
        """
        return collectives.all_reduce(tensor, op, self, timeout=timeout)

    def all_reduce_coalesced(
        self,
        tensors: Sequence[Tensor],
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Reduce several tensors in one operation, in place. See `aiodist.all_reduce_coalesced`."""
        return collectives.all_reduce_coalesced(tensors, op, self, timeout=timeout)

    def reduce(
        self,
        tensor: Tensor,
        dst: int | None = None,
        op: ReduceOp | str = ReduceOp.SUM,
        group_dst: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Reduce ``tensor`` over all ranks into that of one rank. See `aiodist.reduce`."""
        return collectives.reduce(tensor, dst, op, self, group_dst, timeout=timeout)

    def barrier(
        self, device_ids: Sequence[int] | None = None, timeout: Timeout = None
    ) -> Work[None]:
        """Wait until all ranks of the group have called it. See `aiodist.barrier`."""
        return collectives.barrier(self, device_ids, timeout)

    def monitored_barrier(
        self, timeout: Timeout = None, wait_all_ranks: bool = False
    ) -> Work[None]:
        """Wait for all ranks as `barrier`, and name all ranks that did not come in time.

        See `aiodist.monitored_barrier`.
        """
        return collectives.monitored_barrier(self, timeout, wait_all_ranks)

    def all_gather_new(self, tensor: Tensor, *, timeout: Timeout = None) -> Work[list[Tensor]]:
        """Return the tensors of all ranks as new tensors on the CPU. See `aiodist.all_gather_new`."""
        return blocks.all_gather_new(tensor, self, timeout=timeout)

    def all_gather(
        self, tensor_list: list[Tensor], tensor: Tensor, *, timeout: Timeout = None
    ) -> Work[None]:
        """Fill ``tensor_list[r]`` with rank r's ``tensor`` on all ranks. See `aiodist.all_gather`."""
        return blocks.all_gather(tensor_list, tensor, self, timeout=timeout)

    def all_gather_coalesced(
        self,
        output_tensor_lists: list[list[Tensor]],
        input_tensor_list: list[Tensor],
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Fill ``output_tensor_lists[r][i]`` with rank r's ``input_tensor_list[i]`` on all ranks.

        See `aiodist.all_gather_coalesced`.
        """
        return blocks.all_gather_coalesced(
            output_tensor_lists, input_tensor_list, self, timeout=timeout
        )

    def all_gather_into_tensor(
        self, output_tensor: Tensor, input_tensor: Tensor, *, timeout: Timeout = None
    ) -> Work[None]:
        """Gather ``input_tensor`` of all ranks, one after the other, into one ``output_tensor``.

        See `aiodist.all_gather_into_tensor`.
        """
        return blocks.all_gather_into_tensor(output_tensor, input_tensor, self, timeout=timeout)

    def gather(
        self,
        tensor: Tensor,
        gather_list: list[Tensor] | None = None,
        dst: int | None = None,
        group_dst: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Fill ``gather_list[r]`` on one rank with rank r's ``tensor``. See `aiodist.gather`."""
        return blocks.gather(tensor, gather_list, dst, self, group_dst, timeout=timeout)

    def gather_single(
        self,
        tensor: Tensor,
        gather_tensor: Tensor | None = None,
        dst: int | None = None,
        group_dst: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Gather ``tensor`` of all ranks, one after the other, into one ``gather_tensor`` on one rank.

        See `aiodist.gather_single`.
        """
        return blocks.gather_single(tensor, gather_tensor, dst, self, group_dst, timeout=timeout)

    def scatter(
        self,
        tensor: Tensor,
        scatter_list: list[Tensor] | None = None,
        src: int | None = None,
        group_src: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Fill ``tensor`` on each rank r with ``scatter_list[r]`` of one rank. See `aiodist.scatter`."""
        return blocks.scatter(tensor, scatter_list, src, self, group_src, timeout=timeout)

    def reduce_scatter(
        self,
        output: Tensor,
        input_list: list[Tensor],
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Reduce ``input_list[r]`` over all ranks into rank r's ``output``.

        See `aiodist.reduce_scatter`.
        """
        return blocks.reduce_scatter(output, input_list, op, self, timeout=timeout)

    def reduce_scatter_tensor(
        self,
        output: Tensor,
        input: Tensor,
        op: ReduceOp | str = ReduceOp.SUM,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Reduce ``input`` over all ranks; rank r gets the r-th of its equal parts in ``output``.

        See `aiodist.reduce_scatter_tensor`.
        """
        return blocks.reduce_scatter_tensor(output, input, op, self, timeout=timeout)

    def all_to_all(
        self,
        output_tensor_list: list[Tensor],
        input_tensor_list: list[Tensor],
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Send ``input_tensor_list[r]`` to each rank r; fill ``output_tensor_list[r]`` from rank r.

        See `aiodist.all_to_all`.
        """
        return blocks.all_to_all(output_tensor_list, input_tensor_list, self, timeout=timeout)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Send some rows of ``input`` to each rank; fill ``output`` with the rows that come.

        See `aiodist.all_to_all_single`.
        """
        return blocks.all_to_all_single(
            output, input, output_split_sizes, input_split_sizes, self, timeout=timeout
        )

    all_gather_single = all_gather_into_tensor  # torch has both names

    gather_into_tensor = gather_single  # torch has both names

    reduce_scatter_single = reduce_scatter_tensor  # torch has both names

    def barrier_init(self) -> PersistentCollective:
        """Prepare a `barrier`, which each ``start()`` of the result runs. See `aiodist.barrier_init`."""
        return persistent.barrier_init(self)

    def broadcast_init(
        self, tensor: Tensor, src: int | None = None, group_src: int | None = None
    ) -> PersistentCollective:
        """Prepare a `broadcast` of ``tensor``, which each ``start()`` of the result runs.

        See `aiodist.broadcast_init`.
        """
        return persistent.broadcast_init(tensor, src, self, group_src)

    def reduce_init(
        self,
        tensor: Tensor,
        dst: int | None = None,
        op: ReduceOp | str = ReduceOp.SUM,
        group_dst: int | None = None,
    ) -> PersistentCollective:
        """Prepare a `reduce` of ``tensor``, which each ``start()`` of the result runs.

        See `aiodist.reduce_init`.
        """
        return persistent.reduce_init(tensor, dst, op, self, group_dst)

    def all_reduce_init(
        self, tensor: Tensor, op: ReduceOp | str = ReduceOp.SUM
    ) -> PersistentCollective:
        """Prepare an `all_reduce` of ``tensor``, which each ``start()`` of the result runs.

        See `aiodist.all_reduce_init`.
        """
        return persistent.all_reduce_init(tensor, op, self)

    def all_gather_into_tensor_init(
        self, output_tensor: Tensor, input_tensor: Tensor
    ) -> PersistentCollective:
        """Prepare an `all_gather_into_tensor`, which each ``start()`` of the result runs.

        See `aiodist.all_gather_into_tensor_init`.
        """
        return persistent.all_gather_into_tensor_init(output_tensor, input_tensor, self)

    def reduce_scatter_tensor_init(
        self, output: Tensor, input: Tensor, op: ReduceOp | str = ReduceOp.SUM
    ) -> PersistentCollective:
        """Prepare a `reduce_scatter_tensor`, which each ``start()`` of the result runs.

        See `aiodist.reduce_scatter_tensor_init`.
        """
        return persistent.reduce_scatter_tensor_init(output, input, op, self)

    def all_to_all_single_init(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
    ) -> PersistentCollective:
        """Prepare an `all_to_all_single`, which each ``start()`` of the result runs.

        See `aiodist.all_to_all_single_init`.
        """
        return persistent.all_to_all_single_init(
            output, input, output_split_sizes, input_split_sizes, self
        )

    def isend(
        self,
        tensor: Tensor,
        dst: int | None = None,
        tag: int = 0,
        group_dst: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Send ``tensor`` to one rank. It is done when its memory may be changed again.

        See `aiodist.isend`.
        """
        return p2p.isend(tensor, dst, self, tag, group_dst, timeout=timeout)

    def irecv(
        self,
        tensor: Tensor,
        src: int | None = None,
        tag: int = 0,
        group_src: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[int]:
        """Receive into ``tensor`` from one rank, or from any rank. See `aiodist.irecv`."""
        return p2p.irecv(tensor, src, self, tag, group_src, timeout=timeout)

    def send(
        self,
        tensor: Tensor,
        dst: int | None = None,
        tag: int = 0,
        group_dst: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Send ``tensor`` to one rank, as `isend` does. See `aiodist.send`."""
        return p2p.send(tensor, dst, self, tag, group_dst, timeout=timeout)

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
        """Receive a tensor from one rank, or from any rank. See `aiodist.recv`."""
        return p2p.recv(tensor, src, self, tag, group_src, timeout=timeout)

    def broadcast_object_list(
        self,
        object_list: list[Any],
        src: int | None = None,
        device: Any = None,
        group_src: int | None = None,
        weights_only: bool = False,
        *,
        allow_pickle: bool | None = None,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Replace the entries of ``object_list`` on all ranks by those of one rank.

        See `aiodist.broadcast_object_list`.
        """
        return objects.broadcast_object_list(
            object_list,
            src,
            self,
            device,
            group_src,
            weights_only,
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
        """Send an object of one rank to all ranks. See `aiodist.broadcast_object`."""
        return objects.broadcast_object(
            obj, src, self, group_src, allow_pickle=allow_pickle, timeout=timeout
        )

    def all_gather_object(
        self,
        object_list: list[Any],
        obj: Any,
        weights_only: bool = False,
        *,
        allow_pickle: bool | None = None,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Fill ``object_list[r]`` with rank r's ``obj`` on all ranks. See `aiodist.all_gather_object`."""
        return objects.all_gather_object(
            object_list, obj, self, weights_only, allow_pickle=allow_pickle, timeout=timeout
        )

    def gather_object(
        self,
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group_dst: int | None = None,
        weights_only: bool = False,
        *,
        allow_pickle: bool | None = None,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Fill ``object_gather_list[r]`` on one rank with rank r's ``obj``. See `aiodist.gather_object`."""
        return objects.gather_object(
            obj,
            object_gather_list,
            dst,
            self,
            group_dst,
            weights_only,
            allow_pickle=allow_pickle,
            timeout=timeout,
        )

    def scatter_object_list(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group_src: int | None = None,
        weights_only: bool = False,
        *,
        allow_pickle: bool | None = None,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Put ``scatter_object_input_list[r]`` of one rank into the output list of each rank r.

        See `aiodist.scatter_object_list`.
        """
        return objects.scatter_object_list(
            scatter_object_output_list,
            scatter_object_input_list,
            src,
            self,
            group_src,
            weights_only,
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
        """Send ``obj`` to one rank, which receives it by `recv_object`. See `aiodist.send_object`."""
        return objects.send_object(
            obj, dst, tag, self, group_dst, allow_pickle=allow_pickle, timeout=timeout
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
        """Receive an object from one rank, or from any rank: ``obj, source = await recv_object()``.

        See `aiodist.recv_object`.
        """
        return objects.recv_object(
            src, tag, self, group_src, allow_pickle=allow_pickle, timeout=timeout
        )

    def send_object_list(
        self,
        object_list: list[Any],
        dst: int | None = None,
        device: Any = None,
        group_dst: int | None = None,
        use_batch: bool = False,
        weights_only: bool = False,
        *,
        tag: int = 0,
        allow_pickle: bool | None = None,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Send a list of objects to one rank, which receives it by `recv_object_list`.

        See `aiodist.send_object_list`.
        """
        return objects.send_object_list(
            object_list,
            dst,
            self,
            device,
            group_dst,
            use_batch,
            weights_only,
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
        use_batch: bool = False,
        weights_only: bool = False,
        *,
        tag: int = 0,
        allow_pickle: bool | None = None,
        timeout: Timeout = None,
    ) -> Work[int]:
        """Receive a list of objects from one rank, or from any rank. See `aiodist.recv_object_list`."""
        return objects.recv_object_list(
            object_list,
            src,
            self,
            device,
            group_src,
            use_batch,
            weights_only,
            tag=tag,
            allow_pickle=allow_pickle,
            timeout=timeout,
        )

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
        """Open a stream of objects between this rank and another one. See `aiodist.open_stream`."""
        return object_streams.open_stream(
            peer, tag, window, self, group_peer, max_bytes=max_bytes, allow_pickle=allow_pickle
        )

    async def sync_state(
        self,
        state_dict: Any,
        src: int | None = None,
        group_src: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Any:
        """Make ``state_dict`` on all ranks of a group bitwise equal to that of one.

        See `aiodist.sync_state`.
        """
        return await state.sync_state(state_dict, self, src, group_src, timeout=timeout)
