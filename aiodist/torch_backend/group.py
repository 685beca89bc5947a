"""A ``torch.distributed.ProcessGroup`` whose operations run on the engine.

torch passes tensors in lists of one (a relic of one process with many devices) and options in
small objects. Here they become calls of the engine's backend, which checks them and has the
algorithms. Ranks are the group's own numbers on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from torch._C import _distributed_c10d as c10d

from aiodist.groups.argument_checks import check_other, check_rank, check_tag
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.message import Recv, Send
from aiodist.groups.operation import (
    AllGather,
    AllGatherCoalesced,
    AllGatherSingle,
    AllReduce,
    AllReduceCoalesced,
    AllToAll,
    AllToAllSingle,
    Barrier,
    Broadcast,
    Gather,
    GatherSingle,
    Reduce,
    ReduceScatter,
    ReduceScatterSingle,
    Scatter,
)
from aiodist.groups.work import Work
from aiodist.torch_backend.call_forms import also_short, takes_async_tensors
from aiodist.torch_backend.group_state import Membership, Tensor
from aiodist.torch_backend.options import reduce_op, root_rank, single, splits
from aiodist.torch_backend.sparse import all_reduce_sparse
from aiodist.torch_backend.torch_work import TorchReceive, TorchWork


@takes_async_tensors
class TorchGroup(Membership):
    """The group that ``init_process_group("aiodist")`` and ``new_group`` of torch return.

    Calls return at once and raise nothing. Errors, those of arguments too, come with the `Work`.
    Methods with `also_short` take both of torch's forms of a call. Parameters have torch's names.
    Operations start in the order of the calls. Those that ``then`` callbacks of a future start come
    before those of later calls (see `TorchWork.get_future`).
    """

    # -- all to all ranks

    @also_short("tensor", "op", "timeout")
    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> c10d.Work:
        op = reduce_op(opts)
        if any(tensor.is_sparse for tensor in tensors):
            tensor = single(tensors, "tensors")

            def start_sparse(group: GroupEngine, timeout: float | None) -> Work[Any]:
                return all_reduce_sparse(group, tensor, op(), timeout)

            return self._start("sparse_all_reduce", start_sparse, tensors, opts)

        def start(group: GroupEngine, timeout: float | None) -> Iterator[Work[Any]]:
            reduce = op()
            return (group.start(AllReduce(tensor, reduce), timeout) for tensor in tensors)

        return self._start("all_reduce", start, tensors, opts)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> c10d.Work:
        op = reduce_op(opts)

        def start(group: GroupEngine, timeout: float | None) -> Work[Any]:
            return group.start(AllReduceCoalesced(tensors, op()), timeout)

        return self._start("all_reduce", start, tensors, opts)

    @also_short("output_tensors", "input_tensor", "timeout")
    def allgather(
        self,
        output_tensors: Sequence[Sequence[Tensor]],
        input_tensors: Sequence[Tensor],
        opts: Any = None,
    ) -> c10d.Work:
        def start(group: GroupEngine, timeout: float | None) -> Iterator[Work[Any]]:
            pairs = zip(output_tensors, input_tensors, strict=True)
            return (group.start(AllGather(row, tensor), timeout) for row, tensor in pairs)

        return self._start("all_gather", start, _flat(output_tensors), opts)

    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[Tensor]],
        input_list: Sequence[Tensor],
        opts: Any = None,
    ) -> c10d.Work:
        def start(group: GroupEngine, timeout: float | None) -> Work[Any]:
            return group.start(AllGatherCoalesced(output_lists, input_list), timeout)

        # The value of Gloo's future: all lists, but of a group of one rank only its list.
        value = list(output_lists) if len(output_lists) > 1 else None
        return self._start("all_gather_coalesced", start, _flat(output_lists), opts, value)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> c10d.Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> c10d.Work:
        def start(group: GroupEngine, timeout: float | None) -> Iterator[Work[Any]]:
            pairs = zip(outputs, inputs, strict=True)
            return (group.start(AllGatherSingle(out, tensor), timeout) for out, tensor in pairs)

        return self._start("all_gather_single", start, outputs, opts)

    @also_short("output", "input", "op", "timeout")
    def reduce_scatter(
        self,
        output_tensors: Sequence[Tensor],
        input_tensors: Sequence[Sequence[Tensor]],
        opts: Any = None,
    ) -> c10d.Work:
        op = reduce_op(opts)

        def start(group: GroupEngine, timeout: float | None) -> Iterator[Work[Any]]:
            reduce, pairs = op(), zip(output_tensors, input_tensors, strict=True)
            return (group.start(ReduceScatter(out, row, reduce), timeout) for out, row in pairs)

        return self._start("reduce_scatter", start, output_tensors, opts)

    def reduce_scatter_single(
        self,
        outputTensor: Tensor,  # noqa: N803  # torch's names
        inputTensor: Tensor,  # noqa: N803
        opts: Any = None,
    ) -> c10d.Work:
        return self.reduce_scatter_single_coalesced([outputTensor], [inputTensor], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> c10d.Work:
        op = reduce_op(opts)

        def start(group: GroupEngine, timeout: float | None) -> Iterator[Work[Any]]:
            reduce, pairs = op(), zip(outputs, inputs, strict=True)
            return (
                group.start(ReduceScatterSingle(out, tensor, reduce), timeout)
                for out, tensor in pairs
            )

        return self._start("reduce_scatter_single", start, outputs, opts)

    def alltoall(
        self, output_tensors: Sequence[Tensor], input_tensors: Sequence[Tensor], opts: Any = None
    ) -> c10d.Work:
        def start(group: GroupEngine, timeout: float | None) -> Work[Any]:
            return group.start(AllToAll(output_tensors, input_tensors), timeout)

        return self._start("all_to_all", start, output_tensors, opts)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> c10d.Work:
        def start(group: GroupEngine, seconds: float | None) -> Work[Any]:
            out_of, into = splits(input_split_sizes), splits(output_split_sizes)
            return group.start(AllToAllSingle(output, input, into, out_of), seconds)

        return self._start("all_to_all_single", start, [output], opts or timeout)

    @also_short("timeout")
    def barrier(self, opts: Any = None) -> c10d.Work:
        return self._start(
            "barrier", lambda group, timeout: group.start(Barrier(), timeout), [], opts
        )

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Run a barrier that names all missing ranks after ``timeout``.

        ``torch.distributed.monitored_barrier`` refuses every backend that is not called "gloo".
        Call this method on the group instead.
        """
        options = c10d.BarrierOptions()
        if timeout is not None:
            options.timeout = timeout
        if hasattr(options, "asyncOp"):  # since torch 2.7
            options.asyncOp = False
        self.barrier(options).wait()

    # -- one to all, all to one

    @also_short("tensor", "root", "timeout")
    def broadcast(self, tensors: Sequence[Tensor], opts: Any = None) -> c10d.Work:
        given_root = root_rank(opts)

        def start(group: GroupEngine, timeout: float | None) -> Iterator[Work[Any]]:
            root = check_rank(group, None, given_root, "src")
            return (group.start(Broadcast(tensor, root), timeout) for tensor in tensors)

        return self._start("broadcast", start, tensors, opts)

    @also_short("tensor", "root", "op", "timeout")
    def reduce(self, tensors: Sequence[Tensor], opts: Any = None) -> c10d.Work:
        given_root, op = root_rank(opts), reduce_op(opts)

        def start(group: GroupEngine, timeout: float | None) -> Iterator[Work[Any]]:
            root, reduce = check_rank(group, None, given_root, "dst"), op()
            return (group.start(Reduce(tensor, root, reduce), timeout) for tensor in tensors)

        return self._start("reduce", start, tensors, opts)

    @also_short("output_tensors", "input_tensor", "root", "timeout")
    def gather(
        self,
        output_tensors: Sequence[Sequence[Tensor]],
        input_tensors: Sequence[Tensor],
        opts: Any = None,
    ) -> c10d.Work:
        given_root = root_rank(opts)

        def start(group: GroupEngine, timeout: float | None) -> Work[Any]:
            root = check_rank(group, None, given_root, "dst")
            places = single(output_tensors, "output_tensors") if output_tensors else None
            tensor = single(input_tensors, "input_tensors")
            return group.start(Gather(tensor, places, root), timeout)

        return self._start("gather", start, _flat(output_tensors), opts)

    def gather_single(self, output: Tensor | None, input: Tensor, opts: Any = None) -> c10d.Work:
        given_root = root_rank(opts)

        def start(group: GroupEngine, timeout: float | None) -> Work[Any]:
            root = check_rank(group, None, given_root, "dst")
            return group.start(GatherSingle(input, output, root), timeout)

        return self._start("gather_single", start, [] if output is None else [output], opts)

    @also_short("output_tensor", "input_tensors", "root", "timeout")
    def scatter(
        self,
        output_tensors: Sequence[Tensor],
        input_tensors: Sequence[Sequence[Tensor]],
        opts: Any = None,
    ) -> c10d.Work:
        given_root = root_rank(opts)

        def start(group: GroupEngine, timeout: float | None) -> Work[Any]:
            root = check_rank(group, None, given_root, "src")
            sources = single(input_tensors, "input_tensors") if input_tensors else None
            tensor = single(output_tensors, "output_tensors")
            return group.start(Scatter(tensor, sources, root), timeout)

        return self._start("scatter", start, output_tensors, opts)

    # -- point to point

    def send(
        self,
        tensors: Sequence[Tensor],
        dstRank: int,  # noqa: N803  # torch's name
        tag: int,
    ) -> c10d.Work:
        timeout = self._timeout_of_call()

        def start() -> Work[Any]:
            self._check_device(tensors)
            to = check_other(self._engine, check_rank(self._engine, None, dstRank, "dst"), "dst")
            tensor = single(tensors, "tensors")
            return self._engine.start(Send(tensor, to, check_tag(tag)), timeout)

        operation = self._submit("send", start)
        return self._handed(TorchWork(operation, tensors, None))

    def recv(
        self,
        tensors: Sequence[Tensor],
        srcRank: int | None,  # noqa: N803  # torch's name
        tag: int,
    ) -> c10d.Work:
        timeout = self._timeout_of_call()

        def start() -> Work[Any]:
            self._check_device(tensors)
            source = srcRank
            if source is not None:
                source = check_other(
                    self._engine, check_rank(self._engine, None, source, "src"), "src"
                )
            tensor = single(tensors, "tensors")
            return self._engine.start(Recv(tensor, source, check_tag(tag)), timeout)

        name = "recvAnySource" if srcRank is None else "recv"
        operation = self._submit(name, start)
        return self._handed(TorchReceive(operation, tensors, self._engine.group_rank))

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int) -> c10d.Work:
        return self.recv(tensors, None, tag)

    # -- older names for the same

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    gather_into_tensor = gather_single


def _flat(rows: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [tensor for row in rows for tensor in row]
