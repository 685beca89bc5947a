"""A ``torch.distributed.ProcessGroup`` whose operations run on the engine.

torch passes tensors in lists of one (a relic of one process with many devices) and options in
small objects; here they become calls of the engine's backend, which checks them and has the
algorithms. Ranks are the group's own numbers on both sides.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from aiodist.errors import InvalidUsageError
from aiodist.groups.checks import (
    check_list,
    check_other,
    check_rank,
    check_root_list,
    check_tag,
)
from aiodist.groups.process_group import ProcessGroup
from aiodist.groups.work import Work
from aiodist.torch_backend.futures import Completions, level_here
from aiodist.torch_backend.operation import Operation
from aiodist.torch_backend.options import reduce_op, seconds_of, single, splits
from aiodist.torch_backend.profiling import record
from aiodist.torch_backend.sparse import all_reduce_sparse
from aiodist.torch_backend.work import TorchReceive, TorchWork, together
from aiodist.torch_backend.worlds import TorchWorld

Tensor = torch.Tensor
Start = Callable[[ProcessGroup, float | None], Work[Any] | Sequence[Work[Any]]]
"""Starts operations of a group of the engine, with a timeout in seconds."""


# torch's stubs overload each method for calls that nobody makes on a Python subclass.
_Base: Any = c10d.ProcessGroup


class TorchGroup(_Base):  # type: ignore[misc]  # see above
    """What ``init_process_group("aiodist")`` and ``new_group`` of torch give.

    Calls return at once and raise nothing; errors, those of arguments too, come with the `Work`.
    They start in the order of the calls; what ``then`` callbacks of a future start, before what
    is called after it (see `TorchWork.get_future`).
    """

    def __init__(self, world: TorchWorld, group: ProcessGroup, owns_world: bool) -> None:
        """``owns_world``: the world closes with this group."""
        super().__init__(group.own_rank, group.n_ranks)
        self._world = world
        self._group = group
        self._owns_world = owns_world
        self._pid = os.getpid()
        self._group_name = ""
        self._group_desc = ""
        self._levels = [Completions()]
        self._messages = Completions()
        self._coalesced: list[TorchWork] | None = None
        self._parts: list[TorchGroup] = []

    # -- all to all ranks

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> TorchWork:
        op = reduce_op(opts)
        if any(tensor.is_sparse for tensor in tensors):
            tensor = single(tensors, "tensors")

            def start_sparse(group: ProcessGroup, timeout: float | None) -> Work[Any]:
                return all_reduce_sparse(group, tensor, op(), timeout)

            return self._start("sparse_all_reduce", start_sparse, tensors, opts)

        def start(group: ProcessGroup, timeout: float | None) -> list[Work[Any]]:
            reduce = op()
            return [group.backend.all_reduce(tensor, reduce, timeout) for tensor in tensors]

        return self._start("all_reduce", start, tensors, opts)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> TorchWork:
        op = reduce_op(opts)

        def start(group: ProcessGroup, timeout: float | None) -> Work[Any]:
            return group.backend.all_reduce_coalesced(tensors, op(), timeout)

        return self._start("all_reduce", start, tensors, opts)

    def allgather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> TorchWork:
        def start(group: ProcessGroup, timeout: float | None) -> list[Work[Any]]:
            rows = [check_list(row, "tensor_list", group.n_ranks) for row in outputs]
            pairs = zip(rows, inputs, strict=True)
            return [group.backend.all_gather(row, tensor, timeout) for row, tensor in pairs]

        return self._start("all_gather", start, [tensor for row in outputs for tensor in row], opts)

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> TorchWork:
        def start(group: ProcessGroup, timeout: float | None) -> Work[Any]:
            rows = check_list(outputs, "output_tensor_lists", group.n_ranks)
            for row in rows:
                check_list(row, "each of output_tensor_lists", len(inputs), each="tensor")
            return group.backend.all_gather_coalesced(rows, inputs, timeout)

        return self._start(
            "all_gather_coalesced", start, [tensor for row in outputs for tensor in row], opts
        )

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> TorchWork:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> TorchWork:
        def start(group: ProcessGroup, timeout: float | None) -> list[Work[Any]]:
            pairs = zip(outputs, inputs, strict=True)
            return [group.backend.all_gather_into(out, tensor, timeout) for out, tensor in pairs]

        return self._start("all_gather_single", start, outputs, opts)

    def reduce_scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any = None
    ) -> TorchWork:
        op = reduce_op(opts)

        def start(group: ProcessGroup, timeout: float | None) -> list[Work[Any]]:
            rows = [check_list(row, "input_list", group.n_ranks) for row in inputs]
            reduce, pairs = op(), zip(outputs, rows, strict=True)
            return [group.backend.reduce_scatter(out, row, reduce, timeout) for out, row in pairs]

        return self._start("reduce_scatter", start, outputs, opts)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> TorchWork:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> TorchWork:
        op = reduce_op(opts)

        def start(group: ProcessGroup, timeout: float | None) -> list[Work[Any]]:
            reduce, pairs = op(), zip(outputs, inputs, strict=True)
            return [
                group.backend.reduce_scatter_from(out, tensor, reduce, timeout)
                for out, tensor in pairs
            ]

        return self._start("reduce_scatter_single", start, outputs, opts)

    def alltoall(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> TorchWork:
        def start(group: ProcessGroup, timeout: float | None) -> Work[Any]:
            check_list(outputs, "output_tensor_list", group.n_ranks)
            check_list(inputs, "input_tensor_list", group.n_ranks)
            return group.backend.all_to_all(outputs, inputs, timeout)

        return self._start("all_to_all", start, outputs, opts)

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> TorchWork:
        def start(group: ProcessGroup, timeout: float | None) -> Work[Any]:
            return group.backend.all_to_all_single(
                output, tensor, splits(output_split_sizes), splits(input_split_sizes), timeout
            )

        return self._start("all_to_all_single", start, [output], opts)

    def barrier(self, opts: Any = None) -> TorchWork:
        return self._start(
            "barrier", lambda group, timeout: group.backend.barrier(timeout), [], opts
        )

    # -- one to all, all to one

    def broadcast(self, tensors: Sequence[Tensor], opts: Any) -> TorchWork:
        given_root = opts.rootRank

        def start(group: ProcessGroup, timeout: float | None) -> list[Work[Any]]:
            root = check_rank(group, None, given_root, "src")
            return [group.backend.broadcast(tensor, root, timeout) for tensor in tensors]

        return self._start("broadcast", start, tensors, opts)

    def reduce(self, tensors: Sequence[Tensor], opts: Any) -> TorchWork:
        given_root, op = opts.rootRank, reduce_op(opts)

        def start(group: ProcessGroup, timeout: float | None) -> list[Work[Any]]:
            root, reduce = check_rank(group, None, given_root, "dst"), op()
            return [group.backend.reduce(tensor, root, reduce, timeout) for tensor in tensors]

        return self._start("reduce", start, tensors, opts)

    def gather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any
    ) -> TorchWork:
        given_root = opts.rootRank

        def start(group: ProcessGroup, timeout: float | None) -> Work[Any]:
            root = check_rank(group, None, given_root, "dst")
            given = single(outputs, "outputs") if outputs else None
            places = check_root_list(given, "gather_list", group, root)
            return group.backend.gather(single(inputs, "inputs"), places, root, timeout)

        return self._start("gather", start, [tensor for row in outputs for tensor in row], opts)

    def scatter(
        self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any
    ) -> TorchWork:
        given_root = opts.rootRank

        def start(group: ProcessGroup, timeout: float | None) -> Work[Any]:
            root = check_rank(group, None, given_root, "src")
            given = single(inputs, "inputs") if inputs else None
            sources = check_root_list(given, "scatter_list", group, root)
            return group.backend.scatter(single(outputs, "outputs"), sources, root, timeout)

        return self._start("scatter", start, outputs, opts)

    # -- point to point

    def send(self, tensors: Sequence[Tensor], dst: int, tag: int) -> TorchWork:
        def start() -> list[Work[Any]]:
            to = check_other(self._group, check_rank(self._group, None, dst, "dst"), "dst")
            tensor = single(tensors, "tensors")
            return [self._group.backend.send(tensor, to, check_tag(tag), None)]

        operation = self._submit("send", start, blocks=False)
        return self._handed(TorchWork(operation, tensors, self._messages))

    def recv(self, tensors: Sequence[Tensor], src: int | None, tag: int) -> TorchWork:
        def start() -> list[Work[Any]]:
            source = src
            if src is not None:
                source = check_other(self._group, check_rank(self._group, None, src, "src"), "src")
            tensor = single(tensors, "tensors")
            return [self._group.backend.recv(tensor, source, check_tag(tag), None)]

        name = "recvAnySource" if src is None else "recv"
        operation = self._submit(name, start, blocks=False)
        numbers = {rank: number for number, rank in enumerate(self._group.ranks)}
        return self._handed(TorchReceive(operation, tensors, self._messages, numbers))

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int) -> TorchWork:
        return self.recv(tensors, None, tag)

    # -- older names for the same

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # -- how they start

    def _start(self, name: str, start: Start, tensors: Sequence[Tensor], opts: Any) -> TorchWork:
        """Start collectives; ``tensors`` are what they write."""
        completions = self._completions()
        completions.settle()
        timeout = seconds_of(opts)

        def run() -> Sequence[Work[Any]]:
            works = start(self._group, timeout)
            return [works] if isinstance(works, Work) else works

        operation = self._submit(name, run, blocks=not getattr(opts, "asyncOp", True))
        return self._handed(TorchWork(operation, tensors, completions))

    def _submit(
        self, name: str, start: Callable[[], Sequence[Work[Any]]], *, blocks: bool
    ) -> Operation:
        operation = Operation(self._world.loop, start, blocks, record(name))
        if os.getpid() != self._pid:
            operation.refuse(
                InvalidUsageError(
                    "this group belongs to the process that forked this one; call "
                    "init_process_group here"
                )
            )
        else:
            operation.submit()
        return operation

    def _completions(self) -> Completions:
        """Who completes the futures of what the calling thread starts."""
        level = level_here()
        while len(self._levels) <= level:
            self._levels.append(Completions(len(self._levels)))
        return self._levels[level]

    def _handed(self, work: TorchWork) -> TorchWork:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> TorchWork:
        """One handle for all that was started since ``_start_coalescing``; it runs already."""
        works, self._coalesced = self._coalesced or [], None
        return together(works, self._completions())

    # -- the group

    # torch asks a group's backend for a device what it can do; here the group itself answers.
    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> TorchGroup:
        if device.type != "cpu":
            raise RuntimeError(
                f'backend "aiodist" serves cpu tensors; make a group with a backend for {device}'
            )
        return self

    def getBackendName(self) -> str:  # noqa: N802  # C++ asks for it by this name
        return "aiodist"

    def name(self) -> str:
        return "aiodist"

    def getGroupName(self) -> str:  # noqa: N802
        return self._group_name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._group_name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._group_desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        self._group_desc = desc

    def subgroup(self, name: str, ranks: Sequence[int], timeout: timedelta | None) -> TorchGroup:
        """A group of some global ranks, over the same connections; the group's timeout if None."""
        seconds = self._group.timeout if timeout is None else timeout.total_seconds()
        return TorchGroup(self._world, self._world.subgroup(name, ranks, seconds), False)

    def splitGroup(  # noqa: N802
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        name: str | None = None,
        desc: str | None = None,
        devices: Any = None,
    ) -> TorchGroup | None:
        """The group of some of this one's ranks; only they need to call it."""
        if self.rank() not in ranks:
            return None
        chosen = [self._group.ranks[rank] for rank in sorted(ranks)]
        label = name or f"{self._group.group_name}:split"
        part = self.subgroup(label, chosen, timeout)
        part.setGroupName(label)
        part.setGroupDesc(desc or "")
        self._parts.append(part)  # C++ does not keep the Python half of it
        return part

    def set_timeout(self, timeout: timedelta) -> None:
        """The timeout of operations to come that bring none of their own."""
        self._group.timeout = timeout.total_seconds()

    def shutdown(self) -> None:
        """Close the group, after some seconds for what is under way."""
        self._close()

    def abort(self) -> None:
        """Close the group at once; what is under way fails, here and on the other ranks."""
        self._close(0.0)

    def _close(self, *seconds: float) -> None:
        if os.getpid() == self._pid:
            if self._owns_world:
                self._world.close(*seconds)
            else:
                self._world.remove([self._group], *seconds)
        for completions in self._levels:
            completions.close()
        self._messages.close()
