"""An optimizer whose step waits for the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

from aiodist.errors import InvalidUsageError
from aiodist.horovod import ranks as job
from aiodist.horovod.async_collectives import Average, Op, engine_op
from aiodist.horovod.objects import allgather_object
from aiodist.horovod.process_sets import ProcessSet, global_process_set
from aiodist.training.compression import check_compression
from aiodist.training.parameters import check_optimizer
from aiodist.training.sync import Compression, GradientReducer

Named = tuple[str, torch.Tensor]


class Distributed:
    """What `DistributedOptimizer` adds to an optimizer's class."""

    _aiodist_reducer: GradientReducer | None
    """None if this rank trains alone."""

    @property
    def bytes_per_step(self) -> int:
        """The bytes of gradients that this rank hands to all_reduce in each step."""
        return 0 if self._aiodist_reducer is None else self._aiodist_reducer.bytes_per_step

    def synchronize(self) -> None:
        """Wait until the gradients are those of all ranks; call it before what changes gradients."""
        if self._aiodist_reducer is not None:
            self._aiodist_reducer.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """In here, ``step()`` does not synchronize."""
        if self._aiodist_reducer is None:
            yield
            return
        with self._aiodist_reducer.skip_synchronize():
            yield

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise InvalidUsageError: parameters that come now would differ between ranks."""
        if self._aiodist_reducer is not None:
            raise InvalidUsageError(
                "parameters that are added after DistributedOptimizer would differ between ranks: give the "
                "optimizer all of them before it, and freeze those that train later after it, by "
                "requires_grad_(False)"
            )
        super().add_param_group(param_group)  # type: ignore[misc]  # of the optimizer's own class

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Send gradients when ``passes`` backward passes have added to them."""
        if self._aiodist_reducer is not None:
            self._aiodist_reducer.backward_passes_per_step = passes


def DistributedOptimizer(  # noqa: N802  # Horovod's name
    optimizer: Optimizer,
    named_parameters: Iterable[Named] | None = None,
    compression: Compression = Compression.none,
    backward_passes_per_step: int = 1,
    op: Op = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Optimizer:
    """Have ``optimizer.step()`` wait for the gradients of all ranks, and return ``optimizer``.

    It is the same object, with ``synchronize``, ``skip_synchronize`` and
    ``set_backward_passes_per_step`` in addition. Call it on all ranks of the process set.

    Args:
        optimizer: An optimizer of torch.
        named_parameters: Names for all parameters of the optimizer. Rank 0's order of the names
            is the order in which gradients leave, so other ranks may list them in another one.
            Without names the optimizer's parameters have to be in the same order on all ranks.
        compression: Compression.none, fp16 or bf16.
        backward_passes_per_step: A gradient is sent when so many backward passes have added to
            it.
        op: Average or Sum.
        gradient_predivide_factor: With Average, divide by it before the sum and by the rest after
            it. 1 divides by the number of ranks before the sum.
        num_groups: Horovod's parameter; it has no effect, as gradients travel in buckets.
        groups: Horovod's parameter; it has no effect, as gradients travel in buckets.
        sparse_as_dense: Horovod's parameter; it has no effect. Sparse gradients travel as dense
            ones and come back sparse in any case.
        process_set: The ranks that take part; all of them by default.

    Returns:
        ``optimizer``.

    Raises:
        InvalidUsageError: Names are missing, occur twice or differ between ranks; a number or an
            operation is not there; or ``optimizer`` is distributed already.
        TypeError: ``optimizer`` or ``compression`` is something else.
    """
    check_optimizer(optimizer)
    if isinstance(optimizer, Distributed):
        raise InvalidUsageError(
            "this optimizer is distributed already: call DistributedOptimizer once for an optimizer"
        )
    check_compression(compression)
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise InvalidUsageError("gradient_predivide_factor is for op=hvd.Average")
    if num_groups < 0 or (isinstance(groups, int) and groups < 0):
        raise InvalidUsageError("num_groups and groups are not negative")
    reduction = engine_op(op)
    named = None if named_parameters is None else list(named_parameters)
    if named is not None:
        _check_names(named, optimizer)
    session = job.session()
    if not process_set.included() or len(process_set.ranks) == 1:
        return _with_reducer(optimizer, None)
    group = process_set.group()
    parameters = [each for part in optimizer.param_groups for each in part["params"]]
    if named is not None:
        trained = {id(parameter) for parameter in parameters}
        own = {name: parameter for name, parameter in named if id(parameter) in trained}
        parameters = [own[name] for name in _agreed(list(own), process_set)]
    reducer = GradientReducer(
        parameters,
        op=reduction,
        compression=compression,
        group=group,
        backward_passes_per_step=backward_passes_per_step,
        gradient_predivide_factor=(
            None if gradient_predivide_factor == 1.0 else gradient_predivide_factor
        ),
        sparse_as_dense=True,
    )
    reducer.attach(optimizer)
    if process_set is global_process_set:
        session.reducers.append(reducer)
        reducer.enter_join(len(session.reducers))
    else:
        session.reducers_of_sets.append(reducer)
    return _with_reducer(optimizer, reducer)


def _with_reducer(optimizer: Optimizer, reducer: GradientReducer | None) -> Optimizer:
    """Return ``optimizer`` with the methods of `Distributed`."""
    cls = type(optimizer)
    optimizer.__class__ = type(cls.__name__, (Distributed, cls), {"__module__": cls.__module__})
    assert isinstance(optimizer, Distributed)
    optimizer._aiodist_reducer = reducer
    return optimizer


def _check_names(named: Sequence[Named], optimizer: Optimizer) -> None:
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in named):
        raise InvalidUsageError(
            "named_parameters are pairs of name and parameter: model.named_parameters()"
        )
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidUsageError(f"names occur twice in named_parameters: {', '.join(twice)}")
    known = {id(parameter) for _, parameter in named}
    unnamed = [
        tuple(parameter.shape)
        for part in optimizer.param_groups
        for parameter in part["params"]
        if id(parameter) not in known
    ]
    if unnamed:
        raise InvalidUsageError(
            f"named_parameters leave out {len(unnamed)} of the optimizer's parameters, the first of "
            f"shape {unnamed[0]}"
        )


def _agreed(names: list[str], process_set: ProcessSet) -> list[str]:
    """Return the first rank's order of the names; raise InvalidUsageError if a rank has others."""
    everybody = allgather_object(names, process_set=process_set)
    for rank, others in zip(process_set.ranks, everybody, strict=True):
        differing = sorted(set(others) ^ set(everybody[0]))
        if differing:
            raise InvalidUsageError(
                f"parameter {differing[0]!r} is trained on one of ranks {process_set.ranks[0]} and {rank} "
                "alone"
            )
    first: list[str] = everybody[0]
    return first
