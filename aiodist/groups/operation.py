"""Every operation of a group as its caller has described it.

Each API makes one of these objects and hands it to `GroupEngine.start`. It says which tensors are
read and written, and by which parameters. Its `open` checks the tensors for all backends. Its
`fingerprint` is what all ranks must agree on. Its `key` is equal for calls that share a plan.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, dataclass_transform

from aiodist.completion import T
from aiodist.errors import InvalidUsageError
from aiodist.groups.argument_checks import (
    Members,
    check_at_root,
    check_distinct,
    check_list,
    check_root_list,
)
from aiodist.groups.fingerprint import Fingerprint
from aiodist.groups.tensor_checks import (
    M,
    Open,
    check_apart,
    check_dtype,
    check_kept,
    check_own,
    check_times,
    digest_of_counts,
    each_of,
    split_lengths,
    unequal,
)
from aiodist.types import ReduceOp

Tensor = Any
"""torch.Tensor or numpy.ndarray; neither is imported here."""

C = TypeVar("C")


class Opened(NamedTuple, Generic[M]):
    """The memory of an operation's tensors, which fit together."""

    inputs: Sequence[M]
    """What this rank reads."""
    outputs: Sequence[M]
    """What this rank writes."""
    out_of: Sequence[int] = ()
    """Bytes of ``inputs`` for each rank, one after the other; empty where all ranks get the same."""
    into: Sequence[int] = ()
    """Bytes of ``outputs`` from each rank, one after the other; empty where there is one result."""


@dataclass_transform(frozen_default=True, eq_default=False)
def description(cls: type[C]) -> type[C]:
    """Make ``cls`` a frozen, slotted dataclass. mypy enforces the freezing, which costs 1 us a call."""
    return dataclass(slots=True, eq=False, repr=False)(cls)


class Operation(Generic[T]):
    """What a caller wants; ``T`` is the result. Ranks are the group's own numbers, and checked."""

    __slots__ = ()

    kind: ClassVar[str]
    """By which backends choose what to do; for a collective its name in the fingerprint."""
    has_value: ClassVar[bool] = False
    """Whether the result is an object or a new tensor, for which the caller has no other place."""

    @property
    def placed(self) -> Tensor | None:
        """The tensor whose device says which backend serves the operation; None for the first one."""
        for name in ("tensor", "output", "tensors", "inputs"):
            found = getattr(self, name, None)
            if found is not None:
                several = isinstance(found, (list, tuple))
                return next(iter(found), None) if several else found
        return None

    @property
    def written(self) -> list[Tensor] | None:
        """The tensors that a collective writes, as torch's futures have them; None for a message."""
        for name in ("outputs", "output", "tensors", "tensor"):
            found = getattr(self, name, None)
            if found is not None:
                return list(found) if isinstance(found, (list, tuple)) else [found]
        return []

    def key(self) -> Hashable:
        """Return what calls that can share a plan have in common; None if there is no plan.

        It consists of facts that are known before a tensor has been opened. Raises AttributeError,
        TypeError or RuntimeError for arguments that `open` refuses.
        """
        return None


class Collective(Operation[T]):
    """An operation that all ranks of the group start, in one order."""

    __slots__ = ()

    def fingerprint(self, opened: Opened[M]) -> Fingerprint:
        """Return what all ranks must agree on. ``opened``: what `open` has returned."""
        return Fingerprint(self.kind, root=getattr(self, "root", -1))

    def open(self, open_one: Open[M], group: Members) -> Opened[M]:
        """Open all tensors by ``open_one(tensor, name, writable=...)`` and check that they fit together.

        Raises TypeError and InvalidUsageError, which name the argument.
        """
        return Opened((), ())


# -- without tensors


@description
class Barrier(Collective[None]):
    """Wait until all ranks have entered."""

    kind: ClassVar[str] = "barrier"

    def key(self) -> Hashable:
        return "barrier"


@description
class Agree(Collective[None]):
    """Run a barrier that fails on all ranks unless all pass the same ``digest`` (63 bits)."""

    kind: ClassVar[str] = "agree"
    name: str
    digest: int

    def fingerprint(self, opened: Opened[M]) -> Fingerprint:
        return Fingerprint(self.name, count=self.digest)


# -- one to all, all to one


@description
class Broadcast(Collective[None]):
    """Copy ``tensor`` of ``root`` into that of all ranks."""

    kind: ClassVar[str] = "broadcast"
    tensor: Tensor
    root: int

    def key(self) -> Hashable:
        tensor = self.tensor
        return "broadcast", type(tensor), tensor.dtype, tensor.shape, self.root

    def fingerprint(self, opened: Opened[M]) -> Fingerprint:
        (memory,) = opened.inputs or opened.outputs
        return Fingerprint("broadcast", memory.dtype, None, self.root, memory.count, memory.shape)

    def open(self, open_one: Open[M], group: Members) -> Opened[M]:
        is_root = group.rank == self.root
        memory = [open_one(self.tensor, "tensor", writable=not is_root)]
        return Opened(memory, ()) if is_root else Opened((), memory)


@description
class Reduce(Collective[None]):
    """Reduce ``tensor`` over all ranks into that of ``root``."""

    kind: ClassVar[str] = "reduce"
    tensor: Tensor
    root: int
    op: ReduceOp

    def key(self) -> Hashable:
        tensor = self.tensor
        return "reduce", type(tensor), tensor.dtype, tensor.shape, self.root, id(self.op.kind)

    def fingerprint(self, opened: Opened[M]) -> Fingerprint:
        (memory,) = opened.inputs
        return Fingerprint("reduce", memory.dtype, self.op, self.root, memory.count, memory.shape)

    def open(self, open_one: Open[M], group: Members) -> Opened[M]:
        is_root = group.rank == self.root
        memory = [open_one(self.tensor, "tensor", writable=is_root)]
        return Opened(memory, memory if is_root else ())


@description
class Gather(Collective[None]):
    """Fill ``outputs[r]`` of ``root`` with rank r's ``tensor``."""

    kind: ClassVar[str] = "gather"
    tensor: Tensor
    outputs: Tensor | Sequence[Tensor] | None
    root: int

    def fingerprint(self, opened: Opened[M]) -> Fingerprint:
        (memory,) = opened.inputs
        return Fingerprint("gather", memory.dtype, root=self.root, shape=memory.shape)

    def open(self, open_one: Open[M], group: Members) -> Opened[M]:
        outputs = check_root_list(self.outputs, "gather_list", group, self.root) or ()
        check_distinct(outputs, "gather_list")
        memory = open_one(self.tensor, "tensor", writable=False)
        places = each_of(outputs, "gather_list", open_one, memory, writable=True)
        check_apart(places, "gather_list")
        if places:
            check_own(places[group.rank], memory, "gather_list")
        return Opened([memory], places, into=_nbytes(places))


@description
class GatherSingle(Gather):
    """Fill ``outputs`` of ``root``, one tensor, with the ``tensor`` of all ranks, one after the other."""

    def open(self, open_one: Open[M], group: Members) -> Opened[M]:
        memory = open_one(self.tensor, "tensor", writable=False)
        if group.rank != self.root:  # torch, too, takes no notice of its output
            return Opened([memory], ())
        given = check_at_root(self.outputs, "gather_tensor", group, self.root)
        place = open_one(given, "gather_tensor", writable=True)
        check_times(place, "gather_tensor", memory, "tensor", group.size)
        return Opened([memory], [place], into=[memory.nbytes] * group.size)


@description
class Scatter(Collective[None]):
    """Fill ``output`` of rank r with ``inputs[r]`` of ``root``."""

    kind: ClassVar[str] = "scatter"
    output: Tensor
    inputs: Sequence[Tensor] | None
    root: int

    def fingerprint(self, opened: Opened[M]) -> Fingerprint:
        (memory,) = opened.outputs
        return Fingerprint("scatter", memory.dtype, root=self.root, shape=memory.shape)

    def open(self, open_one: Open[M], group: Members) -> Opened[M]:
        inputs = check_root_list(self.inputs, "scatter_list", group, self.root) or ()
        memory = open_one(self.output, "tensor", writable=True)
        sources = each_of(inputs, "scatter_list", open_one, memory, writable=False)
        if sources:
            check_own(sources[group.rank], memory, "scatter_list")
        return Opened(sources, [memory], out_of=_nbytes(sources))


# -- all to all ranks


@description
class AllReduce(Collective[None]):
    """Reduce ``tensor`` over all ranks, in place."""

    kind: ClassVar[str] = "all_reduce"
    tensor: Tensor
    op: ReduceOp

    def key(self) -> Hashable:
        tensor = self.tensor
        return "all_reduce", type(tensor), tensor.dtype, tensor.shape, id(self.op.kind)

    def fingerprint(self, opened: Opened[M]) -> Fingerprint:
        (memory,) = opened.inputs
        return Fingerprint("all_reduce", memory.dtype, self.op, -1, memory.count, memory.shape)

    def open(self, open_one: Open[M], group: Members) -> Opened[M]:
        memory = [open_one(self.tensor, "tensor", writable=True)]
        return Opened(memory, memory)


@description
class AllReduceCoalesced(Collective[None]):
    """Reduce several tensors of one dtype over all ranks, in place."""

    kind: ClassVar[str] = "all_reduce_coalesced"
    tensors: Sequence[Tensor]
    op: ReduceOp

    def fingerprint(self, opened: Opened[M]) -> Fingerprint:
        digest = digest_of_counts(opened.inputs)
        return Fingerprint(self.kind, opened.inputs[0].dtype, self.op, count=digest)

    def open(self, open_one: Open[M], group: Members) -> Opened[M]:
        tensors = _filled(self.tensors, "tensors")
        memory = each_of(tensors, "tensors", open_one, writable=True)
        return Opened(memory, memory)


class _AllGather(Collective[None]):
    __slots__ = ()

    kind: ClassVar[str] = "all_gather"

    def fingerprint(self, opened: Opened[M]) -> Fingerprint:
        (memory,) = opened.inputs
        root, total = unequal(opened.into), sum(place.count for place in opened.outputs)
        return Fingerprint("all_gather", memory.dtype, None, root, total, memory.shape)


@description
class AllGather(_AllGather):
    """Fill ``outputs[r]`` with rank r's ``tensor``."""

    outputs: Sequence[Tensor]
    tensor: Tensor

    def key(self) -> Hashable:
        return "all_gather", _facts([self.tensor, *self.outputs])

    def open(self, open_one: Open[M], group: Members) -> Opened[M]:
        outputs = check_list(self.outputs, "tensor_list", group.size)
        check_distinct(outputs, "tensor_list")
        memory = open_one(self.tensor, "tensor", writable=False)
        places = each_of(outputs, "tensor_list", open_one, memory, writable=True)
        check_apart(places, "tensor_list")
        check_own(places[group.rank], memory, "tensor_list")
        return Opened([memory], places, into=_nbytes(places))


@description
class AllGatherSingle(_AllGather):
    """Fill ``output`` with the ``tensor`` of all ranks, one after the other."""

    output: Tensor
    tensor: Tensor

    def key(self) -> Hashable:
        output, tensor = self.output, self.tensor
        kinds = type(output), type(tensor)
        return "all_gather", kinds, output.dtype, output.shape, tensor.dtype, tensor.shape

    def open(self, open_one: Open[M], group: Members) -> Opened[M]:
        memory = open_one(self.tensor, "input_tensor", writable=False)
        place = open_one(self.output, "output_tensor", writable=True)
        check_times(place, "output_tensor", memory, "input_tensor", group.size)
        return Opened([memory], [place], into=[memory.nbytes] * group.size)


@description
class AllGatherCoalesced(Collective[None]):
    """Fill ``outputs[r][i]`` with rank r's ``tensors[i]``."""

    kind: ClassVar[str] = "all_gather_coalesced"
    outputs: Sequence[Sequence[Tensor]]
    tensors: Sequence[Tensor]

    def fingerprint(self, opened: Opened[M]) -> Fingerprint:
        digest = digest_of_counts(opened.outputs)
        return Fingerprint(self.kind, opened.inputs[0].dtype, count=digest)

    def open(self, open_one: Open[M], group: Members) -> Opened[M]:
        name = "output_tensor_lists"
        tensors = _filled(self.tensors, "input_tensor_list")
        rows = [
            check_list(row, f"{name}[{number}]", len(tensors), each="tensor")
            for number, row in enumerate(check_list(self.outputs, name, group.size))
        ]
        joined = f"sum({name}, [])"
        check_distinct([tensor for row in rows for tensor in row], joined)
        memory = each_of(tensors, "input_tensor_list", open_one, writable=False)
        places = [
            each_of(row, f"{name}[{number}]", open_one, memory[0], writable=True)
            for number, row in enumerate(rows)
        ]
        outputs = [place for row in places for place in row]
        check_apart(outputs, joined)
        for place, own in zip(places[group.rank], memory, strict=True):
            check_own(place, own, f"{name}[{group.rank}]")
        lengths = [sum(_nbytes(row)) for row in places]
        return Opened(memory, outputs, into=lengths)


class _ReduceScatter(Collective[None]):
    __slots__ = ()

    kind: ClassVar[str] = "reduce_scatter"
    op: ReduceOp

    def fingerprint(self, opened: Opened[M]) -> Fingerprint:
        (memory,) = opened.outputs
        root, total = unequal(opened.out_of), sum(source.count for source in opened.inputs)
        return Fingerprint("reduce_scatter", memory.dtype, self.op, root, total, memory.shape)


@description
class ReduceScatter(_ReduceScatter):
    """Reduce ``inputs[r]`` over all ranks into rank r's ``output``."""

    output: Tensor
    inputs: Sequence[Tensor]
    op: ReduceOp

    def key(self) -> Hashable:
        return "reduce_scatter", _facts([self.output, *self.inputs]), id(self.op.kind)

    def open(self, open_one: Open[M], group: Members) -> Opened[M]:
        inputs = check_list(self.inputs, "input_list", group.size)
        memory = open_one(self.output, "output", writable=True)
        sources = each_of(inputs, "input_list", open_one, memory, writable=False)
        check_own(sources[group.rank], memory, "input_list")
        return Opened(sources, [memory], out_of=_nbytes(sources))


@description
class ReduceScatterSingle(_ReduceScatter):
    """Reduce ``tensor`` over all ranks; rank r gets the r-th of its equal parts in ``output``."""

    output: Tensor
    tensor: Tensor
    op: ReduceOp

    def key(self) -> Hashable:
        output, tensor, op = self.output, self.tensor, id(self.op.kind)
        kinds = type(output), type(tensor)
        return "reduce_scatter", kinds, output.dtype, output.shape, tensor.dtype, tensor.shape, op

    def open(self, open_one: Open[M], group: Members) -> Opened[M]:
        memory = open_one(self.output, "output", writable=True)
        source = open_one(self.tensor, "input", writable=False)
        check_times(source, "input", memory, "output", group.size)
        return Opened([source], [memory], out_of=[memory.nbytes] * group.size)


@description
class AllToAll(Collective[None]):
    """Send ``inputs[r]`` to each rank r; fill ``outputs[r]`` from rank r."""

    kind: ClassVar[str] = "all_to_all"
    outputs: Sequence[Tensor]
    inputs: Sequence[Tensor]

    def key(self) -> Hashable:
        return "all_to_all", _facts([*self.inputs, *self.outputs])

    def fingerprint(self, opened: Opened[M]) -> Fingerprint:
        return Fingerprint("all_to_all", opened.inputs[0].dtype)

    def open(self, open_one: Open[M], group: Members) -> Opened[M]:
        outputs = check_list(self.outputs, "output_tensor_list", group.size)
        check_distinct(outputs, "output_tensor_list")
        inputs = check_list(self.inputs, "input_tensor_list", group.size)
        sources = each_of(inputs, "input_tensor_list", open_one, writable=False)
        places = each_of(outputs, "output_tensor_list", open_one, sources[0], writable=True)
        check_apart(places, "output_tensor_list", sources, "input_tensor_list")
        check_own(places[group.rank], sources[group.rank], "output_tensor_list")
        return Opened(sources, places, _nbytes(sources), _nbytes(places))


@description
class AllToAllSingle(Collective[None]):
    """Send ``input_splits[r]`` rows of ``tensor`` to each rank r, and the like for ``output``."""

    kind: ClassVar[str] = "all_to_all"
    output: Tensor
    tensor: Tensor
    output_splits: Sequence[int] | None = None
    input_splits: Sequence[int] | None = None

    def key(self) -> Hashable:
        output, tensor = self.output, self.tensor
        into, out_of = self.output_splits, self.input_splits
        splits: Hashable = None
        if into is not None or out_of is not None:
            if not (_are_ints(into) and _are_ints(out_of)):
                return None  # 1.0 and True are equal to 1 in a key, but `open` refuses them
            splits = tuple(into or ()), tuple(out_of or ())
        kinds = type(output), type(tensor)
        return "all_to_all", kinds, output.dtype, output.shape, tensor.dtype, tensor.shape, splits

    def fingerprint(self, opened: Opened[M]) -> Fingerprint:
        (source,) = opened.inputs
        return Fingerprint("all_to_all", source.dtype, shape=source.shape)

    def open(self, open_one: Open[M], group: Members) -> Opened[M]:
        source = open_one(self.tensor, "input", writable=False)
        place = open_one(self.output, "output", writable=True)
        check_dtype(place, "output", source)
        check_apart([place], "output", [source], "input")
        size, rank = group.size, group.rank
        out_of = split_lengths(source.shape, source.nbytes, "input", self.input_splits, size)
        into = split_lengths(place.shape, place.nbytes, "output", self.output_splits, size)
        check_kept(rank, out_of[rank], into[rank])
        return Opened([source], [place], out_of, into)


# -- tensors of which only their senders know the shape


@description
class BroadcastNew(Collective[Tensor]):
    """As `Broadcast`, into a new tensor that the root's describes; the root gets its own."""

    kind: ClassVar[str] = "broadcast_new"
    has_value: ClassVar[bool] = True
    tensor: Tensor | None
    root: int

    @property
    def placed(self) -> None:
        """None: the ranks do not know each other's devices."""

    def open(self, open_one: Open[M], group: Members) -> Opened[M]:
        if (group.rank == self.root) == (self.tensor is None):
            raise InvalidUsageError(
                "the source of broadcast_new passes a tensor, and only the source"
            )
        return Opened(
            () if self.tensor is None else [open_one(self.tensor, "tensor", writable=False)], ()
        )


@description
class AllGatherNew(Collective[list[Tensor]]):
    """As `AllGather`, into new tensors; each rank's may have a shape of its own."""

    kind: ClassVar[str] = "all_gather_new"
    has_value: ClassVar[bool] = True
    tensor: Tensor

    @property
    def placed(self) -> None:
        """None, as for `BroadcastNew`."""

    def open(self, open_one: Open[M], group: Members) -> Opened[M]:
        return Opened([open_one(self.tensor, "tensor", writable=False)], ())


def _filled(tensors: Any, name: str) -> list[Tensor]:
    if checked := check_list(tensors, name):
        return checked
    raise InvalidUsageError(f"{name} is empty")


def _facts(tensors: Sequence[Tensor]) -> Hashable:
    return tuple((type(tensor), tensor.dtype, tensor.shape) for tensor in tensors)


def _are_ints(splits: Any) -> bool:
    """Return whether a key may hold ``splits``: None, or a list or tuple whose types are all int."""
    return splits is None or (
        isinstance(splits, (list, tuple)) and set(map(type, splits)) <= _ONLY_INT
    )


_ONLY_INT = frozenset[type]({int})


def _nbytes(memory: Sequence[M]) -> list[int]:
    return [each.nbytes for each in memory]
