"""The collectives of `aiodist.api.collectives` as methods of a group."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.api import collectives
from aiodist.api.collectives import Timeout
from aiodist.groups.backend import Tensor
from aiodist.groups.handle import GroupHandle
from aiodist.groups.work import Work
from aiodist.types import ReduceOp


class GroupCollectives(GroupHandle):
    """A group whose collectives are methods."""

    __slots__ = ()

    def broadcast(
        self,
        tensor: Tensor,
        src: int | None = None,
        group_src: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Copy ``tensor`` of rank ``src`` (global; or ``group_src``) into ``tensor`` of all ranks.

        As `aiodist.broadcast`, on this group.
        """
        return collectives.broadcast(tensor, src, self, group_src=group_src, timeout=timeout)

    def broadcast_new(
        self,
        tensor: Tensor | None = None,
        src: int | None = None,
        group_src: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[Tensor]:
        """Return ``tensor`` of rank ``src`` (global; or ``group_src``) on all ranks.

        As `aiodist.broadcast_new`, on this group.
        """
        return collectives.broadcast_new(tensor, src, self, group_src=group_src, timeout=timeout)

    def all_gather_new(self, tensor: Tensor, *, timeout: Timeout = None) -> Work[list[Tensor]]:
        """Return the tensors of all ranks, by group rank, as new tensors on the CPU.

        As `aiodist.all_gather_new`, on this group.
        """
        return collectives.all_gather_new(tensor, self, timeout=timeout)

    def all_reduce(
        self, tensor: Tensor, op: ReduceOp = ReduceOp.SUM, *, timeout: Timeout = None
    ) -> Work[None]:
        """Reduce ``tensor`` over all ranks, in place; the result is bitwise the same on all ranks.

        As `aiodist.all_reduce`, on this group.
        """
        return collectives.all_reduce(tensor, op, self, timeout=timeout)

    def all_reduce_coalesced(
        self, tensors: Sequence[Tensor], op: ReduceOp = ReduceOp.SUM, *, timeout: Timeout = None
    ) -> Work[None]:
        """Reduce several tensors of one dtype in one operation, in place.

        As `aiodist.all_reduce_coalesced`, on this group.
        """
        return collectives.all_reduce_coalesced(tensors, op, self, timeout=timeout)

    def reduce(
        self,
        tensor: Tensor,
        dst: int | None = None,
        op: ReduceOp = ReduceOp.SUM,
        group_dst: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Reduce ``tensor`` over all ranks into that of rank ``dst``; the others' stay as they are.

        As `aiodist.reduce`, on this group.
        """
        return collectives.reduce(tensor, dst, op, self, group_dst=group_dst, timeout=timeout)

    def all_gather(
        self, tensor_list: list[Tensor], tensor: Tensor, *, timeout: Timeout = None
    ) -> Work[None]:
        """Fill ``tensor_list[r]`` with rank r's ``tensor`` on all ranks.

        As `aiodist.all_gather`, on this group.
        """
        return collectives.all_gather(tensor_list, tensor, self, timeout=timeout)

    def all_gather_coalesced(
        self,
        output_tensor_lists: list[list[Tensor]],
        input_tensor_list: list[Tensor],
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Fill ``output_tensor_lists[r][i]`` with rank r's ``input_tensor_list[i]`` on all ranks.

        As `aiodist.all_gather_coalesced`, on this group.
        """
        return collectives.all_gather_coalesced(
            output_tensor_lists, input_tensor_list, self, timeout=timeout
        )

    def all_gather_into_tensor(
        self, output_tensor: Tensor, input_tensor: Tensor, *, timeout: Timeout = None
    ) -> Work[None]:
        """Gather ``input_tensor`` of all ranks, one after the other, into one ``output_tensor``.

        As `aiodist.all_gather_into_tensor`, on this group.
        """
        return collectives.all_gather_into_tensor(
            output_tensor, input_tensor, self, timeout=timeout
        )

    def gather(
        self,
        tensor: Tensor,
        gather_list: list[Tensor] | None = None,
        dst: int | None = None,
        group_dst: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Fill ``gather_list[r]`` on rank ``dst`` (default: the group's first) with rank r's ``tensor``.

        As `aiodist.gather`, on this group.
        """
        return collectives.gather(
            tensor, gather_list, dst, self, group_dst=group_dst, timeout=timeout
        )

    def scatter(
        self,
        tensor: Tensor,
        scatter_list: list[Tensor] | None = None,
        src: int | None = None,
        group_src: int | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Fill ``tensor`` on each rank r with ``scatter_list[r]`` of rank ``src`` (default: the first).

        As `aiodist.scatter`, on this group.
        """
        return collectives.scatter(
            tensor, scatter_list, src, self, group_src=group_src, timeout=timeout
        )

    def reduce_scatter(
        self,
        output: Tensor,
        input_list: list[Tensor],
        op: ReduceOp = ReduceOp.SUM,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Reduce ``input_list[r]`` over all ranks into rank r's ``output``. Inputs stay as they are.

        As `aiodist.reduce_scatter`, on this group.
        """
        return collectives.reduce_scatter(output, input_list, op, self, timeout=timeout)

    def reduce_scatter_tensor(
        self, output: Tensor, input: Tensor, op: ReduceOp = ReduceOp.SUM, *, timeout: Timeout = None
    ) -> Work[None]:
        """Reduce ``input`` over all ranks and leave rank r the r-th of its equal parts, in ``output``.

        As `aiodist.reduce_scatter_tensor`, on this group.
        """
        return collectives.reduce_scatter_tensor(output, input, op, self, timeout=timeout)

    def all_to_all(
        self,
        output_tensor_list: list[Tensor],
        input_tensor_list: list[Tensor],
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Send ``input_tensor_list[r]`` to each rank r; fill ``output_tensor_list[r]`` from rank r.

        As `aiodist.all_to_all`, on this group.
        """
        return collectives.all_to_all(output_tensor_list, input_tensor_list, self, timeout=timeout)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        *,
        timeout: Timeout = None,
    ) -> Work[None]:
        """Send ``input_split_sizes[r]`` rows of ``input`` to each rank r, and the like for ``output``.

        As `aiodist.all_to_all_single`, on this group.
        """
        return collectives.all_to_all_single(
            output, input, output_split_sizes, input_split_sizes, self, timeout=timeout
        )

    def barrier(
        self, device_ids: Sequence[int] | None = None, *, timeout: Timeout = None
    ) -> Work[None]:
        """Done when all ranks of the group have called it. ``device_ids`` is for GPU backends.

        As `aiodist.barrier`, on this group.
        """
        return collectives.barrier(self, device_ids=device_ids, timeout=timeout)

    def monitored_barrier(
        self, timeout: Timeout = None, wait_all_ranks: bool = False
    ) -> Work[None]:
        """A barrier whose CollectiveTimeoutError, on every rank that came, names all that did not.

        As `aiodist.monitored_barrier`, on this group.
        """
        return collectives.monitored_barrier(self, timeout=timeout, wait_all_ranks=wait_all_ranks)

    all_gather_single = all_gather_into_tensor
    reduce_scatter_single = reduce_scatter_tensor
